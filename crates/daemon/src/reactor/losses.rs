//! Reports a failed flush to every connection whose writes the device can have lost.
//!
//! A device that fails a flush can lose writes that it completed earlier, and does not name them.
//! The host that sent the flush gets the error. Every other connection that uses the device gets an
//! error for its own next flush, which the reactor fails without sending it to the device. Each
//! connection gets the error once: later flushes vouch for what was written since.

use nvmeof_core::block::BlockError;
use nvmeof_nvmf::{DeviceId, IoCommand, IoKind};

use super::Reactor;
use super::gen_slab::SlotKey;

impl Reactor {
    /// Returns true if the command is a flush that has to report an earlier failed one.
    ///
    /// Its device has failed a flush, and the connection has not been notified. This call counts as
    /// the notification. The flush behind a Deallocate does not count: it vouches for that
    /// command alone.
    pub(super) fn must_report_flush_failure(
        &mut self,
        connection: SlotKey,
        device_flow: SlotKey,
        command: &IoCommand,
    ) -> bool {
        if command.kind != IoKind::Flush {
            return false;
        }
        let Some(lost_at) = self.devices.lost_at(command.device) else { return false };
        let device_flow = self
            .connections
            .get_mut(connection)
            .and_then(|one| one.device_flows.get_mut(device_flow));
        device_flow.is_some_and(|device_flow| {
            let is_new = lost_at > device_flow.last_reported_flush_failure;
            device_flow.last_reported_flush_failure =
                device_flow.last_reported_flush_failure.max(lost_at);
            is_new
        })
    }

    /// Records that a device has failed a flush of this connection.
    #[cold]
    pub(super) fn flush_failed(
        &mut self,
        connection: SlotKey,
        device_flow: SlotKey,
        device: DeviceId,
        error: &BlockError,
        now: u64,
    ) {
        match error {
            // The flush was not tried, or no written data is left to flush.
            BlockError::Cancelled
            | BlockError::Gone
            | BlockError::NoMemory
            | BlockError::Unsupported => return,
            _ => self.devices.set_lost_at(device, now),
        }
        if let Some(owner) = self.connections.get_mut(connection)
            && let Some(device_flow) = owner.device_flows.get_mut(device_flow)
        {
            device_flow.last_reported_flush_failure = now;
        }
    }
}
