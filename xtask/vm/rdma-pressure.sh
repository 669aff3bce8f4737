#!/bin/bash
# More queues and depth than the pool has buffers, on a device so slow that they all stay taken: who
# connects meanwhile is still answered, and nothing waits for ever.
# parts: crowd
# parts ours: slow-writes slow-reads leaks

# Two reactors with 8 MiB together: 64 buffers of 128 KiB, against 512 commands of that size.
MORE_CONFIG='[limits]
buffer-memory = "8MiB"
[pacing]
policy = "none"'

# The receives of all queues of a reactor in one queue.
RDMA_LISTENER='shared-receives = true'

. /share/lib.sh

SLOW=$DEMO-slow
EMPTY=$DEMO-empty
LATENCY=4s

prepare() {
    # Commands wait longer here than the host usually has patience for.
    echo 200 >/sys/module/nvme_core/parameters/io_timeout
    target_add_empty "$EMPTY"
    if [ "$TARGET" = ours ]; then target_slow "$SLOW" 0s; fi
    wait_for 10 subsystem_told "$EMPTY"
}

part_slow_writes() {
    starve write
}

part_slow_reads() {
    starve read
}

# Takes every buffer there is and wants three times more, and connects while not one command has ended.
starve() {
    connect "$SLOW" -i 2 -Q 128
    local dev pid round before
    dev=$(ns_wait "$SLOW" 1)
    # Who opens it first looks for partitions, block by block: it gets slow only then.
    exec 8<"$dev"
    wait_for 30 nothing_in_flight
    target_slow "$SLOW" "$LATENCY"
    sleep 1
    before=$(ended)
    fio --name=starve --filename="$dev" --allow_file_create=0 --ioengine=libaio --direct=1 \
        --rw="$1" --bs=128k --size=16m --iodepth=128 --numjobs=2 --thread --offset_increment=16m \
        --minimal --output=/tmp/fio.txt &
    pid=$!
    wait_for 20 many_in_flight
    for round in 1 2 3; do
        connect "$EMPTY" -i 2
        if [ "$round" = 1 ]; then
            assert_eq "slow commands that ended before a host could connect" \
                $(($(ended) - before)) 0
        fi
        assert_has "the empty subsystem" "$(nvme id-ctrl "/dev/$(controller_of "$EMPTY")")" \
            "^subnqn +: $EMPTY\$"
        subsystem_told "$EMPTY" || fail "no discovery under load"
        disconnect "$EMPTY"
    done
    note "$round connects; meanwhile $(($(ended) - before)) slow commands ended, $(in_flight) have not"
    kill -0 "$pid" || fail "the load ended before the connects did"
    wait "$pid" || fail "fio: $(cat /tmp/fio.txt)"
    assert_eq "slow commands that ended in the end" $(($(ended) - before)) 256
    target_slow "$SLOW" 0s
    exec 8<&-
    disconnect "$SLOW"
}
LIMIT_slow_writes=300
LIMIT_slow_reads=300

# Commands to the slow namespace that have ended, and those that have not: fields of the paths' counts.
ended() {
    path_counts | awk '{ sum += $1 + $5 } END { print sum + 0 }'
}

in_flight() {
    path_counts | awk '{ sum += $9 } END { print sum + 0 }'
}

path_counts() {
    local dir value
    for dir in /sys/block/nvme*c*n*; do
        attribute "$dir/device/subsysnqn"
        if [ "$value" = "$SLOW" ]; then cat "$dir/stat"; fi
    done
}

many_in_flight() {
    [ "$(in_flight)" -ge 100 ]
}

nothing_in_flight() {
    [ "$(in_flight)" = 0 ]
}

# Eight queues of 128 entries, all full of 128 KiB, sixteen times what the pool holds; on fast memory, so
# that buffers are fought for. Every byte is verified.
part_crowd() {
    local round dev
    for round in 1 2 3 4; do
        connect_quick "$DEMO" 2 queue_size=128,duplicate_connect >/dev/null
    done
    dev=$(ns_wait "$DEMO" 1)
    assert_eq "controllers" "$(ls /sys/class/nvme | wc -l)" 4
    wait_for 10 paths_are 4
    echo round-robin >"$(echo /sys/class/nvme-subsystem/nvme-subsys*/)iopolicy"
    verify_io "$dev" 128k 12m --iodepth=256 --numjobs=4 --offset_increment=16m --thread
    verify_io "$dev" 4k 1m --iodepth=256 --numjobs=4 --offset_increment=16m --thread
    disconnect "$DEMO"
}

paths_are() {
    local paths=(/sys/block/nvme*c*n1)
    [ "${#paths[@]}" = "$1" ]
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
