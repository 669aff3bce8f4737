//! Nobody is told that a command is over while it can still change a device: what a closing connection leaves with
//! devices, flushes before an answer, and who waits for the commands of a namespace that is gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvmeof_core::block::BlockOp;
use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{DeviceId, QuiesceGuard};
use tokio::sync::oneshot;

use super::Reactor;
use super::io::Pending;
use super::kind;
use super::slots::Key;

/// Devices that are being flushed for an admin command or a shutdown.
#[derive(Debug)]
pub(super) struct Flush {
    /// Whose it is; stale once that connection is gone.
    pub(super) connection: Key,
    /// Devices that have not answered.
    answers_due: usize,
    /// None of them has failed.
    is_durable: bool,
    then: Then,
}

/// What follows a flush.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// The shutdown is complete.
    ShutDown,
    /// The admin command is answered.
    Answer {
        /// The command.
        cid: u16,
        /// What its completion says.
        result: u64,
    },
}

/// Commands that were for devices whose namespaces are gone.
#[derive(Debug)]
pub(super) struct Settling {
    commands: Vec<Key>,
    reply: oneshot::Sender<()>,
}

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

    /// Answers when the commands that these devices have been given by now, or are to be given, are over.
    pub(super) fn settle(&mut self, devices: &BTreeSet<DeviceId>, reply: oneshot::Sender<()>) {
        let is_meant = |pending: &Pending| match pending {
            Pending::Io(io) => {
                devices.contains(&io.request.io().device) && !io.request.is_past_device()
            }
            Pending::Admin(_) | Pending::Abort(_) | Pending::Flush(_) => false,
        };
        let requests = self.requests.iter();
        let commands = requests.filter(|(_, one)| is_meant(one)).map(|(key, _)| key).collect();
        self.settling.push(Settling { commands, reply });
        self.answer_settled();
    }

    /// Answers whoever waits for commands that are over by now.
    pub(super) fn answer_settled(&mut self) {
        let Self { settling, requests, .. } = self;
        let is_over = |request: &Key| match requests.get(*request) {
            Some(Pending::Io(io)) => io.request.is_past_device(),
            _ => true,
        };
        let mut waiting = Vec::new();
        for mut one in std::mem::take(settling) {
            one.commands.retain(|request| !is_over(request));
            if one.commands.is_empty() {
                // An asker that has gone needs no answer.
                let _ = one.reply.send(());
            } else {
                waiting.push(one);
            }
        }
        *settling = waiting;
    }
}
