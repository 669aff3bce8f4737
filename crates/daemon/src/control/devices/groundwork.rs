//! What takes long about devices, done by threads beside the control plane: a drive that does not get ready or does not
//! shut down, and a file whose server does not answer, are waited for while signals, hosts and other devices are served.
//!
//! ```text
//!   begin --what left before has left--> drives --unless given up--> files --> Groundwork
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

/// A device that is to be opened, or to get another size.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) what: What,
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum What {
    /// To open a namespace of a drive.
    Drive(Drive, DriveQueues),
    /// To open a file.
    File(FileConfig),
    /// To give a file that is open another size.
    Resize(Arc<FileDevice>, Option<u64>),
}

/// Devices that were opened ahead, or why they were not, by their names.
#[derive(Debug, Default)]
pub(in crate::control) struct Groundwork {
    drives: BTreeMap<String, anyhow::Result<NvmeDevice>>,
    files: BTreeMap<String, anyhow::Result<OpenedFile>>,
}

/// A file that was opened, or the same with another size.
#[derive(Debug)]
struct OpenedFile {
    device: FileDevice,
    /// What it is the same file as.
    was: Option<Arc<FileDevice>>,
    /// What tells it from another at its path; none of what was open before.
    origin: Option<String>,
}

/// Groundwork that is under way. Dropped, it goes on, and what comes of it is closed.
#[derive(Debug)]
pub(in crate::control) struct Begun {
    task: JoinHandle<Groundwork>,
    at: Arc<AtomicU8>,
}

/// Drives are being opened.
const AT_DRIVES: u8 = 0;
/// Files are: one that is open cannot be opened by somebody else.
const AT_FILES: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Begun {
    /// Begins to do what is ordered when `before` is done. What comes of `instead_of`, which was given up, is kept
    /// until drives are open: those that both want are shared, not closed and opened again. Files
    /// of `claims` are open, and can be had by another device.
    pub(super) fn new(
        drives: &Arc<Mutex<Drives>>,
        orders: Vec<Order>,
        claims: Vec<Claim>,
        before: impl Future<Output = ()> + Send + 'static,
        instead_of: Option<Self>,
    ) -> Self {
        let (drives, at) = (Arc::clone(drives), Arc::new(AtomicU8::new(AT_DRIVES)));
        let here = Arc::clone(&at);
        let (of_drives, of_files): (Vec<_>, Vec<_>) =
            orders.into_iter().partition(|order| matches!(order.what, What::Drive(..)));
        let task = tokio::spawn(async move {
            before.await;
            let mut groundwork = Groundwork::default();
            groundwork.drives = aside(of_drives, move |orders| open_drives(&drives, orders)).await;
            drop(instead_of);
            if pass(&here, AT_FILES) {
                groundwork.files = aside(of_files, move |orders| open_files(orders, claims)).await;
            }
            groundwork
        });
        Self { task, at }
    }

    /// Gives it up, if it is not too late for that: then it has to be waited for.
    pub(in crate::control) fn give_up(&self) -> bool {
        pass(&self.at, GIVEN_UP)
    }

    /// Whether [`done`](Self::done) would not wait.
    #[cfg(test)]
    pub(super) fn is_done(&self) -> bool {
        self.task.is_finished()
    }

    /// What comes of it, once.
    pub(in crate::control) async fn done(&mut self) -> Groundwork {
        // A thread that panicked has said so.
        (&mut self.task).await.unwrap_or_default()
    }
}

/// Goes on from drives, if that is where it is.
fn pass(at: &AtomicU8, to: u8) -> bool {
    at.compare_exchange(AT_DRIVES, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Does what is ordered in a thread, if anything is.
async fn aside<T: Default + Send + 'static>(
    orders: Vec<Order>,
    open: impl FnOnce(Vec<Order>) -> T + Send + 'static,
) -> T {
    if orders.is_empty() {
        return T::default();
    }
    spawn_blocking(move || open(orders)).await.unwrap_or_default()
}

fn open_drives(
    drives: &Mutex<Drives>,
    orders: Vec<Order>,
) -> BTreeMap<String, anyhow::Result<NvmeDevice>> {
    let mut opened = BTreeMap::new();
    for Order { name, what } in orders {
        let What::Drive(drive, queues) = what else { continue };
        let mut drives = drives.lock().unwrap_or_else(PoisonError::into_inner);
        let device = drives.open(&name, &drive, queues);
        opened.insert(name, device);
    }
    opened
}

fn open_files(
    orders: Vec<Order>,
    mut claims: Vec<Claim>,
) -> BTreeMap<String, anyhow::Result<OpenedFile>> {
    let mut opened = BTreeMap::new();
    for Order { name, what } in orders {
        let file = match what {
            What::File(config) => FileDevice::take_over(&config, &mut claims).map(|device| {
                let origin = Some(origin(&device, &config.path));
                OpenedFile { device, was: None, origin }
            }),
            What::Resize(was, size) => {
                was.resized(size).map(|device| OpenedFile { device, was: Some(was), origin: None })
            }
            What::Drive(..) => continue,
        };
        opened.insert(name, file.map_err(anyhow::Error::from));
    }
    opened
}

impl Groundwork {
    /// What tells a file that was opened from another at its path.
    pub(super) fn origin(&self, name: &str) -> Option<String> {
        self.files.get(name)?.as_ref().ok()?.origin.clone()
    }

    /// What came of a drive's namespace.
    pub(super) fn drive(&mut self, name: &str) -> anyhow::Result<NvmeDevice> {
        self.drives.remove(name).unwrap_or_else(changed)
    }

    /// What came of a file.
    pub(super) fn file(&mut self, name: &str) -> anyhow::Result<FileDevice> {
        self.files.remove(name).unwrap_or_else(changed).map(|opened| opened.device)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.drives.is_empty() && self.files.is_empty()
    }

    /// Closes what is left of it, beside the control plane.
    pub(in crate::control) async fn close_aside(self) {
        if !self.is_empty() {
            // It panics or is dropped when the program ends; there is nothing to be done about either.
            let _ = spawn_blocking(move || self.close()).await;
        }
    }

    /// Closes what is left of it. May take long.
    pub(super) fn close(mut self) {
        self.close_all();
    }

    fn close_all(&mut self) {
        for opened in std::mem::take(&mut self.files).into_values().flatten() {
            if let Some(was) = &opened.was {
                was.prevail();
            }
            opened.device.unmake();
        }
        // The last of a drive's namespaces shuts it down.
        self.drives.clear();
    }
}

fn changed<T>() -> anyhow::Result<T> {
    Err(anyhow::anyhow!("it changed meanwhile: reload the config once more"))
}

impl Drop for Groundwork {
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

/// Drops something of drives beside the control plane.
pub(super) async fn drop_aside(what: impl Send + 'static) {
    // It panics or is dropped when the program ends; there is nothing to be done about either.
    let _ = spawn_blocking(move || drop(what)).await;
}
