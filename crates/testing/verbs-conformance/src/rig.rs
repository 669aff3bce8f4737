//! Two connected endpoints, each with its own memory that outlives the work posted from it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt::{self, Debug};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use nvmeof_verbs::{
    AccessFlags, CompletionQueue, ConnectionEvent, Device, Endpoint, MemoryRegion, PostError,
    SendOp, SendWr, Sge, SgeList, SharedReceiveQueue, VerbsError, WcStatus, WorkCompletion, WrId,
};

/// Registered bytes, initially zero.
#[derive(Debug)]
pub struct Memory<D: Device> {
    // Dropped before the bytes.
    region: D::MemoryRegion,
    bytes: Bytes,
}

#[derive(Debug)]
struct Bytes {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the bytes belong to the owner; only the owner and the device access them.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 16).expect("a size that can be");
        // SAFETY: `layout` has at least one byte.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        // Inline work requests refer to the memory by its address as a number.
        let _ = base.as_ptr().expose_provenance();
        Self { base, layout }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; its region is gone, so no other user is
        // left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

impl<D: Device> Memory<D> {
    /// Registers `len` bytes, at least 1.
    ///
    /// # Errors
    /// As [`Device::register`].
    pub fn new(device: &Arc<D>, len: usize, access: AccessFlags) -> Result<Self, VerbsError> {
        let bytes = Bytes::new(len);
        // SAFETY: the bytes are dropped after the region.
        let region = unsafe { device.register(bytes.base.as_ptr(), len, access) }?;
        Ok(Self { region, bytes })
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.bytes.layout.size()
    }

    /// Key for the peer.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Key for the owner.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// Returns the address of a byte.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        (self.bytes.base.as_ptr().addr() + offset) as u64
    }

    /// Returns an RDMA WRITE to the memory, for the peer.
    #[must_use]
    pub fn write_at(&self, offset: usize) -> SendOp {
        SendOp::Write { address: self.address(offset), key: self.rkey() }
    }

    /// Returns an RDMA READ of the memory, for the peer.
    #[must_use]
    pub fn read_at(&self, offset: usize) -> SendOp {
        SendOp::Read { address: self.address(offset), key: self.rkey() }
    }

    /// Returns a piece at `offset`, which can be outside the memory.
    #[must_use]
    pub fn piece(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.address(offset), length, lkey: self.lkey() }
    }

    /// Copies bytes into the memory.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len()));
        // SAFETY: inside, as the line above checks. The test ensures that the device does not
        // access these bytes; otherwise it compares wrong bytes.
        unsafe { ptr::copy(bytes.as_ptr(), self.bytes.base.as_ptr().add(offset), bytes.len()) };
    }

    /// Copies bytes out of the memory.
    ///
    /// # Panics
    /// If the range is outside the memory.
    #[must_use]
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.len()));
        let mut bytes = vec![0; length];
        // SAFETY: as in `fill`.
        unsafe { ptr::copy(self.bytes.base.as_ptr().add(offset), bytes.as_mut_ptr(), length) };
        bytes
    }

    fn holds(&self, piece: &Sge) -> bool {
        let start = self.address(0);
        let end = piece.address.checked_add(u64::from(piece.length));
        piece.address >= start && end.is_some_and(|end| end <= start + self.len() as u64)
    }
}

/// One end of a connection: an endpoint, its queues and its results. Work refers to [its
/// memory](Self::memory), or to wrong addresses and keys.
#[derive(Debug)]
pub struct End<D: Device> {
    // In the order they have to be dropped.
    endpoint: Option<D::Endpoint>,
    shared: Option<D::SharedReceiveQueue>,
    completions: D::CompletionQueue,
    memory: Memory<D>,
    device: Arc<D>,
    came: Vec<WorkCompletion>,
    events: Vec<ConnectionEvent>,
}

impl<D: Device> End<D> {
    /// Creates an end from an endpoint that was opened with these queues.
    #[must_use]
    pub fn new(
        device: Arc<D>,
        memory: Memory<D>,
        completions: D::CompletionQueue,
        shared: Option<D::SharedReceiveQueue>,
        endpoint: D::Endpoint,
    ) -> Self {
        let endpoint = Some(endpoint);
        Self { endpoint, shared, completions, memory, device, came: vec![], events: vec![] }
    }

    /// Device of the end.
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// Memory of the end.
    #[must_use]
    pub fn memory(&self) -> &Memory<D> {
        &self.memory
    }

    /// Memory of the end, mutable.
    pub fn memory_mut(&mut self) -> &mut Memory<D> {
        &mut self.memory
    }

    /// Completion queue of the end.
    pub fn completions(&mut self) -> &mut D::CompletionQueue {
        &mut self.completions
    }

    /// Endpoint of the end.
    ///
    /// # Panics
    /// If it was dropped.
    pub fn endpoint(&mut self) -> &mut D::Endpoint {
        self.endpoint.as_mut().expect("the endpoint was dropped")
    }

    /// Returns true if the receives are in a shared queue.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Drops the endpoint.
    pub fn drop_endpoint(&mut self) {
        self.endpoint = None;
    }

    /// Posts a receive into a part of the memory, to the shared queue if there is one.
    ///
    /// # Errors
    /// As [`Endpoint::post_receive`].
    pub fn receive(&mut self, id: u32, offset: usize, length: u32) -> io::Result<()> {
        let piece = self.memory.piece(offset, length);
        self.receive_into(id, &[piece])
    }

    /// Posts a receive into any pieces.
    ///
    /// # Errors
    /// As [`Endpoint::post_receive`].
    pub fn receive_into(&mut self, id: u32, pieces: &[Sge]) -> io::Result<()> {
        let id = WrId::new(b'r', 0, id);
        // SAFETY: the memory is registered, and dropped after the endpoint and the queue. Tests
        // read received bytes after the completion. Pieces with other keys refer to other tests'
        // memory, of which the same holds, or to no memory, which the device rejects.
        unsafe {
            match &mut self.shared {
                Some(shared) => shared.post_receive(id, pieces),
                None => self.endpoint().post_receive(id, pieces),
            }
        }
    }

    /// Posts a chain.
    ///
    /// # Errors
    /// As [`Endpoint::post_send`].
    ///
    /// # Panics
    /// If an inline piece is not in the memory.
    pub fn post(&mut self, chain: &[SendWr]) -> Result<(), PostError> {
        for work in chain.iter().filter(|work| work.inline) {
            assert!(work.pieces.as_slice().iter().all(|piece| self.memory.holds(piece)));
        }
        // SAFETY: as in `receive_into`; inline pieces are in the memory, as the line above checks.
        unsafe { self.endpoint().post_send(chain) }
    }

    /// Returns a signaled work request for a part of the memory.
    #[must_use]
    pub fn work(&self, id: u32, operation: SendOp, offset: usize, length: u32) -> SendWr {
        SendWr {
            id: WrId::new(b's', 0, id),
            operation,
            pieces: SgeList::one(self.memory.piece(offset, length)),
            signaled: true,
            inline: false,
            fence: false,
        }
    }

    /// Polls, and stores completions and events.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    pub fn poll(&mut self) -> io::Result<()> {
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::next_event) {
            self.events.push(event);
        }
        self.completions.poll(64, &mut self.came)
    }

    /// Completions that arrived and are not taken yet.
    #[must_use]
    pub fn came(&self) -> &[WorkCompletion] {
        &self.came
    }

    /// Returns true if one of them failed.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        self.came.iter().any(|completion| completion.status != WcStatus::Success)
    }

    /// Takes the completions that arrived.
    pub fn take(&mut self) -> Vec<WorkCompletion> {
        std::mem::take(&mut self.came)
    }

    /// Takes the events that arrived.
    pub fn take_events(&mut self) -> Vec<ConnectionEvent> {
        std::mem::take(&mut self.events)
    }
}

/// Two ends of one established connection, with both `Established` events taken.
pub struct Pair<D: Device> {
    /// The end that requested the connection.
    pub asking: End<D>,
    /// The end that accepted the connection.
    pub answering: End<D>,
    pass: Box<dyn FnMut()>,
}

impl<D: Device> Debug for Pair<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pair = f.debug_struct("Pair");
        for (name, end) in [("asking", &self.asking), ("answering", &self.answering)] {
            pair.field(name, &end.endpoint).field("came", &end.came).field("events", &end.events);
        }
        pair.finish_non_exhaustive()
    }
}

impl<D: Device> Pair<D> {
    /// Creates a pair. `pass` lets time pass: a millisecond, or enough for posted work to end if
    /// nothing blocks it.
    #[must_use]
    pub fn new(asking: End<D>, answering: End<D>, pass: Box<dyn FnMut()>) -> Self {
        Self { asking, answering, pass }
    }

    /// Lets time pass and polls both ends. An end with a broken completion queue returns nothing.
    pub fn pass(&mut self) {
        (self.pass)();
        let _ = self.asking.poll();
        let _ = self.answering.poll();
    }

    /// Lets time pass and polls until `done`.
    ///
    /// # Panics
    /// If `done` does not return true within 5,000 passes.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..5_000 {
            if done(self) {
                return;
            }
            self.pass();
        }
        panic!("it did not come to {what}: {self:?}");
    }

    /// Waits for `asked` completions of the asking end and `answered` of the other, and takes them.
    pub fn completions(
        &mut self,
        asked: usize,
        answered: usize,
    ) -> (Vec<WorkCompletion>, Vec<WorkCompletion>) {
        self.until("the completions", |pair| {
            pair.asking.came.len() >= asked && pair.answering.came.len() >= answered
        });
        let (asking, answering) = (&mut self.asking.came, &mut self.answering.came);
        (asking.drain(..asked).collect(), answering.drain(..answered).collect())
    }
}
