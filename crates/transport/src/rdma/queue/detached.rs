//! A connection request that was accepted, before a reactor has made its queue.

use std::net::SocketAddr;
use std::sync::Arc;

use nvmeof_verbs::{Device, PendingConnection};
use nvmeof_wire::rdma::{RejectStatus, Request};

use crate::queue::{DetachedQueue, HostQueue, ReactorResources, TransportError};
use crate::rdma::params::RdmaParams;
use crate::rdma::registration::Registration;

/// An accepted connection request, which any reactor can unpark; that reactor accepts the
/// connection.
#[derive(Debug)]
pub struct DetachedRdma<D: Device> {
    pub(in crate::rdma) ticket: D::PendingConnection,
    pub(in crate::rdma) terms: NegotiatedParams,
    pub(in crate::rdma) registration: Arc<Registration<D>>,
    pub(in crate::rdma) params: RdmaParams,
}

impl<D: Device> DetachedRdma<D> {
    /// Returns the queue identifier; 0 for an admin queue.
    pub fn qid(&self) -> u16 {
        self.terms.request.qid
    }

    /// Returns the controller of an I/O queue, if the host named it.
    pub fn cntlid(&self) -> Option<u16> {
        self.terms.request.cntlid
    }

    /// Returns the host's address.
    pub fn host(&self) -> SocketAddr {
        self.ticket.peer()
    }

    /// Returns the address to which the request came.
    pub fn local(&self) -> SocketAddr {
        self.ticket.local()
    }

    /// Rejects the request after all.
    pub fn reject(self, status: RejectStatus) {
        self.registration.cm_worker().reject(self.ticket, status);
    }
}

impl<D: Device> DetachedQueue for DetachedRdma<D> {
    fn attach(
        self: Box<Self>,
        home: &mut ReactorResources<'_>,
    ) -> Result<Box<dyn HostQueue>, TransportError> {
        super::open(*self, home)
    }

    fn peer(&self) -> String {
        self.ticket.peer().to_string()
    }

    fn number(&self) -> Option<u16> {
        Some(self.terms.request.qid)
    }

    fn refuse(self: Box<Self>) {
        self.reject(RejectStatus::NO_RESOURCES);
    }
}

/// Parameters negotiated with a host for its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma) struct NegotiatedParams {
    /// The host's request.
    pub(in crate::rdma) request: Request,
    /// Receives of the target: commands that can be in transit.
    pub(in crate::rdma) receives: u16,
    /// Maximum outstanding RDMA READs of the target.
    pub(in crate::rdma) reads_out: u8,
    /// Maximum outstanding RDMA READs of the host.
    pub(in crate::rdma) reads_in: u8,
}
