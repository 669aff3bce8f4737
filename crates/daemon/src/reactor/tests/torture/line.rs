//! One queue of a host: its connection, and the commands in flight.

use std::collections::BTreeMap;

use nvmeof_history::{ReadId, WriteId};
use nvmeof_loopback_fabric::LoopbackHost;
use nvmeof_transport::FabricError;
use nvmeof_wire::{Cqe, Sqe};

/// Purpose of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Connect,
    /// CC.EN = 1.
    Enable,
    /// CC.EN = 0, or CC.SHN.
    Stop,
    /// Reads CSTS.
    Look,
    KeepAlive,
    Disconnect,
    /// Its response proves that the target has read all earlier commands.
    Marker,
    Flush,
    Write(WriteId),
    /// A deallocation: the blocks read as zeroes, or as their earlier content.
    Deallocate(WriteId),
    Read(ReadId),
}

/// Response to a command.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) sent: Sent,
    pub(super) cqe: Cqe,
    pub(super) data: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Line {
    /// Number that no other line has.
    pub(super) number: u64,
    pub(super) qid: u16,
    fabric: LoopbackHost,
    /// Commands in flight by command identifier, with their purpose and time.
    out: BTreeMap<u16, (Sent, u64)>,
    last_cid: u16,
    /// Data of writes that is offered only at these times.
    late: Vec<(u64, u16, Vec<u8>)>,
}

impl Line {
    pub(super) fn new(number: u64, qid: u16, fabric: LoopbackHost) -> Self {
        Self { number, qid, fabric, out: BTreeMap::new(), last_cid: 0, late: Vec::new() }
    }

    /// Sends the command that `encode` makes with a new identifier.
    pub(super) fn send(
        &mut self,
        now: u64,
        sent: Sent,
        data: &[u8],
        encode: impl FnOnce(u16) -> Sqe,
    ) -> u16 {
        // Identifiers are never reused: the fabric keeps the data that was offered for a command.
        self.last_cid += 1;
        let cid = self.last_cid;
        self.out.insert(cid, (sent, now));
        self.fabric.send(encode(cid), data);
        cid
    }

    /// Sends a command whose in-capsule data arrives damaged.
    pub(super) fn send_damaged(&mut self, now: u64, sent: Sent, encode: impl FnOnce(u16) -> Sqe) {
        self.last_cid += 1;
        self.out.insert(self.last_cid, (sent, now));
        self.fabric.send_bad(encode(self.last_cid), FabricError::DataDigest);
    }

    /// Damages the data of a write when the target next fetches some.
    pub(super) fn damage_next(&self) {
        self.fabric.fail_next(FabricError::DataDigest);
    }

    /// Schedules the offer of a write's data at this time.
    pub(super) fn offer(&mut self, at: u64, cid: u16, data: Vec<u8>) {
        self.late.push((at, cid, data));
    }

    /// Offers the data that is due.
    pub(super) fn turn(&mut self, now: u64) {
        let (due, late) =
            std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = late;
        let due: Vec<(u64, u16, Vec<u8>)> = due;
        due.into_iter().for_each(|(_, cid, data)| self.fabric.offer(cid, data));
    }

    /// Returns the responses since the last call.
    pub(super) fn take(&mut self) -> Vec<Answer> {
        let answers = self.fabric.take().into_iter();
        let matched = answers.map(|delivery| {
            let cid = delivery.cqe.cid.get();
            let (sent, _) = self.out.remove(&cid).expect("an answer to a command that was sent");
            Answer { sent, cqe: delivery.cqe, data: delivery.data }
        });
        matched.collect()
    }

    /// Returns the number of commands without a response.
    pub(super) fn outstanding(&self) -> usize {
        self.out.len()
    }

    pub(super) fn has_out(&self, sent: Sent) -> bool {
        self.out.values().any(|(known, _)| *known == sent)
    }

    /// Returns the oldest command without a response, and its time.
    pub(super) fn oldest(&self) -> Option<(Sent, u64)> {
        self.out.values().copied().min_by_key(|(_, since)| *since)
    }

    /// Cuts the connection.
    pub(super) fn close(&self) {
        self.fabric.close();
    }

    /// Returns true if the target has ended the connection, or detected that it is cut.
    pub(super) fn is_closed(&self) -> bool {
        self.fabric.closed().is_some()
    }
}
