//! Drives in memory, for tests of the procedure.

use nvmeof_report::steady::{DriveTestSetup, Measurement, Preparation, ResponseTimes, TestKind};

use super::drive_under_test::{DriveTestError, DriveTestPoint, DriveUnderTest, PointEnd};
use super::plan::{DriveTestPlan, TestOptions};

/// Commands a second of 4 KiB random writes in steady state.
const RATE: f64 = 10_000.0;

/// A drive whose rates depend on the bytes written since the last purge.
#[derive(Debug)]
pub(crate) struct FakeDrive {
    /// Points of the dependent variable so far.
    seen: usize,
    /// Rounds after which rates no longer fall; `None`: never.
    settles: Option<usize>,
    /// Points after which it disappears.
    dies_after: usize,
    /// Points run.
    pub(crate) points: usize,
    pub(crate) purges: usize,
    /// Bytes written since the last purge.
    pub(crate) written: u64,
}

impl FakeDrive {
    /// A drive whose rates fall for `rounds` rounds of each test.
    pub(crate) fn steady_after(rounds: usize) -> Self {
        let settles = Some(rounds);
        Self { seen: 0, settles, dies_after: usize::MAX, points: 0, purges: 0, written: 0 }
    }

    /// A drive whose rates rise and fall forever.
    pub(crate) fn never_steady() -> Self {
        Self { settles: None, ..Self::steady_after(0) }
    }

    /// A drive that is pulled out after `points` points.
    pub(crate) fn dies_after(points: usize) -> Self {
        Self { dies_after: points, ..Self::steady_after(0) }
    }

    /// Rate of a round, relative to the steady rate.
    fn share(&self, round: usize) -> f64 {
        let round_f = f64::from(u32::try_from(round).unwrap_or(u32::MAX));
        match self.settles {
            Some(settles) if round >= settles => 1.0,
            Some(_) => 4.0 - 0.3 * round_f,
            None if round.is_multiple_of(2) => 1.5,
            None => 0.5,
        }
    }
}

impl DriveUnderTest for FakeDrive {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a made-up rate")]
    fn measure(&mut self, point: &DriveTestPoint) -> Result<Measurement, DriveTestError> {
        if self.points >= self.dies_after {
            return Err(DriveTestError::Device("it was taken away".into()));
        }
        self.points += 1;
        let of = point.workload;
        let is_variable = of.read_percent == 0 && (of.bs == if of.random { 4096 } else { 1 << 20 });
        let rate = RATE * self.share(self.seen);
        if is_variable {
            self.seen += 1;
        }
        let ios = match point.until {
            PointEnd::Time(time) => (rate * time.as_secs_f64()) as u64,
            PointEnd::Bytes(bytes) => bytes / of.bs,
        };
        if of.read_percent < 100 {
            self.written += ios * of.bs;
        }
        let mean = 1e6 / rate;
        Ok(Measurement {
            workload: of,
            seconds: ios as f64 / rate,
            ios,
            bytes: ios * of.bs,
            times: ResponseTimes { min: mean, mean, p50: mean, p99: mean, p99_9: mean, max: mean },
            histogram: vec![(mean, ios)],
        })
    }

    fn purge(&mut self) -> Result<Preparation, DriveTestError> {
        self.purges += 1;
        (self.seen, self.written) = (0, 0);
        Ok(Preparation { done: true, how: "forgotten".into(), ..Preparation::default() })
    }
}

/// A plan of all four tests for a drive of 64 MiB.
pub(crate) fn plan() -> DriveTestPlan {
    let wanted = TestOptions {
        tests: TestKind::ALL.to_vec(),
        jobs: 4,
        iodepth: 32,
        time: Some(std::time::Duration::from_secs(1)),
        rounds: 25,
        quick: false,
        seed: 1,
    };
    DriveTestPlan::new(&wanted, 64 << 20, 512, None).unwrap()
}

pub(crate) fn setup() -> DriveTestSetup {
    DriveTestSetup { device: "made up".into(), capacity: 64 << 20, ..DriveTestSetup::default() }
}
