//! Quiescing: nobody is told that a controller, a queue or a host is gone while a command of it can still
//! change a device.
//!
//! ```text
//!   Connect of an I/O queue --> QuiesceGuard, shared by the commands that are with a device when the queue closes
//!                                    |
//!                                    v last one dropped
//!   CSTS.RDY = 0, SHST = 10b, Connect of the same host, the answer to an operator
//! ```
//!
//! Without it a write of before a reset could land over one that the host was told is durable after it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_wire::Nqn;

use crate::spec::PortId;
use crate::target::Notifier;

/// Commands of a controller, or of one queue of it, that can still change a device; to be asked by those who wait
/// until there are none.
#[derive(Clone, Debug)]
pub struct Quiesce {
    state: Arc<State>,
    /// Only this I/O queue's.
    qid: Option<u16>,
}

/// Keeps an I/O queue from being taken for quiet. Whoever closes the queue keeps it, shared between the commands of
/// the queue that are with a device, until the last of them is back.
#[derive(Debug)]
pub struct QuiesceGuard {
    state: Arc<State>,
    qid: u16,
}

/// An association: a host's with a subsystem.
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
    /// I/O queues of which a guard is out.
    queues: Mutex<BTreeMap<u16, QueueStage>>,
    /// Somebody waits until it is quiet.
    awaited: AtomicBool,
}

/// Stage of an I/O queue of which a guard is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueStage {
    /// It is connected.
    Connected,
    /// Its connection is closed, and commands of it are with a device.
    Closing,
}

impl Quiesce {
    /// Of a controller without I/O queues, whose admin queue came by this listener.
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

    /// Whether nothing can change a device any more.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let queues = self.state.queues();
        self.qid.map_or(queues.is_empty(), |qid| !queues.contains_key(&qid))
    }

    /// The host's name.
    #[must_use]
    pub fn host(&self) -> &Nqn {
        &self.state.association.host_nqn
    }

    /// Of one I/O queue only.
    pub(crate) fn of_queue(&self, qid: u16) -> Self {
        Self { qid: Some(qid), ..self.clone() }
    }

    /// Whose it is.
    pub(crate) fn association(&self) -> &Association {
        &self.state.association
    }

    /// The listener of its admin queue.
    pub(crate) fn port(&self) -> Option<PortId> {
        self.state.port
    }

    /// Whether a connection of an I/O queue is closed while commands of it are with a device.
    ///
    /// If so, reactors look at their queues when that has changed.
    pub(crate) fn has_closing_queue(&self) -> bool {
        self.await_quiet();
        has_closing(&self.state.queues())
    }

    /// Has reactors look at their queues when it is quiet.
    pub(crate) fn await_quiet(&self) {
        self.state.awaited.store(true, Ordering::Release);
    }

    /// A guard for an I/O queue; `None` while commands of one before it with this identifier are with a device.
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
    /// The connection of the queue is closed.
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

/// Controllers that are gone and of which commands are still with a device.
#[derive(Debug, Default)]
pub(crate) struct Departing {
    list: Mutex<Vec<Quiesce>>,
}

impl Departing {
    /// A controller is gone.
    pub(crate) fn add(&self, quiesce: &Quiesce) {
        let mut list = self.list();
        if !quiesce.is_quiet() {
            list.push(quiesce.clone());
        }
    }

    /// Whether anything of this association can still change a device.
    pub(crate) fn has(&self, association: &Association) -> bool {
        self.list().iter().any(|quiesce| quiesce.association() == association)
    }

    /// All that are not quiet and of which `is_meant` holds.
    pub(crate) fn matching(&self, is_meant: impl Fn(&Quiesce) -> bool) -> Vec<Quiesce> {
        self.list().iter().filter(|quiesce| is_meant(quiesce)).cloned().collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.list().len()
    }

    /// The list, without those that are quiet by now.
    fn list(&self) -> MutexGuard<'_, Vec<Quiesce>> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|quiesce| !quiesce.is_quiet());
        list
    }
}

/// How long a command can be with a device whose own bound is not known, which is then the operating system's:
/// Linux gives a drive 30 s for a command, and as much to get over a reset.
pub const UNKNOWN_BOUND: Duration = Duration::from_secs(60);

/// How long reactors may take beyond that to close connections and to see that something is quiet, on a busy machine.
pub const REACTION: Duration = Duration::from_secs(2);

/// A bound of devices in units of 500 ms for CAP.TO, which has 8 bits (Base 3.1.3.1): rounded up, with what reactors may
/// take.
pub(crate) fn half_seconds(bound: Duration) -> u8 {
    let units = bound.saturating_add(REACTION).as_millis().div_ceil(500);
    u8::try_from(units).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn association(host: u8) -> Association {
        let nqn = |name: &str| Nqn::relaxed(name).unwrap();
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
        let departing = Departing::default();
        let quiesce = Quiesce::new(association(1), None, Arc::default());
        departing.add(&quiesce);
        assert!(!departing.has(&association(1)), "nothing is with a device");
        let guard = quiesce.guard(1);
        departing.add(&quiesce);
        assert!(departing.has(&association(1)) && !departing.has(&association(2)));
        assert_eq!(departing.matching(|one| one.association().host_id == [1; 16]), [quiesce]);
        drop(guard);
        assert!(!departing.has(&association(1)));
        assert_eq!(departing.count(), 0);
    }

    #[test]
    fn a_bound_is_rounded_up_to_half_seconds() {
        assert_eq!(half_seconds(Duration::ZERO), 4);
        assert_eq!(half_seconds(Duration::from_millis(1)), 5);
        assert_eq!(half_seconds(Duration::from_secs(30)), 64);
        assert_eq!(half_seconds(Duration::from_secs(3600)), 255);
    }
}
