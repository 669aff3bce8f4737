//! Opening a controller: the bring-up of its function, its queues, and its supervisor's thread.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Controller, QueuePairMemory, lock};
use crate::block::BlockError;
use crate::nvme_driver::admin::AdminQueue;
use crate::nvme_driver::bar::{Bar, Disabled, Enabled, UnknownController};
use crate::nvme_driver::bring_up::{BringUp, QueuePlan};
use crate::nvme_driver::buffers::{BufferMap, MappedPools};
use crate::nvme_driver::error::{AdminError, OpenError, OpenErrorReason};
use crate::nvme_driver::function::{DmaSpace, Function, Registers};
use crate::nvme_driver::gate::{ControllerGate, ControllerState, Event, QueueShared};
use crate::nvme_driver::identify::{ControllerCapabilities, Identity, NamespaceInfo};
use crate::nvme_driver::memory::DmaMemory;
use crate::nvme_driver::options::{ControllerOptions, nanos};
use crate::nvme_driver::pooled::FreePool;
use crate::nvme_driver::queue::IoQueue;
use crate::nvme_driver::ring::{RingPair, Shadows};
use crate::nvme_driver::supervisor::{ControllerSupervisor, Hardware, SupervisorParts};
use crate::nvme_driver::transfer::Lists;
use crate::nvme_driver::wait::{SystemWait, Wait};

/// Maximum entries of an I/O queue.
const ENTRIES_MAX: u16 = 4096;
/// First generation, which bring-up begins.
const FIRST_GENERATION: u64 = 1;

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
        let thread = watch(&controller).map_err(OpenErrorReason::system("a thread for the drive"));
        *lock(&controller.thread) = Some(thread.map_err(|reason| reason.at(&address))?);
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
        ControllerBuilder { function, options, wait }.open().map_err(|reason| reason.at(&address))
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
        let Some(queue_pair) = self.queue_pair_memory.take() else {
            return Err(BlockError::NoQueue { granted: self.queues() });
        };
        if let Some(queue) = self.shared.queues.get(queue_pair.index) {
            queue.set_claimed(true);
        }
        Ok(IoQueue::new(Arc::clone(self), queue_pair, buffers, namespace))
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
    queue_pair_memory: Vec<QueuePairMemory>,
    shared: Box<[QueueShared]>,
    plans: Vec<QueuePlan>,
}

impl ControllerBuilder {
    fn open(self) -> Result<Arc<Controller>, OpenErrorReason> {
        let (regs, len) = (self.function.registers(), self.function.registers_len());
        let bar = Arc::new(Bar::probe(Arc::clone(&regs), len, Arc::clone(&self.wait))?);
        let (disabled, events) = self.take_over(&bar)?;
        let mut events = events.into_iter();
        let space = self.function.dma();
        let mut admin = AdminQueue::new(&bar, &space, events.next())
            .map_err(OpenErrorReason::system("memory for the admin queue"))?;
        admin.begin(FIRST_GENERATION);
        let enabled = disabled.enable(admin.rings()).map_err(|(unknown, reason)| {
            give_up(unknown);
            reason
        })?;
        let mut exposed = ExposedMemory::default();
        let result = self.bring_up(&bar, &mut admin, &space, events.collect(), &mut exposed);
        let (identity, abilities, queues, shadows) = match result {
            Ok(result) => result,
            Err(reason) => {
                give_up(enabled.into_unknown());
                return Err(reason);
            }
        };
        let regs = Arc::downgrade(&regs);
        let refused = exposed.shadows.filter(|_| shadows.is_none());
        let function = Arc::clone(&self.function);
        let hardware = Hardware { function, admin, shadows, _refused_shadows: refused };
        self.finish(regs, hardware, enabled, identity, abilities, queues)
    }

    /// Disables the controller, whatever its previous state, and sets up its interrupts.
    fn take_over(&self, bar: &Arc<Bar>) -> Result<(Disabled, Vec<Event>), OpenErrorReason> {
        let mut disabled = UnknownController(Arc::clone(bar)).disable();
        if let Err((unknown, reason)) = disabled {
            let drive = self.function.address();
            tracing::warn!(drive, why = %reason, "resetting the function");
            self.function.reset().map_err(OpenErrorReason::system("a reset of the function"))?;
            disabled = unknown.disable();
        }
        let disabled = disabled.map_err(|(_, reason)| reason)?;
        let wanted = if self.options.interrupts { self.options.io_queues.max(1) } else { 0 };
        let events = self
            .function
            .interrupts(wanted.saturating_add(1))
            .map_err(OpenErrorReason::system("interrupts"))?;
        self.function.set_bus_master(true).map_err(OpenErrorReason::system("bus master"))?;
        Ok((disabled, events.into_iter().map(Event::from).collect()))
    }

    #[expect(clippy::type_complexity, reason = "taken apart at once by the only caller")]
    fn bring_up(
        &self,
        bar: &Bar,
        admin: &mut AdminQueue,
        space: &Arc<dyn DmaSpace>,
        events: Vec<Event>,
        exposed: &mut ExposedMemory,
    ) -> Result<(Identity, ControllerCapabilities, Queues, Option<Arc<Shadows>>), OpenErrorReason>
    {
        let timeout = nanos(self.options.admin_timeout);
        let mut session = BringUp { bar, admin, wait: self.wait.as_ref(), timeout };
        let (identity, abilities) = session.identify()?;
        let count = self.queue_count(&mut session, events.len())?;
        let mut shadows = None;
        if abilities.shadow_doorbells && self.options.shadow_doorbells {
            shadows = self.shadows(&mut session, space, exposed)?;
        }
        let sgl = abilities.sgl && self.options.sgl;
        let lists = Lists::size_for(abilities.max_transfer);
        let layout = Layout { count, sgl, lists, entries: self.entries(bar) };
        let queues = layout
            .queues(bar, space, shadows.as_ref(), events)
            .map_err(OpenErrorReason::system("memory for I/O queues"))?;
        let queues = exposed.queues.insert(queues);
        for plan in &queues.plans {
            session.create_queue(plan)?;
        }
        session.ask_for_events(&abilities);
        let queues = std::mem::take(queues);
        Ok((identity, abilities, queues, shadows))
    }

    /// Returns the number of I/O queue pairs to create: the requested number, or as many as the
    /// drive has.
    fn queue_count(
        &self,
        session: &mut BringUp<'_>,
        vectors: usize,
    ) -> Result<u16, OpenErrorReason> {
        let asked = self.options.io_queues.max(1);
        let granted = session.grant_queues(asked)?;
        let mut count = asked.min(granted).min(session.bar.queues_with_doorbells());
        if self.options.interrupts {
            count = count.min(u16::try_from(vectors).unwrap_or(u16::MAX));
        }
        if count == 0 {
            return Err(OpenErrorReason::Unsuitable(format!(
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
        exposed: &mut ExposedMemory,
    ) -> Result<Option<Arc<Shadows>>, OpenErrorReason> {
        let memory = DmaMemory::new(space, Shadows::SIZE)
            .map_err(OpenErrorReason::system("memory for shadow doorbells"))?;
        let shadows = Arc::new(Shadows::new(memory));
        exposed.shadows = Some(Arc::clone(&shadows));
        match session.configure_shadows(&shadows) {
            Ok(()) => Ok(Some(shadows)),
            Err(AdminError::Status(status)) => {
                let drive = self.function.address();
                tracing::warn!(drive, %status, "no shadow doorbells, though the drive offers them");
                Ok(None)
            }
            Err(error) => {
                Err(OpenErrorReason::Command { command: "Doorbell Buffer Config", error })
            }
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
    ) -> Result<Arc<Controller>, OpenErrorReason> {
        let address = self.function.address().to_owned();
        let shared = match ControllerGate::new(queues.shared) {
            Ok(shared) => Arc::new(shared),
            Err(error) => {
                give_up(enabled.into_unknown());
                return Err(OpenErrorReason::System { what: "a descriptor", error });
            }
        };
        tracing::info!(
            drive = address,
            model = identity.model,
            serial = identity.serial,
            firmware = identity.firmware,
            queues = queues.queue_pair_memory.len(),
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
            queue_pair_memory: FreePool::new(queues.queue_pair_memory),
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
        let mut queues =
            Queues { queue_pair_memory: Vec::new(), shared: Box::default(), plans: Vec::new() };
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
            queues.queue_pair_memory.push(QueuePairMemory { index, ring, lists, sgl: self.sgl });
        }
        // The first queue is handed out first.
        queues.queue_pair_memory.reverse();
        queues.shared = shared.into();
        Ok(queues)
    }
}

/// Quiesces a controller that cannot be used, if possible.
fn give_up(unknown: UnknownController) {
    if let Err((_, reason)) = unknown.disable() {
        tracing::warn!(why = %reason, "a controller that cannot be used cannot be disabled either");
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
