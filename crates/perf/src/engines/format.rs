//! Formats drives to an LBA format, if requested and the drive may be erased.

use std::collections::BTreeMap;

use nvmeof_engines::{Engine, OpenFunction};
use nvmeof_report::engines::{EngineRow, ReadLayout, RowOutcome};
use nvmeof_wire::format::SecureErase;
use nvmeof_wire::identify::LbaFormat;

use super::drives::{DescribedDrive, open_drive};
use crate::target::DeviceSpec;

/// The requested formats, and the formats that drives had before.
#[derive(Debug)]
pub(super) struct DriveFormats<'a> {
    /// Bytes of a block; empty: the current formats.
    wanted: &'a [u32],
    /// Serial numbers of drives that may be erased.
    destroy: &'a [String],
    /// Bytes of a block before the first change, by name.
    before: BTreeMap<String, u32>,
}

impl<'a> DriveFormats<'a> {
    pub(super) fn new(wanted: &'a [u32], destroy: &'a [String]) -> Self {
        Self { wanted, destroy, before: BTreeMap::new() }
    }

    /// Formats to measure; `None` stands for every drive in its current format.
    pub(super) fn wanted(&self) -> Vec<Option<u32>> {
        match self.wanted {
            [] => vec![None],
            wanted => wanted.iter().copied().map(Some).collect(),
        }
    }

    /// Formats drives that have another format. Each drive that keeps its format becomes a row with
    /// the reason.
    pub(super) fn change(
        &mut self,
        drives: &mut [DescribedDrive],
        wanted: Option<u32>,
        open_function: OpenFunction<'_>,
    ) -> Vec<EngineRow> {
        let Some(wanted) = wanted else { return Vec::new() };
        let mut rows = Vec::new();
        for drive in drives.iter_mut().filter(|drive| drive.lba_bytes != wanted) {
            let before = drive.lba_bytes;
            match self.change_one(drive, wanted, open_function) {
                Ok(()) => {
                    self.before.entry(drive.name.clone()).or_insert(before);
                }
                Err(why) => rows.push(EngineRow {
                    lba_bytes: wanted,
                    layout: ReadLayout::Single,
                    drives: vec![drive.name.clone()],
                    engine: if drive.is_ours() { Engine::Vfio.name() } else { "all" }.to_owned(),
                    concurrency: 0,
                    outcome: RowOutcome::Unable(why),
                    note: None,
                }),
            }
        }
        rows
    }

    /// Returns true if a drive was formatted.
    pub(super) fn has_changed(&self, drive: &DescribedDrive) -> bool {
        self.before.contains_key(&drive.name)
    }

    /// Restores the earlier formats; returns an error for each drive where that failed.
    pub(super) fn restore(
        &mut self,
        drives: &mut [DescribedDrive],
        open_function: OpenFunction<'_>,
    ) -> Vec<String> {
        let before = std::mem::take(&mut self.before);
        let mut problems = Vec::new();
        for (name, block_size) in before {
            let Some(drive) = drives.iter_mut().find(|drive| drive.name == name) else { continue };
            if drive.lba_bytes == block_size {
                continue;
            }
            if let Err(why) = self.change_one(drive, block_size, open_function) {
                problems.push(format!(
                    "{name} is left formatted with {} bytes a block, and had {block_size}: {why}",
                    drive.lba_bytes
                ));
            }
        }
        problems
    }

    fn change_one(
        &self,
        drive: &mut DescribedDrive,
        wanted: u32,
        open_function: OpenFunction<'_>,
    ) -> Result<(), String> {
        let (name, now) = (&drive.name, drive.lba_bytes);
        let DeviceSpec::Pci { address, .. } = &drive.spec else {
            return Err(format!(
                "it has blocks of {now} bytes; to measure {wanted} give --rebind and --destroy-data SERIAL, or bind \
                 it to vfio-pci and format it: `nvmeof-tgt drives format --block-size {wanted}`"
            ));
        };
        if !self.destroy.contains(&drive.serial) {
            return Err(format!(
                "it has blocks of {now} bytes; to measure {wanted} it has to be formatted, which erases it: \
                 --destroy-data {}",
                if drive.serial.is_empty() { "SERIAL" } else { &drive.serial }
            ));
        }
        let controller = open_drive(&address.to_string(), open_function)?;
        // The open controller is exclusive. The earlier description could be of another drive.
        if controller.identity().serial != drive.serial {
            return Err(format!("{name} has become another drive: not formatted"));
        }
        let say = |error: nvmeof_core::nvme_driver::AdminError| format!("{name}: {error}");
        let formats = controller.formats(drive.nsid).map_err(say)?;
        let number = LbaFormat::fastest(&formats, wanted).ok_or_else(|| {
            format!("{name} has no LBA format with blocks of {wanted} bytes and no metadata")
        })?;
        controller
            .format(drive.nsid, number, SecureErase::NONE, &mut |_| {})
            .map_err(|error| format!("formatting {name} failed: {error}"))?;
        let space = controller.namespace(drive.nsid).map_err(|error| error.to_string())?;
        (drive.lba_bytes, drive.bytes) = (space.block_size, space.size());
        Ok(())
    }
}
