//! A queue pair, and what may be done with it.
//!
//! ```text
//!   from       | step                 | to         who has the queue pair
//!   -----------+----------------------+-----------------------------------------------------------
//!   Asking     | Made                 | Accepting  nobody: there is none yet
//!   Accepting  | Accepted             | Accepted   the usher, which accepts
//!   Accepted   | Established          | Open       the reactor
//!   Open       | End                  | Draining   the reactor
//!   Draining   | Flushed, Overdue     | Ending     the reactor
//!   Ending     | Destroyed, Withheld  | Gone       the usher, which takes it away
//!   -----------+----------------------+-----------------------------------------------------------
//!   Asking     | End, Lost            | Gone       (the request is rejected)
//!   Accepting  | End, Lost            | Recalled   the usher
//!   Recalled   | Accepted             | Draining   (it was too late)
//!   Accepting, Recalled | Destroyed   | Gone       (not accepted)
//!   Accepted   | End                  | Draining
//!   Accepted, Open, Draining | Lost   | Ending
//! ```
//!
//! In Asking there is no queue pair yet: its completion queue is being made. In Accepting and Recalled the
//! [usher](super::usher) has it, with its receives posted, and makes it ready; in Recalled it is to end as soon
//! as it is back. In Accepted and Open it takes receives, in Open sends too, in Draining nothing but a marker.
//! In Ending the usher has it again, and takes it away; Gone has no queue pair, or (Withheld) one that could
//! not be taken away and keeps the memory it may be using.
//!
//! The types follow: [`Pair<Init>`](Init), [`Pair<Accepted>`](Accepted), [`Pair<Ready>`](Ready),
//! [`Pair<Draining>`](Draining). Work is sent through [`Pair::sends`], which only a pair that is ready has:
//!
//! ```
//! use nvmeof_transport::rdma::{Pair, Ready};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Ready, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Before the connection stands it does not compile:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Init, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Init, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor while the host has not been heard of:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Accepted, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Accepted, E>) {
//!     let _ = pair.sends();
//! }
//! ```
//!
//! Nor after its end:
//!
//! ```compile_fail
//! use nvmeof_transport::rdma::{Draining, Pair};
//! use nvmeof_verbs::Endpoint;
//! fn send<E: Endpoint>(mut pair: Pair<Draining, E>) {
//!     let _ = pair.sends();
//! }
//! ```

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use nvmeof_verbs::{AcceptParams, ConnectionEvent, Device, Endpoint, LastReceive, VerbsError};
use nvmeof_wire::rdma::RejectStatus;

use super::usher::{Recall, Slip, Usher};

/// Where a queue pair is in its life: the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is a connection request, and a completion queue is being made.
    Asking,
    /// Receives are posted; the usher accepts.
    Accepting,
    /// As Accepting, but nobody wants the connection any more.
    Recalled,
    /// The host is told; it has not said that it heard.
    Accepted,
    /// The connection stands.
    Open,
    /// The queue pair is in its error state, and work comes back.
    Draining,
    /// The usher takes the queue pair away.
    Ending,
    /// There is no queue pair any more.
    Gone,
}

/// What moves a queue pair on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The queue pair is made.
    Made,
    /// The usher has accepted.
    Accepted,
    /// The connection stands.
    Established,
    /// It ends, for whatever reason and by whomever.
    End,
    /// All posted work has come back.
    Flushed,
    /// It did not come back in time.
    Overdue,
    /// The device or its completion queue is gone: nothing will come back.
    Lost,
    /// The usher has taken the queue pair away.
    Destroyed,
    /// The usher could not for so long that it is not waited for.
    Withheld,
}

/// Every transition there is.
const TABLE: [(Stage, Step, Stage); 19] = [
    (Stage::Asking, Step::Made, Stage::Accepting),
    (Stage::Asking, Step::End, Stage::Gone),
    (Stage::Asking, Step::Lost, Stage::Gone),
    (Stage::Accepting, Step::Accepted, Stage::Accepted),
    (Stage::Accepting, Step::Destroyed, Stage::Gone),
    (Stage::Accepting, Step::End, Stage::Recalled),
    (Stage::Accepting, Step::Lost, Stage::Recalled),
    (Stage::Recalled, Step::Accepted, Stage::Draining),
    (Stage::Recalled, Step::Destroyed, Stage::Gone),
    (Stage::Accepted, Step::Established, Stage::Open),
    (Stage::Accepted, Step::End, Stage::Draining),
    (Stage::Accepted, Step::Lost, Stage::Ending),
    (Stage::Open, Step::End, Stage::Draining),
    (Stage::Open, Step::Lost, Stage::Ending),
    (Stage::Draining, Step::Flushed, Stage::Ending),
    (Stage::Draining, Step::Overdue, Stage::Ending),
    (Stage::Draining, Step::Lost, Stage::Ending),
    (Stage::Ending, Step::Destroyed, Stage::Gone),
    (Stage::Ending, Step::Withheld, Stage::Gone),
];

impl Stage {
    /// Where a step leads; `None` if it changes nothing.
    #[must_use]
    pub fn after(self, step: Step) -> Option<Self> {
        TABLE.iter().find(|(from, by, _)| (*from, *by) == (self, step)).map(|(_, _, to)| *to)
    }

    /// Whether the connection may still come to something, or has.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Asking | Self::Accepting | Self::Accepted | Self::Open)
    }

    /// Whether the queue pair is with the usher.
    #[must_use]
    pub fn is_away(self) -> bool {
        matches!(self, Self::Accepting | Self::Recalled | Self::Ending)
    }
}

/// Made, and not known to the host.
#[derive(Debug)]
pub struct Init;
/// Accepted, and not known to stand.
#[derive(Debug)]
pub struct Accepted;
/// Connected.
#[derive(Debug)]
pub struct Ready;
/// Ended, with work still to come back.
#[derive(Debug)]
pub struct Draining;

/// States in which receives are posted.
pub trait Receiving {}
impl Receiving for Init {}
impl Receiving for Accepted {}
impl Receiving for Ready {}

/// States of a connection that may still come to something.
pub trait Connected {}
impl Connected for Accepted {}
impl Connected for Ready {}

/// A queue pair in state `S`.
#[derive(Debug)]
pub struct Pair<S, E> {
    pub(super) endpoint: E,
    state: PhantomData<S>,
}

/// The right to post to the send queue.
#[derive(Debug)]
pub struct Sends<'a, E> {
    pub(super) endpoint: &'a mut E,
}

impl<S, E: Endpoint> Pair<S, E> {
    fn become_<T>(self) -> Pair<T, E> {
        Pair { endpoint: self.endpoint, state: PhantomData }
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

impl<S: Connected, E: Endpoint> Pair<S, E> {
    /// Ends the connection: everything posted comes back.
    #[must_use]
    pub fn end(mut self) -> Pair<Draining, E> {
        self.endpoint.disconnect();
        self.become_()
    }
}

impl<E: Endpoint> Pair<Init, E> {
    /// A queue pair that was just made.
    #[must_use]
    pub fn new(endpoint: E) -> Self {
        Self { endpoint, state: PhantomData }
    }

    /// Accepts the connection; [`ConnectionEvent::Established`] follows. May wait in the kernel.
    ///
    /// # Errors
    /// What the system says, and the pair, which is good for nothing but its end.
    pub fn accept(
        mut self,
        params: &AcceptParams<'_>,
    ) -> Result<Pair<Accepted, E>, (VerbsError, Self)> {
        match self.endpoint.accept(params) {
            Ok(()) => Ok(self.become_()),
            Err(error) => Err((error, self)),
        }
    }
}

impl<E: Endpoint> Pair<Accepted, E> {
    /// The connection stands.
    #[must_use]
    pub fn established(self) -> Pair<Ready, E> {
        self.become_()
    }
}

impl<E: Endpoint> Pair<Ready, E> {
    /// The right to post to the send queue.
    pub fn sends(&mut self) -> Sends<'_, E> {
        Sends { endpoint: &mut self.endpoint }
    }
}

/// A queue pair in whichever state it is. Moved as the table says, by the functions below only.
#[derive(Debug)]
pub(super) enum Link<D: Device> {
    Asking(D::Ticket),
    Accepting(Recall),
    Recalled,
    Accepted(Pair<Accepted, D::Endpoint>),
    Open(Pair<Ready, D::Endpoint>),
    Draining(Pair<Draining, D::Endpoint>),
    Ending,
    Gone,
}

impl<D: Device> Link<D> {
    pub(super) fn stage(&self) -> Stage {
        match self {
            Self::Asking(_) => Stage::Asking,
            Self::Accepting(_) => Stage::Accepting,
            Self::Recalled => Stage::Recalled,
            Self::Accepted(_) => Stage::Accepted,
            Self::Open(_) => Stage::Open,
            Self::Draining(_) => Stage::Draining,
            Self::Ending => Stage::Ending,
            Self::Gone => Stage::Gone,
        }
    }

    /// Has the queue pair made of the ticket, and handed to the usher, which gives a recall. Where that fails,
    /// there is nothing any more.
    pub(super) fn make(&mut self, made: impl FnOnce(D::Ticket) -> Option<Recall>) {
        if self.stage().after(Step::Made).is_some()
            && let Self::Asking(ticket) = std::mem::replace(self, Self::Gone)
            && let Some(recall) = made(ticket)
        {
            *self = Self::Accepting(recall);
        }
    }

    /// The queue pair is back from the usher, accepted; the new stage.
    pub(super) fn accepted(&mut self, pair: Pair<Accepted, D::Endpoint>) -> Option<Stage> {
        let to = self.stage().after(Step::Accepted)?;
        *self = match to {
            Stage::Draining => Self::Draining(pair.end()),
            _ => Self::Accepted(pair),
        };
        Some(to)
    }

    /// Does what the table says; the new stage, if it is a new one. A pair that is to go is handed to the
    /// usher: once that says so, the device uses no memory of it.
    pub(super) fn step(&mut self, step: Step, usher: &Usher<D>, slip: &Slip<D>) -> Option<Stage> {
        let to = self.stage().after(step)?;
        debug_assert!(
            !matches!(step, Step::Made | Step::Accepted),
            "these come with what they are of"
        );
        let destroy = |endpoint| {
            usher.destroy(endpoint, slip.clone());
            Self::Ending
        };
        *self = match (std::mem::replace(self, Self::Gone), to) {
            (Self::Asking(ticket), _) => {
                usher.reject(ticket, RejectStatus::NO_RESOURCES);
                Self::Gone
            }
            (Self::Accepting(recall), Stage::Recalled) => {
                recall.call();
                Self::Recalled
            }
            (Self::Accepted(pair), Stage::Open) => Self::Open(pair.established()),
            (Self::Accepted(pair), Stage::Draining) => Self::Draining(pair.end()),
            (Self::Open(pair), Stage::Draining) => Self::Draining(pair.end()),
            (Self::Accepted(pair), Stage::Ending) => destroy(pair.into_endpoint()),
            (Self::Open(pair), Stage::Ending) => destroy(pair.into_endpoint()),
            (Self::Draining(pair), Stage::Ending) => destroy(pair.into_endpoint()),
            (_, to) => {
                debug_assert_eq!(to, Stage::Gone, "a transition that nobody does");
                Self::Gone
            }
        };
        Some(to)
    }

    /// Takes what is here of the queue pair, for good.
    pub(super) fn take_endpoint(&mut self) -> Option<D::Endpoint> {
        match std::mem::replace(self, Self::Gone) {
            Self::Accepted(pair) => Some(pair.into_endpoint()),
            Self::Open(pair) => Some(pair.into_endpoint()),
            Self::Draining(pair) => Some(pair.into_endpoint()),
            _ => None,
        }
    }

    /// Something has come of a host that is not known to have heard the acceptance: it has.
    pub(super) fn heard(&mut self) {
        if let Self::Accepted(pair) = self {
            pair.endpoint.heard();
        }
    }

    pub(super) fn next_event(&mut self) -> Option<ConnectionEvent> {
        match self {
            Self::Accepted(pair) => pair.next_event(),
            Self::Open(pair) => pair.next_event(),
            Self::Draining(pair) => pair.next_event(),
            _ => None,
        }
    }

    /// Where a pair that is draining stands with its shared receives.
    pub(super) fn last_receive(&mut self) -> LastReceive {
        match self {
            Self::Draining(pair) => pair.endpoint.last_receive(),
            _ => LastReceive::Awaited,
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Accepted(pair) => pair.fd(),
            Self::Open(pair) => pair.fd(),
            Self::Draining(pair) => pair.fd(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [Stage; 8] = [
        Stage::Asking,
        Stage::Accepting,
        Stage::Recalled,
        Stage::Accepted,
        Stage::Open,
        Stage::Draining,
        Stage::Ending,
        Stage::Gone,
    ];

    #[test]
    fn every_stage_ends_and_nothing_comes_back_to_life() {
        for stage in STAGES {
            // What is with the usher and at its end already waits for the usher, whatever becomes of the device.
            let waits = matches!(stage, Stage::Recalled | Stage::Ending | Stage::Gone);
            assert_eq!(stage.after(Step::Lost).is_some(), !waits, "{stage:?}");
            assert_eq!(stage.after(Step::Destroyed).is_some(), stage.is_away(), "{stage:?}");
            assert_eq!(stage.after(Step::End).is_some(), stage.is_live(), "{stage:?}");
        }
        let rank = |stage| STAGES.iter().position(|one| *one == stage);
        for (from, _, to) in TABLE {
            assert!(rank(from) < rank(to), "{from:?} -> {to:?}");
        }
        assert_eq!(Stage::Open.after(Step::Flushed), None);
        assert_eq!(Stage::Draining.after(Step::Established), None);
        for (at, (from, step, _)) in TABLE.iter().enumerate() {
            let same = TABLE.iter().skip(at + 1).find(|(f, s, _)| (f, s) == (from, step));
            assert_eq!(same, None, "a step that leads to two places");
        }
    }
}
