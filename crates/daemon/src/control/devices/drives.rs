//! Drives of the VFIO driver: one controller per drive, shared by its served namespaces.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use nvmeof_core::block::NvmeDevice;
use nvmeof_core::dma::ChunkPool;
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions, ControllerState};
use nvmeof_core::vfio;

use crate::config::Drive;
use crate::limits::DriveQueues;

/// Function that opens a PCI function by its address.
pub(in crate::control) type OpenFunction = fn(&str) -> anyhow::Result<Arc<dyn Function>>;

/// Opens it with VFIO.
pub(in crate::control) fn from_vfio(address: &str) -> anyhow::Result<Arc<dyn Function>> {
    Ok(vfio::open(address)?)
}

/// The controllers in use, by PCI address.
#[derive(Debug)]
pub(super) struct Drives {
    maps: Arc<BufferMaps>,
    controllers: BTreeMap<String, Weak<Controller>>,
    take: OpenFunction,
}

impl Drives {
    /// Creates an empty set, for buffers of `pool`.
    pub(super) fn new(pool: &Arc<ChunkPool>, take: OpenFunction) -> Self {
        Self { maps: Arc::new(BufferMaps::new(pool)), controllers: BTreeMap::new(), take }
    }

    /// Opens a namespace of a drive; the first one opens the drive's PCI function.
    pub(super) fn open(
        &mut self,
        name: &str,
        drive: &Drive,
        queues: DriveQueues,
    ) -> anyhow::Result<NvmeDevice> {
        let controller = match self.controller(&drive.pci) {
            Some(controller) => controller,
            None => self.take(drive, queues)?,
        };
        let there = controller.queues();
        anyhow::ensure!(
            there >= queues.needed,
            "the drive at {} has {there} queue pairs, {} are needed: one for each reactor, for \
             this device and each device layered on it; reduce their number, or restart the \
             daemon if the drive supports more",
            drive.pci,
            queues.needed,
        );
        Ok(NvmeDevice::new(name, controller, drive.nsid, Arc::clone(&self.maps))?)
    }

    /// Returns the controller in use at this address, unless it has failed.
    fn controller(&self, pci: &str) -> Option<Arc<Controller>> {
        let controller = self.controllers.get(pci)?.upgrade()?;
        let failed = matches!(controller.state(), ControllerState::Failed(_));
        (!failed).then_some(controller)
    }

    fn take(&mut self, drive: &Drive, queues: DriveQueues) -> anyhow::Result<Arc<Controller>> {
        let options = ControllerOptions {
            io_queues: u16::try_from(queues.wanted).unwrap_or(u16::MAX),
            queue_depth: drive.queue_depth,
            io_timeout: drive.io_timeout,
            ..ControllerOptions::default()
        };
        let controller = Controller::open((self.take)(&drive.pci)?, options)?;
        let identity = controller.identity();
        tracing::info!(pci = drive.pci, ?identity, queues = controller.queues(), "drive taken");
        self.controllers.retain(|_, known| known.strong_count() > 0);
        self.controllers.insert(drive.pci.clone(), Arc::downgrade(&controller));
        Ok(controller)
    }
}
