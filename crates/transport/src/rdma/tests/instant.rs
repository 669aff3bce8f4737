//! A device without a wire that completes work when it is posted.
//!
//! It measures the cost of a command in the target's own code. The file is in the tests' part of
//! the fence around `unsafe`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use nvmeof_verbs::{
    AcceptParams, AccessFlags, CompletionQueue, ConnectParams, ConnectionEvent, Device,
    DeviceLimits, Endpoint, EndpointSpec, MemoryRegion, PendingConnection, PostError, PrivateData,
    SendWr, Sge, SharedReceiveQueue, VerbsError, WcStatus, WorkCompletion, WrId,
};

/// The device. It has one queue pair, number 1.
#[derive(Debug)]
pub(super) struct Instant {
    state: Mutex<State>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    completions: VecDeque<WorkCompletion>,
    receives: VecDeque<(WrId, Sge, Sge)>,
    responses: u64,
    is_established: bool,
}

impl Instant {
    pub(super) fn new() -> Arc<Self> {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let state = State {
            completions: VecDeque::with_capacity(4096),
            receives: VecDeque::with_capacity(4096),
            ..State::default()
        };
        Arc::new(Self { state: Mutex::new(state), wake })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the number of responses since the last call.
    pub(super) fn responses(&self) -> u64 {
        std::mem::take(&mut self.lock().responses)
    }

    /// Delivers a capsule to the oldest receive; only its command is written.
    pub(super) fn arrive(&self, command: &[u8; 64], behind: u32) {
        let mut state = self.lock();
        let (id, piece, rest) = state.receives.pop_front().expect("a receive is posted");
        assert!(piece.length >= 64 && rest.length >= behind);
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(piece.address.try_into().unwrap());
        // SAFETY: the piece of a posted receive belongs to the device, and has 64 bytes by the
        // check above.
        unsafe { to.copy_from_nonoverlapping(command.as_ptr(), 64) };
        state.completions.push_back(done(id, 64 + behind));
    }
}

fn done(id: WrId, bytes: u32) -> WorkCompletion {
    let status = WcStatus::Success;
    WorkCompletion { id, status, queue_pair: 1, bytes, invalidated: None }
}

impl Device for Instant {
    type CompletionQueue = End;
    type Endpoint = End;
    type PendingConnection = Asking;
    type SharedReceiveQueue = Nothing;
    type MemoryRegion = Nothing;

    fn name(&self) -> &str {
        "instant"
    }

    fn limits(&self) -> DeviceLimits {
        DeviceLimits {
            queue_depth: 1024,
            completions: 4096,
            pieces: 4,
            message: 1 << 30,
            reads_out: 16,
            reads_in: 16,
            shared_receives: 0,
        }
    }

    unsafe fn register(
        self: &Arc<Self>,
        _: *mut u8,
        _: usize,
        _: AccessFlags,
    ) -> Result<Nothing, VerbsError> {
        Ok(Nothing)
    }

    fn completions(self: &Arc<Self>, _: u32) -> Result<End, VerbsError> {
        Ok(End(Arc::clone(self)))
    }

    fn shared_receives(self: &Arc<Self>, _: u32, _: u32) -> Result<Option<Nothing>, VerbsError> {
        Ok(None)
    }

    fn open(
        self: &Arc<Self>,
        _: Asking,
        _: &End,
        _: Option<&Nothing>,
        _: &EndpointSpec,
    ) -> Result<End, (VerbsError, Asking)> {
        Ok(End(Arc::clone(self)))
    }
}

#[derive(Debug)]
pub(super) struct Nothing;

impl MemoryRegion for Nothing {
    fn lkey(&self) -> u32 {
        7
    }

    fn rkey(&self) -> u32 {
        8
    }
}

impl SharedReceiveQueue for Nothing {
    unsafe fn post_receive(&mut self, _: WrId, _: &[Sge]) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Asking {
    pub(super) device: Arc<Instant>,
    pub(super) private_data: PrivateData,
}

impl PendingConnection for Asking {
    type Device = Instant;

    fn device(&self) -> &Arc<Instant> {
        &self.device
    }

    fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    fn reads(&self) -> (u8, u8) {
        (16, 16)
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 1))
    }

    fn local(&self) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 2], 2))
    }

    fn reject(self, _: &[u8]) {}
}

/// The queue pair, or its completion queue.
#[derive(Debug)]
pub(super) struct End(Arc<Instant>);

impl Endpoint for End {
    fn number(&self) -> u32 {
        1
    }

    fn inline(&self) -> u32 {
        64
    }

    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> std::io::Result<()> {
        let rest = pieces.get(1).copied().unwrap_or_default();
        self.0.lock().receives.push_back((id, pieces[0], rest));
        Ok(())
    }

    unsafe fn post_send(&mut self, chain: &[SendWr]) -> Result<(), PostError> {
        let mut state = self.0.lock();
        for work in chain {
            if work.signaled {
                state.completions.push_back(done(work.id, 0));
            }
            state.responses += u64::from(work.inline);
        }
        Ok(())
    }

    fn accept(&mut self, _: &AcceptParams<'_>) -> Result<(), VerbsError> {
        Ok(())
    }

    fn connect(&mut self, _: &ConnectParams<'_>) -> Result<(), VerbsError> {
        Ok(())
    }

    fn next_event(&mut self) -> Option<ConnectionEvent> {
        let mut state = self.0.lock();
        (!std::mem::replace(&mut state.is_established, true)).then_some(
            ConnectionEvent::Established { private_data: PrivateData::EMPTY, reads_out: 16 },
        )
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.wake.as_fd())
    }

    fn disconnect(&mut self) {
        let mut state = self.0.lock();
        while let Some((id, ..)) = state.receives.pop_front() {
            let flushed = WorkCompletion { status: WcStatus::Flushed, ..done(id, 0) };
            state.completions.push_back(flushed);
        }
    }
}

impl CompletionQueue for End {
    fn poll(&mut self, most: usize, into: &mut Vec<WorkCompletion>) -> std::io::Result<()> {
        let mut state = self.0.lock();
        let count = most.min(state.completions.len());
        into.extend(state.completions.drain(..count));
        Ok(())
    }

    fn arm(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}
