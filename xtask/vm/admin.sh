#!/bin/bash
# Discovery, connecting, and what nvme-cli reads of controllers and namespaces.
# parts: discover connect queues ipv6 list id-ctrl id-ns identifiers logs features forbidden
# parts ours: leaks
. /share/lib.sh

part_discover() {
    local text
    text=$(discover)
    echo "$text"
    assert_has "discovery" "$text" "^trtype: +$FABRIC"
    assert_has "discovery" "$text" '^adrfam: +ipv4'
    assert_has "discovery" "$text" "^subnqn: +$DEMO\$"
    assert_has "discovery" "$text" "^traddr: +${ADDRESS//./\\.}\$"
    assert_has "discovery" "$text" "^trsvcid: +$PORT"
    assert_has "discovery" "$text" '^subtype: +nvme subsystem'
    # A host that the private subsystem does not list must not be told of it.
    if grep -q "$DEMO-private" <<<"$text"; then fail "the private subsystem is told to all hosts"; fi
    assert_eq "controllers left by discovery" "$(ls /sys/class/nvme)" ""
}

part_connect() {
    connect "$DEMO"
    local name
    name=$(controller_of "$DEMO")
    assert_eq transport "$(cat "/sys/class/nvme/$name/transport")" "$FABRIC"
    ns_wait "$DEMO" 5 >/dev/null
    assert_eq "number of namespaces" "$(ns_count "$DEMO")" 5
    assert_eq "bytes of namespace 1" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 1)")" $((128 << 20))
    assert_eq "bytes of namespace 2" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 2)")" $((128 << 20))
    assert_eq "bytes of namespace 3" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 3)")" $((1 << 30))
    assert_eq "bytes of namespace 4" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 4)")" $((96 << 20))
    assert_eq "bytes of namespace 5" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 5)")" $((256 << 20))
    assert_eq "block of namespace 1" "$(blockdev --getss "$(ns_dev "$DEMO" 1)")" 512
    assert_eq "block of namespace 2" "$(blockdev --getss "$(ns_dev "$DEMO" 2)")" 4096
    disconnect "$DEMO"
    assert_eq "number of namespaces after disconnect" "$(ns_count "$DEMO")" 0
}

# Default, write and poll queues: five beside the admin queue, and I/O on all of them.
part_queues() {
    connect "$DEMO" -i 2 -W 2 -P 1
    local name dev
    name=$(controller_of "$DEMO")
    assert_eq "queues" "$(cat "/sys/class/nvme/$name/queue_count")" 6
    dev=$(ns_wait "$DEMO" 1)
    verify_io "$dev" 4k 4m --numjobs=2 --offset_increment=8m
    fio --name=poll --filename="$dev" --allow_file_create=0 --ioengine=io_uring --hipri --direct=1 \
        --rw=randread --bs=4k --size=2m --iodepth=4 --minimal >/tmp/poll.txt || fail "polled reads"
    disconnect "$DEMO"
    connect "$DEMO" -i 1 -Q 32
    name=$(controller_of "$DEMO")
    assert_eq "queues" "$(cat "/sys/class/nvme/$name/queue_count")" 2
    assert_eq "queue size" "$(cat "/sys/class/nvme/$name/sqsize")" 31
    disconnect "$DEMO"
}

part_ipv6() {
    assert_has "discovery over IPv6" \
        "$(ADDRESS=$ADDRESS6 discover)" "subnqn: +$DEMO"
    ADDRESS=$ADDRESS6 connect "$DEMO"
    verify_io "$(ns_wait "$DEMO" 1)" 4k 2m
    disconnect "$DEMO"
}

part_list() {
    connect "$DEMO"
    ns_wait "$DEMO" 5 >/dev/null
    local text
    text=$(nvme list)
    echo "$text"
    assert_eq "namespaces in nvme list" "$(grep -c DEMO0001 <<<"$text")" 5
    assert_has "nvme list" "$text" 'nvmeof-tgt demo'
    assert_has "nvme list" "$text" '512 +B \+ +0 B'
    assert_has "nvme list" "$text" '4 KiB \+ +0 B'
    assert_has "nvme list-subsys" "$(nvme list-subsys)" "NQN=$DEMO"
    assert_has "nvme list-subsys" "$(nvme list-subsys)" "$FABRIC traddr=${ADDRESS//./\\.},trsvcid=$PORT.* live"
    disconnect "$DEMO"
}

part_id_ctrl() {
    connect "$DEMO"
    local text name
    name=$(controller_of "$DEMO")
    text=$(nvme id-ctrl -H "/dev/$name")
    echo "$text" | grep -E '^(sn|mn|fr|mdts|cntlid|ver|oacs|oncs|aerl|kas|sqes|cqes|maxcmd|nn|vwc|sgls|subnqn|ioccsz|iorcsz|cntrltype|oaes|lpa|frmw|fuses) '
    assert_has id-ctrl "$text" '^sn +: DEMO0001'
    assert_has id-ctrl "$text" '^mn +: nvmeof-tgt demo'
    assert_has id-ctrl "$text" '^fr +: [^ ]+'
    assert_has id-ctrl "$text" "^subnqn +: $DEMO\$"
    assert_has id-ctrl "$text" '^sqes +: 0x66'
    assert_has id-ctrl "$text" '^cqes +: 0x44'
    assert_has id-ctrl "$text" 'Scatter-Gather Lists Supported'
    assert_has id-ctrl "$text" '^kas +: [1-9]'
    assert_has id-ctrl "$text" '^ioccsz +: [1-9]'
    assert_has id-ctrl "$text" '^iorcsz +: 1$'
    assert_has id-ctrl "$text" 'Write Zeroes Supported'
    assert_has id-ctrl "$text" 'Data Set Management Supported'
    assert_eq "model in sysfs" "$(xargs <"/sys/class/nvme/$name/model")" "nvmeof-tgt demo"
    [ -n "$(xargs <"/sys/class/nvme/$name/firmware_rev")" ] || fail "no firmware revision"
    if [ "$TARGET" = ours ]; then
        assert_has id-ctrl "$text" '^ver +: 0x20000'
        assert_has id-ctrl "$text" '^cntrltype *: 1'
        assert_has id-ctrl "$text" 'Verify +Supported|Verify Supported'
        assert_has id-ctrl "$text" 'Compare Supported'
    fi
    disconnect "$DEMO"
}

part_id_ns() {
    connect "$DEMO"
    local text dev
    dev=$(ns_wait "$DEMO" 1)
    text=$(nvme id-ns -H "$dev")
    assert_has "id-ns 1" "$text" '^nsze +: 0x40000$'
    assert_has "id-ns 1" "$text" 'LBA Format +0 .*Data Size: 512 +bytes.*in use'
    text=$(nvme id-ns -H "$(ns_dev "$DEMO" 2)")
    assert_has "id-ns 2" "$text" '^nsze +: 0x8000$'
    assert_has "id-ns 2" "$text" 'LBA Format +0 .*Data Size: 4096 +bytes.*in use'
    assert_has list-ns "$(nvme list-ns "/dev/$(controller_of "$DEMO")")" '\[ +4\]: *0x5'
    assert_has ns-descs "$(nvme ns-descs "$dev")" '^uuid +: [0-9a-f-]{36}$'
    if [ "$TARGET" = ours ]; then
        # CNS 08 (I/O command set independent namespace) and CNS 1C (I/O command sets), raw.
        nvme admin-passthru "$dev" --opcode=0x06 --namespace-id=1 --cdw10=0x08 \
            --data-len=4096 --read --raw-binary >/tmp/cns08
        assert_eq "NSTAT of CNS 08: ready" "$(od -An -tu1 -j14 -N1 /tmp/cns08 | xargs)" 1
        nvme admin-passthru "/dev/$(controller_of "$DEMO")" --opcode=0x06 --cdw10=0xffff001c \
            --data-len=4096 --read --raw-binary >/tmp/cns1c
        assert_eq "first I/O command set" "$(od -An -tu1 -j0 -N1 /tmp/cns1c | xargs)" 1
    fi
    disconnect "$DEMO"
}

# What udev makes its links from, and that it stays the same over a reconnect.
part_identifiers() {
    local first second nsid dir
    first=$(identifiers)
    echo "$first"
    second=$(identifiers)
    assert_eq "identifiers after a reconnect" "$second" "$first"
    assert_eq "different UUIDs" "$(grep -o 'uuid=[^ ]*' <<<"$first" | sort -u | wc -l)" 5
    assert_eq "different WWIDs" "$(grep -o 'wwid=[^ ]*' <<<"$first" | sort -u | wc -l)" 5
    if grep -q 'uuid=00000000\|nguid=00000000-0000\|wwid=$' <<<"$first"; then
        fail "an identifier is zero"
    fi
    if [ "$TARGET" = ours ]; then
        assert_eq "different EUI64s" "$(grep -o 'eui=.*' <<<"$first" | sort -u | wc -l)" 5
        if grep -q 'eui=00 00 00 00 00 00 00 00' <<<"$first"; then fail "an EUI64 is zero"; fi
    fi
}

identifiers() {
    local nsid dir
    connect "$DEMO"
    ns_wait "$DEMO" 5 >/dev/null
    for nsid in 1 2 3 4 5; do
        dir=$(ns_sys "$DEMO" "$nsid")
        echo "nsid=$nsid wwid=$(cat "$dir/wwid") uuid=$(cat "$dir/uuid")" \
            "nguid=$(cat "$dir/nguid" 2>/dev/null) eui=$(cat "$dir/eui" 2>/dev/null)"
    done
    disconnect "$DEMO"
}

part_logs() {
    connect "$DEMO"
    local dev text opcode
    dev=/dev/$(controller_of "$DEMO")
    text=$(nvme smart-log "$dev")
    assert_has smart-log "$text" 'critical_warning'
    assert_has smart-log "$text" 'data_units_read|Data Units Read'
    assert_has error-log "$(nvme error-log "$dev" -e 4)" 'error_count'
    # nvme-cli 2.3 prints nothing of the effects log unless it finds it odd: read it raw.
    nvme effects-log "$dev"
    nvme get-log "$dev" --log-id=5 --log-len=4096 --raw-binary >/tmp/log05
    for opcode in 0x02 0x06 0x09 0x0a 0x0c 0x18; do
        assert_eq "admin opcode $opcode in the effects log" "$(effect $((opcode)))" 1
    done
    for opcode in 0x00 0x01 0x02 0x08 0x09; do
        assert_eq "I/O opcode $opcode in the effects log" "$(effect $((256 + opcode)))" 1
    done
    if [ "$TARGET" = ours ]; then
        nvme fw-log "$dev" || fail "firmware log"
        # Log 00, the supported log pages: that of SMART says so in its bit 0 (LSUPP).
        nvme get-log "$dev" --log-id=0 --log-len=1024 --raw-binary >/tmp/log00
        assert_eq "log 02 supported" $(($(od -An -tu1 -j8 -N1 /tmp/log00) & 1)) 1
        # Past the end of a log is a wrong field, not somebody's memory.
        if nvme get-log "$dev" --log-id=2 --log-len=512 --lpo=1048576 >/tmp/past 2>&1; then
            fail "a log read past its end: $(head -3 /tmp/past)"
        fi
    fi
    nvme get-log "$dev" --log-id=4 --log-len=4096 --raw-binary >/tmp/log04
    assert_eq "bytes of the changed namespaces" "$(stat -c %s /tmp/log04)" 4096
    disconnect "$DEMO"
}

# Whether an entry of the effects log says that its command is supported (bit 0).
effect() {
    echo $(($(od -An -tu1 -j$(($1 * 4)) -N1 /tmp/log05) & 1))
}

part_features() {
    connect "$DEMO"
    local dev
    dev=/dev/$(controller_of "$DEMO")
    assert_has "number of queues" "$(nvme get-feature "$dev" -f 7)" 'value:0x[0-9a-f]{8}'
    assert_has "keep-alive timer" "$(nvme get-feature "$dev" -f 0x0f)" '[Vv]alue:0x0*7530'
    assert_has "async events" "$(nvme get-feature "$dev" -f 0x0b)" 'value:0x[0-9a-f]*[1-9a-f]'
    if [ "$TARGET" = ours ]; then
        local fid
        for fid in 1 2 4 5 0x0a; do nvme get-feature "$dev" -f "$fid" || fail "feature $fid"; done
        nvme get-feature "$dev" -f 4 -s 3 || fail "supported capabilities of feature 4"
        nvme set-feature "$dev" -f 4 -v 0x157 || fail "set feature 4"
        assert_has "feature 4 after set" "$(nvme get-feature "$dev" -f 4)" 'value:0x0*157'
    fi
    if nvme get-feature "$dev" -f 0x7f >/tmp/f7f 2>&1; then fail "feature 7f exists"; fi
    # nvme-cli brings a buffer for a feature it does not know; nvmet objects to that first.
    assert_has "feature 7f" "$(cat /tmp/f7f)" 'INVALID_FIELD|Invalid Field|SGL Length'
    disconnect "$DEMO"
}

# A subsystem this host may not use, one that is not there, and an opcode nobody has.
part_forbidden() {
    if nvme connect -t "$FABRIC" -a "$ADDRESS" -s "$PORT" -n "$DEMO-private" -q "$HOST_NQN" -I "$HOST_ID"; then
        fail "connected to a subsystem that does not list this host"
    fi
    if nvme connect -t "$FABRIC" -a "$ADDRESS" -s "$PORT" -n "$DEMO-none" -q "$HOST_NQN" -I "$HOST_ID"; then
        fail "connected to a subsystem that does not exist"
    fi
    local other=00000000-0000-4000-8000-000000000001
    if [ "$TARGET" = ours ]; then
        nvme connect -t "$FABRIC" -a "$ADDRESS" -s "$PORT" -n "$DEMO-private" \
            -q "nqn.2014-08.org.nvmexpress:uuid:$other" -I "$other"
        ns_wait "$DEMO-private" 1 >/dev/null
        disconnect "$DEMO-private"
    fi
    connect "$DEMO"
    if nvme admin-passthru "/dev/$(controller_of "$DEMO")" --opcode=0xff >/tmp/op 2>&1; then
        fail "opcode ff was accepted"
    fi
    assert_has "opcode ff" "$(cat /tmp/op)" 'INVALID_OPCODE|Invalid Command Opcode'
    # Queue creation belongs to PCIe; over fabrics it is Connect.
    if nvme admin-passthru "/dev/$(controller_of "$DEMO")" --opcode=0x01 >/tmp/op 2>&1; then
        fail "Create I/O Submission Queue was accepted"
    fi
    assert_has "opcode 01" "$(cat /tmp/op)" 'INVALID_OPCODE|Invalid Command Opcode'
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
