#!/bin/bash
# The package from its installation to its removal, on Debian 12, as the operator's pages tell it, over a reboot.
# root: bookworm
# limit: 900
# parts: system install sandbox first refused hosts rdma operate written pages
# parts: as-it-was upgrade rollback remove purge
. /share/deb-lib.sh

DISKS=nqn.2026-11.org.example:disks

part_system() {
    wait_for 60 systemctl is-system-running --wait || true
    note "systemd $(systemctl --version | awk 'NR == 1 { print $2 }') after $(cut -d. -f1 /proc/uptime) s: $(systemctl is-system-running || true)"
    assert_eq "failed units" "$(systemctl list-units --failed --no-legend | wc -l)" 0
    cp "$PACKAGE" $WORK/
}

part_install() {
    run_page install.md
    active || fail "the daemon does not run after its installation"
    dpkg --verify nvmeof-tgt
    assert_eq "conffiles" "$(dpkg-query -W -f '${Conffiles}\n' nvmeof-tgt | grep -c /etc/)" 1
}

# What the unit promises, as the kernel has it.
part_sandbox() {
    local pid status
    pid=$(main_pid)
    status=$(cat "/proc/$pid/status")
    assert_has "capabilities" "$status" '^CapEff:\s+0+$'
    assert_has "capabilities" "$status" '^CapBnd:\s+0+$'
    assert_has "new privileges" "$status" '^NoNewPrivs:\s+1$'
    assert_has "calls" "$status" '^Seccomp:\s+2$'
    assert_eq "the user" "$(stat -c %U "/proc/$pid")" nvmeof-tgt
    assert_has "locked memory" "$(cat "/proc/$pid/limits")" 'Max locked memory +unlimited'
    # The group `disk` owns every disk of the machine; and what the kernel ends last has a bound of its own.
    assert_eq "the group of all disks" "$(grep '^Groups:' <<<"$status" | grep -cw "$(getent group disk | cut -d: -f3)")" 0
    [ "$(systemctl show -p MemoryMax --value $UNIT)" != infinity ] || fail "the daemon's memory has no bound"
    note "$(systemd-analyze security --no-pager $UNIT | tail -1)"
    # A daemon that hangs is ended and started again; that the watchdog is on is enough here.
    assert_eq "the watchdog" "$(systemctl show -p WatchdogUSec --value $UNIT)" 30s
}

part_first() {
    run_page first-namespace.md
}

# A reload of a config that is wrong fails, says why, and changes nothing.
part_refused() {
    local before config=/etc/nvmeof-tgt/target.toml
    before=$(nvmeofctl config show)
    cp -a $config $WORK/kept
    printf 'nonsense = 1\n' >>$config
    no systemctl reload $UNIT || fail "a config with an unknown key was reloaded"
    assert_has "the log" "$(journalctl --no-pager -u $UNIT -n 20)" 'nonsense'
    active || fail "the daemon ended for a config that it was to refuse"
    assert_eq "the config" "$(nvmeofctl config show)" "$before"
    cp -a $WORK/kept $config
    systemctl reload $UNIT
}

part_hosts() {
    run_page hosts.md
}

part_rdma() {
    run_page rdma.md rdma
    wait_for 10 nvme discover -t rdma -a 192.0.2.10 -s 4420
    nvme connect -t rdma -a 192.0.2.10 -s 4420 -n $DISKS
    ns_wait $DISKS 1 >/dev/null
    nvme disconnect -n $DISKS
}

part_operate() {
    local got
    run_page operate.md | tee $WORK/operate.out
    # The load as the host that is capped at 500 commands a second, and a burst.
    got=$(awk '$1 == "total" { gsub(",", "", $2); print $2; exit }' $WORK/operate.out)
    note "the capped host got ${got:-nothing} commands a second of 500"
    [ "${got:-0}" -gt 100 ] && [ "$got" -lt 600 ] || fail "the cap of 500 commands a second does not hold: ${got:-no total}"
    assert_has "top" "$(cat $WORK/operate.out)" '^nqn\.2026-11\.org\.example:greedy'
    grep -q 'fetch("v1/stats"' $WORK/status.html || fail "the status page does not ask for its figures"
    grep -q 'example:greedy' $WORK/stats.json || fail "the page's figures do not name the host"
}

part_pages() {
    run_page limits.md
    run_page sizing.md
    run_page import.md
    run_page troubleshooting.md
}

# What a host writes, to be found again.
part_written() {
    local nsid dev
    dd if=/dev/urandom of=$WORK/written bs=1M count=4 status=none
    nvme connect -t tcp -a 192.0.2.10 -s 4420 -n $DISKS
    for nsid in 1 2; do
        dev=$(ns_wait $DISKS $nsid)
        dd if=$WORK/written of="$dev" bs=1M oflag=direct conv=fsync status=none
    done
    looks_at_boot
    ls /dev/disk/by-id/ >$WORK/names
    nvmeofctl config show >$WORK/config
    nvme disconnect -n $DISKS
}

# A program that has the drive open when it is to be taken from the kernel, for longer than udev on a slow machine.
looks_at_boot() {
    cat >/etc/systemd/system/looks.service <<'UNIT'
[Unit]
Before=nvmeof-tgt-drive@0000:01:00.0.service
[Service]
Type=forking
ExecStart=/bin/sh -c 'until [ -b /dev/nvme0n1 ]; do sleep 0.1; done; exec 9</dev/nvme0n1; sleep 8 &'
[Install]
WantedBy=multi-user.target
UNIT
    systemctl enable looks.service
}

same_data() {
    local nsid dev
    for nsid in 1 2; do
        dev=$(ns_wait $DISKS $nsid)
        dd if="$dev" bs=1M count=4 iflag=direct status=none | cmp - $WORK/written
    done
}

part_as_it_was() {
    active_within 30
    assert_eq "who looked" "$(systemctl show -p ExecMainStatus --value looks.service)" 0
    note "taken from the kernel $(systemctl show -p ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic \
        --value nvmeof-tgt-drive@0000:01:00.0.service | paste -sd- | awk -F- '{ print ($2 - $1) / 1e6 }') s after the first try"
    run_page operate.md reboot
    diff $WORK/config <(nvmeofctl config show)
    nvme connect -t tcp -a 192.0.2.10 -s 4420 -n $DISKS
    same_data
    udevadm settle
    diff <(grep nvme-uuid $WORK/names) <(ls /dev/disk/by-id/ | grep nvme-uuid)
}

part_upgrade() {
    local before
    before=$(main_pid)
    cp "$NEWER" $WORK/
    run_page upgrade.md
    run_page upgrade.md upgrade
    assert_eq "the version" "$(dpkg-query -W -f '${Version}' nvmeof-tgt)" 0.1.0-2
    [ "$(main_pid)" != "$before" ] || fail "the old daemon still runs"
    wait_for 30 controller_live $DISKS
    same_data
}

part_rollback() {
    run_page upgrade.md rollback
    assert_eq "the version" "$(dpkg-query -W -f '${Version}' nvmeof-tgt)" 0.1.0-1
    wait_for 30 controller_live $DISKS
    same_data
}

part_remove() {
    nvme disconnect-all
    run_page upgrade.md remove
    [ "$(systemctl is-active $UNIT)" != active ] || fail "the daemon runs on"
    [ -e /etc/nvmeof-tgt/target.toml ] || fail "a removal took the config"
    ! command -v nvmeof-tgt || fail "the daemon is still there"
}

part_purge() {
    local left
    # What the walk itself has put there.
    rm -r /etc/systemd/system/nvmeof-tgt.service.d /etc/nvmeof-tgt/target.toml.before
    apt-get purge -y nvmeof-tgt
    left=$(find / -xdev -name '*nvmeof*' -not -path '/share/*' -not -path "$WORK/*" -not -path '/var/log/*' -not -path '/tmp/*')
    assert_eq "what a purge left" "$left" ""
}

if [ $# -gt 0 ]; then run_one "$1"; fi
case $(cat /var/lib/guest-phase 2>/dev/null) in
'')
    echo 1 >/var/lib/guest-phase
    run_phase system install sandbox first refused hosts rdma operate written pages
    echo "--- rebooting"
    systemctl reboot
    ;;
1)
    echo 2 >/var/lib/guest-phase
    run_phase as-it-was upgrade rollback remove purge
    report 0
    ;;
*)
    echo "FAIL: it booted once more than it was told"
    report 1
    ;;
esac
