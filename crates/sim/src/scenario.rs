//! What is run on a platform: hosts, devices, load, pacing and what goes wrong meanwhile.

use crate::pacing::MAX_CORES;

/// Virtual time in nanoseconds.
pub type Nanos = u64;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Everything random follows from it.
    pub seed: u64,
    /// Time before anything is measured.
    pub warm_up: Nanos,
    /// Time measured.
    pub time: Nanos,
    /// Length of a sample of the series; 0: 100 ms, or a fifth of `time` if that is less.
    pub sample: Nanos,
    /// Hosts, each on a port of its own while there are ports, in turn after that.
    pub hosts: u32,
    /// What the hosts run; decides how their queues spread over the target's cores.
    pub initiator: Initiator,
    /// Target cores (reactors).
    pub cores: u32,
    /// Namespaces in order; jobs name them by position.
    pub devices: Vec<Device>,
    /// What every host runs at once.
    pub jobs: Vec<Job>,
    /// The target's pacing.
    pub pacing: Pacing,
    /// What goes wrong, and when (from the start of the run, warm-up included).
    pub disturbances: Vec<Disturbance>,
}

/// The program on the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initiator {
    /// A userspace initiator: one queue pair a namespace and job.
    Spdk,
    /// The kernel's: one queue pair a host CPU and subsystem.
    Kernel,
}

/// A namespace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Device {
    /// Answers at once and writes nothing to memory.
    Null,
    /// A whole drive.
    Drive {
        /// Which physical drive.
        drive: u32,
        /// Added to every I/O after its data landed.
        delay: Nanos,
    },
    /// One of several parts of a drive, which share its speed.
    Part {
        /// Which physical drive.
        drive: u32,
        /// Added to every I/O after its data landed.
        delay: Nanos,
    },
}

/// One load, run by every host.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Positions in [`Scenario::devices`]; commands go to them at random, evenly.
    pub devices: Vec<usize>,
    /// Commands each of its threads keeps outstanding, over all of its devices, per host.
    pub queue_depth: u32,
    /// Threads of this job a host runs, each with its own depth.
    pub threads: u32,
    /// Sizes in bytes with their shares of the commands (any scale).
    pub blocks: Vec<(u32, f64)>,
    /// Share of reads, 0 to 1.
    pub reads: f64,
    /// Weight of its flows against others.
    pub weight: u16,
    /// Hosts that run it; empty: all.
    pub hosts: Vec<u32>,
    /// Runs from here (from the start of the run).
    pub from: Nanos,
    /// Stops issuing here, if it does.
    pub until: Option<Nanos>,
}

/// The target's pacing.
#[derive(Debug, Clone, PartialEq)]
pub enum Pacing {
    /// Any policy that the daemon has, by the pacing crate's own set-up.
    Policy(nvmeof_pacing::PolicyConfig),
    /// As `none`, on a machine whose cache never runs out: the ceiling that policies are held to.
    EndlessCache,
}

/// Something that goes wrong for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disturbance {
    /// From the start of the run.
    pub at: Nanos,
    /// For so long.
    pub lasts: Nanos,
    /// What.
    pub what: Trouble,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble {
    /// Every port of the network runs at this share of its rate (0: nothing leaves).
    Link(f64),
    /// Every drive completes nothing.
    Drives,
    /// One drive completes nothing.
    Drive(u32),
    /// The target's cores begin nothing: others have the processors.
    Cores,
    /// One of them.
    Core(u32),
}

impl Scenario {
    /// That it can be run.
    ///
    /// # Errors
    /// Says what cannot be, and what can.
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
            if let Trouble::Link(rate) = trouble.what
                && !(0.0..=1.0).contains(&rate)
            {
                return Err(format!("the link cannot run at {rate} of its rate: 0 to 1 can be"));
            }
            if let Trouble::Core(core) = trouble.what
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
