//! What is posted to a queue pair and what comes back. Plain values.

/// Most pieces of local memory that one work request names.
pub const MAX_PIECES: usize = 4;

/// What a work request is known by when it completes: kind (8 bits), generation (24 bits), slot (32 bits).
/// Never an address: a late completion finds nothing instead of somebody else's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(u64);

impl WorkId {
    /// Generations there are; they wrap.
    pub const GENERATIONS: u32 = 1 << 24;

    /// Puts an identifier together; `generation` is taken modulo [`Self::GENERATIONS`].
    #[inline]
    #[must_use]
    pub const fn new(kind: u8, generation: u32, slot: u32) -> Self {
        let generation = generation % Self::GENERATIONS;
        Self((kind as u64) << 56 | (generation as u64) << 32 | slot as u64)
    }

    /// The identifier as a completion carries it.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The identifier as a work request carries it.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// What sort of work it is; the caller's own numbers.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> u8 {
        self.0.to_be_bytes()[0]
    }

    /// Which use of the slot it is.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> u32 {
        let [_, a, b, c, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([0, a, b, c])
    }

    /// The slot.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

/// A run of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the region it is in; without meaning for inline sends.
    pub lkey: u32,
}

/// Up to [`MAX_PIECES`] pieces, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    list: [Piece; MAX_PIECES],
    count: u8,
}

impl Pieces {
    /// No pieces: a transfer of zero bytes.
    pub const EMPTY: Self =
        Self { list: [Piece { address: 0, length: 0, lkey: 0 }; MAX_PIECES], count: 0 };

    /// One piece.
    #[inline]
    #[must_use]
    pub fn one(piece: Piece) -> Self {
        let mut pieces = Self::EMPTY;
        pieces.list[0] = piece;
        pieces.count = 1;
        pieces
    }

    /// Appends a piece; false, and nothing happens, if there are [`MAX_PIECES`] already.
    #[inline]
    pub fn push(&mut self, piece: Piece) -> bool {
        let Some(place) = self.list.get_mut(usize::from(self.count)) else { return false };
        *place = piece;
        self.count += 1;
        true
    }

    /// The pieces.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Piece] {
        &self.list[..usize::from(self.count)]
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.as_slice().iter().map(|piece| u64::from(piece.length)).sum()
    }
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends the pieces into a receive of the peer.
    Send,
    /// The same, and the peer's `key` is invalid by the time its receive completes.
    SendInvalidate {
        /// A remote key of the peer's.
        key: u32,
    },
    /// Writes the pieces to the peer's memory.
    Write {
        /// Where at the peer.
        address: u64,
        /// Remote key of that memory.
        key: u32,
    },
    /// Reads the peer's memory into the pieces.
    Read {
        /// Where at the peer.
        address: u64,
        /// Remote key of that memory.
        key: u32,
    },
}

/// A work request of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Comes back in the completion.
    pub id: WorkId,
    /// What to do.
    pub operation: Operation,
    /// Local memory.
    pub pieces: Pieces,
    /// Completes even if it succeeds; what fails or is flushed always completes.
    pub signaled: bool,
    /// The bytes are copied while posting: the pieces need no key and may be reused at once. At most
    /// [`EndpointSpec::inline`](crate::EndpointSpec::inline) bytes, sends and writes only.
    pub inline: bool,
    /// Starts only when every RDMA READ before it has ended.
    pub fence: bool,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Well.
    Success,
    /// Not carried out: the queue pair had left for the error state.
    Flushed,
    /// The peer refused the access: wrong key, range or rights.
    RemoteAccess,
    /// The peer took nothing in for too long: it posted no receive.
    ReceiverNotReady,
    /// The peer does not answer.
    Unreachable,
    /// Anything else; the provider's own number for it, for messages.
    Other(u32),
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's.
    pub id: WorkId,
    /// How it ended.
    pub status: CompletionStatus,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Of a receive that ended well: bytes received. Else 0.
    pub bytes: u32,
    /// Of a receive that ended well: the local key that the peer has invalidated.
    pub invalidated: Option<u32>,
}

/// What a region of memory may be used for. Local reading is always possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Receives and RDMA READs of ours may write to it.
    pub local_write: bool,
    /// The peer may read it.
    pub remote_read: bool,
    /// The peer may write it; takes `local_write`.
    pub remote_write: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_keep_their_parts() {
        let id = WorkId::new(0xab, 0x12_3456, 0xdead_beef);
        assert_eq!((id.kind(), id.generation(), id.slot()), (0xab, 0x12_3456, 0xdead_beef));
        assert_eq!(WorkId::from_raw(id.raw()), id);
        assert_eq!(WorkId::new(1, WorkId::GENERATIONS + 5, 0).generation(), 5);
    }

    #[test]
    fn pieces_are_bounded() {
        let piece = Piece { address: 1, length: 3, lkey: 0 };
        let mut pieces = Pieces::EMPTY;
        for _ in 0..MAX_PIECES {
            assert!(pieces.push(piece));
        }
        assert!(!pieces.push(piece));
        assert_eq!((pieces.as_slice().len(), pieces.bytes()), (MAX_PIECES, 12));
    }
}
