//! Current values of a controller's features (Base 5.27.1) that are not kept elsewhere.
//!
//! No value is saveable, so a reset restores the defaults. The keep-alive timeout
//! ([`Controller::kato_ms`](super::Controller::kato_ms)) and the Host Identifier survive a reset.

use nvmeof_wire::features::HostBehavior;

use super::HostClock;
use crate::admin::features::{ErrorRecoveries, WARNING_TEMPERATURE};
use crate::limits::Limits;

/// Values as Get Features reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeatureStore {
    /// 01h Arbitration.
    pub(crate) arbitration: u32,
    /// 02h Power Management.
    pub(crate) power_management: u32,
    /// 04h Temperature Threshold, over, composite temperature in kelvin.
    pub(crate) temperature_over: u16,
    /// 04h Temperature Threshold, under, composite temperature in kelvin.
    pub(crate) temperature_under: u16,
    /// 05h Error Recovery, of each namespace.
    pub(crate) error_recovery: ErrorRecoveries,
    /// 06h Volatile Write Cache enabled.
    pub(crate) write_cache: bool,
    /// 07h Number of Queues: the number of I/O queues that the host may connect, at least 1.
    pub(crate) io_queues: u16,
    /// 0Ah Write Atomicity Normal.
    pub(crate) write_atomicity: u32,
    /// 0Bh Asynchronous Event Configuration.
    pub(crate) async_event_config: u32,
    /// 0Eh Timestamp.
    pub(crate) clock: HostClock,
    /// 16h Host Behavior Support.
    pub(crate) host_behavior: HostBehavior,
}

impl FeatureStore {
    /// The defaults.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            // Arbitration Burst: no limit.
            arbitration: 7,
            power_management: 0,
            temperature_over: WARNING_TEMPERATURE,
            temperature_under: 0,
            error_recovery: ErrorRecoveries::default(),
            write_cache: true,
            io_queues: limits.io_queues.max(1),
            write_atomicity: 0,
            async_event_config: 0,
            clock: HostClock::default(),
            host_behavior: HostBehavior::default(),
        }
    }
}
