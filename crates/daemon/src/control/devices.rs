//! Block devices: opened once, with a queue on every reactor.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use nvmeof_core::block::{BlockDevice, DelayDevice, FileDevice, NullDevice, RamDevice};
use nvmeof_nvmf::DeviceId;
use tokio::sync::oneshot;

use crate::clock;
use crate::config::{Device, DeviceKind};
use crate::reactor::mailbox::{Message, Sender};

/// The devices that are open, by their names in the config.
#[derive(Debug, Default)]
pub(super) struct Devices {
    open: BTreeMap<String, Open>,
    next_id: u32,
}

/// An open device.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// What reactors and namespaces call it.
    pub(super) id: DeviceId,
    /// What it was opened from.
    pub(super) config: Device,
    /// The device.
    pub(super) device: Arc<dyn BlockDevice>,
    /// The same, if it is one whose latency can be changed.
    delay: Option<Arc<DelayDevice>>,
}

impl Devices {
    /// The open device of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Open> {
        self.open.get(name)
    }

    /// Opens those of `wanted` that are not open as they are wanted, and those that stand on one it
    /// opens; bases come before. On failure closes again what it opened. What is open and no longer
    /// wanted, or wanted otherwise, is for [`Self::commit`].
    pub(super) async fn prepare(
        &mut self,
        wanted: &[Device],
        reactors: &[Sender],
    ) -> anyhow::Result<Vec<Open>> {
        let mut opened: Vec<Open> = Vec::new();
        for config in wanted {
            let open = self.open.get(&config.name);
            let base = base_of(config);
            let new_base = opened.iter().find(|open| Some(open.config.name.as_str()) == base);
            if new_base.is_none() && open.is_some_and(|open| can_become(&open.config, config)) {
                continue;
            }
            let base =
                new_base.or_else(|| self.open.get(base?)).map(|open| Arc::clone(&open.device));
            match self.open_one(config, base, reactors).await {
                Ok(open) => opened.push(open),
                Err(error) => {
                    for open in opened {
                        close(open, reactors).await;
                    }
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    /// Makes `opened` part of what is open, changes what can be changed while it is open, and gives
    /// back what no config names any more, to be closed with [`close`] once nothing uses it.
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
                open.change(config);
            }
        }
        gone
    }

    /// Puts what was written on the medium, on the way out.
    pub(super) fn flush_all(&self) {
        for open in self.open.values() {
            let DeviceKind::File(file) = &open.config.kind else { continue };
            if file.read_only {
                continue;
            }
            let synced = std::fs::File::open(&file.path).and_then(|file| file.sync_data());
            if let Err(error) = synced {
                tracing::error!(device = %open.config.name, %error, "cannot be flushed at the end");
            }
        }
    }

    async fn open_one(
        &mut self,
        config: &Device,
        base: Option<Arc<dyn BlockDevice>>,
        reactors: &[Sender],
    ) -> anyhow::Result<Open> {
        let id = DeviceId(self.next_id);
        let open =
            Open::new(id, config, base).with_context(|| format!("device {:?}", config.name))?;
        self.next_id += 1;
        let mut replies = Vec::new();
        for reactor in reactors {
            let (reply, answer) = oneshot::channel();
            reactor.send(Message::AddDevice { id, device: Arc::clone(&open.device), reply });
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
            close(open, reactors).await;
            anyhow::bail!("device {:?}: cannot be used: {error}", config.name);
        }
        Ok(open)
    }
}

/// Closes a device when its last operation is done.
pub(super) async fn close(open: Open, reactors: &[Sender]) {
    let mut replies = Vec::new();
    for reactor in reactors {
        let (reply, answer) = oneshot::channel();
        reactor.send(Message::RemoveDevice { id: open.id, reply });
        replies.push(answer);
    }
    for answer in replies {
        // A reactor that has ended uses no device.
        let _ = answer.await;
    }
    tracing::info!(device = %open.config.name, "closed");
}

impl Open {
    /// Opens what a config describes. May take a moment: it is called at start and on reload only.
    fn new(
        id: DeviceId,
        config: &Device,
        base: Option<Arc<dyn BlockDevice>>,
    ) -> anyhow::Result<Self> {
        let name = config.name.as_str();
        let mut delay = None;
        let device: Arc<dyn BlockDevice> = match &config.kind {
            DeviceKind::Null { size } => Arc::new(NullDevice::new(name, *size, config.block_size)?),
            DeviceKind::Ram { size } => Arc::new(RamDevice::new(name, *size, config.block_size)?),
            DeviceKind::File(file) => Arc::new(FileDevice::open(file)?),
            DeviceKind::Delay { base: below, latency } => {
                let base = base.with_context(|| format!("its base {below:?} is not open"))?;
                let device = Arc::new(DelayDevice::new(name, base, *latency, clock::now));
                delay = Some(Arc::clone(&device));
                device
            }
        };
        Ok(Self { id, config: config.clone(), device, delay })
    }

    /// Makes an open device what `config` wants, where [`can_become`] says so.
    fn change(&mut self, config: &Device) {
        if let (DeviceKind::Delay { latency, .. }, Some(delay)) = (&config.kind, &self.delay) {
            delay.set_latency(*latency);
            tracing::info!(device = %config.name, read = ?latency.read, write = ?latency.write,
                "latency changed");
        }
        self.config = config.clone();
    }
}

/// Whether an open device can be made another without opening it anew: it is the same, but for
/// what is added to its latency.
fn can_become(open: &Device, wanted: &Device) -> bool {
    match (&open.kind, &wanted.kind) {
        (DeviceKind::Delay { base, .. }, DeviceKind::Delay { base: other, .. }) => {
            base == other && open.name == wanted.name
        }
        _ => open == wanted,
    }
}

fn base_of(config: &Device) -> Option<&str> {
    match &config.kind {
        DeviceKind::Delay { base, .. } => Some(base),
        _ => None,
    }
}
