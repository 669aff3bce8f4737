//! Block devices of SPDK on other block devices.

use super::super::RpcCall;
use super::super::identity::{BdevUuid, Layer};
use super::{Bdev, Bdevs, SIZE_MAX, keys};
use crate::config_builder::{ConfigBuilder, DeviceBackend};
use crate::json::{ImportError, JsonNode};
use crate::note::Notes;

/// Maximum latency of a delay device in microseconds.
const LATENCY_MAX: u64 = 10_000_000;
/// Minimum and maximum members of a stripe.
const MEMBERS: std::ops::RangeInclusive<usize> = 2..=256;
/// Maximum parts of one device.
const SPLITS_MAX: u64 = 1024;

/// Name and UUID of a stripe, its members with their paths, and the bytes of a chunk.
struct RaidZero<'a> {
    name: &'a str,
    uuid: BdevUuid,
    members: Vec<(String, &'a str)>,
    chunk: u64,
}

impl Bdevs<'_> {
    pub(super) fn raid(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::RAID)?;
        let name = params.need("name")?.text()?;
        let level = params.need("raid_level")?;
        let level = if level.is_text() { level.text()?.to_owned() } else { level.shown() };
        let listed = params.need("base_bdevs")?;
        let names = member_names(&listed)?;
        let superblock = params.flag("superblock")?;
        let strip = params.get("strip_size_kb").or_else(|| params.get("strip_size"));
        let kib = strip.map_or(Ok(0), |node| node.number(0..=1 << 30))?;
        let uuid = BdevUuid::stated(params.text("uuid")?, BdevUuid::Random);
        params.finish(notes);
        if self.is_taken(call, name, notes) {
            return Ok(());
        }
        let why = if !matches!(level.to_ascii_lowercase().as_str(), "raid0" | "0") {
            format!("is a {level}: only RAID-0 is served")
        } else if superblock {
            "has a superblock in front of the data: a stripe would not find the data".into()
        } else if kib == 0 {
            "does not say how large its strips are".into()
        } else if !MEMBERS.contains(&names.len()) {
            format!("has {} members, a stripe has 2 to 256", names.len())
        } else {
            let raid = RaidZero { name, uuid, members: names, chunk: kib * 1024 };
            return self.stripe(builder, call, raid, notes);
        };
        notes.unsupported(&call.path, format!("\"{name}\" {why}"));
        Ok(())
    }

    fn stripe(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        raid: RaidZero<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let RaidZero { name, uuid, members: names, chunk } = raid;
        let count = names.len();
        let mut members: Vec<Bdev> = Vec::new();
        for (path, base) in names {
            let Some(bdev) = self.find(builder, &path, base, notes) else { continue };
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
        self.add(name, Bdev { device, size, block_size, uuid });
        Ok(())
    }

    pub(super) fn split(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::SPLIT)?;
        let node = params.need("base_bdev")?;
        let name = node.text()?;
        let count = params.need("split_count")?.number(1..=SPLITS_MAX)?;
        let mib = match params.get("split_size_mb") {
            Some(node) => node.number(0..=1 << 40)?,
            None => 0,
        };
        params.finish(notes);
        let Some(base) = self.find(builder, node.path(), name, notes) else { return Ok(()) };
        let block = u64::from(base.block_size.unwrap_or(512));
        let part = match (mib, base.size) {
            (0, Some(size)) => size / block / count * block,
            (0, None) => {
                let what = format!(
                    "the size of \"{name}\" is not known here: give `split_size_mb`, or run the \
                     import on that machine while the kernel's nvme driver has the drive"
                );
                notes.unsupported(&call.path, what);
                return Ok(());
            }
            (mib, _) => mib << 20,
        };
        let room = base.size.unwrap_or(SIZE_MAX).checked_div(part).unwrap_or(0);
        if room == 0 {
            let what = format!("\"{name}\" has no room for a part of {part} bytes");
            notes.unsupported(&call.path, what);
            return Ok(());
        }
        if room < count {
            let what = format!("\"{name}\" has room for {room} parts of {count}, as before");
            notes.converted(&call.path, what);
        }
        for index in 0..count.min(room) {
            self.part(builder, call, (name, &base), (index, part), notes);
        }
        Ok(())
    }

    /// Adds the part `index` of `bytes` bytes of a device.
    fn part(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        (name, base): (&str, &Bdev),
        (index, bytes): (u64, u64),
        notes: &mut Notes,
    ) {
        let split = format!("{name}p{index}");
        if self.is_taken(call, &split, notes) {
            return;
        }
        let offset = index * bytes;
        let layer = match base.block_size.map(u64::from) {
            Some(block) => Layer::Part { offset: offset / block, blocks: bytes / block },
            None => Layer::Other,
        };
        let size = Some(bytes);
        let medium = DeviceBackend::Split { base: base.device.clone(), offset, size };
        let device = builder.add_device(&split, medium);
        let uuid = base.uuid.of(layer);
        self.add(&split, Bdev { device, size, block_size: base.block_size, uuid });
    }

    pub(super) fn delay(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::DELAY)?;
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
        let uuid = params.text("uuid")?;
        params.finish(notes);
        if self.is_taken(call, name, notes) {
            return Ok(());
        }
        let Some(base) = self.find(builder, node.path(), node.text()?, notes) else {
            return Ok(());
        };
        let medium = DeviceBackend::Delay {
            base: base.device.clone(),
            read_latency: format!("{read}us"),
            write_latency: format!("{write}us"),
        };
        let device = builder.add_device(name, medium);
        let uuid = BdevUuid::stated(uuid, base.uuid.of(Layer::Delay));
        self.add(name, Bdev { device, uuid, ..base });
        Ok(())
    }

    /// Adds a device that has all of another one: a passthrough device, or one that injects errors.
    pub(super) fn whole(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let fails = call.method == "bdev_error_create";
        let mut params = call.params(if fails { keys::ERROR } else { keys::PASSTHROUGH })?;
        let node = params.need(if fails { "base_name" } else { "base_bdev_name" })?;
        let base_name = node.text()?;
        let name = if fails {
            format!("EE_{base_name}")
        } else if let Some(old) = params.text("passthru_bdev_name")? {
            old.to_owned()
        } else {
            params.need("name")?.text()?.to_owned()
        };
        let uuid = params.text("uuid")?;
        params.finish(notes);
        if self.is_taken(call, &name, notes) {
            return Ok(());
        }
        let Some(base) = self.find(builder, node.path(), base_name, notes) else { return Ok(()) };
        let (medium, layer) = if fails {
            (DeviceBackend::Fault { base: base.device.clone() }, Layer::Other)
        } else {
            let base = base.device.clone();
            (DeviceBackend::Split { base, offset: 0, size: None }, Layer::Passthrough)
        };
        let device = builder.add_device(&name, medium);
        let uuid = BdevUuid::stated(uuid, base.uuid.of(layer));
        self.add(&name, Bdev { device, uuid, ..base });
        Ok(())
    }
}

/// Returns the names of a RAID's members and their paths. Versions before 19 had one text with the
/// names separated by blanks.
pub(super) fn member_names<'a>(
    listed: &JsonNode<'a>,
) -> Result<Vec<(String, &'a str)>, ImportError> {
    if listed.is_text() {
        let names = listed.text()?.split_whitespace();
        return Ok(names.map(|name| (listed.path().to_owned(), name)).collect());
    }
    listed.list()?.iter().map(|node| Ok((node.path().to_owned(), node.text()?))).collect()
}
