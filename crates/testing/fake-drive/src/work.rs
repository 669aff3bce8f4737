//! Command processing: takes commands, executes and completes them.

use std::sync::Arc;

use nvmeof_wire::pcie::Doorbell;
use nvmeof_wire::sqe::Fuse;
use nvmeof_wire::{Cqe, Sqe, Status};

use crate::controller::FakeController;
use crate::data::{Pieces, Rules};
use crate::faults::{Fault, Violation};

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Completed with this status and result.
    Done(Status, u64),
    /// Not completed yet.
    Waits,
}

impl Outcome {
    pub(crate) const fn success(result: u64) -> Self {
        Self::Done(Status::SUCCESS, result)
    }
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        Self::Done(status, 0)
    }
}

impl From<Result<(), Status>> for Outcome {
    fn from(result: Result<(), Status>) -> Self {
        Self::Done(result.err().unwrap_or(Status::SUCCESS), 0)
    }
}

/// A command that a fault keeps from completing.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) qid: u16,
    pub(crate) sqe: Sqe,
    /// True if it never completes.
    pub(crate) lost: bool,
}

impl FakeController {
    /// Processes all commands; returns their number.
    pub(crate) fn run(&mut self) -> usize {
        let mut commands = 0;
        while self.step() {
            commands += 1;
        }
        commands
    }

    /// Processes the next command; returns true if there was one.
    pub(crate) fn step(&mut self) -> bool {
        if !self.is_running() {
            return false;
        }
        let Some(qid) = self.next_queue() else { return false };
        let space = Arc::clone(&self.space);
        let Some(sq) = self.sqs.get_mut(&qid) else { return false };
        let Ok(Some(sqe)) = sq.take(&space) else {
            // The controller cannot read its queue.
            self.fatal = true;
            return false;
        };
        let cid = sqe.cid.get();
        let is_open = sq.open.contains(&cid);
        sq.open.push(cid);
        *self.taken.entry((qid, sqe.opcode)).or_default() += 1;
        if is_open {
            self.broke(qid, &sqe, "an identifier that another command still has");
            self.complete(qid, cid, Status::CID_CONFLICT.with_dnr(), 0);
        } else {
            let fault = self.plan.take(qid, sqe.opcode);
            self.act(qid, sqe, fault);
        }
        true
    }

    fn act(&mut self, qid: u16, sqe: Sqe, fault: Option<Fault>) {
        match fault {
            Some(Fault::Lost) => self.held.push(Held { qid, sqe, lost: true }),
            Some(Fault::Held) => self.held.push(Held { qid, sqe, lost: false }),
            Some(Fault::Status(status)) => self.end(qid, &sqe, status.into(), None),
            Some(Fault::Fatal) => self.fatal = true,
            Some(Fault::Gone) => self.gone = true,
            fault => self.do_and_complete(qid, &sqe, fault.as_ref()),
        }
    }

    fn do_and_complete(&mut self, qid: u16, sqe: &Sqe, fault: Option<&Fault>) {
        if let Some(Fault::Data(bytes)) = fault {
            self.forced = Some(bytes.clone());
        }
        let outcome = self.execute(qid, sqe);
        self.forced = None;
        let outcome = match (outcome, fault) {
            (Outcome::Done(_, result), Some(Fault::DoneBut(status))) => {
                Outcome::Done(*status, result)
            }
            (outcome, _) => outcome,
        };
        self.end(qid, sqe, outcome, fault);
        self.send_events();
    }

    fn end(&mut self, qid: u16, sqe: &Sqe, outcome: Outcome, fault: Option<&Fault>) {
        let Outcome::Done(status, result) = outcome else { return };
        if !status.is_success() {
            self.logs.note_error(qid, sqe, status, self.config.identify.elpe);
        }
        self.post(qid, sqe.cid.get(), status, result, fault);
    }

    /// Executes a command.
    fn execute(&mut self, qid: u16, sqe: &Sqe) -> Outcome {
        if sqe.flags & 0x3c != 0 {
            self.broke(qid, sqe, "reserved bits of dword 0 are set");
        }
        if sqe.fuse() != Fuse::None {
            self.broke(qid, sqe, "a fused command, which are not supported");
            return Status::INVALID_FIELD.with_dnr().into();
        }
        if qid == 0 { self.admin(sqe) } else { self.io(qid, sqe) }
    }

    /// Completes a command.
    pub(crate) fn complete(&mut self, qid: u16, cid: u16, status: Status, result: u64) {
        self.post(qid, cid, status, result, None);
    }

    fn post(&mut self, qid: u16, cid: u16, status: Status, result: u64, fault: Option<&Fault>) {
        let Some(sq) = self.sqs.get_mut(&qid) else { return };
        if let Some(index) = sq.open.iter().position(|&open| open == cid) {
            sq.open.swap_remove(index);
        }
        sq.told = sq.head;
        let cqid = sq.cqid;
        let head = u16::try_from(sq.head).unwrap_or(0);
        let mut cqe = Cqe::new(cid, status).with_result(result).with_sqhd(head).with_sqid(qid);
        match fault {
            Some(Fault::WrongCid(cid)) => cqe.cid.set(*cid),
            Some(Fault::WrongSqid(sqid)) => cqe.sqid.set(*sqid),
            Some(Fault::WrongSqhd(sqhd)) => cqe.sqhd.set(*sqhd),
            _ => (),
        }
        if let Some(tamper) = &mut self.tamper {
            tamper.completion(cqid, &mut cqe);
        }
        let Some(cq) = self.cqs.get_mut(&cqid) else { return };
        cq.waiting.push_back((cqe, matches!(fault, Some(Fault::WrongPhase))));
        if matches!(fault, Some(Fault::Duplicate)) {
            cq.waiting.push_back((cqe, false));
        }
        if cq.flush(&self.space).is_err() {
            self.fatal = true;
        }
        self.interrupt(cqid);
    }

    /// Executes and completes held commands.
    pub(crate) fn release(&mut self) -> usize {
        let (lost, late): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.held).into_iter().partition(|held| held.lost);
        self.held = lost;
        if !self.is_running() {
            return 0;
        }
        for held in &late {
            self.do_and_complete(held.qid, &held.sqe, None);
        }
        late.len()
    }

    /// Raises the interrupt for new entries of a completion queue.
    pub(crate) fn interrupt(&mut self, cqid: u16) {
        let Some(cq) = self.cqs.get_mut(&cqid) else { return };
        if !std::mem::take(&mut cq.rang) || !self.is_armed {
            return;
        }
        let Some(descriptor) =
            cq.vector.and_then(|vector| self.interrupts.get(usize::from(vector)))
        else {
            return;
        };
        // A failed write means that the counter is at its limit, so it is readable anyway.
        let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
    }

    /// Returns the next submission queue, in round robin, with a command and room for its
    /// completion.
    fn next_queue(&mut self) -> Option<u16> {
        let start = self.turn;
        let mut found = self.first_with_work(start, u16::MAX);
        if found.is_none() && start > 0 {
            found = self.first_with_work(0, start - 1);
        }
        if found.is_none() && self.arm_shadows() {
            found = self.first_with_work(0, u16::MAX);
        }
        self.turn = found?.wrapping_add(1);
        found
    }

    fn first_with_work(&mut self, from: u16, to: u16) -> Option<u16> {
        let mut next = from;
        while let Some(qid) = self.sqs.range(next..=to).next().map(|(&qid, _)| qid) {
            if self.has_work(qid) {
                return Some(qid);
            }
            next = qid.checked_add(1).filter(|&next| next <= to)?;
        }
        None
    }

    fn has_work(&mut self, qid: u16) -> bool {
        self.refresh(Doorbell::SubmissionTail(qid), qid);
        let is_busy = self.config.one_admin_at_a_time && qid == 0;
        if is_busy && self.held.iter().any(|held| held.qid == 0) {
            return false;
        }
        let Some(sq) = self.sqs.get(&qid) else { return false };
        let (is_empty, cqid) = (sq.head == sq.tail, sq.cqid);
        if is_empty {
            return false;
        }
        if self.cq_has_room(cqid) {
            return true;
        }
        self.arm(Doorbell::CompletionHead(cqid), cqid);
        self.refresh(Doorbell::CompletionHead(cqid), cqid);
        self.cq_has_room(cqid)
    }

    fn cq_has_room(&self, cqid: u16) -> bool {
        self.cqs.get(&cqid).is_some_and(|cq| cq.waiting.is_empty() && !cq.is_full())
    }

    /// Reads a doorbell's shadow, if there is one.
    fn refresh(&mut self, doorbell: Doorbell, qid: u16) {
        let (Some((shadow, _)), true) = (self.shadow, qid > 0) else { return };
        let offset = doorbell.stride_offset(self.config.cap.dstrd());
        let Ok(value) = self.space.load(shadow + offset) else { return };
        if let Some(Err(rule)) = self.ring(doorbell, value, true) {
            let offset = doorbell.offset(self.config.cap.dstrd()).unwrap_or(0);
            self.violations.push(Violation::Register { offset, value: value.into(), rule });
        }
    }

    /// Requests a real doorbell when the shadow exceeds the known value.
    fn arm(&mut self, doorbell: Doorbell, qid: u16) {
        let (Some((_, events)), true) = (self.shadow, qid > 0) else { return };
        let known = match doorbell {
            Doorbell::SubmissionTail(_) => self.sqs.get(&qid).map(|sq| sq.tail),
            Doorbell::CompletionHead(_) => self.cqs.get(&qid).map(|cq| cq.head),
        };
        let offset = doorbell.stride_offset(self.config.cap.dstrd());
        let _ = self.space.store(events + offset, known.unwrap_or(0));
    }

    /// Requests doorbells of all submission queues before going idle, and checks once more. Returns
    /// true if there is work.
    fn arm_shadows(&mut self) -> bool {
        if self.shadow.is_none() {
            return false;
        }
        let qids: Vec<u16> = self.sqs.keys().copied().filter(|&qid| qid > 0).collect();
        let mut found = false;
        for qid in qids {
            self.arm(Doorbell::SubmissionTail(qid), qid);
            found |= self.has_work(qid);
        }
        found
    }

    /// Sends `data` to the host.
    pub(crate) fn return_data(&mut self, qid: u16, sqe: &Sqe, data: &[u8]) -> Result<(), Status> {
        let pieces = self.pieces(qid, sqe, data.len() as u64, true)?;
        let space = Arc::clone(&self.space);
        let write =
            |data: &[u8]| pieces.write(&space, data).map_err(|_| Status::DATA_TRANSFER_ERROR);
        if self.forced.is_none() && self.tamper.is_none() {
            return write(data);
        }
        let mut data = data.to_vec();
        if let Some(forced) = &self.forced {
            data.iter_mut().zip(forced.iter().cycle()).for_each(|(to, byte)| *to = *byte);
        }
        if let Some(tamper) = &mut self.tamper {
            tamper.data(sqe, qid, &mut data);
        }
        write(&data)
    }

    /// Reads data from the host.
    pub(crate) fn take_data(&mut self, qid: u16, sqe: &Sqe, data: &mut [u8]) -> Result<(), Status> {
        let pieces = self.pieces(qid, sqe, data.len() as u64, false)?;
        pieces.read(&self.space, data).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    fn pieces(&mut self, qid: u16, sqe: &Sqe, len: u64, to_host: bool) -> Result<Pieces, Status> {
        let sgls = if qid == 0 { 0 } else { self.config.identify.sgls.get() };
        let rules = Rules { page_size: self.page_size(), sgls, to_host };
        Pieces::of(sqe, len, rules, &self.space).map_err(|refused| {
            if let Some(rule) = refused.rule {
                self.broke(qid, sqe, rule);
            }
            refused.status.with_dnr()
        })
    }

    /// Checks that a command without data has no data pointer.
    pub(crate) fn expect_no_data(&mut self, qid: u16, sqe: &Sqe) {
        if sqe.flags & 0xc0 != 0 || sqe.prp() != (0, 0) {
            self.broke(qid, sqe, "a data pointer, or PSDT, where there is no data");
        }
    }

    pub(crate) fn is_beyond_mdts(&self, len: u64) -> bool {
        let page = self.config.cap.page_size_min();
        self.config.identify.max_transfer(page).is_some_and(|most| len > most)
    }

    pub(crate) fn broke(&mut self, qid: u16, sqe: &Sqe, rule: &'static str) {
        let (cid, opcode) = (sqe.cid.get(), sqe.opcode);
        self.violations.push(Violation::Command { qid, cid, opcode, rule });
    }
}
