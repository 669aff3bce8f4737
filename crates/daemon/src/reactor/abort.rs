//! Abort: the reactor that serves the queue handles it and searches only that queue's commands.

use nvmeof_nvmf::request::Stage;
use nvmeof_nvmf::{ControllerKey, Failure, QueueOwner};

use super::Reactor;
use super::gen_slab::SlotKey;
use super::io::{Aborting, Pending};
use super::kind;
use super::mailbox::{AbortRequest, Message};

/// An Abort that waits until a device has completed a piece of its command.
#[derive(Debug)]
pub(super) struct AbortWaiting {
    /// Reactor that received the Abort, and the token of the Abort there.
    from: usize,
    token: u64,
    /// The command has ended because of it.
    pub(super) aborted: bool,
}

/// Result of an Abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbortResult {
    /// The command has ended.
    Aborted,
    /// The command does not exist, or the reactor cannot abort it any more.
    Not,
    /// The command ends when its device has completed a piece of it.
    Later(SlotKey),
}

/// The command that an Abort names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Victim {
    /// The controller that owns the queue.
    pub(super) controller: ControllerKey,
    /// The queue.
    pub(super) sqid: u16,
    /// The command.
    pub(super) cid: u16,
    /// The connection that serves the queue, by its token on that reactor.
    pub(super) connection: u64,
}

impl Reactor {
    /// Identifies one of this reactor's connections to all reactors.
    pub(super) fn owner(&self, key: SlotKey) -> QueueOwner {
        let reactor = u32::try_from(self.index).unwrap_or(u32::MAX);
        QueueOwner { reactor, connection: key.token(kind::CONNECTION) }
    }

    /// Handles an Abort here, or forwards it to the reactor that serves the queue.
    pub(super) fn order_abort(
        &mut self,
        key: SlotKey,
        abort_cid: u16,
        victim: Victim,
        reactor: u32,
        now: u64,
    ) {
        let owner = reactor as usize;
        let found = if owner == self.index { Some(self.abort_here(&victim, now)) } else { None };
        match found {
            Some(AbortResult::Aborted) => return self.abort_done(key, abort_cid, true),
            Some(AbortResult::Not) => return self.abort_done(key, abort_cid, false),
            Some(AbortResult::Later(_)) | None => {}
        }
        let Some(connection) = self.connections.present_mut(key) else { return };
        connection.in_flight += 1;
        let pending = Pending::Abort(Aborting { connection: key, cid: abort_cid });
        let request = self.requests.insert(&mut connection.newest, pending);
        let token = request.token(kind::REQUEST);
        match (found, self.peers.get(owner)) {
            (Some(AbortResult::Later(aborted)), _) => self.abort_later(aborted, self.index, token),
            (_, Some(peer)) => {
                peer.send(Message::Abort(AbortRequest { from: self.index, token, victim }));
            }
            (_, None) => self.abort_answered(token, false),
        }
    }

    /// Handles an Abort that another reactor has forwarded.
    pub(super) fn abort_for(&mut self, order: &AbortRequest, now: u64) {
        let AbortRequest { from, token, victim } = order;
        match self.abort_here(victim, now) {
            AbortResult::Later(request) => self.abort_later(request, *from, *token),
            found => self.answer_abort(*from, *token, found == AbortResult::Aborted),
        }
    }

    /// Aborts a command of one of this reactor's queues if possible.
    ///
    /// That is the case while the command waits for admission or memory, and between two pieces of
    /// a long one.
    fn abort_here(&mut self, victim: &Victim, now: u64) -> AbortResult {
        let (_, key) = SlotKey::from_token(victim.connection);
        let Some(connection) = self.connections.get(key).filter(|c| c.is_live()) else {
            return AbortResult::Not;
        };
        // The queue can have moved to another reactor by now, or ended.
        if !connection.queue.is_io_queue(victim.controller, victim.sqid) {
            return AbortResult::Not;
        }
        // The response to an earlier command with this identifier can still be in flight: that
        // command has completed.
        let named = self.requests.of(connection.newest).find_map(|(request, pending)| {
            let Pending::Io(io) = pending else { return None };
            let stage = io.request.stage();
            let is_it =
                io.request.io().cid == victim.cid && !matches!(stage, Stage::Sending | Stage::Done);
            is_it.then_some((request, stage, io.flow))
        });
        let Some((request, stage, flow)) = named else { return AbortResult::Not };
        let token = request.token(kind::REQUEST);
        match stage {
            Stage::Waiting
                if self.pacer.cancel(flow, token) || self.cancel_deferred(key, request) => {}
            Stage::NeedsBuffer => {}
            Stage::OnDevice => {
                let Some(io) = self.requests.present_io(request) else { return AbortResult::Not };
                let ends = io.request.abort_between_pieces();
                return if ends { AbortResult::Later(request) } else { AbortResult::Not };
            }
            _ => return AbortResult::Not,
        }
        if let Some(connection) = self.connections.present_mut(key) {
            let response = connection.queue.complete(victim.cid, Err(Failure::Aborted));
            self.respond(key, response);
        }
        self.drop_request(request, now);
        AbortResult::Aborted
    }

    /// Postpones the answer to an Abort until the command has ended.
    fn abort_later(&mut self, request: SlotKey, from: usize, token: u64) {
        if let Some(io) = self.requests.present_io(request) {
            io.abort = Some(Box::new(AbortWaiting { from, token, aborted: false }));
        }
    }

    /// Answers an Abort whose command has ended.
    #[cold]
    pub(super) fn abort_over(&mut self, waiting: &AbortWaiting) {
        self.answer_abort(waiting.from, waiting.token, waiting.aborted);
    }

    fn answer_abort(&mut self, from: usize, token: u64, aborted: bool) {
        if from == self.index {
            self.abort_answered(token, aborted);
        } else if let Some(peer) = self.peers.get(from) {
            peer.send(Message::AbortDone { token, aborted });
        }
    }

    /// Handles the reply of the reactor that an Abort was forwarded to.
    pub(super) fn abort_answered(&mut self, token: u64, aborted: bool) {
        let (_, request) = SlotKey::from_token(token);
        if !matches!(self.requests.get(request), Some(Pending::Abort(_))) {
            return;
        }
        if let Some(Pending::Abort(Aborting { connection, cid })) = self.take_request(request) {
            self.abort_done(connection, cid, aborted);
        }
    }

    /// Answers an Abort.
    fn abort_done(&mut self, key: SlotKey, cid: u16, aborted: bool) {
        if let Some(connection) = self.connections.get_mut(key).filter(|c| c.is_live()) {
            let response = connection.queue.complete_abort(cid, aborted);
            self.respond(key, response);
        }
    }
}
