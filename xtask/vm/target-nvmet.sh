# The guest kernel's own target, with the same subsystems and namespaces as ours where it can have
# them: proves the scripts, and is what ours is compared with.

NVMET=/sys/kernel/config/nvmet

target_start() {
    modprobe -a nvmet "nvmet-$FABRIC" brd null_blk
    # 512-byte RAM, 4096-byte RAM, null, file, disk: as target-ours.sh has them.
    nullb nullb1 blocksize=512 size=128 memory_backed=1
    nullb nullb2 blocksize=4096 size=128 memory_backed=1
    nullb nullb3 blocksize=512 size=1024 memory_backed=0
    nullb nullb4 blocksize=512 size=32 memory_backed=1
    truncate -s 96M /mnt/backing/file0.raw
    nvmet_subsystem "$DEMO" DEMO0001 1
    nvmet_namespace "$DEMO" 1 /dev/nullb1
    nvmet_namespace "$DEMO" 2 /dev/nullb2
    nvmet_namespace "$DEMO" 3 /dev/nullb3
    nvmet_namespace "$DEMO" 4 /mnt/backing/file0.raw
    nvmet_namespace "$DEMO" 5 "$DISK_RAW"
    nvmet_subsystem "$DEMO-private" PRIV0001 0
    nvmet_port 1 ipv4 "$ADDRESS"
    [ -z "$ADDRESS6" ] || nvmet_port 2 ipv6 "$ADDRESS6"
    target_restart
}

# Its ports serve what is linked there: without links it is as good as dead.
target_kill() {
    rm "$NVMET"/ports/*/subsystems/*
}

target_restart() {
    local port
    for port in "$NVMET"/ports/*; do
        ln -s "$NVMET/subsystems/$DEMO" "$port/subsystems/"
        ln -s "$NVMET/subsystems/$DEMO-private" "$port/subsystems/"
    done
}

# What the kernel keeps of the fabric for its target: queue pairs and connections, not what it
# keeps for the next connection.
target_sizes() {
    fabric_kernel_sizes
}

target_at_rest() {
    [ "$(target_sizes)" = "$(cat /run/state/baseline)" ]
}

nullb() {
    [ -d "/sys/kernel/config/nullb/$1" ] || mkdir "/sys/kernel/config/nullb/$1"
    local dir=/sys/kernel/config/nullb/$1 pair
    shift
    for pair in "$@"; do echo "${pair#*=}" >"$dir/${pair%%=*}"; done
    echo 1 >"$dir/power"
}

nvmet_subsystem() {
    mkdir "$NVMET/subsystems/$1"
    echo "$2" >"$NVMET/subsystems/$1/attr_serial"
    echo "nvmeof-tgt demo" >"$NVMET/subsystems/$1/attr_model"
    echo "$3" >"$NVMET/subsystems/$1/attr_allow_any_host"
}

nvmet_namespace() {
    local dir=$NVMET/subsystems/$1/namespaces/$2
    mkdir "$dir"
    echo -n "$3" >"$dir/device_path"
    echo 1 >"$dir/enable"
}

nvmet_port() {
    mkdir "$NVMET/ports/$1"
    echo "$FABRIC" >"$NVMET/ports/$1/addr_trtype"
    echo "$2" >"$NVMET/ports/$1/addr_adrfam"
    echo "$3" >"$NVMET/ports/$1/addr_traddr"
    echo "$PORT" >"$NVMET/ports/$1/addr_trsvcid"
}

target_ensure() {
    true
}

target_log() {
    echo "(nvmet logs to the kernel's log)"
}

target_add_ns() {
    nvmet_namespace "$DEMO" "$1" /dev/nullb4
}

target_remove_ns() {
    echo 0 >"$NVMET/subsystems/$DEMO/namespaces/$1/enable"
    rmdir "$NVMET/subsystems/$DEMO/namespaces/$1"
}

target_add_subsystem() {
    nvmet_subsystem "$1" EXTRA0001 1
    nvmet_namespace "$1" 1 /dev/nullb4
    ln -s "$NVMET/subsystems/$1" "$NVMET/ports/1/subsystems/"
}

# Adds a subsystem without namespaces.
target_add_empty() {
    nvmet_subsystem "$1" EMPTY001 1
    ln -s "$NVMET/subsystems/$1" "$NVMET/ports/1/subsystems/"
}

target_remove_subsystem() {
    rm "$NVMET/ports/1/subsystems/$1"
    rmdir "$NVMET/subsystems/$1/namespaces/1" "$NVMET/subsystems/$1"
}
