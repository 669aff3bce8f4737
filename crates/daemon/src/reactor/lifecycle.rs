//! Lifecycle of connections: attach, move to another reactor, close.

use std::sync::atomic::Ordering;

use nvmeof_core::dma::BufferReservation;
use nvmeof_nvmf::Queue;
use nvmeof_nvmf::request::Stage;
use nvmeof_transport::{CloseReason, DetachedQueue, ReactorResources};

use super::Reactor;
use super::connection::{Connection, OWN_BUFFER, Phase};
use super::gen_slab::SlotKey;
use super::io::Pending;
use super::kind;
use super::mailbox::Message;
use super::quiesce::AfterFlush;
use crate::logs::{LogCategory, limited};

impl Reactor {
    /// Attaches a connection to this reactor.
    pub(super) fn attach(&mut self, parked: Box<dyn DetachedQueue>, queue: Box<Queue>, now: u64) {
        let peer = parked.peer();
        // The placement has counted it already.
        let is_io = parked.number().is_some_and(|qid| qid > 0);
        if self.draining.is_some() || self.stopping {
            parked.refuse();
            self.refuse(*queue, is_io);
            return;
        }
        let own = match self.pool.reserve(1, OWN_BUFFER) {
            Ok(own) => own,
            Err(error) => {
                limited!(
                    LogCategory::ConnectionRefused,
                    warn,
                    peer,
                    %error,
                    "connection refused: no memory for the connection buffer"
                );
                parked.refuse();
                self.refuse(*queue, is_io);
                return;
            }
        };
        let fabric = match parked
            .attach(&mut ReactorResources { pool: &self.pool, sources: &mut self.sources })
        {
            Ok(fabric) => fabric,
            Err(error) => {
                limited!(LogCategory::ConnectionRefused, warn, peer, %error, "connection refused");
                self.has_unused_sources = !self.sources.is_empty();
                self.refuse(*queue, is_io);
                return;
            }
        };
        let listener = self.stats.port(queue.port());
        let network_port = self.network_port_of(&queue);
        let mut connection = Connection::new(fabric, queue, listener, network_port, own, now);
        connection.counts_as_io |= is_io;
        // If it moved here, its previous reactor has paused it.
        connection.fabric.set_paused(false);
        connection.fabric.set_tx_tracked(self.is_tx_tracked);
        let key = self.connections.insert(connection);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.has_source = connection.fabric.bind(key.token(kind::CONNECTION));
            self.sockets += usize::from(!connection.has_source);
        }
        self.claim(key);
        self.watch_sources();
        self.watch(key, now);
        self.list(key);
        self.mark_dirty(key);
    }

    /// Adds a connection's descriptor, if it has one by now, to the epoll set.
    pub(super) fn watch(&mut self, key: SlotKey, now: u64) {
        let registered = self.connections.get_mut(key).and_then(|connection| {
            let fd = connection.fabric.fd()?;
            Some(self.poller.add_socket(fd, key.token(kind::CONNECTION)))
        });
        if let Some(Err(error)) = registered {
            limited!(
                LogCategory::ConnectionRefused,
                warn,
                %error,
                "connection refused: cannot watch its socket"
            );
            self.begin_close(key, CloseReason::Lost(error.to_string()), now);
        }
    }

    /// Returns the network port that a connection's data leaves through.
    ///
    /// The address that the host connected to identifies the port, because each port has its own.
    fn network_port_of(&mut self, queue: &Queue) -> u16 {
        let address = queue.local_address();
        let known = self.network_ports.iter().position(|known| *known == address);
        let at = known.unwrap_or_else(|| {
            self.network_ports.push(address);
            self.network_ports.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// Subtracts a connection that cannot be served from the load that its placement has raised.
    fn refuse(&self, mut queue: Queue, is_io: bool) {
        self.load().connections.fetch_sub(1, Ordering::Relaxed);
        if is_io || queue.connected().is_some_and(|info| !info.admin) {
            self.load().io_queues.fetch_sub(1, Ordering::Relaxed);
        }
        // It has no commands here.
        drop(queue.handle_disconnect());
    }

    /// Starts to close a connection.
    ///
    /// No new work starts for it, and the fabric returns its resources before it reports `Closed`.
    pub(super) fn begin_close(&mut self, key: SlotKey, why: CloseReason, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_live() {
            return;
        }
        if let Some(info) = connection.queue.connected() {
            tracing::debug!(
                reactor = self.index,
                qid = info.qid,
                cntlid = info.cntlid,
                reason = %why,
                "queue closes"
            );
        }
        connection.phase = Phase::Closing;
        let guard = connection.queue.handle_disconnect();
        connection.fabric.close(why);
        self.quiesce(key, guard, now);
        self.keep_flows(key);
        let Some(connection) = self.connections.present_mut(key) else { return };
        let waiting = connection.end_flows(&mut self.pacer);
        self.list(key);
        self.mark_dirty(key);
        for token in waiting {
            self.drop_request(SlotKey::from_token(token).1, now);
        }
        // Commands of this connection that neither the fabric nor a device holds.
        let Some(connection) = self.connections.present_mut(key) else { return };
        let idle: Vec<SlotKey> = self
            .requests
            .of(connection.newest)
            .filter(|(_, pending)| match pending {
                Pending::Admin(admin) => admin.stage.is_waiting(),
                Pending::Abort(_) => true,
                // It ends with its devices.
                Pending::Flush(_) => false,
                Pending::Io(io) => io.request.stage() == Stage::NeedsBuffer,
            })
            .map(|(request, _)| request)
            .collect();
        for request in idle {
            self.drop_request(request, now);
        }
    }

    /// Ends the flow for a closed device after the last of its commands has ended.
    #[cold]
    pub(super) fn end_device_flow(&mut self, key: SlotKey, device_flow: SlotKey) {
        let Some(connection) = self.connections.present_mut(key) else { return };
        let Some(device_flow) = connection.remove_device_flow(device_flow) else {
            debug_assert!(false, "a device flow ends twice");
            return;
        };
        self.stats.keep_device_flow(
            connection,
            &device_flow,
            self.pacer.flow_stats(device_flow.flow),
        );
        let waiting = self.pacer.remove_flow(device_flow.flow);
        debug_assert!(waiting.is_empty(), "commands wait in a device flow without any in flight");
    }

    /// Removes a connection whose fabric has returned everything.
    ///
    /// Commands at a device end when the device releases their buffers.
    pub(super) fn closed(&mut self, key: SlotKey, reason: &CloseReason, now: u64) {
        self.begin_close(key, reason.clone(), now);
        let Some(connection) = self.connections.remove(key) else { return };
        self.sockets -= usize::from(!connection.has_source);
        self.has_unused_sources = !self.sources.is_empty();
        self.load().connections.fetch_sub(1, Ordering::Relaxed);
        if connection.counts_as_io {
            self.load().io_queues.fetch_sub(1, Ordering::Relaxed);
        }
        if let CloseReason::Protocol(_) | CloseReason::Timeout(_) = reason {
            let peer = connection.queue.peer();
            limited!(
                LogCategory::ConnectionEnded,
                warn,
                peer,
                %reason,
                "connection closed: protocol error of the host"
            );
        }
    }

    /// Polls every queue for events to report and for controllers that are gone.
    pub(super) fn poll_queues(&mut self, now: u64) {
        for key in self.connections.keys() {
            self.poll_queue(key, now);
        }
    }

    /// Sends what a queue has to report, and closes the queue if its controller is gone.
    pub(super) fn poll_queue(&mut self, key: SlotKey, now: u64) {
        while let Some(connection) = self.connections.get_mut(key).filter(|c| c.is_live()) {
            if let Some(reason) = connection.queue.is_dead() {
                let reactor = self.index;
                limited!(
                    LogCategory::Controller,
                    info,
                    reactor,
                    %reason,
                    "queue ends with its controller"
                );
                if connection.dirty {
                    // For example the response to a Disconnect that ended the queue.
                    self.flush_all(now);
                }
                self.begin_close(key, CloseReason::ControllerGone, now);
                return;
            }
            if let Some((sqe, disposition)) = connection.queue.poll_connect(now) {
                self.connect_decided(key, &sqe, disposition, now);
            } else if let Some(barrier) = connection.queue.poll_barrier() {
                return self.send_barrier(barrier);
            } else if let Some(devices) = connection.queue.poll_shutdown() {
                self.start_flush(key, &devices, AfterFlush::ShutDown, now);
            } else if let Some(response) = connection.queue.poll_disconnect() {
                self.respond(key, response);
            } else if let Some(response) = connection.queue.poll_event() {
                self.respond(key, response);
            } else {
                return;
            }
        }
    }

    /// Starts to move one I/O connection to another reactor. The connection drains first.
    pub(super) fn start_moving(&mut self, to: usize, now: u64) {
        let found = self
            .connections
            .iter()
            .find(|(_, connection)| {
                connection.phase == Phase::Serving && connection.is_io() && !connection.has_source
            })
            .map(|(key, _)| key);
        let Some(key) = found else { return };
        if let Some(connection) = self.connections.get_mut(key) {
            connection.phase = Phase::Migrating { to };
            connection.fabric.set_paused(true);
            self.migrating.push(key);
        }
        self.move_migrating(now);
    }

    /// Moves the migrating connections that have nothing in flight here any more.
    pub(super) fn move_migrating(&mut self, now: u64) {
        for key in std::mem::take(&mut self.migrating) {
            if let Some(still_here) = self.move_if_idle(key, now) {
                self.migrating.push(still_here);
            }
        }
    }

    /// Moves one migrating connection. Returns its key if it must stay for now.
    fn move_if_idle(&mut self, key: SlotKey, now: u64) -> Option<SlotKey> {
        let connection = self.connections.get_mut(key)?;
        let Phase::Migrating { to } = connection.phase else { return None };
        if connection.in_flight > 0 || connection.dirty {
            return Some(key);
        }
        self.keep_flows(key);
        let connection = self.connections.present_mut(key)?;
        let waiting = connection.end_flows(&mut self.pacer);
        debug_assert!(waiting.is_empty(), "commands wait on a connection without any in flight");
        let Connection { fabric, queue, own, has_source, .. } = self.connections.remove(key)?;
        self.sockets -= usize::from(!has_source);
        if let Some(fd) = fabric.fd() {
            self.poller.remove(fd);
        }
        match fabric.detach() {
            Ok(parked) => {
                tracing::debug!(from = self.index, to, "connection moved");
                for (load, change) in [(&self.loads[to], 1), (self.load(), usize::MAX)] {
                    load.io_queues.fetch_add(change, Ordering::Relaxed);
                    load.connections.fetch_add(change, Ordering::Relaxed);
                }
                self.peers[to].send(Message::Attach { parked, queue });
                None
            }
            Err(fabric) => Some(self.take_back(fabric, queue, own, to, now)),
        }
    }

    /// Keeps a connection that still had operations in flight. The next turn tries again.
    fn take_back(
        &mut self,
        fabric: Box<dyn nvmeof_transport::HostQueue>,
        queue: Box<Queue>,
        own: BufferReservation,
        to: usize,
        now: u64,
    ) -> SlotKey {
        let listener = self.stats.port(queue.port());
        let network_port = self.network_port_of(&queue);
        let mut connection = Connection::new(fabric, queue, listener, network_port, own, now);
        connection.phase = Phase::Migrating { to };
        let key = self.connections.insert(connection);
        self.sockets += 1;
        self.claim(key);
        self.watch(key, now);
        self.list(key);
        self.mark_dirty(key);
        key
    }

    /// Routes Aborts of the connection's commands to this reactor.
    fn claim(&self, key: SlotKey) {
        if let Some(connection) = self.connections.get(key) {
            connection.queue.set_owner(self.owner(key));
        }
    }
}
