#!/bin/bash
# The same fio jobs against our daemon and against the kernel's own target, in turns in one boot.
# Emulation makes the speeds themselves worthless; their ratio is what is printed. With a counted clock
# (`--icount`) it is that of the instructions which a job takes, host and target together on one CPU.
# measures
# parts: ratios
# parts ours: perf-ours perf-kernel leaks
. /share/lib.sh
LIMIT_ratios=300

ROUNDS=3
if [ "$CLOCK" = counted ]; then ROUNDS=1; fi # another would show the same
if [ "$MEASURE" = shortly ]; then ROUNDS=1; fi
# A job is how, at which block size, at which depth. RDMA has to hold its own in all of them.
case $FABRIC in
tcp) JOBS="randread-4k-32 randread-4k-1 randread-128k-8 randwrite-4k-32" RUN=2 RAMP=1 ;;
rdma)
    JOBS="randread-4k-1 randread-4k-16 randread-4k-64 randwrite-4k-1 randwrite-4k-16 randwrite-4k-64
        randread-128k-1 randread-128k-16 randread-128k-64
        randwrite-128k-1 randwrite-128k-16 randwrite-128k-64"
    RUN=1 RAMP=200ms
    ;;
esac
KERNEL=$DEMO-kernel

# The kernel's target stands beside ours, on a port of its own, with devices of the same size.
prepare() {
    [ "$TARGET" = ours ] || return 0
    (
        . /share/target-nvmet.sh
        modprobe -a nvmet "nvmet-$FABRIC" null_blk
        nullb nullb1 blocksize=512 size=128 memory_backed=1
        nullb nullb3 blocksize=512 size=1024 memory_backed=0
        nvmet_subsystem "$KERNEL" KERN0001 1
        nvmet_namespace "$KERNEL" 1 /dev/nullb1
        nvmet_namespace "$KERNEL" 3 /dev/nullb3
        PORT=4421 nvmet_port 1 ipv4 "$ADDRESS"
        ln -s "$NVMET/subsystems/$KERNEL" "$NVMET/ports/1/subsystems/"
    )
}

part_ratios() {
    local other=$KERNEL job
    connect "$DEMO"
    ns_wait "$DEMO" 3 >/dev/null
    if [ "$TARGET" = ours ]; then
        PORT=4421 connect "$other"
    else
        other=$DEMO # against itself: how far apart equal targets look
    fi
    measure "$(ns_wait "$DEMO" 3)" "$(ns_wait "$other" 3)"
    disconnect "$DEMO"
    if [ "$TARGET" = ours ]; then disconnect "$other"; fi
    printf 'table %-17s %9s %9s %6s %10s %10s %6s\n' job "$TARGET" nvmet ratio "$TARGET" nvmet ratio
    for job in $JOBS; do
        awk -v job="$job" \
            -v a="$(median "$job-first" rate)" -v b="$(median "$job-second" rate)" \
            -v c="$(median "$job-first" mean)" -v d="$(median "$job-second" mean)" \
            -v rates="$(median_ratio "$job" rate)" -v means="$(median_ratio "$job" mean)" 'BEGIN {
                printf "table %-17s %7d/s %7d/s %6.2f %7d us %7d us %6.2f\n",
                    job, a, b, rates, c, d, means }'
    done
}

# Our own load generator against our target, and against one we did not write.
part_perf_ours() {
    perf "$PORT" "$DEMO" 1 4k
    perf "$PORT" "$DEMO" 2 128k
    perf "$PORT" "$DEMO" 4 16k
    if [ "$FABRIC" = tcp ]; then
        perf "$PORT" "$DEMO" 1 4k --hdgst --ddgst
        perf "$PORT" "$DEMO" 2 128k --hdgst --ddgst
    fi
}

part_perf_kernel() {
    perf 4421 "$KERNEL" 1 4k
    perf 4421 "$KERNEL" 1 128k
    if [ "$FABRIC" = tcp ]; then
        perf 4421 "$KERNEL" 1 4k --hdgst --ddgst
        perf 4421 "$KERNEL" 1 128k --hdgst --ddgst
    fi
}

# A short verified run that must move data: perf PORT NQN NSID BLOCK-SIZE [options...]
perf() {
    local address=$FABRIC://$ADDRESS:$1/$2 nsid=$3 bs=$4 iops
    shift 4
    /run/bin/nvmeof-perf run --connect "$address" --nsid "$nsid" --rw randrw:50 --bs "$bs" --qd 8 \
        --size 16MiB --time 2s --verify --json /tmp/perf.json "$@"
    iops=$(tr -d ' \n' </tmp/perf.json | grep -o '"iops":[0-9.]*' | head -1 | cut -d: -f2)
    awk -v iops="$iops" 'BEGIN { exit !(iops > 0) }' || fail "no I/O was done: $(head -c 400 /tmp/perf.json)"
    note "nvmeof-perf on $address namespace $nsid, $bs, verified${*:+, }$*: $iops/s"
}

# Runs every job on both devices in turns, several rounds, in one fio: measure FIRST SECOND. Who goes
# first changes with the round.
measure() {
    local round job which dev order arguments=() count=0
    for round in $(seq "$ROUNDS"); do
        if [ $((round % 2)) = 1 ]; then order="first second"; else order="second first"; fi
        for job in $JOBS; do
            for which in $order; do
                if [ "$which" = first ]; then dev=$1; else dev=$2; fi
                # shellcheck disable=SC2086
                set -- "$1" "$2" ${job//-/ }
                arguments+=(--name="$job-$which" --stonewall --filename="$dev")
                arguments+=(--rw="$3" --bs="$4" --iodepth="$5")
                arguments+=(--time_based --runtime="$RUN" --ramp_time="$RAMP")
                count=$((count + 1))
            done
        done
    done
    fio --ioengine=libaio --direct=1 --allow_file_create=0 --thread --minimal --output=/tmp/fio.out \
        "${arguments[@]}"
    assert_eq "jobs measured" "$(grep -c '^3;fio' /tmp/fio.out)" "$count"
}

# Prints the values of a job's rounds: I/Os a second, or microseconds each. In fio's terse lines reads
# are fields 8 and 40, writes 49 and 81; what a job did not do is 0.
values() {
    case $2 in
    rate) awk -F';' -v job="$1" '$3 == job { print $8 + $49 }' /tmp/fio.out ;;
    mean) awk -F';' -v job="$1" '$3 == job { print $40 + $81 }' /tmp/fio.out ;;
    esac
}

middle() {
    sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

median() {
    values "$1" "$2" | middle
}

# The median over the rounds of what the first had against the second.
median_ratio() {
    paste <(values "$1-first" "$2") <(values "$1-second" "$2") | awk '{ print $1 / $2 }' | middle
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
