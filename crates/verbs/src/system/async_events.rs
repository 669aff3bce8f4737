//! Asynchronous events of a device: failures of queue pairs and completion queues, ports that go
//! down.
//!
//! A thread of the device waits for them, and polls the queue pairs of a device that reports no
//! failures. Most failures also show in flushed work. A queue pair with shared receives has no own
//! receives to flush: only here the device reports that it takes no more of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::connection::set_nonblocking;
use super::context::{Context, lock};
use crate::error::VerbsError;
use crate::ffi::verbs::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SRQ_ERR, IBV_QP_STATE,
    IBV_QPS_ERR, ibv_async_event, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

/// Interval of polling a device that does not report failures of queue pairs.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Notification of a queue pair's failure.
#[derive(Debug)]
pub(super) struct QpErrorNotifier {
    /// Set permanently.
    raised: AtomicBool,
    /// Raised and not taken.
    pending: AtomicBool,
    /// The queue pair takes no more shared receives.
    last: AtomicBool,
    wake: Option<OwnedFd>,
}

impl QpErrorNotifier {
    fn raise(&self) {
        if self.raised.swap(true, Ordering::Relaxed) {
            return;
        }
        self.pending.store(true, Ordering::Release);
        self.wake();
    }

    /// Records that all shared receives that the queue pair took have completed.
    fn reach_last(&self) {
        self.last.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(fd) = &self.wake
            && let Err(error) = rustix::io::write(fd, &1_u64.to_ne_bytes())
        {
            tracing::debug!(%error, "an eventfd could not be written");
        }
    }

    /// Returns true if the queue pair is known to take no more shared receives.
    pub(super) fn has_reached_last(&self) -> bool {
        let reached = self.last.load(Ordering::Acquire);
        if reached {
            self.calm();
        }
        reached
    }

    /// Clears the descriptor until the next call of [`wake`](Self::wake).
    fn calm(&self) {
        if let Some(fd) = &self.wake {
            // An error means that it was cleared already.
            let _ = rustix::io::read(fd, &mut [0_u8; 8]);
        }
    }

    /// Returns true once after the alarm was raised.
    pub(super) fn take(&self) -> bool {
        if !self.pending.swap(false, Ordering::Acquire) {
            return false;
        }
        self.calm();
        true
    }

    /// Descriptor that is readable when the alarm is raised.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }
}

/// Subscribers to events.
#[derive(Debug, Default)]
struct Listeners {
    /// Queue pairs by number.
    pairs: HashMap<u32, WatchedQp>,
    /// Completion queues by the kernel's handle.
    queues: HashMap<u32, Arc<AtomicBool>>,
}

/// A subscribed queue pair.
#[derive(Debug)]
struct WatchedQp {
    pair: NonNull<ibv_qp>,
    alarm: Arc<QpErrorNotifier>,
}

// SAFETY: the pointer is used under the lock of its list. It leaves the list before the queue pair
// is destroyed (`AsyncEventThread::add_pair`). libibverbs locks queue pairs.
unsafe impl Send for WatchedQp {}

impl Listeners {
    fn all_failed(&self) {
        self.queues.values().for_each(|broken| broken.store(true, Ordering::Relaxed));
        self.pairs.values().for_each(|watched| watched.alarm.raise());
    }

    /// Queries the state of queue pairs whose failure flushes nothing, because no event reports
    /// it.
    fn look(&self, context: &Context) {
        for watched in self.pairs.values() {
            let WatchedQp { pair, alarm } = watched;
            if alarm.fd().is_none() || alarm.raised.load(Ordering::Relaxed) {
                continue;
            }
            // SAFETY: the structures are plain numbers and pointers, for which zeroes are valid;
            // the queue pair lives while it is in the list.
            let (answer, state) = unsafe {
                let mut attr: ibv_qp_attr = std::mem::zeroed();
                let mut init: ibv_qp_init_attr = std::mem::zeroed();
                let query = context.library().verbs.ibv_query_qp;
                (query(pair.as_ptr(), &mut attr, IBV_QP_STATE, &mut init), attr.qp_state)
            };
            if answer == 0 && state == IBV_QPS_ERR {
                alarm.raise();
            }
        }
    }
}

/// The event thread, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct AsyncEventThread {
    listeners: Arc<Mutex<Listeners>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AsyncEventThread {
    /// Starts the thread. `looks` is set if the device does not report which queue pairs failed.
    pub(super) fn start(
        context: &Arc<Context>,
        name: &str,
        looks: bool,
    ) -> Result<Self, VerbsError> {
        let start = || -> io::Result<Self> {
            set_nonblocking(async_fd(context))?;
            let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let listeners = Arc::new(Mutex::new(Listeners::default()));
            let thread = {
                let (context, listeners) = (Arc::clone(context), Arc::clone(&listeners));
                let (stop, name) = (Arc::clone(&stop), name.to_owned());
                thread::Builder::new()
                    .name(format!("rdma-{name}").chars().take(15).collect())
                    .spawn(move || run(&context, &listeners, &stop, &name, looks))?
            };
            Ok(Self { listeners, stop, thread: Some(thread) })
        };
        start().map_err(|error| VerbsError::call(format!("watching the RDMA device {name}"), error))
    }

    /// Adds an alarm for a queue pair; with a descriptor to wait on if `wakes`.
    ///
    /// # Safety
    /// The queue pair is live, and [removed](Self::remove_pair) before it is destroyed.
    pub(super) unsafe fn add_pair(
        &self,
        pair: NonNull<ibv_qp>,
        wakes: bool,
    ) -> io::Result<Arc<QpErrorNotifier>> {
        // SAFETY: the caller's promise.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = if wakes { Some(eventfd(0, flags)?) } else { None };
        let alarm = Arc::new(QpErrorNotifier {
            raised: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            last: AtomicBool::new(false),
            wake,
        });
        let watched = WatchedQp { pair, alarm: Arc::clone(&alarm) };
        lock(&self.listeners).pairs.insert(number, watched);
        Ok(alarm)
    }

    pub(super) fn remove_pair(&self, number: u32) {
        lock(&self.listeners).pairs.remove(&number);
    }

    /// Returns a flag that becomes true when the completion queue has failed.
    pub(super) fn add_queue(&self, handle: u32) -> Arc<AtomicBool> {
        let broken = Arc::new(AtomicBool::new(false));
        lock(&self.listeners).queues.insert(handle, Arc::clone(&broken));
        broken
    }

    pub(super) fn remove_queue(&self, handle: u32) {
        lock(&self.listeners).queues.remove(&handle);
    }
}

impl Drop for AsyncEventThread {
    fn drop(&mut self) {
        if let Err(error) = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "the thread that watches an RDMA device cannot be stopped");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watched an RDMA device panicked");
        }
    }
}

fn async_fd(context: &Context) -> BorrowedFd<'_> {
    // SAFETY: the context, and so its descriptor, stays open while it is borrowed.
    unsafe { BorrowedFd::borrow_raw((*context.as_ptr()).async_fd) }
}

fn run(context: &Context, listeners: &Mutex<Listeners>, stop: &OwnedFd, name: &str, looks: bool) {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(async_fd(context), PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut fds, looks.then_some(&LOOK)) {
            Ok(0) => lock(listeners).look(context),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, device = name, "waiting for an RDMA device's events failed");
                return;
            }
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        if let Err(error) = hear(context, listeners, name) {
            // The device was removed, so there are no more events.
            tracing::info!(%error, device = name, "an RDMA device has no more events");
            lock(listeners).all_failed();
            return;
        }
    }
}

/// Handles all pending events.
fn hear(context: &Context, listeners: &Mutex<Listeners>, name: &str) -> io::Result<()> {
    let verbs = &context.library().verbs;
    loop {
        // SAFETY: the structure is a pointer and a number, for which zeroes are valid.
        let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, whose events never block, and a place for one.
        if unsafe { (verbs.ibv_get_async_event)(context.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(()),
                io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            }
        }
        tell(&event, listeners, name);
        // SAFETY: the event was just returned and is acknowledged once.
        unsafe { (verbs.ibv_ack_async_event)(&mut event) };
    }
}

fn tell(event: &ibv_async_event, listeners: &Mutex<Listeners>, name: &str) {
    let kind = event.event_type;
    match kind {
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: these events concern a queue pair. It is not destroyed before the event is
            // acknowledged, because destroying it waits for that.
            let number = unsafe { (*event.element.qp).qp_num };
            tracing::debug!(device = name, number, kind, "a queue pair failed");
            if let Some(watched) = lock(listeners).pairs.get(&number) {
                watched.alarm.raise();
                if kind == IBV_EVENT_QP_LAST_WQE_REACHED {
                    watched.alarm.reach_last();
                }
            }
        }
        IBV_EVENT_CQ_ERR => {
            // SAFETY: as above, with a completion queue.
            let handle = unsafe { (*event.element.cq).handle };
            tracing::error!(device = name, handle, "a completion queue failed");
            if let Some(broken) = lock(listeners).queues.get(&handle) {
                broken.store(true, Ordering::Relaxed);
            }
        }
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_SRQ_ERR => {
            tracing::error!(device = name, kind, "an RDMA device failed");
            lock(listeners).all_failed();
        }
        _ => tracing::debug!(device = name, kind, "an RDMA device says something"),
    }
}
