//! The libraries, loaded once and for good.

use std::fmt::{self, Debug};
use std::sync::OnceLock;

use crate::error::VerbsError;
use crate::ffi::functions::{Cm, Verbs};

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_loaded_once_or_its_lack_is_named() {
        match (Library::load(), Library::load()) {
            (Ok(one), Ok(other)) => assert!(std::ptr::eq(one, other)),
            (Err(error), _) => {
                let text = error.to_string();
                assert!(text.contains(".so.1") && text.contains("apt-get install"), "{text}");
            }
            (Ok(_), Err(error)) => panic!("{error}"),
        }
    }
}
