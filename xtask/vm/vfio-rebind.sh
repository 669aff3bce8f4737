#!/bin/bash
# Drives that change drivers: data both ways between us and the kernel's own driver, a drive pulled out under load and
# plugged in again, and what would erase one.
# parts ours: bind ours-alone to-the-kernel from-the-kernel removal format leaks
. /share/lib.sh
. /share/vfio-drives.sh
. /share/vfio-daemon.sh

BYTES=$((8 << 20))

part_bind() {
    drives_serve
}

# What we serve nobody else takes, and nobody erases.
part_ours_alone() {
    drives_refused 'is in use and stays unchanged: /dev/vfio/[0-9]+ is open in pid' unbind "$(drive 0)"
    drives_refused 'in use by pid' format --block-size 4096 --destroy-data DRIVE0
    driver_is 0 vfio-pci || fail "drive 0 was taken from the daemon"
    connect "$DEMO"
    verify_io "$(ns_wait "$DEMO" 1)" 4k 1m
    disconnect "$DEMO"
}

sum_of() {
    dd if="$1" bs=1M count=$((BYTES >> 20)) iflag=direct status=none | sha256sum
}

# Written through us, read by the kernel's own driver.
part_to_the_kernel() {
    local sum number dev
    connect "$DEMO"
    for number in 0 2; do
        dev=$(ns_wait "$DEMO" $((number + 1)))
        head -c "$BYTES" /dev/urandom >"/tmp/data$number"
        dd if="/tmp/data$number" of="$dev" bs=1M oflag=direct conv=fsync status=none
    done
    disconnect "$DEMO"
    serve_not 0
    serve_not 2
    reload_waits
    wait_for 20 drive_free 0
    wait_for 20 drive_free 2
    drives_do unbind "$(drive 0)" "$(drive 2)"
    for number in 0 2; do
        driver_is "$number" nvme || fail "drive $number is with '$(driver_of "$number")'"
        wait_for 20 drive_block "$number"
        sum=$(sha256sum <"/tmp/data$number")
        assert_eq "drive $number as the kernel reads it" "$(sum_of "$(drive_block "$number")")" "$sum"
    done
    # Two drives less; with them again it must hold as much as before.
    cp /run/state/baseline /run/state/baseline-all
    baseline_save
}

# Written by the kernel's own driver, read through us.
part_from_the_kernel() {
    local number dev
    for number in 0 2; do
        wait_for 20 drive_block "$number"
        head -c "$BYTES" /dev/urandom >"/tmp/data$number"
        dd if="/tmp/data$number" of="$(drive_block "$number")" bs=1M oflag=direct conv=fsync status=none
    done
    drives_do bind "$(drive 0)" "$(drive 2)"
    serve 0 1
    serve 2 3
    reload_waits
    connect "$DEMO"
    for number in 0 2; do
        dev=$(ns_wait "$DEMO" $((number + 1)))
        assert_eq "drive $number as we serve it" "$(sum_of "$dev")" "$(sha256sum <"/tmp/data$number")"
    done
    disconnect "$DEMO"
    rm /tmp/data0 /tmp/data2
    cp /run/state/baseline-all /run/state/baseline
}

# A drive is pulled out under load: its namespace reports errors, the others and the daemon go on, and it comes back.
part_removal() {
    local gone other pid since
    connect "$DEMO" -i 2
    other=$(ns_wait "$DEMO" 1)
    gone=$(ns_wait "$DEMO" 2)
    load_start "$other"
    fio --name=gone --filename="$gone" --allow_file_create=0 --ioengine=libaio --direct=1 --rw=randrw --bs=16k \
        --iodepth=16 --time_based --runtime=120 --minimal --output=/tmp/gone.txt >/dev/null 2>&1 &
    pid=$!
    sleep 3
    kill -0 "$pid" || fail "fio on drive 1 ended too early: $(cat /tmp/gone.txt)"
    since=$EPOCHREALTIME
    hands remove 1
    note "the drive was out after $(since "$since") s"
    wait_for 20 no drive_there 1
    if wait "$pid"; then fail "fio did not notice that its drive was pulled out"; fi
    if dd if="$gone" of=/dev/null bs=4k count=1 iflag=direct status=none 2>/tmp/dd.txt; then
        fail "a drive that is out can be read"
    fi
    assert_has "the error" "$(cat /tmp/dd.txt)" 'Input/output error|No data|No such device'
    daemon_alive || fail "the daemon ended"
    load_stop
    verify_io "$(ns_wait "$DEMO" 4)" 64k 2m
    # It comes back with the next reload.
    hands add 1
    wait_for 20 drive_there 1
    drives_do bind "$(drive 1)"
    reload_waits
    wait_for 30 readable "$DEMO" 2
    verify_io "$(ns_wait "$DEMO" 2)" 16k 2m
    verify_io "$other" 16k 2m
    disconnect "$DEMO"
}

readable() {
    local dev
    dev=$(ns_dev "$1" "$2") && dd if="$dev" of=/dev/null bs=4k count=1 iflag=direct status=none
}

# Nothing is erased without --destroy-data; with it the drive is as new.
part_format() {
    local dev before
    connect "$DEMO"
    dev=$(ns_wait "$DEMO" 1)
    head -c "$BYTES" /dev/urandom | dd of="$dev" bs=1M oflag=direct conv=fsync iflag=fullblock status=none
    before=$(sum_of "$dev")
    disconnect "$DEMO"
    serve_not 0
    reload_waits
    wait_for 20 drive_free 0
    drives_refused 'destroy-data' format --block-size 4096 DRIVE0
    drives_refused 'destroy-data' sanitize --action overwrite DRIVE0
    serve 0 1
    reload_waits
    connect "$DEMO"
    assert_eq "the drive after refusals" "$(sum_of "$(ns_wait "$DEMO" 1)")" "$before"
    disconnect "$DEMO"
    serve_not 0
    reload_waits
    wait_for 20 drive_free 0
    drives_do format --block-size 4096 --destroy-data DRIVE0
    serve 0 1
    reload_waits
    connect "$DEMO"
    dev=$(ns_wait "$DEMO" 1)
    assert_eq "its blocks after the format" "$(blockdev --getss "$dev")" 4096
    cmp -n "$BYTES" <(dd if="$dev" bs=1M count=$((BYTES >> 20)) iflag=direct status=none) /dev/zero
    verify_io "$dev" 4k 1m
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
