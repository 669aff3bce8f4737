//! All limits of the daemon: those that the config sets, and those derived from them.
//!
//! No other module derives or checks limits.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use nvmeof_api::units::show_size;
use nvmeof_core::dma::{CHUNK, MIN_CLASS, PoolConfig};

use crate::config::{Config, Device, DeviceKind, Fabric, LimitSettings, Listener};
use crate::reactor::OWN_BUFFER;

/// Maximum of `limits.connections`.
pub const CONNECTIONS_MAX: u32 = 65_535;
/// Maximum of `limits.io-queues`: I/O queues per controller.
pub const IO_QUEUES_MAX: u16 = 1024;
/// Minimum of `limits.queue-depth` in entries: the depth that hosts use for the admin queue.
pub const QUEUE_DEPTH_MIN: u16 = nvmeof_nvmf::limits::ADMIN_QUEUE_MIN;
/// Maximum of `limits.queue-depth` in entries.
pub const QUEUE_DEPTH_MAX: u16 = 4096;
/// Minimum of `limits.max-transfer` in bytes: MDTS 1, because MDTS 0 means no limit.
pub const MAX_TRANSFER_MIN: u32 = 2 * PAGE;
/// Maximum of `limits.max-transfer` in bytes: a buffer lies in one chunk of the pool.
pub const MAX_TRANSFER_MAX: u32 = 2 << 20;
/// Maximum of `limits.in-capsule` in bytes.
pub const IN_CAPSULE_MAX: u32 = 64 << 10;
/// Minimum of `limits.buffer-memory` in bytes.
pub const BUFFER_MEMORY_MIN: u64 = 8 << 20;
/// Maximum of `limits.buffer-memory` in bytes.
pub const BUFFER_MEMORY_MAX: u64 = 1 << 40;

/// Maximum `weight` of a namespace.
pub const WEIGHT_MAX: u16 = 1000;
/// Maximum `weight` of a host. The weight of a flow is its host's times its namespace's.
pub const HOST_WEIGHT_MAX: u16 = 64;
/// Maximum `iops` limit of a tenant.
pub const IOPS_MAX: u64 = 1_000_000_000;
/// Maximum burst of a tenant in nanoseconds: one minute.
pub const TENANT_BURST_MAX: u64 = 60_000_000_000;
/// Maximum of `pacing.rate` in bytes per second: 10 Tb/s, beyond the memory of any machine.
pub const RATE_MAX: u64 = 1_250_000_000_000;
/// Maximum of `pacing.period`, the nanoseconds from one command to the next. A host that waits
/// longer gives up.
pub const PERIOD_MAX: u64 = 1_000_000_000;
/// Maximum commands of `pacing.burst` behind a period, and of `buffers` of io_pacing.
pub const BURST_MAX: u32 = 1 << 20;

const _: () = assert!(WEIGHT_MAX as u32 * HOST_WEIGHT_MAX as u32 <= u16::MAX as u32);

/// Bounds of the connections that wait for their Connect, outside `limits.connections`.
///
/// All hosts connect simultaneously after an outage of the target.
const UNCONNECTED: RangeInclusive<u32> = 16..=256;
/// Unit of MDTS in bytes.
const PAGE: u32 = nvmeof_nvmf::limits::PAGE;
/// Bytes of in-capsule data of a command on an admin queue, whatever the config (TCP 3.6.2.2).
const ADMIN_IN_CAPSULE: u32 = 8192;
/// Additional buffers of [`ADMIN_IN_CAPSULE`] bytes per connection, for fabrics commands.
const EARLY_BUFFERS: u64 = 2;
/// Buffers of `max-transfer` bytes that each reactor reserves for admin commands.
const ADMIN_BUFFERS: usize = 4;
/// Maximum number of requests that a reactor allocates at start; it grows on demand.
const REQUESTS_AT_START: usize = 4096;
/// Descriptors of the process itself: standard streams, logging, signals, the control plane and 64
/// clients of its API.
const PROCESS_FILES: u64 = 128;
/// Descriptors of a reactor: the poller, mailbox and timers of its thread.
const REACTOR_FILES: u64 = 4;
/// Bytes of a slot of a queue pair, for a command or for a response.
const RDMA_SLOT: u64 = 64;
/// Additional descriptors of an RDMA listener: the libraries', its device's and the device events'.
const RDMA_FILES: u64 = 8;
/// CQ entries per entry of an I/O queue: one receive and two sends.
const RDMA_COMPLETIONS: u32 = 3;
/// Descriptors of one reactor's queue to a file: ring, file, event.
const FILE_QUEUE_FILES: usize = 3;
/// Descriptors of one reactor's queue to memory: its event.
const RAM_QUEUE_FILES: usize = 1;
/// Descriptors of one reactor's queue to a drive: its interrupt, and an event for work without one.
const DRIVE_QUEUE_FILES: usize = 2;
/// Additional descriptors of a fault queue: its event, and a poller of it and the base queue.
const FAULT_QUEUE_FILES: usize = 2;
/// Additional descriptors of a stripe queue: a poller of its members.
const STRIPE_QUEUE_FILES: usize = 1;
/// Descriptors of a drive: group, function, registers, removal, admin interrupt and supervisor.
const DRIVE_FILES: u64 = 8;
/// Bytes of memory per entry of a drive's queue: SQE, CQE, and at most one page for its PRP list.
const DRIVE_ENTRY: u64 = 64 + 16 + 4096;

const _: () = assert!(MAX_TRANSFER_MAX as usize == CHUNK, "a buffer lies in one chunk");
const _: () =
    assert!(BUFFER_MEMORY_MIN / 2 >= 2 * MAX_TRANSFER_MAX as u64, "a budget holds any command");
const _: () = assert!(MIN_CLASS <= PAGE as usize, "a page fits the smallest buffer");

/// Properties of a config that the limits depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitInputs {
    /// Number of reactors.
    pub reactors: usize,
    /// Number of listeners.
    pub listeners: usize,
    /// Number of RDMA listeners.
    pub rdma_listeners: usize,
    /// Number of file devices.
    pub file_devices: usize,
    /// Number of drives of the VFIO driver.
    pub drives: usize,
    /// Descriptors of one reactor's queues: one queue per device, and one to each of its bases.
    pub queue_files: usize,
    /// Entries of one reactor's queues to drives.
    pub drive_entries: usize,
}

/// Queue pairs of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveQueues {
    /// Queue pairs without which the devices cannot open.
    ///
    /// Each reactor has one for each device on the drive, and for each device that is layered on
    /// one.
    pub needed: usize,
    /// Queue pairs to request: a reload opens a device again before it closes the old one.
    pub wanted: usize,
}

impl DriveQueues {
    /// Counts the queue pairs that `devices` use on the drive at this address. Bases come first in
    /// `devices`.
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

/// Cost of one reactor's queue to a device, including the queues to its bases.
#[derive(Debug, Clone, Copy, Default)]
struct QueueCost {
    files: usize,
    drive_entries: usize,
}

impl LimitInputs {
    /// Counts the resources of a config.
    #[must_use]
    pub fn of(reactors: usize, listeners: &[Listener], devices: &[Device]) -> Self {
        let rdma_listeners = listeners.iter().filter(|one| one.fabric == Fabric::Rdma).count();
        let listeners = listeners.len();
        let mut needs = Self { reactors, listeners, rdma_listeners, ..Self::default() };
        let mut costs: BTreeMap<&str, QueueCost> = BTreeMap::new();
        let mut drives: Vec<&str> = Vec::new();
        for device in devices {
            let bases = device.kind.bases().iter().filter_map(|base| costs.get(base.as_str()));
            // Bases come first, so their costs are known.
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

/// Counts the descriptors of a queue whose only own cost is descriptors.
fn queue_files(kind: &DeviceKind) -> usize {
    match kind {
        DeviceKind::Ram { .. } => RAM_QUEUE_FILES,
        DeviceKind::Fault { .. } => FAULT_QUEUE_FILES,
        DeviceKind::Stripe { .. } => STRIPE_QUEUE_FILES,
        _ => 0,
    }
}

/// Conflict between settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitProblem {
    /// The key of `[limits]` to change.
    pub key: &'static str,
    /// Description of the conflict.
    pub what: String,
    /// Allowed values.
    pub allowed: String,
}

/// All limits, configured and derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// LimitSettings as configured.
    pub settings: LimitSettings,
    /// Needs that the limits were derived for.
    pub needs: LimitInputs,
    /// MDTS that hosts receive: the maximum transfer is 2 to this power pages of 4 KiB.
    pub mdts: u8,
    /// Maximum bytes of buffers reserved for queues and admin commands, on top of `buffer_memory`.
    ///
    /// Data commands cannot take them.
    pub reserve: u64,
    /// Number of requests that a reactor allocates at start.
    pub requests_per_reactor: usize,
    /// Buffers of `max_transfer` bytes that each reactor reserves for admin commands.
    pub admin_buffers: usize,
    /// Maximum connections that wait for their Connect, in addition to the connected ones.
    pub unconnected: u32,
    /// File descriptors needed with the maximum number of connections.
    pub open_files: u64,
    /// Maximum bytes of locked memory for queues to drives.
    pub drive_memory: u64,
}

impl Limits {
    /// Derives the limits of a valid config.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let needs = LimitInputs::of(config.reactors.len(), &config.listeners, &config.devices);
        // Validation has reported the conflicts.
        Self::derive(config.limits, &needs, u64::MAX).0
    }

    /// Derives the limits from the settings and returns the conflicts.
    #[must_use]
    pub fn derive(
        settings: LimitSettings,
        needs: &LimitInputs,
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

    /// Returns the default bound on the bytes in flight: half of the buffer memory.
    ///
    /// A buffer can be up to twice as large as its I/O. Partly used chunks take more; see
    /// `reactor/buffer_wait.rs`.
    #[must_use]
    pub fn default_budget(&self) -> u64 {
        (self.settings.buffer_memory / 2).max(self.largest_cost().into())
    }

    /// Returns the maximum bytes of buffers that one command holds.
    ///
    /// Compare holds the host's data and the device's.
    #[must_use]
    pub fn largest_cost(&self) -> u32 {
        self.settings.max_transfer.saturating_mul(2)
    }

    /// Returns the paced machine and the bounds of `[pacing]`.
    #[must_use]
    pub fn pacing(&self) -> PacingBounds {
        let cores = self.needs.reactors.max(1);
        let largest = self.largest_cost();
        let one_each = cores as u64;
        PacingBounds {
            machine: nvmeof_pacing::PacedMachine { cores, largest },
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

    /// Returns the bounds of tenant limits.
    #[must_use]
    pub fn tenants(&self) -> TenantBounds {
        TenantBounds {
            iops: 1..=IOPS_MAX,
            bandwidth: u64::from(self.settings.max_transfer)..=RATE_MAX,
            burst: 0..=TENANT_BURST_MAX,
            in_flight: self.largest_cost().into()..=self.settings.buffer_memory,
        }
    }

    /// Returns the bytes that the buffers can grow to if all of them are in use.
    #[must_use]
    pub fn memory_cap(&self) -> u64 {
        self.settings.buffer_memory.saturating_add(self.reserve)
    }

    /// Returns the config of the buffer pool.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        PoolConfig {
            cap: usize::try_from(self.settings.buffer_memory).unwrap_or(usize::MAX),
            reserve: usize::try_from(self.reserve).unwrap_or(usize::MAX),
            max_lease: self.settings.max_transfer as usize,
            huge_pages: true,
        }
    }

    /// Returns the limits that controllers report to hosts and enforce.
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

    /// Returns the maximum receives that the I/O queues of a completion queue share.
    ///
    /// The SRQ has no more receives than the receive queues of all connections would have. It
    /// leaves room in the completion queue for the sends of the same queues.
    #[must_use]
    pub fn shared_receives(&self, completions: u32) -> u32 {
        let depth = u32::from(self.settings.queue_depth);
        let room = completions / RDMA_COMPLETIONS;
        room.max(depth).min(depth.saturating_mul(self.settings.connections))
    }

    /// Returns the bytes of buffers reserved for an RDMA I/O queue.
    ///
    /// A queue with its own receive queue has one posted buffer per command of its host, and each
    /// command may hold one more. With an SRQ, a command that holds a buffer cannot arrive again,
    /// so one buffer per command is enough. Closed queues leave no more buffers posted than the
    /// other queues would have taken.
    #[must_use]
    pub fn rdma_queue(&self, shares: bool) -> u64 {
        let LimitSettings { queue_depth, in_capsule, .. } = self.settings;
        let depth = u64::from(queue_depth);
        let slot = match in_capsule {
            0 => 0,
            len => u64::from(len.next_power_of_two()).max(MIN_CLASS as u64),
        };
        let buffers = if shares { depth } else { 2 * depth };
        buffers * slot + rdma_slots(depth)
    }

    /// Returns the maximum commands waiting in one flow (a queue's commands for one device).
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
                what: "exceeds max-transfer".into(),
                allowed: format!("allowed: up to {}", show_size(settings.max_transfer.into())),
            });
        }
        if !settings.keep_alive_min.as_millis().is_multiple_of(100) {
            problems.push(LimitProblem {
                key: "keep-alive-min",
                what: "not a multiple of 100 ms, the unit of the Identify field".into(),
                allowed: "allowed: multiples of 100ms".into(),
            });
        }
        // One chunk per reactor, which holds one I/O, and the same amount to share.
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
                "{} file descriptors are required, but the process may have {open_files_max}",
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

/// Bounds of the keys of `[pacing]`.
///
/// No value within them makes a command wait forever. Each grant holds the largest command, on
/// every reactor if each reactor gets its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacingBounds {
    /// Number of reactors, and the maximum bytes of buffers that one command holds.
    pub machine: nvmeof_pacing::PacedMachine,
    /// Bytes in flight if a bound is required and none is set.
    pub default_budget: u64,
    /// Bytes in flight on all reactors: at least one command, at most the pool.
    pub budget: RangeInclusive<u64>,
    /// Bytes per second: at least the largest command in a second.
    pub rate: RangeInclusive<u64>,
    /// Nanoseconds from one command to the next.
    pub period: RangeInclusive<u64>,
    /// Bytes of a burst: at least the largest command on every reactor.
    pub burst_bytes: RangeInclusive<u64>,
    /// Commands of a burst: at least one per reactor.
    pub burst_commands: RangeInclusive<u64>,
    /// Bytes that io_pacing grants a reactor per tick.
    ///
    /// The minimum is the largest command, because unused credit does not accumulate.
    pub credit: RangeInclusive<u64>,
    /// Maximum number of buffers in the io_pacing pool.
    pub buffers_max: u32,
}

/// Bounds of the limits of hosts and namespaces. No value within them makes a command wait forever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantBounds {
    /// I/Os per second.
    pub iops: RangeInclusive<u64>,
    /// Bytes per second: at least the largest command in a second.
    pub bandwidth: RangeInclusive<u64>,
    /// Burst, as the nanoseconds in which it accumulates.
    pub burst: RangeInclusive<u64>,
    /// Bytes in flight of a host: at least one command, at most the pool.
    pub in_flight: RangeInclusive<u64>,
}

/// Formats the costs of the limits; the log and `--check` share this text.
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

/// Converts a duration to nanoseconds, the unit of time of reactors and fabrics.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Raises the soft limit of this process on file descriptors to the hard limit, if required.
///
/// # Errors
/// The error of the system call. [`Limits::derive`] has checked the hard limit.
pub fn raise_open_files(limits: &Limits) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= limits.open_files) {
        return Ok(());
    }
    // Raise it to the maximum: control-plane tools and libraries may need some, too.
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })?;
    Ok(())
}

fn mdts(max_transfer: u32) -> u8 {
    let power = (max_transfer / PAGE).max(2).ilog2();
    u8::try_from(power).unwrap_or(u8::MAX)
}

/// Returns the bytes of the buffer reserved per queue entry for in-capsule data.
///
/// A connection becomes an admin queue or an I/O queue, so the larger size counts.
fn in_capsule_slot(settings: &LimitSettings) -> u64 {
    let slot = settings.in_capsule.max(ADMIN_IN_CAPSULE).next_power_of_two();
    u64::from(slot).max(MIN_CLASS as u64)
}

fn reserve(settings: &LimitSettings, needs: &LimitInputs) -> u64 {
    let reactors = needs.reactors.max(1);
    let connections = u64::from(settings.connections);
    let depth = u64::from(settings.queue_depth);
    let early = EARLY_BUFFERS * u64::from(ADMIN_IN_CAPSULE);
    let mut queue = depth * in_capsule_slot(settings) + early;
    if needs.rdma_listeners > 0 {
        // A queue pair has one posted buffer per command of its host, and each command may hold one
        // more. The slots for commands and responses take pages in addition. Queues on an SRQ take
        // half of that, but the device may not support SRQs.
        queue = queue.max(2 * depth * in_capsule_slot(settings) + rdma_slots(depth));
    }
    queue += OWN_BUFFER as u64;
    // Each reactor rounds each size up to chunks: in-capsule (admin, I/O), admin data, and pages.
    let sizes = 4;
    let admin = (reactors * ADMIN_BUFFERS) as u64 * u64::from(settings.max_transfer);
    let waiting = u64::from(unconnected(settings)) * (early + OWN_BUFFER as u64);
    connections * queue + waiting + admin + (reactors * sizes * CHUNK) as u64
}

/// Returns the maximum connections that wait for their Connect.
fn unconnected(settings: &LimitSettings) -> u32 {
    settings.connections.clamp(*UNCONNECTED.start(), *UNCONNECTED.end())
}

/// Returns the bytes of a queue pair's pages of slots for commands and responses.
fn rdma_slots(depth: u64) -> u64 {
    2 * (depth * RDMA_SLOT).next_multiple_of(PAGE.into())
}

fn open_files(settings: &LimitSettings, needs: &LimitInputs) -> u64 {
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
mod tests;
