//! Devices of types "null" and "ram".

use nvmeof_api::document::Size;
use nvmeof_api::document::device::MemoryKeys;
use nvmeof_api::units::{SIZE_FORM, show_size};
use toml::Spanned;

use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{required, size};

/// Default bytes of a block.
const BLOCK_SIZE: u32 = 512;

/// Validates the size of a device without a file, and the bytes of a block.
pub(super) fn memory(
    report: &mut Report<'_>,
    keys: &MemoryKeys,
    at: &Positions,
) -> Option<(u64, u32)> {
    let block_size = block_size(report, &keys.block_size, at);
    let value = at.key("size", &keys.size);
    let value = required(report, &at.header, "device.size", &value, SIZE_FORM)?;
    Some((whole_blocks(report, value, block_size)?, block_size))
}

/// Validates the bytes of a block.
pub(super) fn block_size(report: &mut Report<'_>, key: &Option<Size>, at: &Positions) -> u32 {
    let Some(value) = &at.key("block-size", key) else { return BLOCK_SIZE };
    match size(report, "device.block-size", value) {
        Some(512) => 512,
        Some(4096) => 4096,
        Some(other) => {
            let what = format!("blocks of {other} bytes are not possible");
            report.error(&value.span(), "device.block-size", what, "allowed: 512, 4096");
            BLOCK_SIZE
        }
        None => BLOCK_SIZE,
    }
}

/// Returns a size that is a whole number of blocks, at least one.
pub(super) fn whole_blocks(
    report: &mut Report<'_>,
    value: &Spanned<Size>,
    block_size: u32,
) -> Option<u64> {
    let bytes = size(report, "device.size", value)?;
    let block = u64::from(block_size);
    let span = value.span();
    if bytes == 0 {
        report.error(&span, "device.size", "a device of 0 bytes holds nothing", SIZE_FORM);
        return None;
    }
    if bytes > i64::MAX.unsigned_abs() / 2 {
        let what = format!("{} is more than a device can have", show_size(bytes));
        report.error(&span, "device.size", what, "allowed: up to 4194303TiB");
        return None;
    }
    if bytes % block != 0 {
        let what = format!("{bytes} bytes are not whole blocks of {block}");
        let below = bytes - bytes % block;
        let allowed = if below == 0 {
            format!("allowed: multiples of {block}, as {block}")
        } else {
            format!("allowed: multiples of {block}, as {below} or {}", below + block)
        };
        report.error(&span, "device.size", what, allowed);
        return None;
    }
    Some(bytes)
}
