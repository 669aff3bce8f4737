//! Implements the provider traits. Posted work is kept with its keys; only
//! [`memory`](crate::memory) accesses the bytes.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmeof_verbs::{
    AcceptParams, AccessFlags, CompletionQueue, ConnectParams, ConnectionEvent, Device, DeviceKind,
    DeviceLimits, Endpoint, EndpointSpec, LastWqe, MemoryRegion, PendingConnection, PostError,
    PrivateData, SendWr, Sge, SharedReceiveQueue, VerbsError, WorkCompletion, WrId,
};
use rustix::io::Errno;

use crate::completions::{LoopbackCompletions, LoopbackSharedReceives};
use crate::connection::LoopbackTicket;
use crate::device::{LoopbackDevice, LoopbackRegion};
use crate::endpoint::LoopbackEndpoint;
use crate::memory::{Span, copy_inline};

impl Device for LoopbackDevice {
    type CompletionQueue = LoopbackCompletions;
    type Endpoint = LoopbackEndpoint;
    type PendingConnection = LoopbackTicket;
    type SharedReceiveQueue = LoopbackSharedReceives;
    type MemoryRegion = LoopbackRegion;

    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> DeviceKind {
        self.options.kind
    }

    fn limits(&self) -> DeviceLimits {
        self.options.limits
    }

    unsafe fn register(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<LoopbackRegion, VerbsError> {
        // SAFETY: the caller promises that the memory stays mapped until the region is dropped, and
        // dropping the region removes the span from the fabric.
        let span = unsafe { Span::new(base, len) };
        self.register_span(span, access)
    }

    fn completions(self: &Arc<Self>, depth: u32) -> Result<LoopbackCompletions, VerbsError> {
        LoopbackCompletions::new(self, depth)
    }

    fn shared_receives(
        self: &Arc<Self>,
        depth: u32,
        pieces: u32,
    ) -> Result<Option<LoopbackSharedReceives>, VerbsError> {
        LoopbackSharedReceives::new(self, depth, pieces)
    }

    fn open(
        self: &Arc<Self>,
        ticket: LoopbackTicket,
        completions: &LoopbackCompletions,
        shared: Option<&LoopbackSharedReceives>,
        spec: &EndpointSpec,
    ) -> Result<LoopbackEndpoint, (VerbsError, LoopbackTicket)> {
        LoopbackEndpoint::open(self, ticket, completions, shared, spec)
    }
}

impl PendingConnection for LoopbackTicket {
    type Device = LoopbackDevice;

    fn device(&self) -> &Arc<LoopbackDevice> {
        &self.device
    }

    fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    fn reads(&self) -> (u8, u8) {
        self.reads
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn reject(mut self, private_data: &[u8]) {
        self.refuse(private_data);
    }
}

impl Endpoint for LoopbackEndpoint {
    fn number(&self) -> u32 {
        self.number
    }

    fn inline(&self) -> u32 {
        self.inline
    }

    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        self.add_receive(id, pieces)
    }

    unsafe fn post_send(&mut self, chain: &[SendWr]) -> Result<(), PostError> {
        let mut inline = VecDeque::new();
        for (place, work) in chain.iter().enumerate().filter(|(_, work)| work.inline) {
            if work.pieces.bytes() <= u64::from(self.inline) {
                // SAFETY: the caller promises that inline pieces can be read until this call
                // returns.
                inline.push_back((place, unsafe { copy_inline(&work.pieces) }));
            }
        }
        self.add_sends(chain, inline)
    }

    fn accept(&mut self, params: &AcceptParams<'_>) -> Result<(), VerbsError> {
        self.device.fabric.lock().accept(self.number, params)
    }

    fn connect(&mut self, params: &ConnectParams<'_>) -> Result<(), VerbsError> {
        self.device.fabric.lock().connect(self.number, self.local, self.peer, params)
    }

    fn communication_established(&mut self) {
        self.device.fabric.lock().communication_established(self.number);
    }

    fn next_event(&mut self) -> Option<ConnectionEvent> {
        self.device.fabric.lock().next_event(self.number)
    }

    fn last_receive(&mut self) -> LastWqe {
        self.last_shared()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal.fd())
    }

    fn disconnect(&mut self) {
        self.device.fabric.lock().disconnect(self.number);
    }

    fn destroy(self) -> Result<(), (VerbsError, Self)> {
        if self.device.fabric.lock().faults.refuse_destroy(self.number) {
            let busy = Errno::BUSY.into();
            return Err((VerbsError::call("taking away a queue pair", busy), self));
        }
        Ok(())
    }
}

impl CompletionQueue for LoopbackCompletions {
    fn poll(&mut self, most: usize, into: &mut Vec<WorkCompletion>) -> io::Result<()> {
        self.take(most, into)
    }

    fn arm(&mut self) -> io::Result<()> {
        self.set_armed()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.signal.fd()
    }
}

impl SharedReceiveQueue for LoopbackSharedReceives {
    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        self.post(id, pieces)
    }
}

impl MemoryRegion for LoopbackRegion {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}
