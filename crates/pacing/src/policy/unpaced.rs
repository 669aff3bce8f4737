//! No pacing: every command starts immediately, and is counted.

use super::{Admission, AdmissionPolicy, AdmissionRequest, CompletedCommand, Grant};
use crate::Nanos;

/// Grants every command. Only the queue depths of the hosts and the buffer pool bound the bytes in
/// flight.
#[derive(Debug, Default, Clone, Copy)]
pub struct Unpaced;

impl AdmissionPolicy for Unpaced {
    fn admit(&mut self, _ask: &AdmissionRequest, _now: Nanos) -> Admission {
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, _done: &CompletedCommand, _grant: Grant, _now: Nanos) {}
}
