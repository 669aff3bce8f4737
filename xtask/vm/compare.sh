#!/bin/bash
# The same fio jobs against our daemon and against the kernel's own target, in turns in one boot.
# Emulation makes the speeds themselves worthless; their ratio is what is printed.
# parts: ratios
# parts ours: perf-ours perf-kernel leaks
. /share/lib.sh
LIMIT_ratios=200

ROUNDS=3
SECONDS_A_JOB=2
JOBS="rand4k-qd32 rand4k-qd1 rand128k-qd8 write4k-qd32"

part_ratios() {
    local nqn=$DEMO other=$DEMO-kernel job
    if [ "$TARGET" = ours ]; then kernel_target; fi
    connect "$nqn"
    ns_wait "$nqn" 3 >/dev/null
    if [ "$TARGET" = ours ]; then
        PORT=4421 connect "$other"
    else
        other=$nqn # against itself: how far apart equal targets look
    fi
    measure "$(ns_wait "$nqn" 3)" "$(ns_wait "$other" 3)"
    disconnect "$nqn"
    if [ "$TARGET" = ours ]; then disconnect "$other"; fi
    printf 'table %-14s %12s %12s %7s\n' job "$TARGET" nvmet ratio
    for job in $JOBS; do
        awk -v job="$job" -v first="$(median "$job-first")" -v second="$(median "$job-second")" \
            'BEGIN { printf "table %-14s %10d/s %10d/s %7.2f\n", job, first, second, first / second }'
    done
}

# Our own load generator against our target, and against one we did not write.
part_perf_ours() {
    local options
    for options in "" "--hdgst --ddgst"; do
        # shellcheck disable=SC2086
        perf 4420 "$DEMO" 1 4k $options
        # shellcheck disable=SC2086
        perf 4420 "$DEMO" 2 128k $options
    done
    perf 4420 "$DEMO" 4 16k
}

part_perf_kernel() {
    local options
    for options in "" "--hdgst --ddgst"; do
        # shellcheck disable=SC2086
        perf 4421 "$DEMO-kernel" 1 4k $options
        # shellcheck disable=SC2086
        perf 4421 "$DEMO-kernel" 1 128k $options
    done
}

# A short verified run that must move data: perf PORT NQN NSID BLOCK-SIZE [options...]
perf() {
    local address=tcp://127.0.0.1:$1/$2 nsid=$3 bs=$4 iops
    shift 4
    /run/bin/nvmeof-perf run --connect "$address" --nsid "$nsid" --rw randrw:50 --bs "$bs" --qd 8 \
        --size 16MiB --time 2s --verify --json /tmp/perf.json "$@"
    iops=$(tr -d ' \n' </tmp/perf.json | grep -o '"iops":[0-9.]*' | head -1 | cut -d: -f2)
    awk -v iops="$iops" 'BEGIN { exit !(iops > 0) }' || fail "no I/O was done: $(head -c 400 /tmp/perf.json)"
    note "nvmeof-perf on $address namespace $nsid, $bs, verified${*:+, }$*: $iops/s"
}

# The kernel's target beside ours, on a port of its own, with a null device of the same size.
kernel_target() {
    . /share/target-nvmet.sh
    modprobe -a nvmet nvmet-tcp null_blk
    nullb nullb1 blocksize=512 size=128 memory_backed=1
    nullb nullb3 blocksize=512 size=1024 memory_backed=0
    nvmet_subsystem "$DEMO-kernel" KERN0001 1
    nvmet_namespace "$DEMO-kernel" 1 /dev/nullb1
    nvmet_namespace "$DEMO-kernel" 3 /dev/nullb3
    PORT=4421 nvmet_port 1 ipv4 127.0.0.1
    ln -s "$NVMET/subsystems/$DEMO-kernel" "$NVMET/ports/1/subsystems/"
}

# Runs every job on both devices in turns, several rounds, in one fio: measure FIRST SECOND.
measure() {
    local round job which dev arguments=()
    for round in $(seq "$ROUNDS"); do
        for job in $JOBS; do
            for which in first second; do
                if [ "$which" = first ]; then dev=$1; else dev=$2; fi
                arguments+=(--name="$job-$which" --stonewall --filename="$dev" $(options "$job"))
                arguments+=(--time_based --runtime="$SECONDS_A_JOB" --ramp_time=1)
            done
        done
    done
    fio --ioengine=libaio --direct=1 --allow_file_create=0 --thread --minimal --output=/tmp/fio.out \
        "${arguments[@]}"
    assert_eq "jobs measured" "$(grep -c '^3;fio' /tmp/fio.out)" $((ROUNDS * 8))
}

options() {
    case $1 in
    rand4k-qd32) echo --rw=randread --bs=4k --iodepth=32 ;;
    rand4k-qd1) echo --rw=randread --bs=4k --iodepth=1 ;;
    rand128k-qd8) echo --rw=randread --bs=128k --iodepth=8 ;;
    write4k-qd32) echo --rw=randwrite --bs=4k --iodepth=32 ;;
    esac
}

# The median IOPS of a job: fields 8 and 49 of fio's terse lines, reads and writes.
median() {
    awk -F';' -v job="$1" '$3 == job { print $8 + $49 }' /tmp/fio.out | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
