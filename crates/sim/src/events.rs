//! What happens next: a heap of future events, first by time and then by the order they were set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scenario::Nanos;

/// Something that happens at a time. Numbers are positions: of commands, cores, ports, streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A stream of a host begins.
    StreamStarts(u32),
    /// A stream that begins uses one more of its depth.
    StreamGrows(u32),
    /// A capsule reaches its core.
    Arrives(u32),
    /// A core's turn is over, and what it did takes effect.
    TurnEnds(u32),
    /// A core looks again because its pacer said when.
    Alarm(u32),
    /// A drive is done with a command.
    DriveDone(u32),
    /// The delay of a delay device is over.
    DelayDone(u32),
    /// The last data of a write came in from the host.
    Pulled(u32),
    /// A port finished sending a command's data.
    PortDone(u32, u32),
    /// The host acknowledged what was sent.
    Acknowledged(u32),
    /// The response reaches the host.
    HostDone(u32),
    /// A disturbance begins or ends.
    Disturbed,
    /// A sample of the series is due.
    Sample,
}

/// The future.
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
