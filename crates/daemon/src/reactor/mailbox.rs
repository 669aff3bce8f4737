//! Messages of the control plane and other reactors to a reactor.
//!
//! A mailbox is a queue, with an eventfd to wake the reactor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use anyhow::Context as _;
use nvmeof_core::block::BlockDevice;
use nvmeof_nvmf::{ControllerKey, DeviceId, Queue, Quiesce, QuiesceGuard, RetiredNamespace};
use nvmeof_pacing::PacerParts;
use nvmeof_transport::DetachedQueue;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::abort::Victim;
use super::connections::ConnectionInfo;
use super::qos::QosTable;
use super::stats::ReportRequest;
use super::trace::TraceControl;

/// A message to a reactor.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this connection.
    Attach {
        /// The connection.
        parked: Box<dyn DetachedQueue>,
        /// Its NVMe queue, boxed because it is far larger than the other messages.
        queue: Box<Queue>,
    },
    /// Open a queue to this device, and reply with the result.
    AddDevice {
        /// Identifier of the device from now on.
        id: DeviceId,
        /// The device.
        device: Arc<dyn BlockDevice>,
        /// Receives the error's text if the device cannot be used.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Complete the commands accepted for this device, then close the queue to it and reply.
    RemoveDevice {
        /// The device.
        id: DeviceId,
        /// Receives the reply when this reactor no longer uses the device.
        reply: oneshot::Sender<()>,
    },
    /// Abort a command of one of the reactor's I/O queues if possible.
    Abort(AbortRequest),
    /// The reply to a [`Message::Abort`] of this reactor.
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
    /// Replace the admission policy, and reply with the result.
    Pacing {
        /// This reactor's part of the policy.
        parts: Box<PacerParts>,
        /// Receives the error's text if a waiting command could never start under the policy.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Replace the weights and limits of hosts and devices, for existing and future flows.
    QosTable(QosTable),
    /// Reply with the statistics at the end of this turn.
    Report(ReportRequest),
    /// Trace commands, read the traces, or stop tracing.
    Trace(TraceControl),
    /// Reply with the list of connections.
    ListConnections(oneshot::Sender<Vec<ConnectionInfo>>),
    /// Release the guard when all writes of these controllers that have arrived by now have ended.
    ControllerBarrier {
        /// The controllers.
        controllers: Arc<[ControllerKey]>,
        /// The guard.
        guard: Arc<QuiesceGuard>,
    },
    /// End the commands for namespaces that are gone, and reply when their writes have ended.
    ///
    /// These are all writes that this reactor now holds for the namespaces.
    NamespaceBarrier {
        /// The namespaces before their removal or change.
        namespaces: Arc<[RetiredNamespace]>,
        /// Receives the reply.
        reply: oneshot::Sender<()>,
    },
    /// End the connection with this identifier, and reply with its handle if it is here.
    Disconnect {
        /// The connection.
        id: u64,
        /// Receives the handle to wait for the end of its commands, if the connection was here.
        reply: oneshot::Sender<Option<Disconnected>>,
    },
    /// Reply with the number of objects that the reactor holds.
    Counts(oneshot::Sender<Counts>),
    /// Take no new commands, and reply when those in flight have ended.
    Drain(oneshot::Sender<()>),
    /// Close every connection and end the thread.
    Stop,
}

/// Handle to wait for the end of a dismissed connection's commands; `None` before its Connect.
pub(crate) type Disconnected = Option<Quiesce>;

/// A request to abort a command, sent to the reactor that serves the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AbortRequest {
    /// Reactor that received the Abort command.
    pub(crate) from: usize,
    /// Token of the Abort command there.
    pub(crate) token: u64,
    /// The command to abort.
    pub(crate) victim: Victim,
}

/// Numbers of objects that a reactor holds. A leak would show in these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections of every kind.
    pub(crate) connections: usize,
    /// Connections that are I/O queues.
    pub(crate) io_queues: usize,
    /// Commands between capsule and response.
    pub(crate) requests: usize,
    /// Buffers leased from the pool.
    pub(crate) buffers: usize,
    /// Permits granted by the pacer.
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

/// The sending end. It is cheap to clone and usable from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    queue: mpsc::Sender<Message>,
    wake_fd: Arc<WakeFd>,
}

impl Sender {
    /// Sends a message and wakes the reactor.
    ///
    /// A reactor that has ended drops the message with its reply channel, which notifies the
    /// requester.
    pub(crate) fn send(&self, message: Message) {
        if self.queue.send(message).is_ok() {
            self.wake_fd.ring();
        }
    }

    /// Wakes the reactor without a message.
    pub(crate) fn wake(&self) {
        self.wake_fd.ring();
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: mpsc::Receiver<Message>,
    wake_fd: Arc<WakeFd>,
}

impl Mailbox {
    /// Returns true if a sender has woken the reactor since the last
    /// [`clear_wake`](Self::clear_wake).
    ///
    /// The call costs one load.
    #[inline]
    pub(crate) fn is_signalled(&self) -> bool {
        self.wake_fd.is_signalled.load(Ordering::Relaxed)
    }

    /// Clears the flag and the eventfd.
    ///
    /// Call it before draining with [`try_recv`](Self::try_recv).
    pub(crate) fn clear_wake(&self) {
        if self.wake_fd.is_signalled.swap(false, Ordering::AcqRel) {
            let mut count = [0; 8];
            // An empty eventfd means that an earlier call has cleared it already.
            let _ = rustix::io::read(&self.wake_fd.fd, &mut count);
        }
    }

    /// Records that the eventfd is readable.
    ///
    /// A slow sender sets the flag, and the reactor reads its message before the sender writes the
    /// eventfd. Without this call the late write would wake the reactor forever.
    pub(crate) fn clear(&self) {
        self.wake_fd.is_signalled.store(true, Ordering::Release);
    }

    pub(crate) fn try_recv(&self) -> Option<Message> {
        self.queue.try_recv().ok()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.fd.as_fd()
    }
}

/// An eventfd that is written at most once between two reads.
#[derive(Debug)]
struct WakeFd {
    fd: OwnedFd,
    is_signalled: AtomicBool,
}

impl WakeFd {
    fn ring(&self) {
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            // A write fails only if the counter is at its maximum, and the reactor is awake then.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

/// Creates both ends of a mailbox.
pub(crate) fn mailbox() -> anyhow::Result<(Sender, Mailbox)> {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .context("cannot make the eventfd that wakes a reactor")?;
    let wake_fd = Arc::new(WakeFd { fd, is_signalled: AtomicBool::new(false) });
    let (sender, receiver) = mpsc::channel();
    Ok((
        Sender { queue: sender, wake_fd: Arc::clone(&wake_fd) },
        Mailbox { queue: receiver, wake_fd },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ringing_twice_is_heard_once_and_no_message_is_lost() {
        let (sender, mailbox) = mailbox().unwrap();
        assert!(!mailbox.is_signalled());
        sender.send(Message::MoveOne { to: 1 });
        sender.send(Message::MoveOne { to: 2 });
        assert!(mailbox.is_signalled());
        mailbox.clear_wake();
        assert!(!mailbox.is_signalled());
        assert!(matches!(mailbox.try_recv(), Some(Message::MoveOne { to: 1 })));
        assert!(matches!(mailbox.try_recv(), Some(Message::MoveOne { to: 2 })));
        assert!(mailbox.try_recv().is_none());
        sender.wake();
        assert!(mailbox.is_signalled());
    }

    #[test]
    fn a_wake_that_arrives_late_is_cleared_too() {
        let (_sender, mailbox) = mailbox().unwrap();
        let is_readable = || {
            let mut fds = [rustix::event::PollFd::new(&mailbox, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() > 0
        };
        // The sender sets the flag and writes only after the reactor has read its message.
        mailbox.wake_fd.is_signalled.store(true, Ordering::Relaxed);
        mailbox.clear_wake();
        rustix::io::write(&mailbox.wake_fd.fd, &1u64.to_ne_bytes()).unwrap();
        assert!(is_readable() && !mailbox.is_signalled());
        mailbox.clear();
        assert!(mailbox.is_signalled());
        mailbox.clear_wake();
        assert!(!is_readable() && !mailbox.is_signalled());
    }
}
