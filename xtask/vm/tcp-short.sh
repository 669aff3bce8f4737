#!/bin/bash
# The host of one kernel over NVMe/TCP, shortly: parts of other scripts, and what the kernel makes of the target.
# parts: discover connect queues id-ctrl id-ns both-digests namespace-added namespace-removed reconnect
# parts ours: enabled limits
# parts: kernel-log
# parts ours: leaks
. /share/lib.sh
parts_of admin.sh digests.sh events.sh recovery.sh

# The kernel selects the command sets that CAP offers: CC.CSS is 110b if CAP.CSS has bit 6, 000b otherwise.
part_enabled() {
    connect "$DEMO"
    local cap cc css=0
    cap=$(property 0x00)
    cc=$(property 0x14)
    if [ $((cap >> 43 & 1)) = 1 ]; then css=6; fi
    assert_eq CC.EN $((cc & 1)) 1
    assert_eq CC.CSS $((cc >> 4 & 7)) "$css"
    assert_eq "CSTS: only RDY" "$(property 0x1c)" 1
    note "$(uname -r): CAP $(printf %x "$cap"), CC $(printf %x "$cc")"
    disconnect "$DEMO"
}

# Prints a property of the controller: property OFFSET
property() {
    local text
    text=$(nvme get-property "/dev/$(controller_of "$DEMO")" --offset="$1")
    echo "$text" >&2
    [[ $text =~ value:\ *([0-9a-f]+) ]] || fail "property $1 is '$text'"
    echo $((0x${BASH_REMATCH[1]}))
}

# The kernel's limits are those of Identify.
part_limits() {
    connect "$DEMO"
    local dev nsid block limits mdts wzsl
    dev=/dev/$(controller_of "$DEMO")
    mdts=$(nvme id-ctrl "$dev" | field mdts)
    wzsl=$(nvme nvm-id-ctrl "$dev" | field wzsl)
    for nsid in 1 2; do
        block=$(blockdev --getss "$(ns_wait "$DEMO" "$nsid")")
        nvme id-ns "$(ns_dev "$DEMO" "$nsid")" >/tmp/id-ns
        limits=$(ns_sys "$DEMO" "$nsid")/queue
        assert_eq "minimum_io_size" "$(cat "$limits/minimum_io_size")" $((block * $(preferred npwg 1)))
        assert_eq "optimal_io_size" "$(cat "$limits/optimal_io_size")" $((block * $(preferred nows 0)))
        assert_eq "max_hw_sectors_kb" "$(cat "$limits/max_hw_sectors_kb")" $((4 << mdts))
        assert_eq "write_zeroes_max_bytes" "$(cat "$limits/write_zeroes_max_bytes")" $((4096 << wzsl))
        assert_eq "write_cache" "$(cat "$limits/write_cache")" "write back"
        assert_eq "fua" "$(cat "$limits/fua")" 1
    done
    disconnect "$DEMO"
}

# Prints a field of what nvme-cli says: field NAME
field() {
    sed -n "s/^$1 *: *//p"
}

# Prints a preferred number of blocks, zero-based in /tmp/id-ns, or without OPTPERF (bit 4 of NSFEAT) what the kernel
# takes instead: preferred NAME OTHERWISE
preferred() {
    local blocks=$2
    if [ $(($(field nsfeat </tmp/id-ns) >> 4 & 1)) = 1 ]; then blocks=$(($(field "$1" </tmp/id-ns) + 1)); fi
    echo "$blocks"
}

# Nothing but the part `reconnect` makes the kernel warn of the target: it resets the controller and itself shuts its
# sockets down, where a request that it is sending fails with EPIPE, 32. (Linux 6.12 warns of itself, once and with any
# target: while fio polls a queue, its NVMe/TCP host can sleep within an RCU read-side critical section.)
part_kernel_log() {
    local expected='resetting controller|no usable path - requeuing I/O|failed to send request -32' found
    expected+='|WARNING: .* rcu_note_context_switch'
    dmesg --level=emerg,alert,crit,err,warn >/tmp/warnings
    found=$(grep -E 'nvme nvme|block nvme|I/O error|WARNING: |BUG: ' /tmp/warnings || true)
    echo "$found"
    assert_eq "what the kernel warns of" "$(grep -vE "$expected" <<<"$found")" ""
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
