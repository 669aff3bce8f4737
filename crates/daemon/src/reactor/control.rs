//! Messages from the control plane and from other reactors.

use std::time::{Duration, Instant};

use nvmeof_nvmf::DeviceId;
use nvmeof_transport::CloseReason;

use super::Reactor;
use super::io::Pending;
use super::kind;
use super::mailbox::{Counts, Message};
use crate::clock;

/// Maximum number of turns to close every connection.
///
/// A connection returns its resources within a turn.
const TURNS_TO_CLOSE: usize = 16;
/// Maximum wait for queue pairs that other threads destroy.
///
/// The reactor checks every [`PAUSE_TO_CLOSE`].
const TIME_TO_CLOSE: Duration = Duration::from_secs(2);
const PAUSE_TO_CLOSE: Duration = Duration::from_millis(1);

impl Reactor {
    /// Handles the messages in the mailbox.
    pub(super) fn read_mailbox(&mut self, now: u64) {
        self.mailbox.clear_wake();
        while let Some(message) = self.mailbox.try_recv() {
            self.handle_message(message, now);
        }
    }

    fn handle_message(&mut self, message: Message, now: u64) {
        match message {
            Message::Attach { parked, queue } => self.attach(parked, queue, now),
            Message::AddDevice { id, device, reply } => {
                let DeviceId(number) = id;
                let token = u64::from(kind::DEVICE) << 56 | u64::from(number);
                let result = self.devices.add(id, device, &self.pool, &self.poller, token);
                // A requester that has gone needs no reply, here and below.
                let _ = reply.send(result);
            }
            Message::RemoveDevice { id, reply } => {
                if !self.devices.remove(id, reply) {
                    // The device was closed when it went missing. Commands for its namespace have
                    // failed since.
                    self.device_closed(id);
                }
                self.retire_devices();
            }
            Message::Abort(order) => self.abort_for(&order, now),
            Message::AbortDone { token, aborted } => self.abort_answered(token, aborted),
            Message::MoveOne { to } => self.start_moving(to, now),
            Message::Pacing { parts, reply } => {
                // The new policy admits the waiting commands in this turn.
                let replaced = self.pacer.replace(*parts).map_err(|error| error.to_string());
                let _ = reply.send(replaced);
            }
            Message::QosTable(qos) => {
                // The new limits admit the waiting commands in this turn.
                for key in self.connections.keys() {
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.set_qos(&qos, &mut self.pacer, &self.core);
                    }
                }
                self.qos = qos;
            }
            Message::Report(ask) => self.stats.ask(ask),
            Message::Trace(order) => self.trace.handle_message(order),
            Message::ListConnections(reply) => {
                let _ = reply.send(self.list_connections());
            }
            Message::Disconnect { id, reply } => {
                let _ = reply.send(self.disconnect(id, now));
            }
            Message::NamespaceBarrier { namespaces, reply } => {
                self.namespace_barrier(&namespaces, reply, now);
            }
            Message::ControllerBarrier { controllers, guard } => {
                self.controller_barrier(&controllers, guard);
            }
            Message::Counts(reply) => {
                let _ = reply.send(self.counts());
            }
            Message::Drain(reply) => {
                self.draining = Some(reply);
                for key in self.connections.keys() {
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.fabric.set_paused(true);
                    }
                }
                self.next_tick = now;
                self.finish_drain();
            }
            Message::Stop => self.stopping = true,
        }
    }

    /// Closes the devices that are being removed after their last command has left them.
    pub(super) fn retire_devices(&mut self) {
        let requests = &self.requests;
        let is_wanted = |id| {
            requests.iter().any(|(_, pending)| match pending {
                Pending::Io(io) => io.request.io().device == id && !io.request.is_past_device(),
                Pending::Admin(_) | Pending::Abort(_) | Pending::Flush(_) => false,
            })
        };
        for id in self.devices.retire(&self.poller, is_wanted) {
            self.device_closed(id);
        }
    }

    /// Drops the statistics of a closed device, and the connections' flows to it.
    fn device_closed(&mut self, id: DeviceId) {
        self.stats.forget(id);
        for key in self.connections.keys() {
            let connection = self.connections.get_mut(key);
            if let Some(device_flow) =
                connection.and_then(|connection| connection.device_closed(id))
            {
                self.end_device_flow(key, device_flow);
            }
        }
    }

    /// Replies to a drain once nothing is in flight and every response has been sent.
    ///
    /// No connection closes before. An admin queue that closes takes its I/O queues along, and
    /// these may be on other reactors.
    pub(super) fn finish_drain(&mut self) {
        if self.draining.is_none() {
            return;
        }
        let quiet = self.connections.iter().all(|(_, c)| c.in_flight == 0 && !c.dirty);
        if quiet
            && self.devices.in_flight() == 0
            && let Some(reply) = self.draining.take()
        {
            let _ = reply.send(());
        }
    }

    /// Closes every connection when the reactor ends.
    ///
    /// Dropping a device's queue waits for the operations that are still at the device.
    pub(super) fn close_all(&mut self, now: u64) {
        for key in self.connections.keys() {
            self.begin_close(key, CloseReason::Shutdown, now);
        }
        for _ in 0..TURNS_TO_CLOSE {
            if self.connections.len() == 0 {
                break;
            }
            self.turn(now);
        }
        let begin = Instant::now();
        while self.connections.len() > 0 && begin.elapsed() < TIME_TO_CLOSE {
            std::thread::sleep(PAUSE_TO_CLOSE);
            self.turn(clock::now());
        }
        // No host is left for commands at a device. Their permits return before the device
        // completes.
        for request in self.requests.keys() {
            self.drop_request(request, now);
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.len(),
            io_queues: self.connections.iter().filter(|(_, c)| c.is_io()).count(),
            requests: self.requests.len(),
            buffers: self.pool.leased(),
            permits: self.pacer.outstanding(),
            waiting: self.pacer.waiting(),
        }
    }
}
