//! Implements the device's part of the provider's traits: a device creates every other object.

use std::sync::Arc;

use super::completions::SystemCompletions;
use super::device::SystemDevice;
use super::endpoint::SystemEndpoint;
use super::memory::{SystemRegion, SystemWindow};
use super::receives::SystemShared;
use super::ticket::SystemTicket;
use crate::error::VerbsError;
use crate::provider::{Device, DeviceKind, DeviceLimits, EndpointSpec};
use crate::work::AccessFlags;

impl SystemDevice {
    /// Registers memory that [windows](Self::window) can be bound to; otherwise as
    /// [`Device::register`].
    ///
    /// # Errors
    /// The errors of [`Device::register`].
    ///
    /// # Safety
    /// The requirements of [`Device::register`].
    pub unsafe fn register_bindable(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<SystemRegion, VerbsError> {
        // SAFETY: the caller's promise is the same.
        unsafe { SystemRegion::register(self, base, len, access, true) }
    }

    /// Creates a memory window: a key for a part of a region, which the peer can invalidate
    /// ([`SendOp::SendInvalidate`](crate::SendOp::SendInvalidate)). Returns `None` if the
    /// device has no windows.
    ///
    /// # Errors
    /// The error of the system.
    pub fn window(self: &Arc<Self>) -> Result<Option<SystemWindow>, VerbsError> {
        if self.windows { SystemWindow::new(self).map(Some) } else { Ok(None) }
    }
}

impl Device for SystemDevice {
    type CompletionQueue = SystemCompletions;
    type Endpoint = SystemEndpoint;
    type PendingConnection = SystemTicket;
    type SharedReceiveQueue = SystemShared;
    type MemoryRegion = SystemRegion;

    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> DeviceKind {
        self.kind
    }

    fn is_present(&self) -> bool {
        self.answers()
    }

    fn limits(&self) -> DeviceLimits {
        self.limits
    }

    unsafe fn register(
        self: &Arc<Self>,
        base: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<SystemRegion, VerbsError> {
        // SAFETY: the caller's promise is the same.
        unsafe { SystemRegion::register(self, base, len, access, false) }
    }

    fn completions(self: &Arc<Self>, depth: u32) -> Result<SystemCompletions, VerbsError> {
        SystemCompletions::new(self, depth)
    }

    fn shared_receives(
        self: &Arc<Self>,
        depth: u32,
        pieces: u32,
    ) -> Result<Option<SystemShared>, VerbsError> {
        if self.limits.shared_receives == 0 {
            return Ok(None);
        }
        SystemShared::new(self, depth, pieces).map(Some)
    }

    fn open(
        self: &Arc<Self>,
        ticket: SystemTicket,
        completions: &SystemCompletions,
        shared: Option<&SystemShared>,
        spec: &EndpointSpec,
    ) -> Result<SystemEndpoint, (VerbsError, SystemTicket)> {
        SystemEndpoint::open(self, ticket, completions, shared, spec)
    }
}
