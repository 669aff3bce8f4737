#!/bin/bash
# Drive tests by our own driver: a drive with data or in use is left alone, all four tests run in quick mode and make a
# report with every section, and a drive that is pulled out leaves a partial one.
# parts: not-empty mounted all-four removal
SERVES=nothing
. /share/lib.sh
. /share/vfio-drives.sh
LIMIT_all_four=120

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
        # Its streams are not compressed; what follows a text ends its line.
        grep -aFq "($text" "/run/$name.pdf" || fail "the PDF lacks '$text'"
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
    # Of IOPS 6 pictures, of throughput 5, of latency 6, of write saturation 4.
    assert_eq "pictures" "$(grep -c '^<svg ' /run/whole.html)" 21
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
