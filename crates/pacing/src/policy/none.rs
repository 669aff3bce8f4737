//! No pacing: every command starts immediately, and is counted.

use super::{Admission, Ask, Done, Grant, Policy};
use crate::Nanos;

/// Grants every command. Only the queue depths of the hosts and the buffer pool bound the bytes in
/// flight.
#[derive(Debug, Default, Clone, Copy)]
pub struct None;

impl Policy for None {
    fn admit(&mut self, _ask: &Ask, _now: Nanos) -> Admission {
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, _done: &Done, _grant: Grant, _now: Nanos) {}
}
