//! Opens the device that a config entry describes.

use std::sync::Arc;

use anyhow::Context as _;
use nvmeof_api::units::show_size;
use nvmeof_core::block::fault::{FaultControl, FaultDevice};
use nvmeof_core::block::{
    BlockDevice, BlockError, BlockQueue, DelayDevice, DeviceInfo, FileDevice, NullDevice,
    NvmeDevice, RamDevice, SplitDevice, StripeDevice,
};
use nvmeof_core::dma::CorePool;

use super::preopen::PreopenedDevices;
use crate::clock;
use crate::config::{Device, DeviceKind};

/// Part of a device that can change while it is open.
#[derive(Debug, Clone)]
pub(super) enum DeviceHandle {
    /// Nothing.
    Fixed,
    /// Its size: another device with the same bytes replaces it.
    Ram(Arc<RamDevice>),
    /// Its size, in the same way.
    File(Arc<FileDevice>),
    /// Its latency.
    Delay(Arc<DelayDevice>),
    /// Its faults.
    Fault(Arc<FaultControl>),
    /// Nothing, but the drive's namespace may change without a config change.
    Drive(Arc<NvmeDevice>),
    /// Nothing: it is the placeholder of a missing device.
    MissingDevice,
}

/// Opens the device of a config entry on its bases; drives and files come from `preopened`.
pub(super) fn open_device(
    config: &Device,
    mut bases: Vec<Arc<dyn BlockDevice>>,
    preopened: &mut PreopenedDevices,
) -> anyhow::Result<(Arc<dyn BlockDevice>, DeviceHandle)> {
    let name = config.name.as_str();
    let block_size = || config.block_size.context("block size is unknown");
    let mut base = || bases.pop().context("base is not open");
    Ok(match &config.kind {
        DeviceKind::Null { size } => fixed(NullDevice::new(name, *size, block_size()?)?),
        DeviceKind::Ram { size } => {
            let device = RamDevice::new(name, *size, block_size()?);
            ram(device.with_context(|| no_memory(*size))?)
        }
        DeviceKind::File(_) => file(preopened.file(name)?),
        DeviceKind::Nvme(_) => {
            let device = Arc::new(preopened.drive(name)?);
            (Arc::clone(&device) as Arc<dyn BlockDevice>, DeviceHandle::Drive(device))
        }
        DeviceKind::Split { offset, size, .. } => {
            fixed(SplitDevice::new(name, base()?, *offset, *size)?)
        }
        DeviceKind::Stripe { chunk, .. } => fixed(StripeDevice::new(name, bases, *chunk)?),
        DeviceKind::Delay { latency, seed, .. } => {
            let device = DelayDevice::new(name, base()?, *latency, clock::now).seeded(*seed);
            let device = Arc::new(device);
            (Arc::clone(&device) as Arc<dyn BlockDevice>, DeviceHandle::Delay(device))
        }
        DeviceKind::Fault { plan, gone, .. } => {
            let (device, control) =
                FaultDevice::with_clock(name, base()?, plan.clone(), clock::now);
            if *gone {
                control.remove();
            }
            (Arc::new(device), DeviceHandle::Fault(control))
        }
    })
}

/// Returns a placeholder for a missing device; it only reports the properties of that device.
pub(super) fn missing_device(info: &DeviceInfo) -> Arc<dyn BlockDevice> {
    Arc::new(MissingDevice(info.clone()))
}

/// Formats the reason why memory of this size is not available.
fn no_memory(size: u64) -> String {
    let size = show_size(size);
    format!("cannot allocate {size}: reduce \"size\" or raise the memory limit of the process")
}

fn fixed(device: impl BlockDevice + 'static) -> (Arc<dyn BlockDevice>, DeviceHandle) {
    (Arc::new(device), DeviceHandle::Fixed)
}

fn ram(device: RamDevice) -> (Arc<dyn BlockDevice>, DeviceHandle) {
    let device = Arc::new(device);
    (Arc::clone(&device) as Arc<dyn BlockDevice>, DeviceHandle::Ram(device))
}

fn file(device: FileDevice) -> (Arc<dyn BlockDevice>, DeviceHandle) {
    let device = Arc::new(device);
    (Arc::clone(&device) as Arc<dyn BlockDevice>, DeviceHandle::File(device))
}

impl DeviceHandle {
    /// Returns memory with the same bytes and the size of `wanted`.
    ///
    /// It is `None` if the device is not memory. (`preopened` resizes files.)
    pub(super) fn resized(
        &self,
        wanted: &Device,
    ) -> anyhow::Result<Option<(Arc<dyn BlockDevice>, Self)>> {
        Ok(match (self, &wanted.kind) {
            (Self::Ram(old), DeviceKind::Ram { size }) => {
                Some(ram(old.resized(*size).with_context(|| no_memory(*size))?))
            }
            _ => None,
        })
    }

    /// Discards a device that was just opened: removes its file if the device created it.
    pub(super) fn undo_create(&self) {
        if let Self::File(device) = self {
            device.undo_create();
        }
    }

    /// Keeps this device; its [resized](Self::resized) successor is not used.
    pub(super) fn revert_resize(&self) {
        match self {
            Self::Ram(device) => device.revert_resize(),
            Self::File(device) => device.revert_resize(),
            Self::Fixed
            | Self::Delay(_)
            | Self::Fault(_)
            | Self::Drive(_)
            | Self::MissingDevice => {}
        }
    }

    /// Applies changes of `config` that an open device can take.
    pub(super) fn change(&self, config: &Device) {
        let name = &config.name;
        match (&config.kind, self) {
            (DeviceKind::Delay { latency, .. }, Self::Delay(delay)) => {
                delay.set_latency(*latency);
                tracing::info!(device = %name, read = ?latency.read, write = ?latency.write,
                    read_jitter = ?latency.read_jitter, write_jitter = ?latency.write_jitter,
                    "latency changed");
            }
            (DeviceKind::Fault { plan, gone, .. }, Self::Fault(control)) => {
                control.set_plan(plan.clone());
                if *gone {
                    control.remove();
                } else {
                    control.restore();
                }
                tracing::info!(device = %name, gone, ?plan, "faults changed");
            }
            (DeviceKind::Nvme(_), _) => {
                tracing::warn!(
                    device = %name,
                    "queue-depth and io-timeout take effect when the drive is reopened"
                );
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
struct MissingDevice(DeviceInfo);

impl BlockDevice for MissingDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn open_queue(&self, _pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Err(BlockError::Gone)
    }

    fn is_gone(&self) -> bool {
        true
    }
}
