//! Quiescing: the reactor reports no command as ended while it can still change a device.
//!
//! This covers commands that a closing connection leaves at devices, and flushes before a response.
//! It also covers barriers for the commands of a namespace that is gone, or of a controller before
//! a Connect.

use std::sync::Arc;

use nvmeof_core::block::BlockOp;
use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{
    ControllerBarrier, ControllerKey, DataSource, DeviceId, Failure, QuiesceGuard, RetiredNamespace,
};
use tokio::sync::oneshot;

use super::Reactor;
use super::connection::Connection;
use super::gen_slab::SlotKey;
use super::io::{Io, Pending};
use super::kind;
use super::mailbox::Message;

/// A flush of devices for an admin command or a shutdown.
#[derive(Debug)]
pub(super) struct Flush {
    /// Its connection. The key is stale once that connection is gone.
    pub(super) connection: SlotKey,
    /// Number of devices that have not replied.
    answers_due: usize,
    /// No device has failed the flush.
    is_durable: bool,
    then: AfterFlush,
}

/// The action that follows a flush.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterFlush {
    /// The shutdown is complete.
    ShutDown,
    /// The admin command is answered.
    Answer {
        /// The command.
        cid: u16,
        /// The result in its completion.
        result: u64,
    },
}

/// A waiter, and the commands that it waits for.
#[derive(Debug)]
pub(super) struct WriteBarrier {
    /// Connections that the reactor reads first, and the maximum number of turns for that.
    reading: Vec<SlotKey>,
    turns: u32,
    commands: Vec<SlotKey>,
    waiter: Waiter,
}

/// Requester that is notified when the commands have ended, unless it is gone by then.
#[derive(Debug)]
enum Waiter {
    /// The control plane, for namespaces that are gone.
    Answer(oneshot::Sender<()>),
    /// A Connect, which is notified when the last reactor releases the guard.
    Guard(Arc<QuiesceGuard>),
}

/// Maximum number of turns in which a barrier reads what had arrived for its connections.
///
/// Commands that arrive during these turns need not be part of the barrier.
const TURNS_TO_READ: u32 = 64;

impl Reactor {
    /// Ends the commands that a closing connection has at devices as soon as possible.
    ///
    /// They keep the guard until they end.
    pub(super) fn quiesce(&mut self, connection: SlotKey, guard: Option<QuiesceGuard>, now: u64) {
        let guard = guard.map(Arc::new);
        let newest = self.connections.get(connection).and_then(|connection| connection.newest);
        let with_device: Vec<SlotKey> = self
            .requests
            .of(newest)
            .filter(|(_, pending)| {
                matches!(pending, Pending::Io(io) if io.request.stage() == Stage::OnDevice)
            })
            .map(|(request, _)| request)
            .collect();
        let mut never_submitted = Vec::new();
        for request in with_device {
            let Some(io) = self.requests.present_io(request) else { continue };
            io.guard.clone_from(&guard);
            let token = request.token(kind::REQUEST);
            if self.devices.cancel(io.request.io().device, token) {
                never_submitted.push(request);
            }
        }
        for request in never_submitted {
            self.drop_request(request, now);
        }
        // The next poll of the device returns the cancelled commands.
        if let Some(own) = self.peers.get(self.index) {
            own.wake();
        }
    }

    /// Flushes devices, then performs the action in `then`.
    pub(super) fn start_flush(
        &mut self,
        connection: SlotKey,
        devices: &[DeviceId],
        then: AfterFlush,
        now: u64,
    ) {
        let Some(owner) = self.connections.present_mut(connection) else { return };
        owner.in_flight += 1;
        let answers_due = devices.len();
        let flush = Flush { connection, answers_due, is_durable: true, then };
        let request = self.requests.insert(&mut owner.newest, Pending::Flush(flush));
        for device in devices {
            let op = BlockOp::flush(request.token(kind::REQUEST));
            if let Err((_, error)) = self.devices.submit(*device, op) {
                let device = device.0;
                tracing::warn!(device, %error, "a device cannot be flushed");
                self.flushed(request, false, now);
            }
        }
    }

    /// Records the result of a device's flush.
    pub(super) fn flushed(&mut self, request: SlotKey, is_durable: bool, now: u64) {
        let Some(Pending::Flush(flush)) = self.requests.get_mut(request) else {
            debug_assert!(false, "a flush ended before its devices");
            return;
        };
        flush.is_durable &= is_durable;
        flush.answers_due -= 1;
        if flush.answers_due > 0 {
            return;
        }
        let (key, then, is_durable) = (flush.connection, flush.then, flush.is_durable);
        self.drop_request(request, now);
        let Some(connection) = self.connections.get_mut(key).filter(|one| one.is_live()) else {
            return;
        };
        match then {
            AfterFlush::ShutDown => connection.queue.shutdown_flushed(is_durable),
            AfterFlush::Answer { cid, result } => {
                let response = connection.queue.complete_flush(cid, result, is_durable);
                self.respond(key, response);
            }
        }
    }

    /// Ends the commands for namespaces that are gone, then replies when their writes have ended.
    ///
    /// These are all writes that this reactor now holds for the namespaces.
    pub(super) fn namespace_barrier(
        &mut self,
        namespaces: &[RetiredNamespace],
        reply: oneshot::Sender<()>,
        now: u64,
    ) {
        let mut commands = Vec::new();
        for request in self.requests.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(Pending::Io(io)) = self.requests.get(request) else { continue };
            let Some(namespace) = namespaces.iter().find(|one| self.is_of(io, one)) else {
                continue;
            };
            if namespace.is_removed {
                self.revoke(request, now);
            }
            // A revoked command reaches no device any more, unless it is already at one.
            let is_awaited = |io: &Io| match io.request.stage() {
                Stage::OnDevice => true,
                Stage::Waiting | Stage::NeedsBuffer | Stage::Pulling => !namespace.is_removed,
                Stage::Sending | Stage::Done => false,
            };
            if let Some(Pending::Io(io)) = self.requests.get(request)
                && io.request.io().kind.is_write()
                && is_awaited(io)
            {
                commands.push(request);
            }
        }
        // Commands that had arrived for these namespaces are refused before a new namespace can
        // exist.
        let is_meant = |one: &Connection| {
            let subnqn = one.queue.subnqn();
            one.is_live() && namespaces.iter().any(|it| subnqn == Some(&it.subnqn))
        };
        let reading = self.read_all_of(is_meant);
        let (turns, waiter) = (TURNS_TO_READ, Waiter::Answer(reply));
        self.barriers.push(WriteBarrier { reading, turns, commands, waiter });
        self.complete_barriers();
    }

    /// Lists these connections so that the reactor reads what had arrived for them.
    fn read_all_of(&mut self, is_meant: impl Fn(&Connection) -> bool) -> Vec<SlotKey> {
        let connections = self.connections.iter();
        let reading: Vec<SlotKey> =
            connections.filter(|(_, one)| is_meant(one)).map(|(key, _)| key).collect();
        for key in &reading {
            self.list(*key);
        }
        reading
    }

    /// Returns true if the command was for this namespace.
    fn is_of(&self, io: &Io, namespace: &RetiredNamespace) -> bool {
        let command = io.request.io();
        let connection = self.connections.get(io.connection);
        // A closing connection no longer reports its subsystem.
        let subnqn = connection.and_then(|connection| connection.queue.subnqn());
        command.device == namespace.device
            && command.nsid == namespace.nsid
            && subnqn.is_none_or(|subnqn| *subnqn == namespace.subnqn)
    }

    /// Ends a command whose namespace is gone.
    ///
    /// The command ends immediately, unless its device or its host has to act first.
    fn revoke(&mut self, request: SlotKey, now: u64) {
        let Some(io) = self.requests.present_io(request) else { return };
        let (key, flow, device) = (io.connection, io.flow, io.request.io().device);
        let token = request.token(kind::REQUEST);
        let ends = match io.request.stage() {
            Stage::Waiting => self.pacer.cancel(flow, token) || self.cancel_deferred(key, request),
            Stage::NeedsBuffer => true,
            Stage::Pulling => {
                io.request.revoke();
                false
            }
            Stage::OnDevice => {
                io.request.revoke();
                self.devices.cancel(device, token)
            }
            Stage::Sending | Stage::Done => false,
        };
        if ends {
            self.finish(request, Err(Failure::InvalidField), None, now);
        }
        // The next poll of the device returns the cancelled command.
        if let Some(own) = self.peers.get(self.index) {
            own.wake();
        }
    }

    /// Sends a barrier for the commands of these controllers to every reactor.
    pub(super) fn send_barrier(&mut self, barrier: ControllerBarrier) {
        let ControllerBarrier { controllers, guard } = barrier;
        let guard = Arc::new(guard);
        for peer in &self.peers {
            let (controllers, guard) = (Arc::clone(&controllers), Arc::clone(&guard));
            peer.send(Message::ControllerBarrier { controllers, guard });
        }
    }

    /// Keeps the guard until all writes of these controllers that have arrived by now have ended.
    ///
    /// The reactor need not have read them yet.
    pub(super) fn controller_barrier(
        &mut self,
        controllers: &[ControllerKey],
        guard: Arc<QuiesceGuard>,
    ) {
        let is_meant = |one: &Connection| {
            let info = one.queue.connected();
            one.is_live() && info.is_some_and(|info| controllers.contains(&info.controller))
        };
        let reading = self.read_all_of(is_meant);
        let (turns, waiter) = (TURNS_TO_READ, Waiter::Guard(guard));
        self.barriers.push(WriteBarrier { reading, turns, commands: Vec::new(), waiter });
    }

    /// Records the writes of a barrier's connections that have not ended.
    ///
    /// Does nothing while the reactor still reads what had arrived for them.
    fn collect_writes(&self, one: &mut WriteBarrier) {
        let is_unread = |key: &SlotKey| self.connections.get(*key).is_some_and(|c| c.unsettled);
        one.turns = one.turns.saturating_sub(1);
        if one.turns > 0 && one.reading.iter().any(is_unread) {
            return;
        }
        let reading = std::mem::take(&mut one.reading);
        if matches!(one.waiter, Waiter::Answer(_)) {
            // Commands that arrived for a namespace that is gone were refused.
            return;
        }
        for key in reading {
            let Some(connection) = self.connections.get(key) else { continue };
            let commands = self.requests.of(connection.newest);
            let meant = commands
                .filter(|(_, pending)| matches!(pending, Pending::Io(io) if is_complete_write(io)));
            one.commands.extend(meant.map(|(request, _)| request));
        }
    }

    /// Notifies the waiters whose commands have all ended.
    pub(super) fn complete_barriers(&mut self) {
        let mut waiting = Vec::new();
        for mut one in std::mem::take(&mut self.barriers) {
            if !one.reading.is_empty() {
                self.collect_writes(&mut one);
            }
            one.commands.retain(|request| match self.requests.get(*request) {
                Some(Pending::Io(io)) => !io.request.is_past_device(),
                _ => false,
            });
            if one.reading.is_empty() && one.commands.is_empty() {
                one.waiter.notify();
            } else {
                waiting.push(one);
            }
        }
        self.barriers = waiting;
    }
}

/// Returns true if a command changes its device even if its host does nothing more.
///
/// A command that still waits for its host's data does not: a host that is gone sends none.
fn is_complete_write(io: &Io) -> bool {
    let command = io.request.io();
    let has_data = !matches!(command.source, Some(DataSource::Host(_)));
    let is_ready = match io.request.stage() {
        Stage::OnDevice => true,
        Stage::Waiting | Stage::NeedsBuffer => has_data,
        Stage::Pulling | Stage::Sending | Stage::Done => false,
    };
    command.kind.is_write() && is_ready
}

impl Waiter {
    fn notify(self) {
        match self {
            Self::Answer(reply) => drop(reply.send(())),
            Self::Guard(guard) => drop(guard),
        }
    }
}
