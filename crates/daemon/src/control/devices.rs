//! Block devices: opened once, with a queue on every reactor.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use nvmeof_core::block::{BlockDevice, FileDevice, NullDevice, RamDevice};
use nvmeof_nvmf::DeviceId;
use tokio::sync::oneshot;

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
}

impl Devices {
    /// The open device of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Open> {
        self.open.get(name)
    }

    /// Opens those of `wanted` that are not open as they are wanted. On failure closes again what it
    /// opened. What is open and no longer wanted, or wanted otherwise, is for [`Self::commit`].
    pub(super) async fn prepare(
        &mut self,
        wanted: &[Device],
        reactors: &[Sender],
    ) -> anyhow::Result<Vec<Open>> {
        let mut opened: Vec<Open> = Vec::new();
        for config in wanted {
            if self.open.get(&config.name).is_some_and(|open| open.config == *config) {
                continue;
            }
            match self.open_one(config, reactors).await {
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

    /// Makes `opened` part of what is open, and gives back what no config names any more, to be
    /// closed with [`close`] once nothing uses it.
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

    async fn open_one(&mut self, config: &Device, reactors: &[Sender]) -> anyhow::Result<Open> {
        let device = make(config).with_context(|| format!("device {:?}", config.name))?;
        let id = DeviceId(self.next_id);
        self.next_id += 1;
        let open = Open { id, config: config.clone(), device };
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

/// Opens what a config describes. May take a moment: it is called at start and on reload only.
fn make(config: &Device) -> anyhow::Result<Arc<dyn BlockDevice>> {
    Ok(match &config.kind {
        DeviceKind::Null { size } => {
            Arc::new(NullDevice::new(&config.name, *size, config.block_size)?)
        }
        DeviceKind::Ram { size } => {
            Arc::new(RamDevice::new(&config.name, *size, config.block_size)?)
        }
        DeviceKind::File(file) => Arc::new(FileDevice::open(file)?),
    })
}
