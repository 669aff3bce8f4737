//! Devices of type "split".

use nvmeof_api::document::device::SplitKeys;
use nvmeof_api::units::SIZE_FORM;

use super::{DeviceKind, Names};
use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::size;

/// Validates a device of type "split".
pub(super) fn split(
    report: &mut Report<'_>,
    keys: &SplitKeys,
    at: &Positions,
    names: &Names<'_>,
) -> Option<DeviceKind> {
    let offset = match &at.key("offset", &keys.offset) {
        Some(value) => size(report, "device.offset", value),
        None => Some(0),
    };
    let length = match &at.key("size", &keys.size) {
        Some(value) => match size(report, "device.size", value) {
            Some(0) => {
                let what = "a device of 0 bytes holds nothing";
                report.error(&value.span(), "device.size", what, SIZE_FORM);
                return None;
            }
            size => Some(size?),
        },
        None => None,
    };
    let base = names.base(report, at, &keys.base);
    Some(DeviceKind::Split { base: base?, offset: offset?, size: length })
}
