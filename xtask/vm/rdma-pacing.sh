#!/bin/bash
# Every pacing policy on the daemon over soft RDMA, by the same bench that runs on loopback TCP. Emulation
# makes the speeds worthless by themselves; that every run moves its data, and how policies compare, is what
# is printed.
# measures
# parts ours: pacing
. /share/lib.sh
LIMIT_pacing=500

DEPTHS=128
DEVICES=ram,delay
POINTS=10 # five policies on each
if [ "$MEASURE" = shortly ]; then DEVICES=delay POINTS=5; fi

part_pacing() {
    local workspace=/run/bench build=/run/bench/target points
    mkdir -p "$workspace/xtask" "$build/release"
    touch "$workspace/xtask/Cargo.toml"
    ln -s /run/bin/nvmeof-tgt /run/bin/nvmeof-perf /share/nvmeofctl "$build/release/" # Memory is scarce here.
    # The daemon under test stays, idle: the bench starts one of its own for all points of a depth, at any port.
    (cd "$workspace" && CARGO_TARGET_DIR=$build /share/nvmeof-lab bench pacing --no-build \
        --listen "rdma://$ADDRESS" --depths "$DEPTHS" --devices "$DEVICES" \
        --repeat 1 --time 300ms --ramp 200ms --adaptive-settle 200ms --json /tmp/pacing.jsonl >/tmp/pacing.md)
    points=$(grep -c '"policy":' /tmp/pacing.jsonl)
    [ "$points" -ge "$POINTS" ] || fail "only $points points were measured"
    grep '^|' /tmp/pacing.md | sed 's/^/table /'
}

run_parts "$@"
