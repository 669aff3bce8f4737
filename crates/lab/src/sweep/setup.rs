//! Configuration of one point, for any backend. Times are in nanoseconds, sizes in bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// One point of a plan, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PointSetup {
    /// Target cores.
    pub(crate) cores: u32,
    /// Devices of the target.
    pub(crate) devices: TargetDevices,
    /// Admission of commands.
    pub(crate) pacing: PacingSetup,
    /// Jobs that run concurrently, on every host or on some.
    pub(crate) jobs: Vec<HostJob>,
    /// One entry per host.
    pub(crate) hosts: Vec<Initiator>,
    /// ssh destination of each host, if the plan names it; not for the simulator.
    pub(crate) ssh: Vec<Option<String>>,
    /// Config from which the daemon's is made; not for the simulator.
    pub(crate) config: Option<PathBuf>,
    /// Settings merged into the daemon's config; not for the simulator.
    pub(crate) set: toml::Table,
    /// Time measured, after the ramp.
    pub(crate) time: u64,
    /// Time before the measurement.
    pub(crate) ramp: u64,
    /// Interval of the time series; 0: 100 ms, or less in a short run.
    pub(crate) sample: u64,
    /// Number of runs of the point.
    pub(crate) repeat: u32,
    /// Disturbances during the run.
    pub(crate) disturbances: Vec<Disturbance>,
    /// Numbers of the platform that this point changes.
    pub(crate) platform: BTreeMap<String, f64>,
}

/// Namespaces, part by part: all first parts, then all second ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetDevices {
    /// Kind of the devices.
    pub(crate) kind: DeviceKind,
    /// Number of null devices or drives.
    pub(crate) count: u32,
    /// The added delay, and how many devices, counted from the first, have it.
    pub(crate) delay: Option<(u64, u32)>,
}

/// Storage of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// No storage.
    Null,
    /// A whole drive.
    Drive,
    /// One of this number of parts of a drive.
    Part(u32),
}

impl TargetDevices {
    /// Returns the number of namespaces.
    pub(crate) fn namespaces(&self) -> u32 {
        match self.kind {
            DeviceKind::Part(parts) => self.count * parts,
            DeviceKind::Null | DeviceKind::Drive => self.count,
        }
    }

    /// Returns number and kind, as the CSV names them.
    pub(crate) fn name(&self, initiator: Initiator) -> String {
        let delay = if self.delay.is_some() { "+delay" } else { "" };
        match self.kind {
            DeviceKind::Drive if initiator == Initiator::Local => format!("local{}", self.count),
            DeviceKind::Null => format!("null{}{delay}", self.count),
            DeviceKind::Drive => format!("nvme{}{delay}", self.count),
            DeviceKind::Part(parts) => format!("split{parts}{delay}"),
        }
    }
}

/// Admission of commands at the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PacingSetup {
    /// No limit.
    None,
    /// No limit, on a machine whose cache never overflows: the simulator's ceiling.
    EndlessCache,
    /// A budget that the controller determines.
    Adaptive,
    /// A limit on the bytes in flight.
    BufferCredit { budget: u64 },
    /// A rate limit.
    TokenBucket { pace: FillRate, burst: Option<u64>, budget: Option<u64> },
    /// The Mellanox SPDK io_pacing prototype.
    Prototype { pool: Option<BufferPool>, pacer: Option<PeriodicPacer> },
}

/// Fill rate of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillRate {
    /// Bytes per second.
    Rate(u64),
    /// Time from one I/O to the next.
    Period(u64),
}

/// The static pool of io_pacing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferPool {
    /// Total number of buffers.
    pub(crate) buffers: u32,
    /// Buffers that each core keeps; not set: all of them, spread over the cores.
    pub(crate) cache: Option<u32>,
}

/// The pacer of io_pacing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeriodicPacer {
    /// Time from tick to tick for the whole target; 0: every poll.
    pub(crate) period: u64,
    /// Bytes that a tick grants.
    pub(crate) credit: u32,
    /// Size in bytes below which an I/O starts immediately.
    pub(crate) bypass_below: u32,
    /// Maximum number of I/Os in flight on one drive.
    pub(crate) drive_limit: Option<u32>,
    /// Tuner that changes the period.
    pub(crate) tuner: Option<PeriodTuner>,
}

/// Rule by which io_pacing changes its period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeriodTuner {
    /// By the bytes in flight beyond a threshold.
    BytesInFlight { threshold: u64 },
    /// Towards more bandwidth.
    Bandwidth { interval: u64, step: u64 },
}

impl PacingSetup {
    /// Returns the name in plans and results.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::EndlessCache => "endless-cache",
            Self::Adaptive => "adaptive",
            Self::BufferCredit { .. } => "buffer-credit",
            Self::TokenBucket { .. } => "token-bucket",
            Self::Prototype { .. } => "prototype",
        }
    }

    /// Returns the period per I/O for the whole target, if it is set.
    pub(crate) fn period(&self) -> Option<u64> {
        match self {
            Self::TokenBucket { pace: FillRate::Period(period), .. } => Some(*period),
            Self::Prototype { pacer: Some(pacer), .. } => Some(pacer.period),
            _ => None,
        }
    }

    /// Returns the number of buffers of a static limit, with blocks of this size.
    pub(crate) fn buffers(&self, block: u32) -> Option<u64> {
        match self {
            Self::BufferCredit { budget } => Some(budget / u64::from(block)),
            Self::TokenBucket { budget, .. } => budget.map(|budget| budget / u64::from(block)),
            Self::Prototype { pool, .. } => pool.map(|pool| pool.buffers.into()),
            _ => None,
        }
    }

    /// Returns the number of buffers that each core keeps, if it is set.
    pub(crate) fn cache(&self) -> Option<u32> {
        match self {
            Self::Prototype { pool: Some(pool), .. } => pool.cache,
            _ => None,
        }
    }
}

/// Load generator of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initiator {
    /// fio with the Linux kernel's initiator.
    FioKernel,
    /// fio with SPDK's plugin.
    FioSpdk,
    /// `nvmeof-perf`.
    Perf,
    /// A load on the target itself, without a fabric.
    Local,
}

impl Initiator {
    /// Returns the name in plans.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FioKernel => "fio-kernel",
            Self::FioSpdk => "fio-spdk",
            Self::Perf => "nvmeof-perf",
            Self::Local => "local",
        }
    }
}

/// One load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HostJob {
    /// Name in results.
    pub(crate) name: String,
    /// Positions of the devices.
    pub(crate) devices: Vec<u32>,
    /// Commands each thread keeps outstanding, over all devices, per host.
    pub(crate) queue_depth: u32,
    /// Threads per host.
    pub(crate) threads: u32,
    /// The plan's queue depth is that of all threads of a host together.
    pub(crate) shares_depth: bool,
    /// Weight of its flows.
    pub(crate) weight: u16,
    /// Hosts that run it, from 0; empty: all.
    pub(crate) hosts: Vec<u32>,
    /// Sizes with their shares, any scale.
    pub(crate) blocks: Vec<(u32, f64)>,
    /// Share of reads, 0 to 1.
    pub(crate) reads: f64,
    /// Start, from the start of the run.
    pub(crate) from: u64,
    /// End, from the start of the run.
    pub(crate) until: Option<u64>,
}

impl HostJob {
    /// Returns what messages call it; a job without a name is `job 1`.
    pub(crate) fn title(&self) -> String {
        match self.name.starts_with("job ") {
            true => self.name.clone(),
            false => format!("job {}", self.name),
        }
    }

    /// Returns the queue depth of the plan and the number of loads with this depth on a host.
    pub(crate) fn planned_depth(&self) -> (u32, u32) {
        match self.shares_depth {
            true => (self.queue_depth * self.threads, 1),
            false => (self.queue_depth, self.threads),
        }
    }

    /// Returns the number of hosts that run it, out of `all`.
    pub(crate) fn hosts_of(&self, all: usize) -> usize {
        if self.hosts.is_empty() { all } else { self.hosts.len() }
    }
}

/// A disturbance for a limited time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Disturbance {
    /// Start, from the start of the run, ramp included.
    pub(crate) at: u64,
    /// Duration.
    pub(crate) lasts: u64,
    /// Kind of the disturbance.
    pub(crate) what: DisturbanceKind,
}

/// Kind of a disturbance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum DisturbanceKind {
    /// The network runs at this share of its rate.
    Link(f64),
    /// The drives complete nothing.
    Drives,
    /// The target's cores stall.
    Cores,
}
