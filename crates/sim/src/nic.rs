//! Network ports, each sending and receiving concurrently, behind one NIC that fetches the data it
//! sends.
//!
//! A port serves the cores that have data to send in turn, and the queues of each core in turn, one
//! command per queue. (An adapter schedules by doorbell page, and a core has one.) The turn of a
//! core ends after any command with probability 1/`port_run`, and when the core has no more data.
//! The bytes in flight of a core thus vary in bursts, its stack of buffers is used more deeply, and
//! it uses colder buffers. Strict turns of one command per core would avoid that.
//!
//! Hosts use all of their queues equally in the long run. Where a core has more of a host's queues
//! than others have, each of them gets less, and the outstanding commands of the host gather in
//! them. The data of the other queues is sent soon after it is in memory. The data of the next
//! command is fetched from the cache or memory by the one engine that all ports share:
//!
//! ```text
//! fetch = bytes / fetch_hit + missed x (bytes / fetch_miss - bytes / fetch_hit) + state
//! sent  = max(start + bytes / port, engine free + fetch)
//! ```
//!
//! `missed` is the fraction of the command's data that was no longer in the cache. A miss costs
//! more while drives write to memory (`fetch_miss`) than otherwise (`fetch_quiet`). The missed data
//! was evicted to memory in between, and both transfers compete. The NIC keeps the state of
//! [`STATES`] commands. Of `n` in flight, a fraction `1 - STATES / n` makes it fetch another
//! [`STATE_BYTES`] from memory while drives write there. Very deep loads are therefore slower at
//! the same hit rate.

use std::collections::VecDeque;

use nvmeof_random::SplitMix64;

use crate::commands::Commands;
use crate::numbers::whole;
use crate::platform::Platform;
use crate::scenario::Nanos;

/// Commands whose state the NIC keeps: one number for all platforms.
pub(crate) const STATES: f64 = 512.0;
/// Bytes of the state of another command, which the NIC fetches from memory that drives write to:
/// one number for all platforms.
pub(crate) const STATE_BYTES: f64 = 12_288.0;

/// Load of the memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    /// Nothing writes to it.
    Quiet,
    /// Drives write to it, and this number of commands is in flight.
    Busy { commands: u64 },
}

/// Returns the fraction of the commands in flight whose state the NIC has to fetch.
fn states_missed(commands: u64) -> f64 {
    (1.0 - STATES / (commands as f64).max(STATES)).max(0.0)
}

/// The NIC.
#[derive(Debug)]
pub(crate) struct Nic {
    ports: Vec<Port>,
    port_gbps: f64,
    hit: f64,
    miss: f64,
    quiet: f64,
    engine_free: Nanos,
    /// Fraction of its rate at which the network runs.
    rate: f64,
    /// Probability that the turn of a core ends after a command.
    turn_over: f64,
    rng: SplitMix64,
}

#[derive(Debug, Default)]
struct Port {
    /// Cores with data to send, by turn.
    turns: VecDeque<usize>,
    /// The core that sends continues its turn, if it has more data.
    goes_on: bool,
    /// By core: its queues with data to send, by turn.
    queues: Vec<VecDeque<u32>>,
    sending: bool,
    inbound_free: Nanos,
}

/// Sender of the next data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) port: usize,
    pub(crate) core: usize,
    pub(crate) queue: u32,
}

/// Data that a queue has to send: a list through its commands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outbox {
    first: Option<u32>,
    last: Option<u32>,
}

impl Port {
    /// Adds a queue that had no data to send.
    fn join(&mut self, core: usize, queue: u32) {
        if self.queues[core].is_empty() {
            self.turns.push_back(core);
        }
        self.queues[core].push_back(queue);
    }

    /// Adds the queue that sends, which has more data.
    fn join_again(&mut self, core: usize, queue: u32) {
        if self.queues[core].is_empty() {
            self.line_up(core);
        }
        self.queues[core].push_back(queue);
    }

    /// Adds the core that sends, which has more data.
    fn line_up(&mut self, core: usize) {
        if self.goes_on {
            self.turns.push_front(core);
        } else {
            self.turns.push_back(core);
        }
    }
}

impl Nic {
    pub(crate) fn new(platform: &Platform, cores: usize, rng: SplitMix64) -> Self {
        let port = || Port { queues: vec![VecDeque::new(); cores], ..Port::default() };
        Self {
            ports: (0..platform.ports).map(|_| port()).collect(),
            port_gbps: platform.port_gbps,
            hit: 8.0 / platform.fetch_hit_gbps,
            miss: 8.0 / platform.fetch_miss_gbps,
            quiet: 8.0 / platform.fetch_quiet_gbps,
            engine_free: 0,
            rate: 1.0,
            turn_over: 1.0 / platform.port_run,
            rng,
        }
    }

    /// Queues the data of a command for sending on the port, core and queue in `from`.
    pub(crate) fn push(
        &mut self,
        from: Sender,
        outbox: &mut Outbox,
        command: u32,
        commands: &mut Commands,
    ) {
        commands.of_mut(command).behind = None;
        match outbox.last.replace(command) {
            Some(last) => commands.of_mut(last).behind = Some(command),
            None => {
                outbox.first = Some(command);
                self.ports[from.port].join(from.core, from.queue);
            }
        }
    }

    /// Selects the next queue of a port that is free to send, and occupies the port.
    pub(crate) fn turn(&mut self, port: usize) -> Option<Sender> {
        let state = &mut self.ports[port];
        if state.sending || self.rate <= 0.0 {
            return None;
        }
        let core = state.turns.pop_front()?;
        let queue = state.queues[core].pop_front()?;
        state.goes_on = self.rng.unit() >= self.turn_over;
        if !state.queues[core].is_empty() {
            state.line_up(core);
        }
        state.sending = true;
        Some(Sender { port, core, queue })
    }

    /// Removes the next command of the selected queue; the queue moves to the back.
    pub(crate) fn pop(
        &mut self,
        from: Sender,
        outbox: &mut Outbox,
        commands: &Commands,
    ) -> Option<u32> {
        let command = outbox.first?;
        outbox.first = commands.of(command).behind;
        if outbox.first.is_some() {
            self.ports[from.port].join_again(from.core, from.queue);
        } else {
            outbox.last = None;
        }
        Some(command)
    }

    /// Returns the time at which data is sent if it starts now, with a fraction `missed` from
    /// memory.
    pub(crate) fn send(&mut self, bytes: u32, missed: f64, memory: Memory, now: Nanos) -> Nanos {
        let (miss, state) = match memory {
            Memory::Quiet => (self.quiet, 0.0),
            Memory::Busy { commands } => {
                (self.miss, STATE_BYTES * self.miss * states_missed(commands))
            }
        };
        let fetch = whole(f64::from(bytes) * (self.hit + missed * (miss - self.hit)) + state);
        self.engine_free = self.engine_free.max(now) + fetch;
        (now + self.on_link(bytes)).max(self.engine_free)
    }

    /// Returns the time at which a drive has fetched the data of a write from the cache or memory.
    pub(crate) fn drive_fetch(&mut self, bytes: u32, missed: f64, now: Nanos) -> Nanos {
        let fetch = whole(f64::from(bytes) * missed * (self.miss - self.hit));
        if fetch == 0 {
            return now;
        }
        self.engine_free = self.engine_free.max(now) + fetch;
        self.engine_free
    }

    /// Returns the time at which data that the host sends now is in memory.
    pub(crate) fn receive(&mut self, port: usize, bytes: u32, now: Nanos) -> Nanos {
        let time = self.on_link(bytes);
        let free = &mut self.ports[port].inbound_free;
        *free = (*free).max(now) + time;
        *free
    }

    pub(crate) fn sent(&mut self, port: usize) {
        self.ports[port].sending = false;
    }

    pub(crate) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    pub(crate) fn ports(&self) -> usize {
        self.ports.len()
    }

    fn on_link(&self, bytes: u32) -> Nanos {
        whole(f64::from(bytes) * 8.0 / (self.port_gbps * self.rate.max(1e-3)))
    }
}
