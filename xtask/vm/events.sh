#!/bin/bash
# What the host is told while it is connected: namespaces that come and go, discovery that changes.
# parts: namespace-added namespace-removed discovery-change
# parts ours: bad-reload reload-under-load subsystem-removed leaks
. /share/lib.sh

prepare() {
    : >/run/uevents
    # The listener has to outlive the parts, which run in process groups of their own.
    setsid busybox uevent /share/on-uevent.sh </dev/null >/dev/null 2>&1 &
}

part_namespace_added() {
    connect "$DEMO"
    ns_wait "$DEMO" 5 >/dev/null
    assert_eq "namespaces before" "$(ns_count "$DEMO")" 5
    target_add_ns 9
    # Nobody asks the host to scan: the event does.
    wait_for 10 ns_dev "$DEMO" 9
    assert_eq "bytes of the new namespace" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 9)")" $((32 << 20))
    verify_io "$(ns_dev "$DEMO" 9)" 16k 2m
    assert_eq "namespaces after" "$(ns_count "$DEMO")" 6
    disconnect "$DEMO"
}

part_namespace_removed() {
    connect "$DEMO"
    ns_wait "$DEMO" 9 >/dev/null
    target_remove_ns 9
    wait_for 10 no ns_sys "$DEMO" 9
    # The others go on.
    verify_io "$(ns_dev "$DEMO" 1)" 16k 2m
    assert_eq "namespaces left" "$(ns_count "$DEMO")" 5
    # And it may come back.
    target_add_ns 9
    wait_for 10 ns_dev "$DEMO" 9
    target_remove_ns 9
    wait_for 10 no ns_sys "$DEMO" 9
    disconnect "$DEMO"
}

# A persistent discovery controller gets an event when a subsystem appears or goes.
part_discovery_change() {
    discover --persistent --keep-alive-tmo=5 >/tmp/before
    local name
    name=$(discovery_controller) || fail "no persistent discovery controller: $(ls /sys/class/nvme)"
    assert_has "discovery before" "$(cat /tmp/before)" "subnqn: +$DEMO\$"
    if grep -q "$DEMO-extra" /tmp/before; then fail "the extra subsystem is there already"; fi
    : >/run/uevents
    target_add_subsystem "$DEMO-extra"
    wait_for 40 discovery_event
    assert_has "discovery after the addition" "$(discover_again "$name")" "subnqn: +$DEMO-extra"
    # Reading the log arms the event again, if Retain Asynchronous Event is clear. libnvme 1.3 leaves it
    # set when a log is longer than its chunks of 4 KiB, so read the log's start once more, with
    # it clear. (With as many records the kernel's target sends no second event either.)
    nvme get-log "/dev/$name" --log-id=0x70 --log-len=1024 >/tmp/log70
    : >/run/uevents
    target_remove_subsystem "$DEMO-extra"
    wait_for 40 discovery_event
    if discover_again "$name" | grep -q "$DEMO-extra"; then fail "the extra subsystem is still told"; fi
    # Keep-alives carry an idle discovery controller over more than twice its timeout.
    sleep 11
    assert_eq "state of the discovery controller" "$(cat "/sys/class/nvme/$name/state")" live
    nvme disconnect -d "$name"
}

discovery_controller() {
    local dir
    for dir in /sys/class/nvme/nvme*; do
        if grep -q discovery "$dir/subsysnqn" 2>/dev/null; then
            echo "${dir##*/}"
            return 0
        fi
    done
    return 1
}

# The listener starts a program for each event, and may be seconds behind.
discovery_event() {
    grep -iq 'NVME_AEN=0x70f002' /run/uevents
}

discover_again() {
    discover --device="$1"
}

# A bad new configuration changes nothing, and the daemon says why.
part_bad_reload() {
    connect "$DEMO"
    local dev lines
    dev=$(ns_wait "$DEMO" 1)
    lines=$(wc -l <"$DAEMON_LOG")
    echo 'no-such-key = 1' >/run/target.d/99-bad
    daemon_reload
    sleep 1
    rm /run/target.d/99-bad
    assert_has "the daemon's log" "$(tail -n +"$((lines + 1))" "$DAEMON_LOG")" 'no-such-key'
    daemon_alive || fail "the daemon ended"
    verify_io "$dev" 16k 2m
    assert_eq "namespaces" "$(ns_count "$DEMO")" 5
    disconnect "$DEMO"
}

# Reloads that add and remove one namespace do not touch I/O to another.
part_reload_under_load() {
    connect "$DEMO"
    local round
    load_start "$(ns_wait "$DEMO" 1)" --bs=16k --size=16m --rate_iops=150
    for round in 1 2 3 4 5; do
        target_add_ns 9
        wait_for 10 ns_dev "$DEMO" 9
        target_remove_ns 9
        wait_for 10 no ns_sys "$DEMO" 9
    done
    load_stop
    note "$round rounds of reloads meanwhile"
    disconnect "$DEMO"
}

# A subsystem that goes takes its own controllers with it and nobody else's.
part_subsystem_removed() {
    target_add_subsystem "$DEMO-extra"
    wait_for 10 connect "$DEMO-extra" --ctrl-loss-tmo=3 --reconnect-delay=1
    connect "$DEMO"
    ns_wait "$DEMO-extra" 1 >/dev/null
    target_remove_subsystem "$DEMO-extra"
    wait_for 20 no controller_of "$DEMO-extra"
    verify_io "$(ns_wait "$DEMO" 1)" 16k 2m
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
