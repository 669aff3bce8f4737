//! Data transfers, and their next part.

use std::rc::Rc;

use nvmeof_core::dma::{Buffer, Payload};
use nvmeof_verbs::Sge;
use nvmeof_wire::Sgl;

use crate::rdma::capsule::RemoteBuffer;
use crate::rdma::registration::Span;

/// Location of a command's data on the host.
#[derive(Debug, Clone)]
pub(super) enum HostBuffers {
    /// One run.
    One(RemoteBuffer),
    /// The runs of the command's list.
    List(Rc<[RemoteBuffer]>),
}

impl HostBuffers {
    /// Resolves an operation's SGL; `list` is that of its command.
    ///
    /// Returns `None` if this fabric cannot move data there.
    pub(super) fn new(sgl: Sgl, list: Option<&Rc<[RemoteBuffer]>>) -> Option<Self> {
        match (sgl, list) {
            (Sgl::Keyed { address, length, key, .. }, _) => {
                Some(Self::One(RemoteBuffer { address, length, key }))
            }
            (Sgl::Transport { .. }, Some(list)) => Some(Self::List(Rc::clone(list))),
            _ => None,
        }
    }

    fn runs(&self) -> &[RemoteBuffer] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::List(list) => list,
        }
    }

    /// Returns the transfer of `len` bytes from or to these buffers; `None` if they do not fit.
    pub(super) fn transfer(self, len: usize) -> Option<HostTransfer> {
        let all: u64 = self.runs().iter().map(|run| u64::from(run.length)).sum();
        let length = u32::try_from(len).ok().filter(|length| u64::from(*length) <= all)?;
        Some(HostTransfer { buffers: self, length, cursor: Cursor::default() })
    }
}

/// Data of one operation on the host, and the progress of its transfer.
#[derive(Debug)]
pub(super) struct HostTransfer {
    buffers: HostBuffers,
    length: u32,
    cursor: Cursor,
}

impl HostTransfer {
    /// Returns the bytes of the whole transfer.
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Returns the next part, of at most `most` bytes; `None` if no bytes are left.
    pub(super) fn next(&mut self, most: u32) -> Option<WrSegment> {
        self.cursor.next(&self.buffers, self.length, most)
    }
}

/// Progress in splitting a transfer into work requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    run: usize,
    /// Bytes of that run, and of all runs.
    within: u32,
    done: u32,
}

/// The part of a transfer that one work request moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrSegment {
    /// Offset in the local buffer, and length.
    pub(super) offset: u32,
    pub(super) length: u32,
    /// Address on the host.
    pub(super) address: u64,
    pub(super) key: u32,
    /// True if no part follows.
    pub(super) is_last: bool,
}

impl Cursor {
    /// Returns the next part of `total` bytes, of at most `most`; `None` if no bytes are left.
    fn next(&mut self, targets: &HostBuffers, total: u32, most: u32) -> Option<WrSegment> {
        let left = total.checked_sub(self.done).filter(|left| *left > 0)?;
        loop {
            let run = targets.runs().get(self.run)?;
            let here = run.length.saturating_sub(self.within);
            if here == 0 {
                (self.run, self.within) = (self.run + 1, 0);
                continue;
            }
            let length = here.min(left).min(most.max(1));
            let part = WrSegment {
                offset: self.done,
                length,
                // Cannot overflow: checked when the capsule arrived.
                address: run.address.wrapping_add(u64::from(self.within)),
                key: run.key,
                is_last: length == left,
            };
            self.within += length;
            self.done += length;
            return Some(part);
        }
    }
}

/// A pull.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) token: u64,
    pub(super) buf: Buffer,
    pub(super) lkey: u32,
    pub(super) transfer: HostTransfer,
    /// Parts posted and not complete, and true if all parts are posted.
    pub(super) reading: u32,
    pub(super) is_cut: bool,
    pub(super) failed: bool,
}

/// Data of a response.
#[derive(Debug)]
pub(super) struct OutboundData {
    pub(super) token: u64,
    pub(super) payload: Payload,
    pub(super) span: Span,
    pub(super) transfer: HostTransfer,
}

impl OutboundData {
    /// Returns the next part, of at most `most` bytes, and its local memory: one run.
    pub(super) fn next(&mut self, most: u32) -> Option<(WrSegment, Sge)> {
        let Span { address, lkey, window } = self.span;
        let within = self.transfer.cursor.done % window.max(1);
        let part = self.transfer.next(most.min(window - within))?;
        let piece = Sge { address: address + u64::from(within), length: part.length, lkey };
        Some((part, piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(targets: &HostBuffers, total: u32, most: u32) -> Vec<(u32, u32, u64, u32, bool)> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(|| cursor.next(targets, total, most))
            .map(|part| (part.offset, part.length, part.address, part.key, part.is_last))
            .collect()
    }

    #[test]
    fn a_transfer_is_cut_at_runs_and_at_the_longest_message() {
        let run = |address, length, key| RemoteBuffer { address, length, key };
        let list = [run(100, 0, 1), run(200, 3, 2), run(300, 0, 3), run(400, 9, 4)];
        let list = HostBuffers::List(Rc::from(list));
        let expected = vec![(0, 3, 200, 2, false), (3, 4, 400, 4, false), (7, 2, 404, 4, true)];
        assert_eq!(parts(&list, 9, 4), expected);
        assert_eq!(parts(&list, 12, 100), [(0, 3, 200, 2, false), (3, 9, 400, 4, true)]);
        assert_eq!(list.clone().transfer(12).map(|all| all.length()), Some(12));
        assert!(list.clone().transfer(13).is_none());
        assert_eq!(parts(&list, 0, 4), []);
        let one = HostBuffers::One(run(u64::MAX - 4, 4, 9));
        let expected = [(0, 3, u64::MAX - 4, 9, false), (3, 1, u64::MAX - 1, 9, true)];
        assert_eq!(parts(&one, 4, 3), expected);
    }
}
