#!/bin/bash
# The target dies and comes back while a host writes; a host dies and leaves nothing behind.
# parts: reconnect
# parts ours: kill-restart kill-idle stop-drains host-dies leaks
. /share/lib.sh
LIMIT_kill_restart=100
LIMIT_kill_idle=90

# The host itself drops everything and comes back.
part_reconnect() {
    connect "$DEMO" --reconnect-delay=1
    local dev pid name
    dev=$(ns_wait "$DEMO" 4)
    name=$(controller_of "$DEMO")
    verify_io "$dev" 16k 16m --rate_iops=200 &
    pid=$!
    sleep 2
    nvme reset "/dev/$name"
    sleep 1
    echo 1 >"/sys/class/nvme/$name/reset_controller"
    kill -0 "$pid" || fail "fio ended before the resets"
    wait "$pid"
    disconnect "$DEMO"
}

# SIGKILL amid writes to a file-backed namespace, three seconds of nobody, then a new daemon.
part_kill_restart() {
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
    local dev pid
    dev=$(ns_wait "$DEMO" 4)
    dmesg -C
    verify_io "$dev" 16k 48m --rate_iops=200 &
    pid=$!
    sleep 5
    kill -KILL "$(daemon_pid)"
    wait_for 5 no daemon_alive
    sleep 3
    kill -0 "$pid" || fail "fio ended while the target was dead"
    if controller_live "$DEMO"; then fail "the host did not notice that the target died"; fi
    daemon_start
    wait_for 20 controller_live "$DEMO"
    kill -0 "$pid" || fail "fio ended before the host was back"
    note "the host reconnected while fio ran: $(dmesg | grep -c 'Successfully reconnected') time(s)"
    wait "$pid"
    assert_has "the kernel's log" "$(dmesg)" 'Successfully reconnected'
    if dmesg | grep -E 'I/O error|Buffer I/O'; then fail "the kernel gave up on I/O"; fi
    disconnect "$DEMO"
}

# The same for hosts that are idle: keep-alive alone has to find out, and the namespaces stay the same.
part_kill_idle() {
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
    local dev before
    dev=$(ns_wait "$DEMO" 4)
    ns_wait "$DEMO" 5 >/dev/null
    before=$(cat "$(ns_sys "$DEMO" 4)/wwid")
    head -c 65536 /dev/urandom >/tmp/data
    dd if=/tmp/data of="$dev" bs=64k oflag=direct conv=fsync status=none
    kill -KILL "$(daemon_pid)"
    wait_for 5 no daemon_alive
    wait_for 10 no controller_live "$DEMO"
    daemon_start
    wait_for 20 controller_live "$DEMO"
    assert_eq "the namespace's identity" "$(cat "$(ns_sys "$DEMO" 4)/wwid")" "$before"
    cmp <(dd if="$dev" bs=64k count=1 iflag=direct status=none) /tmp/data
    disconnect "$DEMO"
}

# SIGTERM amid I/O: what was taken in is finished, the exit code is 0, and the host comes back.
part_stop_drains() {
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
    local dev pid
    dev=$(ns_wait "$DEMO" 4)
    verify_io "$dev" 16k 24m --rate_iops=200 &
    pid=$!
    sleep 3
    kill -TERM "$(daemon_pid)"
    wait_for 20 test -s /run/state/exit
    assert_eq "exit code after SIGTERM under load" "$(cat /run/state/exit)" 0
    kill -0 "$pid" || fail "fio ended when the target stopped"
    daemon_start
    wait_for 20 controller_live "$DEMO"
    wait "$pid"
    disconnect "$DEMO"
}

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
    before=$(daemon_sizes)
    ADDRESS=10.77.0.2 connect "$DEMO" --keep-alive-tmo=3 --reconnect-delay=1 --ctrl-loss-tmo=120
    [ "$(daemon_count connections)" -ge 2 ] || fail "the daemon counts no connections"
    ip link set near0 down
    local deadline=$((SECONDS + 20))
    until [ "$(daemon_sizes)" = "$before" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "a dead host's state stays: $(daemon_sizes), not $before"
        sleep 0.5
    done
    note "a dead host is gone from the daemon: $(daemon_sizes)"
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
