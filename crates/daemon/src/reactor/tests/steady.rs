//! Cost of a turn in steady state: what is idle costs nothing, and nothing is allocated.

use std::cell::Cell;
use std::sync::Arc;

use nvmeof_allocations::allocations;
use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, DeviceInfo, RamDevice, Rejected,
};
use nvmeof_core::dma::CorePool;
use nvmeof_pacing::PolicyConfig;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Sgl, Sqe};

use super::peer::Peer;
use super::rig::{BLOCK, BLOCKS, Rig, SUBSYSTEM};

const HOST: &str = "nqn.2026-11.io.nvmeof-tgt:steady";
const QUEUES: u16 = 8;
/// Hosts of [`QUEUES`] queues each whose turns together must not allocate.
const HOSTS: usize = 8;
const DEPTH: u16 = 4;
/// Rounds until every list has its size, and rounds that are counted.
const ROUNDS: u32 = 50;
/// Nanoseconds of a turn.
const TURN: u64 = 100;

thread_local! {
    static POLLS: Cell<u64> = const { Cell::new(0) };
}

/// Connects an admin queue, which comes first, and I/O queues.
fn connect(rig: &mut Rig, queues: u16) -> Vec<Peer> {
    let mut admin = rig.attach_tcp();
    let cntlid = admin.enable(rig, SUBSYSTEM, HOST, 32);
    let mut peers = vec![admin];
    for qid in 1..=queues {
        let mut io = rig.attach_tcp();
        io.connect_queue(rig, (SUBSYSTEM, HOST), (qid, 32), cntlid);
        peers.push(io);
    }
    peers
}

fn read(cid: u16) -> Sqe {
    let io = BlockIo::new(u64::from(cid) * 8, 1);
    io.encode(IoOpcode::READ, cid, 1).with_sgl(Sgl::Transport { length: BLOCK })
}

/// Sends this many reads to each queue and waits for them. Returns the allocations of the turns.
fn round(rig: &mut Rig, peers: &mut [Peer], depth: u16) -> u64 {
    for peer in &mut *peers {
        (0..depth).for_each(|cid| peer.capsule(read(cid), &[]));
        assert!(peer.write());
    }
    let mut allocated = 0;
    for _ in 0..100_000 {
        let before = allocations();
        rig.turn_after(TURN);
        allocated += allocations() - before;
        peers.iter_mut().for_each(Peer::read);
        if peers.iter().all(|peer| peer.data.len() == usize::from(depth)) {
            peers.iter_mut().for_each(|peer| peer.data.clear());
            return allocated;
        }
    }
    panic!("no answers");
}

/// Runs rounds with a tick of the timers after each. Returns the allocations of turns and ticks.
fn rounds(rig: &mut Rig, peers: &mut [Peer]) -> u64 {
    let each = |_| {
        let allocated = round(rig, peers, DEPTH);
        let before = allocations();
        rig.tick();
        allocated + allocations() - before
    };
    (0..ROUNDS).map(each).sum()
}

#[test]
fn a_turn_in_steady_state_allocates_nothing() {
    for policy in [PolicyConfig::None, PolicyConfig::default()] {
        let mut rig = Rig::new(None);
        rig.set_policy(&policy);
        drop(rig.replace_device(BLOCKS));
        rig.settle();
        let (mut admins, mut io) = (Vec::new(), Vec::new());
        for _ in 0..HOSTS {
            let mut peers = connect(&mut rig, QUEUES);
            io.extend(peers.drain(1..));
            admins.extend(peers);
        }
        let warm = rounds(&mut rig, &mut io);
        let allocated = rounds(&mut rig, &mut io);
        assert_eq!(allocated, 0, "{policy:?}");
        assert!(warm > 0, "the lists grow at first, which is counted");
        drop((admins, io));
        rig.finish([]);
    }
}

#[test]
fn a_connection_without_input_is_not_read() {
    let mut rig = Rig::new(None);
    let mut peers = connect(&mut rig, QUEUES);
    rig.settle();
    for active in 1..=usize::from(QUEUES) {
        let polls = |rig: &mut Rig| rig.report(false).counters.ports[0].polls;
        let before = polls(&mut rig);
        for _ in 0..ROUNDS {
            round(&mut rig, &mut peers[1..=active], 1);
        }
        let commands = u64::from(ROUNDS) * active as u64;
        let reads = polls(&mut rig) - before;
        assert_eq!(reads, commands, "{active} of {QUEUES} queues");
    }
    drop(peers);
    rig.finish([]);
}

#[derive(Debug)]
struct Counted(RamDevice);

#[derive(Debug)]
struct CountedQueue(Box<dyn BlockQueue>);

impl BlockDevice for Counted {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(CountedQueue(self.0.open_queue(pool)?)))
    }
}

impl BlockQueue for CountedQueue {
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        self.0.submit(op)
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        POLLS.set(POLLS.get() + 1);
        self.0.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}

#[test]
fn a_device_without_work_is_not_polled() {
    let mut rig = Rig::new(None);
    let host = rig.connect_io();
    for number in 1..100 {
        let ram = RamDevice::new("idle", 1 << 20, BLOCK).unwrap();
        rig.add_idle_device(number, Arc::new(Counted(ram)));
    }
    rig.turns(2);
    let before = POLLS.get();
    assert_eq!(before, 99, "each once, after it was added");
    for cid in 0..8 {
        host.read(cid, 0, BLOCK);
        rig.turns(4);
    }
    host.collect();
    assert_eq!(POLLS.get(), before);
    rig.finish([host]);
}
