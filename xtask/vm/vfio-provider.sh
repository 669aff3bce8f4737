#!/bin/bash
# What VFIO hands over, and what it refuses and why, by the provider's own checks.
# parts: drives refused not-viable checks group-of-two busy no-permission locked-memory entry-limit
# parts: removal pulled-again
SERVES=nothing
. /share/lib.sh
. /share/vfio-drives.sh

prepare() {
    cp /share/vfio_probe /run/bin/
    modprobe nvme
    drives_note
}

# Tries to open a drive, which must be refused: refused_with PATTERN ADDRESS
refused_with() {
    local text
    if text=$(/run/bin/vfio_probe open "$2"); then fail "$2 was opened: $text"; fi
    assert_has "the reason" "$text" "$1"
    note "$text"
}

part_drives() {
    local number
    for number in 0 1 2 3 4; do
        wait_for 10 driver_is "$number" nvme
        wait_for 10 drive_block "$number"
    done
    assert_eq "groups" "$(for number in 0 1 2 3; do readlink "$PCI/$(drive "$number")/iommu_group"; done |
        sort -u | wc -l)" 4
    assert_eq "the groups of functions of one slot" \
        "$(readlink -f "$PCI/$(drive 3)/iommu_group")" "$(readlink -f "$PCI/$(drive 4)/iommu_group")"
}

# Each with its own message: bad address, no such function, no NVMe, the kernel's driver, no module.
part_refused() {
    local number
    refused_with '`nvme0` is no PCI address' nvme0
    refused_with 'no PCI function 0000:ff:1f.7' 0000:ff:1f.7
    refused_with 'no NVMe controller .PCI class 0x06' 0000:00:00.0
    refused_with 'bound to nvme, not to vfio-pci: .nvmeof-tgt drives bind' "$(drive 0)"
    modprobe vfio-pci
    drive_give vfio-pci 0
    number=$(basename "$(readlink "$PCI/$(drive 0)/iommu_group")")
    mv "/dev/vfio/$number" /dev/vfio/hidden
    refused_with "/dev/vfio/$number is not there.*modprobe vfio-pci" "$(drive 0)"
    mv /dev/vfio/hidden "/dev/vfio/$number"
    mv /dev/vfio/vfio /dev/vfio/hidden
    refused_with '/dev/vfio/vfio is not there.*modprobe vfio-pci' "$(drive 0)"
    mv /dev/vfio/hidden /dev/vfio/vfio
}

# A group that is not viable names who holds it up.
part_not_viable() {
    drive_give vfio-pci 3
    refused_with "IOMMU group [0-9]+ has functions that the kernel drives: $(drive 4) \(nvme\)" "$(drive 3)"
    drive_give nvme 3
}

# Registers, memory, interrupts and reset of all drives, open at the same time.
part_checks() {
    drive_give vfio-pci 0 1 2
    # shellcheck disable=SC2046
    probe check $(drives 0 1 2)
    assert_has "the checks" "$(cat /tmp/probe.txt)" 'serial `DRIVE0`'
    assert_has "the checks" "$(cat /tmp/probe.txt)" 'serial `DRIVE2`'
}

# Two functions of one group, in one process.
part_group_of_two() {
    drive_give vfio-pci 3 4
    # shellcheck disable=SC2046
    probe check $(drives 4 0 3)
    assert_has "the checks" "$(cat /tmp/probe.txt)" 'serial `DRIVE4`'
    drive_give nvme 3 4
}

# Runs the probe, which must pass at least twenty checks.
probe() {
    local passed
    /run/bin/vfio_probe "$@" >/tmp/probe.txt 2>&1 || fail "the probe: $(cat /tmp/probe.txt)"
    cat /tmp/probe.txt
    if grep '^FAIL' /tmp/probe.txt; then fail "a check of the probe failed"; fi
    passed=$(grep -c '^ok ' /tmp/probe.txt)
    [ "$passed" -ge 20 ] || fail "only $passed checks ran"
    note "$(tail -1 /tmp/probe.txt)"
}

# Has a process hold a drive, and yields it in $pid: hold NUMBER
hold() {
    # What one before it said must not be taken for what this one says.
    rm -f /tmp/hold.txt
    /run/bin/vfio_probe hold "$(drive "$1")" >/tmp/hold.txt &
    pid=$!
    wait_for 10 grep -q ^holding /tmp/hold.txt
}

part_busy() {
    local pid
    hold 1
    refused_with 'in use: another process has /dev/vfio/[0-9]+' "$(drive 1)"
    kill "$pid"
    wait "$pid" || true
    /run/bin/vfio_probe open "$(drive 1)"
}

# A user who may not.
part_no_permission() {
    local text
    if text=$(setpriv --reuid=65534 --regid=65534 --clear-groups /run/bin/vfio_probe open "$(drive 0)"); then
        fail "nobody opened it: $text"
    fi
    assert_has "the reason" "$text" '/dev/vfio/[0-9]+ may not be opened: run as root'
    note "$text"
}

# Without the right to lock memory the limit counts, and is named.
part_locked_memory() {
    local code=0
    setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \
        bash -c "ulimit -l 512; exec /run/bin/vfio_probe check $(drive 0)" >/tmp/probe.txt 2>&1 || code=$?
    assert_eq "exit code" "$code" 1
    assert_has "the checks" "$(cat /tmp/probe.txt)" \
        'FAIL .* mappings: 2097152 bytes more cannot be locked: the limit is 524288 bytes .`ulimit -l`'
    note "$(grep 'mappings:' /tmp/probe.txt | head -1)"
}

part_entry_limit() {
    local limit=/sys/module/vfio_iommu_type1/parameters/dma_entry_limit before code=0
    before=$(cat "$limit")
    echo 500 >"$limit"
    /run/bin/vfio_probe check "$(drive 0)" >/tmp/probe.txt 2>&1 || code=$?
    echo "$before" >"$limit"
    assert_eq "exit code" "$code" 1
    assert_has "the checks" "$(cat /tmp/probe.txt)" 'FAIL .*many mappings: page 500: .*raise dma_entry_limit'
    note "$(grep '^FAIL.*many mappings' /tmp/probe.txt)"
}

# The kernel asks for a drive, gets it, and it comes back; what is left of it reads as all ones.
part_removal() {
    local pid
    hold 1
    hands remove 1
    kill -0 "$pid" || fail "the drive went only when the process had ended"
    wait "$pid" || fail "$(cat /tmp/hold.txt)"
    assert_has "what became of it" "$(cat /tmp/hold.txt)" '^wanted back 0xffffffff$'
    wait_for 10 no drive_there 1
    refused_with 'no PCI function' "$(drive 1)"
    hands add 1
    wait_for 10 drive_there 1
    drive_give vfio-pci 1
    # shellcheck disable=SC2046
    probe check $(drives 0 1)
}

# One that nobody holds goes at once.
part_pulled_again() {
    hands remove 1
    wait_for 10 no drive_there 1
    hands add 1
    wait_for 10 drive_there 1
    drive_give nvme 0 1 2
    wait_for 10 drive_block 1
}

run_parts "$@"
