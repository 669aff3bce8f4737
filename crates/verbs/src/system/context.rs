//! An open device, and its protection domain.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::library::Library;
use crate::error::VerbsError;
use crate::ffi::verbs::{ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_pd, ibv_port_attr};

/// An open device.
#[derive(Debug)]
pub(super) struct Context {
    library: &'static Library,
    context: NonNull<ibv_context>,
}

// SAFETY: libibverbs locks the shared state of a context; nothing ties it to a thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device; the pointer is valid for the call.
    pub(super) fn open(
        library: &'static Library,
        device: NonNull<ibv_device>,
        name: &str,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the caller's list or identifier keeps the device's entry.
        let context = unsafe { (library.verbs.ibv_open_device)(device.as_ptr()) };
        let error = io::Error::last_os_error();
        match NonNull::new(context) {
            Some(context) => Ok(Self { library, context }),
            None => Err(VerbsError::call(format!("opening the RDMA device {name}"), error)),
        }
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn attributes(&self, name: &str) -> Result<ibv_device_attr, VerbsError> {
        // SAFETY: the structure is plain numbers, for which zeroes are valid; the context is open.
        let (attr, answer) = unsafe {
            let mut attr: ibv_device_attr = std::mem::zeroed();
            let answer = (self.library.verbs.ibv_query_device)(self.as_ptr(), &mut attr);
            (attr, answer)
        };
        crate::ffi::inline::result(answer)
            .map_err(|error| VerbsError::call(format!("asking {name} for its limits"), error))?;
        Ok(attr)
    }

    pub(super) fn port(&self, port: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: as above. The library's function fills the structure up to `flags`.
        let (attr, answer) = unsafe {
            let mut attr: ibv_port_attr = std::mem::zeroed();
            let answer = (self.library.verbs.ibv_query_port)(self.as_ptr(), port, &mut attr);
            (attr, answer)
        };
        crate::ffi::inline::result(answer)?;
        Ok(attr)
    }

    pub(super) fn gid(&self, port: u8, index: u32) -> io::Result<[u8; 16]> {
        let index = c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut gid = ibv_gid { raw: [0; 16], _align: [] };
        // SAFETY: the context is open, and there is room for the GID.
        let answer =
            unsafe { (self.library.verbs.ibv_query_gid)(self.as_ptr(), port, index, &mut gid) };
        if answer == 0 { Ok(gid.raw) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened here and closed once. All its objects held the device, and so this
        // context.
        unsafe { (self.library.verbs.ibv_close_device)(self.context.as_ptr()) };
    }
}

/// A protection domain, which queue pairs and registered memory have to share.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    library: &'static Library,
    domain: NonNull<ibv_pd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Context`.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(super) fn new(context: &Context, name: &str) -> Result<Self, VerbsError> {
        let library = context.library;
        // SAFETY: the context is open.
        let domain = unsafe { (library.verbs.ibv_alloc_pd)(context.as_ptr()) };
        let error = io::Error::last_os_error();
        match NonNull::new(domain) {
            Some(domain) => Ok(Self { library, domain }),
            None => Err(VerbsError::call(format!("making a protection domain of {name}"), error)),
        }
    }
}

impl ProtectionDomain {
    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once, before its context (`SystemDevice`'s order of
        // fields). All its objects held the device, and so this domain.
        let answer = unsafe { (self.library.verbs.ibv_dealloc_pd)(self.domain.as_ptr()) };
        if answer != 0 {
            tracing::error!(answer, "an RDMA protection domain could not be destroyed");
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
