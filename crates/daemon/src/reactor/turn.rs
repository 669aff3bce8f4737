//! One turn of the reactor loop. Every turn runs admission.

use nvmeof_transport::{Event, Progress};

use super::Reactor;
use super::gen_slab::SlotKey;
use super::idle::Idle;
use super::kind;
use super::stats::SamplePoint;

/// Nanoseconds between two ticks of the timers.
pub(super) const TICK: u64 = 100_000_000;
/// Turns between two polls of epoll while completion sources report every connection.
const TURNS_BETWEEN_POLLS: u32 = 16;
/// Nanoseconds until the next try when the pool is empty and another core may return buffers.
const BUFFER_RETRY_NS: u64 = 200_000;
/// Bytes that all copying connections together may send in one turn.
///
/// A response that was begun is sent whole. During a socket copy the reactor receives no commands,
/// polls no device and returns no permit. Sending everything that is ready would therefore return
/// all permits together, and the commands they admit would complete and be sent as one batch. The
/// devices would idle during the send, and the network would idle while the devices work. See
/// `transport::tcp` for the measurements.
const SEND_BYTES_PER_TURN: usize = 1 << 20;
/// Minimum sleep in nanoseconds.
///
/// The reactor spins until an earlier deadline, because sleeping and waking up take longer.
const SHORTEST_SLEEP: u64 = 15_000;

/// Time at which the reactor may next poll every queue for changes.
///
/// This poll takes longer the more connections there are. A host can cause polls all the time, by
/// resetting its controller or with event requests. After each poll the reactor therefore waits ten
/// times as long as the poll took.
#[derive(Debug, Default)]
pub(super) struct QueuePollBackoff {
    due: u64,
}

impl QueuePollBackoff {
    fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    fn on_polled(&mut self, begin: u64, end: u64) {
        self.due = end.saturating_add(end.saturating_sub(begin).saturating_mul(10));
    }
}

impl Reactor {
    /// Runs one turn. Returns false if it found no work.
    pub(super) fn turn(&mut self, now: u64) -> bool {
        let mut busy = false;
        self.stats.counters.turns += 1;
        let after = now.saturating_sub(std::mem::replace(&mut self.turned_at, now));
        self.pacer.on_turn(now, after);
        if self.pacer.needs_network_times() != self.is_tx_tracked {
            self.track_tx();
        }
        self.note_standstill(now);
        if self.mailbox.is_signalled() {
            self.read_mailbox(now);
            busy = true;
        }
        if self.target.epoch() != self.seen_epoch && self.queue_poll_backoff.is_due(now) {
            self.seen_epoch = self.target.epoch();
            let begin = (self.clock)();
            self.poll_queues(now);
            self.queue_poll_backoff.on_polled(begin, (self.clock)());
            busy = true;
        }
        self.find_ready();
        busy |= self.poll_sources(now);
        busy |= self.receive_all(now);
        if !self.overdue.is_empty() {
            self.judge_overdue(now);
            busy = true;
        }
        self.moment(SamplePoint::Received);
        self.exchange_holdings();
        busy |= self.admit(now);
        self.watch_admission(now);
        self.moment(SamplePoint::Admitted);
        busy |= self.poll_devices(now);
        let (flushed, now) = self.flush_all(now);
        busy |= flushed;
        if !self.tx_pending.is_empty() {
            busy |= self.poll_tx_done_all(now);
        }
        if self.pacer.waiting() > 0 {
            // The flush returned permits: the next command starts in this turn, not in the next.
            busy |= self.admit(now);
        }
        if !self.migrating.is_empty() {
            self.move_migrating(now);
        }
        if !self.barriers.is_empty() {
            self.complete_barriers();
        }
        self.pool.balance();
        if now >= self.next_tick {
            self.tick(now);
        }
        if self.stats.is_asked() {
            self.moment(SamplePoint::Sent);
            self.report(now);
        }
        self.stats.counters.busy_turns += u64::from(busy);
        busy
    }

    /// Tells the fabrics whether the pacer uses the time at which data has left the machine.
    #[cold]
    fn track_tx(&mut self) {
        self.is_tx_tracked = self.pacer.needs_network_times();
        for (_, connection) in self.connections.iter_mut() {
            connection.fabric.set_tx_tracked(self.is_tx_tracked);
        }
    }

    /// Waits for an event.
    ///
    /// The reactor has read every connection until nothing was left, so epoll reports the next
    /// edge.
    pub(super) fn sleep(&mut self, now: u64) {
        if !self.receive.is_empty() || !self.dirty.is_empty() || !self.migrating.is_empty() {
            return;
        }
        if self.admin_work.is_due() {
            return;
        }
        let has_changed = self.target.epoch() != self.seen_epoch;
        let queue_poll = has_changed.then_some(self.queue_poll_backoff.due);
        if let Some(at) = self.next_due().into_iter().chain(queue_poll).min() {
            if at < now + SHORTEST_SLEEP {
                return;
            }
            self.poller.wake_at(at);
        }
        if !self.arm_sources(now) {
            return;
        }
        self.pool.trim();
        // Work that can be a millisecond late.
        let mut due = None;
        let has_timers = self.connections.len() > 0
            || self.devices.any_retiring()
            || self.has_unused_sources
            || self.draining.is_some();
        if has_timers {
            due = Some(self.next_tick);
        }
        if !self.buffer_wait.is_empty() {
            due = Some(due.unwrap_or(u64::MAX).min(now + BUFFER_RETRY_NS));
        }
        due = due.into_iter().chain(self.patience_ends()).min();
        self.expected_at = due.unwrap_or(u64::MAX);
        self.wait(Idle::timeout(now, due));
        self.turned_at = u64::MAX;
    }

    /// Returns the time, to the microsecond, at which work is due even without an event.
    pub(super) fn next_due(&self) -> Option<u64> {
        let tx_polls = self.tx_pending.iter().filter_map(|key| self.next_tx_poll_of(*key));
        [self.pacer.next_wakeup(), self.devices.next_due()]
            .into_iter()
            .flatten()
            .chain(tx_polls)
            .min()
    }

    /// Returns the time of the next poll for this connection's data that has left its socket.
    fn next_tx_poll_of(&self, key: SlotKey) -> Option<u64> {
        self.connections.get(key)?.fabric.next_tx_poll()
    }

    /// Polls each connection whose poll is due for data that has left its socket.
    fn poll_tx_done_all(&mut self, now: u64) -> bool {
        let mut busy = false;
        let mut events = std::mem::take(&mut self.events);
        let mut index = 0;
        while let Some(&key) = self.tx_pending.get(index) {
            if self.next_tx_poll_of(key).is_some_and(|due| due <= now)
                && let Some(connection) = self.connections.get_mut(key)
            {
                connection.fabric.poll_tx_done(now, &mut events);
                busy |= !events.is_empty();
                self.handle_events(key, &mut events, now);
            }
            if self.next_tx_poll_of(key).is_some() {
                index += 1;
                continue;
            }
            self.tx_pending.swap_remove(index);
            if let Some(connection) = self.connections.get_mut(key) {
                connection.tx_pending = false;
            }
        }
        self.events = events;
        busy
    }

    /// Takes the ready events from epoll without waiting.
    ///
    /// Every turn asks epoll while there is a socket: an idle connection then costs nothing, and no
    /// connection waits for the reading of others. A reactor of which sources report every
    /// connection asks every [`TURNS_BETWEEN_POLLS`] turns.
    fn find_ready(&mut self) {
        self.unpolled_turns += 1;
        if self.sockets > 0 || self.unpolled_turns >= TURNS_BETWEEN_POLLS {
            self.wait(Some(std::time::Duration::ZERO));
        }
    }

    fn wait(&mut self, timeout: Option<std::time::Duration>) {
        self.unpolled_turns = 0;
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(timeout, &mut ready);
        for event in ready.drain(..) {
            let (what, key) = SlotKey::from_token(event.token);
            if what != kind::CONNECTION {
                match what {
                    kind::MAILBOX => self.mailbox.clear(),
                    kind::DEVICE => self.devices.signalled(event.token),
                    _ => {} // Every turn polls the sources.
                }
                continue;
            }
            if event.hung_up
                && let Some(connection) = self.connections.get_mut(key)
            {
                connection.fabric.hung_up();
            }
            if event.readable {
                self.list(key);
            }
            if event.writable {
                self.mark_dirty(key);
            }
        }
        self.ready = ready;
    }

    /// Puts a connection on the list to receive from.
    #[inline]
    pub(super) fn list(&mut self, key: SlotKey) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.unsettled
        {
            connection.unsettled = true;
            self.receive.push(key);
            self.timers.touch(key, &mut connection.timer);
        }
    }

    /// Puts a connection on the list to flush.
    #[inline]
    pub(super) fn mark_dirty(&mut self, key: SlotKey) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(key);
            self.timers.touch(key, &mut connection.timer);
        }
    }

    /// Receives from every listed connection once. Returns true if there was one.
    fn receive_all(&mut self, now: u64) -> bool {
        let mut listed = std::mem::replace(&mut self.receive, std::mem::take(&mut self.keys));
        let busy = !listed.is_empty();
        for key in listed.drain(..) {
            self.receive_one(key, now);
        }
        self.keys = listed;
        busy
    }

    /// Receives from one connection, and lists it again if there can be more.
    fn receive_one(&mut self, key: SlotKey, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.unsettled = false;
        self.stats.polled(connection.listener);
        let mut events = std::mem::take(&mut self.events);
        let progress = connection.fabric.receive(now, &mut events);
        if connection.info.is_none() && connection.fabric.has_greeted() {
            connection.queue.greeted();
        }
        if progress == Progress::More {
            self.list(key);
        }
        self.handle_events(key, &mut events, now);
        self.events = events;
    }

    /// Sends pending output, within the send limit of a turn, and returns the time after the send.
    ///
    /// The data that was sent has left at that time, not when the turn began.
    pub(super) fn flush_all(&mut self, mut now: u64) -> (bool, u64) {
        let busy = !self.dirty.is_empty();
        let mut events = std::mem::take(&mut self.events);
        let mut room = SEND_BYTES_PER_TURN;
        // The connection that uses up the limit comes last in the next turn.
        let mut last = None;
        let mut dirty = std::mem::replace(&mut self.dirty, std::mem::take(&mut self.keys));
        for key in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.dirty = false;
            let is_left = connection.fabric.flush(&mut room, now, &mut events) == Progress::More;
            if !events.is_empty() {
                now = (self.clock)();
            }
            if !connection.tx_pending && connection.fabric.next_tx_poll().is_some() {
                connection.tx_pending = true;
                self.tx_pending.push(key);
            }
            if is_left && last.is_some() {
                self.mark_dirty(key);
            } else if is_left {
                last = Some(key);
            }
            self.handle_events(key, &mut events, now);
        }
        self.events = events;
        self.keys = dirty;
        if let Some(key) = last {
            self.mark_dirty(key);
        }
        (busy, now)
    }

    fn handle_events(&mut self, key: SlotKey, events: &mut Vec<Event>, now: u64) {
        for event in events.drain(..) {
            match event {
                Event::Command { sqe, data } => self.command(key, &sqe, data, now),
                Event::CommandFailed { sqe, error } => self.command_failed(key, &sqe, error, now),
                Event::HostDataArrived { token, buf, result } => {
                    self.pulled(token, buf, result, now);
                }
                Event::Sent { token, data } => {
                    drop(data);
                    self.sent(token, now);
                }
                Event::RegisterFd => self.watch(key, now),
                Event::Closed { reason } => self.closed(key, &reason, now),
            }
        }
    }

    fn poll_devices(&mut self, now: u64) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        self.devices.poll(&mut completed);
        let busy = !completed.is_empty();
        for done in completed.drain(..) {
            self.device_done(done, now);
        }
        self.completed = completed;
        busy
    }

    /// Runs the timers: keep-alive, stalled handshakes, device and source removal, drain.
    fn tick(&mut self, now: u64) {
        self.next_tick = now + TICK;
        self.watch_memory(now);
        self.check_timers(now);
        self.retire_devices();
        self.drop_sources();
        self.finish_drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_polls_take_less_than_a_tenth_of_the_time() {
        let mut backoff = QueuePollBackoff::default();
        let (mut polling, end) = (0, 1_000_000);
        let mut now = 0;
        while now < end {
            if backoff.is_due(now) {
                let took = 700 + now % 300;
                backoff.on_polled(now, now + took);
                polling += took;
                now += took;
            }
            now += 10;
        }
        assert!(polling * 10 < end, "{polling} of {end}");
        assert!(polling * 15 > end, "{polling} of {end}");
    }
}
