#!/bin/bash
# Drive tests by our own driver: a drive with data or in use is left alone, all four tests run in quick mode and make a
# report with every section, and a drive that is pulled out leaves a partial one. By the kernel's driver: it is purged by
# nvme-cli; and of another target over TCP, which has no Format, the report says so.
# parts: not-empty mounted kernel-purge other-target all-four removal
SERVES=nothing
. /share/lib.sh
. /share/vfio-drives.sh

# Few commands at a time: two emulated processors have to fill and to empty the drive's queues for each.
LOAD="--quick --time 20ms --rounds 5 --jobs 1 --iodepth 4 --size 32m"

prepare() {
    cp /share/nvmeof-perf /run/bin/
    modprobe -a nvme vfio-pci
    drives_note
    wait_for 20 drive_block 0
    # What a person would not want to lose, at the end of the first drive.
    dd if=/dev/urandom of="$(drive_block 0)" bs=1M count=1 seek=127 oflag=direct conv=fsync status=none
    drive_give vfio-pci 0 1
}

# A drive test: steady NUMBER NAME [ARGUMENTS...]
steady() {
    local number=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    /run/bin/nvmeof-perf steady --device "pci:$(drive "$number")" $LOAD --out "/run/$name" "$@"
}

# Whether both forms of a report have a text: report_has NAME TEXT...
report_has() {
    local name=$1 text
    shift
    for text in "$@"; do
        grep -Fq "$text" "/run/$name.html" || fail "the page lacks '$text'"
        # Its streams are not compressed; headings have their numbers before the text.
        grep -aFq "$text" "/run/$name.pdf" || fail "the PDF lacks '$text'"
    done
}

part_not_empty() {
    local text code=0
    text=$(steady 0 refused 2>&1) || code=$?
    assert_eq "the exit code" "$code" 2
    assert_has "the refusal" "$text" "is not empty.*--destroy-data pci:$(drive 0)"
    [ ! -e /run/refused.jsonl ] || fail "there are results"
}

# A drive of the kernel's with a mounted filesystem, even where it is named.
part_mounted() {
    local dev text code=0
    wait_for 20 drive_block 2
    dev=$(drive_block 2)
    mkfs.ext4 -q -F "$dev"
    mkdir -p /mnt/drive
    mount "$dev" /mnt/drive
    # shellcheck disable=SC2086
    text=$(/run/bin/nvmeof-perf steady --device "$dev" --destroy-data "$dev" $LOAD --out /run/mounted 2>&1) || code=$?
    umount /mnt/drive
    [ "$code" != 0 ] || fail "it was tested: $text"
    assert_has "the refusal" "$text" "in use.*mounted"
    [ ! -e /run/mounted.jsonl ] || fail "there are results"
}

# The same drive, no longer mounted: what was on it is gone after the purge.
part_kernel_purge() {
    local dev
    dev=$(drive_block 2)
    dd if=/dev/urandom of="$dev" bs=1M count=1 seek=100 oflag=direct conv=fsync status=none
    # shellcheck disable=SC2086
    /run/bin/nvmeof-perf steady --device "$dev" --destroy-data "$dev" $LOAD --tests latency --out /run/kernels \
        >/tmp/kernels.txt 2>&1 || fail "$(tail -5 /tmp/kernels.txt)"
    note "$(grep '^purge' /tmp/kernels.txt)"
    report_has kernels "Format NVM with user data erase, by nvme format" "the kernel's block device" DRIVE2
    assert_eq "purges" "$(grep -c '^{"purged":{"done":true' /run/kernels.jsonl)" 1
    # Only the first 32 MiB are tested.
    cmp -n 1048576 /dev/zero <(dd if="$dev" bs=1M count=1 skip=100 iflag=direct status=none) || fail "it was not purged"
}

# The kernel's own target: it has no Format NVM.
part_other_target() {
    local nvmet=/sys/kernel/config/nvmet name=nqn.2026-11.io.nvmeof-tgt:other
    modprobe -a nvmet nvmet-tcp null_blk
    mkdir /sys/kernel/config/nullb/purged
    echo 64 >/sys/kernel/config/nullb/purged/size
    echo 1 >/sys/kernel/config/nullb/purged/memory_backed
    echo 1 >/sys/kernel/config/nullb/purged/power
    mkdir "$nvmet/subsystems/$name" "$nvmet/subsystems/$name/namespaces/1" "$nvmet/ports/9"
    echo 1 >"$nvmet/subsystems/$name/attr_allow_any_host"
    echo -n /dev/purged >"$nvmet/subsystems/$name/namespaces/1/device_path"
    echo 1 >"$nvmet/subsystems/$name/namespaces/1/enable"
    echo ipv4 >"$nvmet/ports/9/addr_adrfam"
    echo tcp >"$nvmet/ports/9/addr_trtype"
    echo 127.0.0.1 >"$nvmet/ports/9/addr_traddr"
    echo 4499 >"$nvmet/ports/9/addr_trsvcid"
    ln -s "$nvmet/subsystems/$name" "$nvmet/ports/9/subsystems/"
    # shellcheck disable=SC2086
    /run/bin/nvmeof-perf steady --connect "tcp://127.0.0.1:4499/$name" $LOAD --tests latency --out /run/others \
        >/tmp/others.txt 2>&1 || fail "$(tail -5 /tmp/others.txt)"
    note "$(grep '^purge' /tmp/others.txt)"
    report_has others "NVMe/TCP" "not purged"
    grep -q "the controller does not support Format NVM" /run/others.html || fail "the page does not say why it was not purged"
    rm "$nvmet/ports/9/subsystems/$name"
}

part_all_four() {
    local test
    steady 0 whole --destroy-data "pci:$(drive 0)" >/tmp/steady.txt || fail "$(tail -5 /tmp/steady.txt)"
    grep -E '^(purge|\|)' /tmp/steady.txt | sed 's/^/note /'
    report_has whole Set-up "Steady state" Preparation DRIVE0 "Format NVM" "pci:$(drive 0)" \
        "Write saturation curves" "Write saturation: Summary"
    for test in IOPS Throughput Latency; do
        report_has whole "$test: Convergence" "$test: Steady state verification" "$test: Measurement" \
            "$test: Summary" "$test: Response times"
    done
    report_has whole "IOPS: Mix and block size" "Latency: Mix and block size" "QUICK MODE"
    # Of IOPS 6 pictures, of throughput 5, of latency 10, of write saturation 4.
    assert_eq "pictures" "$(grep -c '^<svg ' /run/whole.html)" 25
    # Rounds of 56, 10 and 9 points.
    [ "$(grep -c '^{"measured"' /run/whole.jsonl)" -gt $((5 * 75)) ] || fail "readings are missing"
    assert_eq "purges" "$(grep -c '^{"purged":{"done":true' /run/whole.jsonl)" 4
    assert_eq "points of 8 block sizes in 5 rounds" "$(convergence_marks)" 40
}

# Markers of the first picture.
convergence_marks() {
    awk '/<\/svg>/ { exit } { print }' /run/whole.html | grep -c 'class="mark s'
}

part_removal() {
    local pid code=0
    steady 1 pulled --tests iops,latency >/tmp/pulled.txt 2>&1 &
    pid=$!
    wait_for 40 grep -q measured /run/pulled.jsonl
    sleep 1
    hands remove 1
    wait "$pid" || code=$?
    assert_eq "the exit code" "$code" 1
    report_has pulled PARTIAL Set-up "cut short"
    note "$(grep -E '^error' /tmp/pulled.txt)"
    hands add 1
    wait_for 10 drive_there 1
}

run_parts "$@"
