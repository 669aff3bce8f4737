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

use nvmeof_api::{ApiError, Change, ErrorKind, Saved};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::config_rejected::ConfigRejected;
use super::config_warnings::log_config_warnings;
use super::devices::{PreopenTask, PreopenedDevices};
use super::running::{ChangeOptions, Checked, ControlState, Edit, Job, OnApplied, ProposedConfig};

/// Maximum number of changes that wait for their turn.
const WAITING_MAX: usize = 64;

/// Channel on which a caller receives the result of its change.
pub(super) type Reply = oneshot::Sender<Result<Change, ApiError>>;

/// A request of a caller.
pub(super) enum ControlRequest {
    /// Reads the running state, even while a change is in progress.
    Look(Job),
    /// Changes the running state when its turn comes.
    Change(ChangeRequest),
}

/// A requested change.
///
/// A caller that has disconnected needs no answer; this holds for all changes.
pub(super) enum ChangeRequest {
    /// An edit of the document.
    Edit { options: ChangeOptions, edit: Edit, on_applied: OnApplied, reply: Reply },
    /// A reload of the config file.
    Reload { options: ChangeOptions, reply: Reply },
    /// Writes the running config to the file.
    ///
    /// It changes nothing, but it must not run between the steps of a change.
    Save { options: ChangeOptions, force: bool, reply: oneshot::Sender<Result<Saved, ApiError>> },
    /// A reload of the config file, requested by SIGHUP.
    Sighup,
    /// Reopens these devices, because the namespaces of their drives changed.
    RefreshDrives(Vec<String>),
}

/// The change in progress and the changes that wait.
#[derive(Default)]
pub(super) struct ChangeQueue {
    now: Option<ActiveChange>,
    waiting: VecDeque<ChangeRequest>,
    /// Devices that were being opened for an earlier state of the file.
    given_up: Option<PreopenTask>,
}

/// The change in progress.
struct ActiveChange {
    who: Requester,
    stage: Stage,
}

/// Origin of a change.
enum Requester {
    Caller { dry_run: bool, is_file: bool, on_applied: OnApplied, reply: Reply },
    Signal,
    Drive,
}

enum Stage {
    /// A thread checks whether the config can run.
    Checking(JoinHandle<Checked>),
    /// The required devices are being opened. Without a [`ProposedConfig`] the running config
    /// stays.
    Opening(Option<Box<ProposedConfig>>, PreopenTask),
}

/// Result of a stage that a thread has finished.
#[derive(Debug)]
pub(super) enum StageResult {
    Checked(Box<Checked>),
    Opened(PreopenedDevices),
}

impl ChangeQueue {
    /// Answers a read request, or queues a change.
    pub(super) async fn answer(&mut self, ask: ControlRequest, running: &mut ControlState) {
        match ask {
            ControlRequest::Look(job) => job(running).await,
            ControlRequest::Change(order) => self.order(order, running),
        }
    }

    /// Queues a change.
    fn order(&mut self, order: ChangeRequest, running: &mut ControlState) {
        self.waiting.retain(|order| !order.is_left());
        if self.waiting.len() >= WAITING_MAX {
            let error = ApiError::new(ErrorKind::Unavailable, "too many changes wait");
            return order.refuse(error.hint("try again"));
        }
        self.waiting.push_back(order);
        self.begin_next(running);
    }

    /// Reloads the file: replaces an earlier reload that can still be abandoned, or queues.
    pub(super) fn hang_up(&mut self, running: &mut ControlState) {
        let before = self.now.as_ref().filter(|now| matches!(now.who, Requester::Signal));
        if before.is_some_and(|now| now.stage.give_up()) {
            tracing::info!(
                "config reload restarted: a new SIGHUP replaces the reload that was opening devices"
            );
            if let Some(ActiveChange { stage: Stage::Opening(_, begun), .. }) = self.now.take() {
                self.given_up = Some(begun);
            }
            self.waiting.push_front(ChangeRequest::Sighup);
        } else if !self.waiting.iter().any(|order| matches!(order, ChangeRequest::Sighup)) {
            if self.now.is_some() {
                tracing::info!("config reload queued behind the change in progress");
            }
            // A reload that still waits will read the current file.
            self.waiting.push_back(ChangeRequest::Sighup);
        }
        self.begin_next(running);
    }

    /// Reopens the devices with these names.
    pub(super) fn refresh_drives(&mut self, devices: Vec<String>, running: &mut ControlState) {
        if !devices.is_empty() {
            self.waiting.push_back(ChangeRequest::RefreshDrives(devices));
            self.begin_next(running);
        }
    }

    /// Returns true if a change that reopens changed drives is still waiting.
    pub(super) fn is_refreshing_drives(&self) -> bool {
        self.waiting.iter().any(|order| matches!(order, ChangeRequest::RefreshDrives(_)))
    }

    /// Returns the finished stage of the change in progress, for [`go_on`](Self::go_on).
    ///
    /// Never returns if no change is in progress.
    pub(super) async fn done(&mut self) -> StageResult {
        match self.now.as_mut().map(|now| &mut now.stage) {
            None => pending().await,
            Some(Stage::Checking(thread)) => {
                let checked = thread.await;
                let checked =
                    checked.unwrap_or_else(|why| Err(ConfigRejected::NotLooked(why.to_string())));
                StageResult::Checked(Box::new(checked))
            }
            Some(Stage::Opening(_, begun)) => StageResult::Opened(begun.done().await),
        }
    }

    /// Continues the change in progress, then begins the next one.
    pub(super) async fn go_on(&mut self, done: StageResult, running: &mut ControlState) {
        if let Some(ActiveChange { who, stage }) = self.now.take() {
            match (done, stage) {
                (StageResult::Checked(checked), _) => self.checked(who, *checked, running),
                (StageResult::Opened(preopened), Stage::Opening(wanted, _)) => {
                    apply(who, wanted, preopened, running).await;
                }
                (StageResult::Opened(_), Stage::Checking(_)) => {}
            }
        }
        self.begin_next(running);
    }

    /// Abandons waiting changes and closes devices that are opening, within `limit`.
    pub(super) async fn end(self, limit: Duration) {
        let Self { now, waiting, given_up } = self;
        drop((waiting, given_up));
        let Some(ActiveChange { stage: Stage::Opening(_, mut begun), who }) = now else { return };
        // The caller learns that the daemon is stopping.
        drop(who);
        let closed = async move {
            begun.give_up();
            begun.done().await.close_in_background().await;
        };
        if tokio::time::timeout(limit, closed).await.is_err() {
            tracing::warn!(
                "drain-timeout expired while a device was opening; the kernel closes it"
            );
        }
    }

    /// Begins waiting changes until one of them takes long.
    fn begin_next(&mut self, running: &mut ControlState) {
        while self.now.is_none()
            && let Some(order) = self.waiting.pop_front()
        {
            self.begin(order, running);
        }
    }

    fn begin(&mut self, order: ChangeRequest, running: &mut ControlState) {
        let checking = |who, thread| Some(ActiveChange { who, stage: Stage::Checking(thread) });
        match order {
            order if order.is_left() => {}
            ChangeRequest::Edit { options, edit, on_applied, reply } => {
                match running.check_edit(&options, edit) {
                    Ok(thread) => {
                        let dry_run = options.dry_run;
                        let who = Requester::Caller { dry_run, is_file: false, on_applied, reply };
                        self.now = checking(who, thread);
                    }
                    Err(error) => refuse_edit(error, reply, running),
                }
            }
            ChangeRequest::Reload { options, reply } => match running.check_file(&options) {
                Ok(thread) => {
                    let (dry_run, on_applied) = (options.dry_run, OnApplied::default());
                    let who = Requester::Caller { dry_run, is_file: true, on_applied, reply };
                    self.now = checking(who, thread);
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            ChangeRequest::Save { options, force, reply } => {
                drop(reply.send(running.save(&options, force)));
            }
            ChangeRequest::Sighup => self.now = checking(Requester::Signal, running.read_again()),
            ChangeRequest::RefreshDrives(devices) => {
                running.server_mut().mark_stale(&devices);
                let begun = running.begin(None, self.given_up.take());
                let stage = Stage::Opening(None, begun);
                self.now = Some(ActiveChange { who: Requester::Drive, stage });
            }
        }
    }

    /// Handles the result of a check.
    fn checked(&mut self, who: Requester, checked: Checked, running: &mut ControlState) {
        let loaded = match (checked, &who) {
            (Ok(loaded), _) => loaded,
            (Err(wrong), Requester::Caller { .. }) => return who.refuse(wrong.to_api_error()),
            (Err(wrong), Requester::Signal | Requester::Drive) => {
                // No change needs these devices any more.
                self.given_up = None;
                return running.refuse_file(&wrong);
            }
        };
        if matches!(who, Requester::Signal) {
            log_config_warnings(&loaded.config);
        }
        let wanted = running.wanted(loaded);
        match who {
            Requester::Caller { dry_run: true, reply, .. } => {
                drop(reply.send(Ok(wanted.into_change(true, running.revision()))));
            }
            who => {
                let begun = running.begin(Some(&wanted), self.given_up.take());
                let stage = Stage::Opening(Some(Box::new(wanted)), begun);
                self.now = Some(ActiveChange { who, stage });
            }
        }
    }
}

impl Requester {
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
fn refuse_edit(error: ApiError, reply: Reply, running: &ControlState) {
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
    who: Requester,
    wanted: Option<Box<ProposedConfig>>,
    preopened: PreopenedDevices,
    running: &mut ControlState,
) {
    match (who, wanted) {
        (Requester::Caller { is_file, on_applied, reply, .. }, Some(wanted)) => {
            // A change that has begun is finished even if its caller has disconnected.
            let made = running.apply(*wanted, preopened, is_file).await;
            if made.is_ok() {
                on_applied.run();
            }
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
        (_, Some(wanted)) => running.apply_file(*wanted, preopened).await,
        (_, None) => running.reopen_devices(preopened).await,
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

impl ChangeRequest {
    /// Returns true if the caller has disconnected.
    fn is_left(&self) -> bool {
        match self {
            Self::Edit { reply, .. } | Self::Reload { reply, .. } => reply.is_closed(),
            Self::Save { reply, .. } => reply.is_closed(),
            Self::Sighup | Self::RefreshDrives(_) => false,
        }
    }

    /// Rejects the change.
    fn refuse(self, error: ApiError) {
        match self {
            Self::Edit { reply, .. } | Self::Reload { reply, .. } => drop(reply.send(Err(error))),
            Self::Save { reply, .. } => drop(reply.send(Err(error))),
            Self::Sighup | Self::RefreshDrives(_) => {}
        }
    }
}
