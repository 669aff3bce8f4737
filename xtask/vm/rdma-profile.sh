#!/bin/bash
# Where the time of a job goes, with our daemon and with the kernel's own target, on the whole guest:
# how busy each CPU is, which functions run, and which system calls the daemon makes for an I/O.
# measures
# parts ours: profile
# limit: 1500
. /share/lib.sh
LIMIT_profile=1400

JOBS="randread-4k-1 randwrite-4k-1 randread-128k-16 randread-128k-64 randwrite-128k-64"
RUN=2
TOP=24
KERNEL=$DEMO-kernel

prepare() {
    (
        . /share/target-nvmet.sh
        modprobe -a nvmet "nvmet-$FABRIC" null_blk
        nullb nullb3 blocksize=512 size=1024 memory_backed=0
        nvmet_subsystem "$KERNEL" KERN0001 1
        nvmet_namespace "$KERNEL" 3 /dev/nullb3
        PORT=4421 nvmet_port 1 ipv4 "$ADDRESS"
        ln -s "$NVMET/subsystems/$KERNEL" "$NVMET/ports/1/subsystems/"
    )
    echo -1 >/proc/sys/kernel/perf_event_paranoid
    echo 0 >/proc/sys/kernel/kptr_restrict
    perf record -q -a -e cpu-clock -o /tmp/perf.data -- true
    perf report -i /tmp/perf.data >/dev/null 2>&1
}

part_profile() {
    local job ours kernel
    connect "$DEMO"
    PORT=4421 connect "$KERNEL"
    ours=$(ns_wait "$DEMO" 3)
    kernel=$(ns_wait "$KERNEL" 3)
    for job in $JOBS; do
        profile "$TARGET" "$job" "$ours"
        profile nvmet "$job" "$kernel"
        system_calls "$job" "$ours"
    done
    disconnect "$DEMO"
    disconnect "$KERNEL"
}

# Runs a job: load JOB DEVICE SECONDS. Prints its I/Os a second.
load() {
    # shellcheck disable=SC2086
    set -- "$2" "$3" ${1//-/ }
    fio --name=job --filename="$1" --rw="$3" --bs="$4" --iodepth="$5" --time_based --runtime="$2" \
        --ioengine=libaio --direct=1 --allow_file_create=0 --thread --minimal |
        awk -F';' 'NF > 49 { print $8 + $49 }' || true # told to end, it says so
}

# Profiles a job: profile TARGET JOB DEVICE
profile() {
    local before after
    # Until it is told to end: programs start slowly from the host's files.
    load "$2" "$3" 600 >/tmp/rate &
    wait_for 60 pgrep -x fio
    sleep 1
    before=$(grep '^cpu[0-9]' /proc/stat)
    perf record -q -a -F 499 -e cpu-clock -o /tmp/perf.data -- sleep "$RUN"
    after=$(grep '^cpu[0-9]' /proc/stat)
    pkill -INT -x fio || true # it ends by itself if all takes long
    wait $!
    note "profile $2 $1: $(cat /tmp/rate)/s"
    # User, system, interrupts and idle of each CPU, in per cent.
    paste <(echo "$before") <(echo "$after") | awk '{
        n = NF / 2
        for (i = 2; i <= 8; i++) { d[i] = $(n + i) - $i; all += d[i] }
        printf "table   %s: user %d, system %d, interrupts %d, idle %d\n", $1, 100 * (d[2] + d[3]) / all,
            100 * d[4] / all, 100 * (d[7] + d[8]) / all, 100 * (d[5] + d[6]) / all
        all = 0
    }'
    top_of cpu,comm 10
    top_of comm,symbol "$TOP"
}

top_of() {
    perf report -q -i /tmp/perf.data --no-children --percent-limit 0.5 --sort "$1" 2>/dev/null |
        awk -v most="$2" 'NF && n++ < most { printf "table  "; for (i = 1; i <= NF && $i != "-"; i++) printf " %s", $i; print "" }'
}

# Counts the daemon's system calls while a job runs: system_calls JOB DEVICE
system_calls() {
    local rate
    strace -c -f -q -o /tmp/calls -p "$(daemon_pid)" &
    sleep 0.5
    rate=$(load "$1" "$2" 1)
    pkill -INT -x strace
    wait $! || true
    note "system calls $1: $rate I/Os in 1 s"
    grep -v '^-' /tmp/calls | head -9 | sed 's/^/table   /'
}

run_parts "$@"
