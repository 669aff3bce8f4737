//! A Connect that waits until the commands of the same host's other associations have completed.
//!
//! ```text
//!   Connect, QID 0
//!      |  another association of the host lives
//!      v
//!   barrier: reactors read what has arrived for it, and wait for the writes that it has by then
//!      |  completed, or the devices' bound expires
//!      v
//!   quiescing: an association of the host or an I/O queue is gone; commands of it are at a device
//!      |  quiet                |  the devices' bound expires
//!      v                       v
//!   decided             Controller Busy, without DNR
//! ```
//!
//! The barrier is for a host that lost its connections and reconnects before the target has
//! noticed. Its association still lives, and a write of it can be at a device or unread in a
//! socket. If the target has noticed only the end of I/O queues, the Connect waits until their
//! commands have completed.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::fabrics::ConnectData;
use nvmeof_wire::zerocopy::FromBytes;

use super::refusal::Refused;
use super::{Outcome, Queue, State};
use crate::Nanos;
use crate::controller::ControllerKey;
use crate::disposition::Disposition;
use crate::failure::Failure;
use crate::quiesce::{Association, Quiesce, QuiesceGuard, REACTION};
use crate::subsystem::Subsystem;
use crate::target::Target;

/// A waiting Connect, with its data.
#[derive(Debug)]
pub(super) struct WaitingConnect {
    sqe: Sqe,
    data: Box<[u8]>,
    /// Time at which it is refused for now.
    until: Nanos,
}

/// The commands that the host's other associations had when the Connect arrived.
#[derive(Debug)]
pub(super) struct PendingBarrier {
    quiesce: Quiesce,
    /// The request to the reactors, until it is taken.
    ask: Option<ControllerBarrier>,
    /// Time at which the Connect proceeds anyway: those associations are not lost.
    until: Nanos,
}

/// Request to every reactor for a Connect.
#[derive(Debug)]
pub struct ControllerBarrier {
    /// Controllers whose commands count: those at the reactors and those that wait unread.
    pub controllers: Arc<[ControllerKey]>,
    /// To be kept, shared, until these commands have completed.
    pub guard: QuiesceGuard,
}

/// Maximum wait of a Connect, even if a device can take longer.
///
/// Linux hosts give up a Connect after a minute, and retry if the response arrives before that.
const CONNECT_WAIT: Duration = Duration::from_secs(30);

impl Queue {
    /// Handles the data of a Connect command: decides it, or keeps it.
    ///
    /// The Connect waits until the commands of the host's other associations have completed, at
    /// most for the bound of the devices.
    pub(super) fn connect_or_wait(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> Result<Outcome, Failure> {
        let outcome = self.connect(sqe, data, now);
        if !matches!(outcome, Err(Failure::Quiescing)) {
            return outcome;
        }
        let until = now.saturating_add(self.patience(data));
        self.waiting = Some(Box::new(WaitingConnect { sqe: *sqe, data: data.into(), until }));
        Ok(Outcome::Held)
    }

    /// Checks again whether the waiting Connect can complete.
    ///
    /// Polled like [`Self::poll_event`].
    pub fn poll_connect(&mut self, now: Nanos) -> Option<(Sqe, Disposition)> {
        let waiting = self.waiting.take()?;
        let outcome = match self.connect(&waiting.sqe, &waiting.data, now) {
            Err(Failure::Quiescing) if now < waiting.until => {
                self.waiting = Some(waiting);
                return None;
            }
            Err(Failure::Quiescing) => {
                let data = ConnectData::ref_from_prefix(&waiting.data).ok().map(|(data, _)| data);
                let refused = Refused::quiescing(Failure::ConnectBusy);
                Err(self.refuse_connect(&waiting.sqe, data, refused))
            }
            outcome => outcome,
        };
        self.barrier = None;
        if let State::Fresh { connecting, .. } = &mut self.state {
            *connecting = None;
        }
        Some((waiting.sqe, self.dispose(&waiting.sqe, outcome)))
    }

    /// Takes the request to the reactors for a waiting Connect; polled like [`Self::poll_event`].
    pub fn poll_barrier(&mut self) -> Option<ControllerBarrier> {
        self.barrier.as_mut()?.ask.take()
    }

    /// Maximum time that a Connect waits for devices.
    fn patience(&self, data: &[u8]) -> Nanos {
        let subnqn =
            ConnectData::ref_from_prefix(data).ok().and_then(|(data, _)| data.subnqn().ok());
        let registry = self.target.registry();
        let subsystem = subnqn.and_then(|subnqn| registry.subsystems.get(&subnqn));
        subsystem.map_or(0, |subsystem| patience(subsystem))
    }
}

/// Checks that no command of another association of this host can change a device any more.
///
/// # Errors
/// [`Failure::Quiescing`] while one can; `barrier` may then hold a request to the reactors.
pub(super) fn pass_barrier(
    barrier: &mut Option<PendingBarrier>,
    target: &Target,
    subsystem: &Subsystem,
    association: &Association,
    now: Nanos,
) -> Result<(), Failure> {
    if barrier.is_none() {
        let controllers = subsystem.controllers_of(&association.host_nqn, &association.host_id);
        if !controllers.is_empty() {
            *barrier =
                Some(PendingBarrier::new(controllers, target, association.clone(), subsystem, now));
        }
    }
    let is_pending = barrier.as_ref().is_some_and(|one| !one.quiesce.is_quiet() && now < one.until);
    let has_closing = subsystem.has_closing_queue(&association.host_nqn, &association.host_id);
    if is_pending || has_closing || target.quiescing.has(association) {
        return Err(Failure::Quiescing);
    }
    Ok(())
}

impl PendingBarrier {
    fn new(
        controllers: Vec<ControllerKey>,
        target: &Target,
        association: Association,
        subsystem: &Subsystem,
        now: Nanos,
    ) -> Self {
        let quiesce = Quiesce::new(association, None, Arc::clone(&target.notifier));
        quiesce.await_quiet();
        let guard = quiesce.guard(0);
        let ask = guard.map(|guard| ControllerBarrier { controllers: controllers.into(), guard });
        Self { quiesce, ask, until: now.saturating_add(patience(subsystem)) }
    }
}

/// Maximum time that a Connect to this subsystem waits for devices, in nanoseconds.
fn patience(subsystem: &Subsystem) -> Nanos {
    let bound = subsystem.quiesce_bound().saturating_add(REACTION).min(CONNECT_WAIT);
    u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)
}
