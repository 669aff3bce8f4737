# What every guest script uses: parts, waiting, asserting, connecting, finding devices.
#
# A script lists its parts in its header and defines a function part_NAME for each (dashes become
# underscores). Each part runs in a shell of its own, with a time limit, under `set -e`; it connects
# what it needs and disconnects it. The state that outlives a part is in /run.
set -Eeuo pipefail

. /share/settings # TARGET, FABRIC, GUEST, PARTS, CLOCK, MEASURE

HOST_NQN=nqn.2014-08.org.nvmexpress:uuid:5fa3d7a1-9f0b-4c7e-8a51-6c2d3b1e0f44
HOST_ID=5fa3d7a1-9f0b-4c7e-8a51-6c2d3b1e0f44
if [ "$GUEST" = b ]; then # another host
    HOST_NQN=${HOST_NQN%44}55
    HOST_ID=${HOST_ID%44}55
fi
DEMO=nqn.2026-11.io.nvmeof-tgt:demo
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery
PORT=4420
DISK_FS=/dev/vda
DISK_RAW=/dev/vdb
PART_LIMIT=240

. "/share/fabric-$FABRIC.sh" # ADDRESS, ADDRESS6, fabric_up
. "/share/target-${SERVES:-$TARGET}.sh"

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

note() {
    echo "note $*"
}

# Fails unless two values are equal: assert_eq WHAT FOUND EXPECTED
assert_eq() {
    [ "$2" = "$3" ] || fail "$1 is '$2', should be '$3'"
}

# Fails unless a text has a pattern: assert_has WHAT TEXT EXTENDED-REGEX
assert_has() {
    grep -Eq -- "$3" <<<"$2" || fail "$1 has no /$3/: $2"
}

# Repeats a command until it succeeds, for SECONDS at most (three times as long by the clock, since a busy machine
# emulates slowly): wait_for SECONDS COMMAND...
wait_for() {
    local deadline=$((SECONDS + 3 * $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            fail "waited in vain for: $*"
        fi
        sleep 0.2
    done
}

no() {
    ! "$@"
}

# --- the machine -------------------------------------------------------------------------------

# Loads what a host needs and checks that the machine is what the scripts were written for.
machine_up() {
    ip link set lo up
    modprobe -a configfs nvme-fabrics virtio_blk crc32c_generic ext4
    if [ "${FABRIC_UP:-now}" = now ]; then fabric_up; fi
    wait_for 5 test -b "$DISK_FS"
    wait_for 5 test -b "$DISK_RAW"
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir -p /run/bin /run/state /mnt/backing /mnt/demo
    mkfs.ext4 -q -F "$DISK_FS"
    mount "$DISK_FS" /mnt/backing
    : >/run/up
}

# --- connecting --------------------------------------------------------------------------------

# Connects to a subsystem: connect NQN [nvme-cli options...]
#
# The keep-alive timeout is long unless the caller says otherwise: a host that disconnects sends no
# keep-alive any more while it removes its namespaces, which on a busy machine takes longer than
# the usual five seconds; the target then rightly ends it, and the host waits a minute for an answer.
connect() {
    local nqn=$1
    shift
    nvme connect -t "$FABRIC" -a "$ADDRESS" -s "$PORT" -n "$nqn" -q "$HOST_NQN" -I "$HOST_ID" \
        --keep-alive-tmo=30 "$@"
    wait_for 10 controller_live "$nqn"
}

# What nvme-cli does, without starting a program: connect_quick NQN QUEUES [OPTIONS]. Prints the
# controller's name.
connect_quick() {
    local answer
    exec 9<>/dev/nvme-fabrics
    printf 'nqn=%s,transport=%s,traddr=%s,trsvcid=%s,hostnqn=%s,hostid=%s,nr_io_queues=%s%s' \
        "$1" "$FABRIC" "$ADDRESS" "$PORT" "$HOST_NQN" "$HOST_ID" "$2" "${3:+,$3}" >&9
    read -r answer <&9
    exec 9>&-
    [[ $answer =~ instance=([0-9]+) ]] || fail "the kernel answers '$answer' to a connect"
    echo "nvme${BASH_REMATCH[1]}"
}

disconnect() {
    nvme disconnect -n "$1" >/dev/null
    wait_for 10 no controller_of "$1"
}

# Prints the discovery log: discover [nvme-cli options...]
discover() {
    nvme discover -t "$FABRIC" -a "$ADDRESS" -s "$PORT" -q "$HOST_NQN" -I "$HOST_ID" "$@"
}

# Whether the discovery log names a subsystem. (In a pipe, nvme-cli would die of a grep that has seen
# enough.)
subsystem_told() {
    local log
    log=$(discover) && grep -q "^subnqn: *$1\$" <<<"$log"
}

# Reads a sysfs attribute into $value without starting a program; empty if it cannot be read.
attribute() {
    value=
    read -r value <"$1" || true
} 2>/dev/null

# Prints the name (nvme0) of the first controller of a subsystem.
controller_of() {
    local dir value
    for dir in /sys/class/nvme/nvme*; do
        attribute "$dir/subsysnqn"
        if [ "$value" = "$1" ]; then
            echo "${dir##*/}"
            return 0
        fi
    done
    return 1
}

controller_live() {
    local name value
    name=$(controller_of "$1") || return 1
    attribute "/sys/class/nvme/$name/state"
    [ "$value" = live ]
}

# Prints the sysfs folders of a subsystem's block devices: all_ns NQN. With multipath the heads
# count, not their hidden paths.
all_ns() {
    local dir value
    for dir in /sys/block/nvme*n*; do
        case ${dir##*/} in *c*n*) continue ;; esac
        attribute "$dir/device/subsysnqn"
        if [ "$value" = "$1" ]; then echo "$dir"; fi
    done
}

# Prints the sysfs folder of a namespace's block device: ns_sys NQN NSID.
ns_sys() {
    local dir value
    for dir in $(all_ns "$1"); do
        attribute "$dir/nsid"
        if [ "$value" = "$2" ]; then
            echo "$dir"
            return 0
        fi
    done
    return 1
}

# Prints a namespace's device node and fails if it is not a block device: fio would make a regular
# file in its place, and pass.
ns_dev() {
    local dir dev
    dir=$(ns_sys "$1" "$2") || return 1
    dev=/dev/${dir##*/}
    [ -b "$dev" ] && echo "$dev"
}

# Waits for a namespace and prints its device node.
ns_wait() {
    wait_for 10 ns_dev "$1" "$2"
    ns_dev "$1" "$2"
}

# Counts the namespaces the host sees of a subsystem.
ns_count() {
    local dirs
    dirs=$(all_ns "$1")
    # One word a folder; none of them has a blank.
    # shellcheck disable=SC2086
    set -- $dirs
    echo $#
}

# --- two guests --------------------------------------------------------------------------------

# Tells the other guest that we are so far: tell WHAT [TEXT]
tell() {
    mountpoint -q /run/meeting || {
        mkdir -p /run/meeting
        mount -t 9p -o trans=virtio,version=9p2000.L meeting /run/meeting
    }
    echo "${2:-yes}" >"/run/meeting/$GUEST-$1.new"
    mv "/run/meeting/$GUEST-$1.new" "/run/meeting/$GUEST-$1"
}

# Waits until the other is so far, and prints what it told: await WHAT [SECONDS]
await() {
    local other=a
    if [ "$GUEST" = a ]; then other=b; fi
    wait_for "${2:-80}" test -e "/run/meeting/$other-$1" -o -e "/run/meeting/$other-failed"
    [ ! -e "/run/meeting/$other-failed" ] || fail "the other guest has failed"
    cat "/run/meeting/$other-$1"
}

# Waits for each other: meet WHERE [SECONDS]
meet() {
    tell "$1"
    await "$1" "${2:-80}" >/dev/null
}

# Both hosts write one namespace at the same time, each its own half, and read what the other wrote:
# same_namespace OUR-OFFSET THEIR-OFFSET (MiB)
same_namespace() {
    local dev sum
    dev=$(ns_wait "$DEMO" 1)
    meet same
    verify_io "$dev" 16k 8m --offset="$1m"
    dd if=/dev/urandom of=/tmp/data bs=1M count=2 status=none
    dd if=/tmp/data of="$dev" bs=256k seek=$(($1 * 4)) oflag=direct conv=fsync status=none
    tell same-sum "$(sha256sum </tmp/data)"
    sum=$(await same-sum)
    assert_eq "what the other host wrote" \
        "$(dd if="$dev" bs=256k skip=$(($2 * 4)) count=8 iflag=direct status=none | sha256sum)" "$sum"
}

# --- data --------------------------------------------------------------------------------------

# Writes a device and verifies it: verify_io DEVICE BLOCK-SIZE BYTES [fio options...]
verify_io() {
    local dev=$1 bs=$2 size=$3
    shift 3
    [ -b "$dev" ] || fail "$dev is not a block device"
    fio --name=verify --filename="$dev" --allow_file_create=0 --ioengine=libaio --direct=1 \
        --rw=randwrite --bs="$bs" --size="$size" --iodepth=16 --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --randseed=7 --output=/tmp/fio.txt --minimal "$@" || {
        cat /tmp/fio.txt
        fail "fio verify on $dev, block size $bs"
    }
}

# Writes and verifies a device over and over until load_stop, so that it lasts as long as what is done meanwhile, on a
# slow machine, too: load_start DEVICE [fio options...]
load_start() {
    local dev=$1
    shift
    rm -f /run/load-stop
    (
        rounds=0
        until [ -e /run/load-stop ]; do
            verify_io "$dev" 4k 1m "$@"
            rounds=$((rounds + 1))
            echo "$rounds" >/run/load-rounds
        done
    ) &
    LOAD_PID=$!
    echo 0 >/run/load-rounds
}

# Ends the load, which must still run and must have verified something.
load_stop() {
    kill -0 "$LOAD_PID" || fail "the load ended too early"
    : >/run/load-stop
    wait "$LOAD_PID" || fail "the load failed"
    [ "$(cat /run/load-rounds)" -ge 1 ] || fail "the load verified nothing"
    note "meanwhile written and verified $(cat /run/load-rounds) time(s)"
}

# --- what the target holds ---------------------------------------------------------------------

# Notes what the target holds while nobody is connected.
baseline_save() {
    target_sizes >/run/state/baseline
    note "the target at rest: $(cat /run/state/baseline)"
}

# Waits until the target holds no more than that again; fails if it does not come to that.
baseline_check() {
    if [ -e /run/state/ended ]; then return; fi
    local deadline=$((SECONDS + 60))
    until target_at_rest; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            fail "the target holds $(target_sizes); at rest: $(cat /run/state/baseline)"
        fi
        sleep 0.5
    done
}

# --- running parts -----------------------------------------------------------------------------

# Defines the parts of other scripts in this one, too: parts_of SCRIPT...
parts_of() {
    local script
    for script in "$@"; do
        # shellcheck disable=SC1090
        . <(grep -vE '^(run_parts|\. /share/lib\.sh)' "/share/$script")
    done
}

# Runs every part of the list in PARTS, or, given a name, that one in this shell.
run_parts() {
    if [ $# -gt 0 ]; then
        trap end_jobs EXIT
        trap 'echo "FAIL: line $LINENO of ${BASH_SOURCE##*/}: $BASH_COMMAND" >&2' ERR
        "part_${1//-/_}"
        baseline_check
        # Neither guest goes on before the target was looked at.
        [ -z "$GUEST" ] || [ -e /run/state/ended ] || meet "$1-checked"
        exit 0
    fi
    local name limit failed=0 since
    machine_up
    target_start
    if declare -F prepare >/dev/null; then prepare; fi
    sleep 0.5
    baseline_save
    for name in $PARTS; do
        limit=LIMIT_${name//-/_}
        since=$EPOCHREALTIME
        if timeout -k 3 "${!limit:-$PART_LIMIT}" bash "$0" "$name" 2>&1 | sed 's/^/  /'; then
            echo "part $name took $(since "$since") s"
            echo "part $name ok"
        else
            failed=1
            echo "part $name FAILED after $(since "$since") s"
            show_state
            clean_up
        fi
    done
    exit $failed
}

# What a part that fails leaves running would keep its output open, and so the part from ending. I/O
# that waits for a target ends when its controller does.
end_jobs() {
    local code=$? pid
    trap - EXIT ERR
    if [ "$code" != 0 ]; then
        [ -z "$GUEST" ] || tell failed
        for pid in $(jobs -p); do
            pkill -P "$pid" || true
            kill "$pid" 2>/dev/null || true
        done
        timeout -k 1 15 nvme disconnect-all || true
    fi
    exit "$code"
}

since() {
    awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'
}

# What a person needs to see of a part that failed.
show_state() {
    echo "--- kernel log:"
    dmesg | tail -25
    if [ -e /run/uevents ]; then
        echo "--- events of the kernel since they were last looked at:"
        tail -25 /run/uevents
    fi
    echo "--- target:"
    target_log | tail -25
    echo "---"
}

# Gives the next part a fresh start after one that failed.
clean_up() {
    umount /mnt/demo 2>/dev/null || true
    timeout -k 1 15 nvme disconnect-all || true
    target_ensure || true
}
