//! Injected faults, and rules that the driver violated.

use std::fmt::Debug;

use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::{Cqe, Sqe, Status};

/// Fault that replaces the normal processing of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The command is taken and never completed; aborting it works (if aborts are configured to).
    Lost,
    /// The command executes and completes when [`FakeDrive::release`](super::FakeDrive::release) is
    /// called. Until then it may still access its data.
    Held,
    /// The command does not execute, and completes with this status.
    Status(Status),
    /// The command executes, and completes with this status nevertheless.
    DoneBut(Status),
    /// The command executes; its completion has the previous phase, so it looks absent.
    WrongPhase,
    /// The command executes, and completes with this command identifier.
    WrongCid(u16),
    /// The command executes, and completes for this submission queue.
    WrongSqid(u16),
    /// The command executes, and completes with this SQ head.
    WrongSqhd(u16),
    /// The command executes, and completes twice.
    Duplicate,
    /// The command does not execute; the controller sets CSTS.CFS and stops.
    Fatal,
    /// The command does not execute; the function is missing, and its registers read as all ones.
    Gone,
    /// The command executes and returns these bytes, repeated to the required length. For commands
    /// that read.
    Data(Vec<u8>),
}

/// Selection of commands for a [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// Queue; any if `None`.
    pub qid: Option<u16>,
    /// Opcode; any if `None`.
    pub opcode: Option<u8>,
    /// Number of matching commands to skip first.
    pub skip: u32,
    /// Number of commands affected after those.
    pub times: u32,
}

impl When {
    /// Selects the next command of any queue.
    #[must_use]
    pub const fn next() -> Self {
        Self { qid: None, opcode: None, skip: 0, times: 1 }
    }

    /// Selects the next admin command with this opcode.
    #[must_use]
    pub const fn admin(opcode: AdminOpcode) -> Self {
        Self { qid: Some(0), opcode: Some(opcode.0), ..Self::next() }
    }

    /// Selects the next command of queue `qid`.
    #[must_use]
    pub const fn queue(qid: u16) -> Self {
        Self { qid: Some(qid), ..Self::next() }
    }

    /// Selects the next command with this opcode of I/O queue `qid`.
    #[must_use]
    pub const fn io(qid: u16, opcode: IoOpcode) -> Self {
        Self { qid: Some(qid), opcode: Some(opcode.0), ..Self::next() }
    }

    /// Skips the first `skip` matches.
    #[must_use]
    pub const fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// Affects `times` commands.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// Pending faults.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    entries: Vec<(When, Fault)>,
}

impl Plan {
    pub(crate) fn add(&mut self, when: When, fault: Fault) {
        self.entries.push((when, fault));
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the first matching fault for this command. Every matching entry counts it.
    pub(crate) fn take(&mut self, qid: u16, opcode: u8) -> Option<Fault> {
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

/// Changes the controller's output arbitrarily, for results that no [`Fault`] covers.
pub trait Tamper: Debug + Send {
    /// Returns the value for a read of a register of 4 or 8 bytes.
    fn register(&mut self, offset: u32, value: u64) -> u64 {
        let _ = offset;
        value
    }

    /// Changes the data that a command returns.
    fn data(&mut self, sqe: &Sqe, qid: u16, data: &mut [u8]) {
        let _ = (sqe, qid, data);
    }

    /// Changes a completion before it is written to completion queue `cqid`.
    fn completion(&mut self, cqid: u16, cqe: &mut Cqe) {
        let _ = (cqid, cqe);
    }
}

/// Rule violated by the driver. The behavior of a real controller would be undefined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// Violation by a register access.
    Register {
        /// Offset into BAR0.
        offset: u32,
        /// Value written; 0 for a read.
        value: u64,
        /// Description of the rule.
        rule: &'static str,
    },
    /// Violation by a command.
    Command {
        /// Submission queue.
        qid: u16,
        /// Command identifier.
        cid: u16,
        /// Opcode.
        opcode: u8,
        /// Description of the rule.
        rule: &'static str,
    },
    /// Violation by a write of CC.
    Configuration {
        /// The value.
        cc: u32,
        /// Description of the rule.
        rule: &'static str,
    },
}
