#!/bin/bash
# A remote sweep whose host is this guest: reached by a real sshd, fio on the kernel's initiator.
# parts ours: kernel-host killed
. /share/lib.sh

KEYS=/run/keys
# ssh's arithmetic takes its time in emulation.
PART_LIMIT=300
PLAN=/run/plan.toml
LISTEN=$FABRIC://$ADDRESS

ssh_up() {
    mkdir -p /run/sshd "$KEYS"
    # What shells of this machine's root start with is not for a guest, which cannot write there.
    mountpoint -q /root || mount -t tmpfs home /root
    for key in host user; do
        [ -f "$KEYS/$key" ] || ssh-keygen -q -t ed25519 -N '' -f "$KEYS/$key"
    done
    cp "$KEYS/user.pub" "$KEYS/authorized"
    cat >"$KEYS/sshd" <<EOF
ListenAddress 127.0.0.1:2222
HostKey $KEYS/host
PidFile /run/sshd.pid
UsePAM no
AuthorizedKeysFile $KEYS/authorized
PasswordAuthentication no
StrictModes no
PermitRootLogin yes
LogLevel ERROR
EOF
    cat >"$KEYS/client" <<EOF
Port 2222
IdentityFile $KEYS/user
IdentitiesOnly yes
UserKnownHostsFile $KEYS/known
StrictHostKeyChecking accept-new
LogLevel ERROR
EOF
    [ -f /run/sshd.pid ] || /usr/sbin/sshd -f "$KEYS/sshd"
}

plan() {
    cat >"$PLAN" <<EOF
name = "guest"
about = "fio on the kernel's initiator."
[target]
cores = 1
devices = { kind = "null", count = 2 }
[load]
block-size = "4KiB"
reads = 50
time = "${1}"
ramp = "500ms"
[[host]]
initiator = "fio-kernel"
[[job]]
queue-depth = 4
threads = 2
EOF
}

sweep() {
    TMPDIR=/run /share/nvmeof-lab sweep --plan "$PLAN" --where remote --listen "$LISTEN" \
        --host root@127.0.0.1 --ssh-option=-F"$KEYS/client" --tgt /share/nvmeof-tgt --perf /share/nvmeof-perf \
        --no-build "$@"
}

nothing_connected() {
    [ -z "$(cat /sys/class/nvme/nvme*/subsysnqn 2>/dev/null | grep sweep)" ]
}

no_programs() {
    # The target of the other boots' parts runs, too.
    no pgrep -x fio && no pgrep -f nvmeof-sweep
}

part_kernel_host() {
    ssh_up
    plan 2s
    sweep --json /share/guest.jsonl --csv /share/guest.csv --html /share/guest.html
    assert_eq "points in the results" "$(wc -l </share/guest.jsonl)" 1
    assert_has "results" "$(cat /share/guest.jsonl)" '"initiator":"fio\+kernel'
    assert_has "first point" "$(head -n 1 /share/guest.jsonl)" '"target_cpus":[0-9.]*[1-9]'
    no grep -q '"kiops":0.0' /share/guest.jsonl || fail "a host did nothing"
    assert_eq "rows" "$(wc -l </share/guest.csv)" 2
    nothing_connected || fail "a host is still connected"
    note "$(cut -d, -f4,16,17,18 /share/guest.csv | tail -n +2 | tr '\n' ' ')"
}

# Whatever becomes of the sweep, its host disconnects and its programs end.
part_killed() {
    ssh_up
    plan 60s
    sweep --json /run/killed.jsonl >/run/killed.log 2>&1 &
    wait_for 60 pgrep -x fio
    pkill -KILL -x nvmeof-lab
    wait_for 60 no_programs
    wait_for 30 nothing_connected
    note "disconnected, and nothing runs"
}

run_parts "$@"
