//! `[[device]]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvmeof_api::document::tagged::{KeyError, one_of};
use nvmeof_api::document::{DeviceConfig, Tagged};
use nvmeof_core::block::FileConfig;

use super::drives::each_namespace_once;
use super::order::in_order;
use crate::config::report::Report;
use crate::config::table::{Positions, WrittenTable};
use crate::config::values::required;
use crate::config::{Device, DeviceKind, Names};

const NAME_MAX: usize = 64;

/// Validates the devices: unique names, each file once, and bases before the devices layered on
/// them.
pub(super) fn devices(
    report: &mut Report<'_>,
    written: &[WrittenTable<DeviceConfig>],
    open: &[FileConfig],
) -> Vec<Device> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut files = Files { open, seen: BTreeMap::new() };
    let known: Vec<String> = written
        .iter()
        .filter_map(|entry| entry.common("name"))
        .map(|name| name.get_ref().clone())
        .collect();
    let mut devices = Vec::new();
    for entry in written {
        let name = name(report, entry, &mut names);
        entry.errors.iter().for_each(|error| refuse(report, error, &entry.at));
        let (Some(config), name) = (&entry.config, name.unwrap_or_default()) else { continue };
        let names = Names { own: &name, known: &known };
        let kind = DeviceKind::of(report, config, &entry.at, &names);
        let Some((kind, block_size)) = kind else { continue };
        if let (DeviceKind::File(file), DeviceConfig::File(keys)) = (&kind, config) {
            let create = keys.create.unwrap_or(false);
            check_file(report, (file, create), &entry.at, &mut files);
        }
        devices.push((Device { name, block_size, kind }, entry));
    }
    each_namespace_once(report, &devices);
    in_order(report, devices)
}

/// Reports a wrong type, and keys that devices of this type do not have.
fn refuse(report: &mut Report<'_>, error: &KeyError, at: &Positions) {
    match error {
        KeyError::NoTag => {
            report.error(&at.header, "device.type", "missing", one_of::<DeviceConfig>(""));
        }
        KeyError::UnknownTag(name) => {
            let what = format!("\"{name}\" is not known");
            let allowed = one_of::<DeviceConfig>(name);
            report.error(&at.or_header("type"), "device.type", what, allowed);
        }
        KeyError::Foreign { key, variant, keys, owners } => {
            let what = format!("unknown key of type \"{variant}\"");
            let keys = [DeviceConfig::COMMON, &[DeviceConfig::TAG], *keys].concat().join(", ");
            let owners: Vec<String> = owners.iter().map(|owner| format!("\"{owner}\"")).collect();
            let allowed = format!("allowed: {keys} ({key} is for type {})", owners.join(", "));
            report.error(&at.or_header(key), &format!("device.{key}"), what, allowed);
        }
        // The parser has reported them.
        KeyError::Unknown { .. } | KeyError::Form { .. } => {}
    }
}

fn name(
    report: &mut Report<'_>,
    written: &WrittenTable<DeviceConfig>,
    names: &mut BTreeMap<String, usize>,
) -> Option<String> {
    let form = format!("allowed: 1 to {NAME_MAX} letters, digits, '-', '_' and '.'");
    let value = written.common("name");
    let value = required(report, &written.at.header, "device.name", &value, &form)?;
    let name = value.get_ref().as_str();
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(good) {
        report.error(&value.span(), "device.name", format!("\"{name}\" is no name"), form);
    }
    if let Some(first) = names.insert(name.to_owned(), report.line(&value.span())) {
        let what = format!("the device of line {first} is called \"{name}\" already");
        report.error(&value.span(), "device.name", what, "give each device its own name");
    }
    Some(name.to_owned())
}

/// Files of devices.
struct Files<'a> {
    /// Files of open devices.
    open: &'a [FileConfig],
    /// Files of the config: line, and true if read-only.
    seen: BTreeMap<PathBuf, (usize, bool)>,
}

impl Files<'_> {
    /// Returns true if the device is open and stays open: at most its size changes.
    fn stays_open(&self, config: &FileConfig) -> bool {
        self.open.iter().any(|open| FileConfig { size: config.size, ..open.clone() } == *config)
    }

    /// Returns true if an open device uses this file.
    fn is_served(&self, real: &Path) -> bool {
        self.open.iter().any(|open| open.path.canonicalize().is_ok_and(|path| path == real))
    }
}

/// Checks the file, unless it is already open, and that no other device uses it.
fn check_file(
    report: &mut Report<'_>,
    (config, create): (&FileConfig, bool),
    at: &Positions,
    files: &mut Files<'_>,
) {
    let span = at.or_header("path");
    let real = config.path.canonicalize();
    let missing = matches!(&real, Err(error) if error.kind() == std::io::ErrorKind::NotFound);
    let real = real.unwrap_or_else(|_| config.path.clone());
    if files.stays_open(config) {
        if missing {
            let what = format!(
                "{}: the file no longer exists; the open file is still served",
                config.path.display()
            );
            let advice = "restore the file before the next start, or remove the device";
            report.warning(&span, "device.path", what, advice);
        }
    } else if missing && !create {
        let what = format!("{}: file does not exist", config.path.display());
        let allowed = "name a file or block device, or set create = true and a size";
        report.error(&span, "device.path", what, allowed);
    } else {
        let checked = match files.is_served(&real) {
            // Another device still uses the file and may give it the requested size.
            true => FileConfig { size: None, ..config.clone() }.check(),
            false => config.check(),
        };
        if let Err(error) = checked {
            report.error(&span, "device.path", error.to_string(), "");
        }
    }
    let line = report.line(&span);
    if let Some((first, reads)) = files.seen.insert(real, (line, config.read_only))
        && !(reads && config.read_only)
    {
        let what = format!("the device of line {first} has this file already");
        let allowed = "give each device its own file, or make both read-only";
        report.error(&span, "device.path", what, allowed);
    }
}
