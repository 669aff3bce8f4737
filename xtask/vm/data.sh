#!/bin/bash
# Data integrity by fio over block sizes and devices, and the NVM commands that carry no data.
# parts tcp: sizes file disk mixed
# parts: write-zeroes discard flush
# parts ours: compare verify leaks

# Our target admits by credit here, with a budget that the larger jobs exceed.
MORE_CONFIG='[pacing]
policy = "buffer-credit"
budget = "8MiB"'

. /share/lib.sh

part_sizes() {
    connect "$DEMO"
    local dev
    dev=$(ns_wait "$DEMO" 1)
    verify_io "$dev" 512 256k
    verify_io "$dev" 8k 4m
    verify_io "$dev" 12k 6m
    verify_io "$dev" 64k 16m
    verify_io "$dev" 1m 64m
    verify_io "$dev" 4m 64m --iodepth=4
    # Every length from one block to 260 KiB, at every alignment.
    verify_io "$dev" 4k 24m --bsrange=512-260k --rw=write
    verify_io "$(ns_wait "$DEMO" 2)" 1m 64m
    note "largest transfer: $(cat "$(ns_sys "$DEMO" 1)/queue/max_hw_sectors_kb") KiB"
    disconnect "$DEMO"
}

part_file() {
    connect "$DEMO" -G
    local dev
    dev=$(ns_wait "$DEMO" 4)
    verify_io "$dev" 4k 8m
    verify_io "$dev" 256k 32m --fsync=16
    disconnect "$DEMO"
}

part_disk() {
    connect "$DEMO"
    local dev
    dev=$(ns_wait "$DEMO" 5)
    verify_io "$dev" 4k 8m
    verify_io "$dev" 512k 48m
    # What was acknowledged and flushed is on the disk itself, where the guest reads it past us.
    head -c 65536 /dev/urandom >/tmp/data
    dd if=/tmp/data of="$dev" bs=64k oflag=direct conv=fsync status=none
    cmp <(dd if="$DISK_RAW" bs=64k count=1 iflag=direct status=none) /tmp/data
    disconnect "$DEMO"
}

# Several namespaces and queues at once, each its own pattern.
part_mixed() {
    connect "$DEMO" -i 2
    local nsid options=()
    for nsid in 1 2 4 5; do
        options+=(--name="ns$nsid" --filename="$(ns_wait "$DEMO" "$nsid")")
    done
    fio --ioengine=libaio --direct=1 --allow_file_create=0 --iodepth=32 --size=6m --rw=randrw \
        --rwmixread=40 --bssplit=4k/60:16k/20:128k/20 --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --minimal --output=/tmp/fio.txt "${options[@]}" || {
        cat /tmp/fio.txt
        fail "mixed verify"
    }
    disconnect "$DEMO"
}

# Fills the first 64 KiB of a namespace with one byte: fill DEVICE
fill() {
    head -c 65536 /dev/zero | tr '\0' '\252' | dd of="$1" bs=64k count=1 iflag=fullblock oflag=direct status=none
}

is_zero() {
    cmp -s <(dd if="$1" bs=4096 skip="$2" count="$3" iflag=direct status=none) \
        <(head -c $(($3 * 4096)) /dev/zero)
}

part_write_zeroes() {
    connect "$DEMO"
    local dev
    dev=$(ns_wait "$DEMO" 1)
    fill "$dev"
    # Eight blocks of 512 bytes from block 8 on: the second 4 KiB and no more.
    nvme write-zeroes "$dev" --start-block=8 --block-count=7
    is_zero "$dev" 1 1 || fail "the blocks are not zero"
    if is_zero "$dev" 0 1 || is_zero "$dev" 2 1; then fail "a neighbour was zeroed"; fi
    [ "$(cat "$(ns_sys "$DEMO" 1)/queue/write_zeroes_max_bytes")" -gt 0 ] || fail "host sees no Write Zeroes"
    fill "$dev"
    blkdiscard -z -o 0 -l 65536 "$dev"
    is_zero "$dev" 0 16 || fail "blkdiscard -z left data"
    # Past the end of the namespace.
    if nvme write-zeroes "$dev" --start-block=262144 --block-count=0 >/tmp/wz 2>&1; then
        fail "blocks past the end were zeroed"
    fi
    # The kernel's target hands it to its disk and calls the refusal an internal error.
    if [ "$TARGET" = ours ]; then
        assert_has "write zeroes past the end" "$(cat /tmp/wz)" 'LBA_RANGE|LBA Out of Range'
    fi
    disconnect "$DEMO"
}

part_discard() {
    connect "$DEMO"
    local dev nsid
    for nsid in 1 2 4; do
        dev=$(ns_wait "$DEMO" "$nsid")
        [ "$(cat "$(ns_sys "$DEMO" "$nsid")/queue/discard_max_bytes")" -gt 0 ] ||
            fail "host sees no discard on namespace $nsid"
        fill "$dev"
        blkdiscard -o 0 -l 65536 "$dev"
        verify_io "$dev" 4k 1m
    done
    dev=$(ns_wait "$DEMO" 1)
    fill "$dev"
    nvme dsm "$dev" --ad --slbs=0,16 --blocks=8,8
    if is_zero "$dev" 1 1; then fail "a block outside of the ranges was deallocated"; fi
    disconnect "$DEMO"
}

part_flush() {
    connect "$DEMO"
    local nsid
    for nsid in 1 2 3 4 5; do
        nvme flush "$(ns_wait "$DEMO" "$nsid")" --namespace-id="$nsid"
    done
    note "write cache of the file namespace: $(cat "$(ns_sys "$DEMO" 4)/queue/write_cache")"
    disconnect "$DEMO"
}

part_compare() {
    connect "$DEMO"
    local nsid dev blocks
    for nsid in 1 2 4; do
        dev=$(ns_wait "$DEMO" "$nsid")
        blocks=$((65536 / $(blockdev --getss "$dev") - 1))
        head -c 65536 /dev/urandom >/tmp/data
        # Not by chance what it is changed to below.
        printf 'y' | dd of=/tmp/data bs=1 seek=65000 conv=notrunc status=none
        nvme write "$dev" --start-block=0 --block-count=$blocks --data-size=65536 --data=/tmp/data
        nvme compare "$dev" --start-block=0 --block-count=$blocks --data-size=65536 --data=/tmp/data
        printf 'x' | dd of=/tmp/data bs=1 seek=65000 conv=notrunc status=none
        if nvme compare "$dev" --start-block=0 --block-count=$blocks --data-size=65536 \
            --data=/tmp/data >/tmp/cmp 2>&1; then
            fail "different data compares equal on namespace $nsid"
        fi
        assert_has compare "$(cat /tmp/cmp)" 'COMPARE_FAILED|Compare Failure'
    done
    disconnect "$DEMO"
}

part_verify() {
    connect "$DEMO"
    local nsid
    for nsid in 1 2 4 5; do
        nvme verify "$(ns_wait "$DEMO" "$nsid")" --start-block=0 --block-count=255
    done
    if nvme verify "$(ns_dev "$DEMO" 1)" --start-block=262144 --block-count=0 >/tmp/vf 2>&1; then
        fail "blocks past the end were verified"
    fi
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
