#!/bin/bash
# A host that dies without a word: nothing of it stays.
# parts ours: host-dies leaks
. /share/lib.sh

# A host whose network is gone says no goodbye: keep-alive has to end its controller. The daemon
# listens on one end of a link; cutting the link silences the host.
part_host_dies() {
    local before
    ip netns add far
    ip link add near0 type veth peer name far0 netns far
    ip addr add 10.77.0.1/24 dev near0
    ip link set near0 up
    ip -n far link set lo up
    ip -n far addr add 10.77.0.2/24 dev far0
    ip -n far link set far0 up
    kill -TERM "$(daemon_pid)"
    wait_for 15 test -s /run/state/exit
    sed -i 's/address = "127.0.0.1"/address = "0.0.0.0"/' /run/target.d/00-head
    DAEMON_PREFIX="ip netns exec far" daemon_start
    before=$(target_sizes)
    ADDRESS=10.77.0.2 connect "$DEMO" --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=120
    [ "$(daemon_count connections)" -ge 2 ] || fail "the daemon counts no connections"
    ip link set near0 down
    local deadline=$((SECONDS + 90))
    until [ "$(target_sizes)" = "$before" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "a dead host's state stays: $(target_sizes), not $before"
        sleep 0.5
    done
    note "a dead host is gone from the daemon: $(target_sizes)"
    # The host comes back when its network does.
    ip link set near0 up
    wait_for 30 controller_live "$DEMO"
    verify_io "$(ns_wait "$DEMO" 1)" 16k 2m
    disconnect "$DEMO"
    kill -TERM "$(daemon_pid)"
    wait_for 15 test -s /run/state/exit
    sed -i 's/address = "0.0.0.0"/address = "127.0.0.1"/' /run/target.d/00-head
    daemon_start
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
