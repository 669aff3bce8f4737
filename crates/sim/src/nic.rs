//! The ports of the network, each sending and receiving at once, behind one NIC that fetches what
//! it sends.
//!
//! A port serves the queues that have data to send in turn, one command at a time. Its next
//! command's data is fetched out of the cache or memory by the one engine all ports share:
//!
//! ```text
//! fetch = bytes / fetch_hit + missed x (bytes / fetch_miss - bytes / fetch_hit)
//! sent  = max(start + bytes / port, engine free + fetch)
//! ```
//!
//! `missed` is the share of the command's data that was no longer in the cache. While drives write
//! to memory a miss costs more (`fetch_miss`) than where nothing does (`fetch_quiet`): what missed
//! was written out to memory on the way, and the two compete.

use std::collections::VecDeque;

use crate::commands::Commands;
use crate::numbers::nanos;
use crate::platform::Platform;
use crate::scenario::Nanos;

/// The NIC.
#[derive(Debug)]
pub(crate) struct Nic {
    ports: Vec<Port>,
    port_gbps: f64,
    hit: f64,
    miss: f64,
    quiet: f64,
    engine_free: Nanos,
    /// Share of its rate that the network runs at.
    rate: f64,
}

#[derive(Debug, Default)]
struct Port {
    /// Queues with something to send, by turn.
    turns: VecDeque<u32>,
    sending: bool,
    inbound_free: Nanos,
}

/// What a queue has to send: a list through its commands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outbox {
    first: Option<u32>,
    last: Option<u32>,
}

impl Nic {
    pub(crate) fn new(platform: &Platform, queues: usize) -> Self {
        let port = || Port { turns: VecDeque::with_capacity(queues), ..Port::default() };
        Self {
            ports: (0..platform.ports).map(|_| port()).collect(),
            port_gbps: platform.port_gbps,
            hit: 8.0 / platform.fetch_hit_gbps,
            miss: 8.0 / platform.fetch_miss_gbps,
            quiet: 8.0 / platform.fetch_quiet_gbps,
            engine_free: 0,
            rate: 1.0,
        }
    }

    /// A command's data waits to be sent.
    pub(crate) fn push(
        &mut self,
        port: usize,
        queue: u32,
        outbox: &mut Outbox,
        command: u32,
        commands: &mut Commands,
    ) {
        commands.of_mut(command).behind = None;
        match outbox.last.replace(command) {
            Some(last) => commands.of_mut(last).behind = Some(command),
            None => {
                outbox.first = Some(command);
                self.ports[port].turns.push_back(queue);
            }
        }
    }

    /// The queue whose turn it is on a port that is free to send; the port is taken.
    pub(crate) fn turn(&mut self, port: usize) -> Option<u32> {
        let port = &mut self.ports[port];
        if port.sending || self.rate <= 0.0 {
            return None;
        }
        let queue = port.turns.pop_front()?;
        port.sending = true;
        Some(queue)
    }

    /// The command to send of the queue whose turn it is; the queue goes to the back.
    pub(crate) fn pop(
        &mut self,
        port: usize,
        queue: u32,
        outbox: &mut Outbox,
        commands: &Commands,
    ) -> Option<u32> {
        let command = outbox.first?;
        outbox.first = commands.of(command).behind;
        if outbox.first.is_some() {
            self.ports[port].turns.push_back(queue);
        } else {
            outbox.last = None;
        }
        Some(command)
    }

    /// When data of which the share `missed` has to come from memory is sent, if it starts now.
    pub(crate) fn send(&mut self, bytes: u32, missed: f64, quiet: bool, now: Nanos) -> Nanos {
        let memory = if quiet { self.quiet } else { self.miss };
        let fetch = nanos(f64::from(bytes) * (self.hit + missed * (memory - self.hit)));
        self.engine_free = self.engine_free.max(now) + fetch;
        (now + self.on_link(bytes)).max(self.engine_free)
    }

    /// A drive takes data of a write out of the cache or memory: when it has it.
    pub(crate) fn drive_fetch(&mut self, bytes: u32, missed: f64, now: Nanos) -> Nanos {
        let fetch = nanos(f64::from(bytes) * missed * (self.miss - self.hit));
        if fetch == 0 {
            return now;
        }
        self.engine_free = self.engine_free.max(now) + fetch;
        self.engine_free
    }

    /// When data that the host sends now is in memory.
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
        nanos(f64::from(bytes) * 8.0 / (self.port_gbps * self.rate.max(1e-3)))
    }
}
