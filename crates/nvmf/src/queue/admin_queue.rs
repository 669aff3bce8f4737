//! An admin queue: controller lifetime, admin command set, events and timers.

use std::collections::VecDeque;
use std::sync::Arc;

use nvmeof_wire::Sqe;
use nvmeof_wire::abort::{Abort, NOT_ABORTED};
use nvmeof_wire::identify::IDENTIFY_SIZE;
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::sqe::{Fuse, Psdt};

use super::{Outcome, data};
use crate::Nanos;
use crate::admin::page::PageWriter;
use crate::admin::{effects, features, identify, logs};
use crate::controller::{CcChange, Controller, HostClock, TeardownReason};
use crate::failure::Failure;
use crate::hosts::QueueLease;
use crate::limits::{ABORTS, ASSOCIATION_TIMEOUT_SECONDS, ASYNC_EVENTS};
use crate::spec::{DeviceId, TransportKind};
use crate::target::Target;

/// A connected admin queue; it owns its controller, which ends with it.
#[derive(Debug)]
pub(super) struct AdminQueue {
    pub(super) controller: Arc<Controller>,
    /// Right of the host to this queue.
    _lease: QueueLease,
    transport: TransportKind,
    /// Asynchronous Event Requests that wait for an event, the oldest first.
    held: VecDeque<u16>,
    /// Event requests that an Abort ended and that have no completion yet.
    ended: VecDeque<u16>,
    /// Abort commands in flight.
    aborts: u8,
    /// Last restart of the running timer.
    restarted: Nanos,
    /// A shutdown is flushing the devices.
    is_flushing: bool,
    /// Shutdowns that a reset overtook during their flush, and whose flush has not ended yet.
    overtaken: u32,
}

impl AdminQueue {
    pub(super) fn new(controller: Arc<Controller>, lease: QueueLease, now: Nanos) -> Self {
        controller.admin().features.clock = HostClock::cleared(now);
        Self {
            _lease: lease,
            transport: controller.transport,
            controller,
            held: VecDeque::with_capacity(usize::from(ASYNC_EVENTS)),
            ended: VecDeque::new(),
            aborts: 0,
            restarted: now,
            is_flushing: false,
            overtaken: 0,
        }
    }

    /// Time at which the association ends without a timer restart, and the reason.
    ///
    /// See Base 3.9 and 3.1.2.3.
    pub(super) fn timer(&self) -> Option<(Nanos, TeardownReason)> {
        const IDLE: Nanos = ASSOCIATION_TIMEOUT_SECONDS * 1_000_000_000;
        let kato = Nanos::from(self.controller.kato_ms()) * 1_000_000;
        let (period, reason) = match kato {
            // The keep-alive timer runs only while the controller is enabled and not shut down.
            _ if !self.controller.is_ready() => (IDLE, TeardownReason::Idle),
            0 if self.controller.is_discovery() => (IDLE, TeardownReason::Idle),
            0 => return None,
            _ => (kato, TeardownReason::KeepAlive),
        };
        Some((self.restarted.saturating_add(period), reason))
    }

    /// Reason to end the association now, if its timer has expired.
    ///
    /// Traffic-based keep-alive: a command on an I/O queue since the last restart is a sign of
    /// life. It restarts the timer only here, so a lost host is noticed after one to two timeouts.
    pub(super) fn expire(&mut self, now: Nanos) -> Option<TeardownReason> {
        let (_, reason) = self.timer().filter(|(deadline, _)| now >= *deadline)?;
        if reason == TeardownReason::KeepAlive && self.controller.take_io_traffic() {
            self.restarted = now;
            return None;
        }
        Some(reason)
    }

    /// Restarts the keep-alive timer, if it is running, for a command of any kind.
    pub(super) fn on_command(&mut self, now: Nanos) {
        if self.controller.kato_ms() != 0 && self.controller.is_ready() {
            self.restarted = now;
        }
    }

    /// Excludes `nanos` from the timer, a period in which the target was stalled.
    pub(super) fn extend_deadlines(&mut self, nanos: Nanos) {
        self.restarted = self.restarted.saturating_add(nanos);
    }

    /// Handles a change of the controller's state by a property.
    ///
    /// Returns the event requests that it ended. They get no completion: a host has dropped them by
    /// then, and SPDK's takes a completion for an error of the protocol.
    pub(super) fn configuration_changed(&mut self, change: CcChange, now: Nanos) -> Vec<u16> {
        let dropped = match change {
            CcChange::None => return Vec::new(),
            CcChange::Enabled => Vec::new(),
            CcChange::Reset | CcChange::Shutdown => self.held.drain(..).collect(),
        };
        if change == CcChange::Reset {
            self.controller.admin().features.clock = HostClock::cleared(now);
        }
        if self.is_flushing && change == CcChange::Reset {
            self.is_flushing = false;
            self.overtaken += 1;
        }
        self.restarted = now;
        dropped
    }

    /// Devices to flush for a shutdown whose commands have completed; returned once.
    pub(super) fn poll_shutdown(&mut self) -> Option<Vec<DeviceId>> {
        if self.is_flushing {
            return None;
        }
        let devices = self.controller.settle_shutdown()?;
        self.is_flushing = true;
        Some(devices)
    }

    /// Records that the devices are flushed, or that a flush failed.
    ///
    /// Flushes end in the order they began.
    pub(super) fn shutdown_flushed(&mut self, is_durable: bool) {
        if self.overtaken > 0 {
            self.overtaken -= 1;
            return;
        }
        self.is_flushing = false;
        self.controller.shutdown_flushed(is_durable);
    }

    /// Handles every command except fabrics commands.
    pub(super) fn command(
        &mut self,
        target: &Target,
        sqe: &Sqe,
        inline_len: u32,
        now: Nanos,
    ) -> Result<Outcome, Failure> {
        if self.controller.death().is_some() {
            return Err(Failure::QueueDeleted);
        }
        if !self.controller.is_ready() {
            return Err(Failure::CommandSequence);
        }
        let opcode = sqe.admin_opcode();
        if !effects::has_admin_command(self.controller.subsystem.kind, opcode) {
            return Err(Failure::InvalidOpcode);
        }
        if sqe.psdt() != Psdt::Sgl || sqe.fuse() != Fuse::None {
            return Err(Failure::InvalidField);
        }
        if self.controller.kato_ms() == 0 {
            // Only the idle timer of a discovery controller can be running.
            self.restarted = now;
        }
        match opcode {
            AdminOpcode::IDENTIFY => {
                identify::identify(&self.controller, sqe, &mut PageWriter::measure(0))?;
                self.send(sqe, IDENTIFY_SIZE)
            }
            AdminOpcode::GET_LOG_PAGE => {
                let len = logs::check_log_page(target, &self.controller, sqe, now)?;
                self.send(sqe, usize::try_from(len).map_err(|_| Failure::Internal)?)
            }
            AdminOpcode::GET_FEATURES => {
                let reply = features::get_feature(&self.controller, sqe, now)?;
                if reply.data.is_empty() {
                    return Ok(Outcome::Done(u64::from(reply.dw0)));
                }
                self.send(sqe, reply.data.len())
            }
            AdminOpcode::SET_FEATURES => self.set_features(sqe, inline_len, now),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.hold(sqe.cid.get()),
            // Like every command, it has restarted the timer.
            AdminOpcode::KEEP_ALIVE => Ok(Outcome::Done(0)),
            AdminOpcode::ABORT => self.abort(Abort::parse(sqe)),
            _ => Err(Failure::InvalidOpcode),
        }
    }

    /// Writes the data of a command with the outcome [`Outcome::Send`] into `out`.
    ///
    /// `out` has the length of that outcome. The data is current as of this call. Returns the
    /// result of the completion.
    pub(super) fn fill(
        &mut self,
        target: &Target,
        sqe: &Sqe,
        out: &mut [u8],
        now: Nanos,
    ) -> Result<u64, Failure> {
        if self.controller.death().is_some() {
            return Err(Failure::QueueDeleted);
        }
        if !self.controller.is_ready() {
            // A reset or a shutdown ended it.
            return Err(Failure::Aborted);
        }
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => {
                let mut page = PageWriter::new(0, out);
                identify::identify(&self.controller, sqe, &mut page)?;
                page.finish().map(|()| 0)
            }
            AdminOpcode::GET_LOG_PAGE => {
                logs::read_log_page(target, &self.controller, sqe, now, out).map(|()| 0)
            }
            AdminOpcode::GET_FEATURES => {
                let reply = features::get_feature(&self.controller, sqe, now)?;
                let mut page = PageWriter::new(0, out);
                page.put(&reply.data);
                page.finish().map(|()| u64::from(reply.dw0))
            }
            _ => Err(Failure::Internal),
        }
    }

    /// Handles the data that a command requested.
    pub(super) fn data(&mut self, sqe: &Sqe, data: &[u8], now: Nanos) -> Result<Outcome, Failure> {
        if self.controller.death().is_some() {
            return Err(Failure::QueueDeleted);
        }
        match sqe.admin_opcode() {
            AdminOpcode::SET_FEATURES => self.store_feature(sqe, data, now),
            _ => Err(Failure::Internal),
        }
    }

    /// Returns true if [`Self::poll_event`] has a request to complete.
    pub(super) fn has_event(&self) -> bool {
        !self.ended.is_empty() || (!self.held.is_empty() && self.controller.has_event())
    }

    /// The next event request to complete: its identifier, and its event or failure.
    pub(super) fn poll_event(&mut self) -> Option<(u16, Result<u32, Failure>)> {
        if let Some(cid) = self.ended.pop_front() {
            return Some((cid, Err(Failure::Aborted)));
        }
        let cid = *self.held.front()?;
        let event = self.controller.take_event()?;
        self.held.pop_front();
        Some((cid, Ok(event)))
    }

    /// Releases the slot of an Abort command that has completed.
    pub(super) fn abort_done(&mut self) {
        self.aborts = self.aborts.saturating_sub(1);
    }

    fn set_features(&mut self, sqe: &Sqe, inline_len: u32, now: Nanos) -> Result<Outcome, Failure> {
        let len = features::set_feature_data_len(&self.controller, sqe)?;
        if len == 0 {
            return self.store_feature(sqe, &[], now);
        }
        let source = data::from_host(sqe, len, inline_len, self.transport)?;
        Ok(Outcome::Receive { len, source })
    }

    fn store_feature(&mut self, sqe: &Sqe, data: &[u8], now: Nanos) -> Result<Outcome, Failure> {
        let kato = self.controller.kato_ms();
        let was_cached = !self.controller.write_through();
        let dw0 = features::set_feature(&self.controller, sqe, data, now)?;
        if self.controller.kato_ms() != kato {
            self.restarted = now;
        }
        let devices = self.controller.subsystem.devices_to_flush();
        if was_cached && self.controller.write_through() && !devices.is_empty() {
            // A host that turns the cache off assumes that its earlier writes are durable.
            return Ok(Outcome::Flush { devices, result: u64::from(dw0) });
        }
        Ok(Outcome::Done(u64::from(dw0)))
    }

    fn hold(&mut self, cid: u16) -> Result<Outcome, Failure> {
        if self.held.len() >= usize::from(ASYNC_EVENTS) {
            return Err(Failure::AsyncEventLimit);
        }
        self.held.push_back(cid);
        Ok(Outcome::Held)
    }

    /// Drops the event request of this identifier; returns false if there is none.
    pub(super) fn drop_event_request(&mut self, cid: u16) -> bool {
        let at = self.held.iter().position(|held| *held == cid);
        at.and_then(|at| self.held.remove(at)).is_some()
    }

    fn abort(&mut self, abort: Abort) -> Result<Outcome, Failure> {
        if abort.sqid == 0 {
            // Every other admin command has completed when an Abort arrives, or is about to move
            // its data.
            let Some(at) = self.held.iter().position(|cid| *cid == abort.cid) else {
                return Ok(Outcome::Done(NOT_ABORTED));
            };
            self.ended.extend(self.held.remove(at));
            return Ok(Outcome::Done(0));
        }
        let Some(owner) = self.controller.owner_of(abort.sqid) else {
            return Ok(Outcome::Done(NOT_ABORTED));
        };
        if self.aborts >= ABORTS {
            return Err(Failure::AbortLimit);
        }
        self.aborts += 1;
        let Abort { sqid, cid } = abort;
        Ok(Outcome::Abort { controller: self.controller.key, sqid, cid, owner })
    }

    /// Announces data for the host; [`Self::fill`] writes it once a buffer is available.
    fn send(&self, sqe: &Sqe, len: usize) -> Result<Outcome, Failure> {
        let len = u32::try_from(len).map_err(|_| Failure::Internal)?;
        let sgl = data::to_host(sqe, len, self.transport)?;
        Ok(Outcome::Send { len, sgl })
    }
}
