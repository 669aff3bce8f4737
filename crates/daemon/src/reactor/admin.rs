//! Admin and fabrics commands that move data.
//!
//! A connection moves the data of one of them at a time. The others wait with it and hold no
//! memory. Small data uses the connection's own buffer. Larger log pages use buffers that the
//! reactor reserves for them. A connection has at most one of those, so a peer that does not read
//! its answers occupies no more. Discovery controllers, which need no permission, together leave
//! half of these buffers to the other controllers.

use std::collections::VecDeque;

use nvmeof_core::dma::{Buffer, Payload};
use nvmeof_nvmf::Response;
use nvmeof_transport::{FabricError, FabricOp};
use nvmeof_wire::{Sgl, Sqe};

use super::Reactor;
use super::connection::{Connection, OWN_BUFFER};
use super::failure::from_fabric;
use super::gen_slab::SlotKey;
use super::io::Pending;
use super::kind;
use super::stats::Class;

/// An admin or fabrics command that moves data.
///
/// It is plain bytes, and holds no memory while it waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admin {
    /// The connection that sent it.
    pub(super) connection: SlotKey,
    /// Its state.
    pub(super) stage: AdminStage,
}

/// Stage of an admin command: `Reply -> Sending`, or `Fetch -> Pulling`.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdminStage {
    /// Waits for a buffer to write its data into.
    Reply {
        /// The command.
        sqe: Sqe,
        /// Bytes.
        len: u32,
        /// Host memory that receives them.
        sgl: Sgl,
    },
    /// Waits for a buffer for the host's data.
    Fetch {
        /// The command.
        sqe: Sqe,
        /// Bytes.
        len: u32,
        /// Host memory that holds them.
        sgl: Sgl,
    },
    /// The fabric fetches the host's data and owns the buffer.
    Pulling {
        /// The command.
        sqe: Sqe,
    },
    /// The fabric sends the response and owns the buffer.
    Sending,
}

impl AdminStage {
    /// Returns the bytes of the buffer that it waits for, or `None` if it does not wait.
    fn wanted(&self) -> Option<usize> {
        match self {
            Self::Reply { len, .. } | Self::Fetch { len, .. } => {
                Some(usize::try_from(*len).unwrap_or(usize::MAX))
            }
            Self::Pulling { .. } | Self::Sending => None,
        }
    }

    /// Returns true while neither the fabric nor the reactor holds a buffer for it.
    pub(super) fn is_waiting(&self) -> bool {
        self.wanted().is_some()
    }
}

/// The admin commands of a connection that move data.
#[derive(Debug, Default)]
pub(super) struct AdminLine {
    /// The command that moves its data now.
    current: Option<SlotKey>,
    /// Commands that wait behind it: no more than the queue has entries.
    behind: VecDeque<SlotKey>,
}

/// Connections and commands with pending admin work.
#[derive(Debug, Default)]
pub(super) struct AdminWork {
    /// Connections whose current command has ended while others wait.
    next: Vec<SlotKey>,
    /// Commands that wait for a buffer of the reactor's reservation.
    ///
    /// `for_hosts` is for hosts' controllers, `for_discovery` for all other connections.
    for_hosts: VecDeque<SlotKey>,
    for_discovery: VecDeque<SlotKey>,
}

impl AdminWork {
    /// Returns true if a connection can start its next command immediately.
    pub(super) fn is_due(&self) -> bool {
        !self.next.is_empty()
    }

    fn line(&mut self, is_host: bool) -> &mut VecDeque<SlotKey> {
        if is_host { &mut self.for_hosts } else { &mut self.for_discovery }
    }
}

impl Reactor {
    /// Starts a command that moves data, immediately or after the commands before it have ended.
    pub(super) fn start_admin(&mut self, key: SlotKey, stage: AdminStage, now: u64) {
        let Some(connection) = self.connections.present_mut(key) else { return };
        connection.in_flight += 1;
        let pending = Pending::Admin(Admin { connection: key, stage });
        let request = self.requests.insert(&mut connection.newest, pending);
        connection.admin.behind.push_back(request);
        self.pump_admin(key, now);
    }

    /// Starts waiting commands.
    ///
    /// These are the commands whose predecessor has ended, and those that waited for a reserved
    /// buffer.
    pub(super) fn retry_admin(&mut self, now: u64) -> bool {
        let mut busy = false;
        if !self.admin_work.next.is_empty() {
            let mut next = std::mem::take(&mut self.admin_work.next);
            for key in next.drain(..) {
                self.pump_admin(key, now);
                busy = true;
            }
            // Connections that this loop added follow in the next turn. The vector keeps its
            // capacity.
            next.append(&mut self.admin_work.next);
            self.admin_work.next = next;
        }
        for is_host in [true, false] {
            while let Some(request) = self.admin_work.line(is_host).pop_front() {
                if !self.advance_admin(request, now) {
                    self.admin_work.line(is_host).push_front(request);
                    break;
                }
                busy = true;
            }
        }
        busy
    }

    /// Starts the connection's next commands until one of them waits.
    fn pump_admin(&mut self, key: SlotKey, now: u64) {
        while let Some(connection) = self.connections.get_mut(key).filter(|c| c.is_live()) {
            if connection.admin.current.is_some() {
                return;
            }
            let Some(request) = connection.admin.behind.pop_front() else { return };
            connection.admin.current = Some(request);
            // Data that fits the connection's own buffer does not wait for commands that need
            // another.
            let is_small = self.requests.get(request).is_some_and(is_small);
            if (is_small || self.admin_work.line(is_host(connection)).is_empty())
                && self.advance_admin(request, now)
            {
                continue;
            }
            let Some(connection) = self.connections.present_mut(key) else { return };
            self.admin_work.line(is_host(connection)).push_back(request);
        }
    }

    /// Advances a command if there is a buffer for it. Returns false if there is none now.
    fn advance_admin(&mut self, request: SlotKey, now: u64) -> bool {
        let Some(Pending::Admin(admin)) = self.requests.get_mut(request) else { return true };
        let key = admin.connection;
        let Some(len) = admin.stage.wanted() else {
            debug_assert!(false, "an admin command waits for a buffer that it does not need");
            return true;
        };
        if len == 0 {
            self.finish_empty_admin(request, now);
            return true;
        }
        let Some(connection) = self.connections.get_mut(key) else { return true };
        let reserve = &self.admin_reserve;
        let may_take = is_host(connection) || reserve.leased() < (reserve.count() / 2).max(1);
        let lease = || if may_take { reserve.lease() } else { None };
        let Some(mut buf) = connection.own_buffer(len).or_else(lease) else { return false };
        buf.truncate(len);
        let token = request.token(kind::REQUEST);
        let op = match std::mem::replace(&mut admin.stage, AdminStage::Sending) {
            AdminStage::Reply { sqe, sgl, .. } => {
                let response = connection.queue.fill(&sqe, buf.as_mut_slice(), now);
                let Response { cqe, elidable } = response;
                if !cqe.status().is_success() {
                    drop(buf);
                    self.drop_request(request, now);
                    self.respond(key, response);
                    return true;
                }
                self.stats.completed(connection.listener);
                let bytes = u32::try_from(len).unwrap_or(u32::MAX);
                connection.counters.count(Class::Other, bytes, cqe.status());
                let data = Some(Payload::Buffer(buf));
                FabricOp::Respond { token, cqe, sgl, data, elidable }
            }
            AdminStage::Fetch { sqe, sgl, .. } => {
                admin.stage = AdminStage::Pulling { sqe };
                FabricOp::FetchHostData { token, cid: sqe.cid.get(), sgl, buf }
            }
            AdminStage::Pulling { .. } | AdminStage::Sending => return true,
        };
        if connection.fabric.submit(op).is_err() {
            self.drop_request(request, now);
        }
        self.mark_dirty(key);
        true
    }

    /// Completes a command without data. An empty fetch has its data already.
    fn finish_empty_admin(&mut self, request: SlotKey, now: u64) {
        let Some(Pending::Admin(admin)) = self.take_request(request) else {
            debug_assert!(false, "an admin command ended while the reactor worked on it");
            return;
        };
        if let AdminStage::Fetch { sqe, .. } = admin.stage {
            self.admin_data(admin.connection, &sqe, Some(&[]), now);
        }
    }

    /// Continues an admin command whose host data has arrived, or failed to arrive.
    pub(super) fn admin_pulled(
        &mut self,
        request: SlotKey,
        buf: &Buffer,
        result: Result<(), FabricError>,
        now: u64,
    ) {
        let Some(Pending::Admin(Admin { connection: key, stage: AdminStage::Pulling { sqe } })) =
            self.take_request(request)
        else {
            debug_assert!(false, "host data for an admin command that fetches none");
            return;
        };
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_live() {
            return;
        }
        match result {
            Ok(()) => self.admin_data(key, &sqe, Some(buf.as_slice()), now),
            Err(error) => {
                let response = connection.queue.complete(sqe.cid.get(), Err(from_fabric(error)));
                self.respond(key, response);
            }
        }
    }

    /// Ends a command that moved data or was about to. The connection's next command can start.
    pub(super) fn admin_over(&mut self, request: SlotKey, key: SlotKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.admin.current != Some(request) {
            return;
        }
        connection.admin.current = None;
        if !connection.admin.behind.is_empty() {
            self.admin_work.next.push(key);
        }
    }
}

/// Returns true if a command's data fits its connection's own buffer.
fn is_small(pending: &Pending) -> bool {
    let Pending::Admin(admin) = pending else { return false };
    admin.stage.wanted().is_some_and(|len| len <= OWN_BUFFER)
}

/// Returns true if a connection belongs to a controller that its host needs permission for.
fn is_host(connection: &Connection) -> bool {
    connection.info.as_ref().is_some_and(|info| !info.discovery)
}
