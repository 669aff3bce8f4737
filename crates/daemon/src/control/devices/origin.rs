//! Distinguishes a file from an earlier or later one at the same path.

use std::fs::Metadata;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nvmeof_core::block::FileDevice;

/// Describes the file beyond its path: its creation time, and the file behind a loop device.
///
/// The creation time is empty if the file system does not record it. Other block devices have no
/// description, because their nodes are created again at every boot.
pub(super) fn origin(device: &FileDevice, path: &Path) -> String {
    match device.backing() {
        Some(backing) => {
            let file = backing.path.display();
            format!(" of {file}{}{}", backing.place, born(created(&backing.path)))
        }
        None => born(created(path)),
    }
}

fn created(path: &Path) -> Option<SystemTime> {
    let meta = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    meta.created().ok()
}

fn born(at: Option<SystemTime>) -> String {
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.map_or_else(String::new, |since| {
        format!(" born {}.{:09}", since.as_secs(), since.subsec_nanos())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_as_exact_as_the_system_has_it() {
        assert_eq!(born(Some(UNIX_EPOCH + Duration::new(7, 42))), " born 7.000000042");
        assert_eq!(born(None), "");
    }
}
