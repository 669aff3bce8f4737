//! What the service manager is told: systemd's notification protocol (sd_notify(3)), over the socket
//! in `NOTIFY_SOCKET`. Without one nothing is said, and nothing is different.
//!
//! ```text
//!   started --READY, STATUS--> serving --RELOADING--> (reload) --READY, STATUS--> serving
//!                                 |  ^                                               |
//!                     WATCHDOG, as long as every reactor turns                  STOPPING
//! ```
//!
//! A service manager that does not read its socket for a while makes a send wait. Threads of their own send,
//! so that the control plane goes on.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::oneshot;

use crate::reactor::mailbox::{Message, Sender};

/// How often a sign of life is sent in the time after which the manager would have given up.
const SIGNS: u32 = 3;
/// Messages that wait for the service manager at most; further ones are left out.
const WAITING_MAX: usize = 64;
/// Longest status line; one that is longer says no more.
const STATUS_MAX: usize = 300;

/// To the thread that sends.
static MESSAGES: OnceLock<SyncSender<String>> = OnceLock::new();

/// Starts the thread that sends, if there is a service manager to tell.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start() -> std::io::Result<()> {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return Ok(());
    }
    let (sender, messages) = sync_channel::<String>(WAITING_MAX);
    std::thread::Builder::new().name("notify".into()).spawn(move || {
        for message in messages {
            send(&[NotifyState::Custom(&message)]);
        }
    })?;
    // A second start changes nothing: the first thread sends.
    let _ = MESSAGES.set(sender);
    Ok(())
}

/// Hosts can connect; `status` is for people.
pub(super) fn ready(status: &str) {
    post(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// The config is being read again. [`ready`] ends it, whatever came of it.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    // Wanted since systemd 253, to tell this reload from an earlier one.
    states.extend(NotifyState::monotonic_usec_now());
    post(&states);
}

/// The daemon ends; what is in flight may still take this long.
pub(super) fn stopping(drain: Duration) {
    let status = format!("stopping: commands in flight have {} s to end", drain.as_secs());
    post(&[NotifyState::Stopping, NotifyState::Status(&status)]);
}

/// Sends signs of life from now on, if the manager wants some: as long as every reactor answers. It has
/// a thread of its own, because the control plane may wait for a drive or a name for longer than that.
pub(super) fn watch(reactors: Vec<Sender>) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    let every = patience / SIGNS;
    let thread = std::thread::Builder::new().name("watchdog".into());
    let spawned = thread.spawn(move || {
        while all_turn(&reactors) {
            send(&[NotifyState::Watchdog]);
            std::thread::sleep(every);
        }
    });
    match spawned {
        Ok(_) => tracing::info!("watchdog: a sign of life every {} ms", every.as_millis()),
        Err(error) => {
            tracing::error!(%error, "no thread for the watchdog: the service manager will end the daemon");
        }
    }
}

/// Waits until every reactor has read its mailbox, for ever if one does not; false if one has ended.
fn all_turn(reactors: &[Sender]) -> bool {
    let ask = |reactor: &Sender| {
        let (reply, answer) = oneshot::channel();
        reactor.send(Message::Counts(reply));
        answer
    };
    // All at once: they answer at the same time.
    let answers: Vec<_> = reactors.iter().map(ask).collect();
    answers.into_iter().all(|answer| answer.blocking_recv().is_ok())
}

/// A status is one line of the protocol: nothing in it may begin another.
fn one_line(status: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    status.chars().map(plain).take(STATUS_MAX).collect()
}

/// Has the thread send it.
fn post(states: &[NotifyState<'_>]) {
    let Some(messages) = MESSAGES.get() else { return };
    let message = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    if messages.try_send(message).is_err() {
        tracing::warn!(
            "the service manager does not read its socket (NOTIFY_SOCKET): it is not told"
        );
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager (NOTIFY_SOCKET)");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::reactor::mailbox::{Counts, Mailbox, mailbox};

    fn answer_one(mailbox: &Mailbox) {
        loop {
            match mailbox.try_recv() {
                Some(Message::Counts(reply)) => return reply.send(Counts::default()).unwrap(),
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
    }

    /// One that hangs holds the sign of life back, however lively the others are; one that ended does not.
    #[test]
    fn a_reactor_that_does_not_turn_holds_the_sign_back() {
        let (first, lively) = mailbox().unwrap();
        let (second, hung) = mailbox().unwrap();
        let reactors = vec![first, second];
        let (tell, told) = mpsc::channel();
        let asker = std::thread::spawn(move || {
            while all_turn(&reactors) {
                tell.send(()).unwrap();
            }
        });
        for _ in 0..3 {
            answer_one(&lively);
            // It has answered, and yet nothing is told: the other has not.
            assert!(told.try_recv().is_err());
            answer_one(&hung);
            told.recv().unwrap();
        }
        drop((lively, hung));
        asker.join().unwrap();
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("a\nREADY=1\tb"), "a READY=1 b");
        assert_eq!(one_line(&"é".repeat(400)).chars().count(), STATUS_MAX);
    }
}
