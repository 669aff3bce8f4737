//! How the control plane and other reactors speak to a reactor: a queue and an eventfd that wakes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use anyhow::Context as _;
use nvmeof_core::block::BlockDevice;
use nvmeof_nvmf::{ControllerKey, DeviceId, Queue, Quiesce, QuiesceGuard, RetiredNamespace};
use nvmeof_pacing::Parts;
use nvmeof_transport::ParkedQueue;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::abort::Victim;
use super::roll::Listed;
use super::stats::Ask;
use super::trace::TraceOrder;
use crate::tenants::Shares;

/// What a reactor can be told.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this connection.
    Attach {
        /// The connection.
        parked: Box<dyn ParkedQueue>,
        /// Its NVMe queue; boxed, as it is far larger than the other messages.
        queue: Box<Queue>,
    },
    /// Open a queue to this device, and say whether it worked.
    AddDevice {
        /// Name of the device from now on.
        id: DeviceId,
        /// The device.
        device: Arc<dyn BlockDevice>,
        /// Answered with the error's text if the device cannot be used.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Finish the commands that were taken in for this device, then close the queue to it and answer.
    RemoveDevice {
        /// The device.
        id: DeviceId,
        /// Answered when nothing of the device is in use here.
        reply: oneshot::Sender<()>,
    },
    /// Abort a command of one of the reactor's I/O queues if it can be.
    Abort(AbortOrder),
    /// The answer to an [`Message::Abort`] this reactor sent.
    AbortDone {
        /// Token of the Abort command.
        token: u64,
        /// The command has been aborted.
        aborted: bool,
    },
    /// Move one I/O connection to another reactor.
    MoveOne {
        /// Index of the other reactor.
        to: usize,
    },
    /// Admit by another policy from now on, and say whether that worked.
    Pacing {
        /// This reactor's part of it.
        parts: Box<Parts>,
        /// Answered with the error's text if what waits could never start under it.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// The weights and limits of hosts and devices, for the flows there are and those to come.
    Shares(Shares),
    /// Say what was counted, at the end of this turn.
    Report(Ask),
    /// Follow commands, say what became of them, or follow none.
    Trace(TraceOrder),
    /// Say which connections there are.
    Roll(oneshot::Sender<Vec<Listed>>),
    /// Release the guard when all writes of these controllers that have arrived by now have ended.
    ControllerBarrier {
        /// The controllers.
        controllers: Arc<[ControllerKey]>,
        /// The guard.
        guard: Arc<QuiesceGuard>,
    },
    /// End the commands for namespaces that are gone, and reply when all writes that this reactor
    /// now holds for these namespaces have ended.
    NamespaceBarrier {
        /// The namespaces as they were.
        namespaces: Arc<[RetiredNamespace]>,
        /// Answered then.
        reply: oneshot::Sender<()>,
    },
    /// End the connection of this name, and say whether it is here.
    Dismiss {
        /// The connection.
        id: u64,
        /// Receives the handle to wait for the end of its commands, if the connection was here.
        reply: oneshot::Sender<Option<Dismissed>>,
    },
    /// Say what is held.
    Counts(oneshot::Sender<Counts>),
    /// Take no new commands and answer when those in flight are over.
    Drain(oneshot::Sender<()>),
    /// Close every connection and end the thread.
    Stop,
}

/// Handle to wait for the end of a dismissed connection's commands; `None` before its Connect.
pub(crate) type Dismissed = Option<Quiesce>;

/// An Abort command on its way to the reactor that has the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AbortOrder {
    /// Reactor that asks.
    pub(crate) from: usize,
    /// Token of the Abort command there.
    pub(crate) token: u64,
    /// The command to abort.
    pub(crate) victim: Victim,
}

/// What a reactor holds: the counts a leak would show in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections of every kind.
    pub(crate) connections: usize,
    /// Connections that are I/O queues.
    pub(crate) io_queues: usize,
    /// Commands between capsule and response.
    pub(crate) requests: usize,
    /// Buffers out of the pool.
    pub(crate) buffers: usize,
    /// Permits out of the pacer.
    pub(crate) permits: usize,
    /// Commands that wait for admission.
    pub(crate) waiting: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.io_queues += other.io_queues;
        self.requests += other.requests;
        self.buffers += other.buffers;
        self.permits += other.permits;
        self.waiting += other.waiting;
    }
}

/// The sending end: cheap to clone, usable from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    queue: mpsc::Sender<Message>,
    bell: Arc<Bell>,
}

impl Sender {
    /// Sends a message and wakes the reactor. A reactor that has ended drops it, and with it the
    /// message's reply channel, which tells the asker.
    pub(crate) fn send(&self, message: Message) {
        if self.queue.send(message).is_ok() {
            self.bell.ring();
        }
    }

    /// Wakes the reactor without a message.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: mpsc::Receiver<Message>,
    bell: Arc<Bell>,
}

impl Mailbox {
    /// The next message, if there is one. Costs one load while the bell has not been rung.
    #[inline]
    pub(crate) fn rung(&self) -> bool {
        self.bell.rung.load(Ordering::Relaxed)
    }

    /// Silences the bell; call before draining with [`try_recv`](Self::try_recv).
    pub(crate) fn silence(&self) {
        if self.bell.rung.swap(false, Ordering::AcqRel) {
            let mut count = [0; 8];
            // An empty eventfd means that another look has silenced it already.
            let _ = rustix::io::read(&self.bell.fd, &mut count);
        }
    }

    /// The descriptor is readable. A sender may be slow between setting the bell and writing: then
    /// its message was read without it, and what it writes would wake this reactor for ever.
    pub(crate) fn hear(&self) {
        self.bell.rung.store(true, Ordering::Release);
    }

    pub(crate) fn try_recv(&self) -> Option<Message> {
        self.queue.try_recv().ok()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}

/// An eventfd that is written at most once between two looks.
#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Only a counter at its maximum refuses, and then the reactor is awake anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

/// Both ends of a new mailbox.
pub(crate) fn mailbox() -> anyhow::Result<(Sender, Mailbox)> {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .context("cannot make the eventfd that wakes a reactor")?;
    let bell = Arc::new(Bell { fd, rung: AtomicBool::new(false) });
    let (sender, receiver) = mpsc::channel();
    Ok((Sender { queue: sender, bell: Arc::clone(&bell) }, Mailbox { queue: receiver, bell }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ringing_twice_is_heard_once_and_no_message_is_lost() {
        let (sender, mailbox) = mailbox().unwrap();
        assert!(!mailbox.rung());
        sender.send(Message::MoveOne { to: 1 });
        sender.send(Message::MoveOne { to: 2 });
        assert!(mailbox.rung());
        mailbox.silence();
        assert!(!mailbox.rung());
        assert!(matches!(mailbox.try_recv(), Some(Message::MoveOne { to: 1 })));
        assert!(matches!(mailbox.try_recv(), Some(Message::MoveOne { to: 2 })));
        assert!(mailbox.try_recv().is_none());
        sender.wake();
        assert!(mailbox.rung());
    }

    #[test]
    fn a_bell_that_sounds_late_is_silenced_too() {
        let (_sender, mailbox) = mailbox().unwrap();
        let sounds = || {
            let mut fds = [rustix::event::PollFd::new(&mailbox, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() > 0
        };
        // The sender sets the bell, the reactor has read its message, and only then it writes.
        mailbox.bell.rung.store(true, Ordering::Relaxed);
        mailbox.silence();
        rustix::io::write(&mailbox.bell.fd, &1u64.to_ne_bytes()).unwrap();
        assert!(sounds() && !mailbox.rung());
        mailbox.hear();
        assert!(mailbox.rung());
        mailbox.silence();
        assert!(!sounds() && !mailbox.rung());
    }
}
