//! Future events: a heap ordered by time, and then by the order in which they were set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scenario::Nanos;

/// Event at a given time. Numbers are positions: of commands, cores, ports, streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A stream of a host begins.
    StreamStarts(u32),
    /// A stream that begins uses one more of its depth.
    StreamGrows(u32),
    /// A capsule reaches its core.
    Arrives(u32),
    /// The turn of a core ends, and takes effect.
    TurnEnds(u32),
    /// A core asks again at the wake-up time of its pacer.
    Alarm(u32),
    /// A drive completes a command.
    DriveDone(u32),
    /// The delay after the data of a command ends.
    DelayDone(u32),
    /// A device begins to fetch the data of a write.
    FetchStarts(u32),
    /// The last data of a write arrives from the host.
    Pulled(u32),
    /// A port finished sending a command's data.
    PortDone(u32, u32),
    /// The host acknowledges the data sent.
    Acknowledged(u32),
    /// The response reaches the host.
    HostDone(u32),
    /// A disturbance begins or ends.
    Disturbed,
    /// A sample of the series is due.
    Sample,
}

/// Queue of future events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    set: u64,
}

impl Events {
    pub(crate) fn at(&mut self, at: Nanos, event: Event) {
        self.set += 1;
        self.heap.push(Reverse((at, self.set, event)));
    }

    pub(crate) fn next(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
