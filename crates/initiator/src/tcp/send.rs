//! The send queue of a connection: it stores header bytes, and refers to data in the commands'
//! buffers.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::command_table::CommandTable;

/// Maximum slices of one `writev`.
pub(super) const MAX_PIECES: usize = 64;

/// Number of sent header bytes that triggers their removal from the front, if the queue never runs
/// empty.
const COMPACT_AT: usize = 256 << 10;

#[derive(Debug, Clone, Copy)]
enum Piece {
    /// The next `len` bytes of `bytes`.
    Bytes { len: u32 },
    /// Part of the data of command `cid`.
    Data { cid: u16, offset: u32, len: u32 },
}

impl Piece {
    fn len(self) -> usize {
        let (Self::Bytes { len } | Self::Data { len, .. }) = self;
        len as usize
    }
}

/// The queue of bytes to be sent.
#[derive(Debug, Default)]
pub(super) struct PduWriter {
    bytes: Vec<u8>,
    /// Bytes at the front of `bytes` that belong to sent pieces.
    gone: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    partial: usize,
}

impl PduWriter {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends bytes, which are copied.
    #[inline]
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let added = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if let Some(Piece::Bytes { len }) = self.pieces.back_mut()
            && let Some(sum) = len.checked_add(added)
        {
            *len = sum;
            return;
        }
        self.pieces.push_back(Piece::Bytes { len: added });
    }

    /// Appends `count` zero bytes.
    #[inline]
    pub(super) fn push_padding(&mut self, count: usize) {
        const ZEROS: [u8; 256] = [0; 256];
        if count > 0 {
            self.push_bytes(&ZEROS[..count.min(ZEROS.len())]);
        }
    }

    /// Appends a part of the data of command `cid`.
    #[inline]
    pub(super) fn push_data(&mut self, cid: u16, offset: u32, len: u32) {
        self.pieces.push_back(Piece::Data { cid, offset, len });
    }

    /// Fills `out` with the next pieces and returns the number of filled slices.
    pub(super) fn sources<'a>(
        &'a self,
        commands: &'a CommandTable,
        out: &mut [IoSlice<'a>],
    ) -> usize {
        let mut at = self.gone;
        let mut skip = self.partial;
        let mut count = 0;
        for (piece, slice) in self.pieces.iter().zip(out) {
            let bytes = match *piece {
                Piece::Bytes { len } => {
                    let start = at;
                    at += len as usize;
                    &self.bytes[start..at]
                }
                Piece::Data { cid, offset, len } => {
                    let offset = offset as usize;
                    &commands.data(cid)[offset..offset + len as usize]
                }
            };
            *slice = IoSlice::new(&bytes[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Records that `n` bytes were sent. Calls `data_sent` with the command of each data piece that
    /// is completely sent.
    pub(super) fn sent(&mut self, n: usize, mut data_sent: impl FnMut(u16)) {
        self.partial += n;
        while let Some(&piece) = self.pieces.front() {
            if self.partial < piece.len() {
                break;
            }
            self.partial -= piece.len();
            self.pieces.pop_front();
            match piece {
                Piece::Bytes { len } => self.gone += len as usize,
                Piece::Data { cid, .. } => data_sent(cid),
            }
        }
        if self.pieces.is_empty() {
            self.bytes.clear();
            self.gone = 0;
        } else if self.gone >= COMPACT_AT {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
