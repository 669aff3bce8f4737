#!/bin/bash
# Every pacing policy on the daemon over soft RDMA, by the same bench that runs on loopback TCP, and
# its mixes. Emulation makes the speeds worthless by themselves; that every run moves its data, and
# how policies compare, is what is printed.
# measures
# parts ours: pacing mixes
. /share/lib.sh
LIMIT_pacing=500
LIMIT_mixes=500

DEPTHS=128
DEVICES=ram,delay
POINTS=10 # five policies on each
MIXES='ram + 1ms, 128 KiB reads, depth 16'
MIX_POINTS=24 # 6 pairs of turns of 2 mixes: emulated, a mix takes about 2 minutes
if [ "$MEASURE" = shortly ]; then DEVICES=delay POINTS=5 MIXES='128 KiB reads, depth 16, a host each' MIX_POINTS=12; fi

# Runs the bench with these arguments, which have to give at least COUNT points: bench COUNT ARG...
bench() {
    local workspace=/run/bench build=/run/bench/target count=$1 points
    shift
    mkdir -p "$workspace/xtask" "$build/release"
    touch "$workspace/xtask/Cargo.toml"
    # Links, not copies: memory is scarce here.
    ln -sf /run/bin/nvmeof-tgt /run/bin/nvmeof-perf /share/nvmeofctl "$build/release/"
    # The daemon under test stays, idle: the bench starts one of its own, at any port.
    (cd "$workspace" && CARGO_TARGET_DIR=$build /share/nvmeof-lab bench pacing --no-build \
        --listen "rdma://$ADDRESS" "$@" --json /tmp/points.jsonl >/tmp/points.md)
    points=$(grep -c '"policy":' /tmp/points.jsonl)
    [ "$points" -ge "$count" ] || fail "only $points points were measured"
    grep '^|' /tmp/points.md | sed 's/^/table /'
}

part_pacing() {
    bench "$POINTS" --depths "$DEPTHS" --devices "$DEVICES" \
        --repeat 1 --time 300ms --ramp 200ms --adaptive-settle 200ms
}

part_mixes() {
    # A second a turn: emulated, a host completes a handful of commands in it.
    bench "$MIX_POINTS" --mixes --repeat 6 --ramp 200ms --time 1s --only "$MIXES"
}

run_parts "$@"
