//! No pacing: every command starts at once, and is counted.

use super::{Admission, Grant, Policy};
use crate::permit::Outcome;
use crate::{Cost, Nanos};

/// Grants everything. What is in flight is bounded by the hosts' queue depths and by the buffer
/// pool alone.
#[derive(Debug, Default, Clone, Copy)]
pub struct None;

impl Policy for None {
    fn admit(&mut self, _cost: Cost, _now: Nanos) -> Admission {
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, _cost: Cost, _grant: Grant, _outcome: Outcome, _now: Nanos) {}
}
