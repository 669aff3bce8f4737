//! A device or a namespace under test: implements [`DriveUnderTest`] on an open [`Target`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use nvmeof_report::steady::{Measurement, Preparation, ResponseTimes};

use super::drive_under_test::{DriveTestError, DriveTestPoint, DriveUnderTest, PointEnd};
use super::purge;
use crate::args::TargetArgs;
use crate::blank_check;
use crate::load::{LoadResult, LoadSpec};
use crate::patience::{Patience, Refusal};
use crate::plan::usage_error;
use crate::stats::{DirectionCounters, LatencyHistogram};
use crate::target::{Target, TargetNeeds, TargetSpace};
use crate::units::IoMix;

/// A point of this length has at least one I/O, unless the device is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of a point that is bounded by bytes alone.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// Subdivisions per doubling of the response time in the results.
const PARTS: f64 = 8.0;

/// A device that may be overwritten.
#[derive(Debug)]
pub(crate) struct OverwritableDevice {
    /// Its arguments, with `--destroy-data` for the checked device.
    args: TargetArgs,
    needs: TargetNeeds,
    /// Closed while the drive is purged.
    target: Option<Target>,
    space: TargetSpace,
    /// Bytes under test.
    size: u64,
    stop: Arc<AtomicBool>,
}

impl OverwritableDevice {
    /// Opens the device of the arguments, if it may be overwritten: `--destroy-data` names it, or
    /// it is empty.
    ///
    /// The test covers the first `size` bytes, or all.
    ///
    /// # Errors
    /// [`UsageError`](crate::plan::UsageError) if the arguments do not fit; otherwise the failure
    /// and its place.
    pub(crate) fn open(
        args: &TargetArgs,
        (jobs, depth): (u16, u32),
        size: Option<u64>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let named = args.connect.len() + args.device.len();
        usage_error!(
            named != 1 && args.stripe.is_none(),
            "a drive test takes one device or namespace (or several as a --stripe): {named} are named"
        );
        let needs = TargetNeeds { jobs, depth, shared: false, writes: true };
        let mut target = Target::open(args, &needs)?;
        let space = match only(&target).and_then(|space| may_overwrite(&mut target, space, args)) {
            Ok(space) => space,
            Err(error) => {
                target.close();
                return Err(error);
            }
        };
        // A device that was checked once is not checked again after a purge.
        let destroy_data = names(args);
        let args = TargetArgs { destroy_data, ..args.clone() };
        let size = size.map_or(space.size, |size| size.min(space.size));
        Ok(Self { args, needs, target: Some(target), space, size, stop: Arc::clone(stop) })
    }

    /// The space under test.
    pub(crate) fn space(&self) -> &TargetSpace {
        &self.space
    }

    /// Bytes under test.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Shuts connections down.
    pub(crate) fn close(self) {
        if let Some(target) = self.target {
            target.close();
        }
    }

    /// Closes the device, purges it and opens it again; a failed purge leaves it closed.
    fn purge_by(
        &mut self,
        patience: Patience,
        purge: impl FnOnce() -> Result<Preparation, DriveTestError>,
    ) -> Result<Preparation, DriveTestError> {
        // A drive must have no open queues during a format.
        if let Some(target) = self.target.take() {
            target.close();
        }
        let done = purge()?;
        // udev opens a device that has changed.
        let open = || Target::open(&self.args, &self.needs);
        let target = patience.retry(|| {
            open().map_err(|error| Refusal::Transient(format!("after the purge: {error:#}")))
        });
        self.target = Some(target.map_err(DriveTestError::Device)?);
        Ok(done)
    }

    fn run(&mut self, spec: &LoadSpec) -> Result<LoadResult, DriveTestError> {
        let Some(target) = &mut self.target else {
            return Err(DriveTestError::Device("the device is not open".into()));
        };
        if self.stop.load(Ordering::Relaxed) {
            return Err(DriveTestError::Interrupted);
        }
        let measured = target
            .run(spec, &self.stop)
            .map_err(|error| DriveTestError::Device(format!("{error:#}")))?;
        let errors = measured.errors();
        if errors > 0 {
            let first = measured.messages.first().cloned().unwrap_or_default();
            let what = format!("{errors} I/Os or queues failed, the first: {first}");
            return Err(DriveTestError::Device(what));
        }
        if measured.interrupted {
            return Err(DriveTestError::Interrupted);
        }
        Ok(measured)
    }
}

impl DriveUnderTest for OverwritableDevice {
    fn measure(&mut self, point: &DriveTestPoint) -> Result<Measurement, DriveTestError> {
        let of = point.workload;
        let Ok(bs) = u32::try_from(of.bs) else {
            return Err(DriveTestError::Device(format!("no command carries {} bytes", of.bs)));
        };
        let mix = IoMix::reads(of.random, of.read_percent);
        let (time, io_size) = match point.until {
            PointEnd::Time(time) => (time, None),
            PointEnd::Bytes(bytes) => (LONGEST, Some(bytes)),
        };
        let mut spec = LoadSpec {
            qd: of.iodepth,
            jobs: of.jobs,
            time,
            io_size,
            size: Some(self.size),
            seed: point.seed,
            refill: true,
            ..LoadSpec::new(mix, bs)
        };
        let (measured, both) = loop {
            let measured = self.run(&spec)?;
            let mut both = measured.read();
            both.add(&measured.write());
            if both.ios() > 0 {
                break (measured, both);
            }
            // A short point of a slow drive: figures over no I/O are meaningless.
            if spec.time >= PATIENCE {
                let what = format!("no I/O completed in {:?}", spec.time);
                return Err(DriveTestError::Device(what));
            }
            spec.time *= 2;
        };
        Ok(Measurement {
            workload: of,
            seconds: measured.seconds(),
            ios: both.ios(),
            bytes: both.bytes,
            times: times(&both),
            histogram: coarse(&both.latency),
        })
    }

    fn purge(&mut self) -> Result<Preparation, DriveTestError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(DriveTestError::Interrupted);
        }
        let method = match purge::method(&self.args, self.space.nsid, &self.space.identity.serial) {
            Ok(method) => method,
            Err(why) => return Ok(Preparation { how: why, ..Preparation::default() }),
        };
        self.purge_by(Patience::FOR_UDEV, || method.purge())
    }
}

/// The named targets, in the spelling of the command line.
fn names(args: &TargetArgs) -> Vec<String> {
    let fabrics = args.connect.iter().map(ToString::to_string);
    fabrics.chain(args.device.iter().map(ToString::to_string)).collect()
}

/// The one space of a target.
fn only(target: &Target) -> Result<TargetSpace> {
    let spaces = target.spaces();
    usage_error!(
        spaces.len() != 1,
        "a drive test takes one namespace: there are {}; choose one with --nsid",
        spaces.len()
    );
    Ok(spaces[0].clone())
}

/// Returns the space, unless it is read-only, or holds data that no `--destroy-data` names.
///
/// Opening has already checked devices of this machine.
fn may_overwrite(
    target: &mut Target,
    space: TargetSpace,
    args: &TargetArgs,
) -> Result<TargetSpace> {
    usage_error!(space.read_only, "{space} is read-only, and a drive test writes");
    let name = &space.connect;
    if space.subnqn.is_some() && !args.destroys(name) {
        let found = blank_check::first_data(target, &space)?;
        usage_error!(
            found.is_some(),
            "{space} is not empty: there is data near byte {}, and a drive test overwrites everything; if that is meant, \
             say --destroy-data {name}",
            found.unwrap_or_default()
        );
    }
    Ok(space)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds with a fraction")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn times(counters: &DirectionCounters) -> ResponseTimes {
    let latency = &counters.latency;
    let quantile = |share| latency.quantile(share).map_or(0.0, micros);
    ResponseTimes {
        min: latency.min().map_or(0.0, micros),
        mean: latency.mean().map_or(0.0, |nanos| nanos / 1e3),
        p50: quantile(0.5),
        p99: quantile(0.99),
        p99_9: quantile(0.999),
        max: latency.max().map_or(0.0, micros),
    }
}

/// Response times in subdivisions of doublings: the center of each, in microseconds.
fn coarse(latency: &LatencyHistogram) -> Vec<(f64, u64)> {
    let mut parts: Vec<(f64, u64)> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for (nanos, count) in latency.counts() {
        let part = (micros(nanos.max(1)).log2() * PARTS).floor();
        match parts.last_mut() {
            Some((_, sum)) if (part - last).abs() < 0.5 => *sum += count,
            _ => parts.push((((part + 0.5) / PARTS).exp2(), count)),
        }
        last = part;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;

    fn args(text: &str) -> TargetArgs {
        let cli =
            Cli::try_parse_from(format!("nvmeof-perf steady {text}").split_whitespace()).unwrap();
        let Command::Steady(args) = cli.command else { panic!("not steady") };
        args.target
    }

    fn open(text: &str) -> Result<OverwritableDevice> {
        OverwritableDevice::open(&args(text), (2, 4), None, &Arc::new(AtomicBool::new(false)))
    }

    fn file(name: &str, bytes: &[u8]) -> String {
        let folder = std::env::temp_dir().join(format!("steady-device-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    #[test]
    fn what_is_not_empty_is_left_alone_unless_named() {
        let mut data = vec![0; 20 << 20];
        let path = file("data", &data);
        open(&format!("--device {path}")).unwrap().close();
        data[(20 << 20) - 5000] = 1;
        let path = file("data", &data);
        let error = open(&format!("--device {path}")).unwrap_err();
        assert!(error.is::<crate::plan::UsageError>());
        assert!(error.to_string().contains(&format!("--destroy-data {path}")), "{error}");
        assert!(std::fs::read(&path).unwrap() == data, "nothing was written");
        open(&format!("--device {path} --destroy-data {path}")).unwrap().close();
        let error = open(&format!("--device {path} --destroy-data /dev/other")).unwrap_err();
        assert!(error.to_string().contains("is not a tested device"), "{error}");
    }

    #[test]
    fn a_test_is_of_one_device() {
        assert!(
            open("--device ram:16m --device ram:16m")
                .unwrap_err()
                .to_string()
                .contains("2 are named")
        );
        open("--device ram:16m --device ram:16m --stripe 64k").unwrap().close();
        let error = open("--device /nobody/has/this").unwrap_err();
        assert!(format!("{error:#}").contains("/nobody/has/this"), "{error:#}");
    }

    #[test]
    fn a_failed_purge_is_reported_before_a_device_that_does_not_open() {
        let mut device = open("--device ram:16m").unwrap();
        device.args = args("--device /nobody/has/this");
        let failed = DriveTestError::Device("the erase was aborted".into());
        let purged = device.purge_by(Patience::NONE, || Err(failed.clone()));
        assert_eq!(purged, Err(failed));
        let error = device.purge_by(Patience::NONE, || Ok(Preparation::default())).unwrap_err();
        assert!(error.to_string().contains("after the purge: --device /nobody"), "{error}");
        device.args = args("--device ram:16m");
        device.purge_by(Patience::NONE, || Ok(Preparation::default())).unwrap();
        device.close();
    }

    #[test]
    fn a_point_moves_what_it_was_asked_to() {
        let mut device = open("--device ram:16m").unwrap();
        let workload = nvmeof_report::steady::Workload {
            random: false,
            read_percent: 0,
            bs: 128 << 10,
            jobs: 2,
            iodepth: 4,
        };
        let point = DriveTestPoint { workload, until: PointEnd::Bytes(8 << 20), seed: 3 };
        let measurement = device.measure(&point).unwrap();
        assert!(
            measurement.bytes >= 8 << 20 && measurement.bytes < 12 << 20,
            "{}",
            measurement.bytes
        );
        assert_eq!(measurement.histogram.iter().map(|bar| bar.1).sum::<u64>(), measurement.ios);
        assert!(
            measurement.times.min <= measurement.times.mean
                && measurement.times.mean <= measurement.times.max
        );
        let purge = device.purge().unwrap();
        assert!(!purge.done && !purge.how.is_empty());
        device.stop.store(true, Ordering::Relaxed);
        assert_eq!(device.measure(&point), Err(DriveTestError::Interrupted));
        device.close();
    }
}
