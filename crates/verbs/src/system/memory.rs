//! Registered memory, and memory windows.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::device::SystemDevice;
use crate::error::VerbsError;
use crate::ffi::inline;
use crate::ffi::verbs::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    IBV_MW_TYPE_2, ibv_mr, ibv_mw,
};
use crate::provider::{Device, MemoryRegion};
use crate::work::AccessFlags;

/// Memory that a device can access.
#[derive(Debug)]
pub struct SystemRegion {
    region: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    device: Arc<SystemDevice>,
}

// SAFETY: the registration is memory of libibverbs, which nothing ties to a thread; `&self` only
// reads.
unsafe impl Send for SystemRegion {}
// SAFETY: as above.
unsafe impl Sync for SystemRegion {}

impl SystemRegion {
    /// # Safety
    /// The memory stays mapped until the region is dropped.
    pub(super) unsafe fn register(
        device: &Arc<SystemDevice>,
        base: *mut u8,
        len: usize,
        access: AccessFlags,
        bindable: bool,
    ) -> Result<Self, VerbsError> {
        let verbs = &device.library().verbs;
        let flags = flags(access) | if bindable { IBV_ACCESS_MW_BIND } else { 0 };
        // SAFETY: a live domain. The memory is mapped, as the caller promises, and the kernel
        // checks write access where it is requested.
        let region = unsafe { (verbs.ibv_reg_mr)(device.domain(), base.cast(), len, flags) };
        let error = io::Error::last_os_error();
        let Some(region) = NonNull::new(region) else {
            return Err(refusal(device, len, error));
        };
        // SAFETY: the library just created it.
        let (lkey, rkey) = unsafe { ((*region.as_ptr()).lkey, (*region.as_ptr()).rkey) };
        Ok(Self { region, lkey, rkey, device: Arc::clone(device) })
    }

    /// Pointer for work requests that refer to the region, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.region.as_ptr()
    }
}

impl MemoryRegion for SystemRegion {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for SystemRegion {
    fn drop(&mut self) {
        // SAFETY: registered here and deregistered once, while the device is open.
        let answer = unsafe { (self.device.library().verbs.ibv_dereg_mr)(self.region.as_ptr()) };
        if let Err(error) = inline::result(answer) {
            let device = self.device.name();
            tracing::error!(%error, device, "memory cannot be deregistered from an RDMA device");
        }
    }
}

/// A memory window: a separate key for a part of a region.
/// [`SystemEndpoint::bind_window`](super::SystemEndpoint::bind_window) binds it. Drop the window
/// before the region.
#[derive(Debug)]
pub struct SystemWindow {
    window: NonNull<ibv_mw>,
    rkey: u32,
    device: Arc<SystemDevice>,
}

// SAFETY: as for `SystemRegion`.
unsafe impl Send for SystemWindow {}
// SAFETY: as for `SystemRegion`.
unsafe impl Sync for SystemWindow {}

impl SystemWindow {
    pub(super) fn new(device: &Arc<SystemDevice>) -> Result<Self, VerbsError> {
        // SAFETY: a live domain.
        let window = unsafe { inline::ibv_alloc_mw(device.domain(), IBV_MW_TYPE_2) };
        let error = io::Error::last_os_error();
        let Some(window) = NonNull::new(window) else {
            let what = format!("making a memory window of {}", device.name());
            return Err(VerbsError::call(what, error));
        };
        // SAFETY: the library just created it.
        let rkey = unsafe { (*window.as_ptr()).rkey };
        Ok(Self { window, rkey, device: Arc::clone(device) })
    }

    /// Key of the last binding; undefined before the first one, and after an invalidation.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Sets the key of the binding that is about to be posted.
    pub(super) fn set_rkey(&mut self, rkey: u32) {
        self.rkey = rkey;
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mw {
        self.window.as_ptr()
    }
}

impl Drop for SystemWindow {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once, while the device is open.
        let answer = unsafe { inline::ibv_dealloc_mw(self.window.as_ptr()) };
        if let Err(error) = inline::result(answer) {
            let device = self.device.name();
            tracing::error!(%error, device, "an RDMA memory window could not be destroyed");
        }
    }
}

/// Converts access rights to flags of libibverbs.
pub(super) fn flags(access: AccessFlags) -> c_int {
    let AccessFlags { local_write, remote_read, remote_write } = access;
    let of = |wanted: bool, flag: c_int| if wanted { flag } else { 0 };
    // Remote write access requires local write access.
    of(local_write || remote_write, IBV_ACCESS_LOCAL_WRITE)
        | of(remote_read, IBV_ACCESS_REMOTE_READ)
        | of(remote_write, IBV_ACCESS_REMOTE_WRITE)
}

/// Returns the error of a failed registration. The system also reports "no memory" if the limit of
/// locked memory is exceeded.
fn refusal(device: &SystemDevice, bytes: usize, error: io::Error) -> VerbsError {
    let limited = getrlimit(Resource::Memlock).current.is_some();
    let exempt = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if error.raw_os_error() == Some(libc::ENOMEM) && limited && !exempt {
        return VerbsError::LockedMemory { bytes, device: device.name().to_owned() };
    }
    VerbsError::call(format!("registering {bytes} bytes with {}", device.name()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_for_the_peer_takes_writing_for_us() {
        let access = AccessFlags { remote_write: true, ..AccessFlags::default() };
        assert_eq!(flags(access), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(flags(AccessFlags::default()), 0);
        let read = AccessFlags { remote_read: true, ..AccessFlags::default() };
        assert_eq!(flags(read), IBV_ACCESS_REMOTE_READ);
    }
}
