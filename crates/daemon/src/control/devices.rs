//! Block devices: each is opened once, with a queue on every reactor.
//!
//! ```text
//!  desired --prepare--> opened --commit--> open --missing--> placeholder --found, prepare-> opened
//!                                          |                     '--still missing: stays, warns
//!                                          '--no longer desired--> closed after its last command
//! ```
//!
//! A missing device stays until the config is read again; until then its namespaces report errors.
//! A reload closes it first, because its resource (for example a drive's function) can be opened
//! only once, and then reopens it. If that fails, a placeholder (`MissingDevice`) keeps its place.
//!
//! Opening a drive or a file may take minutes. A thread therefore [begins](Devices::begin) it in
//! advance (`preopen`).
//!
//! The namespace of a drive may change, for example its size. The drive is then reopened with the
//! devices layered on it, as after a change of its config.

mod closing;
mod drives;
mod open;
mod origin;
mod preopen;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use nvmeof_core::block::{BlockDevice, Claim, FileConfig, NvmeDevice};
use nvmeof_core::dma::ChunkPool;
use nvmeof_nvmf::DeviceId;
use nvmeof_nvmf::quiesce::UNKNOWN_BOUND;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::config::{Device, DeviceKind};
use crate::limits::DriveQueues;
use crate::reactor::mailbox::{Message, Sender};
use closing::ClosingDevices;
use drives::Drives;
pub(super) use drives::{OpenFunction, from_vfio};
use open::{DeviceHandle, missing_device, open_device};
use preopen::{PreopenKind, PreopenRequest, drop_aside};
pub(super) use preopen::{PreopenTask, PreopenedDevices};

/// Time for the commands of a missing device to end before a reload tries to reopen it.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);

/// The open devices, by their names in the config.
#[derive(Debug)]
pub(super) struct Devices {
    open: BTreeMap<String, Open>,
    next_id: u32,
    drives: Arc<Mutex<Drives>>,
    /// Devices that are closing and may be opened again.
    closing: ClosingDevices,
}

/// An open device.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// ID for reactors and namespaces.
    pub(super) id: DeviceId,
    /// Config that it was opened from.
    pub(super) config: Device,
    /// The device.
    pub(super) device: Arc<dyn BlockDevice>,
    /// Handle for changes while the device is open.
    live: DeviceHandle,
    /// Distinguishes its file from another one at the same path; empty if nothing does.
    pub(super) origin: String,
    /// The namespace of the drive has changed since the device was opened.
    is_outdated: bool,
}

impl Open {
    /// Returns how long the device may keep a command that no caller waits for any more.
    pub(super) fn quiesce_bound(&self) -> Duration {
        self.device.quiesce_bound().unwrap_or(UNKNOWN_BOUND)
    }
}

impl Devices {
    /// Creates an empty set; drives use buffers of `pool`, and `take` opens their PCI functions.
    pub(super) fn new(pool: &Arc<ChunkPool>, take: OpenFunction) -> Self {
        let drives = Arc::new(Mutex::new(Drives::new(pool, take)));
        Self { open: BTreeMap::new(), next_id: 0, drives, closing: ClosingDevices::new() }
    }

    /// Returns the open device with this name.
    pub(super) fn get(&self, name: &str) -> Option<&Open> {
        self.open.get(name)
    }

    /// Returns how long any of the devices may keep a command.
    pub(super) fn quiesce_bound(&self) -> Duration {
        self.open.values().map(Open::quiesce_bound).max().unwrap_or_default()
    }

    /// Releases missing devices and begins to open drives and files.
    ///
    /// [`prepare`](Self::prepare) uses the result. Until then, the open devices do not change
    /// otherwise. `instead_of` was abandoned in favor of this task.
    pub(super) fn begin(
        &mut self,
        wanted: &[Device],
        reactors: &[Sender],
        instead_of: Option<PreopenTask>,
    ) -> PreopenTask {
        let let_go = self.let_go_of_gone(reactors);
        let orders = wanted.iter().filter_map(|config| {
            let open = self.open.get(&config.name);
            if open.is_some_and(|open| open.can_become(config)) {
                return None;
            }
            let what = match &config.kind {
                DeviceKind::Nvme(drive) => PreopenKind::Drive(
                    drive.clone(),
                    DriveQueues::of(&drive.pci, wanted, reactors.len()),
                ),
                DeviceKind::File(file) => match open.map(|open| (&open.live, open)) {
                    Some((DeviceHandle::File(device), open)) if open.can_resize(config) => {
                        PreopenKind::Resize(Arc::clone(device), file.size)
                    }
                    _ => PreopenKind::File(file.clone()),
                },
                _ => return None,
            };
            Some(PreopenRequest { name: config.name.clone(), what })
        });
        let settled = self.settled();
        let before = async move {
            let_go.await;
            settled.await;
        };
        PreopenTask::new(
            &self.drives,
            orders.collect(),
            self.claims_of_leavers(wanted),
            before,
            instead_of,
        )
    }

    /// Returns claims to files that another device may take over.
    ///
    /// They belong to devices that are no longer desired, or desired with a different config.
    fn claims_of_leavers(&self, wanted: &[Device]) -> Vec<Claim> {
        let stays = |open: &Open| {
            let wanted = wanted.iter().find(|config| config.name == open.config.name);
            wanted.is_some_and(|config| open.can_become(config) || open.can_resize(config))
        };
        let leavers = self.open.values().filter(|open| !stays(open));
        let claim = |open: &Open| match &open.live {
            DeviceHandle::File(device) => Some(device.claim()),
            _ => None,
        };
        leavers.filter_map(claim).collect()
    }

    /// Waits until all discarded devices are closed.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.closing.clone().over()
    }

    /// Closes unused pre-opened devices in the background.
    ///
    /// The next [`begin`](Self::begin) waits for that.
    pub(super) fn leave(&self, preopened: PreopenedDevices) {
        if !preopened.is_empty() {
            let guard = self.closing.begin();
            spawn_blocking(move || {
                preopened.close();
                drop(guard);
            });
        }
    }

    /// Returns devices of drives whose namespaces may have changed; [`changed`] asks the drives.
    pub(super) fn changed_drives(&self) -> Vec<ChangedDrive> {
        let suspect = |open: &Open| match &open.live {
            DeviceHandle::Drive(device) if device.may_have_changed() && !open.is_outdated => {
                Some(ChangedDrive { name: open.config.name.clone(), device: Arc::clone(device) })
            }
            _ => None,
        };
        self.open.values().filter_map(suspect).collect()
    }

    /// Makes the next reload reopen these devices.
    pub(super) fn mark_stale(&mut self, names: &[String]) {
        for name in names {
            if let Some(open) = self.open.get_mut(name) {
                open.is_outdated = true;
            }
        }
    }

    /// Opens the devices of `wanted` that have to be opened, in the order of `wanted`, bases first.
    ///
    /// These are new devices, devices that cannot change while open, missing devices, and devices
    /// layered on one that it opens. Drives and files come from `preopened`. On failure it closes
    /// what it opened; a device that was missing before and still is, is no failure.
    /// [`Self::commit`] handles open devices that are no longer desired, or desired with a
    /// different config.
    pub(super) async fn prepare(
        &mut self,
        wanted: &[Device],
        preopened: &mut PreopenedDevices,
        reactors: &[Sender],
    ) -> anyhow::Result<Vec<Open>> {
        let mut opened: Vec<Open> = Vec::new();
        for config in wanted {
            let is_new = |base: &String| opened.iter().any(|open| open.config.name == *base);
            let open = self.open.get(&config.name);
            let as_wanted = open.is_some_and(|open| open.can_become(config));
            if as_wanted && !config.kind.bases().iter().any(is_new) {
                continue;
            }
            let was_gone =
                open.is_some_and(|open| open.is_missing_device() && open.config == *config);
            match self.open_one(config, preopened, &opened, reactors).await {
                Ok(open) => opened.push(open),
                Err(error) if was_gone => tracing::warn!("still missing: {error:#}"),
                Err(error) => {
                    self.abandon(opened, reactors);
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// Closes [prepared](Self::prepare) devices of a rejected change in the background.
    ///
    /// The next [`begin`](Self::begin) waits for that. Resized devices get their old size again.
    pub(super) fn abandon(&self, opened: Vec<Open>, reactors: &[Sender]) {
        for open in &opened {
            if let Some(old) = self.open.get(&open.config.name) {
                old.live.revert_resize();
            }
        }
        if opened.is_empty() {
            return;
        }
        let guard = self.closing.begin();
        let reactors = reactors.to_vec();
        tokio::spawn(async move {
            // Devices layered on others come first.
            for open in opened.into_iter().rev() {
                open.live.undo_create();
                close(open, &reactors).await;
            }
            drop(guard);
        });
    }

    /// Adds `opened` to the open devices and applies changes that need no reopening.
    ///
    /// Returns the devices that the config no longer has; [`close`] closes them when nothing uses
    /// them.
    pub(super) fn commit(&mut self, wanted: &[Device], opened: Vec<Open>) -> Vec<Open> {
        let mut gone: Vec<Open> = opened
            .into_iter()
            .filter_map(|open| self.open.insert(open.config.name.clone(), open))
            .collect();
        let unwanted: Vec<String> = self
            .open
            .keys()
            .filter(|name| !wanted.iter().any(|config| config.name == **name))
            .cloned()
            .collect();
        gone.extend(unwanted.into_iter().filter_map(|name| self.open.remove(&name)));
        for config in wanted {
            if let Some(open) = self.open.get_mut(&config.name).filter(|o| o.config != *config) {
                open.live.change(config);
                open.config = config.clone();
            }
        }
        gone
    }

    /// Flushes written data to the medium when the daemon stops.
    pub(super) fn flush_all(&self) {
        for open in self.open.values() {
            let DeviceHandle::File(device) = &open.live else { continue };
            if let Err(error) = device.sync() {
                tracing::error!(device = %open.config.name, %error, "cannot be flushed at the end");
            }
        }
    }

    /// Replaces missing devices, and devices layered on them, by placeholders.
    ///
    /// The returned future closes them.
    fn let_go_of_gone(&mut self, reactors: &[Sender]) -> impl Future<Output = ()> + Send + use<> {
        let mut closing = Vec::new();
        for open in self.open.values_mut().filter(|open| !open.is_missing_device()) {
            if open.device.is_gone() {
                tracing::warn!(device = %open.config.name, "device is missing; closing it");
                let missing_device = missing_device(open.device.info());
                closing.push(Open {
                    device: std::mem::replace(&mut open.device, missing_device),
                    ..open.clone()
                });
                open.live = DeviceHandle::MissingDevice;
            }
        }
        let answers: Vec<_> = closing.iter().flat_map(|open| remove(open, reactors)).collect();
        let guard = self.closing.begin();
        async move {
            if closing.is_empty() {
                return;
            }
            let all = async {
                for answer in answers {
                    // A reactor that has ended uses no device.
                    let _ = answer.await;
                }
            };
            if tokio::time::timeout(GONE_TIMEOUT, all).await.is_err() {
                tracing::warn!(
                    "missing device still has commands in flight; its file or drive stays open \
                     until they complete"
                );
            }
            drop_aside(closing).await;
            drop(guard);
        }
    }

    async fn open_one(
        &mut self,
        config: &Device,
        preopened: &mut PreopenedDevices,
        opened: &[Open],
        reactors: &[Sender],
    ) -> anyhow::Result<Open> {
        let open = self
            .make(config, preopened, opened)
            .with_context(|| format!("device {:?}", config.name))?;
        self.next_id += 1;
        let mut replies = Vec::new();
        for reactor in reactors {
            let (reply, answer) = oneshot::channel();
            let device = Arc::clone(&open.device);
            reactor.send(Message::AddDevice { id: open.id, device, reply });
            replies.push(answer);
        }
        let mut failed = None;
        for answer in replies {
            match answer.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some("a reactor has ended".to_owned()),
            }
        }
        if let Some(error) = failed {
            self.abandon(vec![open], reactors);
            anyhow::bail!("device {:?}: cannot be used: {error}", config.name);
        }
        Ok(open)
    }

    /// Creates the device of a config, on its base devices.
    fn make(
        &mut self,
        config: &Device,
        preopened: &mut PreopenedDevices,
        opened: &[Open],
    ) -> anyhow::Result<Open> {
        let base = |name: &String| {
            let new = opened.iter().find(|open| open.config.name == *name);
            let open = new.or_else(|| self.open.get(name));
            let open = open.with_context(|| format!("base {name:?} is not open"))?;
            anyhow::ensure!(!open.device.is_gone(), "base {name:?} is missing");
            Ok(Arc::clone(&open.device))
        };
        let bases: Vec<_> = config.kind.bases().iter().map(base).collect::<anyhow::Result<_>>()?;
        let resized = match self.open.get(&config.name) {
            Some(old) if old.can_resize(config) => old.live.resized(config)?,
            _ => None,
        };
        // A file that only gets another size is the same file.
        let was = self.open.get(&config.name).filter(|open| open.can_resize(config));
        let before = was.map(|open| open.origin.clone());
        let origin = preopened.origin(&config.name).or(before).unwrap_or_default();
        let (device, live) = match resized {
            Some(resized) => resized,
            None => open_device(config, bases, preopened)?,
        };
        let id = DeviceId(self.next_id);
        Ok(Open { id, config: config.clone(), device, live, origin, is_outdated: false })
    }
}

/// Closes a device when its last operation has completed.
pub(super) async fn close(open: Open, reactors: &[Sender]) {
    for answer in remove(&open, reactors) {
        // A reactor that has ended uses no device.
        let _ = answer.await;
    }
    let name = open.config.name.clone();
    drop_aside(open).await;
    tracing::info!(device = %name, "closed");
}

/// A device of a drive whose namespace may have changed.
#[derive(Debug)]
pub(super) struct ChangedDrive {
    name: String,
    device: Arc<NvmeDevice>,
}

/// Asks drives which of these namespaces have changed, and returns the names of their devices.
///
/// This may take long.
pub(super) fn changed(changed_drives: Vec<ChangedDrive>) -> Vec<String> {
    let has_changed = |suspect: &ChangedDrive| match suspect.device.is_current() {
        Ok(is_current) => !is_current,
        Err(error) => {
            let device = &suspect.name;
            tracing::warn!(
                %device, %error,
                "cannot identify the drive's namespace; the device stays open unchanged"
            );
            false
        }
    };
    let changed: Vec<String> =
        changed_drives.into_iter().filter(has_changed).map(|suspect| suspect.name).collect();
    for device in &changed {
        tracing::warn!(
            %device,
            "drive's namespace has changed; reopening the device and the devices layered on it"
        );
    }
    changed
}

/// Makes every reactor close its queue to the device; each replies when its queue is closed.
fn remove(open: &Open, reactors: &[Sender]) -> Vec<oneshot::Receiver<()>> {
    let one = |reactor: &Sender| {
        let (reply, answer) = oneshot::channel();
        reactor.send(Message::RemoveDevice { id: open.id, reply });
        answer
    };
    reactors.iter().map(one).collect()
}

impl Open {
    /// Returns true if it is the placeholder of a missing device.
    fn is_missing_device(&self) -> bool {
        matches!(self.live, DeviceHandle::MissingDevice)
    }

    /// Returns true if it differs from `wanted` only in its size, so that its contents can stay.
    fn can_resize(&self, wanted: &Device) -> bool {
        let (open, same_name) = (&self.config, self.config.name == wanted.name);
        let same_blocks = open.block_size == wanted.block_size;
        match (&open.kind, &wanted.kind) {
            (DeviceKind::Ram { .. }, DeviceKind::Ram { .. }) => same_name && same_blocks,
            (DeviceKind::File(old), DeviceKind::File(new)) => {
                let other_size = FileConfig { size: new.size, ..old.clone() };
                same_name && same_blocks && other_size == *new
            }
            _ => false,
        }
    }

    /// Returns true if it can become `wanted` without reopening.
    ///
    /// It has to be the same except for added latency, faults, or settings of a drive. Other
    /// devices may share that drive.
    fn can_become(&self, wanted: &Device) -> bool {
        let open = &self.config;
        let is_whole = !self.is_missing_device() && !self.is_outdated;
        let can_change = open.name == wanted.name && open.kind.can_become(&wanted.kind);
        is_whole && (can_change || open == wanted)
    }
}
