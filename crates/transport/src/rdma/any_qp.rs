//! A queue pair in any state, as its queue has it.

use std::os::fd::BorrowedFd;

use nvmeof_verbs::{ConnectionEvent, Device, Endpoint, LastWqe};
use nvmeof_wire::rdma::RejectStatus;

use super::cm_worker::{CancelToken, CmWorker, ReplyTo};
use super::qp::{Accepted, Draining, Qp, QpStage, QpTransition, Ready};

/// A queue pair in any state. Only the functions below change it, as the table of
/// [`qp`](super::qp) specifies.
#[derive(Debug)]
pub(super) enum AnyQp<D: Device> {
    CreatingCq(D::PendingConnection),
    Accepting(CancelToken),
    Cancelling,
    Accepted(Qp<Accepted, D::Endpoint>),
    Established(Qp<Ready, D::Endpoint>),
    Draining(Qp<Draining, D::Endpoint>),
    Destroying,
    Destroyed,
}

impl<D: Device> AnyQp<D> {
    pub(super) fn stage(&self) -> QpStage {
        match self {
            Self::CreatingCq(_) => QpStage::CreatingCq,
            Self::Accepting(_) => QpStage::Accepting,
            Self::Cancelling => QpStage::Cancelling,
            Self::Accepted(_) => QpStage::Accepted,
            Self::Established(_) => QpStage::Established,
            Self::Draining(_) => QpStage::Draining,
            Self::Destroying => QpStage::Destroying,
            Self::Destroyed => QpStage::Destroyed,
        }
    }

    /// Creates the queue pair of the ticket, and passes it to the CM worker, which returns a
    /// recall.
    ///
    /// If that fails, the stage is Destroyed.
    pub(super) fn make(&mut self, made: impl FnOnce(D::PendingConnection) -> Option<CancelToken>) {
        if self.stage().after(QpTransition::Made).is_some()
            && let Self::CreatingCq(ticket) = std::mem::replace(self, Self::Destroyed)
            && let Some(cancel) = made(ticket)
        {
            *self = Self::Accepting(cancel);
        }
    }

    /// Stores the accepted queue pair from the CM worker; returns the new stage.
    pub(super) fn accepted(&mut self, pair: Qp<Accepted, D::Endpoint>) -> Option<QpStage> {
        let to = self.stage().after(QpTransition::Accepted)?;
        *self = match to {
            QpStage::Draining => Self::Draining(pair.end()),
            _ => Self::Accepted(pair),
        };
        Some(to)
    }

    /// Makes the transition of the table; returns the new stage if it changes.
    ///
    /// A pair that must be destroyed goes to the CM worker. After the reply, the device uses no
    /// memory of it.
    pub(super) fn step(
        &mut self,
        step: QpTransition,
        cm_worker: &CmWorker<D>,
        reply_to: &ReplyTo<D>,
    ) -> Option<QpStage> {
        let to = self.stage().after(step)?;
        debug_assert!(
            !matches!(step, QpTransition::Made | QpTransition::Accepted),
            "these come with what they are of"
        );
        let destroy = |endpoint| {
            cm_worker.destroy(endpoint, reply_to.clone());
            Self::Destroying
        };
        *self = match (std::mem::replace(self, Self::Destroyed), to) {
            (Self::CreatingCq(ticket), _) => {
                cm_worker.reject(ticket, RejectStatus::NO_RESOURCES);
                Self::Destroyed
            }
            (Self::Accepting(cancel), QpStage::Cancelling) => {
                cancel.call();
                Self::Cancelling
            }
            (Self::Accepted(pair), QpStage::Established) => Self::Established(pair.established()),
            (Self::Accepted(pair), QpStage::Draining) => Self::Draining(pair.end()),
            (Self::Established(pair), QpStage::Draining) => Self::Draining(pair.end()),
            (Self::Accepted(pair), QpStage::Destroying) => destroy(pair.into_endpoint()),
            (Self::Established(pair), QpStage::Destroying) => destroy(pair.into_endpoint()),
            (Self::Draining(pair), QpStage::Destroying) => destroy(pair.into_endpoint()),
            (_, to) => {
                debug_assert_eq!(to, QpStage::Destroyed, "a transition that nobody does");
                Self::Destroyed
            }
        };
        Some(to)
    }

    /// Removes the queue pair permanently, if it is here.
    pub(super) fn take_endpoint(&mut self) -> Option<D::Endpoint> {
        match std::mem::replace(self, Self::Destroyed) {
            Self::Accepted(pair) => Some(pair.into_endpoint()),
            Self::Established(pair) => Some(pair.into_endpoint()),
            Self::Draining(pair) => Some(pair.into_endpoint()),
            _ => None,
        }
    }

    /// Records that a capsule arrived before the host's confirmation: the host has the acceptance.
    pub(super) fn communication_established(&mut self) {
        if let Self::Accepted(pair) = self {
            pair.endpoint.communication_established();
        }
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        match self {
            Self::Accepted(pair) => pair.next_event(),
            Self::Established(pair) => pair.next_event(),
            Self::Draining(pair) => pair.next_event(),
            _ => None,
        }
    }

    /// Returns the state of a draining pair's shared receives.
    pub(super) fn last_receive(&mut self) -> LastWqe {
        match self {
            Self::Draining(pair) => pair.endpoint.last_receive(),
            _ => LastWqe::Awaited,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Accepted(pair) => pair.fd(),
            Self::Established(pair) => pair.fd(),
            Self::Draining(pair) => pair.fd(),
            _ => None,
        }
    }
}
