//! A whole reactor in virtual time, with hosts on the loopback fabric.
//!
//! Its device fails, holds and rejects on demand. Every case ends with the counts at zero: no path
//! may leak.

mod abort;
mod admin;
mod delays;
mod flows;
mod hang_up;
mod holdings;
mod pacing;
mod peer;
mod quiesce;
mod rig;
mod stats;
mod steady;
mod tenants;
mod timers;
mod torture;
mod trace;

use std::collections::HashSet;
use std::time::Duration;

use nvmeof_core::block::BlockError;
use nvmeof_nvmf::Failure;
use nvmeof_transport::FabricError;
use nvmeof_wire::abort::{Abort, NOT_ABORTED};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Sgl, Sqe, Status};

use rig::{BLOCK, Host, Rig, pattern};

const KIB: u32 = 1024;

#[test]
fn data_written_in_a_capsule_and_by_pull_is_read_back() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    let (small, large) = (pattern(1, 4 * KIB), pattern(2, 128 * KIB));

    host.write_in_capsule(1, 0, &small);
    host.write_pulled(2, 8, &large);
    rig.settle();
    assert_eq!(host.statuses(), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);

    host.read(3, 0, 4 * KIB);
    host.read(4, 8, 128 * KIB);
    rig.settle();
    let answers = host.take();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().any(|answer| answer.cqe.cid.get() == 3 && answer.data == small));
    assert!(answers.iter().any(|answer| answer.cqe.cid.get() == 4 && answer.data == large));
    rig.finish([host]);
}

#[test]
fn compare_tells_equal_from_different_data() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    let data = pattern(3, 4 * KIB);
    host.write_in_capsule(1, 0, &data);
    rig.settle();
    host.take();
    host.compare(2, 0, &data);
    host.compare(3, 0, &pattern(4, 4 * KIB));
    rig.settle();
    let mut statuses = host.statuses();
    statuses.sort_by_key(|(cid, _)| *cid);
    assert_eq!(statuses, [(2, Status::SUCCESS), (3, Failure::CompareMismatch.status())]);
    rig.finish([host]);
}

/// The data of a Connect uses the connection's own buffer.
///
/// Hosts that never send this data block no other host.
#[test]
fn hosts_that_keep_their_connect_data_back_keep_nobody_out() {
    let mut rig = Rig::new(None);
    let mut slow: Vec<_> = (0..20).map(|_| rig.connect_unoffered()).collect();
    let (quick, data) = rig.connect_unoffered();
    quick.offer(1, data);
    rig.turns(4);
    assert_eq!(quick.statuses(), [(1, Status::SUCCESS)]);
    for (host, data) in &mut slow {
        host.offer(1, std::mem::take(data));
    }
    rig.settle();
    assert!(slow.iter().all(|(host, _)| host.statuses() == [(1, Status::SUCCESS)]));
    rig.finish(slow.into_iter().map(|(host, _)| host).chain([quick]));
}

/// An invalid data pointer fails a command that moves data.
///
/// Other commands ignore their data pointers.
#[test]
fn a_bad_data_pointer_fails_what_moves_data() {
    let mut rig = Rig::new(None);
    let (admin, io) = rig.connect_both();
    let error = FabricError::SglCount;
    let io_commands = [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::FLUSH, IoOpcode::WRITE_ZEROES];
    for (cid, opcode) in (1..).zip(io_commands) {
        io.send_bad(Sqe::io(opcode, cid, 1), error);
    }
    let identify = nvmeof_wire::opcode::AdminOpcode::IDENTIFY;
    admin.send_bad(Sqe::admin(identify, 9, 0).with_cdw10([1]), error);
    rig.settle();
    let bad = Failure::SglCount.status();
    let mut statuses = io.statuses();
    statuses.sort_by_key(|(cid, _)| *cid);
    let good = Status::SUCCESS;
    assert_eq!(statuses, [(1, bad), (2, bad), (3, good), (4, good)]);
    let answers = admin.take();
    assert_eq!((answers.len(), answers[0].cqe.status()), (1, bad));
    assert_eq!((answers[0].cqe.result.get(), answers[0].data.len()), (0, 0));
    rig.finish([admin, io]);
}

#[test]
fn a_device_error_reaches_the_host_and_nothing_else() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.faults.fail_next(BlockError::Media { errno: 5 });
    host.read(1, 0, 4 * KIB);
    rig.settle();
    assert_eq!(host.statuses(), [(1, Failure::MediaRead.status())]);
    host.read(2, 0, 4 * KIB);
    rig.settle();
    assert_eq!(host.statuses(), [(2, Status::SUCCESS)]);
    rig.finish([host]);
}

#[test]
fn a_turn_sends_so_much_and_connections_take_turns() {
    let mut rig = Rig::new(None);
    let hosts = [rig.connect_io(), rig.connect_io()];
    for host in &hosts {
        (1..=16).for_each(|cid| host.read(cid, 0, 128 * KIB));
    }
    let (mut answered, mut turns) = ([0, 0], 0);
    while answered != [16, 16] {
        rig.turns(1);
        let now = hosts.each_ref().map(|host| host.take().len());
        assert!(now[0] + now[1] <= 8, "{now:?} of 128 KiB in a turn");
        answered = [answered[0] + now[0], answered[1] + now[1]];
        assert!(answered[0].abs_diff(answered[1]) <= 8, "{answered:?}");
        turns += 1;
        assert!(turns < 20, "{answered:?}");
    }
    rig.finish(hosts);
}

#[test]
fn data_that_cannot_be_fetched_ends_the_command_alone() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    host.fail_next(FabricError::DataDigest);
    host.write_pulled(1, 0, &pattern(5, 64 * KIB));
    rig.settle();
    assert_eq!(host.statuses(), [(1, Failure::TransientTransport.status())]);
    host.write_pulled(2, 0, &pattern(5, 64 * KIB));
    rig.settle();
    assert_eq!(host.statuses(), [(2, Status::SUCCESS)]);
    rig.finish([host]);
}

#[test]
fn a_device_that_takes_nothing_for_a_while_delays_commands_and_loses_none() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.faults.reject_next(3);
    for cid in 1..=8 {
        host.read(cid, 0, 4 * KIB);
    }
    rig.settle();
    assert_eq!(host.statuses().len(), 8);
    rig.finish([host]);
}

#[test]
fn a_host_that_leaves_while_its_device_works_leaks_nothing() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(Duration::from_secs(10), Duration::from_secs(10));
    for cid in 1..=4 {
        host.read(cid, 0, 64 * KIB);
    }
    host.write_in_capsule(5, 0, &pattern(6, 4 * KIB));
    rig.settle();
    let held = rig.counts();
    assert_eq!((held.requests, held.permits), (5, 5));
    host.close();
    rig.settle();
    // The device still writes to the buffers, so they must not have returned to the pool.
    assert_eq!(rig.counts().buffers, held.buffers);
    rig.turn_after(10_000_000_000);
    rig.settle();
    assert_eq!(rig.counts().buffers, 0);
    rig.finish([host]);
}

/// A device never starts an operation that it had not started when the host left.
#[test]
fn a_host_that_leaves_takes_along_what_its_device_has_not_begun() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.faults.hold();
    host.write_in_capsule(1, 0, &pattern(6, 4 * KIB));
    rig.settle();
    assert_eq!(rig.counts().requests, 1);
    host.close();
    rig.settle();
    assert_eq!(rig.counts().requests, 0);
    rig.faults.release();
    rig.settle();
    let other = rig.connect_io();
    other.read(1, 0, 4 * KIB);
    rig.settle();
    assert!(other.take()[0].data.iter().all(|byte| *byte == 0), "the write has not happened");
    rig.finish([host, other]);
}

#[test]
fn a_host_that_leaves_while_its_data_is_awaited_leaks_nothing() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    // Data that is never offered: the pulls wait.
    host.write_unoffered(1, 0, 64 * KIB);
    host.write_unoffered(2, 0, 64 * KIB);
    rig.settle();
    assert_eq!(rig.counts().requests, 2);
    host.close();
    rig.settle();
    rig.finish([host]);
}

#[test]
fn waiting_commands_start_when_a_device_frees_their_budget_and_nothing_else_happens() {
    // Room for two commands of 64 KiB in flight.
    let mut rig = Rig::new(Some(128 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.faults.hold();
    for cid in 1..=10 {
        host.read(cid, 0, 64 * KIB);
    }
    rig.settle();
    let counts = rig.counts();
    assert_eq!((counts.permits, counts.waiting), (2, 8));
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses().len(), 10);
    rig.finish([host]);
}

#[test]
fn commands_without_data_and_new_hosts_do_not_wait_behind_data() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.faults.hold();
    for cid in 1..=4 {
        host.read(cid, 0, 64 * KIB);
    }
    rig.settle();
    // The budget is exhausted and the device is stuck, but a host can still connect and send
    // commands.
    let other = rig.connect_io();
    other.flush(1);
    rig.settle();
    assert_eq!(rig.counts().waiting, 3);
    rig.faults.release();
    rig.settle();
    assert_eq!(other.statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(host.statuses().len(), 4);
    rig.finish([host, other]);
}

#[test]
fn data_that_came_in_a_capsule_does_not_wait_for_the_budget() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let host = rig.connect_io();
    rig.faults.hold();
    host.read(1, 0, 64 * KIB);
    host.read(2, 0, 64 * KIB);
    rig.settle();
    host.write_in_capsule(3, 0, &pattern(9, 4 * KIB));
    rig.settle();
    let counts = rig.counts();
    assert_eq!((counts.permits, counts.waiting), (2, 1));
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses().len(), 3);
    rig.finish([host]);
}

#[test]
fn abort_takes_out_a_command_that_waits_and_not_one_that_runs() {
    let mut rig = Rig::new(Some(64 * u64::from(KIB)));
    let (admin, host) = rig.connect_both();
    rig.faults.hold();
    host.read(1, 0, 64 * KIB);
    host.read(2, 0, 64 * KIB);
    rig.settle();
    assert_eq!(rig.counts().waiting, 1);

    admin.send(Abort { sqid: 1, cid: 2 }.encode(50), &[]);
    admin.send(Abort { sqid: 1, cid: 1 }.encode(51), &[]);
    admin.send(Abort { sqid: 7, cid: 2 }.encode(52), &[]);
    rig.settle();
    assert_eq!(host.statuses(), [(2, Failure::Aborted.status())]);
    let results: Vec<_> =
        admin.take().iter().map(|answer| (answer.cqe.cid.get(), answer.cqe.dw0())).collect();
    let not = u32::try_from(NOT_ABORTED).unwrap();
    assert_eq!(results, [(50, 0), (51, not), (52, not)]);
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses(), [(1, Status::SUCCESS)]);
    rig.finish([admin, host]);
}

#[test]
fn an_empty_pool_delays_commands_and_loses_none() {
    // No budget, and a pool that holds two commands of 1 MiB.
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.faults.hold();
    for cid in 1..=9 {
        host.read(cid, 0, 1024 * KIB);
    }
    rig.settle();
    rig.faults.release();
    for _ in 0..9 {
        rig.settle();
    }
    assert_eq!(host.statuses().len(), 9);
    rig.finish([host]);
}

/// No later command passes a command that finds no buffer of its size.
///
/// Memory comes in two chunks here, each for buffers of one size. Small reads of two sizes, of each
/// of which one is always in flight, keep both. A larger read still gets its buffer.
#[test]
fn a_command_that_finds_no_buffer_of_its_size_is_passed_by_none() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(Duration::from_millis(1), Duration::ZERO);
    let small = [(1, 4 * KIB), (2, 8 * KIB), (3, 4 * KIB), (4, 8 * KIB)];
    let (large, mut out, mut answered) = (9, HashSet::new(), Vec::new());
    for turn in 0..400 {
        for (cid, len) in small {
            // Two reads of each size, with a staggered start.
            if turn >= 3 * usize::from(cid) && out.insert(cid) {
                host.read(cid, 0, len);
            }
        }
        if turn == 100 {
            host.read(large, 0, 64 * KIB);
        }
        rig.turn_after(100_000);
        for (cid, status) in host.statuses() {
            assert_eq!(status, Status::SUCCESS);
            out.remove(&cid);
            answered.push(cid);
        }
    }
    assert!(answered.contains(&large), "after {} others", answered.len());
    assert!(answered.len() > 100, "small ones go on: {}", answered.len());
    rig.settle();
    host.collect();
    rig.finish([host]);
}

/// If the commands that hold all memory hang at a device, small commands proceed after a second.
///
/// A small command that waited behind the large one is first.
#[test]
fn what_hangs_with_all_of_the_memory_is_passed() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.slow(Duration::from_secs(100), Duration::ZERO);
    host.read(1, 0, 4 * KIB);
    host.read(2, 0, 8 * KIB);
    rig.turns_now();
    rig.slow(Duration::ZERO, Duration::ZERO);
    host.read(3, 0, 64 * KIB);
    // More than the connection's own buffer holds.
    host.read(4, 0, 8 * KIB);
    rig.turns_now();
    assert_eq!(rig.with_device(), 2);
    rig.turn_after(1_000_000_000);
    host.read(5, 0, 8 * KIB);
    rig.turns_now();
    assert_eq!((rig.with_device(), rig.counts().permits), (4, 5));
    rig.turn_after(100_000_000_000);
    rig.settle();
    let mut statuses = host.statuses();
    statuses.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(statuses, [1, 2, 3, 4, 5].map(|cid| (cid, Status::SUCCESS)));
    rig.finish([host]);
}

/// A leaving host's commands that wait for a buffer end with it, also behind other commands.
#[test]
fn a_host_that_leaves_waits_for_no_buffer() {
    let mut rig = Rig::new(None);
    let (stays, leaves) = (rig.connect_io(), rig.connect_io());
    rig.slow(Duration::from_secs(100), Duration::ZERO);
    stays.read(1, 0, 1024 * KIB);
    stays.read(2, 0, 1024 * KIB);
    stays.read(3, 0, 1024 * KIB);
    stays.read(4, 0, 1024 * KIB);
    stays.read(5, 0, 8 * KIB);
    rig.turns_now();
    leaves.read(1, 0, 8 * KIB);
    rig.turns_now();
    assert_eq!(rig.counts().requests, 6);
    leaves.close();
    rig.turns_now();
    // The fourth is deferred: its host leaves 1/8 of the memory.
    assert_eq!((rig.counts().requests, rig.counts().permits), (5, 4));
    rig.slow(Duration::ZERO, Duration::ZERO);
    rig.turn_after(100_000_000_000);
    rig.settle();
    assert_eq!(stays.statuses().len(), 5);
    rig.finish([stays]);
}

/// Each compare needs two buffers, and the memory has room for four.
///
/// With one buffer each they would wait for each other.
#[test]
fn compares_do_not_hold_buffers_while_they_wait_for_others() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    let zeroes = vec![0; 1 << 20];
    for cid in 1..=4 {
        host.compare_pulled(cid, 0, &zeroes);
    }
    rig.settle();
    let mut statuses = host.statuses();
    statuses.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(statuses, [1, 2, 3, 4].map(|cid| (cid, Status::SUCCESS)));
    rig.finish([host]);
}

/// Two buffers of 2 MiB take all memory, and another host's read holds some of it.
///
/// A command that needs two may therefore wait forever.
#[test]
fn a_compare_that_may_never_have_two_buffers_is_to_be_tried_again() {
    let mut rig = Rig::with_transfers_of(2 << 20);
    let host = rig.connect_io();
    let other = rig.connect_named("nqn.2026-11.org.example:other", 1);
    let zeroes = vec![0; 2 << 20];
    rig.faults.hold();
    other[0].read(1, 0, 4 * KIB);
    host.compare_pulled(2, 0, &zeroes);
    rig.settle();
    assert_eq!(host.statuses(), [(2, Failure::Busy.status())]);
    rig.faults.release();
    rig.settle();
    host.compare_pulled(3, 0, &zeroes);
    rig.settle();
    assert_eq!(other[0].statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(host.statuses(), [(3, Status::SUCCESS)]);
    rig.finish(other.into_iter().chain([host]));
}

#[test]
fn deallocate_and_write_zeroes_reach_the_medium() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    host.write_in_capsule(1, 0, &pattern(7, 8 * KIB));
    rig.settle();
    host.take();
    host.deallocate(2, &[(0, 4), (8, 4)]);
    host.write_zeroes(3, 4, 4);
    rig.settle();
    assert_eq!(host.statuses().len(), 2);
    host.read(4, 0, 8 * KIB);
    rig.settle();
    let read = host.take().pop().unwrap().data;
    let (zeroed, kept) = read.split_at(12 * BLOCK as usize);
    assert!(zeroed.iter().all(|&byte| byte == 0));
    assert_eq!(kept, &pattern(7, 8 * KIB)[12 * BLOCK as usize..]);
    rig.finish([host]);
}

#[test]
fn a_connection_moves_when_it_is_idle_and_goes_on() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.faults.hold();
    host.read(1, 0, 4 * KIB);
    rig.settle();
    rig.move_one();
    // The connection drains first. Commands that arrive during the drain wait.
    host.read(2, 0, 4 * KIB);
    rig.settle();
    assert!(host.statuses().is_empty());
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses(), [(1, Status::SUCCESS), (2, Status::SUCCESS)]);
    host.write_pulled(3, 0, &pattern(8, 64 * KIB));
    rig.settle();
    assert_eq!(host.statuses(), [(3, Status::SUCCESS)]);
    rig.finish([host]);
}

#[test]
fn draining_answers_what_is_in_flight_and_then_closes() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    rig.faults.hold();
    host.read(1, 0, 4 * KIB);
    rig.settle();
    let mut drained = rig.drain();
    rig.settle();
    assert!(drained.try_recv().is_err(), "a command is in flight");
    rig.faults.release();
    rig.settle();
    assert_eq!(host.statuses(), [(1, Status::SUCCESS)]);
    assert!(drained.try_recv().is_ok());
    assert!(!host.closed());
    rig.close_all();
    assert!(host.closed());
    rig.finish([host]);
}

#[test]
fn random_commands_faults_and_departures_leave_nothing_behind() {
    for seed in 1..=40 {
        let mut rig = Rig::seeded(seed);
        let mut hosts: Vec<Host> = Vec::new();
        for _ in 0..200 {
            match rig.random(12) {
                0 if hosts.len() < 4 => hosts.push(rig.connect_io()),
                1 if !hosts.is_empty() => {
                    let gone = rig.random(hosts.len());
                    hosts.swap_remove(gone).close();
                }
                2 => rig.faults.hold(),
                3 => rig.faults.release(),
                4 => rig.faults.reject_next(2),
                _ if hosts.is_empty() => {}
                kind => {
                    let index = rig.random(hosts.len());
                    let host = &hosts[index];
                    let len = (1 + u32::try_from(rig.random(64)).unwrap()) * 4 * KIB;
                    let lba = rig.random(64) as u64;
                    let Some(cid) = host.free_cid() else { continue };
                    match kind {
                        5 | 6 => host.read(cid, lba, len),
                        7 => host.write_in_capsule(cid, lba, &pattern(seed, 4 * KIB)),
                        8 => host.write_pulled(cid, lba, &pattern(seed, len)),
                        9 => host.compare(cid, lba, &pattern(seed, 4 * KIB)),
                        10 => host.flush(cid),
                        _ => host.raw(
                            IoOpcode::READ,
                            cid,
                            u64::MAX - 1,
                            Sgl::Transport { length: 512 },
                        ),
                    }
                }
            }
            let turns = 1 + rig.random(3);
            rig.turns(turns);
            hosts.iter().for_each(Host::collect);
        }
        rig.faults.release();
        rig.settle();
        hosts.iter().for_each(Host::collect);
        let left: Vec<_> = hosts.iter().map(Host::outstanding).collect();
        assert!(left.iter().all(|&left| left == 0), "seed {seed}: unanswered {left:?}");
        rig.finish(hosts);
    }
}
