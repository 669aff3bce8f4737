//! What takes long about drives, done by threads beside the control plane: one that does not get ready, or does not
//! shut down, is waited for while signals, hosts and other devices are served.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use nvmeof_core::block::NvmeDevice;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::drives::Drives;
use crate::config::Drive;
use crate::limits::DriveQueues;

/// A device that is to be opened of a drive.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) drive: Drive,
    pub(super) queues: DriveQueues,
}

/// Drives' namespaces that were opened ahead, or why they were not, by the names of their devices.
#[derive(Debug, Default)]
pub(in crate::control) struct Groundwork(BTreeMap<String, anyhow::Result<NvmeDevice>>);

impl Groundwork {
    /// Begins to open what is ordered. Whoever does not want it any more drops the handle.
    pub(super) fn begin(drives: &Arc<Mutex<Drives>>, orders: Vec<Order>) -> JoinHandle<Self> {
        let drives = Arc::clone(drives);
        spawn_blocking(move || {
            let mut opened = BTreeMap::new();
            for Order { name, drive, queues } in orders {
                let mut drives = drives.lock().unwrap_or_else(PoisonError::into_inner);
                let device = drives.open(&name, &drive, queues);
                opened.insert(name, device);
            }
            Self(opened)
        })
    }

    /// What came of a device.
    pub(super) fn take(&mut self, name: &str) -> anyhow::Result<NvmeDevice> {
        self.0.remove(name).context("it changed meanwhile: reload the config once more")?
    }
}

impl Drop for Groundwork {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.0);
        if left.is_empty() {
            return;
        }
        // The last of a drive's namespaces shuts it down.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(left));
        }
    }
}

/// Drops something of drives beside the control plane.
pub(super) async fn drop_aside(what: impl Send + 'static) {
    // It panics or is dropped when the program ends; there is nothing to be done about either.
    let _ = spawn_blocking(move || drop(what)).await;
}
