//! Changes of what runs: one at a time, in the order they came. What may take long of one, looking at files and opening
//! drives, is done by threads; meanwhile what runs is served, and looked at, as it is.
//!
//! ```text
//!   API ----.           its turn            can be used           drives and files are open
//!   SIGHUP --> waiting ---------> Checking ------------> Opening -------------------------> applied, answered
//!   drive --'     |                  ^                      |
//!                 |                  '--SIGHUP once more ---'  while drives open, not files
//!                 '--its caller has gone: left out
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

/// Callers that wait for their turn at most.
const WAITING_MAX: usize = 64;

/// Edits a document.
pub(crate) type Edit =
    Box<dyn FnOnce(&Running, &mut Document) -> Result<(), ApiError> + Send + 'static>;
/// Where a caller of the API hears what became of its change.
pub(crate) type Reply = oneshot::Sender<Result<Change, ApiError>>;
/// What came of looking whether something can be what runs.
pub(super) type Checked = Result<Loaded, Wrong>;

/// What the API asks for.
pub(crate) enum Ask {
    /// To look at what runs, whatever is being changed.
    Look(Job),
    /// To change it, when it is its turn.
    Change(Order),
}

/// A change that is to be made. A caller that has gone needs no answer, here and everywhere.
pub(crate) enum Order {
    /// An edit of the document.
    Edit { wish: Wish, edit: Edit, reply: Reply },
    /// What the file says.
    Reload { wish: Wish, reply: Reply },
    /// None, but to write what runs to the file, which must not come between the parts of a change.
    Save { wish: Wish, force: bool, reply: oneshot::Sender<Result<Saved, ApiError>> },
    /// What the file says, by a signal.
    HangUp,
    /// Devices are to be opened anew, as their drives' namespaces changed.
    Follow(Vec<String>),
}

/// The changes there are.
#[derive(Default)]
pub(super) struct Changes {
    now: Option<UnderWay>,
    waiting: VecDeque<Order>,
    /// What was being opened for what the file said before.
    given_up: Option<Begun>,
}

/// A change whose turn it is.
struct UnderWay {
    who: Who,
    stage: Stage,
}

/// Who wants it.
enum Who {
    Caller { dry_run: bool, is_file: bool, reply: Reply },
    Signal,
    Drive,
}

enum Stage {
    /// It is looked whether it can be.
    Checking(JoinHandle<Checked>),
    /// What it needs is opened. Nothing is wanted but what runs if nothing is given.
    Opening(Option<Box<Wanted>>, Begun),
}

/// What a thread is done with.
#[derive(Debug)]
pub(super) enum Done {
    Checked(Box<Checked>),
    Opened(Groundwork),
}

impl Changes {
    /// Does what the API asks for, or has it done.
    pub(super) async fn answer(&mut self, ask: Ask, running: &mut Running) {
        match ask {
            Ask::Look(job) => job(running).await,
            Ask::Change(order) => self.order(order, running),
        }
    }

    /// Has a change made when it is its turn.
    fn order(&mut self, order: Order, running: &mut Running) {
        self.waiting.retain(|order| !order.is_left());
        if self.waiting.len() >= WAITING_MAX {
            let error = ApiError::new(ErrorKind::Unavailable, "too many changes wait");
            return order.refuse(error.hint("try again"));
        }
        self.waiting.push_back(order);
        self.begin_next(running);
    }

    /// Has the file read again: in the place of what it said before, if that can still be, or when it is its turn.
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
            // One that still waits will read what is there by then.
            self.waiting.push_back(Order::HangUp);
        }
        self.begin_next(running);
    }

    /// Has the devices of these names opened anew.
    pub(super) fn follow(&mut self, devices: Vec<String>, running: &mut Running) {
        if !devices.is_empty() {
            self.waiting.push_back(Order::Follow(devices));
            self.begin_next(running);
        }
    }

    /// Whether drives that changed are still to be followed.
    pub(super) fn is_following(&self) -> bool {
        self.waiting.iter().any(|order| matches!(order, Order::Follow(_)))
    }

    /// What is done of the change under way, as soon as it is; for [`go_on`](Self::go_on). Never if there is none.
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

    /// Goes on with the change under way; after it with the next one.
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

    /// Gives up what waits, and waits for so long for what is being opened, to close it in good order.
    pub(super) async fn end(self, limit: Duration) {
        let Self { now, waiting, given_up } = self;
        drop((waiting, given_up));
        let Some(UnderWay { stage: Stage::Opening(_, mut begun), who }) = now else { return };
        // It hears that the daemon is stopping.
        drop(who);
        let closed = async move {
            begun.give_up();
            begun.done().await.close_aside().await;
        };
        if tokio::time::timeout(limit, closed).await.is_err() {
            tracing::warn!("a device that was being opened is left to the system");
        }
    }

    /// Begins what waits, until something of it takes long.
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

    /// It is known whether it can be.
    fn checked(&mut self, who: Who, checked: Checked, running: &mut Running) {
        let loaded = match (checked, &who) {
            (Ok(loaded), _) => loaded,
            (Err(wrong), Who::Caller { .. }) => return who.refuse(wrong.told()),
            (Err(wrong), Who::Signal | Who::Drive) => {
                // Nobody wants it any more.
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
    /// Says that it is not done.
    fn refuse(self, error: ApiError) {
        if let Self::Caller { reply, .. } = self {
            let _ = reply.send(Err(error));
        }
    }
}

/// Says that an edit is not made. That something is not there is not said while commands of what
/// was removed before have not ended: a caller that removes it again takes that for its end.
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

/// What it needs is open.
async fn apply(
    who: Who,
    wanted: Option<Box<Wanted>>,
    groundwork: Groundwork,
    running: &mut Running,
) {
    match (who, wanted) {
        (Who::Caller { is_file, reply, .. }, Some(wanted)) => {
            // A change that was begun is finished, whoever still waits.
            let made = running.make(*wanted, groundwork, is_file).await;
            let settled = running.server().settled();
            tokio::spawn(async move {
                let told = match made {
                    Ok((change, removal)) => match removal.ended().await {
                        Ok(()) => Ok(change),
                        Err(error) => Err(ApiError::new(ErrorKind::Failed, error.to_string())),
                    },
                    Err(error) => {
                        // When it is said that nothing has changed, nothing has: files have their sizes again.
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
    /// Gives it up, if it is not too late for that.
    fn give_up(&self) -> bool {
        match self {
            Self::Checking(_) => true,
            Self::Opening(_, begun) => begun.give_up(),
        }
    }
}

impl Order {
    /// Whether its caller has gone.
    fn is_left(&self) -> bool {
        match self {
            Self::Edit { reply, .. } | Self::Reload { reply, .. } => reply.is_closed(),
            Self::Save { reply, .. } => reply.is_closed(),
            Self::HangUp | Self::Follow(_) => false,
        }
    }

    /// Says that it is not done.
    fn refuse(self, error: ApiError) {
        match self {
            Self::Edit { reply, .. } | Self::Reload { reply, .. } => drop(reply.send(Err(error))),
            Self::Save { reply, .. } => drop(reply.send(Err(error))),
            Self::HangUp | Self::Follow(_) => {}
        }
    }
}
