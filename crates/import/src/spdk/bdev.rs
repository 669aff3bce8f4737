//! Reader of SPDK's block devices.

use std::collections::BTreeMap;

use super::RpcCall;
use crate::DiskProperties;
use crate::config_builder::{ConfigBuilder, DeviceBackend, NamespaceLimit};
use crate::json::{ImportError, JsonNode, JsonObject};
use crate::note::Notes;

/// Maximum latency of a delay device in microseconds.
const LATENCY_MAX: u64 = 10_000_000;
/// Minimum and maximum members of a stripe.
const MEMBERS: std::ops::RangeInclusive<usize> = 2..=256;
/// Maximum bytes of a device.
const SIZE_MAX: u64 = i64::MAX.unsigned_abs() / 2;
/// Maximum parts of one device.
const SPLITS_MAX: u64 = 1024;

/// Maximum limits that are converted: I/Os per second, and MiB per second.
const IOPS_MAX: u64 = 1_000_000_000;
const MEBIBYTES_MAX: u64 = 1_000_000;

/// Calls that concern SPDK's internals.
const INNER: &[&str] = &[
    "bdev_set_options",
    "bdev_examine",
    "bdev_wait_for_examine",
    "bdev_nvme_set_hotplug",
    "bdev_iscsi_set_options",
    "bdev_raid_set_options",
    "bdev_enable_histogram",
];

/// A block device with SPDK's name.
#[derive(Debug, Clone)]
struct Bdev {
    /// Name of the device in the new config.
    device: String,
    /// Size in bytes, if the config has it.
    size: Option<u64>,
    /// Bytes of a block, if the config has it.
    block_size: Option<u32>,
}

/// A drive with SPDK's own driver. Its namespaces become devices when something uses them.
#[derive(Debug, Clone)]
struct Drive {
    pci: String,
}

/// Rate limit of all users of a block device together.
#[derive(Debug, Clone, Default)]
struct Quota {
    /// The last call that set it.
    path: String,
    limit: NamespaceLimit,
    /// Number of namespaces that have it.
    namespaces: usize,
}

/// The block devices so far.
pub(super) struct Bdevs<'d> {
    disks: &'d dyn DiskProperties,
    bdevs: BTreeMap<String, Bdev>,
    drives: BTreeMap<String, Drive>,
    /// Timeout of commands from `bdev_nvme_set_options`.
    timeout: Option<String>,
    /// Limits by SPDK's name.
    quotas: BTreeMap<String, Quota>,
}

impl std::fmt::Debug for Bdevs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bdevs").field("bdevs", &self.bdevs).finish_non_exhaustive()
    }
}

impl<'d> Bdevs<'d> {
    pub(super) fn new(disks: &'d dyn DiskProperties) -> Self {
        Self {
            disks,
            bdevs: BTreeMap::new(),
            drives: BTreeMap::new(),
            timeout: None,
            quotas: BTreeMap::new(),
        }
    }

    /// Creates the devices of one call.
    pub(super) fn call(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        match call.method {
            "bdev_malloc_create" | "bdev_null_create" => self.memory(builder, call, notes),
            "bdev_aio_create" | "bdev_uring_create" => self.file(builder, call, notes),
            "bdev_nvme_attach_controller" => self.attach(call, notes),
            "bdev_nvme_set_options" => self.options(call, notes),
            "bdev_raid_create" => self.raid(builder, call, notes),
            "bdev_split_create" => self.split(builder, call, notes),
            "bdev_delay_create" => self.delay(builder, call, notes),
            "bdev_passthru_create" | "bdev_error_create" => self.whole(builder, call, notes),
            "bdev_set_qos_limit" => self.limit(call, notes),
            inner if INNER.contains(&inner) => {
                notes.not_applicable(&call.path, format!("{inner} says how SPDK works inside"));
                Ok(())
            }
            other => {
                notes.unsupported(&call.path, format!("{other}: no such device here"));
                Ok(())
            }
        }
    }

    /// Stores a limit for the namespace of the device. Values that a call omits stay unchanged.
    fn limit(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let name = params.need("name")?.text()?;
        let quota = self.quotas.entry(name.to_owned()).or_default();
        quota.path.clone_from(&call.path);
        if let Some(node) = params.get("rw_ios_per_sec") {
            quota.limit.iops = Some(node.number(0..=IOPS_MAX)?).filter(|iops| *iops > 0);
        }
        if let Some(node) = params.get("rw_mbytes_per_sec") {
            let mebibytes =
                Some(node.number(0..=MEBIBYTES_MAX)?).filter(|mebibytes| *mebibytes > 0);
            quota.limit.bandwidth = mebibytes.map(|mebibytes| {
                let bytes = mebibytes << 20;
                format!("{}.{:03}kB/s", bytes / 1000, bytes % 1000)
            });
        }
        for (key, way) in [("r_mbytes_per_sec", "reads"), ("w_mbytes_per_sec", "writes")] {
            let node = params.get(key);
            if let Some(node) = node.filter(|node| node.number(0..=0).is_err()) {
                let what = format!(
                    "a limit of {way} alone ({} MiB/s) has no counterpart: `limit` counts both directions \
                     together (docs/tenants.md)",
                    node.number(0..=MEBIBYTES_MAX)?
                );
                notes.unsupported(node.path(), what);
            }
        }
        params.finish(notes);
        Ok(())
    }

    /// Returns the limit of a namespace on this block device.
    pub(super) fn limit_of(&mut self, name: &str, path: &str, notes: &mut Notes) -> NamespaceLimit {
        let Some(quota) = self.quotas.get_mut(name) else { return NamespaceLimit::default() };
        quota.namespaces += 1;
        if quota.namespaces == 2 && !quota.limit.is_empty() {
            let what = format!(
                "the limit of block device \"{}\" is one for all its namespaces there; here each has it",
                name.escape_debug()
            );
            notes.converted(path, what);
        }
        quota.limit.clone()
    }

    /// Adds notes for limits that no namespace has.
    pub(super) fn finish(self, notes: &mut Notes) {
        for (name, quota) in self.quotas {
            if quota.namespaces == 0 && !quota.limit.is_empty() {
                let what = format!(
                    "no namespace is block device \"{}\" itself: only namespaces and hosts have \
                     limits here, not layered devices (docs/tenants.md)",
                    name.escape_debug()
                );
                notes.unsupported(&quota.path, what);
            }
        }
    }

    /// Returns the device of an SPDK name; `None`, with a note, if there is none.
    pub(super) fn find(
        &mut self,
        builder: &mut ConfigBuilder,
        path: &str,
        name: &str,
        notes: &mut Notes,
    ) -> Option<String> {
        self.bdev(builder, path, name, notes).map(|bdev| bdev.device)
    }

    fn bdev(
        &mut self,
        builder: &mut ConfigBuilder,
        path: &str,
        name: &str,
        notes: &mut Notes,
    ) -> Option<Bdev> {
        if let Some(bdev) = self.bdevs.get(name) {
            return Some(bdev.clone());
        }
        if let Some(bdev) = self.namespace_of_drive(builder, name) {
            self.bdevs.insert(name.to_owned(), bdev.clone());
            return Some(bdev);
        }
        let what = format!(
            "block device \"{}\" is not created by this file, or was skipped",
            name.escape_debug()
        );
        notes.unsupported(path, what);
        None
    }

    /// Resolves names of the form `Nvme0n2`: namespace 2 of the drive attached as `Nvme0`.
    fn namespace_of_drive(&self, builder: &mut ConfigBuilder, name: &str) -> Option<Bdev> {
        let (controller, nsid) = name.rsplit_once('n')?;
        let drive = self.drives.get(controller)?;
        let nsid: u64 = nsid.parse().ok().filter(|nsid| *nsid >= 1 && *nsid < u32::MAX.into())?;
        let pci = drive.pci.clone();
        let io_timeout = self.timeout.clone();
        let device = builder.add_device(name, DeviceBackend::Nvme { pci, nsid, io_timeout });
        Some(Bdev { device, size: None, block_size: None })
    }

    fn add(&mut self, name: &str, bdev: Bdev) {
        self.bdevs.insert(name.to_owned(), bdev);
    }

    fn memory(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let name = params.need("name")?.text()?;
        let block_size = params.need("block_size")?.number(1..=u32::MAX.into())?;
        let blocks = params.need("num_blocks")?;
        let size = blocks.number(1..=u64::MAX)?.checked_mul(block_size);
        let Some(size) = size.filter(|size| *size <= SIZE_MAX) else {
            return Err(blocks.wrong("fewer blocks: a device has less than 4 EiB"));
        };
        self.metadata(&mut params, notes)?;
        params.skip(&["uuid", "optimal_io_boundary", "numa_id", "physical_block_size"]);
        params.finish(notes);
        let Some(block_size) = block_size_of(&call.path, block_size, notes) else {
            return Ok(());
        };
        let medium = match call.method {
            "bdev_malloc_create" => DeviceBackend::Ram { size, block_size },
            _ => DeviceBackend::Null { size, block_size },
        };
        let device = builder.add_device(name, medium);
        self.add(name, Bdev { device, size: Some(size), block_size: Some(block_size) });
        Ok(())
    }

    /// Metadata that is separate from the data of each block.
    fn metadata(&self, params: &mut JsonObject<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        for key in ["md_size", "dif_type"] {
            if let Some(node) = params.get(key)
                && node.number(0..=u16::MAX.into())? != 0
            {
                notes.unsupported(node.path(), "blocks have no metadata here");
            }
        }
        params.skip(&[
            "md_interleave",
            "dif_is_head_of_md",
            "dif_pi_format",
            "preferred_write_granularity",
        ]);
        Ok(())
    }

    fn file(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let name = params.need("name")?.text()?;
        let path = params.need("filename")?;
        let file = path.text()?;
        if file.is_empty() {
            return Err(path.wrong("the path of a file or block device"));
        }
        let told = match params.get("block_size") {
            Some(node) => node.number(0..=u32::MAX.into())?,
            None => 0,
        };
        let read_only = params.flag("readonly")?;
        params.skip(&["uuid", "fallocate"]);
        params.finish(notes);
        let block_size = if told != 0 {
            match block_size_of(&call.path, told, notes) {
                Some(block_size) => block_size,
                None => return Ok(()),
            }
        } else {
            // SPDK uses the block size of the device.
            self.disks.block_size(file).filter(|size| matches!(size, 512 | 4096)).unwrap_or_else(
                || {
                    let what = format!(
                        "blocks of 512 bytes are assumed: check with `blockdev --getss {file}`"
                    );
                    notes.converted(path.path(), what);
                    512
                },
            )
        };
        if !file.starts_with('/') {
            notes.converted(path.path(), "a path from the folder in which the daemon is started");
        }
        let device = match builder.file(file) {
            Some(other) => {
                let what = format!("device \"{other}\" has the same file: both are one");
                notes.converted(path.path(), what);
                other.to_owned()
            }
            None => builder
                .add_device(name, DeviceBackend::File { path: file.into(), block_size, read_only }),
        };
        let size = self.disks.size(file);
        self.add(name, Bdev { device, size, block_size: Some(block_size) });
        Ok(())
    }

    fn attach(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let name = params.need("name")?.text()?;
        let kind = params.need("trtype")?.text()?;
        let address = params.need("traddr")?;
        let pci = address.text()?;
        if !kind.eq_ignore_ascii_case("pcie") {
            let what = format!(
                "\"{name}\" is a {kind} controller elsewhere: only drives of this machine are served"
            );
            notes.unsupported(&call.path, what);
            return Ok(());
        }
        if !is_pci(pci) {
            return Err(address.wrong("a PCI address, as \"0000:01:00.0\""));
        }
        // The other parameters are SPDK's settings as a host of the drive; our driver has its own.
        notes.converted(
            &call.path,
            format!("drive {pci} has to be bound first: `nvmeof-tgt drives bind {pci}`"),
        );
        let before = self.drives.insert(name.to_owned(), Drive { pci: pci.to_ascii_lowercase() });
        if before.is_some() {
            notes.converted(&call.path, format!("\"{name}\" is attached twice: this one counts"));
        }
        Ok(())
    }

    fn options(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params()?;
        if let Some(node) = params.get("timeout_us") {
            let micros = node.number(0..=u64::MAX)?;
            if micros > 0 {
                let seconds = micros.div_ceil(1_000_000).clamp(1, 600);
                if seconds.checked_mul(1_000_000) != Some(micros) {
                    notes.converted(node.path(), format!("{micros} us become {seconds} s"));
                }
                self.timeout = Some(format!("{seconds}s"));
            }
        }
        notes.not_applicable(&call.path, "but for timeout_us it says how SPDK works inside");
        Ok(())
    }

    fn raid(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let name = params.need("name")?.text()?;
        let level = params.need("raid_level")?;
        let level = if level.is_text() { level.text()?.to_owned() } else { level.shown() };
        let listed = params.need("base_bdevs")?;
        let names = member_names(&listed)?;
        let superblock = params.flag("superblock")?;
        let strip = params.get("strip_size_kb").or_else(|| params.get("strip_size"));
        let kib = strip.map_or(Ok(0), |node| node.number(0..=1 << 30))?;
        params.skip(&["uuid", "delta_bitmap"]);
        params.finish(notes);
        let why = if !matches!(level.to_ascii_lowercase().as_str(), "raid0" | "0") {
            format!("is a {level}: only RAID-0 is served")
        } else if superblock {
            "has a superblock in front of the data: a stripe would not find the data".into()
        } else if kib == 0 {
            "does not say how large its strips are".into()
        } else if !MEMBERS.contains(&names.len()) {
            format!("has {} members, a stripe has 2 to 256", names.len())
        } else {
            return self.stripe(builder, call, (name, names, kib * 1024), notes);
        };
        notes.unsupported(&call.path, format!("\"{name}\" {why}"));
        Ok(())
    }

    /// Adds a stripe `name` over the members `names` with their paths, with chunks of `chunk`
    /// bytes.
    fn stripe(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        (name, names, chunk): (&str, Vec<(String, &str)>, u64),
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let count = names.len();
        let mut members: Vec<Bdev> = Vec::new();
        for (path, base) in names {
            let Some(bdev) = self.bdev(builder, &path, base, notes) else { continue };
            if members.iter().any(|other| other.device == bdev.device) {
                notes.unsupported(&path, format!("\"{base}\" is a member already"));
                continue;
            }
            members.push(bdev);
        }
        if members.len() < count {
            notes.unsupported(&call.path, format!("\"{name}\" lacks members"));
            return Ok(());
        }
        let block_size = members.iter().find_map(|bdev| bdev.block_size);
        if members.iter().any(|bdev| bdev.block_size.is_some() && bdev.block_size != block_size) {
            notes.unsupported(&call.path, format!("members of \"{name}\" have different blocks"));
            return Ok(());
        }
        // Each member contributes the whole chunks of the smallest one.
        let sizes = members.iter().map(|bdev| bdev.size).collect::<Option<Vec<_>>>();
        let size = sizes.and_then(|sizes| {
            let each = sizes.iter().min()? / chunk * chunk;
            each.checked_mul(sizes.len().try_into().ok()?)
        });
        let members = members.into_iter().map(|bdev| bdev.device).collect();
        let device = builder.add_device(name, DeviceBackend::Stripe { members, chunk });
        self.add(name, Bdev { device, size, block_size });
        Ok(())
    }

    fn split(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let node = params.need("base_bdev")?;
        let name = node.text()?;
        let count = params.need("split_count")?.number(1..=SPLITS_MAX)?;
        let mib = match params.get("split_size_mb") {
            Some(node) => node.number(0..=1 << 40)?,
            None => 0,
        };
        params.finish(notes);
        let Some(base) = self.bdev(builder, node.path(), name, notes) else { return Ok(()) };
        let block = u64::from(base.block_size.unwrap_or(512));
        let part = match (mib, base.size) {
            (0, Some(size)) => size / count / block * block,
            (0, None) => {
                let what =
                    format!("the size of \"{name}\" is not known here: give `split_size_mb`");
                notes.unsupported(&call.path, what);
                return Ok(());
            }
            (mib, _) => mib << 20,
        };
        let end = part.checked_mul(count).filter(|end| *end <= base.size.unwrap_or(SIZE_MAX));
        if part == 0 || end.is_none() {
            let what = format!("\"{name}\" has no room for {count} parts of {part} bytes");
            notes.unsupported(&call.path, what);
            return Ok(());
        }
        for index in 0..count {
            let split = format!("{name}p{index}");
            let offset = index * part;
            let medium =
                DeviceBackend::Split { base: base.device.clone(), offset, size: Some(part) };
            let device = builder.add_device(&split, medium);
            self.add(&split, Bdev { device, size: Some(part), block_size: base.block_size });
        }
        Ok(())
    }

    fn delay(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let name = params.need("name")?.text()?;
        let node = params.need("base_bdev_name")?;
        let mut latency = |key: &str| -> Result<u64, ImportError> {
            let node = params.need(key)?;
            let micros = node.number(0..=u64::MAX)?;
            if micros > LATENCY_MAX {
                notes.converted(node.path(), format!("{micros} us become 10 s, the most there is"));
            }
            Ok(micros.min(LATENCY_MAX))
        };
        let (read, write) = (latency("avg_read_latency")?, latency("avg_write_latency")?);
        let (read_p99, write_p99) = (latency("p99_read_latency")?, latency("p99_write_latency")?);
        if read_p99 > read || write_p99 > write {
            let what =
                "one command of a hundred took p99_*_latency there: here all take the average";
            notes.converted(&call.path, what);
        }
        params.skip(&["uuid"]);
        params.finish(notes);
        let Some(base) = self.bdev(builder, node.path(), node.text()?, notes) else {
            return Ok(());
        };
        let medium = DeviceBackend::Delay {
            base: base.device,
            read_latency: format!("{read}us"),
            write_latency: format!("{write}us"),
        };
        let device = builder.add_device(name, medium);
        self.add(name, Bdev { device, ..base_of(base.size, base.block_size) });
        Ok(())
    }

    /// Adds a device that has all of another one: a passthrough device, or one that injects errors.
    fn whole(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let fails = call.method == "bdev_error_create";
        let node = params.need(if fails { "base_name" } else { "base_bdev_name" })?;
        let base_name = node.text()?;
        let name = match fails {
            true => format!("EE_{base_name}"),
            false => params.need("name")?.text()?.to_owned(),
        };
        params.skip(&["uuid"]);
        params.finish(notes);
        let Some(base) = self.bdev(builder, node.path(), base_name, notes) else { return Ok(()) };
        let medium = match fails {
            true => DeviceBackend::Fault { base: base.device },
            false => DeviceBackend::Split { base: base.device, offset: 0, size: None },
        };
        let device = builder.add_device(&name, medium);
        self.add(&name, Bdev { device, ..base_of(base.size, base.block_size) });
        Ok(())
    }
}

/// Returns the names of a RAID's members and their paths. Versions before 19 had one text with the
/// names separated by blanks.
fn member_names<'a>(listed: &JsonNode<'a>) -> Result<Vec<(String, &'a str)>, ImportError> {
    if listed.is_text() {
        let names = listed.text()?.split_whitespace();
        return Ok(names.map(|name| (listed.path().to_owned(), name)).collect());
    }
    listed.list()?.iter().map(|node| Ok((node.path().to_owned(), node.text()?))).collect()
}

/// Returns the properties that a device inherits from its base device.
fn base_of(size: Option<u64>, block_size: Option<u32>) -> Bdev {
    Bdev { device: String::new(), size, block_size }
}

/// Returns a block size that hosts can use.
fn block_size_of(path: &str, bytes: u64, notes: &mut Notes) -> Option<u32> {
    match u32::try_from(bytes) {
        Ok(known @ (512 | 4096)) => Some(known),
        _ => {
            let what = format!("blocks of {bytes} bytes: there are 512 and 4096 here");
            notes.unsupported(path, what);
            None
        }
    }
}

/// Returns true for text of the form `0000:01:00.0`; the domain is optional.
fn is_pci(text: &str) -> bool {
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit())
    };
    let (rest, function) = match text.rsplit_once('.') {
        Some((rest, function)) => (rest, function),
        None => return false,
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let is_slot = match parts.as_slice() {
        [domain, bus, device] => hex(domain, 4) && hex(bus, 2) && hex(device, 2),
        [bus, device] => hex(bus, 2) && hex(device, 2),
        _ => false,
    };
    is_slot && hex(function, 1)
}
