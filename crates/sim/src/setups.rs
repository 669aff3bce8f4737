//! Common setups: the loads of the io_pacing tests, and variations.

use nvmeof_pacing::{PolicyConfig, PrototypeConfig, PrototypePool};

use crate::scenario::{
    Delay, Device, Disturbance, DisturbanceKind, Initiator, Job, Nanos, Pacing, Scenario,
};

/// Block size of the io_pacing tests.
pub const BLOCK: u32 = 128 * 1024;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// Returns `number` null devices.
#[must_use]
pub fn null(number: usize) -> Vec<Device> {
    vec![Device::Null; number]
}

/// Returns `number` whole drives.
#[must_use]
pub fn drives(number: u32) -> Vec<Device> {
    (0..number).map(|drive| Device::Drive { drive, delay: Delay::None }).collect()
}

/// Splits every drive in three parts. The first `slow` parts, counted over drives first, have
/// `delay` added. Part `t` of drive `d` is at position `t x drives + d`.
#[must_use]
pub fn split3(drives: u32, slow: u32, delay: Delay) -> Vec<Device> {
    let delay = |at: u32| if at < slow { delay } else { Delay::None };
    let part = |at: u32| Device::Part { drive: at % drives, delay: delay(at) };
    (0..3 * drives).map(part).collect()
}

impl Job {
    /// Random reads of 128 KiB on the devices at these positions.
    #[must_use]
    pub fn reads(devices: impl IntoIterator<Item = usize>, queue_depth: u32) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            queue_depth,
            threads: 1,
            blocks: vec![(BLOCK, 1.0)],
            reads: 1.0,
            weight: 1,
            hosts: Vec::new(),
            from: 0,
            until: None,
        }
    }
}

impl Scenario {
    /// Two userspace hosts that read all `devices`, each at this depth. Four target cores, adaptive
    /// pacing, 50 ms of warm-up and 200 ms measured.
    #[must_use]
    pub fn reads(devices: Vec<Device>, queue_depth: u32) -> Self {
        Self {
            seed: 1,
            warm_up: 50 * MS,
            time: 200 * MS,
            sample: 0,
            hosts: 2,
            initiator: Initiator::Spdk,
            cores: 4,
            jobs: vec![Job::reads(0..devices.len(), queue_depth)],
            devices,
            pacing: Pacing::Policy(PolicyConfig::Adaptive),
            disturbances: Vec::new(),
        }
    }

    /// Linux hosts, each with eight threads of `queue_depth`, and 16 target cores.
    #[must_use]
    pub fn kernel_reads(devices: Vec<Device>, queue_depth: u32) -> Self {
        let mut scenario = Self::reads(devices, queue_depth);
        scenario.initiator = Initiator::Kernel;
        scenario.cores = 16;
        scenario.jobs[0].threads = 8;
        scenario
    }

    /// Sets the pacing policy.
    #[must_use]
    pub fn paced(mut self, policy: PolicyConfig) -> Self {
        self.pacing = Pacing::Policy(policy);
        self
    }

    /// Sets a bound of `buffers` buffers of 128 KiB, by the daemon's `buffer-credit`.
    #[must_use]
    pub fn credit(self, buffers: u32) -> Self {
        self.paced(PolicyConfig::BufferCredit { budget: u64::from(buffers) * u64::from(BLOCK) })
    }

    /// Sets the static pool and per-core cache of io_pacing.
    #[must_use]
    pub fn pooled(self, buffers: u32, cache: u32) -> Self {
        let pool = Some(PrototypePool { buffers, cache });
        self.paced(PolicyConfig::Prototype(PrototypeConfig { pool, pacer: None }))
    }

    /// Sets a machine with an unlimited cache, without pacing.
    #[must_use]
    pub fn endless(mut self) -> Self {
        self.pacing = Pacing::EndlessCache;
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of target cores.
    #[must_use]
    pub fn on_cores(mut self, cores: u32) -> Self {
        self.cores = cores;
        self
    }

    /// Sets the warm-up and the measured time, both in ns.
    #[must_use]
    pub fn lasting(mut self, warm_up: Nanos, time: Nanos) -> Self {
        self.warm_up = warm_up;
        self.time = time;
        self
    }

    /// Adds a disturbance at `at` for `lasts`, both in ns from the start of the run.
    #[must_use]
    pub fn disturbed(mut self, what: DisturbanceKind, at: Nanos, lasts: Nanos) -> Self {
        self.disturbances.push(Disturbance { at, lasts, what });
        self
    }

    /// Sets the block size of every job.
    #[must_use]
    pub fn blocks(mut self, bytes: u32) -> Self {
        for job in &mut self.jobs {
            job.blocks = vec![(bytes, 1.0)];
        }
        self
    }

    /// Sets the fraction of reads (0 to 1) of every job.
    #[must_use]
    pub fn mix(mut self, reads: f64) -> Self {
        for job in &mut self.jobs {
            job.reads = reads;
        }
        self
    }
}
