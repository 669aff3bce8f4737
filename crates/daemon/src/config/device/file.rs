//! Devices of type "file".

use nvmeof_api::document::device::FileKeys;
use nvmeof_core::block::{Direct, FileConfig};

use super::memory::{block_size, whole_blocks};
use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{choice, required};

const DIRECT: [(&str, Direct); 3] =
    [("auto", Direct::Auto), ("on", Direct::Required), ("off", Direct::Never)];

/// Validates a device of type "file".
pub(super) fn file(
    report: &mut Report<'_>,
    keys: &FileKeys,
    at: &Positions,
    name: &str,
) -> Option<(FileConfig, u32)> {
    let block_size = block_size(report, &keys.block_size, at);
    let (create, read_only) = (keys.create.unwrap_or(false), keys.read_only.unwrap_or(false));
    let direct = match &at.key("direct", &keys.direct) {
        Some(value) => choice(report, "device.direct", value, &DIRECT),
        None => Some(Direct::Auto),
    };
    if create && (keys.size.is_none() || read_only) {
        let (what, allowed) = if read_only {
            ("a file cannot be created and be read-only", "leave out one of the two")
        } else {
            ("a file that is created needs a size", "set device.size, as \"1GiB\"")
        };
        report.error(&at.or_header("create"), "device.create", what, allowed);
        return None;
    }
    let size = match &at.key("size", &keys.size) {
        Some(value) => Some(whole_blocks(report, value, block_size)?),
        None => None,
    };
    let form = "allowed: the path of a file or block device";
    let path = at.key("path", &keys.path);
    let path = required(report, &at.header, "device.path", &path, form)?;
    if path.get_ref().is_empty() {
        report.error(&path.span(), "device.path", "the path is empty", form);
        return None;
    }
    let config = FileConfig {
        size,
        read_only,
        direct: direct?,
        ..FileConfig::new(name, path.get_ref(), block_size)
    };
    Some((config, block_size))
}
