//! Slow steps for devices, run by threads outside the control plane's loop.
//!
//! A drive may fail to initialize or to shut down, and a file's server may not answer. A thread
//! waits for them, while the daemon serves signals, hosts and other devices.
//!
//! ```text
//!   begin --earlier devices are closed--> drives --unless abandoned--> files --> PreopenedDevices
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvmeof_core::block::{Claim, FileConfig, FileDevice, NvmeDevice};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::drives::Drives;
use super::origin::origin;
use crate::config::Drive;
use crate::limits::DriveQueues;

/// A device to open or to resize.
#[derive(Debug)]
pub(super) struct PreopenRequest {
    pub(super) name: String,
    pub(super) what: PreopenKind,
}

/// Operation on a device.
#[derive(Debug)]
pub(super) enum PreopenKind {
    /// Opens a namespace of a drive.
    Drive(Drive, DriveQueues),
    /// Opens a file.
    File(FileConfig),
    /// Resizes an open file.
    Resize(Arc<FileDevice>, Option<u64>),
}

/// Devices that were opened in advance, or the errors, by device name.
#[derive(Debug, Default)]
pub(in crate::control) struct PreopenedDevices {
    drives: BTreeMap<String, anyhow::Result<NvmeDevice>>,
    files: BTreeMap<String, anyhow::Result<OpenedFile>>,
}

/// A file that was opened, or an open one with another size.
#[derive(Debug)]
struct OpenedFile {
    device: FileDevice,
    /// The open device with the same file.
    was: Option<Arc<FileDevice>>,
    /// Distinguishes the file from another one at the path; `None` for a resized file.
    origin: Option<String>,
}

/// A running task that opens devices. If dropped, it continues, and its devices are closed.
#[derive(Debug)]
pub(in crate::control) struct PreopenTask {
    task: JoinHandle<PreopenedDevices>,
    at: Arc<AtomicU8>,
}

/// Drives are being opened.
const AT_DRIVES: u8 = 0;
/// Files are being opened; no other task can open them while they are open.
const AT_FILES: u8 = 1;
const GIVEN_UP: u8 = 2;

impl PreopenTask {
    /// Begins the work on `orders` when `before` has completed.
    ///
    /// The result of `instead_of`, which was abandoned, is kept until drives are open. Drives that
    /// both tasks need are then shared, not closed and reopened. The files of `claims` are open,
    /// and another device may take them over.
    pub(super) fn new(
        drives: &Arc<Mutex<Drives>>,
        orders: Vec<PreopenRequest>,
        claims: Vec<Claim>,
        before: impl Future<Output = ()> + Send + 'static,
        instead_of: Option<Self>,
    ) -> Self {
        let (drives, at) = (Arc::clone(drives), Arc::new(AtomicU8::new(AT_DRIVES)));
        let here = Arc::clone(&at);
        let (of_drives, of_files): (Vec<_>, Vec<_>) =
            orders.into_iter().partition(|order| matches!(order.what, PreopenKind::Drive(..)));
        let task = tokio::spawn(async move {
            before.await;
            let mut preopened = PreopenedDevices::default();
            preopened.drives =
                run_blocking(of_drives, move |orders| open_drives(&drives, orders)).await;
            drop(instead_of);
            if pass(&here, AT_FILES) {
                preopened.files =
                    run_blocking(of_files, move |orders| open_files(orders, claims)).await;
            }
            preopened
        });
        Self { task, at }
    }

    /// Abandons the task if it is not too late; otherwise the caller has to wait for it.
    pub(in crate::control) fn give_up(&self) -> bool {
        pass(&self.at, GIVEN_UP)
    }

    /// Returns true if [`done`](Self::done) would not wait.
    #[cfg(test)]
    pub(super) fn is_done(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns the result, once.
    pub(in crate::control) async fn done(&mut self) -> PreopenedDevices {
        // A thread that panicked has reported it.
        (&mut self.task).await.unwrap_or_default()
    }
}

/// Leaves the drive stage, if the task is in it.
fn pass(at: &AtomicU8, to: u8) -> bool {
    at.compare_exchange(AT_DRIVES, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Runs the orders in a thread, if there are any.
async fn run_blocking<T: Default + Send + 'static>(
    orders: Vec<PreopenRequest>,
    open: impl FnOnce(Vec<PreopenRequest>) -> T + Send + 'static,
) -> T {
    if orders.is_empty() {
        return T::default();
    }
    spawn_blocking(move || open(orders)).await.unwrap_or_default()
}

fn open_drives(
    drives: &Mutex<Drives>,
    orders: Vec<PreopenRequest>,
) -> BTreeMap<String, anyhow::Result<NvmeDevice>> {
    let mut opened = BTreeMap::new();
    for PreopenRequest { name, what } in orders {
        let PreopenKind::Drive(drive, queues) = what else { continue };
        let mut drives = drives.lock().unwrap_or_else(PoisonError::into_inner);
        let device = drives.open(&name, &drive, queues);
        opened.insert(name, device);
    }
    opened
}

fn open_files(
    orders: Vec<PreopenRequest>,
    mut claims: Vec<Claim>,
) -> BTreeMap<String, anyhow::Result<OpenedFile>> {
    let mut opened = BTreeMap::new();
    for PreopenRequest { name, what } in orders {
        let file = match what {
            PreopenKind::File(config) => {
                FileDevice::take_over(&config, &mut claims).map(|device| {
                    let origin = Some(origin(&device, &config.path));
                    OpenedFile { device, was: None, origin }
                })
            }
            PreopenKind::Resize(was, size) => {
                was.resized(size).map(|device| OpenedFile { device, was: Some(was), origin: None })
            }
            PreopenKind::Drive(..) => continue,
        };
        opened.insert(name, file.map_err(anyhow::Error::from));
    }
    opened
}

impl PreopenedDevices {
    /// Returns the text that distinguishes an opened file from another one at its path.
    pub(super) fn origin(&self, name: &str) -> Option<String> {
        self.files.get(name)?.as_ref().ok()?.origin.clone()
    }

    /// Takes the opened namespace of a drive, or the error.
    pub(super) fn drive(&mut self, name: &str) -> anyhow::Result<NvmeDevice> {
        self.drives.remove(name).unwrap_or_else(changed)
    }

    /// Takes the opened file, or the error.
    pub(super) fn file(&mut self, name: &str) -> anyhow::Result<FileDevice> {
        self.files.remove(name).unwrap_or_else(changed).map(|opened| opened.device)
    }

    /// Returns true if nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.drives.is_empty() && self.files.is_empty()
    }

    /// Closes the rest in a thread.
    pub(in crate::control) async fn close_in_background(self) {
        if !self.is_empty() {
            // The closure panics, or the runtime drops it when the program ends. Neither can be
            // handled.
            let _ = spawn_blocking(move || self.close()).await;
        }
    }

    /// Closes the rest. This may take long.
    pub(super) fn close(mut self) {
        self.close_all();
    }

    fn close_all(&mut self) {
        for opened in std::mem::take(&mut self.files).into_values().flatten() {
            if let Some(was) = &opened.was {
                was.revert_resize();
            }
            opened.device.undo_create();
        }
        // Dropping the last namespace of a drive shuts the drive down.
        self.drives.clear();
    }
}

fn changed<T>() -> anyhow::Result<T> {
    Err(anyhow::anyhow!("changed during the reload; run \"nvmeofctl reload\" again"))
}

impl Drop for PreopenedDevices {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        let left = std::mem::take(self);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || left.close())),
            Err(_) => left.close(),
        }
    }
}

/// Drops a value of a drive in a thread.
pub(super) async fn drop_aside(what: impl Send + 'static) {
    // The closure panics, or the runtime drops it when the program ends. Neither can be handled.
    let _ = spawn_blocking(move || drop(what)).await;
}
