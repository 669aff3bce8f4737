#!/bin/bash
# Data integrity by fio over RDMA: block sizes from 512 bytes to 1 MiB, queue depths from 1 to 128.
# parts: sizes depths mixes random-sizes
# parts ours: leaks
# The receives of all queues of a reactor in one queue.
RDMA_LISTENER='shared-receives = true'

. /share/lib.sh

# Runs fio jobs, each of which writes in its way and verifies: verify_jobs COUNT JOB-OPTIONS...
verify_jobs() {
    local count=$1
    shift
    fio --ioengine=libaio --direct=1 --allow_file_create=0 --thread --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --randseed=7 --minimal --output=/tmp/fio.txt "$@" || {
        cat /tmp/fio.txt
        fail "verify of: $*"
    }
    assert_eq "jobs that ran" "$(grep -c '^3;fio' /tmp/fio.txt)" "$count"
}

# Every size goes its own way: in the capsule, by one READ or WRITE, by several, by many pages.
part_sizes() {
    connect "$DEMO" -i 2
    local bs jobs=() dev
    dev=$(ns_wait "$DEMO" 1)
    for bs in 512:64k 1k:128k 2k:256k 4k:512k 8k:1m 16k:2m 32k:2m 64k:4m 128k:4m 256k:8m 512k:8m 1m:16m; do
        jobs+=(--name="bs${bs%:*}" --stonewall --filename="$dev" --rw=randwrite --iodepth=16)
        jobs+=(--bs="${bs%:*}" --size="${bs#*:}")
    done
    verify_jobs 12 "${jobs[@]}"
    note "12 block sizes; the largest transfer is $(cat "$(ns_sys "$DEMO" 1)/queue/max_hw_sectors_kb") KiB"
    disconnect "$DEMO"
}

part_depths() {
    connect "$DEMO" -i 2
    local depth jobs=() dev held
    if [ "$TARGET" = ours ]; then
        held=$(fabric_sizes)
        assert_has "what the daemon holds" "$held" 'srq=[1-9]'
        note "two I/O queues are served with:$held"
    fi
    dev=$(ns_wait "$DEMO" 2)
    for depth in 1 2 4 8 16 32 64 128; do
        jobs+=(--name="depth$depth" --stonewall --filename="$dev" --rw=write --iodepth="$depth")
        jobs+=(--bs=16k --size=$((depth < 16 ? 512 : 2048))k)
    done
    # All of a queue's entries with large transfers.
    jobs+=(--name=brim --stonewall --filename="$dev" --rw=randwrite --bs=256k --size=32m --iodepth=128)
    verify_jobs 9 "${jobs[@]}"
    disconnect "$DEMO"
}

# Reads and writes of many sizes at once, on all namespaces that keep data, at depths from 1 to 128.
part_mixes() {
    connect "$DEMO" -i 2
    local share jobs=() nsid depth=1 wait
    for share in 20 50 80; do
        wait=--stonewall
        for nsid in 1 2 4 5; do
            jobs+=(--name="mix$share-ns$nsid" $wait --filename="$(ns_wait "$DEMO" "$nsid")")
            jobs+=(--rw=randrw --rwmixread="$share" --iodepth="$depth" --size=2m)
            jobs+=(--bssplit=4k/50:16k/20:64k/20:256k/10)
            depth=$((depth >= 128 ? 1 : depth * 2))
            wait=
        done
    done
    verify_jobs 12 "${jobs[@]}"
    disconnect "$DEMO"
}

# Every length in blocks from one to 1 MiB, at every alignment: lists of several descriptors, odd ends.
part_random_sizes() {
    connect "$DEMO" -i 2
    verify_jobs 2 --name=lengths --filename="$(ns_wait "$DEMO" 1)" --rw=write --iodepth=32 --size=24m \
        --bsrange=512-1m \
        --name=overlaps --stonewall --filename="$(ns_wait "$DEMO" 5)" --rw=randwrite --iodepth=16 \
        --size=3m --bsrange=512-64k --verify_backlog=16
    disconnect "$DEMO"
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
