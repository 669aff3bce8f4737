//! Scenario of a run: hosts, devices, load, pacing and disturbances.

use crate::pacing::MAX_CORES;

/// Virtual time in nanoseconds.
pub type Nanos = u64;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Seed of everything random.
    pub seed: u64,
    /// Time before anything is measured.
    pub warm_up: Nanos,
    /// Time measured.
    pub time: Nanos,
    /// Length of a sample of the series; 0: 100 ms, or 1/5 of `time` if that is less.
    pub sample: Nanos,
    /// Number of hosts, on one port each while there are ports, and in turn after that.
    pub hosts: u32,
    /// Initiator of the hosts; it determines the distribution of their queues over the target's
    /// cores.
    pub initiator: Initiator,
    /// Target cores (reactors).
    pub cores: u32,
    /// Namespaces in order; jobs name them by position.
    pub devices: Vec<Device>,
    /// Jobs that every host runs concurrently.
    pub jobs: Vec<Job>,
    /// The target's pacing.
    pub pacing: Pacing,
    /// Disturbances and their times (from the start of the run, including warm-up).
    pub disturbances: Vec<Disturbance>,
}

/// The program on the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initiator {
    /// A userspace initiator: one queue pair per namespace and job.
    Spdk,
    /// The Linux initiator: one queue pair per host CPU and subsystem.
    Kernel,
}

/// A namespace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Device {
    /// Completes immediately and writes nothing to memory.
    Null,
    /// A whole drive.
    Drive {
        /// Number of the physical drive.
        drive: u32,
        /// Delay added to every I/O.
        delay: Delay,
    },
    /// One of several parts of a drive, which share its speed.
    Part {
        /// Number of the physical drive.
        drive: u32,
        /// Delay added to every I/O.
        delay: Delay,
    },
}

/// Delay of a slow device, on one side of its data transfer. The target sees the same device time
/// with both kinds; only the time that data waits in memory differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// None.
    None,
    /// The device transfers the data after this delay: a slow drive, or one over a network. A read
    /// holds no cache until its data arrives; the data of a write waits in memory until the device
    /// fetches it.
    BeforeData(Nanos),
    /// The device transfers the data, and completes after this delay: a delay bdev over a drive.
    /// The data of a read waits in memory; that of a write was fetched.
    AfterData(Nanos),
}

impl Delay {
    /// Returns the time before the data transfer.
    #[must_use]
    pub fn before_data(self) -> Nanos {
        match self {
            Self::BeforeData(delay) => delay,
            Self::None | Self::AfterData(_) => 0,
        }
    }

    /// Returns the time after the data transfer.
    #[must_use]
    pub fn after_data(self) -> Nanos {
        match self {
            Self::AfterData(delay) => delay,
            Self::None | Self::BeforeData(_) => 0,
        }
    }
}

/// One load, run by every host.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Positions in [`Scenario::devices`]; commands are distributed over them at random, evenly.
    pub devices: Vec<usize>,
    /// Commands that each of its threads keeps outstanding, over all of its devices, per host.
    pub queue_depth: u32,
    /// Threads of this job per host, each with its own depth.
    pub threads: u32,
    /// Sizes in bytes with their shares of the commands (any scale).
    pub blocks: Vec<(u32, f64)>,
    /// Share of reads, 0 to 1.
    pub reads: f64,
    /// Weight of its flows against others.
    pub weight: u16,
    /// Hosts that run it; empty: all.
    pub hosts: Vec<u32>,
    /// Start time, from the start of the run.
    pub from: Nanos,
    /// Time at which it stops issuing, if it does.
    pub until: Option<Nanos>,
}

/// The target's pacing.
#[derive(Debug, Clone, PartialEq)]
pub enum Pacing {
    /// Any policy of the daemon, by the setup of the pacing crate.
    Policy(nvmeof_pacing::PolicyConfig),
    /// As `none`, on a machine with an unlimited cache: the ceiling for policies.
    EndlessCache,
}

/// Temporary disturbance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disturbance {
    /// Start, from the start of the run.
    pub at: Nanos,
    /// Duration.
    pub lasts: Nanos,
    /// Type of the disturbance.
    pub what: DisturbanceKind,
}

/// Type of a disturbance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DisturbanceKind {
    /// Every port of the network runs at this fraction of its rate (0: nothing is sent).
    Link(f64),
    /// Every drive completes nothing.
    Drives,
    /// One drive completes nothing.
    Drive(u32),
    /// The target's cores begin no turn: other threads have the CPUs.
    Cores,
    /// As above, for one core.
    Core(u32),
}

impl Scenario {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// A message that names the invalid part, and the valid values.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("time", self.time > 0),
            ("hosts", self.hosts > 0),
            ("devices", !self.devices.is_empty()),
            ("jobs", !self.jobs.is_empty()),
        ];
        if let Some((what, _)) = positive.iter().find(|(_, fine)| !fine) {
            return Err(format!("{what}: there must be some"));
        }
        if !(1..=MAX_CORES).contains(&(self.cores as usize)) {
            return Err(format!("cores = {}: 1 to {MAX_CORES} are possible", self.cores));
        }
        self.jobs
            .iter()
            .enumerate()
            .try_for_each(|(at, job)| job.check(self).map_err(|why| format!("job {at}: {why}")))?;
        for trouble in &self.disturbances {
            if let DisturbanceKind::Link(rate) = trouble.what
                && !(0.0..=1.0).contains(&rate)
            {
                return Err(format!("the link cannot run at {rate} of its rate: 0 to 1 can be"));
            }
            if let DisturbanceKind::Core(core) = trouble.what
                && core >= self.cores
            {
                return Err(format!("there is no core {core}: there are {}", self.cores));
            }
        }
        Ok(())
    }
}

impl Job {
    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        if let Some(device) = self.devices.iter().find(|d| **d >= scenario.devices.len()) {
            let last = scenario.devices.len() - 1;
            return Err(format!("there is no device {device}: the last is {last}"));
        }
        if let Some(host) = self.hosts.iter().find(|host| **host >= scenario.hosts) {
            return Err(format!("there is no host {host}: there are {}", scenario.hosts));
        }
        if self.devices.is_empty() || self.queue_depth == 0 || self.threads == 0 {
            return Err("devices, queue depth and threads: there must be some".into());
        }
        let shares: f64 = self.blocks.iter().map(|block| block.1).sum();
        let sound = |(bytes, share): &(u32, f64)| *bytes > 0 && *share >= 0.0 && share.is_finite();
        if !self.blocks.iter().all(sound) || shares <= 0.0 {
            return Err(format!("blocks {:?}: sizes and shares must be positive", self.blocks));
        }
        if !(0.0..=1.0).contains(&self.reads) {
            return Err(format!("reads = {}: a share from 0 to 1", self.reads));
        }
        Ok(())
    }
}
