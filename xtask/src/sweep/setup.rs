//! What one point runs, wherever it runs. Times are in nanoseconds, sizes in bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// One point of a plan, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setup {
    /// Target cores.
    pub(crate) cores: u32,
    /// What the target serves.
    pub(crate) devices: Devices,
    /// How it admits commands.
    pub(crate) pacing: Pacing,
    /// What every host, or some of them, run at once.
    pub(crate) jobs: Vec<Job>,
    /// One entry a host.
    pub(crate) hosts: Vec<Initiator>,
    /// How ssh reaches each of them, if the plan says so; not for the simulator.
    pub(crate) ssh: Vec<Option<String>>,
    /// The daemon's config to start from; not for the simulator.
    pub(crate) config: Option<PathBuf>,
    /// Laid over the daemon's config; not for the simulator.
    pub(crate) set: toml::Table,
    /// Time measured, after the ramp.
    pub(crate) time: u64,
    /// Time before anything is measured.
    pub(crate) ramp: u64,
    /// From one sample of the time series to the next; 0: 100 ms, or less in a short run.
    pub(crate) sample: u64,
    /// Runs of the point.
    pub(crate) repeat: u32,
    /// What goes wrong meanwhile.
    pub(crate) disturbances: Vec<Disturbance>,
    /// Numbers of the platform that this point changes.
    pub(crate) platform: BTreeMap<String, f64>,
}

/// Namespaces, part by part: all first parts, then all second ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Devices {
    /// What they are made of.
    pub(crate) kind: DeviceKind,
    /// Null devices, or drives.
    pub(crate) count: u32,
    /// The added delay, and how many devices, counted from the first, have it.
    pub(crate) delay: Option<(u64, u32)>,
}

/// What a device is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// Nothing.
    Null,
    /// A whole drive.
    Drive,
    /// One of so many parts of a drive.
    Part(u32),
}

impl Devices {
    /// Namespaces.
    pub(crate) fn namespaces(&self) -> u32 {
        match self.kind {
            DeviceKind::Part(parts) => self.count * parts,
            DeviceKind::Null | DeviceKind::Drive => self.count,
        }
    }

    /// Number and kind, as the CSV names them.
    pub(crate) fn name(&self) -> String {
        let delay = if self.delay.is_some() { "+delay" } else { "" };
        match self.kind {
            DeviceKind::Null => format!("null{}{delay}", self.count),
            DeviceKind::Drive => format!("nvme{}{delay}", self.count),
            DeviceKind::Part(parts) => format!("split{parts}{delay}"),
        }
    }
}

/// How the target admits commands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pacing {
    /// Everything at once.
    None,
    /// The same on a machine whose cache never runs out: the simulator's ceiling.
    EndlessCache,
    /// Finds its own budget.
    Adaptive,
    /// A bound on the bytes in flight.
    BufferCredit { budget: u64 },
    /// A rate.
    TokenBucket { pace: Pace, burst: Option<u64>, budget: Option<u64> },
    /// The measured prototype.
    Prototype { pool: Option<Pool>, pacer: Option<Pacer> },
}

/// How fast a token bucket fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Bytes a second.
    Rate(u64),
    /// From one I/O to the next.
    Period(u64),
}

/// The prototype's static pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool {
    /// In all.
    pub(crate) buffers: u32,
    /// Kept by each core; not set: all of them, spread over the cores.
    pub(crate) cache: Option<u32>,
}

/// The prototype's pacer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pacer {
    /// From tick to tick for the whole target; 0: every poll.
    pub(crate) period: u64,
    /// Bytes a tick grants.
    pub(crate) credit: u32,
    /// I/O below so many bytes starts at once.
    pub(crate) bypass_below: u32,
    /// I/Os in flight on one drive.
    pub(crate) drive_limit: Option<u32>,
    /// Moves the period.
    pub(crate) tuner: Option<Tuner>,
}

/// How the prototype moves its period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tuner {
    /// With the bytes in flight beyond a threshold.
    BytesInFlight { threshold: u64 },
    /// Towards more bandwidth.
    Bandwidth { interval: u64, step: u64 },
}

impl Pacing {
    /// As plans and results name it.
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

    /// Period per I/O for the whole target, if it is set.
    pub(crate) fn period(&self) -> Option<u64> {
        match self {
            Self::TokenBucket { pace: Pace::Period(period), .. } => Some(*period),
            Self::Prototype { pacer: Some(pacer), .. } => Some(pacer.period),
            _ => None,
        }
    }

    /// Buffers of a static bound, with blocks of this size.
    pub(crate) fn buffers(&self, block: u32) -> Option<u64> {
        match self {
            Self::BufferCredit { budget } => Some(budget / u64::from(block)),
            Self::TokenBucket { budget, .. } => budget.map(|budget| budget / u64::from(block)),
            Self::Prototype { pool, .. } => pool.map(|pool| pool.buffers.into()),
            _ => None,
        }
    }

    /// Buffers each core keeps, if that is set.
    pub(crate) fn cache(&self) -> Option<u32> {
        match self {
            Self::Prototype { pool: Some(pool), .. } => pool.cache,
            _ => None,
        }
    }
}

/// The program on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initiator {
    /// fio with the kernel's initiator.
    FioKernel,
    /// fio with SPDK's plugin.
    FioSpdk,
    /// Our own load generator.
    Perf,
}

impl Initiator {
    /// As plans write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FioKernel => "fio-kernel",
            Self::FioSpdk => "fio-spdk",
            Self::Perf => "nvmeof-perf",
        }
    }
}

/// One load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    /// How results call it.
    pub(crate) name: String,
    /// Positions of the devices.
    pub(crate) devices: Vec<u32>,
    /// Commands each thread keeps outstanding, over all devices, per host.
    pub(crate) queue_depth: u32,
    /// Threads per host.
    pub(crate) threads: u32,
    /// Weight of its flows.
    pub(crate) weight: u16,
    /// Hosts that run it, from 0; empty: all.
    pub(crate) hosts: Vec<u32>,
    /// Sizes with their shares, any scale.
    pub(crate) blocks: Vec<(u32, f64)>,
    /// Share of reads, 0 to 1.
    pub(crate) reads: f64,
    /// Runs from here, from the start of the run.
    pub(crate) from: u64,
    /// To here.
    pub(crate) until: Option<u64>,
}

impl Job {
    /// Hosts that run it, out of so many.
    pub(crate) fn hosts_of(&self, all: usize) -> usize {
        if self.hosts.is_empty() { all } else { self.hosts.len() }
    }
}

/// Something that goes wrong for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Disturbance {
    /// From the start of the run, ramp included.
    pub(crate) at: u64,
    /// For so long.
    pub(crate) lasts: u64,
    /// What.
    pub(crate) what: Trouble,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Trouble {
    /// The network runs at this share of its rate.
    Link(f64),
    /// The drives complete nothing.
    Drives,
    /// The target's cores do nothing.
    Cores,
}
