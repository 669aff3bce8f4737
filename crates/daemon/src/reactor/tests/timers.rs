//! Ticks of the timers: what they visit, and that no deadline is missed.

use std::time::Duration;

use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::{Sqe, Status};

use super::rig::{BLOCK, Host, Rig};

/// Hosts, each with an admin queue and as many I/O queues.
const HOSTS: u16 = 8;
const QUEUES: u16 = 16;
/// Feature identifier of the keep-alive timer.
const KEEP_ALIVE_TIMER: u32 = 0x0f;
/// Ticks in a second.
const SECOND: u64 = 10;

/// Returns the I/O queues of all hosts.
fn connect_many(rig: &mut Rig) -> Vec<Host> {
    let name = |number| format!("nqn.2026-11.io.nvmeof-tgt:host{number}");
    (0..HOSTS).flat_map(|number| rig.connect_named(&name(number), QUEUES)).collect()
}

fn set_keep_alive(rig: &mut Rig, admin: &Host, milliseconds: u32) {
    let set = Sqe::admin(AdminOpcode::SET_FEATURES, 9, 0);
    admin.send(set.with_cdw10([KEEP_ALIVE_TIMER, milliseconds]), &[]);
    rig.turns_now();
    assert_eq!(admin.statuses(), [(9, Status::SUCCESS)]);
}

/// Returns the number of ticks until the connection has ended.
fn ticks_to_end(rig: &mut Rig, host: &Host) -> u64 {
    (0..100 * SECOND)
        .find(|_| {
            rig.tick();
            host.closed()
        })
        .expect("the queue ends")
}

#[test]
fn a_tick_visits_connections_that_were_active_and_no_others() {
    let mut rig = Rig::new(None);
    let hosts = connect_many(&mut rig);
    rig.settle();
    rig.tick();
    for active in [0, 1, 7, 0, hosts.len(), 0] {
        for host in &hosts[..active] {
            host.read(1, 0, BLOCK);
        }
        rig.turns_now();
        assert_eq!(rig.tick(), active as u64);
        hosts.iter().for_each(Host::collect);
    }
    rig.finish(hosts);
}

#[test]
fn a_command_at_its_device_keeps_only_its_connection_in_the_ticks() {
    let mut rig = Rig::new(None);
    let hosts = connect_many(&mut rig);
    let minute = Duration::from_secs(60);
    rig.slow(minute, minute);
    hosts[3].read(1, 0, BLOCK);
    rig.settle();
    for _ in 0..5 {
        assert_eq!(rig.tick(), 1);
    }
    rig.turn_after(u64::try_from(minute.as_nanos()).unwrap());
    rig.settle();
    hosts[3].collect();
    rig.tick();
    assert_eq!(rig.tick(), 0);
    rig.finish(hosts);
}

#[test]
fn an_idle_queue_is_visited_when_its_deadline_comes_and_ends() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    set_keep_alive(&mut rig, &admin, 5000);
    rig.tick();
    let visits: u64 = (0..4 * SECOND).map(|_| rig.tick()).sum();
    assert_eq!((visits, admin.closed()), (0, false));
    // A command on the I/O queue counts as a sign of life, which only the deadline looks at.
    io.read(1, 0, BLOCK);
    rig.turns_now();
    io.collect();
    let ticks = ticks_to_end(&mut rig, &admin);
    assert!((5 * SECOND..7 * SECOND).contains(&ticks), "{ticks}");
    rig.finish([admin, io]);
}

#[test]
fn an_earlier_deadline_replaces_a_later_one() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    for seconds in [90, 5, 2] {
        set_keep_alive(&mut rig, &admin, seconds * 1000);
        rig.tick();
    }
    let ticks = ticks_to_end(&mut rig, &admin);
    assert!((SECOND..3 * SECOND).contains(&ticks), "{ticks}");
    rig.finish([admin, io]);
}

#[test]
fn a_later_deadline_is_not_judged_early() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    for seconds in [2, 20] {
        set_keep_alive(&mut rig, &admin, seconds * 1000);
        rig.tick();
    }
    let ticks = ticks_to_end(&mut rig, &admin);
    assert!((19 * SECOND..21 * SECOND).contains(&ticks), "{ticks}");
    rig.finish([admin, io]);
}
