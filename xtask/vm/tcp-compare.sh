#!/bin/bash
# The same fio jobs against our daemon and against the kernel's own target, in turns in one boot.
# Emulation makes the speeds themselves worthless; their ratio is what is printed.
# parts ours: ratios
# parts nvmet: ratios
. /share/lib.sh
LIMIT_ratios=200

ROUNDS=3
SECONDS_A_JOB=3
JOBS="rand4k-qd32 rand4k-qd1 rand128k-qd8 write4k-qd32"

part_ratios() {
    if [ "$TARGET" = ours ]; then kernel_target; fi
    local nqn=$DEMO other=$DEMO-kernel job round
    connect "$nqn"
    ns_wait "$nqn" 3 >/dev/null
    if [ "$TARGET" = ours ]; then
        PORT=4421 connect "$other"
    else
        other=$nqn # against itself: how far apart equal targets look
    fi
    ns_wait "$other" 3 >/dev/null
    for round in $(seq "$ROUNDS"); do
        for job in $JOBS; do
            measure "$nqn" "$job" >>"/tmp/ours.$job"
            measure "$other" "$job" >>"/tmp/nvmet.$job"
        done
    done
    disconnect "$nqn"
    if [ "$TARGET" = ours ]; then disconnect "$other"; fi
    printf 'table %-14s %12s %12s %7s\n' job "$TARGET" nvmet ratio
    for job in $JOBS; do
        awk -v job="$job" -v ours="$(median "/tmp/ours.$job")" -v nvmet="$(median "/tmp/nvmet.$job")" \
            'BEGIN { printf "table %-14s %9d/s %10d/s %7.2f\n", job, ours, nvmet, ours / nvmet }'
    done
}

# The kernel's target beside ours, on a port of its own, serving a null device of the same size.
kernel_target() {
    . /share/target-nvmet.sh
    modprobe -a nvmet nvmet-tcp null_blk
    nullb nullb3 blocksize=512 size=1024 memory_backed=0
    nvmet_subsystem "$DEMO-kernel" KERN0001 1
    nvmet_namespace "$DEMO-kernel" 3 /dev/nullb3
    PORT=4421 nvmet_port 1 ipv4 127.0.0.1
    ln -s "$NVMET/subsystems/$DEMO-kernel" "$NVMET/ports/1/subsystems/"
}

# Runs one job on the null namespace and prints its IOPS.
measure() {
    local dev options
    dev=$(ns_dev "$1" 3)
    case $2 in
    rand4k-qd32) options="--rw=randread --bs=4k --iodepth=32" ;;
    rand4k-qd1) options="--rw=randread --bs=4k --iodepth=1" ;;
    rand128k-qd8) options="--rw=randread --bs=128k --iodepth=8" ;;
    write4k-qd32) options="--rw=randwrite --bs=4k --iodepth=32" ;;
    esac
    # shellcheck disable=SC2086
    fio --name="$2" --filename="$dev" --allow_file_create=0 --ioengine=libaio --direct=1 $options \
        --time_based --runtime="$SECONDS_A_JOB" --ramp_time=1 --minimal --output=/tmp/fio.out >&2
    # Fields 8 and 49 of fio's terse output: read and write IOPS.
    awk -F';' '{ print $8 + $49 }' /tmp/fio.out
}

median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

run_parts "$@"
