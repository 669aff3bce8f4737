//! The libraries, loaded once and for good.

use std::fmt::{self, Debug};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::VerbsError;
use crate::ffi::functions::{Cm, Verbs};

/// librdmacm may believe in a device that is gone.
static STALE: AtomicBool = AtomicBool::new(false);

/// Both of rdma-core's libraries.
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
    /// Finds the libraries; only the first call that succeeds looks for them.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`] names the one that is missing.
    pub fn load() -> Result<&'static Self, VerbsError> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self { verbs: Verbs::load()?, cm: Cm::load()? };
        Ok(LOADED.get_or_init(|| library))
    }

    /// Has librdmacm compare the devices it knows with those there are, if one has gone: it does not by
    /// itself. It closes its own context of a device that is gone, and finds one that came back under the same
    /// name.
    ///
    /// It does neither while there is no device at all: see `ConnectionId::let_go`.
    pub(super) fn refresh(&self) {
        if !STALE.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: no place for the count is fine; the list is given back at once.
        unsafe {
            let list = (self.cm.rdma_get_devices)(ptr::null_mut());
            if !list.is_null() {
                (self.cm.rdma_free_devices)(list);
                STALE.store(false, Ordering::Release);
            }
        }
    }

    /// A device has gone.
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
