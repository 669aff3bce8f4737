//! Hosts without progress, and the other hosts on the same reactor.

use nvmeof_wire::Status;

use super::rig::{Host, Rig, pattern};

const KIB: u32 = 1024;
/// Bytes of each write of the greedy host, and commands on each queue.
const LEN: u32 = 64 * KIB;
const DEPTH: u16 = 31;
const MILLISECOND: u64 = 1_000_000;
/// Maximum time for which commands wait before the reactor reclaims permits.
const PATIENCE: u64 = 11 * MILLISECOND;

/// Sends many writes on every queue, without their data.
fn ask_to_write(hosts: &[Host]) {
    for (nth, host) in (0..).zip(hosts) {
        for cid in 0..DEPTH {
            host.write_unoffered(cid, place(nth, cid), LEN);
        }
    }
}

fn place(nth: u64, cid: u16) -> u64 {
    (nth * u64::from(DEPTH) + u64::from(cid)) * u64::from(LEN / 512)
}

/// Offers the data of all writes, and checks that they complete.
fn write_all(rig: &mut Rig, hosts: &[Host]) {
    for host in hosts {
        for cid in 0..DEPTH {
            host.offer(cid, pattern(u64::from(cid), LEN));
        }
    }
    rig.settle();
    for host in hosts {
        let statuses = host.statuses();
        assert_eq!(statuses.len(), usize::from(DEPTH));
        assert!(statuses.iter().all(|(_, status)| status.is_success()), "{statuses:?}");
    }
}

#[test]
fn permits_come_back_from_a_host_that_sends_no_data() {
    let mut rig = Rig::new(Some(1 << 20));
    let greedy = rig.connect_named("nqn.2026-11.org.example:greedy", 4);
    let honest = rig.connect_named("nqn.2026-11.org.example:honest", 1);
    ask_to_write(&greedy);
    rig.turns_now();
    assert_eq!(rig.counts().permits, 16, "the budget");
    honest[0].read(1, 0, 4 * KIB);
    rig.turns_now();
    assert_eq!(honest[0].statuses(), [], "nobody is late yet");
    rig.turn_after(PATIENCE);
    rig.turns_now();
    assert_eq!(honest[0].statuses(), [(1, Status::SUCCESS)]);
    // From now on the greedy host holds no permits, and is granted none.
    for cid in 2..20 {
        honest[0].read(cid, 0, 4 * KIB);
        rig.turns_now();
        assert_eq!(honest[0].statuses(), [(cid, Status::SUCCESS)]);
    }
    write_all(&mut rig, &greedy);
    rig.finish(greedy.into_iter().chain(honest));
}

/// While no command waits, the reactor reclaims no permits, however long they are held.
#[test]
fn permits_stay_while_nobody_waits() {
    let mut rig = Rig::new(Some(1 << 20));
    let host = rig.connect_io();
    for cid in 0..16 {
        host.write_unoffered(cid, place(0, cid), LEN);
    }
    rig.turns(300);
    assert_eq!(rig.counts().permits, 16);
    rig.finish([host]);
}

#[test]
fn several_hosts_share_the_memory_and_one_leaves_an_eighth_of_it() {
    for alone in [false, true] {
        let mut rig = Rig::new(None);
        let mut hosts = rig.connect_named("nqn.2026-11.org.example:greedy", 4);
        let honest = (!alone).then(|| rig.connect_named("nqn.2026-11.org.example:honest", 1));
        ask_to_write(&hosts);
        rig.turns(4);
        // Half of the 4 MiB, or all but 1/8.
        assert_eq!(rig.counts().buffers, if alone { 56 } else { 32 });
        if let Some(honest) = &honest {
            let data = pattern(9, 512 * KIB);
            honest[0].write_pulled(1, 0, &data);
            rig.turns(4);
            assert_eq!(honest[0].statuses(), [(1, Status::SUCCESS)]);
        }
        write_all(&mut rig, &hosts);
        hosts.extend(honest.into_iter().flatten());
        rig.finish(hosts);
    }
}

/// Under many names, greedy hosts take all memory.
///
/// A connection keeps its own buffer.
#[test]
fn a_small_command_goes_on_when_all_memory_is_held() {
    let mut rig = Rig::new(None);
    let mut hosts = Vec::new();
    for nth in 0..12 {
        let name = format!("nqn.2026-11.org.example:greedy{nth}");
        let greedy = rig.connect_named(&name, 1);
        greedy[0].write_unoffered(1, 0, 1024 * KIB);
        rig.turns(2);
        hosts.extend(greedy);
    }
    let honest = rig.connect_named("nqn.2026-11.org.example:honest", 1);
    // Several commands, one after the other.
    for cid in 0..5 {
        honest[0].write_pulled(cid, u64::from(cid) * 8, &pattern(cid.into(), 4 * KIB));
    }
    rig.turns(30);
    let statuses = honest[0].statuses();
    assert_eq!(statuses.len(), 5);
    assert!(statuses.iter().all(|(_, status)| status.is_success()));
    honest[0].write_pulled(9, 0, &pattern(9, 8 * KIB));
    rig.turns(30);
    assert_eq!(honest[0].statuses(), [], "there is no memory for more");
    hosts.extend(honest);
    rig.finish(hosts);
}

#[test]
fn deferred_commands_end_with_their_connection() {
    let mut rig = Rig::new(Some(1 << 20));
    let greedy = rig.connect_named("nqn.2026-11.org.example:greedy", 2);
    let honest = rig.connect_named("nqn.2026-11.org.example:honest", 1);
    ask_to_write(&greedy);
    rig.turns_now();
    rig.turn_after(PATIENCE);
    rig.turns_now();
    let counts = rig.counts();
    assert!(counts.waiting < counts.requests, "{counts:?}");
    rig.finish(greedy.into_iter().chain(honest));
}

/// A stall of the target does not count against hosts that it could not receive from.
#[test]
fn a_pause_of_the_target_moves_deadlines() {
    for pause in [0, 40_000] {
        let mut rig = Rig::new(None);
        let (silent, _) = rig.connect_unoffered();
        rig.turns(100);
        rig.turn_after(pause * MILLISECOND);
        rig.turns(100);
        assert!(!silent.closed(), "after {pause} ms");
        for _ in 0..310 {
            rig.turn_after(100 * MILLISECOND);
        }
        assert!(silent.closed(), "after {pause} ms");
        rig.finish([silent]);
    }
}
