//! From a device of the config to one that is open.

use std::sync::Arc;

use anyhow::Context as _;
use nvmeof_core::block::fault::{FaultControl, FaultDevice};
use nvmeof_core::block::{
    BlockDevice, BlockError, BlockQueue, DelayDevice, DeviceInfo, FileDevice, NullDevice,
    NvmeDevice, RamDevice, SplitDevice, StripeDevice,
};
use nvmeof_core::dma::CorePool;

use super::groundwork::Groundwork;
use crate::clock;
use crate::config::{Device, DeviceKind, show_size};

/// What of a device can be changed while it is open.
#[derive(Debug, Clone)]
pub(super) enum Live {
    /// Nothing.
    Fixed,
    /// Its size: another device of the same bytes takes its place.
    Ram(Arc<RamDevice>),
    /// Its size, in the same way.
    File(Arc<FileDevice>),
    /// Its latency.
    Delay(Arc<DelayDevice>),
    /// Its faults.
    Fault(Arc<FaultControl>),
    /// Nothing, but a drive may change by itself.
    Drive(Arc<NvmeDevice>),
    /// Nothing: it stands for a device that is gone.
    Ghost,
}

/// Opens what a config describes on what it stands on, or takes it from the groundwork, where it may wait.
pub(super) fn make(
    config: &Device,
    mut bases: Vec<Arc<dyn BlockDevice>>,
    groundwork: &mut Groundwork,
) -> anyhow::Result<(Arc<dyn BlockDevice>, Live)> {
    let name = config.name.as_str();
    let block_size = || config.block_size.context("its block size is not known");
    let mut base = || bases.pop().context("its base is not open");
    Ok(match &config.kind {
        DeviceKind::Null { size } => fixed(NullDevice::new(name, *size, block_size()?)?),
        DeviceKind::Ram { size } => {
            let device = RamDevice::new(name, *size, block_size()?);
            ram(device.with_context(|| no_memory(*size))?)
        }
        DeviceKind::File(_) => file(groundwork.file(name)?),
        DeviceKind::Nvme(_) => {
            let device = Arc::new(groundwork.drive(name)?);
            (Arc::clone(&device) as Arc<dyn BlockDevice>, Live::Drive(device))
        }
        DeviceKind::Split { offset, size, .. } => {
            fixed(SplitDevice::new(name, base()?, *offset, *size)?)
        }
        DeviceKind::Stripe { chunk, .. } => fixed(StripeDevice::new(name, bases, *chunk)?),
        DeviceKind::Delay { latency, seed, .. } => {
            let device = DelayDevice::new(name, base()?, *latency, clock::now).seeded(*seed);
            let device = Arc::new(device);
            (Arc::clone(&device) as Arc<dyn BlockDevice>, Live::Delay(device))
        }
        DeviceKind::Fault { plan, gone, .. } => {
            let (device, control) =
                FaultDevice::with_clock(name, base()?, plan.clone(), clock::now);
            if *gone {
                control.remove();
            }
            (Arc::new(device), Live::Fault(control))
        }
    })
}

/// What stands in the place of a device that is gone: it can tell what that was, and nothing else.
pub(super) fn ghost(info: &DeviceInfo) -> Arc<dyn BlockDevice> {
    Arc::new(Ghost(info.clone()))
}

/// Why memory of this size cannot be had.
fn no_memory(size: u64) -> String {
    let size = show_size(size);
    format!(
        "this machine cannot give it {size} of memory; make it smaller, or the process's limit larger"
    )
}

fn fixed(device: impl BlockDevice + 'static) -> (Arc<dyn BlockDevice>, Live) {
    (Arc::new(device), Live::Fixed)
}

fn ram(device: RamDevice) -> (Arc<dyn BlockDevice>, Live) {
    let device = Arc::new(device);
    (Arc::clone(&device) as Arc<dyn BlockDevice>, Live::Ram(device))
}

fn file(device: FileDevice) -> (Arc<dyn BlockDevice>, Live) {
    let device = Arc::new(device);
    (Arc::clone(&device) as Arc<dyn BlockDevice>, Live::File(device))
}

impl Live {
    /// Memory of the same bytes with the size that `wanted` has; nothing if it is no memory. (A file gets another size
    /// in the groundwork.)
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

    /// A device that was just opened is not to be: what was made for it goes.
    pub(super) fn unmake(&self) {
        if let Self::File(device) = self {
            device.unmake();
        }
    }

    /// What was [resized](Self::resized) is not used: this device stays.
    pub(super) fn prevail(&self) {
        match self {
            Self::Ram(device) => device.prevail(),
            Self::File(device) => device.prevail(),
            Self::Fixed | Self::Delay(_) | Self::Fault(_) | Self::Drive(_) | Self::Ghost => {}
        }
    }

    /// Makes an open device what `config` wants, where it can be.
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
                tracing::warn!(device = %name, "queue-depth and io-timeout take effect when the drive \
                    is opened anew");
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
struct Ghost(DeviceInfo);

impl BlockDevice for Ghost {
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
