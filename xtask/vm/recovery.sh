#!/bin/bash
# Either end goes away and comes back while a host writes.
# parts: come-and-go reconnect kill-restart kill-idle
# parts rdma: port-events
# parts ours: stop-drains leaks
. /share/lib.sh

# Connections that end amid I/O, again and again.
part_come_and_go() {
    local round dev pid
    for round in 1 2 3 4 5; do
        connect "$DEMO" -i 2
        dev=$(ns_wait "$DEMO" 1)
        fio --name=cut --filename="$dev" --allow_file_create=0 --ioengine=libaio --direct=1 \
            --rw=randrw --bs=32k --iodepth=32 --time_based --runtime=30 --minimal \
            --output=/tmp/cut.txt >/dev/null 2>&1 &
        pid=$!
        sleep 2
        disconnect "$DEMO"
        if wait "$pid"; then fail "fio did not notice that its device went"; fi
    done
    note "$round connections cut amid I/O"
}

# The host itself drops everything and comes back.
part_reconnect() {
    connect "$DEMO" --reconnect-delay=1
    local name
    load_start "$(ns_wait "$DEMO" 4)" --bs=16k --size=16m --rate_iops=200
    name=$(controller_of "$DEMO")
    sleep 2
    nvme reset "/dev/$name"
    sleep 1
    echo 1 >"/sys/class/nvme/$name/reset_controller"
    load_stop
    disconnect "$DEMO"
}

# SIGKILL amid writes to a file-backed namespace, three seconds of nobody, then a new daemon.
part_kill_restart() {
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=-1 --keep-alive-tmo=10
    ns_wait "$DEMO" 4 >/dev/null
    dmesg -C
    load_start "$(ns_wait "$DEMO" 4)" --bs=16k --size=48m --rate_iops=200
    sleep 5
    target_kill
    sleep 3
    if controller_live "$DEMO"; then fail "the host did not notice that the target died"; fi
    target_restart
    wait_for 20 controller_live "$DEMO"
    note "the host reconnected under load: $(dmesg | grep -c 'Successfully reconnected') time(s)"
    load_stop
    assert_has "the kernel's log" "$(dmesg)" 'Successfully reconnected'
    if dmesg | grep -E 'I/O error|Buffer I/O'; then fail "the kernel gave up on I/O"; fi
    disconnect "$DEMO"
}

# The same for hosts that are idle: keep-alive alone has to find out, and the namespaces stay the same.
part_kill_idle() {
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=10
    local dev before
    dev=$(ns_wait "$DEMO" 4)
    ns_wait "$DEMO" 5 >/dev/null
    before=$(cat "$(ns_sys "$DEMO" 4)/wwid")
    head -c 65536 /dev/urandom >/tmp/data
    dd if=/tmp/data of="$dev" bs=64k oflag=direct conv=fsync status=none
    target_kill
    wait_for 20 no controller_live "$DEMO"
    target_restart
    wait_for 20 controller_live "$DEMO"
    assert_eq "the namespace's identity" "$(cat "$(ns_sys "$DEMO" 4)/wwid")" "$before"
    cmp <(dd if="$dev" bs=64k count=1 iflag=direct status=none) /tmp/data
    disconnect "$DEMO"
}

# The RDMA port goes down and comes back: while nobody is connected, and amid writes. Within one machine
# soft-RoCE hands packets over all the same; what two guests lose then is the case of theirs. (Taking
# the device itself down amid writes would end soft-RoCE's management queue pair for good.)
part_port_events() {
    ip link set "$RDMA_CARD" down
    wait_for 5 rdma_is DOWN
    ip link set "$RDMA_CARD" up
    wait_for 5 rdma_is ACTIVE
    connect "$DEMO" -i 2
    local round
    load_start "$(ns_wait "$DEMO" 1)" --bs=16k --size=16m --rate_iops=150
    for round in 1 2 3; do
        sleep 1
        ip link set "$RDMA_CARD" carrier off
        wait_for 5 rdma_is DOWN
        sleep 1
        ip link set "$RDMA_CARD" carrier on
        wait_for 5 rdma_is ACTIVE
    done
    load_stop
    note "the port went $round times"
    disconnect "$DEMO"
}

# SIGTERM amid I/O: what was taken in is finished, the exit code is 0, and the host comes back.
part_stop_drains() {
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=10
    load_start "$(ns_wait "$DEMO" 4)" --bs=16k --size=24m --rate_iops=200
    sleep 3
    kill -TERM "$(daemon_pid)"
    wait_for 20 test -s /run/state/exit
    assert_eq "exit code after SIGTERM under load" "$(cat /run/state/exit)" 0
    daemon_start
    wait_for 20 controller_live "$DEMO"
    load_stop
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
