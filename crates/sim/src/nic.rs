//! The ports of the network, each sending and receiving at once, behind one NIC that fetches what
//! it sends.
//!
//! A port serves the cores that have data to send in turn, and the queues of each core in turn, one
//! command a queue (an adapter schedules by doorbell page, and a core has one). A core's turn is over
//! after any command with odds of one in `port_run`, and when the core has no more. So what a core has in
//! flight comes and goes in bursts, its stack of buffers is dug deeper, and colder buffers are used than if
//! the cores took strict turns of one command each.
//!
//! Hosts ask all of their queues for the same in the long run, so where a core has more of a host's
//! queues than others have, these get less each, and what the host keeps outstanding piles up in them;
//! the others' data is sent soon after it landed. The next command's data is fetched out of the cache or
//! memory by the one engine all ports share:
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
use crate::rng::Rng;
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
    /// Odds that a core's turn is over after a command.
    turn_over: f64,
    rng: Rng,
}

#[derive(Debug, Default)]
struct Port {
    /// Cores with something to send, by turn.
    turns: VecDeque<usize>,
    /// The core that sends goes on with its turn, if it has more.
    goes_on: bool,
    /// By core: its queues with something to send, by turn.
    queues: Vec<VecDeque<u32>>,
    sending: bool,
    inbound_free: Nanos,
}

/// Who sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) port: usize,
    pub(crate) core: usize,
    pub(crate) queue: u32,
}

/// What a queue has to send: a list through its commands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outbox {
    first: Option<u32>,
    last: Option<u32>,
}

impl Port {
    /// A queue that had nothing to send has now.
    fn join(&mut self, core: usize, queue: u32) {
        if self.queues[core].is_empty() {
            self.turns.push_back(core);
        }
        self.queues[core].push_back(queue);
    }

    /// The queue that sends has more.
    fn join_again(&mut self, core: usize, queue: u32) {
        if self.queues[core].is_empty() {
            self.line_up(core);
        }
        self.queues[core].push_back(queue);
    }

    /// The core that sends has more.
    fn line_up(&mut self, core: usize) {
        if self.goes_on {
            self.turns.push_front(core);
        } else {
            self.turns.push_back(core);
        }
    }
}

impl Nic {
    pub(crate) fn new(platform: &Platform, cores: usize, rng: Rng) -> Self {
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

    /// A command's data waits to be sent; `from` says on which port and by which core and queue.
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

    /// The queue whose turn it is on a port that is free to send; the port is taken.
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

    /// The command to send of the queue whose turn it is; the queue goes to the back.
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
