//! A capsule's way into nvmf, and the admin and fabrics commands that are answered here.

use std::sync::atomic::Ordering;

use nvmeof_core::dma::{Buffer, Payload};
use nvmeof_nvmf::{DataSource, Disposition, Failure, Refusal, Response};
use nvmeof_transport::{Connected, FabricError, FabricOp};
use nvmeof_wire::fabrics::ConnectData;
use nvmeof_wire::opcode::FabricsType;
use nvmeof_wire::zerocopy::FromBytes as _;
use nvmeof_wire::{Nqn, Sgl, Sqe, Status};

use super::Reactor;
use super::failure::from_fabric;
use super::io::{Admin, AdminStage, Pending};
use super::kind;
use super::mailbox::{AbortOrder, Message};
use super::quiesce::Then;
use super::slots::Key;
use super::stats::Class;
use crate::logs::{Kind, limited};

/// The data pointer of a response that has no data.
const NO_DATA: Sgl = Sgl::Transport { length: 0 };

impl Reactor {
    /// A capsule has come.
    #[inline]
    pub(super) fn command(&mut self, key: Key, sqe: &Sqe, data: Option<Buffer>, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_live() {
            return;
        }
        self.stats.requested(connection.port);
        let inline_len = data.as_ref().map_or(0, Buffer::len);
        let inline_len = u32::try_from(inline_len).unwrap_or(u32::MAX);
        let disposition = connection.queue.handle_command(sqe, inline_len, now);
        self.dispose(key, sqe, disposition, data, now);
    }

    /// A capsule has come whose data, or data pointer, is bad: a command that moves data ends with that.
    pub(super) fn command_failed(&mut self, key: Key, sqe: &Sqe, error: FabricError, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_live() {
            return;
        }
        self.stats.requested(connection.port);
        let inline_len = match sqe.dptr.parse() {
            Sgl::InCapsule { offset, length } => offset.saturating_add(u64::from(length)),
            _ => 0,
        };
        let inline_len = u32::try_from(inline_len).unwrap_or(u32::MAX);
        let failure = from_fabric(error);
        match connection.queue.handle_command(sqe, inline_len, now) {
            Disposition::Io(io) if io.data_len() == 0 => {
                self.dispose(key, sqe, Disposition::Io(io), None, now);
            }
            Disposition::Receive { .. } | Disposition::Io(_) => {
                let response = connection.queue.complete(sqe.cid.get(), Err(failure));
                self.respond(key, response);
            }
            // Done already, but there is nowhere to send what it gave.
            Disposition::Send { response: Response { cqe, .. }, .. } => {
                let cqe = cqe.with_status(failure.status());
                self.respond(key, Response { cqe, elidable: false });
            }
            // It was refused, or needed no data: its own answer stands.
            disposition => self.dispose(key, sqe, disposition, None, now),
        }
    }

    fn dispose(
        &mut self,
        key: Key,
        sqe: &Sqe,
        disposition: Disposition,
        data: Option<Buffer>,
        now: u64,
    ) {
        match disposition {
            Disposition::Io(io) => self.start_io(key, io, data, now),
            Disposition::Respond(response) => {
                if !response.cqe.status().is_success() {
                    self.log_refusal(key, sqe, response.cqe.status());
                }
                self.respond(key, response);
                self.tell_connected(key);
            }
            Disposition::Send { data, sgl, response } => {
                self.start_admin(key, AdminStage::Reply { data, sgl, response }, now);
            }
            Disposition::Receive { len, source: DataSource::InCapsule { offset } } => {
                let bytes = data.as_ref().and_then(|data| {
                    let start = usize::try_from(offset).ok()?;
                    data.as_slice().get(start..start.checked_add(usize::try_from(len).ok()?)?)
                });
                self.admin_data(key, sqe, bytes, now);
            }
            Disposition::Receive { len, source: DataSource::Host(sgl) } => {
                self.start_admin(key, AdminStage::Fetch { sqe: *sqe, len, sgl }, now);
            }
            Disposition::Held => self.poll_queue(key, now),
            Disposition::Flush { devices, result } => {
                let then = Then::Answer { cid: sqe.cid.get(), result };
                self.start_flush(key, &devices, then, now);
            }
            Disposition::Abort { controller, sqid, cid } => {
                self.order_abort(key, sqe.cid.get(), controller, sqid, cid, now);
            }
        }
    }

    /// The host data of an admin or fabrics command, if it could be had.
    fn admin_data(&mut self, key: Key, sqe: &Sqe, bytes: Option<&[u8]>, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let disposition = match bytes {
            Some(bytes) => {
                let disposition = connection.queue.handle_data(sqe, bytes, now);
                if let Disposition::Respond(Response { cqe, .. }) = &disposition
                    && sqe.is_fabrics()
                    && sqe.fctype() == FabricsType::CONNECT
                    && !cqe.status().is_success()
                {
                    match connection.queue.take_refusal() {
                        Some(refusal) => log_full(&refusal),
                        None => log_refused_connect(connection.queue.peer(), bytes, cqe.status()),
                    }
                }
                disposition
            }
            None => Disposition::Respond(
                connection.queue.complete(sqe.cid.get(), Err(Failure::DataTransfer)),
            ),
        };
        self.dispose(key, sqe, disposition, None, now);
    }

    /// A Connect that waited for the commands of the association before is decided.
    pub(super) fn connect_decided(
        &mut self,
        key: Key,
        sqe: &Sqe,
        disposition: Disposition,
        now: u64,
    ) {
        if let Some(connection) = self.connections.get_mut(key)
            && let Some(refusal) = connection.queue.take_refusal()
        {
            log_full(&refusal);
        }
        self.dispose(key, sqe, disposition, None, now);
    }

    /// Hosts ask for what is not there, to find out; and one that is broken does so all the time.
    #[cold]
    fn log_refusal(&self, key: Key, sqe: &Sqe, status: Status) {
        let Some(connection) = self.connections.get(key) else { return };
        let host = connection.info.as_ref().map(|info| info.hostnqn.as_str());
        let (opcode, nsid, peer) = (sqe.opcode, sqe.nsid.get(), connection.queue.peer());
        limited!(
            Kind::CommandRefused,
            debug,
            peer,
            host,
            opcode,
            nsid,
            %status,
            "command refused"
        );
    }

    /// Sends a response that has no data.
    #[inline]
    pub(super) fn respond(&mut self, key: Key, response: Response) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        self.stats.completed(connection.port);
        let Response { cqe, elidable } = response;
        connection.tally.count(Class::Other, 0, cqe.status());
        let op = FabricOp::Respond { token: 0, cqe, sgl: NO_DATA, data: None, elidable };
        // Refused only while closing, and then nobody is left to read it.
        let _ = connection.fabric.submit(op);
        self.mark_dirty(key);
    }

    /// Tells the fabric, once, what an accepted Connect settled.
    fn tell_connected(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.told_connected {
            return;
        }
        if let Some(info) = connection.queue.connected() {
            connection.told_connected = true;
            if !info.admin && !connection.counts_as_io {
                connection.counts_as_io = true;
                self.loads[self.index].io_queues.fetch_add(1, Ordering::Relaxed);
            }
            connection.info = Some(info.clone());
            connection.fabric.connected(Connected { admin: info.admin, depth: info.depth });
            let (subsystem, host, cntlid) = (&info.subnqn, &info.hostnqn, info.cntlid);
            if info.admin {
                limited!(Kind::Controller, info, %subsystem, %host, cntlid, "controller connected");
            } else {
                let (reactor, qid, depth) = (self.index, info.qid, info.depth);
                tracing::debug!(%subsystem, %host, cntlid, qid, depth, reactor, "queue connected");
            }
        }
    }

    fn start_admin(&mut self, key: Key, stage: AdminStage, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.in_flight += 1;
        let request = self.requests.insert(Pending::Admin(Admin { connection: key, stage }));
        self.advance_admin(request, now);
    }

    /// Takes an admin command on once a buffer of the admin reserve is free.
    pub(super) fn advance_admin(&mut self, request: Key, now: u64) {
        let Some(Pending::Admin(admin)) = self.requests.get_mut(request) else { return };
        let key = admin.connection;
        let len = match &admin.stage {
            AdminStage::Reply { data, .. } => data.len(),
            AdminStage::Fetch { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
            AdminStage::Pulling { .. } | AdminStage::Sending => return,
        };
        if len == 0 {
            self.finish_empty_admin(request, now);
            return;
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(mut buf) = connection.own_buffer(len).or_else(|| self.admin_reserve.lease())
        else {
            self.admin_waiting.push_back(request);
            return;
        };
        buf.truncate(len);
        let token = request.token(kind::REQUEST);
        let op = match std::mem::replace(&mut admin.stage, AdminStage::Sending) {
            AdminStage::Reply { data, sgl, response } => {
                buf.as_mut_slice().copy_from_slice(&data);
                let Response { cqe, elidable } = response;
                let data = Some(Payload::Buffer(buf));
                self.stats.completed(connection.port);
                let bytes = u32::try_from(len).unwrap_or(u32::MAX);
                connection.tally.count(Class::Other, bytes, cqe.status());
                FabricOp::Respond { token, cqe, sgl, data, elidable }
            }
            AdminStage::Fetch { sqe, sgl, .. } => {
                admin.stage = AdminStage::Pulling { sqe };
                FabricOp::Pull { token, cid: sqe.cid.get(), sgl, buf }
            }
            AdminStage::Pulling { .. } | AdminStage::Sending => return,
        };
        if connection.fabric.submit(op).is_err() {
            self.drop_request(request, now);
        }
        self.mark_dirty(key);
    }

    /// A reply without bytes is a response; a fetch of nothing has its data.
    fn finish_empty_admin(&mut self, request: Key, now: u64) {
        let Some(Pending::Admin(admin)) = self.requests.remove(request) else { return };
        self.one_less(admin.connection);
        match admin.stage {
            AdminStage::Reply { response, .. } => self.respond(admin.connection, response),
            AdminStage::Fetch { sqe, .. } => {
                self.admin_data(admin.connection, &sqe, Some(&[]), now);
            }
            AdminStage::Pulling { .. } | AdminStage::Sending => {}
        }
    }

    /// The host's data for an admin command has come, or has not.
    pub(super) fn admin_pulled(
        &mut self,
        request: Key,
        buf: &Buffer,
        result: Result<(), FabricError>,
        now: u64,
    ) {
        let Some(Pending::Admin(admin)) = self.requests.remove(request) else { return };
        self.one_less(admin.connection);
        let AdminStage::Pulling { sqe } = admin.stage else { return };
        let Some(connection) = self.connections.get_mut(admin.connection) else { return };
        if !connection.is_live() {
            return;
        }
        match result {
            Ok(()) => self.admin_data(admin.connection, &sqe, Some(buf.as_slice()), now),
            Err(error) => {
                let response = connection.queue.complete(sqe.cid.get(), Err(from_fabric(error)));
                self.respond(admin.connection, response);
            }
        }
    }

    /// Asks every reactor for the command an Abort names; the queue may be anywhere.
    fn order_abort(
        &mut self,
        key: Key,
        abort_cid: u16,
        controller: nvmeof_nvmf::ControllerKey,
        sqid: u16,
        cid: u16,
        now: u64,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.in_flight += 1;
        let request = self.requests.insert(Pending::Abort {
            connection: key,
            cid: abort_cid,
            answers_due: self.peers.len(),
            aborted: false,
        });
        let token = request.token(kind::REQUEST);
        let order = AbortOrder { from: self.index, token, controller, sqid, cid };
        for (index, peer) in self.peers.iter().enumerate() {
            if index != self.index {
                peer.send(Message::Abort(order));
            }
        }
        let aborted = self.abort_here(&order, now);
        self.abort_answered(token, aborted);
    }

    /// Aborts a command if it waits on this reactor.
    pub(super) fn abort_here(&mut self, order: &AbortOrder, now: u64) -> bool {
        // The command identifier alone is not enough: the queue must be the one that was named.
        let candidates: Vec<_> = self
            .requests
            .iter()
            .filter_map(|(request, pending)| match pending {
                Pending::Io(io) if io.request.io().cid == order.cid && io.request.is_waiting() => {
                    Some((request, io.connection, io.flow))
                }
                _ => None,
            })
            .collect();
        for (request, key, flow) in candidates {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let named = connection
                .queue
                .connected()
                .is_some_and(|info| info.controller == order.controller && info.qid == order.sqid);
            if named && self.pacer.cancel(flow, request.token(kind::REQUEST)) {
                let response = connection.queue.complete(order.cid, Err(Failure::Aborted));
                self.respond(key, response);
                self.drop_request(request, now);
                return true;
            }
        }
        false
    }

    /// One reactor has answered an Abort; the last answer completes it.
    pub(super) fn abort_answered(&mut self, token: u64, answer: bool) {
        let (_, request) = Key::from_token(token);
        let Some(Pending::Abort { connection, cid, answers_due, aborted }) =
            self.requests.get_mut(request)
        else {
            return;
        };
        *aborted |= answer;
        *answers_due -= 1;
        if *answers_due > 0 {
            return;
        }
        let (key, cid, aborted) = (*connection, *cid, *aborted);
        self.requests.remove(request);
        self.one_less(key);
        if let Some(connection) = self.connections.get_mut(key)
            && connection.is_live()
        {
            let response = connection.queue.complete_abort(cid, aborted);
            self.respond(key, response);
        }
    }
}

/// A host has as many connections as it may.
#[cold]
fn log_full(refusal: &Refusal) {
    let Refusal { host, subsystem, qid, why, had } = refusal;
    limited!(
        Kind::ConnectRefused,
        warn,
        %host,
        %subsystem,
        qid,
        connections = had.connections,
        io_queues = had.io_queues,
        "Connect refused, {why}: raise max-connections or max-queues of its [[host]] or of [host-defaults] if \
         it should have more"
    );
}

/// A host may not connect, or not so: who it says it is, and what it wants.
#[cold]
fn log_refused_connect(peer: &str, data: &[u8], status: Status) {
    let data = ConnectData::read_from_prefix(data).ok().map(|(data, _)| data);
    let host = data.as_ref().and_then(|data| data.hostnqn().ok());
    let subsystem = data.as_ref().and_then(|data| data.subnqn().ok());
    limited!(
        Kind::ConnectRefused,
        warn,
        peer,
        host = host.as_ref().map(Nqn::as_str),
        subsystem = subsystem.as_ref().map(Nqn::as_str),
        %status,
        "Connect refused"
    );
}
