//! Random runs: two hosts with all kinds of commands, a slow target, devices of all sizes, and
//! occasional faults.
//!
//! Every run checks that the received data is correct, and that nothing is left at the end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nvmeof_loopback_verbs::Side;
use nvmeof_random::SplitMix64;
use nvmeof_verbs::Endpoint;

use super::lists::{gathered, listed};
use super::memory::Memory;
use super::*;

/// An outstanding command of a host.
struct Out {
    cid: u16,
    is_read: bool,
    number: u32,
    lens: Vec<u32>,
    memory: Option<Memory>,
    key: Option<u32>,
}

struct Peer {
    at: usize,
    host: Host,
    depth: usize,
    out: Vec<Out>,
    next_cid: u16,
    done: usize,
}

/// A command that the target works on.
struct Job {
    at: usize,
    sqe: Sqe,
    data: Option<Buffer>,
    /// Token of its pull.
    pull: Option<u64>,
}

fn setup(seed: u64, rng: &mut SplitMix64) -> Setup {
    let reads_out = 1 + u8::try_from(rng.below(4)).unwrap();
    let limits = DeviceLimits {
        queue_depth: 17 + u32::try_from(rng.below(80)).unwrap(),
        message: 200 + u32::try_from(rng.below(9000)).unwrap(),
        reads_out,
        ..DeviceOptions::default().limits
    };
    let params = RdmaParams {
        shared_receives: if rng.below(2) == 0 { 32 } else { 0 },
        transfer_timeout: 2_000_000_000,
        ..RdmaParams::default()
    };
    let inline = if rng.below(2) == 0 { 0 } else { 64 };
    Setup { seed, limits, inline, params, tells_last_receive: true, fetches_ahead: true }
}

impl Peer {
    /// Sends a command of any kind, if the queue has room.
    fn send(&mut self, rng: &mut SplitMix64) {
        if self.out.len() >= self.depth {
            return;
        }
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(77);
        let number = u32::from(cid) ^ 0xbeef;
        let runs = match rng.below(4) {
            0 => 2 + rng.index(15),
            _ => 1,
        };
        let lens: Vec<u32> =
            (0..runs).map(|_| 1 + u32::try_from(rng.below(3000)).unwrap()).collect();
        let total: u32 = lens.iter().sum();
        let is_read = rng.below(2) == 0;
        let invalidate = rng.below(2) == 0;
        let sqe = Sqe::new(if is_read { 2 } else { 1 }, cid, 1).with_cdw10([0, 0, total, number]);
        let (sqe, behind, memory) = match rng.below(6) {
            0 => (Sqe::new(0, cid, 1), Vec::new(), None),
            1 if !is_read && runs == 1 => {
                let sgl = Sgl::InCapsule { offset: 0, length: total };
                (sqe.with_sgl(sgl), pattern(number, total as usize), None)
            }
            _ => {
                let room = lens.iter().sum::<u32>() as usize + 100 * runs;
                let memory = Memory::new(&self.host.device, room);
                if !is_read {
                    let bytes = pattern(number, total as usize);
                    let (mut at, mut from) = (0, 0);
                    for len in &lens {
                        let len = *len as usize;
                        memory.write(at, &bytes[from..from + len]);
                        (at, from) = (at + len + 100, from + len);
                    }
                }
                let (sgl, behind) = match runs {
                    1 => (memory.sgl(0, total, invalidate), Vec::new()),
                    _ => listed(&memory, &lens, invalidate),
                };
                (sqe.with_sgl(sgl), behind, Some(memory))
            }
        };
        if self.host.send(sqe, &behind) {
            let key = memory.as_ref().filter(|_| invalidate).map(Memory::rkey);
            let is_read = is_read && memory.is_some();
            self.out.push(Out { cid, is_read, number, lens, memory, key });
        }
    }

    /// Takes responses, and checks the received data.
    fn take(&mut self) {
        for (cid, key) in self.host.responses() {
            let at = self.out.iter().position(|out| out.cid == cid).expect("nobody asked");
            let out = self.out.swap_remove(at);
            assert_eq!(key, out.key, "what was invalidated");
            if out.is_read {
                let total: u32 = out.lens.iter().sum();
                let got = gathered(out.memory.as_ref().unwrap(), &out.lens);
                assert!(got == pattern(out.number, total as usize), "wrong data of {cid}");
            }
            self.done += 1;
        }
    }
}

/// Continues a job; returns it if it has not completed.
fn work(world: &mut World, mut job: Job) -> Option<Job> {
    let connection = &mut world.queues[job.at];
    if connection.queue.is_none() || connection.closed.is_some() {
        return None;
    }
    let (total, number) = (job.sqe.cdw12.get(), job.sqe.cdw13.get());
    let expected = || pattern(number, total as usize);
    if let Some(pull) = job.pull {
        let at = connection.pulled.iter().position(|(token, ..)| *token == pull);
        let Some(at) = at else { return Some(job) };
        let (_, result, bytes) = connection.pulled.swap_remove(at);
        if result.is_ok() {
            assert!(bytes == expected(), "wrong data pulled");
            let cqe = Cqe::success(job.sqe.cid.get(), 0);
            let sgl = Sgl::Transport { length: 0 };
            let op = FabricOp::Respond { token: 0, cqe, sgl, data: None, elidable: true };
            // The queue can be closing by now.
            let _ = connection.submit(op);
        }
        return None;
    }
    let token = connection.token();
    let (cid, sgl) = (job.sqe.cid.get(), job.sqe.dptr.parse());
    match job.sqe.opcode {
        1 if job.data.is_none() => {
            let buf = world.pool.lease(total as usize).unwrap();
            job.pull = Some(token);
            world.queues[job.at].submit(FabricOp::FetchHostData { token, cid, sgl, buf }).ok()?;
            Some(job)
        }
        opcode => {
            if let Some(data) = &job.data {
                assert!(data.as_slice() == expected(), "wrong data in the capsule");
            }
            let data = (opcode == 2).then(|| Payload::Buffer(world.buffer(&expected())));
            let cqe = Cqe::success(cid, 0);
            let op = FabricOp::Respond { token, cqe, sgl, data, elidable: true };
            let _ = world.queues[job.at].submit(op);
            None
        }
    }
}

fn fault(world: &mut World, peer: &mut Peer, number: u32, rng: &mut SplitMix64) {
    let faults = world.fabric.faults();
    let nth = rng.below(6);
    match rng.below(13) {
        0 => faults.remote_access(number, nth),
        1 => faults.unreachable(number, nth),
        2 => faults.break_at(number, nth),
        3 => faults.refuse_send(number, nth, rng.index(4)),
        4 => faults.lose_completion(number, Side::Send, nth),
        5 => faults.lose_completion(number, Side::Receive, nth),
        6 => faults.not_ready(number, nth, 3),
        7 => peer.host.endpoint.disconnect(),
        8 => faults.queue_pair_error(number),
        9 => {
            faults.lose_last_receive(number);
            faults.queue_pair_error(number);
        }
        10 => {
            faults.delay_last_receive(number, 1 + rng.below(1_000_000_000));
            peer.host.endpoint.disconnect();
        }
        11 => {
            faults.hurry_last_receive(number);
            faults.break_at(number, nth);
        }
        _ => {
            if let Some(queue) = &mut world.queues[peer.at].queue {
                queue.close(CloseReason::Shutdown);
            }
        }
    }
}

fn story(seed: u64, faults: bool) {
    let mut rng = SplitMix64::new(seed);
    let mut world = setup(seed, &mut rng).world();
    let mut peers = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let depth = 2 + rng.index(14);
        let (at, host) = world.connect(u32::try_from(depth).unwrap());
        let peer = Peer { at, host, depth, out: Vec::new(), next_cid: 1, done: 0 };
        peers.push(peer);
        numbers.push(world.number());
    }
    let mut jobs: Vec<Job> = Vec::new();
    let trouble = if faults { 100 + rng.below(1500) } else { u64::MAX };
    for round in 0..2000 {
        if round == trouble {
            let who = rng.index(2);
            fault(&mut world, &mut peers[who], numbers[who], &mut rng);
        }
        let who = rng.index(2);
        match rng.below(10) {
            0..2 => peers[who].send(&mut rng),
            2..5 => {
                for _ in 0..rng.below(12) {
                    world.fabric.step();
                }
            }
            5..7 => world.turn(),
            7 => peers[who].take(),
            _ => {
                for at in 0..2 {
                    let came = std::mem::take(&mut world.queues[at].commands);
                    jobs.extend(came.into_iter().map(|(sqe, data)| Job {
                        at,
                        sqe,
                        data,
                        pull: None,
                    }));
                }
                if !jobs.is_empty() {
                    let job = jobs.swap_remove(rng.index(jobs.len()));
                    jobs.extend(work(&mut world, job));
                }
            }
        }
    }
    finish(world, peers, jobs, &numbers, faults);
}

/// Lets outstanding commands complete, then checks that all is correct or ended.
fn finish(
    mut world: World,
    mut peers: Vec<Peer>,
    mut jobs: Vec<Job>,
    numbers: &[u32],
    faults: bool,
) {
    // A long command takes a round for each message of its data.
    for _ in 0..600 {
        world.fabric.settle();
        world.turn();
        for at in 0..2 {
            let came = std::mem::take(&mut world.queues[at].commands);
            jobs.extend(came.into_iter().map(|(sqe, data)| Job { at, sqe, data, pull: None }));
        }
        jobs = jobs.into_iter().filter_map(|job| work(&mut world, job)).collect();
        peers.iter_mut().for_each(Peer::take);
    }
    if !faults {
        for (peer, number) in peers.iter().zip(numbers) {
            assert!(peer.out.is_empty(), "{} commands are not answered", peer.out.len());
            assert!(peer.done > 10, "hardly anything was done: {}", peer.done);
            assert_eq!(world.queues[peer.at].closed, None);
            let counters = world.fabric.endpoint(*number).unwrap();
            assert_eq!(counters.read_stalls, 0, "more READs than were negotiated");
        }
        assert_eq!(world.source().stale(), 0);
    }
    // Faults that show only when timeouts expire.
    world.fabric.advance(3_000_000_000);
    world.settle(&mut peers.iter_mut().map(|peer| &mut peer.host).collect::<Vec<_>>());
    world.fabric.advance(3_000_000_000);
    drop(jobs);
    for connection in &mut world.queues {
        connection.commands.clear();
    }
    let hosts = peers.into_iter().map(|peer| {
        drop(peer.out);
        peer.host
    });
    let hosts = hosts.collect();
    world.check_empty(hosts);
}

fn stories(seeds: std::ops::Range<u64>, faults: bool) {
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| story(seed, faults))) {
            eprintln!("seed {seed}, faults {faults}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn all_sorts_of_commands_are_carried_out() {
    stories(0..60, false);
}

#[test]
fn all_sorts_of_commands_and_a_fault() {
    stories(1000..1150, true);
}
