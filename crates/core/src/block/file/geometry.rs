//! Geometry of a file or a kernel block device.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::sysfs::block_folder;
use crate::block::Geometry;

/// Bytes per sector of sysfs.
const SECTOR: u64 = 512;

/// Maximum unit of a file system; a network file system reports its transfer size instead.
const UNIT_MAX: u64 = 128 << 10;

/// Returns the geometry of an open file or block device.
pub(super) fn of_file(file: &OwnedFd) -> Geometry {
    match block_folder(file).and_then(|folder| fs::canonicalize(folder).ok()) {
        Some(folder) => of_block_device(&folder),
        None => of_regular_file(file),
    }
}

/// Geometry of a file: the file system allocates and frees units of one size.
fn of_regular_file(file: &OwnedFd) -> Geometry {
    let unit = rustix::fs::fstat(file).ok().and_then(|stat| u64::try_from(stat.st_blksize).ok());
    let unit = unit.filter(|unit| unit.is_power_of_two() && *unit <= UNIT_MAX);
    Geometry {
        write_granularity: unit,
        write_alignment: unit,
        deallocate_granularity: unit,
        deallocate_alignment: unit,
        ..Geometry::default()
    }
}

/// Geometry of the block device with this folder in sysfs: the limits of its queue.
fn of_block_device(folder: &Path) -> Geometry {
    let number = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    // A partition has no queue: that of its drive is one folder up.
    let limit = |name: &str| {
        let own = number(&format!("queue/{name}"));
        own.or_else(|| number(&format!("../queue/{name}"))).filter(|limit| *limit > 0)
    };
    // Offsets of the first aligned byte; -1 if there is none.
    let is_aligned =
        |name: &str| number(name).unwrap_or(0) == 0 && !is_negative(&folder.join(name));
    let aligned = |size: Option<u64>, offset: &str| size.filter(|_| is_aligned(offset));
    let write = limit("minimum_io_size").max(limit("physical_block_size"));
    let deallocate = limit("discard_granularity");
    let start = number("start").unwrap_or(0).saturating_mul(SECTOR);
    let boundary = limit("chunk_sectors").map(|sectors| sectors.saturating_mul(SECTOR));
    Geometry {
        write_granularity: write,
        write_alignment: aligned(write, "alignment_offset"),
        deallocate_granularity: deallocate,
        deallocate_alignment: aligned(deallocate, "discard_alignment"),
        optimal_write: limit("optimal_io_size"),
        boundary: boundary.filter(|boundary| start.is_multiple_of(*boundary)),
    }
}

fn is_negative(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn put(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn drive(limits: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in limits {
            put(folder.path(), name, text);
        }
        folder
    }

    #[test]
    fn a_raid_reports_its_chunk_and_its_stripe() {
        let raid = drive(&[
            ("queue/physical_block_size", "4096"),
            ("queue/minimum_io_size", "524288"),
            ("queue/optimal_io_size", "1048576"),
            ("queue/discard_granularity", "4096"),
            ("queue/chunk_sectors", "1024"),
            ("alignment_offset", "0"),
            ("discard_alignment", "0"),
        ]);
        let geometry = Geometry {
            write_granularity: Some(512 * KIB),
            write_alignment: Some(512 * KIB),
            deallocate_granularity: Some(4 * KIB),
            deallocate_alignment: Some(4 * KIB),
            optimal_write: Some(1024 * KIB),
            boundary: Some(512 * KIB),
        };
        assert_eq!(of_block_device(raid.path()), geometry);
        // Its partitions start on a boundary, or do not.
        put(raid.path(), "md0p1/start", "2048");
        put(raid.path(), "md0p1/alignment_offset", "0");
        assert_eq!(of_block_device(&raid.path().join("md0p1")), geometry);
        put(raid.path(), "md0p2/start", "4100");
        put(raid.path(), "md0p2/alignment_offset", "522240");
        put(raid.path(), "md0p2/discard_alignment", "2048");
        let misaligned = Geometry {
            write_alignment: None,
            deallocate_alignment: None,
            boundary: None,
            ..geometry
        };
        assert_eq!(of_block_device(&raid.path().join("md0p2")), misaligned);
    }

    #[test]
    fn zero_and_missing_limits_are_no_limits() {
        let disk = drive(&[
            ("queue/physical_block_size", "4096"),
            ("queue/minimum_io_size", "512"),
            ("queue/optimal_io_size", "0"),
            ("queue/discard_granularity", "0"),
            ("queue/chunk_sectors", "0"),
            ("alignment_offset", "-1"),
        ]);
        let geometry = Geometry { write_granularity: Some(4096), ..Geometry::default() };
        assert_eq!(of_block_device(disk.path()), geometry);
        assert_eq!(of_block_device(Path::new("/nonexistent")), Geometry::default());
    }

    #[test]
    fn a_file_has_the_unit_of_its_file_system() {
        let file = tempfile::tempfile().unwrap();
        let unit = rustix::fs::fstat(&file).unwrap().st_blksize.try_into().unwrap();
        let geometry = of_file(&file.into());
        assert_eq!(geometry.write_granularity, Some(unit));
        assert_eq!((geometry.optimal_write, geometry.boundary), (None, None));
    }
}
