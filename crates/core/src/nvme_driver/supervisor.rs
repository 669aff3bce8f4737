//! Supervises one NVMe controller: admin queue, command timeouts, reset and failure.
//!
//! ```text
//!  Live --late: wake, abort; late again, CFS, RDY = 0, violation--> stopping --proven--> Stopped
//!   ^ |                                                              ^  |                   |
//!   | '--registers read as all ones--> Absent --they no longer do----'  | not proven, or    |
//!   |                                    | timeout                      | unusable          |
//!   |                                    '---------> Failing <----------+--it does not start|
//!   |                                                   | queues have released registers    |
//!   |                                                   v                                   |
//!   |                                                Failed                                 |
//!   '----- queues have reclaimed their buffers, controller enabled again -------------------'
//! ```
//!
//! **Quiescing** proves that the device can no longer write to memory. The supervisor tries, in
//! this order:
//!
//! 1. clear CC.EN and wait for CSTS.RDY = 0;
//! 2. reset the PCI function;
//! 3. clear the bus master bit;
//! 4. unmap the buffers from the IOMMU;
//! 5. release the function to the kernel, if other functions share the mappings.
//!
//! Only steps 1 and 2 can return to `Live`. If every step fails, buffers in flight are abandoned
//! and never reused.
//!
//! The supervisor is a state machine behind a lock that only the control plane takes. A dedicated
//! thread calls [`turn`](ControllerSupervisor::turn), as does every caller that waits for an admin
//! command.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvmeof_wire::Sqe;
use nvmeof_wire::abort::{Abort, NOT_ABORTED};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::Lid;

use super::admin::{AdminCompletion, AdminQueue, AdminReply, Owner};
use super::bar::{Bar, Disabled, Enabled, StatusSnapshot, UnknownController};
use super::bring_up::{BringUp, QueuePlan};
use super::buffers::MappedPools;
use super::error::{AdminError, OpenErrorReason};
use super::events::{DriveEvent, Events};
use super::function::Function;
use super::gate::{ControllerGate, ControllerState, Counters, GateState, QueueMode, QueueShared};
use super::identify::{ControllerCapabilities, Identity};
use super::options::{ControllerOptions, GRACE, LONGEST, TICKS, nanos};
use super::ring::Shadows;
use super::wait::Wait;

const MILLISECOND: u64 = 1_000_000;
/// Time between two turns while a device is disconnected, or queues have not acknowledged.
const SOON: u64 = 10 * MILLISECOND;
/// Attempts to start a stopped controller.
const STARTS: u32 = 3;
/// Period over which resets are counted.
const RESETS_OVER: u64 = 600_000 * MILLISECOND;
/// Failure reason of a controller that the system removes.
const TAKEN: &str = "the system removes the device";

/// Resources of the controller's function that the driver holds; released when the controller has
/// failed.
#[derive(Debug)]
pub(super) struct Hardware {
    pub(super) admin: AdminQueue,
    pub(super) shadows: Option<Arc<Shadows>>,
    /// Memory of shadow doorbells that the controller refused, but may use nevertheless while it is
    /// enabled.
    pub(super) _refused_shadows: Option<Arc<Shadows>>,
    /// Last field, because memory is unmapped while the function exists.
    pub(super) function: Arc<dyn Function>,
}

#[derive(Debug)]
enum Phase {
    Live(Enabled),
    /// The controller is disabled; waits for queues to acknowledge it.
    Stopped {
        disabled: Disabled,
        starts: u32,
        since: u64,
    },
    /// The registers read as all ones; the state may last until `until`.
    Absent {
        unknown: UnknownController,
        until: u64,
    },
    /// Permanently failed; waits for queues to release the registers.
    Failing,
    Failed,
}

/// Result of quiescing the device.
enum QuiesceOutcome {
    Disabled(Disabled),
    /// The device cannot write, and cannot be used; holds the proof.
    ForGood(&'static str),
    Unproven,
}

#[derive(Debug)]
pub(super) struct ControllerSupervisor {
    address: String,
    options: ControllerOptions,
    wait: Arc<dyn Wait>,
    pub(super) shared: Arc<ControllerGate>,
    identity: Identity,
    abilities: ControllerCapabilities,
    hardware: Option<Hardware>,
    plans: Vec<QueuePlan>,
    phase: Phase,
    generation: u64,
    failure: String,
    /// Results of callers' commands: `None` until available.
    replies: BTreeMap<u64, Option<Result<AdminReply, AdminError>>>,
    next_caller: u64,
    /// Times of the recent resets.
    resets: VecDeque<u64>,
    /// Commands for which an abort was sent: queue, identifier, tick.
    aborted: Vec<(usize, u16, u32)>,
    last_scan: u32,
    events: Events,
    reach: Arc<MappedPools>,
    /// The device was disconnected and lost its vector table, which could not be set up again: no
    /// interrupt signals its completions.
    interrupts_lost: bool,
    /// The system removes the function.
    is_removed: bool,
}

/// Initial parts of a supervisor.
#[derive(Debug)]
pub(super) struct SupervisorParts {
    pub(super) options: ControllerOptions,
    pub(super) wait: Arc<dyn Wait>,
    pub(super) shared: Arc<ControllerGate>,
    pub(super) identity: Identity,
    pub(super) abilities: ControllerCapabilities,
    pub(super) hardware: Hardware,
    pub(super) reach: Arc<MappedPools>,
    pub(super) plans: Vec<QueuePlan>,
    pub(super) enabled: Enabled,
    pub(super) generation: u64,
}

impl ControllerSupervisor {
    /// Creates the supervisor of a running controller, and opens the gate.
    pub(super) fn new(from: SupervisorParts) -> Self {
        let SupervisorParts { options, wait, shared, identity, abilities, .. } = from;
        let supervisor = Self {
            address: from.hardware.function.address().to_owned(),
            options,
            wait,
            shared,
            identity,
            abilities,
            hardware: Some(from.hardware),
            plans: from.plans,
            phase: Phase::Live(from.enabled),
            generation: from.generation,
            failure: String::new(),
            replies: BTreeMap::new(),
            next_caller: 0,
            resets: VecDeque::new(),
            aborted: Vec::new(),
            last_scan: 0,
            events: Events::default(),
            reach: from.reach,
            interrupts_lost: false,
            is_removed: false,
        };
        supervisor.publish_tick();
        supervisor.shared.set(GateState::new(supervisor.generation, QueueMode::Running));
        supervisor
    }

    /// Returns the descriptors that must wake the supervisor.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        let mut fds = vec![self.shared.supervisor.as_fd()];
        if let Some(hardware) = &self.hardware {
            fds.extend(hardware.admin.event());
            fds.extend(hardware.function.removal());
        }
        fds
    }

    /// Runs all due work; returns the nanoseconds until the next turn.
    pub(super) fn turn(&mut self) -> u64 {
        self.shared.supervisor.clear();
        if let Some(hardware) = &self.hardware {
            hardware.admin.clear_event();
        }
        let now = self.publish_tick();
        self.note_removal();
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Live(enabled) => self.live(enabled, now),
            Phase::Stopped { .. } if self.is_removed => {
                self.failed(Some("the controller is disabled"), TAKEN);
            }
            Phase::Stopped { disabled, starts, since } => {
                if self.shared.all_acked(self.shared.word()) {
                    self.start(disabled, starts, since, now);
                } else {
                    self.phase = Phase::Stopped { disabled, starts, since };
                }
            }
            Phase::Absent { unknown, .. } if self.is_removed => self.fail(unknown, TAKEN),
            Phase::Absent { unknown, until } => self.absent(unknown, until, now),
            Phase::Failing => {
                if self.shared.all_acked(self.shared.word()) {
                    self.release_function();
                } else {
                    self.phase = Phase::Failing;
                }
            }
            Phase::Failed => {}
        }
        // Repeated on every turn: a queue may miss an announcement between its poll and its sleep.
        self.shared.wake_behind();
        match self.phase {
            Phase::Live(_) if self.interrupts_lost => SOON,
            Phase::Live(_) => LONGEST.min(self.tick_nanos()),
            Phase::Failed => u64::MAX,
            _ => SOON,
        }
    }

    /// Returns the reason of the failure, if the controller has failed.
    pub(super) fn failure(&self) -> Option<&str> {
        matches!(self.phase, Phase::Failing | Phase::Failed).then_some(self.failure.as_str())
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live(_))
    }

    /// Returns the last events, oldest first.
    pub(super) fn events(&self) -> Vec<DriveEvent> {
        self.events.last()
    }

    /// Returns the function, unless it was released.
    pub(super) fn function(&self) -> Option<&Arc<dyn Function>> {
        self.hardware.as_ref().map(|hardware| &hardware.function)
    }

    /// Submits a caller's command; returns the number with which to [take](Self::take_reply) its
    /// reply.
    pub(super) fn submit(
        &mut self,
        sqe: Sqe,
        wants_data: bool,
        timeout: u64,
    ) -> Result<u64, AdminError> {
        if let Some(reason) = self.failure() {
            return Err(AdminError::Failed(reason.to_owned()));
        }
        let (true, Some(hardware)) = (self.is_live(), &mut self.hardware) else {
            return Err(AdminError::Busy);
        };
        let caller = self.next_caller;
        let deadline = self.wait.now().saturating_add(timeout);
        hardware.admin.submit(sqe, wants_data, Owner::Caller(caller), Some(deadline))?;
        self.next_caller += 1;
        self.replies.insert(caller, None);
        Ok(caller)
    }

    /// Returns the reply to a caller's command, if available.
    pub(super) fn take_reply(&mut self, caller: u64) -> Option<Result<AdminReply, AdminError>> {
        self.replies.get(&caller)?.as_ref()?;
        self.replies.remove(&caller).flatten()
    }

    /// Stops the controller on request, as after an error.
    pub(super) fn reset(&mut self, reason: &str) {
        let now = self.wait.now();
        match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Live(enabled) => self.stop(enabled.into_unknown(), reason, now),
            other => self.phase = other,
        }
    }

    /// Ends the use of the controller, with a normal shutdown if it is live.
    pub(super) fn end(&mut self) {
        let unknown = match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Live(enabled) => {
                let millis = u64::from(self.abilities.shutdown_micros) / 1000;
                if !enabled.shut_down(millis.clamp(5_000, 30_000)) {
                    tracing::warn!(
                        drive = self.address,
                        "the controller did not shut down in time"
                    );
                }
                enabled.into_unknown()
            }
            Phase::Absent { unknown, .. } => unknown,
            Phase::Stopped { .. } | Phase::Failing | Phase::Failed => {
                return self.release_function();
            }
        };
        if let QuiesceOutcome::Unproven = self.quiesce(unknown) {
            tracing::error!(drive = self.address, "the controller cannot be stopped");
        }
        self.release_function();
    }

    /// Checks whether the system removes the function. Clears the descriptor, because the thread
    /// sleeps on it.
    fn note_removal(&mut self) {
        let fd = self.function().and_then(|function| function.removal());
        let was_told = fd.is_some_and(|fd| rustix::io::read(fd, &mut [0_u8; 8]).is_ok());
        self.is_removed |= was_told;
    }

    fn tick_nanos(&self) -> u64 {
        self.options.tick_nanos()
    }

    fn publish_tick(&self) -> u64 {
        let now = self.wait.now();
        // The low half is enough: ages are differences.
        let [t0, t1, t2, t3, ..] = (now / self.tick_nanos()).to_le_bytes();
        self.shared.set_tick(u32::from_le_bytes([t0, t1, t2, t3]));
        now
    }

    fn live(&mut self, enabled: Enabled, now: u64) {
        if self.is_removed {
            return self.fail(enabled.into_unknown(), TAKEN);
        }
        match enabled.bar().look() {
            StatusSnapshot::Absent => {
                tracing::warn!(
                    drive = self.address,
                    "controller not responding: registers read as all ones"
                );
                self.shared.set_state(ControllerState::Resetting);
                self.shared.set(GateState::new(self.generation, QueueMode::Halted));
                let until = now.saturating_add(nanos(self.options.absence));
                self.phase = Phase::Absent { unknown: enabled.into_unknown(), until };
                return;
            }
            StatusSnapshot::There(csts) if csts.cfs() => {
                return self.stop(
                    enabled.into_unknown(),
                    "the controller reports a fatal status",
                    now,
                );
            }
            StatusSnapshot::There(csts) if !csts.rdy() => {
                return self.stop(
                    enabled.into_unknown(),
                    "the controller was reset by another program",
                    now,
                );
            }
            StatusSnapshot::There(_) => {}
        }
        let complaint = self.answers(now);
        if let Some(hardware) = &mut self.hardware {
            let deadline = now.saturating_add(nanos(self.options.admin_timeout));
            self.events.ask(&mut hardware.admin, now, deadline);
        }
        let complaint =
            complaint.or_else(|| self.broken_rules()).or_else(|| self.check_timeouts(now));
        match complaint {
            Some(reason) => self.stop(enabled.into_unknown(), &reason, now),
            None => self.phase = Phase::Live(enabled),
        }
    }

    /// Processes the completions of the admin queue; returns a description of any violation.
    fn answers(&mut self, now: u64) -> Option<String> {
        let hardware = self.hardware.as_mut()?;
        let mut answers = Vec::new();
        let verdict = hardware.admin.poll(&mut answers);
        for answer in answers {
            self.deliver(answer, now);
        }
        if let Err(violation) = verdict {
            Counters::add(&self.shared.counters.violations, 1);
            return Some(format!("admin queue: unexpected completion ({violation:?})"));
        }
        let patience = nanos(self.options.admin_timeout);
        let is_overdue = self.hardware.as_mut().is_some_and(|h| h.admin.is_overdue(now, patience));
        is_overdue.then(|| "an admin command is not answered".to_owned())
    }

    fn deliver(&mut self, answer: AdminCompletion, now: u64) {
        match answer.owner {
            Owner::Caller(caller) => {
                if let Some(reply) = self.replies.get_mut(&caller) {
                    *reply = Some(answer.result);
                }
            }
            Owner::Runner => {}
            Owner::Event => {
                if let Ok(reply) = answer.result {
                    let event = AsyncEvent::parse(reply.dw0);
                    Counters::add(&self.shared.counters.events, 1);
                    self.events.happened(event, now, &self.address);
                }
            }
            Owner::EventLog(event) => {
                if let Err(error) = answer.result {
                    tracing::debug!(drive = self.address, ?event, %error, "the event's log page");
                }
                // Read or not: a further change from here on is another event.
                if event.log == Lid::CHANGED_NAMESPACES {
                    Counters::add(&self.shared.counters.namespace_changes, 1);
                }
            }
            Owner::Abort { queue, cid } => match answer.result {
                Ok(reply) if u64::from(reply.dw0) & NOT_ABORTED == 0 => {
                    Counters::add(&self.shared.counters.aborts, 1);
                }
                result => {
                    tracing::debug!(drive = self.address, queue, cid, ?result, "not aborted");
                }
            },
        }
    }

    fn broken_rules(&mut self) -> Option<String> {
        let (index, violation) = self
            .shared
            .queues
            .iter()
            .enumerate()
            .find_map(|(index, queue)| Some((index, queue.take_violation()?)))?;
        Counters::add(&self.shared.counters.violations, 1);
        Some(format!("I/O queue {}: unexpected completion ({violation:?})", index + 1))
    }

    /// Checks for I/O commands that take too long.
    ///
    /// It first wakes the reactor, in case an interrupt was lost, then aborts the command. As the
    /// last resort it returns the reason to stop the controller.
    fn check_timeouts(&mut self, now: u64) -> Option<String> {
        if self.interrupts_lost {
            let is_busy = |queue: &&QueueShared| queue.in_flight().next().is_some();
            self.shared.queues.iter().filter(is_busy).for_each(QueueShared::wake);
        }
        let tick = self.shared.tick();
        if tick == self.last_scan {
            return None;
        }
        self.last_scan = tick;
        let shared = Arc::clone(&self.shared);
        for (index, queue) in shared.queues.iter().enumerate().filter(|(_, q)| q.is_claimed()) {
            for command in queue.in_flight() {
                let age = tick.wrapping_sub(command.tick);
                if age > 2 * TICKS && age < u32::MAX / 2 {
                    let qid = index + 1;
                    let cid = command.cid;
                    return Some(format!("command {cid:#x} of I/O queue {qid} is not answered"));
                }
                if age > TICKS && age < u32::MAX / 2 {
                    self.abort(index, command.cid, command.tick, now);
                } else if age > TICKS / 2 {
                    queue.wake();
                }
            }
        }
        self.aborted.retain(|(_, _, since)| tick.wrapping_sub(*since) <= 3 * TICKS);
        None
    }

    fn abort(&mut self, queue: usize, cid: u16, since: u32, now: u64) {
        let Some(hardware) = &mut self.hardware else {
            debug_assert!(false, "a live controller has its hardware");
            return;
        };
        let this = (queue, cid, since);
        if self.aborted.contains(&this)
            || hardware.admin.is_aborting(queue, cid)
            || hardware.admin.aborts() >= self.abilities.aborts
        {
            return;
        }
        let sqid = self.plans[queue].qid;
        let sqe = Abort { sqid, cid }.encode(0).without_data();
        let deadline = now.saturating_add(nanos(self.options.admin_timeout));
        if hardware.admin.submit(sqe, false, Owner::Abort { queue, cid }, Some(deadline)).is_ok() {
            Counters::add(&self.shared.counters.timeouts, 1);
            self.aborted.push(this);
            tracing::warn!(drive = self.address, sqid, cid, "command takes too long, aborting");
        }
    }

    fn absent(&mut self, unknown: UnknownController, until: u64, now: u64) {
        match unknown.0.look() {
            StatusSnapshot::There(_) if unknown.0.same_again() => {
                // The device may have lost power, and with it the contents of its cache.
                if self.abilities.volatile_cache {
                    self.shared.losses.fetch_add(1, Ordering::AcqRel);
                }
                self.interrupts_lost = true;
                self.stop(unknown, "the device was missing for a time", now);
            }
            StatusSnapshot::There(_) => {
                self.fail(unknown, "another device responds at the address");
            }
            StatusSnapshot::Absent if now >= until => self.fail(unknown, "the device is missing"),
            StatusSnapshot::Absent => self.phase = Phase::Absent { unknown, until },
        }
    }

    /// Stops the controller after an error, to restart it when the queues have reclaimed their
    /// buffers.
    fn stop(&mut self, unknown: UnknownController, reason: &str, now: u64) {
        Counters::add(&self.shared.counters.resets, 1);
        self.resets.retain(|at| now.saturating_sub(*at) < RESETS_OVER);
        self.resets.push_back(now);
        let most = usize::try_from(self.options.resets).unwrap_or(usize::MAX);
        if self.resets.len() > most {
            let reason = format!("{reason}, after {most} resets");
            return self.fail(unknown, &reason);
        }
        tracing::warn!(drive = self.address, why = reason, "resetting the controller");
        self.halt();
        match self.quiesce(unknown) {
            QuiesceOutcome::Disabled(disabled) => {
                self.answer_all(&AdminError::Reset, now);
                self.shared.set(GateState::new(self.generation, QueueMode::Stopped));
                self.phase = Phase::Stopped { disabled, starts: 0, since: now };
            }
            QuiesceOutcome::ForGood(how) => self.failed(Some(how), reason),
            QuiesceOutcome::Unproven => self.failed(None, reason),
        }
    }

    /// Makes the queues stop using the device.
    ///
    /// A queue whose reactor does not poll for a while may still ring a doorbell of the disabled
    /// controller, which has no effect.
    fn halt(&self) {
        let word = GateState::new(self.generation, QueueMode::Halted);
        self.shared.set_state(ControllerState::Resetting);
        self.shared.set(word);
        let end = self.wait.now().saturating_add(GRACE);
        while !self.shared.all_acked(word) && self.wait.now() < end {
            self.wait.wait(&[], MILLISECOND);
        }
    }

    /// Stops the controller permanently.
    fn fail(&mut self, unknown: UnknownController, reason: &str) {
        self.halt();
        match self.quiesce(unknown) {
            QuiesceOutcome::Disabled(_) => self.failed(Some("the controller is disabled"), reason),
            QuiesceOutcome::ForGood(how) => self.failed(Some(how), reason),
            QuiesceOutcome::Unproven => self.failed(None, reason),
        }
    }

    fn failed(&mut self, proof: Option<&'static str>, reason: &str) {
        tracing::error!(
            drive = self.address,
            reason,
            proof = proof.unwrap_or("none: buffers in flight are abandoned"),
            "controller failed; completing all commands in flight with an error"
        );
        reason.clone_into(&mut self.failure);
        let mode = if proof.is_some() { QueueMode::Failed } else { QueueMode::Abandoned };
        self.answer_all(&AdminError::Failed(reason.to_owned()), self.wait.now());
        self.shared.set_state(ControllerState::Failed(reason.to_owned()));
        self.shared.set(GateState::new(self.generation, mode));
        self.phase = Phase::Failing;
    }

    /// Quiesces the device: ensures that it writes to no buffer any more.
    fn quiesce(&mut self, unknown: UnknownController) -> QuiesceOutcome {
        let Some(function) = self.function().cloned() else {
            return QuiesceOutcome::ForGood("the function was released");
        };
        let (unknown, reason) = match unknown.disable() {
            Ok(disabled) => return QuiesceOutcome::Disabled(disabled),
            Err(failed) => failed,
        };
        tracing::warn!(
            drive = self.address, %reason,
            "controller cannot be disabled; resetting the function"
        );
        match function.reset() {
            Ok(()) => {
                return match unknown.disable() {
                    Ok(disabled) => QuiesceOutcome::Disabled(disabled),
                    Err(_) => QuiesceOutcome::ForGood("the function was reset"),
                };
            }
            Err(error) => tracing::warn!(drive = self.address, %error, "cannot reset the function"),
        }
        match function.set_bus_master(false) {
            Ok(()) => return QuiesceOutcome::ForGood("the bus master bit is cleared"),
            Err(error) => tracing::warn!(
                drive = self.address, %error,
                "cannot clear the bus master bit of the function"
            ),
        }
        // Withdraws all maps, even after one that stays.
        let are_out = self.reach.close().iter().filter(|map| !map.withdraw()).count() == 0;
        if are_out {
            return QuiesceOutcome::ForGood("the buffers are unmapped");
        }
        drop(function);
        if self.give_back() {
            QuiesceOutcome::ForGood("the function was released to the kernel")
        } else {
            QuiesceOutcome::Unproven
        }
    }

    /// Releases the function before the queues have released the registers, which read as all ones
    /// from then on.
    ///
    /// Returns true if the function provably reaches no memory. The buffers stay mapped for other
    /// controllers that share them.
    fn give_back(&mut self) -> bool {
        let flag = self.function().and_then(|function| function.given_back());
        self.answer_all(
            &AdminError::Failed("the function was released to the kernel".to_owned()),
            self.wait.now(),
        );
        self.hardware = None;
        flag.is_some_and(|flag| flag.load(Ordering::Acquire))
    }

    /// Starts the controller again while the queues wait.
    fn start(&mut self, disabled: Disabled, starts: u32, since: u64, now: u64) {
        let (unknown, reason) = match self.try_start(disabled) {
            Ok(enabled) => {
                let took = (self.wait.now().saturating_sub(since)) / MILLISECOND;
                tracing::info!(drive = self.address, millis = took, "controller restarted");
                self.aborted.clear();
                // All event requests were submitted again.
                self.events.forget_owed();
                // No request was outstanding for changes during the reset.
                Counters::add(&self.shared.counters.namespace_changes, 1);
                // Violations before the reset no longer count.
                for queue in &self.shared.queues {
                    queue.take_violation();
                }
                self.publish_tick();
                self.shared.set(GateState::new(self.generation, QueueMode::Running));
                self.phase = Phase::Live(enabled);
                self.shared.set_state(ControllerState::Live);
                return;
            }
            Err(failed) => failed,
        };
        tracing::warn!(drive = self.address, why = %reason, "the controller did not start");
        let until = since.saturating_add(nanos(self.options.absence));
        if unknown.0.look() == StatusSnapshot::Absent && now < until {
            self.phase = Phase::Absent { unknown, until };
            return;
        }
        if starts + 1 < STARTS {
            if let Some(function) = self.function()
                && let Err(error) = function.reset()
            {
                tracing::warn!(drive = self.address, %error, "cannot reset the function");
            }
            if let QuiesceOutcome::Disabled(disabled) = self.quiesce(unknown) {
                self.phase = Phase::Stopped { disabled, starts: starts + 1, since };
                return;
            }
        } else {
            self.quiesce(unknown);
        }
        // The device has had no commands since it was stopped.
        self.failed(
            Some("nothing was in flight"),
            &format!("the controller does not start: {reason}"),
        );
    }

    fn try_start(
        &mut self,
        disabled: Disabled,
    ) -> Result<Enabled, (UnknownController, OpenErrorReason)> {
        self.generation += 1;
        let now = self.wait.now();
        let Some(hardware) = &mut self.hardware else {
            return Err((disabled.into_unknown(), OpenErrorReason::Gone));
        };
        if let Err(error) = hardware.function.set_bus_master(true) {
            let reason = OpenErrorReason::System { what: "bus master", error };
            return Err((disabled.into_unknown(), reason));
        }
        if self.interrupts_lost {
            match hardware.function.rearm() {
                Ok(()) => self.interrupts_lost = false,
                Err(error) => tracing::warn!(
                    drive = self.address,
                    %error,
                    "interrupts cannot be restored; polling for completions every 10 ms"
                ),
            }
        }
        let answers = hardware.admin.begin(self.generation);
        let enabled = disabled.enable(hardware.admin.rings());
        for answer in answers {
            self.deliver(answer, now);
        }
        let enabled = enabled?;
        match self.bring_up(enabled.bar()) {
            Ok(()) => Ok(enabled),
            Err(reason) => Err((enabled.into_unknown(), reason)),
        }
    }

    fn bring_up(&mut self, bar: &Bar) -> Result<(), OpenErrorReason> {
        let Some(hardware) = &mut self.hardware else { return Err(OpenErrorReason::Gone) };
        let timeout = nanos(self.options.admin_timeout);
        let admin = &mut hardware.admin;
        let mut session = BringUp { bar, admin, wait: self.wait.as_ref(), timeout };
        let (identity, _) = session.identify()?;
        if (&identity.serial, &identity.model) != (&self.identity.serial, &self.identity.model) {
            let (model, serial) = (identity.model, identity.serial);
            return Err(OpenErrorReason::Unsuitable(format!(
                "another drive, {model} {serial}, came back"
            )));
        }
        let count = u16::try_from(self.plans.len()).unwrap_or(u16::MAX);
        let granted = session.grant_queues(count)?;
        if granted < count {
            return Err(OpenErrorReason::Unsuitable(format!(
                "{granted} I/O queues granted after the reset, {count} before"
            )));
        }
        if let Some(shadows) = &hardware.shadows {
            session
                .configure_shadows(shadows)
                .map_err(OpenErrorReason::command("Doorbell Buffer Config"))?;
        }
        for plan in &self.plans {
            session.create_queue(plan)?;
        }
        session.ask_for_events(&self.abilities);
        Ok(())
    }

    /// Completes every admin command in flight with `error`.
    fn answer_all(&mut self, error: &AdminError, now: u64) {
        let answers = self.hardware.as_mut().map(|hardware| hardware.admin.fail_all(error));
        for answer in answers.into_iter().flatten() {
            self.deliver(answer, now);
        }
    }

    /// Releases the function to the system.
    fn release_function(&mut self) {
        self.phase = Phase::Failed;
        self.reach.leave();
        self.hardware = None;
    }
}
