//! Quiescing: tracks commands that can still change a device after their controller ended.
//!
//! The target reports the end of a controller, queue or host only after its last command has left
//! the device.
//!
//! ```text
//!   Connect of an I/O queue --> QuiesceGuard, shared by commands at a device when the queue closes
//!                                    |
//!                                    v last one dropped
//!   CSTS.RDY = 0, SHST = 10b, Connect of the same host, the response to an operator
//! ```
//!
//! Without quiescing, a write from before a reset could overwrite one that completed as durable
//! after it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_wire::Nqn;

use crate::spec::PortId;
use crate::target::Notifier;

/// Commands of a controller, or of one of its queues, that can still change a device.
///
/// A caller that waits until there are none polls this handle.
#[derive(Clone, Debug)]
pub struct Quiesce {
    state: Arc<State>,
    /// The only I/O queue that counts; `None`: every I/O queue of the controller.
    qid: Option<u16>,
}

/// Keeps an I/O queue from counting as quiet.
///
/// The caller that closes the queue keeps the guard until its last command at a device completes.
/// The commands share the guard.
#[derive(Debug)]
pub struct QuiesceGuard {
    state: Arc<State>,
    qid: u16,
}

/// An association of a host with a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Association {
    pub(crate) subnqn: Nqn,
    pub(crate) host_nqn: Nqn,
    pub(crate) host_id: [u8; 16],
}

#[derive(Debug)]
struct State {
    association: Association,
    /// Listener of the admin queue.
    port: Option<PortId>,
    notifier: Arc<Notifier>,
    /// I/O queues with a live guard.
    queues: Mutex<BTreeMap<u16, QueueStage>>,
    /// A caller waits for quiescence.
    awaited: AtomicBool,
}

/// Stage of an I/O queue with a live guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueStage {
    /// The queue is connected.
    Connected,
    /// Its connection is closed, and some of its commands are at a device.
    Closing,
}

impl Quiesce {
    /// Creates the handle of a controller without I/O queues.
    ///
    /// Its admin queue came through the listener `port`.
    pub(crate) fn new(
        association: Association,
        port: Option<PortId>,
        notifier: Arc<Notifier>,
    ) -> Self {
        let state = State {
            association,
            port,
            notifier,
            queues: Mutex::default(),
            awaited: AtomicBool::new(false),
        };
        Self { state: Arc::new(state), qid: None }
    }

    /// Returns true if no command can change a device any more.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let queues = self.state.queues();
        self.qid.map_or(queues.is_empty(), |qid| !queues.contains_key(&qid))
    }

    /// NQN of the host.
    #[must_use]
    pub fn host(&self) -> &Nqn {
        &self.state.association.host_nqn
    }

    /// Restricts the handle to one I/O queue.
    pub(crate) fn of_queue(&self, qid: u16) -> Self {
        Self { qid: Some(qid), ..self.clone() }
    }

    /// The association of the controller.
    pub(crate) fn association(&self) -> &Association {
        &self.state.association
    }

    /// Listener of the admin queue.
    pub(crate) fn port(&self) -> Option<PortId> {
        self.state.port
    }

    /// Returns true if a closed connection of an I/O queue still has commands at a device.
    ///
    /// In that case the reactors are notified, and poll their queues, when that changes.
    pub(crate) fn has_closing_queue(&self) -> bool {
        self.await_quiet();
        has_closing(&self.state.queues())
    }

    /// Notifies the reactors when the controller becomes quiet, so that they poll their queues.
    pub(crate) fn await_quiet(&self) {
        self.state.awaited.store(true, Ordering::Release);
    }

    /// Creates the guard of an I/O queue.
    ///
    /// `None` while commands of an earlier queue of this ID are at a device.
    pub(crate) fn guard(&self, qid: u16) -> Option<QuiesceGuard> {
        let mut queues = self.state.queues();
        if queues.contains_key(&qid) {
            return None;
        }
        queues.insert(qid, QueueStage::Connected);
        Some(QuiesceGuard { state: Arc::clone(&self.state), qid })
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl PartialEq for Quiesce {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) && self.qid == other.qid
    }
}

impl Eq for Quiesce {}

impl State {
    fn queues(&self) -> MutexGuard<'_, BTreeMap<u16, QueueStage>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_closing(queues: &BTreeMap<u16, QueueStage>) -> bool {
    queues.values().any(|stage| *stage == QueueStage::Closing)
}

impl QuiesceGuard {
    /// Marks the connection of the queue as closed.
    pub(crate) fn close(&self) {
        if let Some(stage) = self.state.queues().get_mut(&self.qid) {
            *stage = QueueStage::Closing;
        }
    }
}

impl Drop for QuiesceGuard {
    fn drop(&mut self) {
        let is_awaited = {
            let mut queues = self.state.queues();
            let stage = queues.remove(&self.qid);
            let was_last_closing = stage == Some(QueueStage::Closing) && !has_closing(&queues);
            queues.is_empty() || was_last_closing
        };
        if is_awaited && self.state.awaited.load(Ordering::Acquire) {
            self.state.notifier.notify();
        }
    }
}

/// Ended controllers with commands that are still at a device.
#[derive(Debug, Default)]
pub(crate) struct QuiescingControllers {
    list: Mutex<Vec<Quiesce>>,
}

impl QuiescingControllers {
    /// Adds an ended controller.
    pub(crate) fn add(&self, quiesce: &Quiesce) {
        let mut list = self.list();
        if !quiesce.is_quiet() {
            list.push(quiesce.clone());
        }
    }

    /// Returns true if a command of this association can still change a device.
    pub(crate) fn has(&self, association: &Association) -> bool {
        self.list().iter().any(|quiesce| quiesce.association() == association)
    }

    /// All controllers that are not quiet and for which `is_meant` returns true.
    pub(crate) fn matching(&self, is_meant: impl Fn(&Quiesce) -> bool) -> Vec<Quiesce> {
        self.list().iter().filter(|quiesce| is_meant(quiesce)).cloned().collect()
    }

    /// Number of these controllers.
    pub(crate) fn count(&self) -> usize {
        self.list().len()
    }

    /// The list, after removal of the controllers that have become quiet.
    fn list(&self) -> MutexGuard<'_, Vec<Quiesce>> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|quiesce| !quiesce.is_quiet());
        list
    }
}

/// Assumed maximum device time of a command at a device without a known bound.
///
/// The operating system's bound applies then: Linux allows a drive 30 s for a command and another
/// 30 s to recover by a reset.
pub const UNKNOWN_BOUND: Duration = Duration::from_secs(60);

/// Extra time that reactors on a busy machine need to close connections and to detect quiescence.
pub const REACTION: Duration = Duration::from_secs(2);

/// Converts a device bound into units of 500 ms for CAP.TO, which has 8 bits (Base 3.1.3.1).
///
/// The value includes [`REACTION`] and is rounded up.
pub(crate) fn half_seconds(bound: Duration) -> u8 {
    let units = bound.saturating_add(REACTION).as_millis().div_ceil(500);
    u8::try_from(units).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn association(host: u8) -> Association {
        let nqn = |name: &str| Nqn::new(name).unwrap();
        let (subnqn, host_nqn) =
            (nqn("nqn.2026-11.org.example:s"), nqn("nqn.2026-11.org.example:h"));
        Association { subnqn, host_nqn, host_id: [host; 16] }
    }

    #[test]
    fn a_queue_is_quiet_when_the_last_guard_is_dropped() {
        let quiesce = Quiesce::new(association(1), None, Arc::default());
        let guard = Arc::new(quiesce.guard(1).unwrap());
        let other = quiesce.guard(2).unwrap();
        assert!(quiesce.guard(1).is_none(), "the queue before still has commands with a device");
        let command = Arc::clone(&guard);
        drop(guard);
        assert!(!quiesce.of_queue(1).is_quiet());
        drop(command);
        assert!(quiesce.of_queue(1).is_quiet() && !quiesce.is_quiet());
        drop(other);
        assert!(quiesce.is_quiet());
        assert!(quiesce.guard(1).is_some());
    }

    #[test]
    fn reactors_are_woken_only_if_somebody_waits() {
        let notifier = Arc::new(Notifier::default());
        let quiesce = Quiesce::new(association(1), None, Arc::clone(&notifier));
        drop(quiesce.guard(1));
        assert_eq!(notifier.epoch(), 0);
        let guards = (quiesce.guard(1), quiesce.guard(2));
        quiesce.await_quiet();
        drop(guards.0);
        assert_eq!(notifier.epoch(), 0, "not quiet yet");
        drop(guards.1);
        assert_eq!(notifier.epoch(), 1);
    }

    #[test]
    fn a_queue_whose_connection_is_closed_is_awaited_beside_those_that_live() {
        let notifier = Arc::new(Notifier::default());
        let quiesce = Quiesce::new(association(1), None, Arc::clone(&notifier));
        let (lost, _lives) = (quiesce.guard(1).unwrap(), quiesce.guard(2));
        assert!(!quiesce.has_closing_queue());
        lost.close();
        assert!(quiesce.has_closing_queue());
        assert_eq!(notifier.epoch(), 0);
        drop(lost);
        assert!(!quiesce.has_closing_queue());
        assert_eq!(notifier.epoch(), 1, "who waits looks again");
    }

    #[test]
    fn what_departs_is_known_until_it_is_quiet() {
        let quiescing = QuiescingControllers::default();
        let quiesce = Quiesce::new(association(1), None, Arc::default());
        quiescing.add(&quiesce);
        assert!(!quiescing.has(&association(1)), "nothing is with a device");
        let guard = quiesce.guard(1);
        quiescing.add(&quiesce);
        assert!(quiescing.has(&association(1)) && !quiescing.has(&association(2)));
        assert_eq!(quiescing.matching(|one| one.association().host_id == [1; 16]), [quiesce]);
        drop(guard);
        assert!(!quiescing.has(&association(1)));
        assert_eq!(quiescing.count(), 0);
    }

    #[test]
    fn a_bound_is_rounded_up_to_half_seconds() {
        assert_eq!(half_seconds(Duration::ZERO), 4);
        assert_eq!(half_seconds(Duration::from_millis(1)), 5);
        assert_eq!(half_seconds(Duration::from_secs(30)), 64);
        assert_eq!(half_seconds(Duration::from_secs(3600)), 255);
    }
}
