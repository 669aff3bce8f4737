//! Layered devices: their order of creation and their compatibility.

use std::collections::BTreeSet;

use nvmeof_api::document::DeviceConfig;
use nvmeof_api::units::show_size;

use crate::config::report::{Report, Span};
use crate::config::table::{Positions, WrittenTable};
use crate::config::{Device, DeviceKind};

/// Maximum depth of layered devices.
const DEPTH_MAX: usize = 8;

/// A device and its source.
type Written<'r> = (Device, &'r WrittenTable<DeviceConfig>);

/// A device whose bases are placed, and its derived properties.
struct Placed<'r> {
    device: Device,
    at: &'r Positions,
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
        left.retain(|(device, written)| {
            let bases = device.kind.bases().iter();
            let bases: Option<Vec<&Placed<'_>>> =
                bases.map(|name| placed.iter().find(|one| one.device.name == **name)).collect();
            let Some(bases) = bases else { return true };
            let new = place(report, device, &written.at, &bases);
            placed.push(new);
            false
        });
        if left.is_empty() || left.len() == before {
            break;
        }
    }
    // The remaining devices form a cycle, or are layered on a device that is already reported.
    for (device, written) in &left {
        if leads_back(device, &left) {
            let (key, span) = base_key(&written.at);
            let what = format!("the bases form a cycle through \"{}\"", device.name);
            report.error(&span, key, what, "change the base of one of them");
        }
    }
    warn_of_overlaps(report, &placed);
    placed.into_iter().map(|one| one.device).collect()
}

/// Places a device on its bases.
fn place<'r>(
    report: &mut Report<'_>,
    device: &Device,
    at: &'r Positions,
    bases: &[&Placed<'_>],
) -> Placed<'r> {
    let mut device = device.clone();
    let (key, span) = base_key(at);
    let depth = 1 + bases.iter().map(|base| base.depth).max().unwrap_or(0);
    if depth == DEPTH_MAX + 1 {
        let what = format!("more than {DEPTH_MAX} devices are layered on each other");
        report.error(&span, key, what, "name a base further down");
    }
    if let Some(base) = bases.first() {
        device.block_size = base.device.block_size;
    }
    let mut owns: BTreeSet<String> = bases.iter().flat_map(|base| base.owns.clone()).collect();
    let size = match &device.kind {
        DeviceKind::Split { offset, size, .. } => {
            owns.clear();
            let base = bases.first().and_then(|base| base.size);
            check_split(report, at, (*offset, *size), base, device.block_size);
            size.or_else(|| base.map(|base| base.saturating_sub(*offset)))
        }
        DeviceKind::Stripe { chunk, .. } => {
            check_stripe(report, at, bases, *chunk);
            let each: Option<Vec<u64>> = bases.iter().map(|base| base.size).collect();
            let least = each.and_then(|sizes| sizes.into_iter().min());
            least.map(|least| (least - least % chunk).saturating_mul(bases.len() as u64))
        }
        // Other layers have the size of their base.
        kind => kind.own_size().or_else(|| bases.first().and_then(|base| base.size)),
    };
    if bases.is_empty() {
        owns.insert(device.name.clone());
    }
    Placed { device, at, depth, size, owns }
}

fn check_split(
    report: &mut Report<'_>,
    at: &Positions,
    (offset, size): (u64, Option<u64>),
    base: Option<u64>,
    block_size: Option<u32>,
) {
    let (offset_at, size_at) = (at.or_header("offset"), at.or_header("size"));
    if let Some(block) = block_size.map(u64::from) {
        let parts = [("offset", offset, &offset_at), ("size", size.unwrap_or(0), &size_at)];
        for (key, bytes, span) in parts {
            if bytes % block != 0 {
                let what = format!("{bytes} bytes are not whole blocks of {block}");
                let allowed = format!("allowed: multiples of {block}, the block size of the base");
                report.error(span, &format!("device.{key}"), what, allowed);
            }
        }
    }
    let Some(base) = base else { return };
    if offset >= base {
        let what = format!("the base ends at {}", show_size(base));
        report.error(&offset_at, "device.offset", what, "begin before the end");
    } else if size.is_some_and(|size| size > base - offset) {
        let what = format!("only {} of the base remain from there", show_size(base - offset));
        report.error(&size_at, "device.size", what, "allowed: up to that, or nothing for the rest");
    }
}

fn check_stripe(report: &mut Report<'_>, at: &Positions, bases: &[&Placed<'_>], chunk: u64) {
    let (key, span) = base_key(at);
    let chunk_at = at.of("chunk").unwrap_or(span.clone());
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
        report.error(&chunk_at, "device.chunk", what, "use larger members, or smaller chunks");
    }
    for (number, base) in bases.iter().enumerate() {
        for other in &bases[..number] {
            if let Some(shared) = base.owns.intersection(&other.owns).next() {
                let (one, two) = (&other.device.name, &base.device.name);
                let what = format!("\"{one}\" and \"{two}\" are both layered on \"{shared}\"");
                let allowed = "use separate data per member, as splits do";
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
            let (_, span) = base_key(one.at);
            let what =
                format!("the bytes of \"{base}\" overlap those of \"{}\"", other.device.name);
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
fn base_key(at: &Positions) -> (&'static str, Span) {
    match at.of("members") {
        Some(members) => ("device.members", members),
        None => ("device.base", at.or_header("base")),
    }
}
