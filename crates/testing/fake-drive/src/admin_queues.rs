//! Creating and deleting I/O queues, and shadow doorbells (Base 5.4 to 5.8).

use nvmeof_wire::pcie::Doorbell;
use nvmeof_wire::queues::{
    CreateIoCq, CreateIoSq, DeleteIoQueue, DoorbellBufferConfig, QUEUE_ENTRIES_MIN,
};
use nvmeof_wire::{Sqe, Status};

use crate::controller::FakeController;
use crate::queues::{Cq, Sq};
use crate::work::Outcome;

impl FakeController {
    pub(crate) fn create_cq(&mut self, sqe: &Sqe) -> Outcome {
        let create = CreateIoCq::parse(sqe);
        let exists = self.cqs.contains_key(&create.qid);
        if let Err((status, rule)) =
            self.check_queue(create.qid, exists, create.entries, create.prp1, create.contiguous)
        {
            self.broke(0, sqe, rule);
            return status.with_dnr().into();
        }
        if create.vector.is_some_and(|vector| vector >= self.config.vectors) {
            self.broke(0, sqe, "an interrupt vector the function does not have");
            return Status::INVALID_INTERRUPT_VECTOR.with_dnr().into();
        }
        let cq = Cq::new(create.prp1, create.entries, create.vector);
        if self.space.check(cq.base, cq.bytes(), true).is_err() {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        self.cqs.insert(create.qid, cq);
        Outcome::success(0)
    }

    pub(crate) fn create_sq(&mut self, sqe: &Sqe) -> Outcome {
        let create = CreateIoSq::parse(sqe);
        let exists = self.sqs.contains_key(&create.qid);
        if let Err((status, rule)) =
            self.check_queue(create.qid, exists, create.entries, create.prp1, create.contiguous)
        {
            self.broke(0, sqe, rule);
            return status.with_dnr().into();
        }
        if create.cqid == 0 || !self.cqs.contains_key(&create.cqid) {
            self.broke(0, sqe, "a completion queue there is not");
            return Status::CQ_INVALID.with_dnr().into();
        }
        let sq = Sq::new(create.prp1, create.entries, create.cqid);
        if self.space.check(sq.base, sq.bytes(), false).is_err() {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        self.sqs.insert(create.qid, sq);
        Outcome::success(0)
    }

    fn check_queue(
        &self,
        qid: u16,
        exists: bool,
        entries: u32,
        prp1: u64,
        contiguous: bool,
    ) -> Result<(), (Status, &'static str)> {
        let most = self.config.cap.queue_entries();
        if qid == 0 || qid > self.features.queues || exists {
            Err((Status::INVALID_QUEUE_ID, "a queue identifier that is taken or was not granted"))
        } else if !(QUEUE_ENTRIES_MIN..=most).contains(&entries) {
            Err((Status::INVALID_QUEUE_SIZE, "a queue size that is not from 2 to CAP.MQES"))
        } else if !contiguous {
            Err((Status::INVALID_FIELD, "a queue that is not contiguous (CAP.CQR)"))
        } else if prp1 == 0 || !prp1.is_multiple_of(self.page_size()) {
            Err((Status::PRP_OFFSET_INVALID, "a queue that is not aligned to the memory page"))
        } else if !self.entry_sizes_are_set() {
            Err((Status::INVALID_QUEUE_SIZE, "CC.IOSQES and CC.IOCQES are not 6 and 4"))
        } else {
            Ok(())
        }
    }

    pub(crate) fn delete_sq(&mut self, sqe: &Sqe) -> Outcome {
        self.expect_no_data(0, sqe);
        let qid = DeleteIoQueue::parse(sqe).qid;
        if qid == 0 || !self.sqs.contains_key(&qid) {
            self.broke(0, sqe, "a submission queue there is not");
            return Status::INVALID_QUEUE_ID.with_dnr().into();
        }
        let (ended, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.held).into_iter().partition(|held| held.qid == qid);
        self.held = others;
        for held in ended {
            self.complete(qid, held.sqe.cid.get(), Status::ABORTED_SQ_DELETION, 0);
        }
        self.sqs.remove(&qid);
        Outcome::success(0)
    }

    pub(crate) fn delete_cq(&mut self, sqe: &Sqe) -> Outcome {
        self.expect_no_data(0, sqe);
        let qid = DeleteIoQueue::parse(sqe).qid;
        if qid == 0 || !self.cqs.contains_key(&qid) {
            self.broke(0, sqe, "a completion queue there is not");
            return Status::INVALID_QUEUE_ID.with_dnr().into();
        }
        if self.sqs.values().any(|sq| sq.cqid == qid) {
            self.broke(0, sqe, "a completion queue is deleted before its submission queues");
            return Status::INVALID_QUEUE_DELETION.with_dnr().into();
        }
        self.cqs.remove(&qid);
        Outcome::success(0)
    }

    pub(crate) fn configure_doorbells(&mut self, sqe: &Sqe) -> Outcome {
        let config = DoorbellBufferConfig::parse(sqe);
        let page = self.page_size();
        let is_page = |address: u64| address != 0 && address.is_multiple_of(page);
        if !is_page(config.shadow)
            || !is_page(config.event_idx)
            || config.shadow == config.event_idx
        {
            self.broke(0, sqe, "doorbell buffers that are not two memory pages");
            return Status::INVALID_FIELD.with_dnr().into();
        }
        let last = Doorbell::CompletionHead(self.features.queues);
        let dstrd = self.config.cap.dstrd();
        let len = page.max(last.stride_offset(dstrd) + 4);
        let is_mapped = self.space.check(config.shadow, len, false).is_ok()
            && self.space.check(config.event_idx, len, true).is_ok();
        if !is_mapped {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        self.shadow = Some((config.shadow, config.event_idx));
        self.adopt_shadows();
        Outcome::success(0)
    }

    /// Adopts the shadows as the doorbell values: they hold what the host rang before.
    fn adopt_shadows(&mut self) {
        let Some((shadow, events)) = self.shadow else { return };
        let dstrd = self.config.cap.dstrd();
        for (&qid, sq) in self.sqs.range(1..) {
            let offset = Doorbell::SubmissionTail(qid).stride_offset(dstrd);
            let _ = self.space.store(shadow + offset, sq.tail);
            let _ = self.space.store(events + offset, sq.tail);
        }
        for (&qid, cq) in self.cqs.range(1..) {
            let offset = Doorbell::CompletionHead(qid).stride_offset(dstrd);
            let _ = self.space.store(shadow + offset, cq.head);
            let _ = self.space.store(events + offset, cq.head);
        }
    }
}
