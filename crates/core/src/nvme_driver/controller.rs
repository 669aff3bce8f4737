//! An open controller of a drive: bring-up, namespaces, I/O queues, and the supervisor thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::identify::{Cns, Identify, Namespace, NsidList};
use nvmeof_wire::zerocopy::FromBytes;

use super::admin::{AdminQueue, AdminReply};
use super::bar::{Bar, Enabled, UnknownController};
use super::bring_up::{BringUp, QueuePlan};
use super::buffers::{BufferMap, BufferMaps, MappedPools};
use super::error::{AdminError, OpenError, OpenErrorWhy};
use super::events::DriveEvent;
use super::function::{DmaSpace, Function, Registers};
use super::gate::{ControllerGate, Event, QueueShared};
use super::identify::{ControllerCapabilities, Identity, NamespaceInfo, namespace};
use super::memory::DmaMemory;
use super::options::{ControllerOptions, nanos};
use super::pooled::FreePool;
use super::queue::IoQueue;
use super::ring::{RingPair, Shadows};
use super::supervisor::{ControllerSupervisor, Hardware, SupervisorParts};
use super::transfer::Lists;
use super::wait::{SystemWait, Wait};
use crate::block::BlockError;

/// Maximum entries of an I/O queue.
const ENTRIES_MAX: u16 = 4096;
/// Maximum pause of a caller that waits for an admin command.
const PAUSE_MAX: u64 = 20_000_000;
const PAUSE_MIN: u64 = 50_000;
/// First generation, which bring-up begins.
const FIRST_GENERATION: u64 = 1;

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
    lanes: Arc<FreePool<QueuePairMemory>>,
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

/// State of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerState {
    /// The controller accepts commands.
    Live,
    /// The controller is being reset, or is briefly disconnected. Operations wait.
    Resetting,
    /// The controller failed permanently, for this reason: operations end with an error.
    Failed(String),
}

impl Controller {
    /// Brings up the controller of `function`, and starts its supervisor thread.
    ///
    /// # Errors
    /// The function is no NVMe controller, does not respond in time, or cannot be used. The error
    /// names the reason.
    pub fn open(
        function: Arc<dyn Function>,
        options: ControllerOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let address = function.address().to_owned();
        let controller = Self::open_stepped(function, options, Arc::new(SystemWait))?;
        let thread = watch(&controller).map_err(OpenErrorWhy::system("a thread for the drive"));
        *lock(&controller.thread) = Some(thread.map_err(|why| why.at(&address))?);
        Ok(controller)
    }

    /// Like [`open`](Self::open), but with a clock of the caller and without a thread: the caller
    /// runs [`turn`](Self::turn) when it is due, or one of the [wakers](Self::wakers) is readable.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_stepped(
        function: Arc<dyn Function>,
        options: ControllerOptions,
        wait: Arc<dyn Wait>,
    ) -> Result<Arc<Self>, OpenError> {
        let address = function.address().to_owned();
        ControllerBuilder { function, options, wait }.open().map_err(|why| why.at(&address))
    }

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
        let list = NsidList::ref_from_bytes(&page[..]);
        Ok(list.map(|list| list.iter().collect()).unwrap_or_default())
    }

    /// Returns a namespace as the drive describes it now.
    ///
    /// # Errors
    /// The namespace does not exist, or cannot be served: metadata, blocks of more than 4 KiB.
    pub fn namespace(&self, nsid: u32) -> Result<NamespaceInfo, OpenError> {
        self.identify_namespace(nsid).map_err(|why| why.at(&self.address))
    }

    fn identify_namespace(&self, nsid: u32) -> Result<NamespaceInfo, OpenErrorWhy> {
        let most = self.abilities.namespaces;
        if nsid == 0 || nsid > most {
            let why = format!("the drive's namespaces are numbered 1 to {most}");
            return Err(OpenErrorWhy::Namespace { nsid, why });
        }
        let page = self
            .query(Identify::new(Cns::NAMESPACE, nsid).encode(0))
            .map_err(OpenErrorWhy::command("Identify Namespace"))?;
        let info = match Namespace::ref_from_bytes(&page[..]) {
            Ok(answer) => namespace(nsid, answer)?,
            Err(_) => return Err(OpenErrorWhy::Identify("it is short".to_owned())),
        };
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
            Err(error) => Err(OpenErrorWhy::Command { command: "Identify (CNS 03h)", error }),
        }
    }

    /// Opens a queue pair for one thread and one namespace, with the mapped buffers of `buffers`.
    ///
    /// # Errors
    /// All queue pairs are in use, the buffers cannot be mapped, or the controller has failed.
    pub(crate) fn open_queue(
        self: &Arc<Self>,
        buffers: Arc<BufferMap>,
        namespace: NamespaceInfo,
    ) -> Result<IoQueue, BlockError> {
        if let ControllerState::Failed(_) = self.state() {
            return Err(BlockError::Gone);
        }
        let Some(lane) = self.lanes.lend() else {
            return Err(BlockError::NoQueue { granted: self.queues() });
        };
        if let Some(queue) = self.shared.queues.get(lane.index) {
            queue.set_claimed(true);
        }
        Ok(IoQueue::new(Arc::clone(self), lane, buffers, namespace))
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
        self.supervisor().reset("it was asked for");
    }

    /// Runs an admin command to completion. `timeout` in nanoseconds; `None` waits indefinitely.
    pub(super) fn command(
        &self,
        sqe: Sqe,
        wants_data: bool,
        timeout: Option<u64>,
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
        self.command(sqe, true, Some(timeout))?.into_data()
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

/// A function during bring-up.
struct ControllerBuilder {
    function: Arc<dyn Function>,
    options: ControllerOptions,
    wait: Arc<dyn Wait>,
}

/// Memory announced to an enabled controller, whatever it replied: it stays mapped until the
/// controller is disabled.
#[derive(Default)]
struct ExposedMemory {
    shadows: Option<Arc<Shadows>>,
    queues: Option<Queues>,
}

/// Memory of the I/O queues, and the parameters announced to the controller.
#[derive(Default)]
struct Queues {
    lanes: Vec<QueuePairMemory>,
    shared: Box<[QueueShared]>,
    plans: Vec<QueuePlan>,
}

impl ControllerBuilder {
    fn open(self) -> Result<Arc<Controller>, OpenErrorWhy> {
        let (regs, len) = (self.function.registers(), self.function.registers_len());
        let bar = Arc::new(Bar::probe(Arc::clone(&regs), len, Arc::clone(&self.wait))?);
        let (disabled, events) = self.take_over(&bar)?;
        let mut events = events.into_iter();
        let space = self.function.dma();
        let mut admin = AdminQueue::new(&bar, &space, events.next())
            .map_err(OpenErrorWhy::system("memory for the admin queue"))?;
        admin.begin(FIRST_GENERATION);
        let enabled = disabled.enable(admin.rings()).map_err(|(unsure, why)| {
            give_up(unsure);
            why
        })?;
        let mut told = ExposedMemory::default();
        let result = self.bring_up(&bar, &mut admin, &space, events.collect(), &mut told);
        let (identity, abilities, queues, shadows) = match result {
            Ok(result) => result,
            Err(why) => {
                give_up(enabled.into_unsure());
                return Err(why);
            }
        };
        let regs = Arc::downgrade(&regs);
        let refused = told.shadows.filter(|_| shadows.is_none());
        let function = Arc::clone(&self.function);
        let hardware = Hardware { function, admin, shadows, _refused_shadows: refused };
        self.finish(regs, hardware, enabled, identity, abilities, queues)
    }

    /// Disables the controller, whatever its previous state, and sets up its interrupts.
    fn take_over(
        &self,
        bar: &Arc<Bar>,
    ) -> Result<(super::bar::Disabled, Vec<Event>), OpenErrorWhy> {
        let mut disabled = UnknownController(Arc::clone(bar)).disable();
        if let Err((unsure, why)) = disabled {
            tracing::warn!(drive = self.function.address(), %why, "resetting the function");
            self.function.reset().map_err(OpenErrorWhy::system("a reset of the function"))?;
            disabled = unsure.disable();
        }
        let disabled = disabled.map_err(|(_, why)| why)?;
        let wanted = if self.options.interrupts { self.options.io_queues.max(1) } else { 0 };
        let events = self
            .function
            .interrupts(wanted.saturating_add(1))
            .map_err(OpenErrorWhy::system("interrupts"))?;
        self.function.set_bus_master(true).map_err(OpenErrorWhy::system("bus master"))?;
        Ok((disabled, events.into_iter().map(Event::from).collect()))
    }

    #[expect(clippy::type_complexity, reason = "taken apart at once by the only caller")]
    fn bring_up(
        &self,
        bar: &Bar,
        admin: &mut AdminQueue,
        space: &Arc<dyn DmaSpace>,
        events: Vec<Event>,
        told: &mut ExposedMemory,
    ) -> Result<(Identity, ControllerCapabilities, Queues, Option<Arc<Shadows>>), OpenErrorWhy>
    {
        let timeout = nanos(self.options.admin_timeout);
        let mut session = BringUp { bar, admin, wait: self.wait.as_ref(), timeout };
        let (identity, abilities) = session.identify()?;
        let count = self.queue_count(&mut session, events.len())?;
        let mut shadows = None;
        if abilities.shadow_doorbells && self.options.shadow_doorbells {
            shadows = self.shadows(&mut session, space, told)?;
        }
        let sgl = abilities.sgl && self.options.sgl;
        let lists = Lists::size_for(abilities.max_transfer);
        let layout = Layout { count, sgl, lists, entries: self.entries(bar) };
        let queues = layout
            .queues(bar, space, shadows.as_ref(), events)
            .map_err(OpenErrorWhy::system("memory for I/O queues"))?;
        let queues = told.queues.insert(queues);
        for plan in &queues.plans {
            session.create_queue(plan)?;
        }
        session.ask_for_events(&abilities);
        let queues = std::mem::take(queues);
        Ok((identity, abilities, queues, shadows))
    }

    /// Returns the number of I/O queue pairs to create: the requested number, or as many as the
    /// drive has.
    fn queue_count(&self, session: &mut BringUp<'_>, vectors: usize) -> Result<u16, OpenErrorWhy> {
        let asked = self.options.io_queues.max(1);
        let granted = session.grant_queues(asked)?;
        let mut count = asked.min(granted).min(session.bar.queues_with_doorbells());
        if self.options.interrupts {
            count = count.min(u16::try_from(vectors).unwrap_or(u16::MAX));
        }
        if count == 0 {
            return Err(OpenErrorWhy::Unsuitable(format!(
                "there is no I/O queue: the drive grants {granted}, with {vectors} interrupt vectors for them"
            )));
        }
        if count < asked {
            tracing::warn!(
                drive = self.function.address(),
                asked,
                granted,
                vectors,
                queues = count,
                "the drive has fewer I/O queues than were asked for"
            );
        }
        Ok(count)
    }

    fn shadows(
        &self,
        session: &mut BringUp<'_>,
        space: &Arc<dyn DmaSpace>,
        told: &mut ExposedMemory,
    ) -> Result<Option<Arc<Shadows>>, OpenErrorWhy> {
        let memory = DmaMemory::new(space, Shadows::SIZE)
            .map_err(OpenErrorWhy::system("memory for shadow doorbells"))?;
        let shadows = Arc::new(Shadows::new(memory));
        told.shadows = Some(Arc::clone(&shadows));
        match session.configure_shadows(&shadows) {
            Ok(()) => Ok(Some(shadows)),
            Err(AdminError::Status(status)) => {
                let drive = self.function.address();
                tracing::warn!(drive, %status, "no shadow doorbells, though the drive offers them");
                Ok(None)
            }
            Err(error) => Err(OpenErrorWhy::Command { command: "Doorbell Buffer Config", error }),
        }
    }

    fn entries(&self, bar: &Bar) -> u16 {
        let most = u16::try_from(bar.cap().queue_entries()).unwrap_or(u16::MAX).min(ENTRIES_MAX);
        let asked = self.options.queue_depth.clamp(2, ENTRIES_MAX).next_power_of_two();
        // A power of two, because identifiers are split into slot and generation.
        asked.min(1 << most.ilog2())
    }

    fn finish(
        self,
        regs: Weak<dyn Registers>,
        hardware: Hardware,
        enabled: Enabled,
        identity: Identity,
        abilities: ControllerCapabilities,
        queues: Queues,
    ) -> Result<Arc<Controller>, OpenErrorWhy> {
        let address = self.function.address().to_owned();
        let shared = match ControllerGate::new(queues.shared) {
            Ok(shared) => Arc::new(shared),
            Err(error) => {
                give_up(enabled.into_unsure());
                return Err(OpenErrorWhy::System { what: "a descriptor", error });
            }
        };
        tracing::info!(
            drive = address,
            model = identity.model,
            serial = identity.serial,
            firmware = identity.firmware,
            queues = queues.lanes.len(),
            shadow_doorbells = hardware.shadows.is_some(),
            max_transfer = abilities.max_transfer,
            "the drive is up"
        );
        let ready = Duration::from_millis(enabled.bar().ready_millis());
        let bound = self.options.quiesce_bound(ready);
        let reach = Arc::new(MappedPools::new(hardware.function.dma()));
        let supervisor = ControllerSupervisor::new(SupervisorParts {
            reach: Arc::clone(&reach),
            options: self.options.clone(),
            wait: Arc::clone(&self.wait),
            shared: Arc::clone(&shared),
            identity: identity.clone(),
            abilities,
            hardware,
            plans: queues.plans,
            enabled,
            generation: FIRST_GENERATION,
        });
        Ok(Arc::new(Controller {
            address,
            options: self.options,
            bound,
            wait: self.wait,
            shared,
            identity,
            abilities,
            lanes: FreePool::new(queues.lanes),
            reach,
            regs: Mutex::new(regs),
            supervisor: Arc::new(Mutex::new(supervisor)),
            thread: Mutex::default(),
            is_ending: Arc::default(),
        }))
    }
}

/// Parameters of the I/O queues.
struct Layout {
    count: u16,
    entries: u16,
    sgl: bool,
    /// Bytes per list.
    lists: usize,
}

impl Layout {
    fn queues(
        &self,
        bar: &Bar,
        space: &Arc<dyn DmaSpace>,
        shadows: Option<&Arc<Shadows>>,
        events: Vec<Event>,
    ) -> io::Result<Queues> {
        let mut events = events.into_iter();
        let mut queues = Queues { lanes: Vec::new(), shared: Box::default(), plans: Vec::new() };
        let mut shared = Vec::new();
        let slots = usize::from(self.entries) - 1;
        for qid in 1..=self.count {
            let Some(doorbells) = bar.doorbells(qid) else { break };
            let memory = DmaMemory::new(space, RingPair::size(self.entries))?;
            let mut ring = RingPair::new(memory, qid, self.entries, doorbells);
            ring.set_shadows(shadows.cloned(), bar.cap().dstrd());
            let (submission, completion) = ring.addresses();
            let event = events.next();
            let vector = event.as_ref().map(|_| qid);
            let entries = self.entries;
            queues.plans.push(QueuePlan { qid, entries, submission, completion, vector });
            shared.push(QueueShared::new(slots, event));
            let lists = Lists::new(DmaMemory::new(space, slots * self.lists)?, self.lists);
            let index = usize::from(qid) - 1;
            queues.lanes.push(QueuePairMemory { index, ring, lists, sgl: self.sgl });
        }
        // The first queue is handed out first.
        queues.lanes.reverse();
        queues.shared = shared.into();
        Ok(queues)
    }
}

/// Quiesces a controller that cannot be used, if possible.
fn give_up(unsure: UnknownController) {
    if let Err((_, why)) = unsure.disable() {
        tracing::warn!(%why, "a controller that cannot be used cannot be disabled either");
    }
}

/// Starts the thread that runs the controller's turns during its lifetime.
fn watch(controller: &Controller) -> io::Result<JoinHandle<()>> {
    let supervisor = Arc::clone(&controller.supervisor);
    let is_ending = Arc::clone(&controller.is_ending);
    let wait = Arc::clone(&controller.wait);
    // Duplicates of the descriptors: the thread keeps nothing of the controller while it sleeps.
    let fds = controller.wakers()?;
    thread::Builder::new().name("nvme-supervisor".to_owned()).spawn(move || {
        loop {
            let nanos = lock(&supervisor).turn();
            if is_ending.load(Ordering::Acquire) || nanos == u64::MAX {
                // The function must return to the system: the thread keeps nothing of it.
                return;
            }
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            wait.wait(&fds, nanos);
        }
    })
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
