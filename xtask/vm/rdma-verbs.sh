#!/bin/bash
# A machine without RDMA, without its libraries, and then with it: what the daemon says and does; the
# provider of verbs by its own checks; a device that goes away and comes back.
# parts ours: no-device no-library provider provider-removal device-removed leaks

# The machine comes up without an RDMA device, and the daemon is started by the parts.
SERVES=nothing
FABRIC_UP=later
. /share/lib.sh

LIBRARIES=/usr/lib/x86_64-linux-gnu

prepare() {
    cp /share/nvmeof-tgt /share/ping /run/bin/
    modprobe nvme-tcp
}

# Runs the daemon with an RDMA listener, and a TCP one or none, until it serves or ends; asserts the one
# or the other, and one warning: without_rdma PATTERN
without_rdma() {
    local log=/run/without.log out=/run/without.out pid code=0
    {
        echo 'reactors = "0"'
        printf '[[listener]]\ntype = "tcp"\naddress = "127.0.0.1"\n'
        printf '[[listener]]\ntype = "rdma"\naddress = "%s"\n' "$ADDRESS"
        printf '[[subsystem]]\nnqn = "%s"\nallow-any-host = true\n' "$DEMO"
    } >/run/both.toml
    sed '2,4d' /run/both.toml >/run/only.toml
    /run/bin/nvmeof-tgt --config /run/both.toml >$out 2>$log </dev/null &
    pid=$!
    wait_for 10 grep -q '^ready ' $out
    assert_eq "the ready line" "$(cat $out)" 'ready tcp://127.0.0.1:4420'
    FABRIC=tcp ADDRESS=127.0.0.1 subsystem_told "$DEMO" || fail "TCP is not served"
    assert_has "the log" "$(cat $log)" "$1"
    # The memory cost is told where a listener is for RDMA, whatever becomes of it.
    assert_eq "lines that complain of RDMA" "$(grep -v "memory cost" $log | grep -c RDMA)" 1
    note "$(grep RDMA $log | sed 's/.*WARN[^:]*:[^ ]* //')"
    kill -TERM "$pid"
    wait "$pid" || fail "with TCP alone the daemon ended with $?"
    timeout 20 /run/bin/nvmeof-tgt --config /run/only.toml >$out 2>$log </dev/null || code=$?
    assert_eq "exit code without any listener" "$code" 1
    assert_eq "the ready line without any listener" "$(cat $out)" ""
    assert_has "the log" "$(cat $log)" "$1"
}

part_no_device() {
    [ ! -e /sys/class/infiniband/rxe0 ] || fail "there is an RDMA device"
    without_rdma 'no RDMA device'
}

part_no_library() {
    local library
    for library in librdmacm.so.1 libibverbs.so.1; do
        [ -e "$LIBRARIES/$library" ] || fail "$library is not where it was looked for"
        # In a layer of the guest's own: the machine around it keeps it.
        mv "$LIBRARIES/$library" "$LIBRARIES/hidden-$library"
        without_rdma "RDMA needs $library.*apt-get install"
        mv "$LIBRARIES/hidden-$library" "$LIBRARIES/$library"
    done
}

# From here on there is a device: everything the provider can be asked on soft-RoCE.
part_provider() {
    fabric_up
    local checks
    /run/bin/ping "$ADDRESS" >/tmp/ping.txt 2>&1 || fail "the provider: $(cat /tmp/ping.txt)"
    if grep '^FAIL' /tmp/ping.txt; then fail "a check of the provider failed"; fi
    checks=$(grep -c '^ok ' /tmp/ping.txt)
    [ "$checks" -ge 15 ] || fail "only $checks checks ran: $(cat /tmp/ping.txt)"
    note "$(tail -1 /tmp/ping.txt)"
    assert_has "left in the kernel" "$(fabric_sizes) " '^( [a-z_]+=0)* $'
}

# Soft-RoCE's removal waits until all programs have closed the device. That there is another one makes it no
# harder; how the only one goes is seen elsewhere (rdma-connect.sh).
second_device() {
    ip link add dummy1 type dummy
    ip addr add 10.0.2.1/24 dev dummy1
    ip link set dummy1 up
    rdma link add rxe1 type rxe netdev dummy1
}

# Removes the device, which must not take for ever.
device_remove() {
    rdma link delete rxe0 &
    local pid=$!
    wait_for 20 no kill -0 "$pid"
    wait "$pid"
}

part_provider_removal() {
    second_device
    /run/bin/ping "$ADDRESS" removal >/tmp/removal.txt 2>&1 &
    local pid=$!
    wait_for 10 grep -q 'remove rxe0' /tmp/removal.txt
    device_remove
    wait_for 10 grep -q 'add rxe0' /tmp/removal.txt
    rdma_device_add
    wait "$pid" || fail "the provider: $(cat /tmp/removal.txt)"
    assert_has "the checks" "$(cat /tmp/removal.txt)" '^ok +a device goes and comes back'
}

# The same under the daemon, with a host on it: the listener comes back by itself, with nothing left.
part_device_removed() {
    . /share/target-ours.sh
    target_start
    local round dev pid
    for round in 1 2; do
        connect "$DEMO" -i 2
        dev=$(ns_wait "$DEMO" 1)
        fio --name=cut --filename="$dev" --allow_file_create=0 --ioengine=libaio --direct=1 --rw=randrw \
            --bs=32k --iodepth=32 --time_based --runtime=60 --minimal --output=/tmp/cut.txt \
            >/dev/null 2>&1 &
        pid=$!
        sleep 2
        device_remove
        if wait "$pid"; then fail "fio did not notice that the device went"; fi
        wait_for 20 no controller_of "$DEMO"
        FABRIC=tcp ADDRESS=127.0.0.1 subsystem_told "$DEMO" || fail "TCP is not served any more"
        rdma_device_add
        wait_for 20 subsystem_told "$DEMO"
        # librdmacm has opened the second device, too, when it looked for the first: that stays.
        if [ "$round" = 1 ]; then
            sleep 2
            baseline_save
        fi
    done
    connect "$DEMO"
    verify_io "$(ns_wait "$DEMO" 1)" 16k 2m
    disconnect "$DEMO"
    note "$round times the device went under load and came back"
    baseline_check
}

part_leaks() {
    . /share/target-ours.sh
    leaks_and_exit
}

run_parts "$@"
