//! Layered devices: their order of creation and their compatibility.

use std::collections::BTreeSet;

use toml::Spanned;

use super::super::raw::RawDevice;
use super::super::report::{Report, Span};
use crate::config::{Device, DeviceKind};
use nvmeof_api::units::show_size;

/// Maximum depth of layered devices.
const DEPTH_MAX: usize = 8;

/// A device and its source.
type Written<'r> = (Device, &'r Spanned<RawDevice>);

/// A device whose bases are placed, and its derived properties.
struct Placed<'r> {
    device: Device,
    raw: &'r Spanned<RawDevice>,
    /// Number of layers, including this one.
    depth: usize,
    /// Bytes, if known before the device is open.
    size: Option<u64>,
    /// Names of the lowest devices that it includes as a whole, not through a split.
    owns: BTreeSet<String>,
}

/// Sorts the devices: in the order of the file, each after its bases, and with its block size.
pub(super) fn in_order(report: &mut Report<'_>, mut left: Vec<Written<'_>>) -> Vec<Device> {
    let mut placed: Vec<Placed<'_>> = Vec::new();
    loop {
        let before = left.len();
        left.retain(|(device, raw)| {
            let bases = device.kind.bases().iter();
            let bases: Option<Vec<&Placed<'_>>> =
                bases.map(|name| placed.iter().find(|one| one.device.name == **name)).collect();
            let Some(bases) = bases else { return true };
            let new = place(report, device, raw, &bases);
            placed.push(new);
            false
        });
        if left.is_empty() || left.len() == before {
            break;
        }
    }
    // The remaining devices form a cycle, or are layered on a device that is already reported.
    for (device, raw) in &left {
        if leads_back(device, &left) {
            let (key, span) = base_key(raw);
            let what = format!("its bases lead back to \"{}\" itself", device.name);
            report.error(&span, key, what, "let one of them stand on another device");
        }
    }
    warn_of_overlaps(report, &placed);
    placed.into_iter().map(|one| one.device).collect()
}

/// Places a device on its bases.
fn place<'r>(
    report: &mut Report<'_>,
    device: &Device,
    raw: &'r Spanned<RawDevice>,
    bases: &[&Placed<'_>],
) -> Placed<'r> {
    let mut device = device.clone();
    let (key, span) = base_key(raw);
    let depth = 1 + bases.iter().map(|base| base.depth).max().unwrap_or(0);
    if depth == DEPTH_MAX + 1 {
        let what = format!("more than {DEPTH_MAX} devices stand on one another");
        report.error(&span, key, what, "name a base further down");
    }
    if let Some(base) = bases.first() {
        device.block_size = base.device.block_size;
    }
    let mut owns: BTreeSet<String> = bases.iter().flat_map(|base| base.owns.clone()).collect();
    let size = match &device.kind {
        DeviceKind::Null { size } | DeviceKind::Ram { size } => Some(*size),
        DeviceKind::File(file) => file.size,
        DeviceKind::Nvme(_) => None,
        DeviceKind::Delay { .. } | DeviceKind::Fault { .. } => bases.first().and_then(|b| b.size),
        DeviceKind::Split { offset, size, .. } => {
            owns.clear();
            let base = bases.first().and_then(|base| base.size);
            check_split(report, raw, (*offset, *size), base, device.block_size);
            size.or_else(|| base.map(|base| base.saturating_sub(*offset)))
        }
        DeviceKind::Stripe { chunk, .. } => {
            check_stripe(report, raw, bases, *chunk);
            let each: Option<Vec<u64>> = bases.iter().map(|base| base.size).collect();
            let least = each.and_then(|sizes| sizes.into_iter().min());
            least.map(|least| (least - least % chunk).saturating_mul(bases.len() as u64))
        }
    };
    if bases.is_empty() {
        owns.insert(device.name.clone());
    }
    Placed { device, raw, depth, size, owns }
}

fn check_split(
    report: &mut Report<'_>,
    raw: &Spanned<RawDevice>,
    (offset, size): (u64, Option<u64>),
    base: Option<u64>,
    block_size: Option<u32>,
) {
    let header = raw.span();
    let raw = raw.get_ref();
    let at = |key: Option<Span>| key.unwrap_or(header.clone());
    let offset_at = at(raw.offset.as_ref().map(Spanned::span));
    let size_at = at(raw.size.as_ref().map(Spanned::span));
    if let Some(block) = block_size.map(u64::from) {
        let parts = [("offset", offset, &offset_at), ("size", size.unwrap_or(0), &size_at)];
        for (key, bytes, span) in parts {
            if bytes % block != 0 {
                let what = format!("{bytes} bytes are not whole blocks of {block}");
                let allowed = format!("allowed: multiples of {block}, the blocks of its base");
                report.error(span, &format!("device.{key}"), what, allowed);
            }
        }
    }
    let Some(base) = base else { return };
    if offset >= base {
        let what = format!("its base ends at {}", show_size(base));
        report.error(&offset_at, "device.offset", what, "begin before the end");
    } else if size.is_some_and(|size| size > base - offset) {
        let what = format!("its base has only {} from there on", show_size(base - offset));
        report.error(&size_at, "device.size", what, "allowed: up to that, or nothing for the rest");
    }
}

fn check_stripe(
    report: &mut Report<'_>,
    raw: &Spanned<RawDevice>,
    bases: &[&Placed<'_>],
    chunk: u64,
) {
    let (key, span) = base_key(raw);
    let chunk_at = raw.get_ref().chunk.as_ref().map_or(span.clone(), Spanned::span);
    let known = bases.iter().filter_map(|base| Some((&base.device.name, base.device.block_size?)));
    let known: Vec<_> = known.collect();
    if let Some((first, block)) = known.first() {
        if let Some((other, size)) = known.iter().find(|(_, size)| size != block) {
            let what =
                format!("\"{first}\" has blocks of {block} bytes, but \"{other}\" of {size}");
            report.error(&span, key, what, "let all members have the same block size");
        } else if !chunk.is_multiple_of((*block).into()) {
            let what = format!("{chunk} bytes are not whole blocks of {block}");
            report.error(&chunk_at, "device.chunk", what, format!("allowed: multiples of {block}"));
        }
    }
    if let Some(small) = bases.iter().find(|base| base.size.is_some_and(|size| size < chunk)) {
        let what =
            format!("\"{}\" does not hold a chunk of {}", small.device.name, show_size(chunk));
        report.error(&chunk_at, "device.chunk", what, "give it a larger member, or smaller chunks");
    }
    for (number, base) in bases.iter().enumerate() {
        for other in &bases[..number] {
            if let Some(shared) = base.owns.intersection(&other.owns).next() {
                let (one, two) = (&other.device.name, &base.device.name);
                let what = format!("\"{one}\" and \"{two}\" both stand on \"{shared}\"");
                let allowed = "give each member data of its own, as splits of it";
                report.error(&span, key, what, allowed);
                return;
            }
        }
    }
}

/// Warns about overlapping splits, which are valid but rarely intended.
fn warn_of_overlaps(report: &mut Report<'_>, placed: &[Placed<'_>]) {
    let range = |one: &Placed<'_>| match &one.device.kind {
        DeviceKind::Split { base, offset, size } => {
            let end = size.map_or(u64::MAX, |size| offset.saturating_add(size));
            Some((base.clone(), *offset..end))
        }
        _ => None,
    };
    for (number, one) in placed.iter().enumerate() {
        let Some((base, bytes)) = range(one) else { continue };
        let others = placed[..number].iter().filter_map(|other| Some((other, range(other)?)));
        let overlaps = |(_, (below, other)): &(&Placed<'_>, (String, std::ops::Range<u64>))| {
            *below == base && other.start < bytes.end && bytes.start < other.end
        };
        if let Some((other, _)) = others.into_iter().find(overlaps) {
            let (_, span) = base_key(one.raw);
            let what =
                format!("it has bytes of \"{base}\" that \"{}\" has, too", other.device.name);
            report.warning(
                &span,
                "device.base",
                what,
                "set offset and size so that they are apart",
            );
        }
    }
}

fn leads_back(device: &Device, among: &[Written<'_>]) -> bool {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut ahead: Vec<&str> = device.kind.bases().iter().map(String::as_str).collect();
    while let Some(name) = ahead.pop() {
        if name == device.name {
            return true;
        }
        if seen.insert(name)
            && let Some((next, _)) = among.iter().find(|(other, _)| other.name == name)
        {
            ahead.extend(next.kind.bases().iter().map(String::as_str));
        }
    }
    false
}

/// Returns the key that names the bases of a device.
fn base_key(raw: &Spanned<RawDevice>) -> (&'static str, Span) {
    let (header, raw) = (raw.span(), raw.get_ref());
    match (&raw.members, &raw.base) {
        (Some(members), _) => ("device.members", members.span()),
        (None, Some(base)) => ("device.base", base.span()),
        (None, None) => ("device.base", header),
    }
}
