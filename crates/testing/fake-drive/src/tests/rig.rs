//! A minimal driver: one command at a time, on raw registers and memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_core::nvme_driver::function::{Function, Registers};
use nvmeof_wire::identify::{Cns, Identify};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::pcie::{self, Aqa, Doorbell};
use nvmeof_wire::properties::{Cc, Csts, offset};
use nvmeof_wire::queues::{CreateIoCq, CreateIoSq, QueuePriority};
use nvmeof_wire::{Cqe, Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::memory::Pages;
use crate::{FakeDrive, FakeDriveConfig};

/// A minimal driver of one fake.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) fake: FakeDrive,
    pub(super) function: Arc<dyn Function>,
    pub(super) registers: Arc<dyn Registers>,
    queues: BTreeMap<u16, Pair>,
    next_cid: u16,
}

/// A queue pair: submission queue in the first half of the pages, completion queue in the second.
#[derive(Debug)]
struct Pair {
    pages: Pages,
    entries: u32,
    tail: u32,
    head: u32,
    phase: bool,
}

impl Pair {
    fn cq_at(&self) -> usize {
        (self.entries as usize * 64).next_multiple_of(4096)
    }
}

impl Rig {
    pub(super) fn new(config: FakeDriveConfig) -> Self {
        let fake = FakeDrive::new(config);
        let function = fake.function();
        let registers = function.registers();
        function.set_bus_master(true).unwrap();
        Self { fake, function, registers, queues: BTreeMap::new(), next_cid: 0 }
    }

    /// Creates an enabled controller with an admin queue of `entries`.
    pub(super) fn enabled(config: FakeDriveConfig, entries: u16) -> Self {
        let mut rig = Self::new(config);
        rig.set_admin_queue(entries);
        rig.write_cc(Cc::new().with_en(true).with_iosqes(6).with_iocqes(4));
        rig.wait_ready(true);
        rig
    }

    /// Creates an enabled controller with I/O queue pair 1.
    pub(super) fn ready(config: FakeDriveConfig) -> Self {
        let mut rig = Self::enabled(config, 8);
        rig.create_pair(1, 16, None);
        rig
    }

    pub(super) fn pages(&self, len: usize) -> Pages {
        Pages::new(self.fake.parts.space.iommu(), len)
    }

    pub(super) fn set_admin_queue(&mut self, entries: u16) {
        let pair = self.pair(entries.into());
        let aqa = Aqa::with_entries(entries, entries);
        self.registers.write32(pcie::offset::AQA, aqa.into_bits());
        self.registers.write64(pcie::offset::ASQ, pair.pages.at(0));
        self.registers.write64(pcie::offset::ACQ, pair.pages.at(pair.cq_at()));
        self.queues.insert(0, pair);
    }

    pub(super) fn write_cc(&self, cc: Cc) {
        self.registers.write32(offset::CC, cc.into_bits());
    }

    pub(super) fn csts(&self) -> Csts {
        Csts::from_bits(self.registers.read32(offset::CSTS))
    }

    pub(super) fn wait_ready(&self, ready: bool) {
        assert!((0..100).any(|_| self.csts().rdy() == ready), "CSTS.RDY stays {}", !ready);
    }

    fn pair(&self, entries: u32) -> Pair {
        let len = (entries as usize * 64).next_multiple_of(4096) + entries as usize * 16;
        Pair { pages: self.pages(len), entries, tail: 0, head: 0, phase: true }
    }

    /// Creates queue pair `qid`, and expects success.
    pub(super) fn create_pair(&mut self, qid: u16, entries: u32, vector: Option<u16>) {
        let pair = self.pair(entries);
        let (prp1, cq) = (pair.pages.at(0), pair.pages.at(pair.cq_at()));
        self.queues.insert(qid, pair);
        let create = CreateIoCq { qid, entries, prp1: cq, contiguous: true, vector };
        assert_eq!(self.admin(create.encode(0)).status(), Status::SUCCESS);
        let priority = QueuePriority::URGENT;
        let create =
            CreateIoSq { qid, entries, prp1, contiguous: true, priority, cqid: qid, nvm_set: 0 };
        assert_eq!(self.admin(create.encode(0)).status(), Status::SUCCESS);
    }

    /// Puts a command into its queue, with a new identifier, without a doorbell.
    pub(super) fn push(&mut self, qid: u16, mut sqe: Sqe) -> u16 {
        self.next_cid += 1;
        sqe.cid.set(self.next_cid);
        self.push_as_is(qid, sqe);
        self.next_cid
    }

    pub(super) fn push_as_is(&mut self, qid: u16, sqe: Sqe) {
        let pair = self.queues.get_mut(&qid).unwrap();
        pair.pages.put(pair.tail as usize * 64, sqe.as_bytes());
        pair.tail = (pair.tail + 1) % pair.entries;
    }

    pub(super) fn tail(&self, qid: u16) -> u32 {
        self.queues[&qid].tail
    }

    pub(super) fn ring(&self, qid: u16) {
        self.doorbell(Doorbell::SubmissionTail(qid), self.tail(qid));
    }

    pub(super) fn doorbell(&self, doorbell: Doorbell, value: u32) {
        self.registers.write32(doorbell.offset(0).unwrap(), value);
    }

    pub(super) fn submit(&mut self, qid: u16, sqe: Sqe) -> u16 {
        let cid = self.push(qid, sqe);
        self.ring(qid);
        cid
    }

    /// Returns the next completion, if there is one, without a doorbell.
    pub(super) fn look(&mut self, qid: u16) -> Option<Cqe> {
        let pair = self.queues.get_mut(&qid).unwrap();
        let bytes = pair.pages.get(pair.cq_at() + pair.head as usize * 16, 16);
        let cqe = Cqe::read_from_bytes(&bytes).unwrap();
        if cqe.phase() != pair.phase {
            return None;
        }
        pair.head = (pair.head + 1) % pair.entries;
        pair.phase ^= pair.head == 0;
        Some(cqe)
    }

    /// Returns the next completion, if there is one.
    pub(super) fn poll(&mut self, qid: u16) -> Option<Cqe> {
        let cqe = self.look(qid)?;
        self.doorbell(Doorbell::CompletionHead(qid), self.queues[&qid].head);
        Some(cqe)
    }

    /// Submits a command and expects its immediate completion.
    pub(super) fn command(&mut self, qid: u16, sqe: Sqe) -> Cqe {
        let cid = self.submit(qid, sqe);
        let cqe = self.poll(qid).expect("a completion");
        assert_eq!((cqe.cid.get(), cqe.sqid.get()), (cid, qid));
        cqe
    }

    pub(super) fn admin(&mut self, sqe: Sqe) -> Cqe {
        self.command(0, sqe)
    }

    /// Returns the data of an Identify command.
    pub(super) fn identify(&mut self, cns: Cns, nsid: u32) -> (Status, Vec<u8>) {
        let page = self.pages(4096);
        let sqe = Identify::new(cns, nsid).encode(0).with_prp(page.at(0), 0);
        (self.admin(sqe).status(), page.get(0, 4096))
    }

    /// Reads or writes blocks of namespace 1 through queue 1, with `prp`.
    pub(super) fn io(&mut self, opcode: IoOpcode, slba: u64, blocks: u32, prp: [u64; 2]) -> Status {
        let sqe = BlockIo::new(slba, blocks).encode(opcode, 0, 1).with_prp(prp[0], prp[1]);
        self.command(1, sqe).status()
    }

    /// Expects exactly one violation.
    #[track_caller]
    pub(super) fn expect_one_violation(&self) {
        let (violations, faults) = self.fake.take_findings();
        assert_eq!((violations.len(), faults.len()), (1, 0), "{violations:#?} {faults:#x?}");
    }
}
