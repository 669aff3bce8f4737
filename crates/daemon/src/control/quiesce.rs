//! Waits until the commands of what was removed have ended, so that nobody is told that it is gone
//! before.
//!
//! ```text
//!   change --> Quiescing --track--> Removal --ended--> the caller is answered
//!                                      |
//!                                      '--> OpenRemovals: until its commands have ended, whoever
//!                                           asked stops waiting or not
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_nvmf::{Changes, Quiesce, RetiredNamespace};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::reactor::mailbox::{Message, Sender};

/// How long the caller of a removal waits at most beyond what the devices may take.
const GRACE: Duration = Duration::from_secs(5);

/// How long the caller of a removal waits at most: less than a caller of the API waits for any
/// answer, so that it gets this one.
pub(crate) const LONGEST_REMOVAL: Duration = Duration::from_secs(55);

/// Between two looks whether controllers are quiet.
const LOOK: Duration = Duration::from_millis(5);

/// What has to end before a removal is complete.
#[derive(Debug, Default)]
pub(crate) struct Quiescing {
    controllers: Vec<Quiesce>,
    /// Answers of reactors: the commands of removed namespaces have ended.
    namespaces: Vec<oneshot::Receiver<()>>,
    /// Devices that close.
    devices: Vec<JoinHandle<()>>,
    bound: Duration,
}

/// A removal that was made, and whose commands end.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    controllers: Arc<[Quiesce]>,
    stage: watch::Receiver<Stage>,
    bound: Duration,
}

/// What a removal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Commands of namespaces.
    Namespaces,
    /// Commands of controllers.
    Controllers,
    /// Devices that close, which no command uses any more.
    Devices,
    /// Nothing.
    Ended,
}

/// Removals whose commands have not ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenRemovals(Arc<Mutex<Vec<Removal>>>);

/// What had not ended in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "commands of what was removed have not ended after {} s{}: the change is made, but a write of before may still \
     land; repair or remove the device, and wait until `nvmeofctl status` shows nothing departing",
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

    /// A device that closes when its last command has ended.
    pub(super) fn add_device(&mut self, closes: JoinHandle<()>) {
        self.devices.push(closes);
    }

    /// Keeps the removal among the open ones until its commands have ended.
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
    /// Waits until all of it has ended.
    ///
    /// # Errors
    /// It takes longer than the devices should.
    pub(crate) async fn ended(self) -> Result<(), StillBusy> {
        self.reaches(Stage::Ended).await
    }

    async fn reaches(mut self, wanted: Stage) -> Result<(), StillBusy> {
        let (begin, limit) = (Instant::now(), (self.bound + GRACE).min(LONGEST_REMOVAL));
        let ended = self.stage.wait_for(|stage| *stage >= wanted);
        if tokio::time::timeout(limit, ended).await.is_ok() {
            // An error is the end of the daemon, whose reactors have no commands.
            return Ok(());
        }
        let busy = self.controllers.iter().filter(|controller| !controller.is_quiet());
        let hosts = busy.map(|one| one.host().to_string()).collect();
        Err(StillBusy { after: begin.elapsed(), hosts })
    }
}

impl OpenRemovals {
    /// How many wait for commands of namespaces.
    pub(crate) fn of_namespaces(&self) -> usize {
        let list = self.list();
        list.iter().filter(|one| *one.stage.borrow() == Stage::Namespaces).count()
    }

    /// Waits until the commands of all that are open now have ended.
    ///
    /// # Errors
    /// One of them takes longer than its devices should.
    pub(crate) async fn commands_ended(&self) -> Result<(), StillBusy> {
        let open: Vec<Removal> = self.list().clone();
        for removal in open {
            removal.reaches(Stage::Devices).await?;
        }
        Ok(())
    }

    /// The list, without those that have ended by now.
    fn list(&self) -> MutexGuard<'_, Vec<Removal>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|one| *one.stage.borrow() != Stage::Ended);
        list
    }
}

/// Every reactor's answer that the commands for these namespaces have ended.
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
