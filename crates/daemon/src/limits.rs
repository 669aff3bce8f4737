//! Every bound of the daemon: what the config sets, and what follows from it, derived and checked
//! here and nowhere else.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_core::dma::{CHUNK, MIN_CLASS, PoolConfig};

use crate::config::{Device, DeviceKind, Fabric, Listener, show_size};
use crate::reactor::OWN_BUFFER;

/// Most connections (`limits.connections`).
pub const CONNECTIONS_MAX: u32 = 65_535;
/// Most I/O queues of a controller (`limits.io-queues`).
pub const IO_QUEUES_MAX: u16 = 1024;
/// Fewest entries of a queue (`limits.queue-depth`): what hosts use for the admin queue.
pub const QUEUE_DEPTH_MIN: u16 = nvmeof_nvmf::limits::ADMIN_QUEUE_MIN;
/// Most entries of a queue (`limits.queue-depth`).
pub const QUEUE_DEPTH_MAX: u16 = 4096;
/// Least of `limits.max-transfer` in bytes: MDTS 1, since 0 would mean no limit.
pub const MAX_TRANSFER_MIN: u32 = 2 * PAGE;
/// Most of `limits.max-transfer` in bytes: a buffer lies in one chunk of the pool.
pub const MAX_TRANSFER_MAX: u32 = 2 << 20;
/// Most of `limits.in-capsule` in bytes.
pub const IN_CAPSULE_MAX: u32 = 64 << 10;
/// Least of `limits.buffer-memory` in bytes.
pub const BUFFER_MEMORY_MIN: u64 = 8 << 20;
/// Most of `limits.buffer-memory` in bytes.
pub const BUFFER_MEMORY_MAX: u64 = 1 << 40;

/// Most of a namespace's `weight`.
pub const WEIGHT_MAX: u16 = 1000;
/// Most of a host's `weight`: times a namespace's it is a flow's.
pub const HOST_WEIGHT_MAX: u16 = 64;
/// Most I/Os a second of a tenant's limit.
pub const IOPS_MAX: u64 = 1_000_000_000;
/// Most of a tenant's burst, in nanoseconds: a minute.
pub const TENANT_BURST_MAX: u64 = 60_000_000_000;
/// Most of `pacing.rate` in bytes a second: 10 Tb/s, beyond any machine's memory.
pub const RATE_MAX: u64 = 1_250_000_000_000;
/// Most nanoseconds from one command to the next (`pacing.period`): a host that waits for longer
/// gives up.
pub const PERIOD_MAX: u64 = 1_000_000_000;
/// Most commands of `pacing.burst` behind a period, and of the prototype's `buffers`.
pub const BURST_MAX: u32 = 1 << 20;

const _: () = assert!(WEIGHT_MAX as u32 * HOST_WEIGHT_MAX as u32 <= u16::MAX as u32);

/// Most connections that may wait for their Connect, besides those of `limits.connections`, and fewest: all hosts come at
/// once after the target was away.
const UNCONNECTED: RangeInclusive<u32> = 16..=256;
/// Unit of MDTS in bytes.
const PAGE: u32 = nvmeof_nvmf::limits::PAGE;
/// In-capsule data of a command on an admin queue in bytes, whatever the config (TCP 3.6.2.2).
const ADMIN_IN_CAPSULE: u32 = 8192;
/// Buffers of that size every connection has besides, for fabrics commands.
const EARLY_BUFFERS: u64 = 2;
/// Buffers of `max-transfer` bytes each reactor keeps aside for admin commands.
const ADMIN_BUFFERS: usize = 4;
/// Room for commands that a reactor makes at start, at most; it grows.
const REQUESTS_AT_START: usize = 4096;
/// Descriptors of the process itself: standard streams, logging, signals, the control plane and 64 callers
/// of its API.
const PROCESS_FILES: u64 = 128;
/// Descriptors of a reactor: its thread's poller, mailbox and timers.
const REACTOR_FILES: u64 = 4;
/// Bytes of a queue pair's slot for a command, and of one for a response.
const RDMA_SLOT: u64 = 64;
/// Descriptors of an RDMA listener besides its own: the libraries', and its device's with its events.
const RDMA_FILES: u64 = 8;
/// Entries of a completion queue for each of an I/O queue's: one that arrives, and two that leave.
const RDMA_COMPLETIONS: u32 = 3;
/// Descriptors of one reactor's queue to a file: ring, file, event.
const FILE_QUEUE_FILES: usize = 3;
/// Descriptors of one reactor's queue to memory: its event.
const RAM_QUEUE_FILES: usize = 1;
/// Descriptors of one reactor's queue to a drive: its interrupt, and the event of what has no interrupt.
const DRIVE_QUEUE_FILES: usize = 2;
/// Descriptors that a queue to faults has besides its base's: its event, and a poller of both.
const FAULT_QUEUE_FILES: usize = 2;
/// Descriptors that a queue to a stripe has besides its members': a poller of them.
const STRIPE_QUEUE_FILES: usize = 1;
/// Descriptors of a drive: group, function, registers, removal, the admin queue's interrupt, its warden's.
const DRIVE_FILES: u64 = 8;
/// Bytes of memory of an entry of a drive's queue: SQE, CQE, and at most a page for its list of pages.
const DRIVE_ENTRY: u64 = 64 + 16 + 4096;

const _: () = assert!(MAX_TRANSFER_MAX as usize == CHUNK, "a buffer lies in one chunk");
const _: () =
    assert!(BUFFER_MEMORY_MIN / 2 >= 2 * MAX_TRANSFER_MAX as u64, "a budget holds any command");
const _: () = assert!(MIN_CLASS <= PAGE as usize, "a page fits the smallest buffer");

/// `[limits]` as configured, each key within its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Connections of all hosts together, a queue each.
    pub connections: u32,
    /// I/O queues of one controller.
    pub io_queues: u16,
    /// Entries of one queue.
    pub queue_depth: u16,
    /// Most bytes of one command.
    pub max_transfer: u32,
    /// Bytes of data a write may bring in its capsule; more is asked for.
    pub in_capsule: u32,
    /// Cap of the memory for data buffers, in bytes.
    pub buffer_memory: u64,
    /// Shortest keep-alive timeout a host gets.
    pub keep_alive_min: Duration,
    /// How long a new connection may take to introduce itself.
    pub connect_timeout: Duration,
    /// How long a host may be silent in the middle of something.
    pub pdu_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 256,
            io_queues: 32,
            queue_depth: 128,
            max_transfer: 1 << 20,
            in_capsule: 8192,
            buffer_memory: 256 << 20,
            keep_alive_min: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(10),
            pdu_timeout: Duration::from_secs(30),
        }
    }
}

/// What else of a config the limits depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Reactors.
    pub reactors: usize,
    /// Listeners.
    pub listeners: usize,
    /// Those of them that are for RDMA.
    pub rdma_listeners: usize,
    /// Devices that are files.
    pub file_devices: usize,
    /// Drives of our own driver.
    pub drives: usize,
    /// Descriptors of a reactor's queues: each device has its own, and one to each device it stands on.
    pub queue_files: usize,
    /// Entries of a reactor's queues to drives.
    pub drive_entries: usize,
}

/// Queue pairs of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveQueues {
    /// Without them the devices cannot be opened: one for each reactor, for each device on the drive, and
    /// for each that stands on one.
    pub needed: usize,
    /// To be asked for: a reload opens a device anew before the old one is closed.
    pub wanted: usize,
}

impl DriveQueues {
    /// What `devices`, each behind those it stands on, take of the drive at this address.
    #[must_use]
    pub fn of(pci: &str, devices: &[Device], reactors: usize) -> Self {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut all: usize = 0;
        for device in devices {
            let own = matches!(&device.kind, DeviceKind::Nvme(drive) if drive.pci == pci);
            let bases = device.kind.bases().iter().filter_map(|base| counts.get(base.as_str()));
            let count = bases.fold(usize::from(own), |sum, count| sum.saturating_add(*count));
            counts.insert(&device.name, count);
            all = all.saturating_add(count);
        }
        let needed = all.saturating_mul(reactors);
        Self { needed, wanted: needed.saturating_mul(2).max(1) }
    }
}

/// What a reactor's queue to a device takes, with those to what it stands on.
#[derive(Debug, Clone, Copy, Default)]
struct QueueCost {
    files: usize,
    drive_entries: usize,
}

impl Needs {
    /// Counts what a config has.
    #[must_use]
    pub fn of(reactors: usize, listeners: &[Listener], devices: &[Device]) -> Self {
        let rdma_listeners = listeners.iter().filter(|one| one.fabric == Fabric::Rdma).count();
        let listeners = listeners.len();
        let mut needs = Self { reactors, listeners, rdma_listeners, ..Self::default() };
        let mut costs: BTreeMap<&str, QueueCost> = BTreeMap::new();
        let mut drives: Vec<&str> = Vec::new();
        for device in devices {
            let bases = device.kind.bases().iter().filter_map(|base| costs.get(base.as_str()));
            // Each stands behind its bases, so theirs are known.
            let below = bases.fold(QueueCost::default(), |sum, cost| sum.plus(cost));
            let own = match &device.kind {
                DeviceKind::File(_) => {
                    needs.file_devices += 1;
                    QueueCost { files: FILE_QUEUE_FILES, drive_entries: 0 }
                }
                DeviceKind::Nvme(drive) => {
                    drives.push(&drive.pci);
                    let drive_entries = usize::from(drive.queue_depth);
                    QueueCost { files: DRIVE_QUEUE_FILES, drive_entries }
                }
                kind => QueueCost { files: queue_files(kind), drive_entries: 0 },
            };
            let cost = own.plus(&below);
            needs.queue_files = needs.queue_files.saturating_add(cost.files);
            needs.drive_entries = needs.drive_entries.saturating_add(cost.drive_entries);
            costs.insert(&device.name, cost);
        }
        drives.sort_unstable();
        drives.dedup();
        needs.drives = drives.len();
        needs
    }
}

impl QueueCost {
    fn plus(self, other: &Self) -> Self {
        Self {
            files: self.files.saturating_add(other.files),
            drive_entries: self.drive_entries.saturating_add(other.drive_entries),
        }
    }
}

/// Descriptors that a queue has itself, where that says all it costs.
fn queue_files(kind: &DeviceKind) -> usize {
    match kind {
        DeviceKind::Ram { .. } => RAM_QUEUE_FILES,
        DeviceKind::Fault { .. } => FAULT_QUEUE_FILES,
        DeviceKind::Stripe { .. } => STRIPE_QUEUE_FILES,
        _ => 0,
    }
}

/// Settings that do not go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitProblem {
    /// The key of `[limits]` to change.
    pub key: &'static str,
    /// What is wrong.
    pub what: String,
    /// What is allowed.
    pub allowed: String,
}

/// Every bound, as configured and as derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// As configured.
    pub settings: Settings,
    /// What they were derived for.
    pub needs: Needs,
    /// Most data of a command as hosts are told: 2 to this power pages of 4 KiB.
    pub mdts: u8,
    /// Bytes of buffers that are promised to queues and admin commands, at most, on top of
    /// `buffer_memory`: no data command can take them.
    pub reserve: u64,
    /// Room for commands a reactor makes at start.
    pub requests_per_reactor: usize,
    /// Buffers of `max_transfer` bytes each reactor keeps aside for admin commands.
    pub admin_buffers: usize,
    /// Connections that may wait for their Connect, besides those that have had it.
    pub unconnected: u32,
    /// File descriptors it takes with every connection there may be.
    pub open_files: u64,
    /// Bytes that queues to drives take at most, locked in memory.
    pub drive_memory: u64,
}

impl Limits {
    /// Derives what follows from the settings, and tells what does not go together.
    #[must_use]
    pub fn derive(
        settings: Settings,
        needs: &Needs,
        open_files_max: u64,
    ) -> (Self, Vec<LimitProblem>) {
        let reactors = needs.reactors.max(1);
        let limits = Self {
            settings,
            needs: *needs,
            mdts: mdts(settings.max_transfer),
            reserve: reserve(&settings, needs),
            requests_per_reactor: (settings.connections as usize)
                .div_ceil(reactors)
                .saturating_mul(settings.queue_depth.into())
                .min(REQUESTS_AT_START),
            admin_buffers: ADMIN_BUFFERS,
            unconnected: unconnected(&settings),
            open_files: open_files(&settings, needs),
            // Twice: see `DriveQueues::wanted`.
            drive_memory: (needs.drive_entries as u64)
                .saturating_mul(2 * reactors as u64 * DRIVE_ENTRY),
        };
        let mut problems = Vec::new();
        limits.check_sizes(&mut problems);
        limits.check_machine(open_files_max, &mut problems);
        (limits, problems)
    }

    /// The bound on the bytes in flight where none is configured: half of the buffer memory, since
    /// a buffer may be up to twice as large as its I/O. (Chunks that are partly used take more of it; see `reactor/starved.rs`.)
    #[must_use]
    pub fn default_budget(&self) -> u64 {
        (self.settings.buffer_memory / 2).max(self.largest_cost().into())
    }

    /// Most bytes of buffers one command holds: Compare has the host's data and the medium's.
    #[must_use]
    pub fn largest_cost(&self) -> u32 {
        self.settings.max_transfer.saturating_mul(2)
    }

    /// What is paced, and the bounds of `[pacing]`.
    #[must_use]
    pub fn pacing(&self) -> PacingBounds {
        let cores = self.needs.reactors.max(1);
        let largest = self.largest_cost();
        let one_each = cores as u64;
        PacingBounds {
            machine: nvmeof_pacing::Machine { cores, largest },
            default_budget: self.default_budget(),
            budget: largest.into()..=self.settings.buffer_memory,
            rate: largest.into()..=RATE_MAX,
            period: 1..=PERIOD_MAX,
            burst_bytes: one_each * u64::from(largest)..=self.settings.buffer_memory,
            burst_commands: one_each..=BURST_MAX.into(),
            credit: largest.into()..=self.settings.buffer_memory.min(u32::MAX.into()),
            buffers_max: BURST_MAX,
        }
    }

    /// The bounds of tenants' limits.
    #[must_use]
    pub fn tenants(&self) -> TenantBounds {
        TenantBounds {
            iops: 1..=IOPS_MAX,
            bandwidth: u64::from(self.settings.max_transfer)..=RATE_MAX,
            burst: 0..=TENANT_BURST_MAX,
            in_flight: self.largest_cost().into()..=self.settings.buffer_memory,
        }
    }

    /// Bytes the buffers may grow to, with everything in use at once.
    #[must_use]
    pub fn memory_cap(&self) -> u64 {
        self.settings.buffer_memory.saturating_add(self.reserve)
    }

    /// The buffer pool.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        PoolConfig {
            cap: usize::try_from(self.settings.buffer_memory).unwrap_or(usize::MAX),
            reserve: usize::try_from(self.reserve).unwrap_or(usize::MAX),
            max_lease: self.settings.max_transfer as usize,
            huge_pages: true,
        }
    }

    /// What controllers tell hosts and hold them to.
    #[must_use]
    pub fn nvmf(&self) -> nvmeof_nvmf::limits::Limits {
        let settings = &self.settings;
        nvmeof_nvmf::limits::Limits {
            queue_depth: settings.queue_depth,
            io_queues: settings.io_queues,
            max_transfer: settings.max_transfer,
            in_capsule: settings.in_capsule,
            keep_alive_min_ms: u32::try_from(settings.keep_alive_min.as_millis())
                .unwrap_or(u32::MAX),
            connections: settings.connections,
            connect_timeout_ms: u32::try_from(settings.connect_timeout.as_millis())
                .unwrap_or(u32::MAX),
        }
    }

    /// Receives that the I/O queues of a completion queue share, at most, where they do: as many as all
    /// connections could have of their own, and what there is room for beside what the same queues send.
    #[must_use]
    pub fn shared_receives(&self, completions: u32) -> u32 {
        let depth = u32::from(self.settings.queue_depth);
        let room = completions / RDMA_COMPLETIONS;
        room.max(depth).min(depth.saturating_mul(self.settings.connections))
    }

    /// Bytes of buffers that an RDMA I/O queue is promised. One with receives of its own has as many buffers
    /// posted as its host has commands out, and every command may hold one more. Where receives are shared, a
    /// command that holds a buffer is one that cannot come any more, so that there is one for each command; what
    /// queues that have gone have left posted is not more than the others would have taken.
    #[must_use]
    pub fn rdma_queue(&self, shares: bool) -> u64 {
        let Settings { queue_depth, in_capsule, .. } = self.settings;
        let depth = u64::from(queue_depth);
        let slot = match in_capsule {
            0 => 0,
            len => u64::from(len.next_power_of_two()).max(MIN_CLASS as u64),
        };
        let buffers = if shares { depth } else { 2 * depth };
        buffers * slot + rdma_slots(depth)
    }

    /// Commands one flow (a queue's use of a device) can have waiting.
    #[must_use]
    pub fn flow_depth(&self) -> usize {
        self.settings.queue_depth.into()
    }

    fn check_sizes(&self, problems: &mut Vec<LimitProblem>) {
        let settings = &self.settings;
        if !settings.max_transfer.is_power_of_two() {
            let below = 1u32 << settings.max_transfer.max(1).ilog2();
            problems.push(LimitProblem {
                key: "max-transfer",
                what: format!("{} bytes are no power of two", settings.max_transfer),
                allowed: format!(
                    "allowed: a power of two from {} to {}, as {}",
                    show_size(MAX_TRANSFER_MIN.into()),
                    show_size(MAX_TRANSFER_MAX.into()),
                    show_size(below.into())
                ),
            });
        }
        if !settings.in_capsule.is_multiple_of(512) {
            problems.push(LimitProblem {
                key: "in-capsule",
                what: format!("{} bytes are no multiple of 512", settings.in_capsule),
                allowed: format!(
                    "allowed: multiples of 512 up to {}, or 0 for none",
                    show_size(IN_CAPSULE_MAX.into())
                ),
            });
        }
        if settings.in_capsule > settings.max_transfer {
            problems.push(LimitProblem {
                key: "in-capsule",
                what: "it is more than max-transfer".into(),
                allowed: format!("allowed: up to {}", show_size(settings.max_transfer.into())),
            });
        }
        if !settings.keep_alive_min.as_millis().is_multiple_of(100) {
            problems.push(LimitProblem {
                key: "keep-alive-min",
                what: "it is no multiple of 100 ms, the unit hosts are told it in".into(),
                allowed: "allowed: multiples of 100ms".into(),
            });
        }
        // A chunk for each reactor that holds one I/O, and as much again to share.
        let least = (2 * self.needs.reactors.max(1) * CHUNK) as u64;
        if settings.buffer_memory < least {
            problems.push(LimitProblem {
                key: "buffer-memory",
                what: format!(
                    "{} are too little for {} reactors",
                    show_size(settings.buffer_memory),
                    self.needs.reactors
                ),
                allowed: format!("allowed: at least {}, or fewer reactors", show_size(least)),
            });
        }
    }

    fn check_machine(&self, open_files_max: u64, problems: &mut Vec<LimitProblem>) {
        if self.open_files <= open_files_max {
            return;
        }
        let besides = self.open_files - u64::from(self.settings.connections);
        problems.push(LimitProblem {
            key: "connections",
            what: format!(
                "it takes {} file descriptors, but the process may have {open_files_max}",
                self.open_files
            ),
            allowed: if besides < open_files_max {
                format!(
                    "allowed: up to {}, or raise the limit (ulimit -Hn, LimitNOFILE=)",
                    open_files_max - besides
                )
            } else {
                "raise the limit (ulimit -Hn, LimitNOFILE=) or serve fewer files".into()
            },
        });
    }
}

/// What `[pacing]` may be set to. Nothing in it can make a command wait for ever: whatever is
/// granted at once holds the largest command, on every reactor where each is granted its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacingBounds {
    /// The reactors and the most bytes of buffers that one command holds.
    pub machine: nvmeof_pacing::Machine,
    /// Bytes in flight, where a bound is wanted and none is set.
    pub default_budget: u64,
    /// Bytes in flight on all reactors together: a command at least, the pool at most.
    pub budget: RangeInclusive<u64>,
    /// Bytes a second: the largest command in a second at least.
    pub rate: RangeInclusive<u64>,
    /// Nanoseconds from one command to the next.
    pub period: RangeInclusive<u64>,
    /// Bytes that may start at once: the largest command on every reactor at least.
    pub burst_bytes: RangeInclusive<u64>,
    /// Commands that may start at once: one a reactor at least.
    pub burst_commands: RangeInclusive<u64>,
    /// Bytes the prototype grants a reactor in one tick: the largest command at least, since what
    /// is left over does not add up.
    pub credit: RangeInclusive<u64>,
    /// Most buffers of the prototype's pool.
    pub buffers_max: u32,
}

/// What limits of hosts and namespaces may be set to. Nothing in it can make a command wait for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantBounds {
    /// I/Os a second.
    pub iops: RangeInclusive<u64>,
    /// Bytes a second: the largest command in a second at least.
    pub bandwidth: RangeInclusive<u64>,
    /// What may start at once, as the nanoseconds in which it comes.
    pub burst: RangeInclusive<u64>,
    /// Bytes in flight of a host: a command at least, the pool at most.
    pub in_flight: RangeInclusive<u64>,
}

/// What the limits cost: one text for the log and for `--check`.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        write!(
            f,
            "memory cost: buffers up to {} for data (buffer-memory) and up to {} in reserve \
             ({} connections x {} entries x {}{} in-capsule, {} reactors x {} admin buffers), \
             resident only as used; a command moves up to {} (MDTS {}); \
             {} file descriptors with every connection",
            show_size(settings.buffer_memory),
            show_size(self.reserve),
            settings.connections,
            settings.queue_depth,
            if self.needs.rdma_listeners > 0 { "2 x " } else { "" },
            show_size(in_capsule_slot(settings)),
            self.needs.reactors,
            self.admin_buffers,
            show_size(settings.max_transfer.into()),
            self.mdts,
            self.open_files,
        )?;
        if self.drive_memory > 0 {
            write!(f, "; queues to drives take up to {}", show_size(self.drive_memory))?;
        }
        if self.needs.rdma_listeners > 0 {
            write!(
                f,
                "; an RDMA I/O queue of {} entries takes {} of the reserve with shared-receives, {} without",
                settings.queue_depth,
                show_size(self.rdma_queue(true)),
                show_size(self.rdma_queue(false)),
            )?;
        }
        Ok(())
    }
}

/// A duration as reactors and fabrics count time.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Raises this process's soft limit on file descriptors to what the limits take.
///
/// # Errors
/// What the system says; [`Limits::derive`] has checked the hard limit.
pub fn raise_open_files(limits: &Limits) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= limits.open_files) {
        return Ok(());
    }
    // As far as it goes: control-plane tools and libraries may want some, too.
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })?;
    Ok(())
}

fn mdts(max_transfer: u32) -> u8 {
    let power = (max_transfer / PAGE).max(2).ilog2();
    u8::try_from(power).unwrap_or(u8::MAX)
}

/// Bytes of the buffer a queue entry has promised for in-capsule data. A connection becomes an
/// admin or an I/O queue: the larger of the two.
fn in_capsule_slot(settings: &Settings) -> u64 {
    let slot = settings.in_capsule.max(ADMIN_IN_CAPSULE).next_power_of_two();
    u64::from(slot).max(MIN_CLASS as u64)
}

fn reserve(settings: &Settings, needs: &Needs) -> u64 {
    let reactors = needs.reactors.max(1);
    let connections = u64::from(settings.connections);
    let depth = u64::from(settings.queue_depth);
    let early = EARLY_BUFFERS * u64::from(ADMIN_IN_CAPSULE);
    let mut queue = depth * in_capsule_slot(settings) + early;
    if needs.rdma_listeners > 0 {
        // A queue pair has as many buffers posted as its host has commands out, and every command may hold
        // one more; and there are pages of command and of response slots.
        // (Queues that share their receives take half of that; the device may have none to share.)
        queue = queue.max(2 * depth * in_capsule_slot(settings) + rdma_slots(depth));
    }
    queue += OWN_BUFFER as u64;
    // Each reactor rounds each of its sizes up to chunks: in-capsule (admin, I/O), admin data, and pages.
    let sizes = 4;
    let admin = (reactors * ADMIN_BUFFERS) as u64 * u64::from(settings.max_transfer);
    let waiting = u64::from(unconnected(settings)) * (early + OWN_BUFFER as u64);
    connections * queue + waiting + admin + (reactors * sizes * CHUNK) as u64
}

/// Connections that may wait for their Connect.
fn unconnected(settings: &Settings) -> u32 {
    settings.connections.clamp(*UNCONNECTED.start(), *UNCONNECTED.end())
}

/// Pages of a queue pair's slots for commands, and for responses.
fn rdma_slots(depth: u64) -> u64 {
    2 * (depth * RDMA_SLOT).next_multiple_of(PAGE.into())
}

fn open_files(settings: &Settings, needs: &Needs) -> u64 {
    let reactors = needs.reactors as u64;
    let queues = (needs.queue_files as u64).saturating_add(REACTOR_FILES);
    let others = PROCESS_FILES
        + u64::from(settings.connections)
        + u64::from(unconnected(settings))
        + needs.listeners as u64
        + needs.rdma_listeners as u64 * (RDMA_FILES + reactors)
        + needs.file_devices as u64
        + needs.drives as u64 * DRIVE_FILES;
    reactors.saturating_mul(queues).saturating_add(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs {
        reactors: 2,
        listeners: 1,
        rdma_listeners: 0,
        file_devices: 1,
        drives: 0,
        queue_files: FILE_QUEUE_FILES + RAM_QUEUE_FILES,
        drive_entries: 0,
    };

    fn problems(change: impl Fn(&mut Settings)) -> Vec<LimitProblem> {
        let mut settings = Settings::default();
        change(&mut settings);
        Limits::derive(settings, &NEEDS, 1024).1
    }

    #[test]
    fn the_defaults_go_together_and_cost_what_is_said() {
        let (limits, problems) = Limits::derive(Settings::default(), &NEEDS, 1024);
        assert_eq!(problems, []);
        assert_eq!(limits.mdts, 8);
        assert_eq!(limits.nvmf().mdts(), limits.mdts);
        assert_eq!(limits.nvmf().max_transfer(), limits.settings.max_transfer);
        // 256 connections x ((128 entries + 2) x 8 KiB + 4 KiB), 256 before Connect x (2 x 8 KiB + 4 KiB),
        // 2 reactors x (4 x 1 MiB + 4 x 2 MiB).
        assert_eq!(limits.reserve, (256 + 4 + 1 + 4 + 1 + 2 * (4 + 8)) << 20);
        assert_eq!(limits.memory_cap(), (256 + 290) << 20);
        assert_eq!(limits.open_files, 128 + 256 + 256 + 1 + 1 + 2 * (4 + 3 + 1));
        assert_eq!(limits.requests_per_reactor, REQUESTS_AT_START);
        let text = limits.to_string();
        for part in ["256MiB for data", "290MiB in reserve", "MDTS 8", "658 file descriptors"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// Queue pairs take more than sockets: receives are posted anew while commands hold their buffers.
    #[test]
    fn rdma_costs_what_is_said() {
        let needs = Needs { rdma_listeners: 1, ..NEEDS };
        let (limits, problems) = Limits::derive(Settings::default(), &needs, 1024);
        assert_eq!(problems, []);
        // 256 connections x (2 x 128 x 8 KiB + 2 x 8 KiB + 4 KiB), 256 x (2 x 8 KiB + 4 KiB),
        // 2 reactors x (4 x 1 MiB + 4 x 2 MiB).
        assert_eq!(limits.reserve, (256 * 2 + 4 + 1 + 4 + 1 + 2 * (4 + 8)) << 20);
        assert_eq!(limits.open_files, 128 + 256 + 256 + 1 + 8 + 2 + 1 + 2 * (4 + 3 + 1));
    }

    #[test]
    fn queues_that_share_receives_take_half() {
        let needs = Needs { rdma_listeners: 1, ..NEEDS };
        let (limits, _) = Limits::derive(Settings::default(), &needs, 1024);
        // 128 entries x 8 KiB, and two times 8 KiB of slots.
        assert_eq!(limits.rdma_queue(true), (1 << 20) + (16 << 10));
        assert_eq!(limits.rdma_queue(false), (2 << 20) + (16 << 10));
        let text = limits.to_string();
        assert!(
            text.contains("takes 1040KiB of the reserve with shared-receives, 2064KiB"),
            "{text}"
        );
        // Shares fill a third of a completion queue, hold one queue, and are no more than all queues.
        assert_eq!(limits.shared_receives(16_384), 5461);
        assert_eq!(limits.shared_receives(256), 128);
        assert_eq!(limits.shared_receives(4 << 20), 256 * 128);
        let none = Settings { in_capsule: 0, ..Settings::default() };
        let (limits, _) = Limits::derive(none, &needs, 1024);
        assert_eq!(limits.rdma_queue(true), limits.rdma_queue(false));
    }

    #[test]
    fn the_pool_takes_the_limits() {
        for max_transfer in [MAX_TRANSFER_MIN, MAX_TRANSFER_MAX] {
            let settings =
                Settings { max_transfer, buffer_memory: BUFFER_MEMORY_MIN, ..Settings::default() };
            let (limits, problems) = Limits::derive(settings, &NEEDS, 1024);
            assert_eq!(problems, []);
            let pool = nvmeof_core::dma::SharedPool::new(limits.pool()).unwrap();
            let cores = [(); 2].map(|()| nvmeof_core::dma::CorePool::new(&pool));
            for core in &cores {
                core.reserve(limits.admin_buffers, max_transfer as usize).unwrap();
                core.lease(max_transfer as usize).unwrap();
            }
        }
    }

    /// Every queue of every connection gets its in-capsule reserve, however they are spread.
    #[test]
    fn the_reserve_holds_what_is_promised() {
        let settings = Settings { connections: 40, in_capsule: 16384, ..Settings::default() };
        let (limits, _) = Limits::derive(settings, &NEEDS, 1024);
        let pool = nvmeof_core::dma::SharedPool::new(limits.pool()).unwrap();
        for split in [0, 7, 20, 40] {
            let cores = [(); 2].map(|()| nvmeof_core::dma::CorePool::new(&pool));
            let mut kept = Vec::new();
            for core in &cores {
                kept.push(core.reserve(limits.admin_buffers, 1 << 20).unwrap());
            }
            for connection in 0..40 {
                let core = &cores[usize::from(connection >= split)];
                let len = if connection % 3 == 0 { ADMIN_IN_CAPSULE } else { 16384 };
                kept.push(core.reserve(2, 8192).unwrap());
                kept.push(core.reserve(settings.queue_depth.into(), len as usize).unwrap());
            }
        }
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        let ms = Duration::from_millis;
        for (found, key, part) in [
            (problems(|s| s.max_transfer = 768 << 10), "max-transfer", "as 512KiB"),
            (problems(|s| s.in_capsule = 1000), "in-capsule", "multiples of 512"),
            (
                problems(|s| {
                    s.max_transfer = 8192;
                    s.in_capsule = 16384;
                }),
                "in-capsule",
                "up to 8KiB",
            ),
            (problems(|s| s.keep_alive_min = ms(1050)), "keep-alive-min", "multiples of 100ms"),
            (problems(|s| s.buffer_memory = 6 << 20), "buffer-memory", "at least 8MiB"),
            (problems(|s| s.connections = 1000), "connections", "up to 622"),
        ] {
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].key, key);
            assert!(found[0].allowed.contains(part), "{found:?}");
        }
        let (_, found) = Limits::derive(Settings::default(), &NEEDS, 16);
        assert!(found[0].allowed.starts_with("raise the limit"), "{found:?}");
    }

    #[test]
    fn a_budget_holds_one_command_and_fits_the_pool() {
        let (limits, _) = Limits::derive(Settings::default(), &NEEDS, 1024);
        assert_eq!(limits.default_budget(), 128 << 20);
        let bounds = limits.pacing();
        assert_eq!(bounds.budget, 2 << 20..=256 << 20);
        assert_eq!(bounds.machine, nvmeof_pacing::Machine { cores: 2, largest: 2 << 20 });
    }
}
