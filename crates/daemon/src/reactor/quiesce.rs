//! Quiescing: the reactor reports no command as ended while it can still change a device.
//!
//! This covers commands that a closing connection leaves with devices, flushes before an answer,
//! and barriers for the commands of a namespace that is gone or of a controller before a Connect.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvmeof_core::block::BlockOp;
use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{ControllerBarrier, ControllerKey, DataSource, DeviceId, QuiesceGuard};
use tokio::sync::oneshot;

use super::Reactor;
use super::connection::Connection;
use super::io::{Io, Pending};
use super::kind;
use super::mailbox::Message;
use super::slots::Key;

/// Devices that are being flushed for an admin command or a shutdown.
#[derive(Debug)]
pub(super) struct Flush {
    /// The connection it belongs to; stale once that connection is gone.
    pub(super) connection: Key,
    /// Devices that have not answered.
    answers_due: usize,
    /// None of them has failed.
    is_durable: bool,
    then: Then,
}

/// The action that follows a flush.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
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

/// A waiter, and the commands whose end it waits for.
#[derive(Debug)]
pub(super) struct WriteBarrier {
    /// Connections that are read from first, and in how many turns at most.
    reading: Vec<Key>,
    turns: u32,
    commands: Vec<Key>,
    waiter: Waiter,
}

/// The requester that is notified when the commands have ended, unless it is gone by then.
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
    /// Has what a closing connection has with devices end as soon as it can; its guard is kept until then.
    pub(super) fn quiesce(&mut self, connection: Key, guard: Option<QuiesceGuard>, now: u64) {
        let guard = guard.map(Arc::new);
        let newest = self.connections.get(connection).and_then(|connection| connection.newest);
        let with_device: Vec<Key> = self
            .requests
            .of(newest)
            .filter(|(_, pending)| {
                matches!(pending, Pending::Io(io) if io.request.stage() == Stage::OnDevice)
            })
            .map(|(request, _)| request)
            .collect();
        let mut never_submitted = Vec::new();
        for request in with_device {
            let Some(Pending::Io(io)) = self.requests.get_mut(request) else { continue };
            io.guard.clone_from(&guard);
            let token = request.token(kind::REQUEST);
            if self.devices.cancel(io.request.io().device, token) {
                never_submitted.push(request);
            }
        }
        for request in never_submitted {
            self.drop_request(request, now);
        }
        // What was cancelled comes out of the next poll of its device.
        if let Some(own) = self.peers.get(self.index) {
            own.wake();
        }
    }

    /// Flushes devices, then does what follows.
    pub(super) fn start_flush(
        &mut self,
        connection: Key,
        devices: &[DeviceId],
        then: Then,
        now: u64,
    ) {
        let Some(owner) = self.connections.get_mut(connection) else { return };
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

    /// A device is flushed, or cannot be.
    pub(super) fn flushed(&mut self, request: Key, is_durable: bool, now: u64) {
        let Some(Pending::Flush(flush)) = self.requests.get_mut(request) else { return };
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
            Then::ShutDown => connection.queue.shutdown_flushed(is_durable),
            Then::Answer { cid, result } => {
                let response = connection.queue.complete_flush(cid, result, is_durable);
                self.respond(key, response);
            }
        }
    }

    /// Replies when all writes that this reactor now holds for these devices have ended.
    pub(super) fn device_barrier(
        &mut self,
        devices: &BTreeSet<DeviceId>,
        reply: oneshot::Sender<()>,
    ) {
        let is_meant = |pending: &Pending| match pending {
            Pending::Io(io) => {
                let command = io.request.io();
                let is_meant = devices.contains(&command.device) && command.kind.is_write();
                is_meant && !io.request.is_past_device()
            }
            Pending::Admin(_) | Pending::Abort(_) | Pending::Flush(_) => false,
        };
        let requests = self.requests.iter();
        let commands = requests.filter(|(_, one)| is_meant(one)).map(|(key, _)| key).collect();
        let waiter = Waiter::Answer(reply);
        self.barriers.push(WriteBarrier { reading: Vec::new(), turns: 0, commands, waiter });
        self.complete_barriers();
    }

    /// Asks every reactor to have the commands of these controllers end.
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
        let connections = self.connections.iter();
        let reading: Vec<Key> =
            connections.filter(|(_, one)| is_meant(one)).map(|(key, _)| key).collect();
        for key in &reading {
            self.list(*key);
        }
        let (turns, waiter) = (TURNS_TO_READ, Waiter::Guard(guard));
        self.barriers.push(WriteBarrier { reading, turns, commands: Vec::new(), waiter });
    }

    /// Records the writes of a barrier's connections that have not ended.
    ///
    /// Does nothing while the reactor still reads what had arrived for them.
    fn collect_writes(&self, one: &mut WriteBarrier) {
        let is_unread = |key: &Key| self.connections.get(*key).is_some_and(|c| c.unsettled);
        one.turns = one.turns.saturating_sub(1);
        if one.turns > 0 && one.reading.iter().any(is_unread) {
            return;
        }
        for key in one.reading.drain(..) {
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
