//! Queue of changes to the running config: one at a time, in order of arrival.
//!
//! Slow steps, such as reading files and opening drives, run in threads. Until a change is applied,
//! the daemon serves hosts and answers read requests with the running state.
//!
//! ```text
//!   API ----.           its turn         config is valid    drives, files open
//!   SIGHUP --> waiting ---------> Checking ----------> Opening ---------------> applied, answered
//!   drive --'     |                  ^                    |
//!                 |                  '---another SIGHUP---'  while drives open, not files
//!                 '--its caller has disconnected: dropped
//! ```

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change, ErrorKind, Saved};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::devices::{Begun, Groundwork};
use super::running::{Job, Running, Wanted, Wish};
use super::warn_of;
use super::wrong::Wrong;
use crate::config::loaded::Loaded;

/// Maximum number of changes that wait for their turn.
const WAITING_MAX: usize = 64;

/// Edits a document.
pub(crate) type Edit =
    Box<dyn FnOnce(&Running, &mut Document) -> Result<(), ApiError> + Send + 'static>;
/// Channel on which an API caller receives the result of its change.
pub(crate) type Reply = oneshot::Sender<Result<Change, ApiError>>;
/// Result of the check whether a config can run.
pub(super) type Checked = Result<Loaded, Wrong>;

/// A request of the API.
pub(crate) enum Ask {
    /// Reads the running state, even while a change is in progress.
    Look(Job),
    /// Changes the running state when its turn comes.
    Change(Order),
}

/// A requested change.
///
/// A caller that has disconnected needs no answer; this holds for all changes.
pub(crate) enum Order {
    /// An edit of the document.
    Edit { wish: Wish, edit: Edit, reply: Reply },
    /// A reload of the config file.
    Reload { wish: Wish, reply: Reply },
    /// Writes the running config to the file.
    ///
    /// It changes nothing, but it must not run between the steps of a change.
    Save { wish: Wish, force: bool, reply: oneshot::Sender<Result<Saved, ApiError>> },
    /// A reload of the config file, requested by SIGHUP.
    HangUp,
    /// Reopens these devices, because the namespaces of their drives changed.
    Follow(Vec<String>),
}

/// The change in progress and the changes that wait.
#[derive(Default)]
pub(super) struct Changes {
    now: Option<UnderWay>,
    waiting: VecDeque<Order>,
    /// Devices that were being opened for an earlier state of the file.
    given_up: Option<Begun>,
}

/// The change in progress.
struct UnderWay {
    who: Who,
    stage: Stage,
}

/// Origin of a change.
enum Who {
    Caller { dry_run: bool, is_file: bool, reply: Reply },
    Signal,
    Drive,
}

enum Stage {
    /// A thread checks whether the config can run.
    Checking(JoinHandle<Checked>),
    /// The required devices are being opened. Without a [`Wanted`] the running config stays.
    Opening(Option<Box<Wanted>>, Begun),
}

/// Result of a stage that a thread has finished.
#[derive(Debug)]
pub(super) enum Done {
    Checked(Box<Checked>),
    Opened(Groundwork),
}

impl Changes {
    /// Answers a read request, or queues a change.
    pub(super) async fn answer(&mut self, ask: Ask, running: &mut Running) {
        match ask {
            Ask::Look(job) => job(running).await,
            Ask::Change(order) => self.order(order, running),
        }
    }

    /// Queues a change.
    fn order(&mut self, order: Order, running: &mut Running) {
        self.waiting.retain(|order| !order.is_left());
        if self.waiting.len() >= WAITING_MAX {
            let error = ApiError::new(ErrorKind::Unavailable, "too many changes wait");
            return order.refuse(error.hint("try again"));
        }
        self.waiting.push_back(order);
        self.begin_next(running);
    }

    /// Reloads the file: replaces an earlier reload that can still be abandoned, or queues.
    pub(super) fn hang_up(&mut self, running: &mut Running) {
        let before = self.now.as_ref().filter(|now| matches!(now.who, Who::Signal));
        if before.is_some_and(|now| now.stage.give_up()) {
            tracing::info!(
                "the config is read once more before what it said before could be applied"
            );
            if let Some(UnderWay { stage: Stage::Opening(_, begun), .. }) = self.now.take() {
                self.given_up = Some(begun);
            }
            self.waiting.push_front(Order::HangUp);
        } else if !self.waiting.iter().any(|order| matches!(order, Order::HangUp)) {
            if self.now.is_some() {
                tracing::info!("the config is read when the change before is made");
            }
            // A reload that still waits will read the current file.
            self.waiting.push_back(Order::HangUp);
        }
        self.begin_next(running);
    }

    /// Reopens the devices with these names.
    pub(super) fn follow(&mut self, devices: Vec<String>, running: &mut Running) {
        if !devices.is_empty() {
            self.waiting.push_back(Order::Follow(devices));
            self.begin_next(running);
        }
    }

    /// Returns true if a change that reopens changed drives is still waiting.
    pub(super) fn is_following(&self) -> bool {
        self.waiting.iter().any(|order| matches!(order, Order::Follow(_)))
    }

    /// Returns the finished stage of the change in progress, for [`go_on`](Self::go_on).
    ///
    /// Never returns if no change is in progress.
    pub(super) async fn done(&mut self) -> Done {
        match self.now.as_mut().map(|now| &mut now.stage) {
            None => pending().await,
            Some(Stage::Checking(thread)) => {
                let checked = thread.await;
                let checked = checked.unwrap_or_else(|why| Err(Wrong::NotLooked(why.to_string())));
                Done::Checked(Box::new(checked))
            }
            Some(Stage::Opening(_, begun)) => Done::Opened(begun.done().await),
        }
    }

    /// Continues the change in progress, then begins the next one.
    pub(super) async fn go_on(&mut self, done: Done, running: &mut Running) {
        if let Some(UnderWay { who, stage }) = self.now.take() {
            match (done, stage) {
                (Done::Checked(checked), _) => self.checked(who, *checked, running),
                (Done::Opened(groundwork), Stage::Opening(wanted, _)) => {
                    apply(who, wanted, groundwork, running).await;
                }
                (Done::Opened(_), Stage::Checking(_)) => {}
            }
        }
        self.begin_next(running);
    }

    /// Abandons waiting changes and closes devices that are opening, within `limit`.
    pub(super) async fn end(self, limit: Duration) {
        let Self { now, waiting, given_up } = self;
        drop((waiting, given_up));
        let Some(UnderWay { stage: Stage::Opening(_, mut begun), who }) = now else { return };
        // The caller learns that the daemon is stopping.
        drop(who);
        let closed = async move {
            begun.give_up();
            begun.done().await.close_aside().await;
        };
        if tokio::time::timeout(limit, closed).await.is_err() {
            tracing::warn!("a device that was being opened is left to the system");
        }
    }

    /// Begins waiting changes until one of them takes long.
    fn begin_next(&mut self, running: &mut Running) {
        while self.now.is_none()
            && let Some(order) = self.waiting.pop_front()
        {
            self.begin(order, running);
        }
    }

    fn begin(&mut self, order: Order, running: &mut Running) {
        let checking = |who, thread| Some(UnderWay { who, stage: Stage::Checking(thread) });
        match order {
            order if order.is_left() => {}
            Order::Edit { wish, edit, reply } => match running.check_edit(&wish, edit) {
                Ok(thread) => {
                    let who = Who::Caller { dry_run: wish.dry_run, is_file: false, reply };
                    self.now = checking(who, thread);
                }
                Err(error) => refuse_edit(error, reply, running),
            },
            Order::Reload { wish, reply } => match running.check_file(&wish) {
                Ok(thread) => {
                    let who = Who::Caller { dry_run: wish.dry_run, is_file: true, reply };
                    self.now = checking(who, thread);
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Order::Save { wish, force, reply } => drop(reply.send(running.save(&wish, force))),
            Order::HangUp => self.now = checking(Who::Signal, running.read_again()),
            Order::Follow(devices) => {
                running.server_mut().outdate(&devices);
                let begun = running.begin(None, self.given_up.take());
                let stage = Stage::Opening(None, begun);
                self.now = Some(UnderWay { who: Who::Drive, stage });
            }
        }
    }

    /// Handles the result of a check.
    fn checked(&mut self, who: Who, checked: Checked, running: &mut Running) {
        let loaded = match (checked, &who) {
            (Ok(loaded), _) => loaded,
            (Err(wrong), Who::Caller { .. }) => return who.refuse(wrong.told()),
            (Err(wrong), Who::Signal | Who::Drive) => {
                // No change needs these devices any more.
                self.given_up = None;
                return running.refuse_file(&wrong);
            }
        };
        if matches!(who, Who::Signal) {
            warn_of(&loaded.config);
        }
        let wanted = running.wanted(loaded);
        match who {
            Who::Caller { dry_run: true, reply, .. } => {
                drop(reply.send(Ok(wanted.told(true, running.revision()))));
            }
            who => {
                let begun = running.begin(Some(&wanted), self.given_up.take());
                let stage = Stage::Opening(Some(Box::new(wanted)), begun);
                self.now = Some(UnderWay { who, stage });
            }
        }
    }
}

impl Who {
    /// Rejects the change.
    fn refuse(self, error: ApiError) {
        if let Self::Caller { reply, .. } = self {
            let _ = reply.send(Err(error));
        }
    }
}

/// Rejects an edit.
///
/// A "not found" error waits until the commands of earlier removals have ended. A caller that
/// repeats a removal takes this error as proof that the removal has completed.
fn refuse_edit(error: ApiError, reply: Reply, running: &Running) {
    if error.error != ErrorKind::NotFound {
        return drop(reply.send(Err(error)));
    }
    let removals = running.server().removals().clone();
    tokio::spawn(async move {
        let error = match removals.commands_ended().await {
            Ok(()) => error,
            Err(busy) => ApiError::new(ErrorKind::Failed, busy.to_string()),
        };
        drop(reply.send(Err(error)));
    });
}

/// Applies a change whose devices are open.
async fn apply(
    who: Who,
    wanted: Option<Box<Wanted>>,
    groundwork: Groundwork,
    running: &mut Running,
) {
    match (who, wanted) {
        (Who::Caller { is_file, reply, .. }, Some(wanted)) => {
            // A change that has begun is finished even if its caller has disconnected.
            let made = running.make(*wanted, groundwork, is_file).await;
            let settled = running.server().settled();
            tokio::spawn(async move {
                let told = match made {
                    Ok((change, removal)) => match removal.ended().await {
                        Ok(()) => Ok(change),
                        Err(error) => Err(ApiError::new(ErrorKind::Failed, error.to_string())),
                    },
                    Err(error) => {
                        // The answer says that nothing has changed; files must have their old sizes
                        // by then.
                        settled.await;
                        Err(error)
                    }
                };
                drop(reply.send(told));
            });
        }
        (_, Some(wanted)) => running.take_file(*wanted, groundwork).await,
        (_, None) => running.renew(groundwork).await,
    }
}

impl Stage {
    /// Abandons the stage if it is not too late; returns true on success.
    fn give_up(&self) -> bool {
        match self {
            Self::Checking(_) => true,
            Self::Opening(_, begun) => begun.give_up(),
        }
    }
}

impl Order {
    /// Returns true if the caller has disconnected.
    fn is_left(&self) -> bool {
        match self {
            Self::Edit { reply, .. } | Self::Reload { reply, .. } => reply.is_closed(),
            Self::Save { reply, .. } => reply.is_closed(),
            Self::HangUp | Self::Follow(_) => false,
        }
    }

    /// Rejects the change.
    fn refuse(self, error: ApiError) {
        match self {
            Self::Edit { reply, .. } | Self::Reload { reply, .. } => drop(reply.send(Err(error))),
            Self::Save { reply, .. } => drop(reply.send(Err(error))),
            Self::HangUp | Self::Follow(_) => {}
        }
    }
}
