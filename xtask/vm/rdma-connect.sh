#!/bin/bash
# Connections over RDMA: depths, flow control, strangers, another initiator, and a device that goes.
# parts: depths flow-control strangers rdma-python
# parts ours: only-device leaks
. /share/lib.sh

# Queues as deep as asked for, one and several of them, full to the brim.
part_depths() {
    local queues depth name found
    for queues in 1 2; do
        if [ "$queues" = 1 ]; then depth=16; else depth=128; fi
        connect "$DEMO" -i "$queues" -Q "$depth"
        name=$(controller_of "$DEMO")
        assert_eq "queues" "$(cat "/sys/class/nvme/$name/queue_count")" $((queues + 1))
        assert_eq "queue size" "$(cat "/sys/class/nvme/$name/sqsize")" $((depth - 1))
        verify_io "$(ns_wait "$DEMO" 1)" 4k 2m --iodepth="$depth" --numjobs=2 --offset_increment=8m
        disconnect "$DEMO"
    done
    # Deeper than any target here goes: what is granted is what works.
    connect "$DEMO" -i 1 -Q 1024
    name=$(controller_of "$DEMO")
    found=$(cat "/sys/class/nvme/$name/sqsize")
    [ "$found" -ge 31 ] || fail "a queue of 1024 was cut to $found"
    note "of 1024 entries asked for $((found + 1)) were granted"
    verify_io "$(ns_wait "$DEMO" 1)" 4k 4m --iodepth=256
    disconnect "$DEMO"
}

# With and without submission queue flow control; enough commands to go round the queue many times.
part_flow_control() {
    assert_has "the discovery log" "$(discover)" '^treq: .*sq flow control disable supported'
    local option dev
    for option in "" --disable-sqflow; do
        # shellcheck disable=SC2086
        connect "$DEMO" -i 2 -Q 32 $option
        dev=$(ns_wait "$DEMO" 1)
        verify_io "$dev" 4k 2m --iodepth=64
        verify_io "$dev" 64k 4m --iodepth=64
        disconnect "$DEMO"
    done
}

# Who is no NVMe host is turned away and harms nobody: rping brings no private data. (Linux's target
# takes the zeroes in its place for an admin queue, and ends it when the first message is no command.)
part_strangers() {
    connect "$DEMO"
    local round
    load_start "$(ns_wait "$DEMO" 1)" --rate_iops=100
    for round in 1 2 3; do
        timeout 20 rping -c -a "$ADDRESS" -p "$PORT" -C 1 >/tmp/rping.txt 2>&1 || true
        [ -s /tmp/rping.txt ] || fail "a stranger waits for ever"
        if [ "$TARGET" = ours ]; then
            assert_has "what rping says" "$(cat /tmp/rping.txt)" 'REJECTED'
        fi
    done
    load_stop
    note "$round strangers were turned away: $(head -1 /tmp/rping.txt)"
    disconnect "$DEMO"
}

# The initiator of PyPI's package `nvmeof` finds the namespaces that the kernel's host has, and writes
# what that host reads.
part_rdma_python() {
    local nsid dir namespaces=() out=/tmp/python.txt offset bytes sum left=0
    connect "$DEMO"
    for nsid in 1 2 5; do
        ns_wait "$DEMO" "$nsid" >/dev/null
        dir=$(ns_sys "$DEMO" "$nsid")
        bytes=$(cat "$dir/queue/logical_block_size")
        namespaces+=("$nsid:$(($(cat "$dir/size") * 512 / bytes)):$bytes")
    done
    timeout 200 /usr/bin/python3 -I /share/rdma-python.py "$ADDRESS" "$PORT" "$HOST_NQN" "$HOST_ID" \
        "$DEMO" /share/wheels "${namespaces[@]}" >$out 2>&1 || fail "the package: $(cat $out)"
    grep '^note' $out
    while IFS=': ' read -r _ nsid offset bytes sum; do
        assert_eq "data at $offset of namespace $nsid" \
            "$(dd if="$(ns_dev "$DEMO" "$nsid")" bs=64k iflag=direct,skip_bytes,count_bytes \
                skip="$offset" count="$bytes" status=none | sha256sum)" "$sum  -"
        left=$((left + 1))
    done < <(grep '^wrote' $out)
    assert_eq "namespaces that the kernel's host reads" "$left" 3
    disconnect "$DEMO"
}

# The only device goes with a host on it, which must not take for ever, and comes back: librdmacm, which
# closes a device only when it finds another, does not keep it.
part_only_device() {
    connect "$DEMO"
    ns_wait "$DEMO" 1 >/dev/null
    rdma link delete rxe0 &
    local pid=$!
    wait_for 20 no kill -0 "$pid"
    wait "$pid"
    wait_for 20 no controller_of "$DEMO"
    rdma_device_add
    wait_for 20 subsystem_told "$DEMO"
    connect "$DEMO"
    verify_io "$(ns_wait "$DEMO" 1)" 16k 2m
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
