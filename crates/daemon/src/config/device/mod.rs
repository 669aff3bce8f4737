//! Devices: a file for each type, with the validation of its keys.

mod delay;
mod drive;
mod fault;
mod file;
mod memory;
mod names;
mod split;
mod stripe;

use std::time::Duration;

use nvmeof_api::document::DeviceConfig;
use nvmeof_core::block::fault::FaultPlan;
use nvmeof_core::block::{FileConfig, Latency};

use super::report::Report;
use super::table::Positions;

pub(crate) use names::Names;

/// A block device to open. Two devices are equal if all fields are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name in the config; no two are the same.
    pub name: String,
    /// Bytes of a logical block: 512 or 4096. A device layered on another has the base's.
    ///
    /// `None` if only the open device has the value: a drive, or a device layered on one.
    pub block_size: Option<u32>,
    /// Type of the device, with its parameters.
    pub kind: DeviceKind,
}

/// Type of a device, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    /// No storage: reads return zeroes, writes are discarded.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Memory, allocated when it is written.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// A file or a block device.
    File(FileConfig),
    /// Another device with added latency.
    Delay {
        /// Name of the base; it comes before this device.
        base: String,
        /// Latency added to that of the base.
        latency: Latency,
        /// Seed of its jitter.
        seed: u64,
    },
    /// A range of another device.
    Split {
        /// Name of the base; it comes before this device.
        base: String,
        /// First byte.
        offset: u64,
        /// Bytes; up to the end if `None`.
        size: Option<u64>,
    },
    /// Several devices as one, striped in chunks.
    Stripe {
        /// Names of the members, each once and in order; they come before this device.
        members: Vec<String>,
        /// Bytes of a chunk.
        chunk: u64,
    },
    /// Another device with injected faults.
    Fault {
        /// Name of the base; it comes before this device.
        base: String,
        /// Faults that are injected automatically.
        plan: FaultPlan,
        /// True if the device is missing.
        gone: bool,
    },
    /// A namespace of a drive of the VFIO driver.
    Nvme(Drive),
}

/// A namespace of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// PCI address of the drive, like `0000:01:00.0`.
    pub pci: String,
    /// Namespace ID on the drive.
    pub nsid: u32,
    /// Entries of a queue; the same for all namespaces of a drive.
    pub queue_depth: u16,
    /// Timeout of a command; the same for all namespaces of a drive.
    pub io_timeout: Duration,
}

impl DeviceKind {
    /// Validates the keys of a device; returns its bytes of a block, too, if it has its own.
    ///
    /// Problems are reported; then the result is `None`.
    pub(crate) fn of(
        report: &mut Report<'_>,
        config: &DeviceConfig,
        at: &Positions,
        names: &Names<'_>,
    ) -> Option<(Self, Option<u32>)> {
        let kind = match config {
            DeviceConfig::Null(keys) => {
                let (size, block_size) = memory::memory(report, keys, at)?;
                return Some((Self::Null { size }, Some(block_size)));
            }
            DeviceConfig::Ram(keys) => {
                let (size, block_size) = memory::memory(report, keys, at)?;
                return Some((Self::Ram { size }, Some(block_size)));
            }
            DeviceConfig::File(keys) => {
                let (file, block_size) = file::file(report, keys, at, names.own)?;
                return Some((Self::File(file), Some(block_size)));
            }
            DeviceConfig::Nvme(keys) => drive::drive(report, keys, at),
            DeviceConfig::Split(keys) => split::split(report, keys, at, names),
            DeviceConfig::Stripe(keys) => stripe::stripe(report, keys, at, names),
            DeviceConfig::Delay(keys) => delay::delay(report, keys, at, names),
            DeviceConfig::Fault(keys) => fault::fault(report, keys, at, names),
        };
        Some((kind?, None))
    }

    /// Returns the name of the type in the config.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Null { .. } => "null",
            Self::Ram { .. } => "ram",
            Self::File(_) => "file",
            Self::Nvme(_) => "nvme",
            Self::Split { .. } => "split",
            Self::Stripe { .. } => "stripe",
            Self::Delay { .. } => "delay",
            Self::Fault { .. } => "fault",
        }
    }

    /// Returns the bytes that the config gives it; `None` if they follow from a base or are known
    /// only when it is open.
    #[must_use]
    pub fn own_size(&self) -> Option<u64> {
        match self {
            Self::Null { size } | Self::Ram { size } => Some(*size),
            Self::File(file) => file.size,
            _ => None,
        }
    }

    /// Returns true if an open device of this kind can become `other` without reopening.
    ///
    /// Only added latency, faults, and settings of a drive may differ.
    #[must_use]
    pub fn can_become(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Delay { base, seed, .. }, Self::Delay { base: b, seed: s, .. }) => {
                base == b && seed == s
            }
            (Self::Fault { base, .. }, Self::Fault { base: other, .. }) => base == other,
            (Self::Nvme(drive), Self::Nvme(other)) => {
                drive.pci == other.pci && drive.nsid == other.nsid
            }
            _ => false,
        }
    }

    /// Returns the names of the devices that this one is directly layered on.
    #[must_use]
    pub fn bases(&self) -> &[String] {
        match self {
            Self::Null { .. } | Self::Ram { .. } | Self::File(_) | Self::Nvme(_) => &[],
            Self::Delay { base, .. } | Self::Split { base, .. } | Self::Fault { base, .. } => {
                std::slice::from_ref(base)
            }
            Self::Stripe { members, .. } => members,
        }
    }
}
