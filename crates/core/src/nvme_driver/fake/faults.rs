//! What goes wrong, and which rules the driver broke.

use std::fmt::Debug;

use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::{Cqe, Sqe, Status};

/// What happens to a command in place of what should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is taken and never completed; an Abort of it works (if aborts help).
    Lost,
    /// It is done and completed when [`Fake::release`](super::Fake::release) is called. Until then it may still reach
    /// for its data.
    Held,
    /// It is not done, and completed with this status.
    Status(Status),
    /// It is done, and completed with this status all the same.
    DoneBut(Status),
    /// It is done, and its completion has the phase of the round before: it looks as if it were not there.
    WrongPhase,
    /// It is done, and completed under this command identifier.
    WrongCid(u16),
    /// It is done, and completed for this submission queue.
    WrongSqid(u16),
    /// It is done, and completed with this SQ head.
    WrongSqhd(u16),
    /// It is done, and completed twice.
    Duplicate,
    /// It is not done; the controller sets CSTS.CFS and stops.
    Fatal,
    /// It is not done; the function is gone, and all its registers read as ones.
    Gone,
    /// It is done, with these bytes as its data, repeated as often as it takes. For commands that read.
    Data(Vec<u8>),
}

/// Which commands a [`Fault`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// Of this queue; any if `None`.
    pub qid: Option<u16>,
    /// With this opcode; any if `None`.
    pub opcode: Option<u8>,
    /// Commands that match and are let pass first.
    pub skip: u32,
    /// Commands it is for, after those.
    pub times: u32,
}

impl When {
    /// The next command of any queue.
    #[must_use]
    pub const fn next() -> Self {
        Self { qid: None, opcode: None, skip: 0, times: 1 }
    }

    /// The next admin command with this opcode.
    #[must_use]
    pub const fn admin(opcode: AdminOpcode) -> Self {
        Self { qid: Some(0), opcode: Some(opcode.0), ..Self::next() }
    }

    /// The next command of queue `qid`.
    #[must_use]
    pub const fn queue(qid: u16) -> Self {
        Self { qid: Some(qid), ..Self::next() }
    }

    /// The next command with this opcode of I/O queue `qid`.
    #[must_use]
    pub const fn io(qid: u16, opcode: IoOpcode) -> Self {
        Self { qid: Some(qid), opcode: Some(opcode.0), ..Self::next() }
    }

    /// Only after `skip` that match.
    #[must_use]
    pub const fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// For so many commands.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(super) struct Plan {
    entries: Vec<(When, Fault)>,
}

impl Plan {
    pub(super) fn add(&mut self, when: When, fault: Fault) {
        self.entries.push((when, fault));
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The fault for this command: the first that matches. All that match count it.
    pub(super) fn take(&mut self, qid: u16, opcode: u8) -> Option<Fault> {
        let mut found = None;
        for (when, fault) in &mut self.entries {
            let matches = when.qid.is_none_or(|wanted| wanted == qid)
                && when.opcode.is_none_or(|wanted| wanted == opcode);
            if !matches || when.times == 0 {
                continue;
            }
            if when.skip > 0 {
                when.skip -= 1;
            } else if found.is_none() {
                when.times -= 1;
                found = Some(fault.clone());
            }
        }
        self.entries.retain(|(when, _)| when.times > 0);
        found
    }
}

/// Changes what the controller says, at will: for answers no list of faults has.
pub trait Tamper: Debug + Send {
    /// A register was read, of 4 or 8 bytes; what it held.
    fn register(&mut self, offset: u32, value: u64) -> u64 {
        let _ = offset;
        value
    }

    /// Data a command is about to return.
    fn data(&mut self, sqe: &Sqe, qid: u16, data: &mut [u8]) {
        let _ = (sqe, qid, data);
    }

    /// A completion that is about to be written to completion queue `cqid`.
    fn completion(&mut self, cqid: u16, cqe: &mut Cqe) {
        let _ = (cqid, cqe);
    }
}

/// A rule that the driver broke. A real controller may have done anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// By an access of a register.
    Register {
        /// Offset into BAR0.
        offset: u32,
        /// Value written; 0 for a read.
        value: u64,
        /// The rule.
        rule: &'static str,
    },
    /// By a command.
    Command {
        /// Its submission queue.
        qid: u16,
        /// Its identifier.
        cid: u16,
        /// Its opcode.
        opcode: u8,
        /// The rule.
        rule: &'static str,
    },
    /// By a write of CC.
    Configuration {
        /// The value.
        cc: u32,
        /// The rule.
        rule: &'static str,
    },
}
