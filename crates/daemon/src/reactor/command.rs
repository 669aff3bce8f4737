//! Delivers capsules to nvmf, and immediately completes the commands that need no further step.

use std::sync::atomic::Ordering;

use nvmeof_core::dma::Buffer;
use nvmeof_nvmf::{ConnectRefusal, DataSource, Disposition, Failure, QueueOwner, Response};
use nvmeof_transport::{Connected, FabricError, FabricOp};
use nvmeof_wire::{Nqn, Sgl, Sqe, Status};

use super::Reactor;
use super::abort::Victim;
use super::admin::AdminStage;
use super::failure::from_fabric;
use super::gen_slab::SlotKey;
use super::quiesce::AfterFlush;
use super::stats::Class;
use crate::logs::{LogCategory, limited};

/// Data pointer of a response without data.
const NO_DATA: Sgl = Sgl::Transport { length: 0 };

impl Reactor {
    /// Handles a capsule.
    #[inline]
    pub(super) fn command(&mut self, key: SlotKey, sqe: &Sqe, data: Option<Buffer>, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_live() {
            return;
        }
        self.stats.requested(connection.listener);
        let inline_len = data.as_ref().map_or(0, Buffer::len);
        let inline_len = u32::try_from(inline_len).unwrap_or(u32::MAX);
        let disposition = connection.queue.handle_command(sqe, inline_len, now);
        connection.forget_dropped();
        self.dispose(key, sqe, disposition, data, now);
    }

    /// Handles a capsule with an invalid data pointer or failed data.
    ///
    /// A command that moves data fails with that error.
    pub(super) fn command_failed(&mut self, key: SlotKey, sqe: &Sqe, error: FabricError, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_live() {
            return;
        }
        self.stats.requested(connection.listener);
        let inline_len = match sqe.dptr.parse() {
            Sgl::InCapsule { offset, length } => offset.saturating_add(u64::from(length)),
            _ => 0,
        };
        let inline_len = u32::try_from(inline_len).unwrap_or(u32::MAX);
        let failure = from_fabric(error);
        let disposition = connection.queue.handle_command(sqe, inline_len, now);
        connection.forget_dropped();
        match disposition {
            Disposition::Io(io) if io.data_len() == 0 => {
                self.dispose(key, sqe, Disposition::Io(io), None, now);
            }
            // nvmf has not executed the command yet.
            Disposition::Receive { .. } | Disposition::Send { .. } | Disposition::Io(_) => {
                let response = connection.queue.complete(sqe.cid.get(), Err(failure));
                self.respond(key, response);
            }
            // nvmf refused it, or it needed no data: its own response applies.
            disposition => self.dispose(key, sqe, disposition, None, now),
        }
    }

    fn dispose(
        &mut self,
        key: SlotKey,
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
            Disposition::Send { len, sgl } => {
                self.start_admin(key, AdminStage::Reply { sqe: *sqe, len, sgl }, now);
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
                let then = AfterFlush::Answer { cid: sqe.cid.get(), result };
                self.start_flush(key, &devices, then, now);
            }
            Disposition::Abort { controller, sqid, cid, owner } => {
                let QueueOwner { reactor, connection } = owner;
                let victim = Victim { controller, sqid, cid, connection };
                self.order_abort(key, sqe.cid.get(), victim, reactor, now);
            }
        }
    }

    /// Handles the host data of an admin or fabrics command, or its absence.
    pub(super) fn admin_data(&mut self, key: SlotKey, sqe: &Sqe, bytes: Option<&[u8]>, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let disposition = match bytes {
            Some(bytes) => connection.queue.handle_data(sqe, bytes, now),
            None => Disposition::Respond(
                connection.queue.complete(sqe.cid.get(), Err(Failure::DataTransfer)),
            ),
        };
        self.dispose(key, sqe, disposition, None, now);
    }

    /// Continues a Connect that waited for the commands of the previous association.
    pub(super) fn connect_decided(
        &mut self,
        key: SlotKey,
        sqe: &Sqe,
        disposition: Disposition,
        now: u64,
    ) {
        self.dispose(key, sqe, disposition, None, now);
    }

    /// Logs a refused command, rate-limited.
    ///
    /// Hosts probe for features that do not exist, and a broken host does so all the time.
    #[cold]
    fn log_refusal(&mut self, key: SlotKey, sqe: &Sqe, status: Status) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(refusal) = connection.queue.take_refusal() {
            log_refused_connect(connection.queue.peer(), refusal);
            return;
        }
        let host = connection.info.as_ref().map(|info| info.hostnqn.as_str());
        let (opcode, nsid, peer) = (sqe.opcode, sqe.nsid.get(), connection.queue.peer());
        limited!(
            LogCategory::CommandRefused,
            debug,
            peer,
            host,
            opcode,
            nsid,
            %status,
            "command refused"
        );
    }

    /// Sends a response without data.
    #[inline]
    pub(super) fn respond(&mut self, key: SlotKey, response: Response) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        self.stats.completed(connection.listener);
        let Response { cqe, elidable } = response;
        connection.counters.count(Class::Other, 0, cqe.status());
        let op = FabricOp::Respond { token: 0, cqe, sgl: NO_DATA, data: None, elidable };
        // Refused only while closing, and then no host is left to read the response.
        let _ = connection.fabric.submit(op);
        self.mark_dirty(key);
    }

    /// Passes the result of an accepted Connect to the fabric, once.
    fn tell_connected(&mut self, key: SlotKey) {
        let owner = self.owner(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.connect_reported {
            return;
        }
        if let Some(info) = connection.queue.connected() {
            connection.connect_reported = true;
            connection.queue.set_owner(owner);
            if !info.admin && !connection.counts_as_io {
                connection.counts_as_io = true;
                self.loads[self.index].io_queues.fetch_add(1, Ordering::Relaxed);
            }
            connection.info = Some(info.clone());
            connection.fabric.connected(Connected { admin: info.admin, depth: info.depth });
            let (subsystem, host, cntlid) = (&info.subnqn, &info.hostnqn, info.cntlid);
            if info.admin {
                limited!(LogCategory::Controller, info, %subsystem, %host, cntlid, "controller connected");
            } else {
                let (reactor, qid, depth) = (self.index, info.qid, info.depth);
                tracing::debug!(%subsystem, %host, cntlid, qid, depth, reactor, "queue connected");
            }
        }
    }
}

/// Logs a refused Connect: the field, its value and the allowed values.
#[cold]
fn log_refused_connect(peer: &str, refusal: ConnectRefusal) {
    let ConnectRefusal { failure, field, value, allowed, host, subsystem, qid, had } = refusal;
    limited!(
        LogCategory::ConnectRefused,
        warn,
        reason = %failure,
        field,
        value,
        allowed,
        remedy = remedy(failure, host.as_ref()),
        peer,
        host = host.as_ref().map(Nqn::as_str),
        subsystem = subsystem.as_ref().map(Nqn::as_str),
        qid,
        connections = had.map(|had| had.connections),
        io_queues = had.map(|had| had.io_queues),
        status = %failure.status(),
        "Connect refused"
    );
}

/// Returns what the operator can do about a refusal.
fn remedy(failure: Failure, host: Option<&Nqn>) -> Option<&'static str> {
    match failure {
        Failure::ConnectHost if host.is_some_and(|host| host.as_str().is_empty()) => {
            Some("set allow-any-host = true: the host sends no name that `hosts` could list")
        }
        Failure::HostConnections | Failure::HostQueues => {
            Some("raise max-connections or max-queues in its [[host]] or in [host-defaults]")
        }
        Failure::TargetConnections
        | Failure::UnlistedConnections
        | Failure::DiscoveryControllers => Some("raise limits.connections for more"),
        Failure::ConnectHost => Some("add the host to `hosts` of a subsystem if it may connect"),
        _ => None,
    }
}
