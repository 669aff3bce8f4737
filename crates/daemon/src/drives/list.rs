//! Drives as a table.

use std::fmt::Write as _;

use nvmeof_core::pci::{Capacities, Link, PciFunction, RootComplex, loads, order, warnings};

use super::inventory::{Drive, DriveInventory, IdentifyResult};
use super::{Failure, Host, Output, json, size};

/// Arguments of `drives list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nvmeof-tgt drives list\n  \
    nvmeof-tgt drives list --json --root-complex 0000:60=42.6\n\n\
    Unused drives that are bound to vfio-pci are opened to read their names.\n\
    docs/drives.md describes the columns and the JSON.")]
pub struct Args {
    /// Write JSON; docs/drives.md documents the fields
    #[arg(long)]
    pub(super) json: bool,
    /// Order for a stripe: round-robin over root complexes and adapters
    #[arg(long)]
    pub(super) round_robin: bool,
    /// Capacity of a root complex, in GB/s of data; repeatable
    #[arg(long, value_name = "DDDD:BB=GB/s", value_parser = capacity)]
    pub(super) root_complex: Vec<(RootComplex, f64)>,
}

/// Data to print.
pub(super) struct DriveListing {
    pub(super) inventory: DriveInventory,
    /// Indexes into the inventory, in the order for a stripe.
    pub(super) order: Vec<usize>,
    pub(super) loads: Vec<nvmeof_core::pci::RootComplexLoad>,
    pub(super) warnings: Vec<String>,
}

pub(super) fn run(host: &Host, args: &Args, output: &mut Output<'_>) -> Result<(), Failure> {
    let mut capacities = Capacities::default();
    for (root_complex, gb_per_s) in &args.root_complex {
        capacities.set(*root_complex, *gb_per_s);
    }
    let listing = DriveListing::read(host, &capacities)?;
    if args.json {
        writeln!(output.out, "{}", json::text(&listing)?)?;
        return Ok(());
    }
    write!(output.out, "{}", table(&listing, args.round_robin))?;
    if listing.inventory.drives.is_empty() {
        writeln!(output.notes, "this machine has no NVMe drive")?;
    }
    if listing.inventory.usage.is_partial() {
        let what = "programs of other users were not looked into: run as root to see all uses";
        writeln!(output.notes, "note: {what}")?;
    }
    for warning in &listing.warnings {
        writeln!(output.notes, "warning: {warning}")?;
    }
    Ok(())
}

impl DriveListing {
    pub(super) fn read(host: &Host, capacities: &Capacities) -> anyhow::Result<Self> {
        let inventory = DriveInventory::read(host, true)?;
        let functions: Vec<PciFunction> =
            inventory.drives.iter().map(|drive| drive.function.clone()).collect();
        let ordered = order(&functions);
        let place = |wanted: &&PciFunction| {
            functions.iter().position(|function| function.address == wanted.address)
        };
        let order = ordered.iter().filter_map(place).collect();
        let warnings = warnings(&host.system, &functions, capacities);
        let warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(Self { order, loads: loads(&host.system, &functions, capacities), warnings, inventory })
    }
}

const COLUMNS: [&str; 12] = [
    "ADDRESS", "SERIAL", "MODEL", "FIRMWARE", "SIZE", "ROOT", "SLOT", "NUMA", "LINK", "GB/S",
    "DRIVER", "IN USE",
];

/// Formats one line per drive, with columns as wide as required.
fn table(listing: &DriveListing, round_robin: bool) -> String {
    let drives = &listing.inventory.drives;
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    if round_robin {
        rows.extend(listing.order.iter().filter_map(|place| drives.get(*place)).map(row));
    } else {
        rows.extend(drives.iter().map(row));
    }
    let mut widths = [0; COLUMNS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn row(drive: &Drive) -> [String; COLUMNS.len()] {
    let function = &drive.function;
    let none = || "-".to_owned();
    let about = drive.about();
    let said = |text: Option<&String>| text.cloned().unwrap_or_else(none);
    let link = |link: Option<Link>| link.map_or_else(none, |link| link.to_string());
    let speed =
        |link: Option<Link>| link.map_or_else(none, |link| format!("{:.1}", link.gb_per_s()));
    [
        function.address.to_string(),
        said(about.and_then(|about| about.serial.as_ref())),
        said(about.and_then(|about| about.model.as_ref())),
        said(about.and_then(|about| about.firmware.as_ref())),
        drive.bytes().map_or_else(none, size),
        function.place.root_complex.to_string(),
        said(function.slot.as_ref()),
        function.numa_node.map_or_else(none, |node| node.to_string()),
        link(function.links.now),
        format!("{} of {}", speed(function.links.now), speed(function.links.best)),
        said(function.driver.as_ref()),
        in_use(drive),
    ]
}

fn in_use(drive: &Drive) -> String {
    match (&drive.users[..], &drive.says) {
        ([], IdentifyResult::This(_)) => "no".to_owned(),
        ([], IdentifyResult::Nothing(why)) => format!("unknown: {why}"),
        ([one], _) => one.to_string(),
        ([one, others @ ..], _) => format!("{one}, and {} more", others.len()),
    }
}

/// Parses a value like `0000:60=42.6`.
fn capacity(text: &str) -> Result<(RootComplex, f64), String> {
    let form = "a root complex and GB/s, as 0000:60=42.6";
    let (root_complex, gb_per_s) = text.split_once('=').ok_or(form)?;
    let root_complex: RootComplex = root_complex.parse().map_err(|_| form)?;
    let gb_per_s: f64 = gb_per_s.parse().map_err(|_| form)?;
    let is_speed = gb_per_s.is_finite() && gb_per_s > 0.0;
    if is_speed { Ok((root_complex, gb_per_s)) } else { Err(form.to_owned()) }
}
