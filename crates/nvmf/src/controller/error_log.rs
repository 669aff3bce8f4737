//! The error information log of a controller (Base 5.16.1.2).

use std::collections::VecDeque;

use nvmeof_wire::Status;

use crate::limits::ERROR_LOG_ENTRIES;

/// A failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorRecord {
    /// Errors so far, including this one; never 0.
    pub(crate) count: u64,
    /// ID of its queue.
    pub(crate) sqid: u16,
    /// Command identifier.
    pub(crate) cid: u16,
    /// Status of its completion.
    pub(crate) status: Status,
    /// First logical block, if any.
    pub(crate) lba: u64,
    /// NSID.
    pub(crate) nsid: u32,
    /// Opcode (Base 2.0 OPC).
    pub(crate) opcode: u8,
}

/// The latest errors.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    count: u64,
    newest_first: VecDeque<ErrorRecord>,
}

impl ErrorLog {
    /// Adds an error and sets its `count`.
    pub(crate) fn push(&mut self, record: ErrorRecord) {
        self.count = self.count.wrapping_add(1).max(1);
        self.newest_first.truncate(ERROR_LOG_ENTRIES - 1);
        self.newest_first.push_front(ErrorRecord { count: self.count, ..record });
    }

    /// Errors so far (SMART: number of error information log entries).
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Iterates over the latest errors, newest first, at most [`ERROR_LOG_ENTRIES`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ErrorRecord> {
        self.newest_first.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_errors_are_kept() {
        let mut log = ErrorLog::default();
        let record = ErrorRecord {
            count: 0,
            sqid: 0,
            cid: 0,
            status: Status::INVALID_OPCODE,
            lba: 0,
            nsid: 0,
            opcode: 0,
        };
        for cid in 1..=100 {
            log.push(ErrorRecord { cid, ..record });
        }
        assert_eq!(log.count(), 100);
        let kept: Vec<_> = log.iter().map(|record| (record.count, record.cid)).collect();
        assert_eq!(kept.len(), ERROR_LOG_ENTRIES);
        assert_eq!((kept[0], kept[63]), ((100, 100), (37, 37)));
    }
}
