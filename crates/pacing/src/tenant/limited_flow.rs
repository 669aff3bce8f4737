//! A flow with limits: its queues, and what each has passed.

use super::limiter::LimitRequest;
use crate::flow_queues::List;

/// Limiters of a flow: rate of its host, rate of its namespace, bytes in flight of its host.
pub(super) const LIMITERS: usize = 3;
pub(super) const IN_FLIGHT: usize = 2;
/// No limiter.
pub(super) const NONE: u32 = u32::MAX;

/// Queues of a flow; each passes the limiters independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CommandClass {
    /// Commands without a buffer.
    NoData,
    /// Commands that are small relative to the others.
    Small,
    /// All other commands: the flow queue.
    Bulk,
}

pub(super) const CLASSES: usize = 3;
pub(super) const ALL: [CommandClass; CLASSES] =
    [CommandClass::NoData, CommandClass::Small, CommandClass::Bulk];

/// State of a queue at the limiters.
///
/// ```text
///   Idle ── a command comes ──▶ Pending ── deferred ──▶ Blocked(limiter) ── asks again ──▶ ...
///     ▲                            │                         │
///     └───── queue empty ──────────┴─────── granted ◀────────┘
///                                               │
///            Admitted (not NoData, which keeps asking) ── dispatched ──▶ Pending
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LimiterState {
    /// The queue is empty.
    #[default]
    Idle,
    /// The queue is in `TenantLimiters::pending`.
    Pending,
    /// The queue waits for this limiter of its flow.
    Blocked(u8),
    /// Its first command is granted, and is in the scheduler or in the list of small commands.
    Admitted,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClassQueue {
    pub(super) state: LimiterState,
    /// Grants of the limiters before the one that it waits for. The queue keeps them. Otherwise a
    /// flow with two contended limits would return one grant whenever it waits for the other, and
    /// would never hold both.
    pub(super) partial: Option<PartialGrant>,
    /// The queue is suspended only until it asks again: see
    /// [`Pause::Suspended`](crate::scheduler::Pause::Suspended).
    pub(super) suspended: bool,
    /// By limiter: start tag up to which the queue has been served.
    pub(super) tags: [u128; LIMITERS],
}

/// Grants for the first command of a queue, valid while that command makes this request.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialGrant {
    pub(super) limit_request: LimitRequest,
    /// By limiter.
    pub(super) granted: [bool; LIMITERS],
}

/// A flow with limits.
#[derive(Debug)]
pub(super) struct LimitedFlow {
    pub(super) limiters: [u32; LIMITERS],
    pub(super) no_data: List,
    pub(super) small: List,
    pub(super) queues: [ClassQueue; CLASSES],
}

impl LimitedFlow {
    pub(super) fn list(&mut self, class: CommandClass) -> &mut List {
        match class {
            CommandClass::NoData => &mut self.no_data,
            CommandClass::Small | CommandClass::Bulk => &mut self.small,
        }
    }
}

/// Returns the number of a queue: slot and class.
pub(super) fn number(slot: u32, class: CommandClass) -> u32 {
    // A slot has 24 bits.
    slot << 2 | class as u32
}

/// Returns slot and class of a queue.
pub(super) fn split(number: u32) -> (u32, CommandClass) {
    let class = match number & 3 {
        0 => CommandClass::NoData,
        1 => CommandClass::Small,
        _ => CommandClass::Bulk,
    };
    (number >> 2, class)
}
