//! The libraries, loaded once and never unloaded.

use std::fmt::{self, Debug};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::VerbsError;
use crate::ffi::functions::{Cm, Verbs};

/// librdmacm may still list a device that is gone.
static STALE: AtomicBool = AtomicBool::new(false);

/// Both libraries of rdma-core.
pub struct Library {
    pub(super) verbs: Verbs,
    pub(super) cm: Cm,
}

impl Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library")
    }
}

impl Library {
    /// Loads the libraries. After the first success, later calls return the same value.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`] names the missing library.
    pub fn load() -> Result<&'static Self, VerbsError> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self { verbs: Verbs::load()?, cm: Cm::load()? };
        Ok(LOADED.get_or_init(|| library))
    }

    /// Makes librdmacm refresh its device list if a device has gone, which it does not do
    /// automatically. It closes its own context of a device that is gone, and finds one that
    /// returned under the same name.
    ///
    /// It does neither while the machine has no device: see `ConnectionId::let_go`.
    pub(super) fn refresh(&self) {
        if !STALE.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the count can be null; the list is freed immediately.
        unsafe {
            let list = (self.cm.rdma_get_devices)(ptr::null_mut());
            if !list.is_null() {
                (self.cm.rdma_free_devices)(list);
                STALE.store(false, Ordering::Release);
            }
        }
    }

    /// Records that a device has gone.
    pub(super) fn set_stale(&self) {
        STALE.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_loaded_once_or_its_lack_is_named() {
        match (Library::load(), Library::load()) {
            (Ok(one), Ok(other)) => assert!(ptr::eq(one, other)),
            (Err(error), _) => {
                let text = error.to_string();
                assert!(text.contains(".so.1") && text.contains("apt-get install"), "{text}");
            }
            (Ok(_), Err(error)) => panic!("{error}"),
        }
    }
}
