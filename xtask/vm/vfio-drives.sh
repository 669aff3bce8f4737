# Emulated NVMe drives behind an emulated IOMMU: finding them, handing them over, pulling them out.

PCI=/sys/bus/pci/devices
DRIVES=5       # as many as the case has
TOGETHER="3 4" # functions of one slot, which the IOMMU cannot tell apart

# Prints the addresses of all NVMe controllers, in their order.
drive_addresses() {
    local dir value
    for dir in "$PCI"/*; do
        attribute "$dir/class"
        if [ "$value" = 0x010802 ]; then echo "${dir##*/}"; fi
    done
}

# Notes which drive is where: root ports are counted, and functions of a port in their order.
drives_note() {
    local number=0 address
    mkdir -p /run/drives
    for address in $(drive_addresses); do
        echo "$address" >"/run/drives/$number"
        number=$((number + 1))
    done
    assert_eq "emulated drives" "$number" "$DRIVES"
    note "$number drives: $(cat /run/drives/* | tr '\n' ' ')"
}

# Prints the address of a drive: drive NUMBER
drive() {
    cat "/run/drives/$1"
}

# Prints the addresses of drives: drives NUMBER...
drives() {
    local number
    for number in "$@"; do drive "$number"; done
}

# Prints which driver has a drive, or nothing: driver_of NUMBER
driver_of() {
    local link
    link=$(readlink "$PCI/$(drive "$1")/driver") || return 0
    echo "${link##*/}"
}

driver_is() {
    [ "$(driver_of "$1")" = "$2" ]
}

# Gives drives to a driver by sysfs alone, as an administrator would by hand: drive_give DRIVER NUMBER...
drive_give() {
    local driver=$1 number address
    shift
    for number in "$@"; do
        address=$(drive "$number")
        echo "$driver" >"$PCI/$address/driver_override"
        if [ -e "$PCI/$address/driver" ]; then echo "$address" >"$PCI/$address/driver/unbind"; fi
        echo "$address" >/sys/bus/pci/drivers_probe
        wait_for 10 driver_is "$number" "$driver"
    done
}

# The block device that the kernel's driver makes of a drive's first namespace: drive_block NUMBER
drive_block() {
    local dir
    for dir in "$PCI/$(drive "$1")"/nvme/nvme*/nvme*n1; do
        [ -b "/dev/${dir##*/}" ] && echo "/dev/${dir##*/}" && return 0
    done
    return 1
}

# Has the machine pull a drive out or plug it in: hands remove|add NUMBER
hands() {
    local number answer
    number=${EPOCHREALTIME//[!0-9]/}
    echo "$*" >"/share/draft-$number"
    mv "/share/draft-$number" "/share/ask-$number"
    wait_for 80 test -e "/share/answer-$number"
    answer=$(cat "/share/answer-$number")
    rm "/share/answer-$number"
    assert_eq "the machine's answer to $*" "$answer" ok
}

# Whether the kernel sees a drive: drive_there NUMBER
drive_there() {
    [ -e "$PCI/$(drive "$1")" ]
}
