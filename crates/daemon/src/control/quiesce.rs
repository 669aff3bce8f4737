//! Waits until the commands of what was removed are over, so that nobody is told that it is gone before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_nvmf::{Changes, Quiesce, RetiredNamespace};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::reactor::mailbox::{Message, Sender};

/// How long somebody who asks for a removal waits at most beyond what the devices may take.
const GRACE: Duration = Duration::from_secs(5);

/// And in all: a connection of the API on which nothing moves for longer is given up by either end.
const LONGEST: Duration = Duration::from_secs(60);

/// Between two looks whether controllers are quiet.
const LOOK: Duration = Duration::from_millis(5);

/// What has to end before a removal is complete.
#[derive(Debug, Default)]
pub(crate) struct Quiescing {
    controllers: Vec<Quiesce>,
    /// Answers of reactors: the commands of removed namespaces are over.
    namespaces: Vec<oneshot::Receiver<()>>,
    /// Devices that close.
    devices: Vec<JoinHandle<()>>,
    bound: Duration,
}

/// What had not ended in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "commands of what was removed are still with a device after {} s{}: the change is made, but a write of before \
     may still land; repair or remove the device, and wait until `nvmeofctl status` shows nothing departing",
    .after.as_secs(),
    of(.hosts)
)]
pub(crate) struct StillBusy {
    after: Duration,
    hosts: BTreeSet<String>,
}

impl Quiescing {
    /// Of a change of the target; devices may take `bound` for a command.
    pub(super) fn of(changes: &Changes, reactors: &[Sender], bound: Duration) -> Self {
        let namespaces = settled(&changes.retired, reactors);
        Self { controllers: changes.quiescing.clone(), namespaces, devices: Vec::new(), bound }
    }

    /// Of one connection that was ended.
    pub(super) fn of_connection(quiesce: Option<Quiesce>, bound: Duration) -> Self {
        Self { controllers: quiesce.into_iter().collect(), bound, ..Self::default() }
    }

    /// A device that closes when its last command is over.
    pub(super) fn add_device(&mut self, closes: JoinHandle<()>) {
        self.devices.push(closes);
    }

    /// Waits until all of it has ended.
    ///
    /// # Errors
    /// It takes longer than the devices should.
    pub(crate) async fn ended(mut self) -> Result<(), StillBusy> {
        let (begin, limit) = (Instant::now(), (self.bound + GRACE).min(LONGEST));
        let all = async {
            while self.controllers.iter().any(|controller| !controller.is_quiet()) {
                sleep(LOOK).await;
            }
            for answer in &mut self.namespaces {
                // A reactor that has ended has no commands.
                let _ = answer.await;
            }
            for device in &mut self.devices {
                let _ = device.await;
            }
        };
        match tokio::time::timeout(limit, all).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.still_busy(begin.elapsed())),
        }
    }

    fn still_busy(&self, after: Duration) -> StillBusy {
        let busy = self.controllers.iter().filter(|controller| !controller.is_quiet());
        StillBusy { after, hosts: busy.map(|one| one.host().to_string()).collect() }
    }
}

/// Every reactor's answer that the commands for these namespaces are over.
fn settled(retired: &[RetiredNamespace], reactors: &[Sender]) -> Vec<oneshot::Receiver<()>> {
    if retired.is_empty() {
        return Vec::new();
    }
    let namespaces: Arc<[_]> = retired.into();
    let ask = |sender: &Sender| {
        let (reply, answer) = oneshot::channel();
        let namespaces = Arc::clone(&namespaces);
        sender.send(Message::NamespaceBarrier { namespaces, reply });
        answer
    };
    reactors.iter().map(ask).collect()
}

fn of(hosts: &BTreeSet<String>) -> String {
    if hosts.is_empty() {
        return String::new();
    }
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    format!(" (of {})", hosts.join(", "))
}
