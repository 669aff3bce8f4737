//! Work requests and completions as plain values.

/// Maximum SGEs of one work request.
pub const MAX_PIECES: usize = 4;

/// Identifier of a work request in its completion: kind (8 bits), generation (24 bits), slot (32
/// bits). It is never an address, so a late completion finds no slot instead of memory that another
/// owner uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WrId(u64);

impl WrId {
    /// Number of generations; they wrap.
    pub const GENERATIONS: u32 = 1 << 24;

    /// Composes an identifier; `generation` is taken modulo [`Self::GENERATIONS`].
    #[inline]
    #[must_use]
    pub const fn new(kind: u8, generation: u32, slot: u32) -> Self {
        let generation = generation % Self::GENERATIONS;
        Self((kind as u64) << 56 | (generation as u64) << 32 | slot as u64)
    }

    /// Converts the identifier of a completion.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the identifier for a work request.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Kind of work; the caller defines the numbers.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> u8 {
        self.0.to_be_bytes()[0]
    }

    /// Generation, which counts the uses of the slot.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> u32 {
        let [_, a, b, c, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([0, a, b, c])
    }

    #[inline]
    #[must_use]
    /// Slot.
    pub const fn slot(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

/// A scatter-gather element (SGE): a run of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region that contains the memory; ignored for inline sends.
    pub lkey: u32,
}

/// An ordered list of at most [`MAX_PIECES`] SGEs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SgeList {
    list: [Sge; MAX_PIECES],
    count: u8,
}

impl SgeList {
    /// The empty list: a transfer of zero bytes.
    pub const EMPTY: Self =
        Self { list: [Sge { address: 0, length: 0, lkey: 0 }; MAX_PIECES], count: 0 };

    /// Returns a list of one SGE.
    #[inline]
    #[must_use]
    pub fn one(piece: Sge) -> Self {
        let mut pieces = Self::EMPTY;
        pieces.list[0] = piece;
        pieces.count = 1;
        pieces
    }

    /// Appends an SGE. Returns false, and appends nothing, if the list has [`MAX_PIECES`] already.
    #[inline]
    pub fn push(&mut self, piece: Sge) -> bool {
        let Some(place) = self.list.get_mut(usize::from(self.count)) else { return false };
        *place = piece;
        self.count += 1;
        true
    }

    /// Returns the SGEs as a slice.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Sge] {
        &self.list[..usize::from(self.count)]
    }

    /// Sum of the lengths in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.as_slice().iter().map(|piece| u64::from(piece.length)).sum()
    }
}

/// Operation of a work request in the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Sends the SGEs into a receive of the peer.
    Send,
    /// Sends, and invalidates the peer's `key` before the peer's receive completes.
    SendInvalidate {
        /// Remote key of the peer.
        key: u32,
    },
    /// Writes the SGEs to the peer's memory.
    Write {
        /// Address at the peer.
        address: u64,
        /// Remote key of that memory.
        key: u32,
    },
    /// Reads the peer's memory into the SGEs.
    Read {
        /// Address at the peer.
        address: u64,
        /// Remote key of that memory.
        key: u32,
    },
}

/// A work request of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Identifier that the completion carries.
    pub id: WrId,
    /// Operation of the work request.
    pub operation: SendOp,
    /// Local memory.
    pub pieces: SgeList,
    /// Requests a completion on success; failed and flushed work requests always complete.
    pub signaled: bool,
    /// The provider copies the bytes while it posts, so the SGEs need no key and can be reused
    /// immediately. The limit is [`EndpointSpec::inline`](crate::EndpointSpec::inline) bytes, for
    /// sends and writes only.
    pub inline: bool,
    /// Starts only after every earlier RDMA READ has ended.
    pub fence: bool,
}

/// Result of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// The work request succeeded.
    Success,
    /// Not executed, because the queue pair entered the error state.
    Flushed,
    /// The peer rejected the access: wrong key, range or rights.
    RemoteAccess,
    /// The peer posted no receive within the retries.
    ReceiverNotReady,
    /// The peer does not respond.
    Unreachable,
    /// Another error, with the provider's number, for messages.
    Other(u32),
}

/// Completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Identifier of the work request.
    pub id: WrId,
    /// Result of the work request.
    pub status: WcStatus,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Bytes received, for a successful receive; otherwise 0.
    pub bytes: u32,
    /// Local key that the peer invalidated, for a successful receive.
    pub invalidated: Option<u32>,
}

/// Access rights of a memory region. Local reads are always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessFlags {
    /// Receives and our RDMA READs can write to the region.
    pub local_write: bool,
    /// The peer can read the region.
    pub remote_read: bool,
    /// The peer can write to the region; requires `local_write`.
    pub remote_write: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_keep_their_parts() {
        let id = WrId::new(0xab, 0x12_3456, 0xdead_beef);
        assert_eq!((id.kind(), id.generation(), id.slot()), (0xab, 0x12_3456, 0xdead_beef));
        assert_eq!(WrId::from_raw(id.raw()), id);
        assert_eq!(WrId::new(1, WrId::GENERATIONS + 5, 0).generation(), 5);
    }

    #[test]
    fn pieces_are_bounded() {
        let piece = Sge { address: 1, length: 3, lkey: 0 };
        let mut pieces = SgeList::EMPTY;
        for _ in 0..MAX_PIECES {
            assert!(pieces.push(piece));
        }
        assert!(!pieces.push(piece));
        assert_eq!((pieces.as_slice().len(), pieces.bytes()), (MAX_PIECES, 12));
    }
}
