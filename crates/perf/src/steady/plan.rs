//! Plan of a drive test: its tests, their points, their lengths (SNIA PTS, enterprise).

use std::time::Duration;

use nvmeof_report::show_size;
use nvmeof_report::steady::{PlannedSteps, TestKind, Workload};
use serde::{Deserialize, Serialize};

/// Threads that send commands, and the commands outstanding per thread.
pub(crate) const JOBS: u16 = 4;
pub(crate) const IODEPTH: u32 = 32;
/// Length of a point.
pub(crate) const POINT: Duration = Duration::from_secs(60);
/// Maximum rounds until a steady state.
pub(crate) const ROUNDS: usize = 25;
/// Capacities written before the rounds begin, and by write saturation.
const FILLS: f64 = 2.0;
const SATURATION_FILLS: f64 = 4.0;
const SATURATION: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a command that fills the drive.
pub(crate) const FILL_SIZE: u64 = 128 << 10;

/// The same in quick mode.
const QUICK_POINT: Duration = Duration::from_millis(500);
const QUICK_FILLS: f64 = 0.25;
const QUICK_SATURATION: Duration = Duration::from_secs(10);
/// Minimum samples of write saturation in quick mode, if its time ends it.
const QUICK_SAMPLES: u32 = 20;

const IOPS_MIXES: [u8; 7] = [100, 95, 65, 50, 35, 5, 0];
const IOPS_SIZES: [u64; 8] =
    [1 << 20, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8 << 10, 4 << 10, 512];
const THROUGHPUT_MIXES: [u8; 2] = [100, 0];
const THROUGHPUT_SIZES: [u64; 5] = [1 << 20, 64 << 10, 8 << 10, 4 << 10, 512];
const LATENCY_MIXES: [u8; 3] = [100, 65, 0];
const LATENCY_SIZES: [u64; 3] = [8 << 10, 4 << 10, 512];
/// The sizes that have to reach a steady state.
const NEEDED: [u64; 2] = [4 << 10, 1 << 20];

/// Smallest capacity that can be tested: 16 commands of the largest size.
pub(crate) const SMALLEST: u64 = 16 << 20;

/// The requested options.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TestOptions {
    pub(crate) tests: Vec<TestKind>,
    pub(crate) jobs: u16,
    pub(crate) iodepth: u32,
    /// Length of a point; `None`: the default of the mode.
    pub(crate) time: Option<Duration>,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    pub(crate) seed: u64,
}

/// Plan of a drive test for one drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DriveTestPlan {
    pub(crate) tests: Vec<TestKind>,
    pub(crate) jobs: u16,
    pub(crate) iodepth: u32,
    /// Length of a point, in seconds.
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    /// Bytes of the drive, and of a logical block.
    pub(crate) capacity: u64,
    pub(crate) block_size: u32,
    /// Bytes of the largest command that it accepts.
    pub(crate) largest: u64,
    /// Capacities written before the rounds begin.
    pub(crate) fills: f64,
    pub(crate) saturation: SaturationLimits,
}

/// End of write saturation, by the first limit reached, and the length of its samples in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaturationLimits {
    pub(crate) fills: f64,
    pub(crate) seconds: f64,
    pub(crate) sample: f64,
}

/// A drive that cannot be tested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UntestableDrive {
    #[error(
        "the device has {}, which is too small: a drive test needs {} at least",
        show_size(*capacity),
        show_size(SMALLEST)
    )]
    Small { capacity: u64 },
    #[error(
        "the device has blocks of {block} bytes, but what has to be steady is measured with {}: format it with \
         smaller blocks",
        show_size(*needed)
    )]
    Blocks { block: u32, needed: u64 },
    #[error(
        "the target takes {} a command (MDTS), and throughput has to be steady at 1 MiB: raise \
         its max-transfer, or omit that test with --tests iops,latency,saturation",
        show_size(*largest)
    )]
    Transfer { largest: u64 },
}

impl DriveTestPlan {
    /// A plan for a drive of `capacity` bytes in blocks of `block_size`, with commands of at most
    /// `largest` bytes.
    pub(crate) fn new(
        wanted: &TestOptions,
        capacity: u64,
        block_size: u32,
        largest: Option<u64>,
    ) -> Result<Self, UntestableDrive> {
        let largest = largest.unwrap_or(u64::MAX);
        if capacity < SMALLEST {
            return Err(UntestableDrive::Small { capacity });
        }
        let fits = |needed: &&u64| !needed.is_multiple_of(u64::from(block_size.max(1)));
        if let Some(needed) = NEEDED.iter().find(fits) {
            return Err(UntestableDrive::Blocks { block: block_size, needed: *needed });
        }
        if largest < FILL_SIZE
            || wanted.tests.contains(&TestKind::Throughput) && largest < NEEDED[1]
        {
            return Err(UntestableDrive::Transfer { largest });
        }
        let point = wanted.time.unwrap_or(if wanted.quick { QUICK_POINT } else { POINT });
        let saturation = match wanted.quick {
            true => {
                // Short points make a short test.
                let most = QUICK_SATURATION.min(point * QUICK_SAMPLES * 2);
                let sample = point.min(most / QUICK_SAMPLES);
                (SATURATION_FILLS, most, sample)
            }
            false => (SATURATION_FILLS, SATURATION, point),
        };
        Ok(Self {
            tests: TestKind::ALL.into_iter().filter(|test| wanted.tests.contains(test)).collect(),
            jobs: wanted.jobs,
            iodepth: wanted.iodepth,
            seconds: point.as_secs_f64(),
            rounds: wanted.rounds,
            quick: wanted.quick,
            seed: wanted.seed,
            capacity,
            block_size,
            largest,
            fills: if wanted.quick { QUICK_FILLS } else { FILLS },
            saturation: SaturationLimits {
                fills: saturation.0,
                seconds: saturation.1.as_secs_f64(),
                sample: saturation.2.as_secs_f64(),
            },
        })
    }

    /// Workloads of each round of a test, in order.
    pub(crate) fn points(&self, test: TestKind) -> Vec<Workload> {
        let (random, mixes, sizes): (bool, &[u8], &[u64]) = match test {
            TestKind::Iops => (true, &IOPS_MIXES, &IOPS_SIZES),
            TestKind::Throughput => (false, &THROUGHPUT_MIXES, &THROUGHPUT_SIZES),
            TestKind::Latency => (true, &LATENCY_MIXES, &LATENCY_SIZES),
            TestKind::Saturation => (true, &[0], &[4096]),
        };
        // The specification's latency test has one command outstanding.
        let (jobs, iodepth) = match test {
            TestKind::Latency => (1, 1),
            _ => (self.jobs, self.iodepth),
        };
        let of = |read_percent: u8, bs: u64| Workload { random, read_percent, bs, jobs, iodepth };
        let fits = |bs: &&u64| self.fits(**bs);
        let sizes = || sizes.iter().filter(fits);
        match test {
            // Sequential accesses visit the sizes in order, each read and written.
            TestKind::Throughput => {
                sizes().flat_map(|bs| mixes.iter().map(move |mix| of(*mix, *bs))).collect()
            }
            _ => mixes.iter().flat_map(|mix| sizes().map(move |bs| of(*mix, *bs))).collect(),
        }
    }

    /// Length of a point of a test, in seconds.
    pub(crate) fn point_seconds(&self, test: TestKind) -> f64 {
        match test {
            TestKind::Saturation => self.saturation.sample,
            _ => self.seconds,
        }
    }

    /// The steps of a test, for the report.
    pub(crate) fn steps(&self, test: TestKind) -> PlannedSteps {
        PlannedSteps {
            points: self.points(test),
            seconds: self.point_seconds(test),
            saturation: (self.saturation.fills, self.saturation.seconds),
        }
    }

    fn fits(&self, bs: u64) -> bool {
        bs.is_multiple_of(u64::from(self.block_size)) && bs <= self.largest
    }

    /// Workload and bytes that fill the drive before the rounds begin.
    pub(crate) fn fill(&self) -> (Workload, u64) {
        let (random, read_percent) = (false, 0);
        let (jobs, iodepth) = (1, self.iodepth);
        let workload = Workload { random, read_percent, bs: FILL_SIZE, jobs, iodepth };
        (workload, multiple(self.capacity, self.fills).next_multiple_of(FILL_SIZE))
    }

    /// Bytes after which write saturation ends.
    pub(crate) fn saturation_bytes(&self) -> u64 {
        multiple(self.capacity, self.saturation.fills)
    }

    /// Deviations from the specification; quick mode has a separate note.
    pub(crate) fn departures(&self) -> Vec<String> {
        let mut all = Vec::new();
        if !self.quick && (self.seconds - POINT.as_secs_f64()).abs() > 1e-9 {
            all.push(format!("points take {} s, not {} s.", self.seconds, POINT.as_secs()));
        }
        if self.rounds != ROUNDS {
            all.push(format!("a steady state is sought for {} rounds, not {ROUNDS}.", self.rounds));
        }
        let all_sizes = [&IOPS_SIZES[..], &THROUGHPUT_SIZES, &LATENCY_SIZES].concat();
        let mut lost: Vec<u64> = all_sizes;
        lost.retain(|bs| !self.fits(*bs));
        lost.sort_unstable();
        lost.dedup();
        if !lost.is_empty() {
            let lost: Vec<String> = lost.into_iter().map(show_size).collect();
            let (lost, block) = (lost.join(", "), self.block_size);
            all.push(format!(
                "sizes that the device does not take in one command (its blocks have {block} \
                 bytes) are skipped: {lost}."
            ));
        }
        all
    }
}

/// A part or a multiple of a capacity.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes that are rounded up to commands afterwards; a float too large becomes the largest number"
)]
fn multiple(capacity: u64, times: f64) -> u64 {
    (capacity as f64 * times) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> TestOptions {
        TestOptions {
            tests: TestKind::ALL.to_vec(),
            jobs: JOBS,
            iodepth: IODEPTH,
            time: None,
            rounds: ROUNDS,
            quick: false,
            seed: 1,
        }
    }

    #[test]
    fn a_round_has_the_points_of_the_specification() {
        let plan = DriveTestPlan::new(&wanted(), 1 << 30, 512, None).unwrap();
        let counts = TestKind::ALL.map(|test| plan.points(test).len());
        assert_eq!(counts, [7 * 8, 5 * 2, 3 * 3, 1]);
        assert!(
            plan.points(TestKind::Iops).iter().all(|p| p.random && (p.jobs, p.iodepth) == (4, 32))
        );
        assert!(plan.points(TestKind::Throughput).iter().all(|p| !p.random));
        assert!(plan.points(TestKind::Latency).iter().all(|p| (p.jobs, p.iodepth) == (1, 1)));
        assert_eq!(plan.fill().1, 2 << 30);
        assert_eq!(plan.saturation_bytes(), 4 << 30);
        assert!((plan.seconds - 60.0).abs() < 1e-9 && plan.departures().is_empty());
        assert!((plan.saturation.seconds - 86_400.0).abs() < 1e-9);
    }

    #[test]
    fn sizes_below_a_block_are_left_out_and_said_so() {
        let plan = DriveTestPlan::new(&wanted(), 1 << 30, 4096, None).unwrap();
        let counts = TestKind::ALL.map(|test| plan.points(test).len());
        assert_eq!(counts, [7 * 7, 4 * 2, 3 * 2, 1]);
        assert_eq!(plan.departures().len(), 1);
        assert!(plan.departures()[0].contains("512 B"), "{:?}", plan.departures());
    }

    #[test]
    fn what_departs_is_said() {
        let wanted = TestOptions { time: Some(Duration::from_secs(5)), rounds: 10, ..wanted() };
        let plan = DriveTestPlan::new(&wanted, 1 << 30, 512, None).unwrap();
        assert_eq!(plan.departures().len(), 2, "{:?}", plan.departures());
        let quick = TestOptions { quick: true, ..wanted };
        assert_eq!(DriveTestPlan::new(&quick, 1 << 30, 512, None).unwrap().departures().len(), 1);
    }

    #[test]
    fn a_quick_test_is_short() {
        let quick = TestOptions { quick: true, time: Some(Duration::from_millis(50)), ..wanted() };
        let plan = DriveTestPlan::new(&quick, 1 << 30, 512, None).unwrap();
        assert!((plan.seconds - 0.05).abs() < 1e-9);
        assert_eq!(plan.fill().1, 1 << 28);
        assert!(plan.saturation.seconds <= 2.0 + 1e-9);
        assert!(plan.saturation.sample <= 0.05 + 1e-9);
    }

    #[test]
    fn what_cannot_be_tested_is_refused() {
        assert_eq!(
            DriveTestPlan::new(&wanted(), 1 << 20, 512, None),
            Err(UntestableDrive::Small { capacity: 1 << 20 })
        );
        assert!(matches!(
            DriveTestPlan::new(&wanted(), 1 << 30, 8192, None),
            Err(UntestableDrive::Blocks { .. })
        ));
        let small = DriveTestPlan::new(&wanted(), 1 << 30, 512, Some(512 << 10));
        assert_eq!(small, Err(UntestableDrive::Transfer { largest: 512 << 10 }));
        let without = TestOptions { tests: vec![TestKind::Iops], ..wanted() };
        let plan = DriveTestPlan::new(&without, 1 << 30, 512, Some(512 << 10)).unwrap();
        assert_eq!(plan.points(TestKind::Iops).len(), 7 * 7);
        assert!(plan.departures()[0].contains("1 MiB"), "{:?}", plan.departures());
    }

    #[test]
    fn tests_are_run_in_one_order_and_once() {
        let tests = vec![TestKind::Saturation, TestKind::Iops, TestKind::Iops];
        let plan =
            DriveTestPlan::new(&TestOptions { tests, ..wanted() }, 1 << 30, 512, None).unwrap();
        assert_eq!(plan.tests, [TestKind::Iops, TestKind::Saturation]);
    }
}
