//! Signatures on a block device that identify it as part of an array or pool, active or not.
//!
//! | of | signature | location |
//! |---|---|---|
//! | LVM | `LABELONE` .. `LVM2 001` | in one of the first four sectors |
//! | MD RAID | 0xa92b4efc, little-endian | at 0 (1.1), 4 KiB (1.2), last 8 (1.0) or 64 KiB (0.90) |
//! | ZFS | uberblock, 0x00bab10c in either order | in the first label, from 128 KiB, every KiB |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

const SECTOR: usize = 512;
const KIB: u64 = 1024;
const MD: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
const ZFS: [u8; 8] = 0x00ba_b10c_u64.to_le_bytes();
/// Number of uberblocks in the first label: from 128 KiB to 256 KiB.
const UBERBLOCKS: u64 = 128;

/// Returns the array or pool that the device is a member of, as a phrase.
pub(super) fn signature(device: &File) -> io::Result<Option<&'static str>> {
    let front = read(device, 0, 8 * 1024)?;
    let lvm = front.chunks_exact(SECTOR).take(4).any(|sector| {
        sector.starts_with(b"LABELONE")
            && sector.get(24..32).is_some_and(|kind| kind == b"LVM2 001")
    });
    if lvm {
        return Ok(Some("a physical volume of LVM"));
    }
    let size = size(device)?;
    let ends = [
        size.saturating_sub(8 * KIB) & !(4 * KIB - 1),
        (size & !(64 * KIB - 1)).saturating_sub(64 * KIB),
    ];
    let mut places = vec![read(device, 0, 4)?, read(device, 4 * KIB, 4)?];
    for end in ends {
        places.push(read(device, end, 4)?);
    }
    if places.iter().any(|place| *place == MD) {
        return Ok(Some("a member of an MD RAID"));
    }
    let label = read(device, UBERBLOCKS * KIB, 128 * 1024)?;
    let big = reversed(ZFS);
    let zfs =
        label.chunks_exact(1024).any(|block| block.starts_with(&ZFS) || block.starts_with(&big));
    Ok(zfs.then_some("a member of a ZFS pool"))
}

fn reversed(mut bytes: [u8; 8]) -> [u8; 8] {
    bytes.reverse();
    bytes
}

/// Reads up to `len` bytes; fewer at the end of the device.
fn read(device: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let at = offset + u64::try_from(filled).map_err(io::Error::other)?;
        match device.read_at(&mut bytes[filled..], at) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Returns the size by seeking, which works for block devices and files alike.
fn size(device: &File) -> io::Result<u64> {
    use std::io::{Seek as _, SeekFrom};
    let mut device = device;
    device.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(size: u64, marks: &[(u64, &[u8])]) -> Option<&'static str> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (offset, mark) in marks {
            file.write_all_at(mark, *offset).unwrap();
        }
        signature(&file).unwrap()
    }

    #[test]
    fn marks_at_their_places() {
        let size = (1 << 20) + 12 * 512;
        assert_eq!(with(size, &[]), None);
        assert_eq!(
            with(size, &[(512, b"LABELONE"), (536, b"LVM2 001")]),
            Some("a physical volume of LVM")
        );
        assert_eq!(with(size, &[(512, b"LABELONE")]), None);
        for place in [0, 4096, ((size - 8192) / 4096) * 4096, (1 << 20) - 65536] {
            assert_eq!(with(size, &[(place, &MD)]), Some("a member of an MD RAID"), "{place}");
        }
        assert_eq!(with(size, &[(8192, &MD)]), None);
        assert_eq!(with(size, &[(132 * 1024, &ZFS)]), Some("a member of a ZFS pool"));
        assert_eq!(with(size, &[(255 * 1024, &reversed(ZFS))]), Some("a member of a ZFS pool"));
        assert_eq!(with(size, &[(64 * 1024, &ZFS)]), None);
    }

    #[test]
    fn devices_too_small_for_any() {
        for size in [0, 1, 512, 4095, 8192, 65536] {
            assert_eq!(with(size, &[]), None, "{size}");
        }
    }
}
