//! Config space of a function (PCI Express Base 5.0, section 7.5.1), accessed through its device's
//! file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

const VENDOR: u64 = 0x00;
const COMMAND: u64 = 0x04;
const STATUS: u64 = 0x06;
/// Status bit that indicates a list of capabilities.
const HAS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: u64 = 0x34;
/// Command bit that allows a function to read and write memory.
const BUS_MASTER: u16 = 1 << 2;
/// Command bit that enables accesses to the function's BARs.
const MEMORY: u16 = 1 << 1;
/// Value of any 16-bit register of a missing function.
const GONE: u16 = 0xffff;
/// Maximum number of capabilities: they follow the header of 64 bytes and have at least four bytes
/// each.
const CHAIN: usize = 48;

/// Capability identifiers (PCI Code and ID Assignment 1.11, section 2).
pub(super) const CAP_PCIE: u8 = 0x10;
/// MSI-X.
pub(super) const CAP_MSIX: u8 = 0x11;

/// Offset of Device Capabilities in the PCI Express capability, and its bit for function level
/// reset.
const PCIE_DEVICE: u64 = 4;
const FUNCTION_LEVEL_RESET: u32 = 1 << 28;

/// The config space, at an offset of a device's file.
#[derive(Debug)]
pub(super) struct ConfigSpace {
    file: File,
    offset: u64,
    /// Held from reading a register to writing it back.
    changing: Mutex<()>,
}

impl ConfigSpace {
    pub(super) fn new(file: File, offset: u64) -> Self {
        Self { file, offset, changing: Mutex::new(()) }
    }

    /// Returns true if the function responds.
    pub(super) fn is_there(&self) -> bool {
        self.read16(VENDOR).is_ok_and(|vendor| vendor != GONE)
    }

    /// Sets the bus master bit (and keeps the registers accessible), and verifies it.
    pub(super) fn set_bus_master(&self, on: bool) -> io::Result<()> {
        let _only = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let was = self.read16(COMMAND)?;
        if was == GONE {
            return Err(gone());
        }
        let wanted = if on { was | BUS_MASTER } else { was & !BUS_MASTER } | MEMORY;
        self.file.write_all_at(&wanted.to_le_bytes(), self.offset + COMMAND)?;
        let now = self.read16(COMMAND)?;
        if now == GONE {
            return Err(gone());
        }
        if (now & BUS_MASTER != 0) != on {
            return Err(io::Error::other("cannot change the bus master bit of the function"));
        }
        Ok(())
    }

    /// Returns the offset of a capability, found by walking the list.
    pub(super) fn capability(&self, id: u8) -> io::Result<Option<u64>> {
        if self.read16(STATUS)? & HAS_CAPABILITIES == 0 {
            return Ok(None);
        }
        let mut next = self.read8(CAPABILITIES)? & !3;
        for _ in 0..CHAIN {
            // Below 0x40 is the header: the list has ended, or is invalid.
            if next < 0x40 {
                return Ok(None);
            }
            let at = u64::from(next);
            let [this, following] = self.read16(at)?.to_le_bytes();
            if this == id {
                return Ok(Some(at));
            }
            next = following & !3;
        }
        Ok(None)
    }

    /// Returns true if the function supports function level reset (FLR). Otherwise the kernel has
    /// other methods, which may also reset neighboring functions.
    pub(super) fn has_function_level_reset(&self) -> io::Result<bool> {
        let Some(at) = self.capability(CAP_PCIE)? else { return Ok(false) };
        Ok(self.read32(at + PCIE_DEVICE)? & FUNCTION_LEVEL_RESET != 0)
    }

    fn read8(&self, at: u64) -> io::Result<u8> {
        let mut bytes = [0; 1];
        self.file.read_exact_at(&mut bytes, self.offset + at)?;
        Ok(bytes[0])
    }

    fn read16(&self, at: u64) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, self.offset + at)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn read32(&self, at: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, self.offset + at)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// Returns the error of a function that no longer responds.
pub(super) fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the function is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a config space in a file, at an offset.
    fn space(bytes: &[(u64, &[u8])]) -> ConfigSpace {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(0x1100).expect("its size");
        for (at, bytes) in bytes {
            file.write_all_at(bytes, 0x1000 + at).expect("bytes");
        }
        ConfigSpace::new(file, 0x1000)
    }

    /// PCIe with FLR at 0x80, MSI-X at 0x40, and another capability between them.
    const DRIVE: &[(u64, &[u8])] = &[
        (0x00, &[0x36, 0x1b, 0x10, 0x00]),
        (0x04, &[0x02, 0x01, 0x10, 0x00]),
        (0x34, &[0x40]),
        (0x40, &[CAP_MSIX, 0x60, 0x07, 0x80]),
        (0x60, &[0x01, 0x81]),
        (0x80, &[CAP_PCIE, 0x00, 0x02, 0x00, 0x00, 0x80, 0x00, 0x10]),
    ];

    #[test]
    fn the_bus_master_bit_is_set_alone() {
        let space = space(DRIVE);
        assert!(space.is_there());
        space.set_bus_master(true).expect("set");
        assert_eq!(space.read16(COMMAND).expect("command"), 0x0106);
        space.set_bus_master(false).expect("cleared");
        assert_eq!(space.read16(COMMAND).expect("command"), 0x0102);
    }

    #[test]
    fn capabilities_are_found_by_their_list() {
        let space = space(DRIVE);
        assert_eq!(space.capability(CAP_MSIX).expect("list"), Some(0x40));
        assert_eq!(space.capability(CAP_PCIE).expect("list"), Some(0x80));
        assert_eq!(space.capability(0x05).expect("list"), None);
        assert!(space.has_function_level_reset().expect("list"));
    }

    #[test]
    fn a_function_without_a_list_has_no_capability() {
        let space = space(&[(0x04, &[0, 0, 0, 0]), (0x34, &[0x40]), (0x40, &[CAP_MSIX, 0])]);
        assert_eq!(space.capability(CAP_MSIX).expect("list"), None);
        assert!(!space.has_function_level_reset().expect("list"));
    }

    #[test]
    fn a_list_in_a_circle_ends() {
        let space =
            space(&[(0x06, &[0x10]), (0x34, &[0x40]), (0x40, &[1, 0x44]), (0x44, &[1, 0x40])]);
        assert_eq!(space.capability(CAP_MSIX).expect("list"), None);
    }

    #[test]
    fn a_function_that_is_gone_is_an_error() {
        let space = space(&[(0x00, &[0xff; 0x40])]);
        assert!(!space.is_there());
        let error = space.set_bus_master(true).expect_err("gone");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert!(
            ConfigSpace::new(tempfile::tempfile().expect("a file"), 0)
                .set_bus_master(true)
                .is_err()
        );
    }
}
