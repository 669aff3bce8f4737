#!/bin/bash
# Only the machine: the modules a host needs load, both disks are there, loopback answers.
# parts: modules disks network programs
SERVES=nothing
. /share/lib.sh

part_modules() {
    local module
    for module in nvme_fabrics nvme_core virtio_blk ext4; do
        [ -d "/sys/module/$module" ] || fail "module $module is not there"
    done
    note "$(uname -sr), $(nproc) processors, $(free -m | awk '/Mem:/ { print $2 }') MiB"
}

part_disks() {
    local disk
    for disk in "$DISK_FS" "$DISK_RAW"; do
        assert_eq "size of $disk" "$(blockdev --getsize64 "$disk")" $((256 << 20))
    done
    echo text >/mnt/backing/file
    assert_eq "a file on $DISK_FS" "$(cat /mnt/backing/file)" text
    rm /mnt/backing/file
}

part_network() {
    assert_has "loopback" "$(ip addr show lo)" 'inet 127\.0\.0\.1/8'
    assert_has "loopback" "$(ip addr show lo)" 'inet6 ::1/128'
}

part_programs() {
    note "$(nvme version | head -1), $(fio --version)"
}

run_parts "$@"
