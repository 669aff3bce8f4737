#!/bin/bash
# Two guests at once: the target and a host in this one, another host in the other.
# parts: same-namespace different-namespaces cable-pulled host-gone
# parts ours: leaks
. /share/lib.sh

part_same_namespace() {
    meet start 120
    connect "$DEMO" -i 2
    same_namespace 0 16
    disconnect "$DEMO"
    meet same-over
}

part_different_namespaces() {
    connect "$DEMO" -i 2
    meet different
    verify_io "$(ns_wait "$DEMO" 2)" 16k 8m --rate_iops=300
    verify_io "$(ns_wait "$DEMO" 4)" 128k 16m
    disconnect "$DEMO"
    meet different-over
}

# The target's port goes down under the load of both hosts. Ours is in the same machine and goes on.
part_cable_pulled() {
    connect "$DEMO" -i 2
    local pid
    meet pulled
    verify_io "$(ns_wait "$DEMO" 1)" 16k 16m --rate_iops=60 &
    pid=$!
    await pulled-busy >/dev/null
    cable_pull
    tell pulled-out
    await pulled-noticed >/dev/null
    cable_plug
    tell pulled-in
    wait "$pid"
    await pulled-back >/dev/null
    disconnect "$DEMO"
    meet pulled-over
}

# The other host falls silent while it writes: what the target held for it goes, by itself.
part_host_gone() {
    meet gone
    await gone-silent >/dev/null
    baseline_check
    tell gone-forgotten
    connect "$DEMO"
    verify_io "$(ns_wait "$DEMO" 2)" 16k 2m
    disconnect "$DEMO"
    meet gone-over
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
