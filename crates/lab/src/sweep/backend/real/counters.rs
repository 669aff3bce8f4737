//! Kernel counters of a machine: a process's CPU time, bytes on an interface, retransmissions.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::machine::RemoteMachine;

/// Network counters to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TargetInterface {
    /// Interface that has the target's address.
    pub(super) interface: String,
}

/// Sums since the machine started.
#[derive(Debug, Clone)]
pub(super) struct KernelCounters {
    at: Instant,
    /// CPU nanoseconds of the process's threads.
    cpu: u64,
    /// Bytes of the interface's counter; those of the RDMA device if it has its own.
    sent: u64,
    received: u64,
    dropped: u64,
    retransmitted: u64,
    /// Retries because a receiver was not ready, if an RDMA device counts them.
    rnr: Option<u64>,
}

/// Differences between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CounterChange {
    /// CPUs in use.
    pub(super) cpus: f64,
    /// Gb/s.
    pub(super) sent_gbps: f64,
    pub(super) received_gbps: f64,
    pub(super) dropped: u64,
    pub(super) retransmitted: u64,
    pub(super) rnr: Option<u64>,
}

impl TargetInterface {
    /// Finds the interface of a machine that has this address.
    pub(super) fn of(machine: &RemoteMachine, address: std::net::IpAddr) -> Result<Self> {
        let text = machine.query("ip -o addr show")?;
        let interface = interface(&text, address);
        let interface = interface.with_context(|| {
            format!("no interface of {machine} has the target's address {address}")
        })?;
        Ok(Self { interface })
    }
}

/// Parses `ip -o addr show`: `2: eth0    inet 10.0.0.1/24 ...`.
fn interface(text: &str, address: std::net::IpAddr) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (name, _family, own) = (words.next()?, words.next()?, words.next()?);
        let own = own.split('/').next()?.parse::<std::net::IpAddr>().ok()?;
        // A name can include the name of the device below it.
        let name = name.split('@').next()?;
        let loopback = own.is_loopback() && address.is_loopback();
        (own == address || loopback).then(|| name.to_owned())
    })
}

const MARK: &str = "==";

impl KernelCounters {
    pub(super) fn read(machine: &RemoteMachine, pid: u32, wire: &TargetInterface) -> Result<Self> {
        let interface = &wire.interface;
        // An RDMA device counts words of four bytes, which the interface does not count.
        let script = format!(
            "cat /proc/{pid}/task/*/schedstat; echo {MARK}; \
             cat /sys/class/net/{interface}/statistics/tx_bytes /sys/class/net/{interface}/statistics/rx_bytes \
             /sys/class/net/{interface}/statistics/tx_dropped /sys/class/net/{interface}/statistics/rx_dropped; \
             echo {MARK}; grep '^Tcp:' /proc/net/snmp; echo {MARK}; \
             for d in /sys/class/infiniband/*/ports/*/; do \
             if grep -qx {interface} $d/gid_attrs/ndevs/0 2>/dev/null; then \
             echo xmit $(cat $d/counters/port_xmit_data 2>/dev/null); \
             echo rcv $(cat $d/counters/port_rcv_data 2>/dev/null); \
             echo rnr $(cat $d/hw_counters/rnr_nak_retry_err $d/hw_counters/send_rnr_err 2>/dev/null | head -n 1); \
             fi; done; true"
        );
        let text = machine.query(&script)?;
        Self::parse(&text).with_context(|| format!("what {machine} counts is not understood"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut parts =
            text.split(&format!("{MARK}\n")).map(str::to_owned).collect::<Vec<_>>().into_iter();
        let (tasks, net, snmp, rdma) =
            (parts.next(), parts.next(), parts.next(), parts.next().unwrap_or_default());
        let (tasks, net) = (tasks.unwrap_or_default(), net.unwrap_or_default());
        let first = |line: &str| line.split_whitespace().next()?.parse::<u64>().ok();
        let cpu: u64 = tasks.lines().filter_map(first).sum();
        ensure!(cpu > 0, "no CPU time");
        let numbers: Vec<u64> = net.lines().filter_map(first).collect();
        let [sent, received, dropped_out, dropped_in] = numbers[..] else {
            anyhow::bail!("not four numbers of an interface")
        };
        let named = |name: &str| {
            let line = rdma.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let words =
            |bytes: u64, name: &str| named(name).map_or(bytes, |words| bytes.max(words * 4));
        Ok(Self {
            at: Instant::now(),
            cpu,
            sent: words(sent, "xmit "),
            received: words(received, "rcv "),
            dropped: dropped_out + dropped_in,
            retransmitted: retransmitted(&snmp.unwrap_or_default()).unwrap_or(0),
            rnr: named("rnr "),
        })
    }

    /// Returns the differences since `before`.
    pub(super) fn since(&self, before: &Self) -> CounterChange {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-9);
        let of = |now: u64, then: u64| now.saturating_sub(then);
        #[expect(clippy::cast_precision_loss, reason = "rates")]
        let rate = |now: u64, then: u64| of(now, then) as f64 / seconds;
        CounterChange {
            cpus: rate(self.cpu, before.cpu) / 1e9,
            sent_gbps: rate(self.sent, before.sent) * 8.0 / 1e9,
            received_gbps: rate(self.received, before.received) * 8.0 / 1e9,
            dropped: of(self.dropped, before.dropped),
            retransmitted: of(self.retransmitted, before.retransmitted),
            rnr: self.rnr.zip(before.rnr).map(|(now, then)| of(now, then)),
        }
    }
}

/// Returns the segments that TCP retransmitted, from two lines: names and values.
fn retransmitted(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines();
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "RetransSegs")?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "1000000000 5 5\n500000000 1 1\n==\n100\n200\n0\n0\n==\nTcp: A RetransSegs\nTcp: 1 7\n==\n";
    const AFTER: &str = "2000000000 5 5\n500000000 1 1\n==\n1100\n700\n1\n2\n==\nTcp: A RetransSegs\nTcp: 1 9\n==\nxmit 1000\nrcv\nrnr 3\n";

    #[test]
    fn what_happened_between_two_moments() {
        let (before, mut after) =
            (KernelCounters::parse(BEFORE).unwrap(), KernelCounters::parse(AFTER).unwrap());
        after.at = before.at + std::time::Duration::from_secs(2);
        let change = after.since(&before);
        assert_eq!(change.cpus, 0.5);
        assert_eq!(change.sent_gbps, f64::from((4000 - 100) * 4) / 1e9, "the device's words");
        assert_eq!(change.received_gbps, f64::from(500 * 4) / 1e9);
        assert_eq!((change.dropped, change.retransmitted, change.rnr), (3, 2, None));
        for bad in ["", "==\n1\n2\n3\n4\n", "1 1 1\n==\n1\n2\n"] {
            assert!(KernelCounters::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_interface_of_an_address() {
        let text = "1: lo    inet 127.0.0.1/8 scope host lo\n2: e0@if3    inet 10.0.0.1/24 brd x scope global e0\n3: e1    inet6 fe80::1/64 scope link\n";
        let of = |address: &str| interface(text, address.parse().unwrap());
        assert_eq!(of("10.0.0.1").as_deref(), Some("e0"));
        assert_eq!(of("fe80::1").as_deref(), Some("e1"));
        assert_eq!(of("127.0.0.9").as_deref(), Some("lo"));
        assert_eq!(of("10.0.0.2"), None);
    }

    #[test]
    fn this_machine_counts() {
        let wire =
            TargetInterface::of(&RemoteMachine::Local, "127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(wire.interface, "lo");
        KernelCounters::read(&RemoteMachine::Local, std::process::id(), &wire).unwrap();
    }
}
