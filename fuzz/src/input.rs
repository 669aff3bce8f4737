//! Choices derived from the fuzzer's bytes.

use arbitrary::Unstructured;

/// The bytes of one run, taken from the front; after their end every choice is 0.
#[derive(Debug)]
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Creates the input from all of a run's bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Returns whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns any byte.
    pub fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns any 16 bits.
    pub fn word(&mut self) -> u16 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns any 32 bits.
    pub fn dword(&mut self) -> u32 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns any 64 bits.
    pub fn qword(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns `true` once in `of` times.
    pub fn one_in(&mut self, of: u8) -> bool {
        // The highest byte, so that a run of zeroes is uneventful.
        self.byte() > 255 - 255 / of.max(1)
    }

    /// Returns `true` or `false`.
    pub fn coin(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Returns one of `of`, which is not empty.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 256 { usize::from(self.byte()) % end } else { usize::from(self.word()) % end }
    }

    /// Returns up to `len` bytes, as many as are left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let len = len.min(self.0.len());
        self.0.bytes(len).unwrap_or_default()
    }
}
