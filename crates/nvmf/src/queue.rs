//! One connection of a host: one NVMe queue.

use crate::controller::ControllerKey;
use nvmeof_wire::Nqn;

/// What a connected queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// An admin queue.
    pub admin: bool,
    /// Queue ID; 0 for an admin queue.
    pub qid: u16,
    /// Entries of the submission queue.
    pub depth: u16,
    /// Its controller, as [`Disposition::Abort`](crate::Disposition::Abort) names it.
    pub controller: ControllerKey,
    /// Its controller's ID.
    pub cntlid: u16,
    /// Its subsystem.
    pub subnqn: Nqn,
    /// Its host.
    pub hostnqn: Nqn,
    /// It belongs to a discovery controller.
    pub discovery: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {}
