#!/bin/bash
# Drives of our own driver, alone and striped, served to the Linux host over TCP and RDMA: bound by `drives bind`,
# which leaves alone what is in use.
# parts ours: list in-use whole-groups bind tcp rdma leaks unbind
. /share/lib.sh
. /share/vfio-drives.sh
. /share/vfio-daemon.sh

part_list() {
    local text number
    text=$(drives_do list)
    echo "$text"
    for number in 0 1 2 3 4; do
        assert_has "the list" "$text" "DRIVE$number"
        assert_has "the list" "$text" "$(drive "$number")"
    done
    text=$(drives_do list --json)
    assert_eq "drives in JSON" "$(grep -c '"serial": "DRIVE' <<<"$text")" "$DRIVES"
    assert_eq "drives with the kernel's driver" "$(grep -c '"driver": "nvme"' <<<"$text")" "$DRIVES"
}

# A drive with a mounted filesystem is left alone.
part_in_use() {
    local dev
    dev=$(drive_block 1)
    mkfs.ext4 -q -F "$dev"
    mkdir -p /mnt/drive
    mount "$dev" /mnt/drive
    drives_refused 'in use.*/mnt/drive' bind "$(drive 1)"
    driver_is 1 nvme || fail "drive 1 was taken all the same"
    umount /mnt/drive
}

# Half a group is not handed over.
part_whole_groups() {
    drives_refused "shares IOMMU group [0-9]+ with.*$(drive 4)" bind "$(drive 3)"
    driver_is 3 nvme || fail "drive 3 was taken all the same"
}

part_bind() {
    drives_serve
}

# fio, verified, on each drive and on the stripe.
verify_all() {
    local nsid dev
    connect "$DEMO" -i 2
    for nsid in 1 2 3 4; do
        dev=$(ns_wait "$DEMO" "$nsid")
        verify_io "$dev" 4k 1m
        verify_io "$dev" 128k 4m --offset=16m
    done
    # Across chunks and members.
    verify_io "$(ns_wait "$DEMO" 4)" 192k 3m --offset=32m
    nsid=$(ns_wait "$DEMO" 1)
    blkdiscard --offset $((64 << 20)) --length $((1 << 20)) "$nsid"
    blkdiscard --zeroout --offset $((64 << 20)) --length $((1 << 20)) "$nsid"
    cmp -n $((1 << 20)) <(dd if="$nsid" bs=1M skip=64 count=1 iflag=direct status=none) /dev/zero
    disconnect "$DEMO"
    note "5 drives as 4 namespaces, written and verified over $FABRIC"
}

part_tcp() {
    FABRIC=tcp ADDRESS=127.0.0.1 verify_all
}

part_rdma() {
    verify_all
}

part_leaks() {
    leaks_and_exit
}

# The kernel takes all of them back.
part_unbind() {
    local number
    # shellcheck disable=SC2046
    drives_do unbind $(drives 0 1 2 3 4)
    for number in 0 1 2 3 4; do
        driver_is "$number" nvme || fail "drive $number is with '$(driver_of "$number")'"
        wait_for 20 drive_block "$number"
    done
}

run_parts "$@"
