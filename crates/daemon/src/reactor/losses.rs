//! A flush that failed is reported to everybody whose data it may have been.
//!
//! A device that fails a flush may have lost writes that it completed before, and does not say which. The host whose
//! flush it was hears of it; every other connection that uses the device hears of it by its own next flush, which fails
//! without being tried. Each of them hears once: from then on a flush vouches for what was written since.

use nvmeof_core::block::BlockError;
use nvmeof_nvmf::{DeviceId, IoCommand, IoKind};

use super::Reactor;
use super::slots::Key;

impl Reactor {
    /// Whether this command is a flush, and its device has failed one that this connection has not
    /// heard of. It has then. The flush behind a Deallocate does not count: it vouches for that
    /// command alone.
    pub(super) fn hears_of_loss(
        &mut self,
        connection: Key,
        lane: Key,
        command: &IoCommand,
    ) -> bool {
        if command.kind != IoKind::Flush {
            return false;
        }
        let Some(lost_at) = self.devices.lost_at(command.device) else { return false };
        let lane = self.connections.get_mut(connection).and_then(|one| one.lanes.get_mut(lane));
        lane.is_some_and(|lane| {
            let is_new = lost_at > lane.heard_of_loss;
            lane.heard_of_loss = lane.heard_of_loss.max(lost_at);
            is_new
        })
    }

    /// A device has failed a flush of this connection.
    #[cold]
    pub(super) fn flush_failed(
        &mut self,
        connection: Key,
        lane: Key,
        device: DeviceId,
        error: &BlockError,
        now: u64,
    ) {
        match error {
            // It was not tried, or there is nothing any more that could be flushed.
            BlockError::Cancelled
            | BlockError::Gone
            | BlockError::NoMemory
            | BlockError::Unsupported => return,
            _ => self.devices.set_lost_at(device, now),
        }
        if let Some(owner) = self.connections.get_mut(connection)
            && let Some(lane) = owner.lanes.get_mut(lane)
        {
            lane.heard_of_loss = now;
        }
    }
}
