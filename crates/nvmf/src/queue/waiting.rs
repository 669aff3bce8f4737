//! A Connect that waits until the commands of the same host's other associations are over.
//!
//! ```text
//!   Connect, QID 0
//!      |  another association of the host lives
//!      v
//!   barrier: reactors read what has come for it, and wait for the writes that it has by then
//!      |  over, or as long as devices may take
//!      v
//!   quiescing: an association of the host, or an I/O queue of it, is gone, and commands of it are with a device
//!      |  quiet                |  as long as devices may take
//!      v                       v
//!   decided             Controller Busy, without DNR
//! ```
//!
//! The first is for a host that has lost its connections and comes back before the target has seen that: its
//! association still lives, and a write of it may be with a device or unread in a socket. Where the target has seen
//! the end of I/O queues only, the Connect is quiescing until their commands have ended.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::fabrics::ConnectData;
use nvmeof_wire::zerocopy::FromBytes;

use super::{Outcome, Queue, State};
use crate::Nanos;
use crate::controller::ControllerKey;
use crate::disposition::Disposition;
use crate::failure::Failure;
use crate::quiesce::{Association, Quiesce, QuiesceGuard, REACTION};
use crate::subsystem::Subsystem;
use crate::target::Target;

/// A Connect that waits, with its data.
#[derive(Debug)]
pub(super) struct WaitingConnect {
    sqe: Sqe,
    data: Box<[u8]>,
    /// When it is refused for now.
    until: Nanos,
}

/// The commands that the host's other associations had when the Connect came.
#[derive(Debug)]
pub(super) struct PendingBarrier {
    quiesce: Quiesce,
    /// What reactors are to be asked, once.
    ask: Option<ControllerBarrier>,
    /// When the Connect goes on all the same: those associations are not lost.
    until: Nanos,
}

/// What every reactor is to be asked for a Connect.
#[derive(Debug)]
pub struct ControllerBarrier {
    /// Controllers whose commands are meant: those that reactors have by now or that wait unread.
    pub controllers: Arc<[ControllerKey]>,
    /// To be kept, shared, until they are over.
    pub guard: QuiesceGuard,
}

/// How long a Connect waits at most, however long a device may take: hosts give theirs up after a minute (Linux), and
/// try again if it is answered before that.
const CONNECT_WAIT: Duration = Duration::from_secs(30);

impl Queue {
    /// The data of a Connect command came: decides it, or keeps it until the commands of the host's other associations
    /// are over, which takes as long as a device may take for them.
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

    /// Looks again whether the Connect that waits can be answered, which is to be asked as
    /// [`Self::poll_event`] is.
    pub fn poll_connect(&mut self, now: Nanos) -> Option<(Sqe, Disposition)> {
        let waiting = self.waiting.take()?;
        let outcome = match self.connect(&waiting.sqe, &waiting.data, now) {
            Err(Failure::Quiescing) if now < waiting.until => {
                self.waiting = Some(waiting);
                return None;
            }
            Err(Failure::Quiescing) => Err(Failure::ConnectBusy),
            outcome => outcome,
        };
        self.barrier = None;
        if let State::Fresh { connecting, .. } = &mut self.state {
            *connecting = None;
        }
        Some((waiting.sqe, self.dispose(&waiting.sqe, outcome)))
    }

    /// What reactors are to be asked for a Connect that waits, once; to be asked as [`Self::poll_event`] is.
    pub fn poll_barrier(&mut self) -> Option<ControllerBarrier> {
        self.barrier.as_mut()?.ask.take()
    }

    /// How long a Connect waits for devices.
    fn patience(&self, data: &[u8]) -> Nanos {
        let subnqn =
            ConnectData::ref_from_prefix(data).ok().and_then(|(data, _)| data.subnqn().ok());
        let registry = self.target.registry();
        let subsystem = subnqn.and_then(|subnqn| registry.subsystems.get(&subnqn));
        subsystem.map_or(0, |subsystem| patience(subsystem))
    }
}

/// Whether no command of another association of this host can change a device any more.
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
    if is_pending || has_closing || target.departing.has(association) {
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

/// How long a Connect to this subsystem waits for devices, in nanoseconds.
fn patience(subsystem: &Subsystem) -> Nanos {
    let bound = subsystem.quiesce_bound().saturating_add(REACTION).min(CONNECT_WAIT);
    u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)
}
