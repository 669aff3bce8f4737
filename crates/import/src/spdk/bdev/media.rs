//! Block devices of SPDK that have their own data: memory, files and drives.

use super::super::RpcCall;
use super::super::identity::BdevUuid;
use super::{Bdev, Bdevs, Drive, SIZE_MAX, keys};
use crate::config_builder::{ConfigBuilder, DeviceBackend};
use crate::json::{ImportError, JsonNode};
use crate::note::Notes;

impl Bdevs<'_> {
    pub(super) fn memory(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::MEMORY)?;
        let name = params.need("name")?.text()?;
        let block_size = params.need("block_size")?.number(1..=u32::MAX.into())?;
        let blocks = params.need("num_blocks")?;
        let size = blocks.number(1..=u64::MAX)?.checked_mul(block_size);
        let Some(size) = size.filter(|size| *size <= SIZE_MAX) else {
            return Err(blocks.wrong("fewer blocks: a device has less than 4 EiB"));
        };
        if let Some(node) = params.get("physical_block_size") {
            let physical = node.number(0..=u32::MAX.into())?;
            if physical != 0 && physical != block_size {
                let what = format!("hosts see {block_size} bytes as the best size of a write");
                notes.unsupported(node.path(), what);
            }
        }
        let uuid = BdevUuid::stated(params.text("uuid")?, BdevUuid::Random);
        params.finish(notes);
        if self.is_taken(call, name, notes) {
            return Ok(());
        }
        let Some(block_size) = block_size_of(&call.path, block_size, notes) else {
            return Ok(());
        };
        let medium = match call.method {
            "bdev_malloc_create" => DeviceBackend::Ram { size, block_size },
            _ => DeviceBackend::Null { size, block_size },
        };
        let device = builder.add_device(name, medium);
        self.add(name, Bdev { device, size: Some(size), block_size: Some(block_size), uuid });
        Ok(())
    }

    pub(super) fn file(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::FILE)?;
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
        let uuid = BdevUuid::stated(params.text("uuid")?, BdevUuid::Random);
        params.finish(notes);
        if self.is_taken(call, name, notes) {
            return Ok(());
        }
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
        let medium = DeviceBackend::File { path: file.into(), block_size, read_only };
        let Some(device) = file_device(builder, name, medium, &path, notes) else {
            return Ok(());
        };
        let size = self.disks.size(file);
        self.add(name, Bdev { device, size, block_size: Some(block_size), uuid });
        Ok(())
    }

    pub(super) fn attach(
        &mut self,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::DRIVE)?;
        let name = params.need("name")?.text()?;
        let kind = params.need("trtype")?.text()?;
        let address = params.need("traddr")?;
        if !kind.eq_ignore_ascii_case("pcie") {
            let what = format!(
                "\"{name}\" is a controller elsewhere ({kind}): only drives of this machine are served"
            );
            notes.unsupported(&call.path, what);
            return Ok(());
        }
        let Some((domain, rest)) = pci(address.text()?) else {
            return Err(address.wrong("a PCI address, as \"0000:01:00.0\""));
        };
        params.finish(notes);
        let Ok(domain) = u16::try_from(domain) else {
            let what = format!("\"{name}\" is behind a VMD: turn that off in the firmware");
            notes.unsupported(&call.path, what);
            return Ok(());
        };
        let pci = format!("{domain:04x}:{rest}");
        notes.converted(
            &call.path,
            format!("drive {pci} has to be bound first: `nvmeof-tgt drives bind {pci}`"),
        );
        let before = self.drives.insert(name.to_owned(), Drive { pci });
        if before.is_some() {
            notes.converted(&call.path, format!("\"{name}\" is attached twice: this one counts"));
        }
        Ok(())
    }

    pub(super) fn options(
        &mut self,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::DRIVES)?;
        let action = params.text("action_on_timeout")?.unwrap_or("none").to_ascii_lowercase();
        if let Some(node) = params.get("timeout_us") {
            let micros = node.number(0..=u64::MAX)?;
            if micros > 0 {
                let seconds = micros.div_ceil(1_000_000).clamp(1, 600);
                if seconds.checked_mul(1_000_000) != Some(micros) {
                    notes.converted(node.path(), format!("{micros} us become {seconds} s"));
                }
                if action != "abort" {
                    let what = format!(
                        "a command that takes {seconds} s is aborted, and then the drive is reset \
                         (docs/drives.md); action_on_timeout was {action}"
                    );
                    notes.converted(node.path(), what);
                }
                self.timeout = Some(format!("{seconds}s"));
            }
        }
        if let Some(node) = params.get("generate_uuids")
            && node.flag()?
        {
            let what = "a namespace of a drive without identifiers had a UUID from the drive's \
                        serial number: set `uuid` to it";
            notes.converted(node.path(), what);
        }
        params.finish(notes);
        Ok(())
    }
}

/// Returns the device of the file at `path`, which is new or equal to `medium`. Returns `None`,
/// with a note, if the file has a different device: `medium` would lose its write protection or its
/// block size.
fn file_device(
    builder: &mut ConfigBuilder,
    name: &str,
    medium: DeviceBackend,
    path: &JsonNode<'_>,
    notes: &mut Notes,
) -> Option<String> {
    let Some((other, same)) = builder.file(path.text().ok()?) else {
        return Some(builder.add_device(name, medium));
    };
    if *same != medium {
        let what = format!(
            "device \"{other}\" has the same file with a different block_size or readonly, and a \
             file has one device here: \"{}\" and its namespaces are not served",
            name.escape_debug()
        );
        notes.unsupported(path.path(), what);
        return None;
    }
    notes.converted(path.path(), format!("device \"{other}\" has the same file: both are one"));
    Some(other.to_owned())
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

/// Returns the domain of a PCI address, and the rest as `01:00.0`. SPDK takes a colon or a point
/// between all parts; the domain is optional.
fn pci(text: &str) -> Option<(u32, String)> {
    let parts: Vec<&str> = text.trim().split([':', '.']).collect();
    let (domain, [bus, device, function]) = match parts.as_slice() {
        [domain, rest @ ..] if rest.len() == 3 => (*domain, <[&str; 3]>::try_from(rest).ok()?),
        rest => ("0", <[&str; 3]>::try_from(rest).ok()?),
    };
    let hex = |text: &str, most: u32| {
        let number = u32::from_str_radix(text, 16).ok().filter(|number| *number <= most);
        number.filter(|_| text.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let (bus, device) = (hex(bus, 0xff)?, hex(device, 0x1f)?);
    let rest = format!("{bus:02x}:{device:02x}.{:x}", hex(function, 7)?);
    Some((hex(domain, u32::MAX)?, rest))
}
