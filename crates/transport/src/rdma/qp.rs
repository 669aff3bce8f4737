//! A queue pair, and the operations that each of its states allows.
//!
//! ```text
//!   from        | step                 | to            owner of the queue pair
//!   ------------+----------------------+----------------------------------------------------------
//!   CreatingCq  | Made                 | Accepting     none: it does not exist yet
//!   Accepting   | Accepted             | Accepted      the CM worker, which accepts
//!   Accepted    | Established          | Established   the reactor
//!   Established | End                  | Draining      the reactor
//!   Draining    | Flushed, Overdue     | Destroying    the reactor
//!   Destroying  | Destroyed, Withheld  | Destroyed     the CM worker, which destroys it
//!   ------------+----------------------+----------------------------------------------------------
//!   CreatingCq  | End, Lost            | Destroyed     (the request is rejected)
//!   Accepting   | End, Lost            | Cancelling    the CM worker
//!   Cancelling  | Accepted             | Draining      (it was too late)
//!   Accepting, Cancelling | Destroyed  | Destroyed     (not accepted)
//!   Accepted    | End                  | Draining
//!   Accepted, Established, Draining | Lost | Destroying
//! ```
//!
//! In `CreatingCq` there is no queue pair yet: its completion queue is being created. In Accepting
//! and Cancelling the [CM worker](super::cm_worker) owns it, with its receives posted, and makes it
//! ready. A cancelled pair ends as soon as it returns. Accepted allows receives, Established also
//! sends, and Draining only a marker. In Destroying the CM worker owns it again, and destroys it.
//! Destroyed has no queue pair, or (Withheld) one that could not be destroyed and keeps the memory
//! it may use.
//!
//! The types correspond: [`Qp<Init>`](Init), [`Qp<Accepted>`](Accepted),
//! [`Qp<Ready>`](Ready), [`Qp<Draining>`](Draining). Work is sent through [`Qp::sends`],
//! which only a ready pair has:
//!
//! ```
//! use nvmeof_transport::rdma::{Qp, Ready};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Qp<Ready, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Before the connection is established, it does not compile:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Init, Qp};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Qp<Init, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor before the host has confirmed it:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Accepted, Qp};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Qp<Accepted, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor after its end:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Draining, Qp};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Qp<Draining, E>) {
//!     let _ = pair.sends();
//! }
//! ```

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use nvmeof_verbs::{AcceptParams, ConnectionEvent, Endpoint, VerbsError};

/// Stage of a queue pair, as in the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpStage {
    /// A connection request exists, and a completion queue is being created.
    CreatingCq,
    /// Receives are posted; the CM worker accepts.
    Accepting,
    /// As Accepting, but the connection is cancelled.
    Cancelling,
    /// The host is notified; it has not confirmed yet.
    Accepted,
    /// The connection is established.
    Established,
    /// The queue pair is in its error state, and returns its work.
    Draining,
    /// The CM worker destroys the queue pair.
    Destroying,
    /// The queue pair no longer exists.
    Destroyed,
}

/// Event that changes the stage of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpTransition {
    /// The queue pair is created.
    Made,
    /// The CM worker has accepted.
    Accepted,
    /// The connection is established.
    Established,
    /// The connection ends, for any reason and from either side.
    End,
    /// All posted work has returned.
    Flushed,
    /// The work did not return in time.
    Overdue,
    /// The device or its completion queue has failed: no more work returns.
    Lost,
    /// The CM worker has destroyed the queue pair.
    Destroyed,
    /// The CM worker did not destroy it in time: the queue no longer waits for that.
    Withheld,
}

/// All transitions.
const TABLE: [(QpStage, QpTransition, QpStage); 19] = [
    (QpStage::CreatingCq, QpTransition::Made, QpStage::Accepting),
    (QpStage::CreatingCq, QpTransition::End, QpStage::Destroyed),
    (QpStage::CreatingCq, QpTransition::Lost, QpStage::Destroyed),
    (QpStage::Accepting, QpTransition::Accepted, QpStage::Accepted),
    (QpStage::Accepting, QpTransition::Destroyed, QpStage::Destroyed),
    (QpStage::Accepting, QpTransition::End, QpStage::Cancelling),
    (QpStage::Accepting, QpTransition::Lost, QpStage::Cancelling),
    (QpStage::Cancelling, QpTransition::Accepted, QpStage::Draining),
    (QpStage::Cancelling, QpTransition::Destroyed, QpStage::Destroyed),
    (QpStage::Accepted, QpTransition::Established, QpStage::Established),
    (QpStage::Accepted, QpTransition::End, QpStage::Draining),
    (QpStage::Accepted, QpTransition::Lost, QpStage::Destroying),
    (QpStage::Established, QpTransition::End, QpStage::Draining),
    (QpStage::Established, QpTransition::Lost, QpStage::Destroying),
    (QpStage::Draining, QpTransition::Flushed, QpStage::Destroying),
    (QpStage::Draining, QpTransition::Overdue, QpStage::Destroying),
    (QpStage::Draining, QpTransition::Lost, QpStage::Destroying),
    (QpStage::Destroying, QpTransition::Destroyed, QpStage::Destroyed),
    (QpStage::Destroying, QpTransition::Withheld, QpStage::Destroyed),
];

impl QpStage {
    /// Returns the stage after a step; `None` if the step changes nothing.
    #[must_use]
    pub fn after(self, step: QpTransition) -> Option<Self> {
        TABLE.iter().find(|(from, by, _)| (*from, *by) == (self, step)).map(|(_, _, to)| *to)
    }

    /// Returns true if the connection is established or can still become so.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::CreatingCq | Self::Accepting | Self::Accepted | Self::Established)
    }

    /// Returns true if the CM worker owns the queue pair.
    #[must_use]
    pub fn is_away(self) -> bool {
        matches!(self, Self::Accepting | Self::Cancelling | Self::Destroying)
    }
}

/// Created, and unknown to the host.
#[derive(Debug)]
pub struct Init;
/// Accepted, but not confirmed by the host.
#[derive(Debug)]
pub struct Accepted;
/// Connected.
#[derive(Debug)]
pub struct Ready;
/// Ended, with work still to return.
#[derive(Debug)]
pub struct Draining;

/// States in which receives are posted.
pub trait Receiving {}
impl Receiving for Init {}
impl Receiving for Accepted {}
impl Receiving for Ready {}

/// States of a connection that is established or can still become so.
pub trait Connected {}
impl Connected for Accepted {}
impl Connected for Ready {}

/// A queue pair in state `S`.
#[derive(Debug)]
pub struct Qp<S, E> {
    pub(super) endpoint: E,
    state: PhantomData<S>,
}

/// The right to post to the send queue.
#[derive(Debug)]
pub struct Sends<'a, E> {
    pub(super) endpoint: &'a mut E,
}

impl<S, E: Endpoint> Qp<S, E> {
    fn become_<T>(self) -> Qp<T, E> {
        Qp { endpoint: self.endpoint, state: PhantomData }
    }

    pub(super) fn into_endpoint(self) -> E {
        self.endpoint
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        self.endpoint.next_event()
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.fd()
    }
}

impl<S: Connected, E: Endpoint> Qp<S, E> {
    /// Ends the connection: all posted work returns.
    #[must_use]
    pub fn end(mut self) -> Qp<Draining, E> {
        self.endpoint.disconnect();
        self.become_()
    }
}

impl<E: Endpoint> Qp<Init, E> {
    /// Wraps a new queue pair.
    #[must_use]
    pub fn new(endpoint: E) -> Self {
        Self { endpoint, state: PhantomData }
    }

    /// Accepts the connection; [`ConnectionEvent::Established`] follows. Can block in the kernel.
    ///
    /// # Errors
    /// Returns the error of the system, and the pair, which can only be destroyed.
    pub fn accept(
        mut self,
        params: &AcceptParams<'_>,
    ) -> Result<Qp<Accepted, E>, (VerbsError, Self)> {
        match self.endpoint.accept(params) {
            Ok(()) => Ok(self.become_()),
            Err(error) => Err((error, self)),
        }
    }
}

impl<E: Endpoint> Qp<Accepted, E> {
    /// Records that the connection is established.
    #[must_use]
    pub fn established(self) -> Qp<Ready, E> {
        self.become_()
    }
}

impl<E: Endpoint> Qp<Ready, E> {
    /// Returns the right to post to the send queue.
    pub fn sends(&mut self) -> Sends<'_, E> {
        Sends { endpoint: &mut self.endpoint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [QpStage; 8] = [
        QpStage::CreatingCq,
        QpStage::Accepting,
        QpStage::Cancelling,
        QpStage::Accepted,
        QpStage::Established,
        QpStage::Draining,
        QpStage::Destroying,
        QpStage::Destroyed,
    ];

    #[test]
    fn every_stage_ends_and_nothing_comes_back_to_life() {
        for stage in STAGES {
            // A pair of the CM worker that is already ending waits for the worker, whatever happens
            // to the device.
            let waits =
                matches!(stage, QpStage::Cancelling | QpStage::Destroying | QpStage::Destroyed);
            assert_eq!(stage.after(QpTransition::Lost).is_some(), !waits, "{stage:?}");
            assert_eq!(
                stage.after(QpTransition::Destroyed).is_some(),
                stage.is_away(),
                "{stage:?}"
            );
            assert_eq!(stage.after(QpTransition::End).is_some(), stage.is_live(), "{stage:?}");
        }
        let rank = |stage| STAGES.iter().position(|one| *one == stage);
        for (from, _, to) in TABLE {
            assert!(rank(from) < rank(to), "{from:?} -> {to:?}");
        }
        assert_eq!(QpStage::Established.after(QpTransition::Flushed), None);
        assert_eq!(QpStage::Draining.after(QpTransition::Established), None);
        for (at, (from, step, _)) in TABLE.iter().enumerate() {
            let same = TABLE.iter().skip(at + 1).find(|(f, s, _)| (f, s) == (from, step));
            assert_eq!(same, None, "a step that leads to two places");
        }
    }
}
