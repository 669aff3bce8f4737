#!/bin/bash
# The same package on Debian 13: installed, started, used, removed.
# root: trixie
# limit: 700
# parts: system install use remove
. /share/deb-lib.sh

part_system() {
    wait_for 60 systemctl is-system-running --wait || true
    . /etc/os-release
    assert_eq "the release" "$VERSION_ID" 13
    note "$PRETTY_NAME, glibc $(ldd --version | awk 'NR == 1 { print $NF }')"
}

part_install() {
    apt-get install -y "$PACKAGE"
    active || fail "the daemon does not run after its installation"
    nvmeofctl --version
}

part_use() {
    cat >>/etc/nvmeof-tgt/target.toml <<'CONFIG'
[[device]]
name = "ram0"
type = "ram"
size = "64MiB"
[[subsystem]]
nqn = "nqn.2026-11.org.example:memory"
allow-any-host = true
[[subsystem.namespace]]
nsid = 1
device = "ram0"
CONFIG
    systemctl reload $UNIT
    wait_for 10 nvmeof-perf run --connect tcp://127.0.0.1:4420/nqn.2026-11.org.example:memory \
        --rw randrw:50 --bs 4k --qd 8 --time 1s --verify
}

part_remove() {
    apt-get purge -y nvmeof-tgt
    [ "$(systemctl is-active $UNIT)" != active ] || fail "the daemon runs on"
}

if [ $# -gt 0 ]; then run_one "$1"; fi
run_phase system install use remove
report 0
