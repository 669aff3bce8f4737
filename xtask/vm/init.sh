#!/bin/busybox sh
# First program of the guest: reaches the host's files by 9p, lays a writable layer over them, runs
# the boot's script in there and reports its end to QEMU.
/bin/busybox --install -s /bin
export PATH=/bin

# Ends the machine. QEMU exits with (code << 1) | 1.
report() {
    printf "\\x$(printf %02x "$1")" | dd of=/dev/port bs=1 seek=1281 count=1 2>/dev/null
    sleep 5
    poweroff -f
}

echo # the firmware left its line open
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for word in $(cat /proc/cmdline); do
    case $word in
    nvmeof.limit=*) limit=${word#*=} ;;
    nvmeof.root=*) root=${word#*=} ;;
    esac
done
while read -r module; do
    insmod "/modules/$module" || report 120
done </modules/order

options=trans=virtio,version=9p2000.L,msize=262144

# A Debian of its own: its systemd runs the script (guest.service), which reports the end.
if [ -n "$root" ]; then
    mount -t ext4 "$root" /new || report 125
    mkdir -p /new/share "/new/lib/modules/$(uname -r)"
    mount -t 9p -o $options share /new/share || report 123
    mount -t 9p -o $options,ro,cache=loose modules "/new/lib/modules/$(uname -r)" || report 123
    dmesg -n 1
    umount /proc /sys
    mount -o move /dev /new/dev
    exec switch_root /new /sbin/init
fi

# Leaves the guest's state in the log and ends it with a code: give_up CODE WHAT
give_up() {
    echo "GAVE UP: $2; tasks that wait:"
    echo w >/proc/sysrq-trigger
    ps -o pid,ppid,stat,args | grep -v '\[' | tail -30
    dmesg | tail -60
    report "$1"
}

# Waits until the kernel waits for nobody, for so many seconds: where it removes a disk (del_gendisk), for calls into the
# disk's driver to end (__synchronize_srcu) that no task is in, on processors that have nothing to do in nine tenths of
# the time. The emulated one
# does that now and then as a connection ends, with the kernel's own target, too, and does not go on. No target can bring it
# about: what is in flight has ended by then, and such a call waits for no answer. (Not for a guest with a root of its
# own: that one has left this script.)
wait_for_nobody() {
    local waits before= since=0 idle
    while :; do
        idle=$(idle_ticks)
        sleep 5 || continue
        waits=$(grep -ls del_gendisk /dev/null $(grep -ls __synchronize_srcu /proc/[0-9]*/task/[0-9]*/stack))
        if [ -z "$waits" ] || [ "$waits" != "$before" ] || [ $(($(idle_ticks) - idle)) -lt $((450 * processors)) ] ||
            grep -lsE 'blk_mq_|_queue_rq' /proc/[0-9]*/task/[0-9]*/stack | grep -qvxF "$waits"; then
            before=$waits
            since=0
        elif [ $((since += 5)) -ge "$1" ]; then
            grep -Hs . $waits
            return
        fi
    done
}

# How long all processors together had nothing to do, in hundredths of a second.
idle_ticks() {
    local name user nice system idle rest
    read -r name user nice system idle rest </proc/stat
    echo "$idle"
}

processors=$(grep -c '^cpu[0-9]' /proc/stat)
(
    wait_for_nobody 60
    give_up 119 "the kernel waits for calls that no task is in"
) &

# The script's own end comes first. Before it has made the file `up` it has run nothing that is under test.
(
    up=120
    [ "${limit:=600}" -ge $up ] || up=$limit
    sleep $up
    [ -e /new/run/up ] || give_up 126 "the machine was not up after $up s"
    sleep $((limit - up))
    give_up 124 "the script did not end within $limit s"
) &

mount -t 9p -o $options,ro,cache=loose host /host || report 121
mount -t tmpfs tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/host,upperdir=/upper/files,workdir=/upper/work overlay /new || report 122
for dir in proc sys dev tmp run mnt share "lib/modules/$(uname -r)"; do mkdir -p "/new/$dir"; done
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -o bind /dev /new/dev
mkdir -p /dev/pts /dev/shm
ln -sf /proc/self/fd /dev/fd
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /new/tmp
mount -t tmpfs tmpfs /new/run
mount -t 9p -o $options share /new/share || report 123
mount -t 9p -o $options,ro,cache=loose modules "/new/lib/modules/$(uname -r)" || report 123

# From here on the kernel's messages stay in its log: on the line they would cut the script's own.
# A panic is still shown.
dmesg -n 1

# The kernel asks for modules in this root, where there are none.
printf '#!/bin/sh\nexec chroot /new /sbin/modprobe "$@"\n' >/modprobe
chmod +x /modprobe
echo /modprobe >/proc/sys/kernel/modprobe

# iproute2's `ip` from the host, as the other programs: busybox is not in this PATH.
env -i HOME=/tmp TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot /new /bin/bash /share/run.sh
report $?
