//! What is run on a platform: hosts, devices, load, pacing and what goes wrong meanwhile.

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
}
