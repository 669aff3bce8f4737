//! Data of an admin command, written directly into the buffer that is sent.

use crate::failure::Failure;

/// Writes the part of a page that a host requested.
///
/// The page is put in order, piece by piece. Only the requested part is copied, so a page needs no
/// memory in addition to the buffer and the piece.
#[derive(Debug)]
pub(crate) struct PageWriter<'a> {
    /// Offset of the next piece in the page.
    at: u64,
    /// Offset of the requested part in the page.
    offset: u64,
    out: &'a mut [u8],
    /// Bytes of `out` written so far.
    written: usize,
}

impl PageWriter<'_> {
    /// Creates a writer of the part at `offset`, which fills `out`.
    pub(crate) fn new(offset: u64, out: &mut [u8]) -> PageWriter<'_> {
        PageWriter { at: 0, offset, out, written: 0 }
    }

    /// Creates a writer that copies nothing, only to check that the part exists.
    pub(crate) fn measure(offset: u64) -> PageWriter<'static> {
        PageWriter { at: 0, offset, out: &mut [], written: 0 }
    }

    /// Writes the next piece of the page.
    pub(crate) fn put(&mut self, piece: &[u8]) {
        let begin = self.at;
        self.at += piece.len() as u64;
        let from = begin.max(self.offset);
        let to = self.at.min(self.end());
        if from >= to {
            return;
        }
        // Both are within a slice, so they fit.
        let within = |place: u64, base: u64| usize::try_from(place - base).unwrap_or(usize::MAX);
        let source = within(from, begin)..within(to, begin);
        let target = within(from, self.offset)..within(to, self.offset);
        self.written = target.end;
        self.out[target].copy_from_slice(&piece[source]);
    }

    /// Skips `len` bytes of the page.
    ///
    /// Returns false and skips nothing if the host requested any of them.
    pub(crate) fn skip(&mut self, len: u64) -> bool {
        let next = self.at.saturating_add(len);
        let is_outside = next <= self.offset || self.is_full();
        if is_outside {
            self.at = next;
        }
        is_outside
    }

    /// Returns true if no later piece belongs to the requested part.
    pub(crate) fn is_full(&self) -> bool {
        self.at >= self.end()
    }

    /// Ends the page: fills the rest of the buffer with zeroes, which overwrites its old contents.
    ///
    /// # Errors
    /// [`Failure::InvalidField`] if the part begins beyond the page (Base 5.16).
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.out[self.written..].fill(0);
        if self.offset > self.at { Err(Failure::InvalidField) } else { Ok(()) }
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.out.len() as u64)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the part of a page that `put` writes from `offset` on, into a used buffer.
    pub(crate) fn read(
        offset: u64,
        len: usize,
        put: impl FnOnce(&mut PageWriter<'_>) -> Result<(), Failure>,
    ) -> Result<Vec<u8>, Failure> {
        let mut out = vec![0xee; len];
        let mut page = PageWriter::new(offset, &mut out);
        put(&mut page)?;
        page.finish()?;
        Ok(out)
    }

    #[test]
    fn any_part_of_pieces_is_that_part() {
        let pieces: [&[u8]; 4] = [&[1, 2, 3], &[], &[4; 5], &[5, 6]];
        let whole: Vec<u8> = pieces.concat();
        for offset in 0..=whole.len() {
            for len in 0..whole.len() + 4 {
                let put = |page: &mut PageWriter<'_>| {
                    for piece in pieces {
                        // A piece that may be skipped may also be put.
                        if !(len + offset).is_multiple_of(2) || !page.skip(piece.len() as u64) {
                            page.put(piece);
                        }
                    }
                    Ok(())
                };
                let mut expected: Vec<u8> = whole.iter().copied().skip(offset).take(len).collect();
                expected.resize(len, 0);
                assert_eq!(read(offset as u64, len, put), Ok(expected), "{offset}+{len}");
            }
        }
    }

    #[test]
    fn nothing_begins_beyond_the_end() {
        let put = |page: &mut PageWriter<'_>| {
            page.put(&[1; 8]);
            Ok(())
        };
        assert_eq!(read(8, 4, put), Ok(vec![0; 4]));
        assert_eq!(read(9, 4, put), Err(Failure::InvalidField));
        assert_eq!(read(u64::MAX, 4, put), Err(Failure::InvalidField));
        for (offset, expected) in [(8, Ok(())), (9, Err(Failure::InvalidField))] {
            let mut page = PageWriter::measure(offset);
            assert!(page.skip(3));
            page.put(&[1; 5]);
            assert_eq!(page.finish(), expected);
        }
    }
}
