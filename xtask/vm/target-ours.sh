# Our daemon as the target. Its configuration is made of pieces under /run/target.d, so that a script
# can add and remove some and reload.

DAEMON=/run/bin/nvmeof-tgt
CONFIG=/run/target.toml
DAEMON_LOG=/share/daemon.log
DAEMON_OUT=/share/daemon.out

target_start() {
    cp /share/nvmeof-tgt /share/nvmeof-perf /run/bin/
    mkdir -p /run/target.d
    cat >/run/target.d/00-head <<EOF
reactors = "0-$(($(nproc) - 1))"
${MORE_CONFIG:-}
[[listener]]
type = "tcp"
address = "127.0.0.1"
port = $PORT
[[listener]]
type = "tcp"
address = "::1"
port = $PORT
$(rdma_listeners)
[[device]]
name = "ram512"
type = "ram"
size = "128MiB"
block-size = 512
[[device]]
name = "ram4096"
type = "ram"
size = "128MiB"
block-size = 4096
[[device]]
name = "null0"
type = "null"
size = "1GiB"
block-size = 512
[[device]]
name = "file0"
type = "file"
path = "/mnt/backing/file0.raw"
create = true
size = "96MiB"
block-size = 512
[[device]]
name = "disk0"
type = "file"
path = "$DISK_RAW"
block-size = 512
[[device]]
name = "spare"
type = "ram"
size = "32MiB"
block-size = 512
EOF
    cat >/run/target.d/50-demo <<EOF
[[subsystem]]
nqn = "$DEMO"
allow-any-host = true
serial = "DEMO0001"
model = "nvmeof-tgt demo"
[[subsystem.namespace]]
nsid = 1
device = "ram512"
[[subsystem.namespace]]
nsid = 2
device = "ram4096"
[[subsystem.namespace]]
nsid = 3
device = "null0"
[[subsystem.namespace]]
nsid = 4
device = "file0"
[[subsystem.namespace]]
nsid = 5
device = "disk0"
EOF
    cat >/run/target.d/70-private <<EOF
[[device]]
name = "private0"
type = "ram"
size = "16MiB"
[[subsystem]]
nqn = "$DEMO-private"
hosts = ["nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"]
[[subsystem.namespace]]
nsid = 1
device = "private0"
EOF
    daemon_start
}

# TCP is served whatever the fabric under test.
rdma_listeners() {
    [ "$FABRIC" = rdma ] || return 0
    local address
    for address in $ADDRESS $ADDRESS6; do
        printf '[[listener]]\ntype = "rdma"\naddress = "%s"\nport = %s\n%s\n' "$address" "$PORT" \
            "${RDMA_LISTENER:-}"
    done
}

# Starts the daemon on the configuration as it is and waits until it serves.
daemon_start() {
    cat /run/target.d/* >"$CONFIG"
    # A file each life: 9p does not tell a reader that another writer appended.
    : >"$DAEMON_OUT"
    rm -f /run/state/exit
    # A keeper in a session of its own outlives the part that starts it, and keeps the exit code. It
    # must not hold the part's output open: that would be the part that never ends.
    # shellcheck disable=SC2016
    ${DAEMON_PREFIX:-} setsid bash -c '
        "$1" --config "$2" >>"$3" 2>>"$4" </dev/null &
        echo $! >/run/state/pid
        code=0
        wait $! || code=$?
        echo $code >/run/state/exit
    ' keeper "$DAEMON" "$CONFIG" "$DAEMON_OUT" "$DAEMON_LOG" \
        >/dev/null 2>&1 </dev/null &
    wait_for 20 grep -q "^ready .*$FABRIC://" "$DAEMON_OUT"
}

daemon_pid() {
    cat /run/state/pid
}

daemon_alive() {
    kill -0 "$(daemon_pid)" 2>/dev/null
}

daemon_reload() {
    cat /run/target.d/* >"$CONFIG"
    kill -HUP "$(daemon_pid)"
}

target_ensure() {
    daemon_alive || daemon_start
}

target_log() {
    cat "$DAEMON_OUT" "$DAEMON_LOG"
}

# Adds namespace NSID on the spare device.
target_add_ns() {
    printf '[[subsystem.namespace]]\nnsid = %s\ndevice = "spare"\n' "$1" >"/run/target.d/51-ns-$1"
    daemon_reload
}

target_remove_ns() {
    rm "/run/target.d/51-ns-$1"
    daemon_reload
}

target_add_subsystem() {
    printf '[[device]]\nname = "extra"\ntype = "ram"\nsize = "16MiB"\n' >/run/target.d/80-extra
    printf '[[subsystem]]\nnqn = "%s"\nallow-any-host = true\n' "$1" >>/run/target.d/80-extra
    printf '[[subsystem.namespace]]\nnsid = 1\ndevice = "extra"\n' >>/run/target.d/80-extra
    daemon_reload
}

# Adds a subsystem whose namespace takes so long for each command, or changes that: target_slow NQN TIME
target_slow() {
    cat >/run/target.d/81-slow <<EOF
[[device]]
name = "slow-base"
type = "ram"
size = "64MiB"
[[device]]
name = "slow"
type = "delay"
base = "slow-base"
read-latency = "$2"
write-latency = "$2"
[[subsystem]]
nqn = "$1"
allow-any-host = true
[[subsystem.namespace]]
nsid = 1
device = "slow"
EOF
    daemon_reload
}

# Adds a subsystem without namespaces.
target_add_empty() {
    printf '[[subsystem]]\nnqn = "%s"\nallow-any-host = true\n' "$1" >/run/target.d/82-empty
    daemon_reload
}

target_remove_subsystem() {
    rm /run/target.d/80-extra
    daemon_reload
}

# Ends the daemon without a word, and starts another.
target_kill() {
    kill -KILL "$(daemon_pid)"
    wait_for 5 no daemon_alive
}

target_restart() {
    daemon_start
}

# What the daemon holds: open files, sockets, its own counts, and what the kernel keeps for it. The
# pool's chunks come and go, and each is one memory region: only regions beside them are told.
CHUNK=$((2 << 20))

target_sizes() {
    local pid files counts fabric memory
    pid=$(daemon_pid)
    files=$(find "/proc/$pid/fd" -mindepth 1 -printf '%l\n' |
        awk '/^socket:/ { sockets++ } END { printf "fds=%d sockets=%d", NR, sockets }')
    counts=$(daemon_counts) || return 1
    fabric=$(fabric_sizes) || return 1
    memory=$(grep '^counts ' "$DAEMON_LOG" | tail -1)
    [[ $memory =~ buffer_memory=([0-9]+) ]] || fail "no buffer_memory= in '$memory'"
    memory=${BASH_REMATCH[1]}
    case $fabric in
    *mr=*) fabric="${fabric% mr=*} mr=$((${fabric##*mr=} - memory / CHUNK))+pool" ;;
    esac
    echo "$files $counts$fabric"
}

target_at_rest() {
    [ "$(target_sizes)" = "$(cat /run/state/baseline)" ]
}

# Asks the daemon for its counts and prints the four of the contract.
daemon_counts() {
    local before line word result=
    before=$(grep -c '^counts ' "$DAEMON_LOG" || true)
    kill -USR1 "$(daemon_pid)"
    wait_for 5 more_counts_than "$before"
    line=$(grep '^counts ' "$DAEMON_LOG" | tail -1)
    for word in buffers permits connections requests; do
        [[ " $line " =~ \ $word=([0-9]+)\  ]] || fail "no $word= in the daemon's '$line'"
        result+="$word=${BASH_REMATCH[1]} "
    done
    echo "${result% }"
}

more_counts_than() {
    [ "$(grep -c '^counts ' "$DAEMON_LOG")" -gt "$1" ]
}

daemon_count() {
    local counts
    counts=$(daemon_counts)
    [[ " $counts " =~ \ $1=([0-9]+)\  ]] && echo "${BASH_REMATCH[1]}"
}

# The last part of every boot: nothing is held any more, and the daemon ends well when asked to.
leaks_and_exit() {
    assert_eq "controllers left" "$(ls /sys/class/nvme)" ""
    assert_has "the baseline" "$(cat /run/state/baseline)" \
        'buffers=0 permits=0 connections=0 requests=0( |$)'
    baseline_check
    note "after everything: $(target_sizes)"
    local pid fabric
    pid=$(daemon_pid)
    kill -TERM "$pid"
    wait_for 15 no daemon_alive
    wait_for 5 test -s /run/state/exit
    assert_eq "exit code after SIGTERM" "$(cat /run/state/exit)" 0
    fabric=$(fabric_sizes)
    assert_has "left in the kernel" "$fabric " '^( [a-z_]+=0)* $'
    : >/run/state/ended
}
