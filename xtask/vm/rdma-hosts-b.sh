#!/bin/bash
# The other guest: a host only.
# parts: same-namespace different-namespaces cable-pulled host-gone
SERVES=nothing
. /share/lib.sh

part_same_namespace() {
    meet start 120
    connect "$DEMO" -i 2
    same_namespace 16 0
    disconnect "$DEMO"
    meet same-over
}

part_different_namespaces() {
    connect "$DEMO" -i 2
    meet different
    verify_io "$(ns_wait "$DEMO" 1)" 16k 8m --rate_iops=300
    verify_io "$(ns_wait "$DEMO" 5)" 128k 16m
    disconnect "$DEMO"
    meet different-over
}

part_cable_pulled() {
    connect "$DEMO" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=120
    local pid
    meet pulled
    dmesg -C
    verify_io "$(ns_wait "$DEMO" 2)" 16k 16m --rate_iops=60 &
    pid=$!
    sleep 3
    tell pulled-busy
    await pulled-out >/dev/null
    wait_for 60 no controller_live "$DEMO"
    kill -0 "$pid" || fail "fio ended when the cable was pulled"
    tell pulled-noticed
    come_back "$pid"
    tell pulled-back
    disconnect "$DEMO"
    meet pulled-over
}

part_host_gone() {
    connect "$DEMO" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5
    local pid
    meet gone
    dmesg -C
    verify_io "$(ns_wait "$DEMO" 1)" 16k 16m --rate_iops=60 &
    pid=$!
    sleep 3
    cable_pull
    tell gone-silent
    await gone-forgotten >/dev/null
    cable_plug
    come_back "$pid"
    disconnect "$DEMO"
    meet gone-over
}

# The host finds back to the target, and what fio (its process) writes is whole.
come_back() {
    wait_for 90 controller_live "$DEMO"
    wait "$1"
    assert_has "the kernel's log" "$(dmesg)" 'Successfully reconnected'
    if dmesg | grep -E 'I/O error|Buffer I/O'; then fail "the kernel gave up on I/O"; fi
}

run_parts "$@"
