//! No pacing: every command starts at once, and is counted.

use super::{Admission, Ask, Done, Grant, Policy};
use crate::Nanos;

/// Grants everything. What is in flight is bounded by the hosts' queue depths and by the buffer
/// pool alone.
#[derive(Debug, Default, Clone, Copy)]
pub struct None;

impl Policy for None {
    fn admit(&mut self, _ask: &Ask, _now: Nanos) -> Admission {
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, _done: &Done, _grant: Grant, _now: Nanos) {}
}
