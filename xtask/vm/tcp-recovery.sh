#!/bin/bash
# The target dies and comes back while a host writes.
# parts: reconnect
# parts ours: kill-restart kill-idle stop-drains leaks
. /share/lib.sh

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
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=10
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
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=10
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
    connect "$DEMO" --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=10
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

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
