//! The state of a fabric, behind its one lock, and the agenda of future events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;

use nvmeof_random::SplitMix64;
use nvmeof_verbs::WcStatus;

use crate::completions::{CqInner, SrqInner};
use crate::connection::{Connection, ListenerState, Message};
use crate::counters::Counters;
use crate::device::{DeviceState, RegionState};
use crate::fabric::Costs;
use crate::faults::FaultTable;
use crate::queue_pair::QueuePair;

/// State of a whole fabric.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: u64,
    pub(crate) costs: Costs,
    pub(crate) random: SplitMix64,
    pub(crate) faults: FaultTable,
    pub(crate) counters: Counters,
    pub(crate) devices: BTreeMap<u32, DeviceState>,
    /// Regions by local key.
    pub(crate) regions: BTreeMap<u32, RegionState>,
    /// Local keys by remote key.
    pub(crate) remote_keys: BTreeMap<u32, u32>,
    pub(crate) queue_pairs: BTreeMap<u32, QueuePair>,
    pub(crate) completion_queues: BTreeMap<u32, CqInner>,
    pub(crate) shared_queues: BTreeMap<u32, SrqInner>,
    pub(crate) connections: BTreeMap<u32, Connection>,
    pub(crate) listeners: BTreeMap<SocketAddr, ListenerState>,
    agenda: BinaryHeap<Reverse<Entry>>,
    entries: u64,
    names: u32,
}

/// A future event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A work request reaches the peer.
    Arrive { queue_pair: u32, sequence: u64, epoch: u32 },
    /// The result of a work request reaches the poster.
    Finish { queue_pair: u32, sequence: u64, status: WcStatus },
    /// A SEND that found no receive retries.
    Retry { queue_pair: u32, sequence: u64, epoch: u32 },
    /// A SEND has used up its retries.
    GiveUp { queue_pair: u32, sequence: u64, epoch: u32 },
    /// The device flushes the work requests of a failed queue pair.
    Flush { queue_pair: u32 },
    /// A delayed report that a failed queue pair takes no more shared receives.
    LastWqe { queue_pair: u32 },
    /// A message of the connection manager.
    Message(Box<Message>),
}

/// An event on the agenda, ordered by time; events at the same time are in random order.
#[derive(Debug)]
struct Entry {
    key: (u64, u64, u64),
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: 0,
            costs: Costs::default(),
            random: SplitMix64::new(seed),
            faults: FaultTable::default(),
            counters: Counters::default(),
            devices: BTreeMap::new(),
            regions: BTreeMap::new(),
            remote_keys: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            completion_queues: BTreeMap::new(),
            shared_queues: BTreeMap::new(),
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            entries: 0,
            names: 0x10,
        }
    }

    /// Returns a unique number for a device, a queue or a connection. Numbers are never reused.
    pub(crate) fn name(&mut self) -> u32 {
        self.names += 1;
        self.names
    }

    /// Returns a unique key. Keys are never reused.
    pub(crate) fn key(&mut self) -> u32 {
        let [low, ..] = self.random.next_u64().to_le_bytes();
        self.name() << 8 | u32::from(low)
    }

    /// Schedules `event` at `time`. The caller chooses different times for events that have to stay
    /// in order.
    pub(crate) fn at(&mut self, time: u64, event: Event) {
        self.entries += 1;
        let key = (time.max(self.now), self.random.next_u64(), self.entries);
        self.agenda.push(Reverse(Entry { key, event }));
    }

    /// Time of the next event.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.agenda.peek().map(|Reverse(entry)| entry.key.0)
    }

    /// Processes all events up to `time`.
    pub(crate) fn run_until(&mut self, time: u64) {
        while self.next_time().is_some_and(|next| next <= time) {
            self.step();
        }
        self.now = self.now.max(time);
    }

    /// Processes the next event. Returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(Reverse(entry)) = self.agenda.pop() else { return false };
        self.now = self.now.max(entry.key.0);
        match entry.event {
            Event::Arrive { queue_pair, sequence, epoch } => {
                self.arrive(queue_pair, sequence, epoch);
            }
            Event::Finish { queue_pair, sequence, status } => {
                self.finish(queue_pair, sequence, status);
            }
            Event::Retry { queue_pair, sequence, epoch } => {
                self.retry(queue_pair, sequence, epoch);
            }
            Event::GiveUp { queue_pair, sequence, epoch } => {
                self.give_up(queue_pair, sequence, epoch);
            }
            Event::Flush { queue_pair } => self.flush(queue_pair),
            Event::LastWqe { queue_pair } => self.say_last_receive(queue_pair),
            Event::Message(message) => self.deliver(&message),
        }
        true
    }
}
