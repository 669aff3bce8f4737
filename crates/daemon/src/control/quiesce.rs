//! Waits for the commands of removed items.
//!
//! No caller is notified of a removal before these commands have ended.
//!
//! ```text
//!   change --> Quiescing --track--> Removal --ended--> the caller gets its answer
//!                                      |
//!                                      '--> OpenRemovals: until its commands have ended, even
//!                                           if the caller stops waiting
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_nvmf::{Changes, Quiesce, RetiredNamespace};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::reactor::mailbox::{Message, Sender};

/// Wait of a removal's caller beyond the devices' quiesce bound, at most.
const GRACE: Duration = Duration::from_secs(5);

/// Longest wait of a removal's caller.
///
/// It is shorter than the wait of an API caller for any answer, so that the caller receives this
/// answer.
pub(crate) const LONGEST_REMOVAL: Duration = Duration::from_secs(55);

/// Interval between checks whether controllers are quiet.
const LOOK: Duration = Duration::from_millis(5);

/// Work that has to end before a removal is complete.
#[derive(Debug, Default)]
pub(crate) struct Quiescing {
    controllers: Vec<Quiesce>,
    /// Replies of reactors: the commands of removed namespaces have ended.
    namespaces: Vec<oneshot::Receiver<()>>,
    /// Devices that are closing.
    devices: Vec<JoinHandle<()>>,
    bound: Duration,
}

/// A removal that was applied and whose commands are ending.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    controllers: Arc<[Quiesce]>,
    stage: watch::Receiver<Stage>,
    bound: Duration,
}

/// Stage of a removal: the next thing that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Commands of namespaces.
    Namespaces,
    /// Commands of controllers.
    Controllers,
    /// Devices that are closing; no command uses them any more.
    Devices,
    /// Nothing.
    Ended,
}

/// Removals whose commands have not ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenRemovals(Arc<Mutex<Vec<Removal>>>);

/// Error: the commands of a removal have not ended in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "commands of what was removed have not ended after {} s{}: the change is made, but a write of before may still \
     land; repair or remove the device, and wait until `nvmeofctl status` shows quiescing 0",
    .after.as_secs(),
    of(.hosts)
)]
pub(crate) struct StillBusy {
    after: Duration,
    hosts: BTreeSet<String>,
}

impl Quiescing {
    /// Creates it for a change of the target; a device needs at most `bound` for a command.
    pub(super) fn of(changes: &Changes, reactors: &[Sender], bound: Duration) -> Self {
        let namespaces = settled(&changes.retired, reactors);
        Self { controllers: changes.quiescing.clone(), namespaces, devices: Vec::new(), bound }
    }

    /// Creates it for one connection that was ended.
    pub(super) fn of_connection(quiesce: Option<Quiesce>, bound: Duration) -> Self {
        Self { controllers: quiesce.into_iter().collect(), bound, ..Self::default() }
    }

    /// Adds a device that closes when its last command has ended.
    pub(super) fn add_device(&mut self, closes: JoinHandle<()>) {
        self.devices.push(closes);
    }

    /// Keeps the removal in the list of open removals until its commands have ended.
    pub(super) fn track(self, open: &OpenRemovals) -> Removal {
        let Self { controllers, namespaces, devices, bound } = self;
        let controllers: Arc<[Quiesce]> = controllers.into();
        let begin = if namespaces.is_empty() { Stage::Controllers } else { Stage::Namespaces };
        let (sender, stage) = watch::channel(begin);
        let removal = Removal { controllers: Arc::clone(&controllers), stage, bound };
        open.list().push(removal.clone());
        tokio::spawn(async move {
            for answer in namespaces {
                // A reactor that has ended has no commands.
                let _ = answer.await;
            }
            sender.send_replace(Stage::Controllers);
            while controllers.iter().any(|controller| !controller.is_quiet()) {
                sleep(LOOK).await;
            }
            sender.send_replace(Stage::Devices);
            for device in devices {
                let _ = device.await;
            }
            sender.send_replace(Stage::Ended);
        });
        removal
    }
}

impl Removal {
    /// Waits until the whole removal has ended.
    ///
    /// # Errors
    /// The removal takes longer than its devices should.
    pub(crate) async fn ended(self) -> Result<(), StillBusy> {
        self.reaches(Stage::Ended).await
    }

    async fn reaches(mut self, wanted: Stage) -> Result<(), StillBusy> {
        let (begin, limit) = (Instant::now(), (self.bound + GRACE).min(LONGEST_REMOVAL));
        let ended = self.stage.wait_for(|stage| *stage >= wanted);
        if tokio::time::timeout(limit, ended).await.is_ok() {
            // An error means that the daemon is ending; its reactors have no commands.
            return Ok(());
        }
        let busy = self.controllers.iter().filter(|controller| !controller.is_quiet());
        let hosts = busy.map(|one| one.host().to_string()).collect();
        Err(StillBusy { after: begin.elapsed(), hosts })
    }
}

impl OpenRemovals {
    /// Returns the number of removals that wait for commands of namespaces.
    pub(crate) fn of_namespaces(&self) -> usize {
        let list = self.list();
        list.iter().filter(|one| *one.stage.borrow() == Stage::Namespaces).count()
    }

    /// Waits until the commands of all removals that are open now have ended.
    ///
    /// # Errors
    /// A removal takes longer than its devices should.
    pub(crate) async fn commands_ended(&self) -> Result<(), StillBusy> {
        let open: Vec<Removal> = self.list().clone();
        for removal in open {
            removal.reaches(Stage::Devices).await?;
        }
        Ok(())
    }

    /// Locks the list and drops the removals that have ended.
    fn list(&self) -> MutexGuard<'_, Vec<Removal>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|one| *one.stage.borrow() != Stage::Ended);
        list
    }
}

/// Requests from every reactor a reply when the commands for these namespaces have ended.
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
