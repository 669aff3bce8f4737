# The daemon over drives of our own driver: taking them from the kernel, serving them, letting them go.

# Namespaces: a drive of 512-byte blocks, another, one of 4096, and a stripe of two drives. Beside them one of RAM,
# which nothing that befalls drives may disturb.
NAMESPACES=5

# The daemon starts without a drive.
target_start() {
    cp /share/nvmeof-tgt /run/bin/
    modprobe -a nvme nvme-tcp
    mkdir -p /run/target.d
    cat >/run/target.d/00-head <<END
reactors = "0-1"
[[listener]]
type = "tcp"
address = "127.0.0.1"
port = $PORT
$(rdma_listeners)
[[device]]
name = "ram0"
type = "ram"
size = "16MiB"
[[subsystem]]
nqn = "$DEMO"
allow-any-host = true
[[subsystem.namespace]]
nsid = 9
device = "ram0"
END
    daemon_start
}

prepare() {
    drives_note
    local number
    for number in 0 1 2 3 4; do wait_for 20 drive_block "$number"; done
}

drives_do() {
    /run/bin/nvmeof-tgt drives "$@"
}

# A command about drives that must be refused: drives_refused PATTERN ARGUMENTS...
drives_refused() {
    local pattern=$1 text
    shift
    if text=$(drives_do "$@" 2>&1); then fail "it was done: drives $*: $text"; fi
    assert_has "drives $*" "$text" "$pattern"
    note "$(head -2 <<<"$text" | tr '\n' ' ')"
}

# Has a namespace of the subsystem on a drive, or takes that away: serve NUMBER NSID; serve_not NUMBER
serve() {
    printf '[[subsystem.namespace]]\nnsid = %s\ndevice = "drive%s"\n' "$2" "$1" >"/run/target.d/51-drive$1"
    device_of "$1"
}

serve_not() {
    rm "/run/target.d/51-drive$1" "/run/target.d/81-drive$1"
}

device_of() {
    printf '[[device]]\nname = "drive%s"\ntype = "nvme"\npci = "%s"\n' "$1" "$(drive "$1")" \
        >"/run/target.d/81-drive$1"
}

# Reloads and waits until the daemon says that it did.
reload_waits() {
    local before
    before=$(wc -l <"$DAEMON_LOG")
    daemon_reload
    wait_for 40 reloaded_since "$before"
    if log_since "$before" | grep 'reload rejected'; then fail "the daemon refuses the configuration"; fi
}

reloaded_since() {
    [ -n "$(log_since "$1" | grep -E 'config (reloaded|reload rejected)')" ]
}

log_since() {
    tail -n "+$(($1 + 1))" "$DAEMON_LOG"
}

# Whether the daemon has let go of a drive: drive_free NUMBER
drive_free() {
    local group
    group=$(basename "$(readlink "$PCI/$(drive "$1")/iommu_group")")
    [ -z "$(find "/proc/$(daemon_pid)/fd" -lname "/dev/vfio/$group")" ]
}

# Hands all drives from the kernel to the daemon, by our own command, and serves them.
drives_serve() {
    local number
    # By address and by serial number.
    # shellcheck disable=SC2046
    drives_do bind $(drives 0 1 2) DRIVE3 DRIVE4
    for number in 0 1 2 3 4; do
        driver_is "$number" vfio-pci || fail "drive $number is with '$(driver_of "$number")'"
    done
    assert_eq "block devices of drives" "$(ls /sys/class/nvme)" ""
    serve 0 1
    serve 1 2
    serve 2 3
    device_of 3
    device_of 4
    cat >/run/target.d/90-stripe <<END
[[device]]
name = "stripe0"
type = "stripe"
members = ["drive3", "drive4"]
chunk = "64KiB"
END
    printf '[[subsystem.namespace]]\nnsid = 4\ndevice = "stripe0"\n' >/run/target.d/52-stripe
    reload_waits
    connect "$DEMO"
    ns_wait "$DEMO" 4 >/dev/null
    assert_eq "namespaces" "$(ns_count "$DEMO")" "$NAMESPACES"
    assert_eq "bytes of drive 0" "$(blockdev --getsize64 "$(ns_dev "$DEMO" 1)")" $((128 << 20))
    assert_eq "block of drive 2" "$(blockdev --getss "$(ns_wait "$DEMO" 3)")" 4096
    assert_eq "bytes of the stripe" "$(blockdev --getsize64 "$(ns_wait "$DEMO" 4)")" $((256 << 20))
    disconnect "$DEMO"
    sleep 1
    baseline_save
}
