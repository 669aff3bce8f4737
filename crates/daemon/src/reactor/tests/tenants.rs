//! Hosts and namespaces with limits, in virtual time: only the commands over a limit wait.

use std::time::Duration;

use nvmeof_pacing::PolicyConfig;
use nvmeof_wire::Status;

use super::rig::{Host, Rig, pattern};

const KIB: u32 = 1024;
/// Bytes of each read, and blocks from one to the next.
const LEN: u32 = 64 * KIB;
const APART: u64 = 128;
const GREEDY: &str = "nqn.2026-11.org.example:greedy";
const MODEST: &str = "nqn.2026-11.org.example:modest";
const NAMESPACE: &str = "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = \"1MiB\"\n\
    [[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
    [[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\n";

/// Keeps `depth` reads in flight on each queue, and returns the number of completed ones.
fn keep_reading(hosts: &[Host], depth: usize) -> usize {
    let mut answered = 0;
    for host in hosts {
        answered += host.take().len();
        while host.outstanding() < depth {
            let Some(cid) = host.free_cid() else { break };
            host.read(cid, u64::from(cid) * APART, LEN);
        }
    }
    answered
}

/// Returns the numbers of reads that a greedy host and a modest host complete in 200 ms.
///
/// The greedy host has many connections and deep queues. The modest host keeps `depth` reads in
/// flight. The device takes a millisecond per read, behind a budget of 16 reads.
fn share_with(limits: &str, depth: usize) -> (usize, usize) {
    let mut rig = Rig::new(None);
    let mut tenants = Rig::tenants();
    rig.limit(&mut tenants, limits);
    let greedy = rig.connect_named(GREEDY, 12);
    let modest = rig.connect_named(MODEST, 1);
    rig.set_policy(&PolicyConfig::BufferCredit { budget: 1 << 20 });
    rig.slow(Duration::from_millis(1), Duration::ZERO);
    let (mut to_greedy, mut to_modest) = (0, 0);
    for _ in 0..4000 {
        to_greedy += keep_reading(&greedy, 30);
        to_modest += keep_reading(&modest, depth);
        rig.turn_after(50_000);
    }
    rig.slow(Duration::ZERO, Duration::ZERO);
    rig.settle();
    greedy.iter().chain(&modest).for_each(Host::collect);
    rig.finish(greedy.into_iter().chain(modest));
    (to_greedy, to_modest)
}

/// Four reads of a millisecond at a time are about 800 in 200 ms.
#[test]
fn a_greedy_host_starves_a_modest_one_only_without_limits() {
    let (greedy, modest) = share_with("", 4);
    assert!(modest * 3 < 800, "without limits it has its part by connections: {modest}, {greedy}");
    let capped = format!("[[host]]\nnqn = \"{GREEDY}\"\nmax-in-flight = \"512KiB\"\n");
    let (greedy, modest) = share_with(&capped, 4);
    assert!(modest * 10 > 800 * 8, "all it wants, or nearly: {modest}, {greedy}");
    assert!(greedy > 1200, "eight at a time are the greedy one's: {greedy}");
    // The limit as a default for every host, for operators that cannot predict the greedy one.
    let (_, modest) = share_with("[host-defaults]\nmax-in-flight = \"512KiB\"\n", 4);
    assert!(modest * 10 > 800 * 8, "{modest}");
}

/// Of 3200 reads in 200 ms, its share is 1/13 by connections, and half by weight.
#[test]
fn a_weight_makes_up_for_a_greedy_hosts_connections() {
    let (greedy, modest) = share_with("", 30);
    assert!(modest < 400, "{modest}, {greedy}");
    let weighed = format!("[[host]]\nnqn = \"{MODEST}\"\nweight = 12\n");
    let (greedy, modest) = share_with(&weighed, 30);
    assert!((1400..1800).contains(&modest), "{modest}, {greedy}");
}

#[test]
fn the_rate_of_a_namespace_holds_for_all_hosts_together_and_wakes_on_time() {
    let mut rig = Rig::new(None);
    let mut tenants = Rig::tenants();
    let limit = format!("{NAMESPACE}limit = {{ iops = 2000, burst = \"0s\" }}\n");
    rig.limit(&mut tenants, &limit);
    let (one, other) = (rig.connect_named(GREEDY, 2), rig.connect_named(MODEST, 1));
    let mut answered = 0;
    for _ in 0..1000 {
        answered += keep_reading(&one, 20) + keep_reading(&other, 20);
        // The reactor sleeps until the next command may start.
        rig.turn_after(0);
        let due = rig.due_in().expect("a time");
        assert!(due <= 500_000, "{due} ns");
        rig.turn_after(due);
    }
    // The rate is 2000 commands a second, and each wake-up starts one of them.
    assert!((990..=1003).contains(&answered), "{answered}");
    let counts = tenants.namespaces().next().expect("it has a limit").2.counts();
    assert!(counts.throttled_by_rate >= 900, "{counts:?}");
    // Without the limit, all waiting commands start in that turn.
    rig.limit(&mut tenants, NAMESPACE);
    assert_eq!(rig.due_in(), None);
    rig.turns_now();
    assert!(one.iter().chain(&other).all(|host| host.take().len() >= 19));
    rig.finish(one.into_iter().chain(other));
}

/// In-capsule writes never wait for buffers, but they count against limits.
///
/// A host that leaves takes its waiting commands along.
#[test]
fn writes_in_the_capsule_count_and_a_host_leaves_with_commands_waiting() {
    let mut rig = Rig::new(None);
    let mut tenants = Rig::tenants();
    let limit =
        format!("[[host]]\nnqn = \"{GREEDY}\"\nlimit = {{ iops = 100, burst = \"50ms\" }}\n");
    rig.limit(&mut tenants, &limit);
    let mut greedy = rig.connect_named(GREEDY, 1);
    let modest = rig.connect_named(MODEST, 1);
    let data = pattern(1, 4 * KIB);
    for cid in 0..20 {
        greedy[0].write_in_capsule(cid, u64::from(cid) * 8, &data);
        modest[0].write_in_capsule(cid, u64::from(cid) * 8, &data);
    }
    greedy[0].read(20, 0, LEN);
    greedy[0].flush(21);
    rig.turns_now();
    let statuses = greedy[0].statuses();
    assert_eq!(statuses.len(), 5 + 1, "the burst, and the flush: {statuses:?}");
    assert_eq!(modest[0].statuses().len(), 20);
    let counts = rig.counts();
    assert_eq!(counts.waiting, 22 - 6);
    // When the connection goes, none of its commands stays.
    greedy.pop().expect("its queue").close();
    rig.settle();
    assert_eq!(rig.counts().waiting, 0);
    rig.finish(modest);
}

/// A returning host's hung commands still count against its limit.
///
/// The config does not name the host, and another host connects while it is disconnected.
#[test]
fn a_host_that_comes_back_has_what_hangs_against_its_bound() {
    let mut rig = Rig::new(None);
    let mut tenants = Rig::tenants();
    rig.limit(&mut tenants, "[host-defaults]\nmax-in-flight = \"512KiB\"\n");
    rig.slow(Duration::from_secs(1), Duration::ZERO);
    let first = rig.connect_named(GREEDY, 1);
    keep_reading(&first, 10);
    rig.turns_now();
    assert_eq!(rig.with_device(), 8, "its bound");
    first.iter().for_each(Host::close);
    rig.turns_now();
    let other = rig.connect_named(MODEST, 1);
    keep_reading(&other, 1);
    rig.turns_now();
    assert_eq!(rig.with_device(), 9);
    let again = rig.connect_named(GREEDY, 1);
    keep_reading(&again, 10);
    rig.turns_now();
    assert_eq!(rig.with_device(), 9, "nothing more of it before one of the eight is back");
    rig.slow(Duration::ZERO, Duration::ZERO);
    rig.turn_after(1_000_000_000);
    rig.settle();
    assert_eq!(again[0].statuses().len(), 10);
    other[0].collect();
    rig.finish(again.into_iter().chain(other));
}

#[test]
fn a_host_that_has_all_its_connections_is_refused_as_busy_until_one_goes() {
    let mut rig = Rig::new(None);
    let mut tenants = Rig::tenants();
    rig.limit(&mut tenants, "[host-defaults]\nmax-connections = 3\nmax-queues = 1\n");
    let mut first = rig.connect_named(GREEDY, 1);
    let (second, refused) = rig.try_connect(GREEDY);
    assert_eq!(refused, Err(Status::CONTROLLER_BUSY));
    let (other, accepted) = rig.try_connect(MODEST);
    assert!(accepted.is_ok());
    first.pop().expect("its queue").close();
    rig.settle();
    let (third, accepted) = rig.try_connect(GREEDY);
    assert!(accepted.is_ok());
    rig.finish([second, other, third]);
}

/// Limits that are added, changed and removed under load of several hosts lose no command.
#[test]
fn limits_change_under_load() {
    let all = [
        "",
        "[host-defaults]\nmax-in-flight = \"256KiB\"\n",
        "[host-defaults]\nlimit = { iops = 3000 }\nmax-in-flight = \"1MiB\"\n",
        "[host-defaults]\nlimit = { bandwidth = \"1Gb/s\", burst = \"1ms\" }\nweight = 3\n",
    ];
    for seed in 1..=8 {
        let mut rig = Rig::seeded(seed);
        let mut tenants = Rig::tenants();
        let (one, other) = (rig.connect_named(GREEDY, 2), rig.connect_named(MODEST, 1));
        for _ in 0..300 {
            keep_reading(&one, 10);
            keep_reading(&other, 3);
            if rig.random(10) == 0 {
                let next = rig.random(all.len());
                rig.limit(&mut tenants, all[next]);
            }
            if rig.random(25) == 0 {
                rig.set_policy(&PolicyConfig::Adaptive);
            }
            let nanos = rig.random(300_000) as u64;
            rig.turn_after(nanos);
        }
        rig.settle();
        let left: usize = one
            .iter()
            .chain(&other)
            .map(|host| {
                host.collect();
                host.outstanding()
            })
            .sum();
        assert_eq!(left, 0, "seed {seed}");
        rig.finish(one.into_iter().chain(other));
    }
}
