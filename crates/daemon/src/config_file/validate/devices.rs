//! `[[device]]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvmeof_core::block::{Direct, FileConfig};
use toml::Spanned;

use super::super::raw::{Key, RawDevice};
use super::super::report::{Report, Span};
use super::defaults;
use super::drives::{drive, each_namespace_once};
use super::faults::fault;
use super::order::in_order;
use super::stacked::{Names, delay, split, stripe};
use super::values::{choice, one_of, required, size};
use crate::config::{Device, DeviceKind};
use nvmeof_api::units::{SIZE_FORM, show_size};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Ram,
    File,
    Nvme,
    Split,
    Stripe,
    Delay,
    Fault,
}

const TYPES: [(&str, Type); 8] = [
    ("null", Type::Null),
    ("ram", Type::Ram),
    ("file", Type::File),
    ("nvme", Type::Nvme),
    ("split", Type::Split),
    ("stripe", Type::Stripe),
    ("delay", Type::Delay),
    ("fault", Type::Fault),
];
const DIRECT: [(&str, Direct); 3] =
    [("auto", Direct::Auto), ("on", Direct::Required), ("off", Direct::Never)];

const NAME_MAX: usize = 64;

impl Type {
    /// Returns the keys of a device of this type.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Null | Self::Ram => &["name", "type", "size", "block-size"],
            Self::File => {
                &["name", "type", "size", "block-size", "path", "create", "read-only", "direct"]
            }
            Self::Nvme => &["name", "type", "pci", "nsid", "queue-depth", "io-timeout"],
            Self::Split => &["name", "type", "base", "offset", "size"],
            Self::Stripe => &["name", "type", "members", "chunk"],
            Self::Delay => &[
                "name",
                "type",
                "base",
                "read-latency",
                "write-latency",
                "read-jitter",
                "write-jitter",
                "seed",
            ],
            Self::Fault => &[
                "name",
                "type",
                "base",
                "errors",
                "corruptions",
                "rejects",
                "stalls",
                "stall",
                "reorder",
                "bad",
                "seed",
                "gone",
            ],
        }
    }
}

/// Validates the devices: unique names, each file once, and bases before the devices layered on
/// them.
pub(super) fn devices(
    report: &mut Report<'_>,
    raw: &[Spanned<RawDevice>],
    open: &[FileConfig],
) -> Vec<Device> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut files = Files { open, seen: BTreeMap::new() };
    let known: Vec<&str> = raw
        .iter()
        .filter_map(|entry| entry.get_ref().name.as_ref())
        .map(|name| name.get_ref().as_str())
        .collect();
    let mut devices = Vec::new();
    for entry in raw {
        let (raw, header) = (entry.get_ref(), entry.span());
        let name = name(report, &header, raw, &mut names);
        let Some(kind) = kind(report, &header, raw) else { continue };
        foreign_keys_are_absent(report, raw, kind);
        let block_size = block_size(report, raw);
        let name = name.unwrap_or_default();
        let names = Names { own: name, known: &known };
        let kind = match kind {
            Type::File => file(report, &header, raw, name, block_size),
            Type::Null | Type::Ram => memory(report, &header, raw, kind, block_size),
            Type::Nvme => drive(report, &header, raw),
            Type::Split => split(report, &header, raw, &names),
            Type::Stripe => stripe(report, &header, raw, &names),
            Type::Delay => delay(report, &header, raw, &names),
            Type::Fault => fault(report, &header, raw, &names),
        };
        let Some(kind) = kind else { continue };
        // A layered device has the block size of its base, and a drive has its own.
        let own = kind.bases().is_empty() && !matches!(kind, DeviceKind::Nvme(_));
        let block_size = own.then_some(block_size);
        if let DeviceKind::File(config) = &kind {
            check_file(report, &header, raw, config, &mut files);
        }
        devices.push((Device { name: name.into(), block_size, kind }, entry));
    }
    each_namespace_once(report, &devices);
    in_order(report, devices)
}

fn name<'r>(
    report: &mut Report<'_>,
    header: &Span,
    raw: &'r RawDevice,
    names: &mut BTreeMap<&'r str, usize>,
) -> Option<&'r str> {
    let form = format!("allowed: 1 to {NAME_MAX} letters, digits, '-', '_' and '.'");
    let value = required(report, header, "device.name", &raw.name, &form)?;
    let name = value.get_ref().as_str();
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(good) {
        report.error(&value.span(), "device.name", format!("\"{name}\" is no name"), form);
    }
    if let Some(first) = names.insert(name, report.line(&value.span())) {
        let what = format!("the device of line {first} is called \"{name}\" already");
        report.error(&value.span(), "device.name", what, "give each device a name of its own");
    }
    Some(name)
}

fn kind(report: &mut Report<'_>, header: &Span, raw: &RawDevice) -> Option<Type> {
    let words: Vec<&str> = TYPES.iter().map(|(word, _)| *word).collect();
    let value = required(report, header, "device.type", &raw.kind, &one_of(&words, ""))?;
    choice(report, "device.type", value, &TYPES)
}

fn block_size(report: &mut Report<'_>, raw: &RawDevice) -> u32 {
    let Some(value) = &raw.block_size else { return defaults::BLOCK_SIZE };
    match size(report, "device.block-size", value) {
        Some(512) => 512,
        Some(4096) => 4096,
        Some(other) => {
            let what = format!("blocks of {other} bytes are not possible");
            report.error(&value.span(), "device.block-size", what, "allowed: 512, 4096");
            defaults::BLOCK_SIZE
        }
        None => defaults::BLOCK_SIZE,
    }
}

/// Returns a size that is a whole number of blocks, at least one.
fn whole_blocks(
    report: &mut Report<'_>,
    value: &Spanned<super::super::raw::RawSize>,
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

fn memory(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    kind: Type,
    block_size: u32,
) -> Option<DeviceKind> {
    let value = required(report, header, "device.size", &raw.size, SIZE_FORM)?;
    let size = whole_blocks(report, value, block_size)?;
    Some(if kind == Type::Null { DeviceKind::Null { size } } else { DeviceKind::Ram { size } })
}

/// Reports keys that devices of this type do not have.
fn foreign_keys_are_absent(report: &mut Report<'_>, raw: &RawDevice, kind: Type) {
    fn at<T>(key: &Key<T>) -> Option<Span> {
        key.as_ref().map(Spanned::span)
    }
    let written = [
        ("size", at(&raw.size)),
        ("block-size", at(&raw.block_size)),
        ("path", at(&raw.path)),
        ("create", at(&raw.create)),
        ("read-only", at(&raw.read_only)),
        ("direct", at(&raw.direct)),
        ("base", at(&raw.base)),
        ("read-latency", at(&raw.read_latency)),
        ("write-latency", at(&raw.write_latency)),
        ("read-jitter", at(&raw.read_jitter)),
        ("write-jitter", at(&raw.write_jitter)),
        ("offset", at(&raw.offset)),
        ("members", at(&raw.members)),
        ("chunk", at(&raw.chunk)),
        ("seed", at(&raw.seed)),
        ("errors", at(&raw.errors)),
        ("corruptions", at(&raw.corruptions)),
        ("rejects", at(&raw.rejects)),
        ("stalls", at(&raw.stalls)),
        ("stall", at(&raw.stall)),
        ("reorder", at(&raw.reorder)),
        ("bad", at(&raw.bad)),
        ("gone", at(&raw.gone)),
        ("pci", at(&raw.pci)),
        ("nsid", at(&raw.nsid)),
        ("queue-depth", at(&raw.queue_depth)),
        ("io-timeout", at(&raw.io_timeout)),
    ];
    let word_of = |kind| TYPES.iter().find(|(_, of)| *of == kind).map_or("", |(word, _)| word);
    for (key, span) in written.into_iter().filter_map(|(key, span)| Some((key, span?))) {
        if kind.keys().contains(&key) {
            continue;
        }
        let owners: Vec<String> = TYPES
            .iter()
            .filter(|(_, owner)| owner.keys().contains(&key))
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let what = format!("type \"{}\" has no such key", word_of(kind));
        let allowed = format!(
            "allowed: {} ({key} is for type {})",
            kind.keys().join(", "),
            owners.join(", ")
        );
        report.error(&span, &format!("device.{key}"), what, allowed);
    }
}

fn file(
    report: &mut Report<'_>,
    header: &Span,
    raw: &RawDevice,
    name: &str,
    block_size: u32,
) -> Option<DeviceKind> {
    let flag = |key: &Option<Spanned<bool>>| key.as_ref().is_some_and(|value| *value.get_ref());
    let (create, read_only) = (flag(&raw.create), flag(&raw.read_only));
    let direct = match &raw.direct {
        Some(value) => choice(report, "device.direct", value, &DIRECT),
        None => Some(Direct::Auto),
    };
    if create
        && let Some(value) = &raw.create
        && (raw.size.is_none() || read_only)
    {
        let (what, allowed) = if read_only {
            ("a file cannot be created and be read-only", "leave out one of the two")
        } else {
            ("a file that is created needs a size", "set device.size, as \"1GiB\"")
        };
        report.error(&value.span(), "device.create", what, allowed);
        return None;
    }
    let size = match &raw.size {
        Some(value) => Some(whole_blocks(report, value, block_size)?),
        None => None,
    };
    let form = "allowed: the path of a file or block device";
    let path = required(report, header, "device.path", &raw.path, form)?;
    if path.get_ref().is_empty() {
        report.error(&path.span(), "device.path", "the path is empty", form);
        return None;
    }
    Some(DeviceKind::File(FileConfig {
        size,
        read_only,
        direct: direct?,
        ..FileConfig::new(name, path.get_ref(), block_size)
    }))
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
    header: &Span,
    raw: &RawDevice,
    config: &FileConfig,
    files: &mut Files<'_>,
) {
    let span = raw.path.as_ref().map_or(header.clone(), |value| value.span());
    let real = config.path.canonicalize();
    let create = raw.create.as_ref().is_some_and(|value| *value.get_ref());
    let missing = matches!(&real, Err(error) if error.kind() == std::io::ErrorKind::NotFound);
    let real = real.unwrap_or_else(|_| config.path.clone());
    if files.stays_open(config) {
        if missing {
            let what = format!(
                "{}: there is no such file any more; what was opened is still served",
                config.path.display()
            );
            let advice = "the next start needs it: put it back, or remove the device";
            report.warning(&span, "device.path", what, advice);
        }
    } else if missing && !create {
        let what = format!("{}: there is no such file", config.path.display());
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
        let allowed = "give each device a file of its own, or make both read-only";
        report.error(&span, "device.path", what, allowed);
    }
}
