//! An open controller of a drive: its state, its namespaces and its admin commands.

mod open;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::identify::{Cns, Identify, Namespace, NsidList};
use nvmeof_wire::zerocopy::transmute_ref;

use super::admin::AdminReply;
use super::buffers::{BufferMap, BufferMaps, MappedPools};
use super::error::{AdminError, OpenError, OpenErrorReason};
use super::events::DriveEvent;
use super::function::Registers;
use super::gate::{ControllerGate, ControllerState, QueueShared};
use super::identify::{ControllerCapabilities, Identity, NamespaceInfo, namespace};
use super::options::{ControllerOptions, nanos};
use super::pooled::FreePool;
use super::ring::RingPair;
use super::supervisor::ControllerSupervisor;
use super::transfer::Lists;
use super::wait::Wait;

/// Maximum pause of a caller that waits for an admin command.
const PAUSE_MAX: u64 = 20_000_000;
const PAUSE_MIN: u64 = 50_000;

/// Memory of an I/O queue pair, with the lists of its commands.
#[derive(Debug)]
pub(super) struct QueuePairMemory {
    /// Index among the queues; the QID is one more.
    pub(super) index: usize,
    pub(super) ring: RingPair,
    pub(super) lists: Lists,
    /// Describes long transfers by an SGL.
    pub(super) sgl: bool,
}

/// A controller that this process uses exclusively.
pub struct Controller {
    address: String,
    options: ControllerOptions,
    /// [`Self::quiesce_bound`].
    bound: Duration,
    wait: Arc<dyn Wait>,
    shared: Arc<ControllerGate>,
    identity: Identity,
    abilities: ControllerCapabilities,
    queue_pair_memory: Arc<FreePool<QueuePairMemory>>,
    reach: Arc<MappedPools>,
    /// Registers, kept mapped by other owners until the controller has failed.
    regs: Mutex<Weak<dyn Registers>>,
    supervisor: Arc<Mutex<ControllerSupervisor>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_ending: Arc<AtomicBool>,
}

/// Event counters of a controller since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerStats {
    /// Commands that took too long.
    pub timeouts: u64,
    /// Commands aborted for that reason.
    pub aborts: u64,
    /// Resets of the controller.
    pub resets: u64,
    /// Asynchronous events reported.
    pub events: u64,
    /// Completions that match no command.
    pub violations: u64,
    /// Commands resubmitted after a reset.
    pub resubmitted: u64,
    /// Buffers abandoned because the drive might still write to them.
    pub leaked_buffers: u64,
    /// Bytes of abandoned buffers.
    pub leaked_bytes: u64,
}

impl Controller {
    /// Returns the PCI address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the identity of the drive.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the state of the controller.
    pub fn state(&self) -> ControllerState {
        self.shared.state()
    }

    /// Returns the maximum time that an operation can stay with the drive after it was cancelled.
    pub fn quiesce_bound(&self) -> Duration {
        self.bound
    }

    /// Returns the event counters.
    pub fn stats(&self) -> ControllerStats {
        let counters = &self.shared.counters;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        ControllerStats {
            timeouts: get(&counters.timeouts),
            aborts: get(&counters.aborts),
            resets: get(&counters.resets),
            events: get(&counters.events),
            violations: get(&counters.violations),
            resubmitted: get(&counters.resubmitted),
            leaked_buffers: get(&counters.leaked_buffers),
            leaked_bytes: get(&counters.leaked_bytes),
        }
    }

    /// Returns the last events, oldest first; at most 64.
    pub fn events(&self) -> Vec<DriveEvent> {
        self.supervisor().events()
    }

    /// Returns a counter that changes whenever namespaces may have changed: the drive reported it,
    /// or a reset may have hidden a report.
    pub fn namespace_changes(&self) -> u64 {
        self.shared.counters.namespace_changes.load(Ordering::Relaxed)
    }

    /// Returns the number of I/O queue pairs.
    pub fn queues(&self) -> usize {
        self.shared.queues.len()
    }

    /// Returns the commands an I/O queue pair holds; a drive may have shorter queues than
    /// requested.
    pub fn queue_depth(&self) -> usize {
        self.shared.queues.first().map_or(0, QueueShared::slots)
    }

    /// Returns the number of open I/O queue pairs.
    pub fn open_queues(&self) -> usize {
        self.shared.claimed()
    }

    /// Returns the identifiers of the active namespaces, ascending; the first 1024.
    ///
    /// # Errors
    /// The error of the controller.
    pub fn namespaces(&self) -> Result<Vec<u32>, AdminError> {
        let page = self.query(Identify::new(Cns::ACTIVE_NAMESPACES, 0).encode(0))?;
        let list: &NsidList = transmute_ref!(&*page);
        Ok(list.iter().collect())
    }

    /// Returns a namespace as the drive describes it now.
    ///
    /// # Errors
    /// The namespace does not exist, or cannot be served: metadata, blocks of more than 4 KiB.
    pub fn namespace(&self, nsid: u32) -> Result<NamespaceInfo, OpenError> {
        self.identify_namespace(nsid).map_err(|reason| reason.at(&self.address))
    }

    fn identify_namespace(&self, nsid: u32) -> Result<NamespaceInfo, OpenErrorReason> {
        let most = self.abilities.namespaces;
        if nsid == 0 || nsid > most {
            let reason = format!("the drive's namespaces are numbered 1 to {most}");
            return Err(OpenErrorReason::Namespace { nsid, reason });
        }
        let page = self
            .query(Identify::new(Cns::NAMESPACE, nsid).encode(0))
            .map_err(OpenErrorReason::command("Identify Namespace"))?;
        let answer: &Namespace = transmute_ref!(&*page);
        let info = namespace(nsid, answer)?;
        if !self.abilities.descriptors {
            return Ok(info);
        }
        match self.query(Identify::new(Cns::NAMESPACE_DESCRIPTORS, nsid).encode(0)) {
            Ok(list) => Ok(info.with_descriptors(&list[..])),
            // Some drives lack support that their version requires. The list is only supplementary.
            Err(AdminError::Status(status)) => {
                tracing::debug!(drive = self.address, nsid, %status, "no list of identifiers");
                Ok(info)
            }
            Err(error) => Err(OpenErrorReason::Command { command: "Identify (CNS 03h)", error }),
        }
    }

    /// Maps the buffers of the pool of `maps` for the drive.
    ///
    /// # Errors
    /// The buffers cannot be mapped, or the controller has failed.
    pub(crate) fn attach(&self, maps: &BufferMaps) -> io::Result<Arc<BufferMap>> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let space = self.reach.space().ok_or_else(gone)?;
        let map = maps.of(&space)?;
        if self.reach.attach(&map) { Ok(map) } else { Err(gone()) }
    }

    /// Runs all due work; returns the nanoseconds until more is due. The supervisor thread calls
    /// it, or the caller of [`open_stepped`](Self::open_stepped).
    pub fn turn(&self) -> u64 {
        self.supervisor().turn()
    }

    /// Returns duplicates of the descriptors that are readable when a [turn](Self::turn) is due
    /// early. They keep nothing of the controller.
    ///
    /// # Errors
    /// The system's error: no descriptor is left.
    pub fn wakers(&self) -> io::Result<Vec<OwnedFd>> {
        self.supervisor().fds().iter().map(BorrowedFd::try_clone_to_owned).collect()
    }

    /// Resets the controller, as after a command timeout. Operations wait until the reset
    /// completes.
    pub fn reset(&self) {
        self.supervisor().reset("reset requested");
    }

    /// Runs an admin command to completion. `timeout` in nanoseconds.
    pub(super) fn command(
        &self,
        sqe: Sqe,
        wants_data: bool,
        timeout: u64,
    ) -> Result<AdminReply, AdminError> {
        let begin = self.wait.now();
        let mut pause = PAUSE_MIN;
        let patience = nanos(self.options.admin_timeout);
        let caller = loop {
            // A lock that is held for long also means a reset.
            let submitted = match self.try_warden() {
                Some(mut supervisor) => supervisor.submit(sqe, wants_data, timeout),
                None => Err(AdminError::Busy),
            };
            match submitted {
                // A reset is running, or many other callers submit commands.
                Err(AdminError::Busy) if self.wait.now().saturating_sub(begin) < patience => {
                    self.pause(&mut pause);
                }
                other => break other?,
            }
        };
        pause = PAUSE_MIN;
        loop {
            match self.reply(caller) {
                Some(result) => return result,
                None => self.pause(&mut pause),
            }
        }
    }

    /// Returns the reply to a command, if available.
    pub(super) fn reply(&self, caller: u64) -> Option<Result<AdminReply, AdminError>> {
        let mut supervisor = self.try_warden()?;
        supervisor.turn();
        supervisor.take_reply(caller)
    }

    /// Runs an admin command that returns a page of data.
    pub(super) fn query(&self, sqe: Sqe) -> Result<super::admin::Page, AdminError> {
        let timeout = nanos(self.options.admin_timeout);
        self.command(sqe, true, timeout)?.into_data()
    }

    fn pause(&self, pause: &mut u64) {
        self.try_turn();
        self.wait.wait(&[], *pause);
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    /// Waits briefly and runs the supervisor, for a dropped queue that waits for its commands.
    pub(super) fn pass_time(&self, fd: Option<BorrowedFd<'_>>) {
        self.try_turn();
        self.wait.wait(fd.as_slice(), 1_000_000);
    }

    pub(super) fn wait(&self) -> &dyn Wait {
        self.wait.as_ref()
    }

    pub(super) fn options(&self) -> &ControllerOptions {
        &self.options
    }

    pub(super) fn shared(&self) -> &ControllerGate {
        &self.shared
    }

    pub(crate) fn abilities(&self) -> &ControllerCapabilities {
        &self.abilities
    }

    pub(super) fn registers(&self) -> Option<Arc<dyn Registers>> {
        lock(&self.regs).upgrade()
    }

    /// Runs all due work, unless another thread is doing so.
    fn try_turn(&self) {
        if let Some(mut supervisor) = self.try_warden() {
            supervisor.turn();
        }
    }

    /// Returns the supervisor unless it is busy: stopping a controller may take minutes.
    fn try_warden(&self) -> Option<MutexGuard<'_, ControllerSupervisor>> {
        match self.supervisor.try_lock() {
            Ok(supervisor) => Some(supervisor),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn supervisor(&self) -> MutexGuard<'_, ControllerSupervisor> {
        lock(&self.supervisor)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        self.shared.supervisor.raise();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.supervisor().end();
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("address", &self.address)
            .field("identity", &self.identity)
            .field("queues", &self.queues())
            .finish_non_exhaustive()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
