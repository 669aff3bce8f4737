//! Drives as JSON. Fields may be added; removing one or changing its meaning requires a new
//! [`VERSION`].

use nvmeof_core::pci::{Link, RootComplexLoad};
use serde::Serialize;

use super::inventory::{Drive, DriveNamespace, IdentifyResult};
use super::list::DriveListing;

/// Version of the JSON format.
const VERSION: u32 = 1;

/// Formats the drives as JSON.
pub(super) fn text(listing: &DriveListing) -> anyhow::Result<String> {
    let drives = listing.inventory.drives.iter().enumerate().map(|(place, drive)| {
        let order = listing.order.iter().position(|other| *other == place);
        JsonDrive::new(drive, order)
    });
    let all = JsonDrives {
        version: VERSION,
        drives: drives.collect(),
        root_complexes: listing.loads.iter().map(JsonRootComplex::new).collect(),
        warnings: &listing.warnings,
        partial: listing.inventory.usage.is_partial(),
    };
    Ok(serde_json::to_string_pretty(&all)?)
}

#[derive(Serialize)]
struct JsonDrives<'a> {
    version: u32,
    drives: Vec<JsonDrive<'a>>,
    root_complexes: Vec<JsonRootComplex>,
    warnings: &'a [String],
    partial: bool,
}

#[derive(Serialize)]
struct JsonDrive<'a> {
    address: String,
    serial: Option<&'a str>,
    model: Option<&'a str>,
    firmware: Option<&'a str>,
    bytes: Option<u64>,
    namespaces: Vec<JsonNamespace<'a>>,
    unknown: Option<&'a str>,
    root_complex: String,
    adapter: String,
    port: Option<String>,
    slot: Option<&'a str>,
    numa_node: Option<u32>,
    iommu_group: Option<u32>,
    link: JsonLinks,
    driver: Option<&'a str>,
    driver_override: Option<&'a str>,
    in_use: Vec<JsonUser>,
    order: Option<usize>,
}

#[derive(Serialize)]
struct JsonNamespace<'a> {
    nsid: Option<u32>,
    device: Option<&'a str>,
    bytes: u64,
    block_size: Option<u32>,
}

#[derive(Serialize)]
struct JsonLinks {
    now: Option<JsonLink>,
    best: Option<JsonLink>,
}

#[derive(Serialize)]
struct JsonLink {
    gt_per_s: f64,
    width: u8,
    gb_per_s: f64,
}

#[derive(Serialize)]
struct JsonUser {
    kind: &'static str,
    text: String,
}

#[derive(Serialize)]
struct JsonRootComplex {
    root_complex: String,
    drives: usize,
    demand_gb_per_s: f64,
    capacity_gb_per_s: Option<f64>,
    capacity_is_set: bool,
    over: bool,
}

impl<'a> JsonDrive<'a> {
    fn new(drive: &'a Drive, order: Option<usize>) -> Self {
        let function = &drive.function;
        let about = drive.about();
        let spaces = about.into_iter().flat_map(|about| &about.namespaces);
        Self {
            address: function.address.to_string(),
            serial: drive.serial(),
            model: about.and_then(|about| about.model.as_deref()),
            firmware: about.and_then(|about| about.firmware.as_deref()),
            bytes: drive.bytes(),
            namespaces: spaces.map(JsonNamespace::new).collect(),
            unknown: match &drive.says {
                IdentifyResult::This(_) => None,
                IdentifyResult::Nothing(why) => Some(why),
            },
            root_complex: function.place.root_complex.to_string(),
            adapter: function.place.adapter().to_string(),
            port: function.place.port().map(|port| port.to_string()),
            slot: function.slot.as_deref(),
            numa_node: function.numa_node,
            iommu_group: function.iommu_group,
            link: JsonLinks {
                now: function.links.now.map(JsonLink::new),
                best: function.links.best.map(JsonLink::new),
            },
            driver: function.driver.as_deref(),
            driver_override: function.driver_override.as_deref(),
            in_use: drive
                .users
                .iter()
                .map(|user| JsonUser { kind: user.kind(), text: user.to_string() })
                .collect(),
            order,
        }
    }
}

impl<'a> JsonNamespace<'a> {
    fn new(space: &'a DriveNamespace) -> Self {
        let DriveNamespace { nsid, device, bytes, block_size } = space;
        Self { nsid: *nsid, device: device.as_deref(), bytes: *bytes, block_size: *block_size }
    }
}

impl JsonLink {
    fn new(link: Link) -> Self {
        Self {
            gt_per_s: f64::from(link.megatransfers) / 1000.0,
            width: link.width,
            gb_per_s: rounded(link.gb_per_s()),
        }
    }
}

impl JsonRootComplex {
    fn new(load: &RootComplexLoad) -> Self {
        Self {
            root_complex: load.root_complex.to_string(),
            drives: load.drives,
            demand_gb_per_s: rounded(load.demand_gb_per_s),
            capacity_gb_per_s: load.capacity_gb_per_s.map(rounded),
            capacity_is_set: load.is_set,
            over: load.is_over(),
        }
    }
}

/// Rounds to 0.001 GB/s (1 MB/s).
fn rounded(gb_per_s: f64) -> f64 {
    (gb_per_s * 1000.0).round() / 1000.0
}
