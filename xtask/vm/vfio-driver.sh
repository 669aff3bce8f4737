#!/bin/bash
# Our driver on drives, without any fabric: data both ways between it and the kernel's driver, a drive pulled out
# under it, and how fast the two read the same drive.
# measures
# parts: written-by-us written-by-the-kernel 4k-blocks engines scale removal ratios
SERVES=nothing
. /share/lib.sh
. /share/vfio-drives.sh

BYTES=$((8 << 20))
DEPTHS="1 32 128"
ROUNDS=3
if [ "$MEASURE" = shortly ]; then ROUNDS=1; fi

prepare() {
    cp /share/nvme_bench /share/nvmeof-perf /run/bin/
    modprobe -a nvme vfio-pci
    drives_note
}

# Runs our driver on a drive: ours VERB NUMBER [ARGUMENTS...]
ours() {
    local verb=$1 number=$2
    shift 2
    /run/bin/nvme_bench "$verb" "$(drive "$number")" "$@" || fail "$verb on drive $number"
}

# What our driver writes, the kernel's reads.
both_ways() {
    local number=$1 dev sum
    drive_give vfio-pci "$number"
    note "$(ours write "$number" 7 "$BYTES")"
    drive_give nvme "$number"
    wait_for 10 drive_block "$number"
    dev=$(drive_block "$number")
    sum=$(dd if="$dev" bs=1M count=$((BYTES >> 20)) iflag=direct status=none | sha256sum)
    # The same by our driver once more, so that a sum of nothing does not pass.
    drive_give vfio-pci "$number"
    note "$(ours verify "$number" 7 "$BYTES")"
    if /run/bin/nvme_bench verify "$(drive "$number")" 8 "$BYTES"; then fail "another pattern verified"; fi
    # Copied to a second drive by the kernel, it is what our driver wrote.
    drive_give nvme "$number"
    wait_for 10 drive_block "$number"
    dev=$(drive_block "$number")
    wait_for 10 drive_block 1
    dd if="$dev" of="$(drive_block 1)" bs=1M count=$((BYTES >> 20)) iflag=direct oflag=direct conv=fsync \
        status=none
    assert_eq "the copy" \
        "$(dd if="$(drive_block 1)" bs=1M count=$((BYTES >> 20)) iflag=direct status=none | sha256sum)" "$sum"
    drive_give vfio-pci 1
    note "$(ours verify 1 7 "$BYTES")"
    drive_give nvme 1
}

part_written_by_us() {
    both_ways 0
}

# fio writes by the kernel's driver, and verifies what it reads by the kernel's; ours reads the same bytes: what the
# kernel wrote is our pattern, copied by it in both_ways. Here the kernel zeroes it, and ours sees that.
part_written_by_the_kernel() {
    wait_for 10 drive_block 0
    local dev
    dev=$(drive_block 0)
    dd if=/dev/zero of="$dev" bs=1M count=1 seek=3 oflag=direct conv=fsync status=none
    drive_give vfio-pci 0
    if /run/bin/nvme_bench verify "$(drive 0)" 7 "$BYTES" >/tmp/verify.txt; then
        fail "our driver does not see what the kernel wrote"
    fi
    assert_has "where it differs" "$(cat /tmp/verify.txt)" "byte $((3 << 20)) and after"
    note "$(ours verify 0 7 $((3 << 20)))"
    drive_give nvme 0
}

part_4k_blocks() {
    both_ways 2
}

# Every way to read, on the same two drives, one by one and striped, in both LBA formats: one command hands them over,
# formats them, and puts everything back. High priority says that it is without effect on this kernel.
part_engines() {
    local engine bytes layout polled=/sys/module/nvme/parameters/poll_queues
    # The drives have a queue that can be polled from the next time on that the kernel takes them.
    echo 1 >"$polled"
    wait_for 20 drive_block 0
    wait_for 20 drive_block 1
    /run/bin/nvmeof-perf engines --device "$(drive_block 0)" --device "$(drive_block 1)" --rebind --concurrency 4 \
        --lba-size 512,4096 --destroy-data DRIVE0 --destroy-data DRIVE1 --time 300ms --ramp 50ms --html /tmp/engines.html \
        >/tmp/engines.txt 2>/tmp/engines.err || fail "engines: $(cat /tmp/engines.err /tmp/engines.txt)"
    echo 0 >"$polled"
    sed 's/^/table /' /tmp/engines.txt
    assert_eq "complaints" "$(cat /tmp/engines.err)" ""
    for engine in sync psync pvsync pvsync2 pvsync2-hipri io-uring io-uring-polled vfio; do
        for bytes in 512 4096; do
            for layout in individual stripe; do
                grep -E "^\| +$bytes \| $layout +\| +2 \| $engine +\| +4 \| +[0-9]+ \| +[0-9.]+ " /tmp/engines.txt >/dev/null ||
                    fail "$engine was not measured, $layout with blocks of $bytes bytes"
            done
        done
    done
    assert_has "high priority" "$(cat /tmp/engines.txt)" 'takes no notice of RWF_HIPRI'
    wait_for 10 driver_is 0 nvme
    wait_for 10 driver_is 1 nvme
    # A drive in use is left alone: by our driver, and by the kernel's engines, too.
    mkfs.ext4 -q -F "$(drive_block 1)"
    mkdir -p /mnt/drive
    mount "$(drive_block 1)" /mnt/drive
    if /run/bin/nvmeof-perf engines --device "$(drive_block 1)" --rebind --engine psync,vfio --layout individual --concurrency 1 \
        --time 100ms --ramp 0s >/tmp/engines.txt; then fail "a drive in use was read: $(cat /tmp/engines.txt)"; fi
    mountpoint -q /mnt/drive || fail "it is no longer mounted"
    umount /mnt/drive
    assert_has "why our driver did not read it" "$(cat /tmp/engines.txt)" 'vfio.*is in use and stays unchanged.*mounted'
    assert_has "why psync did not read it" "$(cat /tmp/engines.txt)" 'psync.*in use'
    # As a drive of our own driver's: given back to it.
    drive_give vfio-pci 0
    /run/bin/nvmeof-perf engines --device "pci:$(drive 0)" --rebind --engine psync,vfio --layout individual --concurrency 1 \
        --time 100ms --ramp 0s >/tmp/engines.txt || fail "engines of a bound drive: $(cat /tmp/engines.txt)"
    grep -E '^\| +512 \| individual +\| +1 \| psync +\| +1 ' /tmp/engines.txt >/dev/null || fail "psync: $(cat /tmp/engines.txt)"
    assert_eq "the driver" "$(basename "$(readlink "$PCI/$(drive 0)/driver")")" vfio-pci
    # It was formatted for 4096 bytes, and back: so the other parts find it.
    note "$(ours randread 0 4 1 sleep)"
    drive_give nvme 0
    wait_for 20 drive_block 0
    assert_eq "bytes of a block" "$(cat "/sys/block/$(basename "$(drive_block 0)")/queue/logical_block_size")" 512
    # Without a queue to poll again.
    drive_give vfio-pci 1
    drive_give nvme 1
    wait_for 20 drive_block 1
    if /run/bin/nvmeof-perf engines --device "$(drive_block 1)" --engine io-uring-polled --concurrency 1 --layout individual \
        --time 1s --ramp 0s >/tmp/engines.txt; then fail "a drive without queues to poll was polled"; fi
    assert_has "why not" "$(cat /tmp/engines.txt)" 'nvme.poll_queues'
}

# One to three drives, found by their numbers: two by the kernel, one by our own driver.
part_scale() {
    drive_give vfio-pci 1
    wait_for 20 drive_block 0
    wait_for 20 drive_block 2
    /run/bin/nvmeof-perf scale --drives 0-2 --by root-complex --order in-order,round-robin --bs 64k --jobs 1 --depth 4 \
        --time 1s --ramp 100ms >/tmp/scale.txt || fail "scale: $(cat /tmp/scale.txt)"
    sed 's/^/table /' /tmp/scale.txt
    assert_has "the second drive" "$(cat /tmp/scale.txt)" "^\| +2 \| pci:$(drive 1) +\| 0000:00 +\| +2 \|"
    assert_has "the third drive" "$(cat /tmp/scale.txt)" '^\| +3 \| /dev/nvme[0-9]+n1 +\| 0000:00 +\| +3 \|'
    drive_give nvme 1
}

# A drive that is pulled out under load: reads end with an error, and the process with it.
part_removal() {
    local pid
    drive_give vfio-pci 1
    /run/bin/nvme_bench randread "$(drive 1)" 32 60 sleep >/tmp/bench.txt &
    pid=$!
    sleep 3
    hands remove 1
    if wait "$pid"; then fail "reads of a drive that is gone: $(cat /tmp/bench.txt)"; fi
    assert_has "how it ended" "$(cat /tmp/bench.txt)" '^FAIL: the device is missing'
    hands add 1
    wait_for 10 drive_there 1
    drive_give vfio-pci 1
    note "after it came back: $(ours randread 1 32 1 sleep)"
    drive_give nvme 1
}

# 4 KiB random reads of the same drive by our driver and by the kernel's, in turns.
part_ratios() {
    local round depth how rate dev
    for round in $(seq "$ROUNDS"); do
        drive_give vfio-pci 0
        for depth in $DEPTHS; do
            for how in poll sleep; do
                rate=$(ours randread 0 "$depth" 2 "$how")
                [[ $rate =~ rate\ ([0-9]+)/s ]] || fail "no rate in '$rate'"
                echo "${BASH_REMATCH[1]}" >>"/run/rate-$how-$depth"
            done
        done
        drive_give nvme 0
        wait_for 10 drive_block 0
        dev=$(drive_block 0)
        for depth in $DEPTHS; do
            fio --name=kernel --filename="$dev" --allow_file_create=0 --ioengine=io_uring --direct=1 \
                --rw=randread --bs=4k --iodepth="$depth" --time_based --runtime=2 --ramp_time=200ms --thread \
                --minimal --output=/tmp/fio.out
            awk -F';' '$1 == 3 { print $8 }' /tmp/fio.out >>"/run/rate-kernel-$depth"
        done
    done
    printf 'table %5s %10s %10s %12s %12s %12s\n' depth "ours poll" "ours sleep" "kernel" "poll/kernel" \
        "sleep/kernel"
    for depth in $DEPTHS; do
        assert_eq "rounds at depth $depth" "$(cat "/run/rate-kernel-$depth" | wc -l)" "$ROUNDS"
        awk -v depth="$depth" -v poll="$(middle_of "poll-$depth")" -v sleep="$(middle_of "sleep-$depth")" \
            -v kernel="$(middle_of "kernel-$depth")" 'BEGIN {
                printf "table %5d %8d/s %8d/s %10d/s %12.2f %12.2f\n", depth, poll, sleep, kernel,
                    poll / kernel, sleep / kernel }'
    done
}

middle_of() {
    sort -g "/run/rate-$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

run_parts "$@"
