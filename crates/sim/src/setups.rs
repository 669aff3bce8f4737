//! The common set-ups: the loads of the prototype's tests and their variations.

use nvmeof_pacing::{PolicyConfig, PrototypeConfig, PrototypePool};

use crate::scenario::{Device, Disturbance, Initiator, Job, Nanos, Pacing, Scenario, Trouble};

/// The block size of the prototype's tests.
pub const BLOCK: u32 = 128 * 1024;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// `number` null devices.
#[must_use]
pub fn null(number: usize) -> Vec<Device> {
    vec![Device::Null; number]
}

/// `number` whole drives.
#[must_use]
pub fn drives(number: u32) -> Vec<Device> {
    (0..number).map(|drive| Device::Drive { drive, delay: 0 }).collect()
}

/// Every drive split in three; the first `slow` thirds, counted over drives first, have `delay`
/// added. Third `t` of drive `d` stands at `t x drives + d`.
#[must_use]
pub fn split3(drives: u32, slow: u32, delay: Nanos) -> Vec<Device> {
    let part =
        |at: u32| Device::Part { drive: at % drives, delay: if at < slow { delay } else { 0 } };
    (0..3 * drives).map(part).collect()
}

impl Job {
    /// Random reads of 128 KiB on devices at these positions.
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
    /// Two userspace hosts that read all `devices` at this depth each; four target cores; adaptive
    /// pacing; 50 ms of warm-up and 200 ms measured.
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

    /// Kernel hosts, each with eight threads of `queue_depth`, and sixteen target cores.
    #[must_use]
    pub fn kernel_reads(devices: Vec<Device>, queue_depth: u32) -> Self {
        let mut scenario = Self::reads(devices, queue_depth);
        scenario.initiator = Initiator::Kernel;
        scenario.cores = 16;
        scenario.jobs[0].threads = 8;
        scenario
    }

    /// With this pacing.
    #[must_use]
    pub fn paced(mut self, policy: PolicyConfig) -> Self {
        self.pacing = Pacing::Policy(policy);
        self
    }

    /// With a bound of so many 128 KiB buffers, by the daemon's `buffer-credit`.
    #[must_use]
    pub fn credit(self, buffers: u32) -> Self {
        self.paced(PolicyConfig::BufferCredit { budget: u64::from(buffers) * u64::from(BLOCK) })
    }

    /// With the prototype's static pool and per-core cache.
    #[must_use]
    pub fn pooled(self, buffers: u32, cache: u32) -> Self {
        let pool = Some(PrototypePool { buffers, cache });
        self.paced(PolicyConfig::Prototype(PrototypeConfig { pool, pacer: None }))
    }

    /// On a machine whose cache never runs out, without pacing.
    #[must_use]
    pub fn endless(mut self) -> Self {
        self.pacing = Pacing::EndlessCache;
        self
    }

    /// With this seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// With so many target cores.
    #[must_use]
    pub fn on_cores(mut self, cores: u32) -> Self {
        self.cores = cores;
        self
    }

    /// Measured for `time` after `warm_up`, both in ns.
    #[must_use]
    pub fn lasting(mut self, warm_up: Nanos, time: Nanos) -> Self {
        self.warm_up = warm_up;
        self.time = time;
        self
    }

    /// With something going wrong from `at` for so long, both in ns from the start of the run.
    #[must_use]
    pub fn disturbed(mut self, what: Trouble, at: Nanos, lasts: Nanos) -> Self {
        self.disturbances.push(Disturbance { at, lasts, what });
        self
    }

    /// With this block size in every job.
    #[must_use]
    pub fn blocks(mut self, bytes: u32) -> Self {
        for job in &mut self.jobs {
            job.blocks = vec![(bytes, 1.0)];
        }
        self
    }

    /// With this share of reads (0 to 1) in every job.
    #[must_use]
    pub fn mix(mut self, reads: f64) -> Self {
        for job in &mut self.jobs {
            job.reads = reads;
        }
        self
    }
}
