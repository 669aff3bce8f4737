//! Notifications to the service manager over the socket in `NOTIFY_SOCKET`.
//!
//! The protocol is systemd's sd_notify(3). Without a socket the daemon sends no notifications and
//! behaves the same otherwise.
//!
//! ```text
//!   started --READY, STATUS--> serving --RELOADING--> (reload) --READY, STATUS--> serving
//!                                 |  ^                                               |
//!                 WATCHDOG, while every reactor turns                            STOPPING
//! ```
//!
//! A send blocks while the service manager does not read its socket. Dedicated threads send, so
//! that the control plane is not blocked.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::oneshot;

use crate::reactor::mailbox::{Message, Sender};

/// Keep-alive messages per watchdog timeout of the service manager.
const SIGNS: u32 = 3;
/// Maximum number of messages that wait for the service manager; further ones are dropped.
const WAITING_MAX: usize = 64;
/// Maximum length of a status line in characters; longer ones are truncated.
const STATUS_MAX: usize = 300;

/// Channel to the sending thread.
static MESSAGES: OnceLock<SyncSender<String>> = OnceLock::new();

/// Starts the sending thread, if there is a service manager.
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
    // A second start has no effect: the first thread sends.
    let _ = MESSAGES.set(sender);
    Ok(())
}

/// Reports that hosts can connect; `status` is for people.
pub(super) fn ready(status: &str) {
    post(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Reports that the config is being read again. [`ready`] ends this state, whatever the result.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    // Required since systemd 253, to distinguish this reload from an earlier one.
    states.extend(NotifyState::monotonic_usec_now());
    post(&states);
}

/// Reports that the daemon is stopping and that commands in flight get `drain` to complete.
pub(super) fn stopping(drain: Duration) {
    let status = format!("stopping: commands in flight have {} s to end", drain.as_secs());
    post(&[NotifyState::Stopping, NotifyState::Status(&status)]);
}

/// Sends keep-alive messages while every reactor responds, if the service manager requests them.
///
/// A dedicated thread sends them, because the control plane may wait longer than the watchdog
/// timeout for a drive or a name lookup.
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
            tracing::error!(
                %error,
                "cannot start the watchdog thread; the service manager will stop the daemon"
            );
        }
    }
}

/// Waits until every reactor has read its mailbox, forever if one does not; false if one has ended.
fn all_turn(reactors: &[Sender]) -> bool {
    let ask = |reactor: &Sender| {
        let (reply, answer) = oneshot::channel();
        reactor.send(Message::Counts(reply));
        answer
    };
    // All requests are sent first, so that the reactors answer concurrently.
    let answers: Vec<_> = reactors.iter().map(ask).collect();
    answers.into_iter().all(|answer| answer.blocking_recv().is_ok())
}

/// Converts a status to one line of the protocol, so that no part of it begins another line.
fn one_line(status: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    status.chars().map(plain).take(STATUS_MAX).collect()
}

/// Passes a message to the sending thread.
fn post(states: &[NotifyState<'_>]) {
    let Some(messages) = MESSAGES.get() else { return };
    let message = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    if messages.try_send(message).is_err() {
        tracing::warn!(
            "service manager does not read its socket (NOTIFY_SOCKET): state message dropped"
        );
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot send the state to the service manager (NOTIFY_SOCKET)");
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

    /// A hung reactor stops the keep-alive messages even if the others run; one that ended, too.
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
            // This reactor has answered, but the other one has not: no message yet.
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
