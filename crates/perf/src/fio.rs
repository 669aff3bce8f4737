//! A result in the format of fio 3's `--output-format=json+`, for tools that read it.
//!
//! It has one job, as with `group_reporting`: `read`, `write` and `trim`, each with counts, rates
//! and latencies. Fields of fio that are not measured here are 0: submission latencies (`slat_ns`),
//! queue depths (`iodepth_*`), context switches and page faults. `clat_ns` and `lat_ns` are equal:
//! from submission to completion. All CPU time is in `usr_cpu`, because the time in the kernel is
//! not measured separately.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use crate::report::{RunParameters, RunReport};
use crate::stats::{DirectionCounters, LatencyHistogram};

/// Version of fio whose format this is.
const VERSION: &str = "fio-3.33";
/// Percentiles that fio reports by default.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];
/// Upper ends of the classes of latencies, in nanoseconds, microseconds and milliseconds.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
/// Classes of outstanding I/Os.
const DEPTHS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

/// The report in fio's format.
pub(crate) fn fio_json(report: &RunReport) -> Value {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    json!({
        "fio version": format!("{VERSION} (nvmeof-perf {})", env!("CARGO_PKG_VERSION")),
        "timestamp": now.as_secs(),
        "timestamp_ms": millis(now),
        "time": date(now.as_secs()),
        "global options": options(&report.parameters),
        "jobs": [job(report)],
        "disk_util": [],
    })
}

fn job(report: &RunReport) -> Value {
    let seconds = report.elapsed_s;
    let runtime = millis(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let mut all = DirectionCounters::new();
    report.counters.iter().for_each(|counters| all.add(counters));
    let used = report.counters.iter().filter(|counters| counters.ios() > 0).count();
    let side = |counters: &DirectionCounters| {
        // The series covers all directions together.
        let samples = if used == 1 && counters.ios() > 0 { report.samples() } else { Vec::new() };
        side(counters, seconds, runtime, &report.parameters.percentiles, &samples)
    };
    let [read, write, trim] = report.counters.each_ref().map(side);
    let jobs = f64::from(report.parameters.jobs);
    let share = if seconds > 0.0 { report.cpu_seconds / seconds / jobs * 100.0 } else { 0.0 };
    json!({
        "jobname": "nvmeof-perf",
        "groupid": 0,
        // EIO, which fio reports for a failed I/O.
        "error": if report.is_clean() { 0 } else { 5 },
        "eta": 0,
        "elapsed": runtime.div_ceil(1000),
        "job options": {},
        "read": read,
        "write": write,
        "trim": trim,
        "sync": { "total_ios": 0, "lat_ns": spread(&LatencyHistogram::new()) },
        "job_runtime": runtime * u64::from(report.parameters.jobs),
        "usr_cpu": share,
        "sys_cpu": 0.0,
        "ctx": 0,
        "majf": 0,
        "minf": 0,
        "iodepth_level": zeros(&DEPTHS),
        "iodepth_submit": zeros(&BATCHES),
        "iodepth_complete": zeros(&BATCHES),
        "latency_ns": classes(&all.latency, 0, 1),
        "latency_us": classes(&all.latency, 1000, 1000),
        "latency_ms": classes(&all.latency, 1_000_000, 1_000_000),
        "latency_depth": report.parameters.qd,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
    })
}

/// The parameters under fio's option names.
fn options(parameters: &RunParameters) -> Value {
    let mut options = Map::new();
    let mut put = |key: &str, value: String| options.insert(key.to_owned(), Value::String(value));
    let (kind, percent) = parameters.rw.split_once(':').unwrap_or((&parameters.rw, ""));
    put("ioengine", "nvmeof-perf".to_owned());
    put("direct", "1".to_owned());
    put("rw", kind.to_owned());
    if !percent.is_empty() {
        put("rwmixread", percent.to_owned());
    }
    match &parameters.bssplit {
        Some(split) => put("bssplit", split.clone()),
        None => put("bs", parameters.bs.to_string()),
    };
    put("iodepth", parameters.qd.to_string());
    put("numjobs", parameters.jobs.to_string());
    put("group_reporting", "1".to_owned());
    put(
        "filename",
        parameters.connect.iter().chain(&parameters.device).cloned().collect::<Vec<_>>().join(":"),
    );
    put("ramp_time", format!("{}us", micros(parameters.ramp_s)));
    put("offset", parameters.offset.to_string());
    put("randseed", parameters.seed.to_string());
    put("random_distribution", parameters.random_distribution.clone());
    let given = [
        ("runtime", parameters.time_s.map(|seconds| format!("{}us", micros(seconds)))),
        ("size", parameters.size.map(|size| size.to_string())),
        ("io_size", parameters.io_size.map(|size| size.to_string())),
        ("loops", parameters.loops.map(|loops| loops.to_string())),
        ("thinktime", parameters.thinktime_us.map(|time| time.to_string())),
        ("thinktime_blocks", parameters.thinktime_blocks.map(|ios| ios.to_string())),
        ("refill_buffers", parameters.refill_buffers.then(|| "1".to_owned())),
        (
            "time_based",
            (parameters.io_size.is_none() && parameters.loops.is_none()).then(|| "1".to_owned()),
        ),
    ];
    for (key, value) in given {
        if let Some(value) = value {
            put(key, value);
        }
    }
    Value::Object(options)
}

/// One direction. `samples` are bandwidths in bytes a second and I/Os a second, if known.
fn side(
    counters: &DirectionCounters,
    seconds: f64,
    runtime: u64,
    percentiles: &[f64],
    samples: &[(f64, f64)],
) -> Value {
    let ios = counters.ios();
    let rate = |count: u64| if seconds > 0.0 { real(count) / seconds } else { 0.0 };
    let mut latency = spread(&counters.latency);
    if ios > 0 {
        latency["percentile"] = ranks(&counters.latency, percentiles);
        let bins = counters.latency.counts().map(|(nanos, ios)| (nanos.to_string(), ios.into()));
        latency["bins"] = Value::Object(bins.collect());
    }
    let bandwidth =
        Samples::new(&samples.iter().map(|(bytes, _)| bytes / 1024.0).collect::<Vec<_>>());
    let rates = Samples::new(&samples.iter().map(|(_, ios)| *ios).collect::<Vec<_>>());
    json!({
        "io_bytes": counters.bytes,
        "io_kbytes": counters.bytes / 1024,
        "bw_bytes": whole(rate(counters.bytes)),
        "bw": whole(rate(counters.bytes) / 1024.0),
        "iops": rate(ios),
        "runtime": if ios > 0 { runtime } else { 0 },
        "total_ios": ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": spread(&LatencyHistogram::new()),
        "clat_ns": latency.clone(),
        "lat_ns": latency,
        "bw_min": whole(bandwidth.min),
        "bw_max": whole(bandwidth.max),
        "bw_agg": if ios > 0 { 100.0 } else { 0.0 },
        "bw_mean": bandwidth.mean,
        "bw_dev": bandwidth.deviation,
        "bw_samples": bandwidth.count,
        "iops_min": whole(rates.min),
        "iops_max": whole(rates.max),
        "iops_mean": rates.mean,
        "iops_stddev": rates.deviation,
        "iops_samples": rates.count,
    })
}

/// Minimum, maximum, mean and standard deviation of latencies, in nanoseconds.
fn spread(latency: &LatencyHistogram) -> Value {
    json!({
        "min": latency.min().unwrap_or(0),
        "max": latency.max().unwrap_or(0),
        "mean": latency.mean().unwrap_or(0.0),
        "stddev": latency.deviation().unwrap_or(0.0),
        "N": latency.count(),
    })
}

/// Percentiles in nanoseconds, under the names that fio gives them.
fn ranks(latency: &LatencyHistogram, asked: &[f64]) -> Value {
    let mut all: Vec<f64> = PERCENTILES.iter().chain(asked).copied().collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let rank = |percent: f64| {
        let nanos = latency.quantile(percent / 100.0).unwrap_or(0);
        (format!("{percent:.6}"), Value::from(nanos))
    };
    Value::Object(all.into_iter().map(rank).collect())
}

/// Percent of the I/Os in each class of latencies: up to `unit` times the end of the class,
/// starting at `from`.
fn classes(latency: &LatencyHistogram, from: u64, unit: u64) -> Value {
    let total = real(latency.count().max(1));
    let mut ends: Vec<u64> = CLASSES.iter().map(|end| end * unit).collect();
    let is_last = unit == 1_000_000;
    if is_last {
        ends.push(2000 * unit);
    }
    let mut counts = vec![0_u64; ends.len() + 1];
    for (nanos, ios) in latency.counts().filter(|(nanos, _)| *nanos >= from) {
        counts[ends.partition_point(|end| *end <= nanos)] += ios;
    }
    let share = |ios: u64| Value::from(real(ios) / total * 100.0);
    let mut shares: Map<_, _> = ends
        .iter()
        .zip(&counts)
        .map(|(end, ios)| ((end / unit).to_string(), share(*ios)))
        .collect();
    if let (true, Some(ios)) = (is_last, counts.last()) {
        shares.insert(">=2000".to_owned(), share(*ios));
    }
    Value::Object(shares)
}

fn zeros(names: &[&str]) -> Value {
    Value::Object(names.iter().map(|name| ((*name).to_owned(), Value::from(0.0))).collect())
}

/// Summary of samples; all 0 if there are none.
struct Samples {
    count: usize,
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
}

impl Samples {
    fn new(samples: &[f64]) -> Self {
        let count = samples.len();
        if count == 0 {
            return Self { count, min: 0.0, max: 0.0, mean: 0.0, deviation: 0.0 };
        }
        let number = real(count as u64);
        let mean = samples.iter().sum::<f64>() / number;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (number - 1.0)).sqrt() } else { 0.0 };
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(0.0, f64::max);
        Self { count, min, max, mean, deviation }
    }
}

/// Formats a point in time as `ctime` does, in UTC.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (day, time) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut left) = (1970, day);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    let weekday = DAYS.iter().cycle().nth(usize::try_from(day % 7).unwrap_or(0)).unwrap_or(&"");
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{weekday} {} {:2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month], left + 1)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn micros(seconds: f64) -> u128 {
    Duration::try_from_secs_f64(seconds).unwrap_or_default().as_micros()
}

#[expect(clippy::cast_precision_loss, reason = "a count in a ratio")]
fn real(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate, which fio rounds"
)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of fio 3.33.
    const RECORDED: &str =
        include_str!("../../lab/src/sweep/backend/real/load/recorded/fio-psync.json");

    /// Output of this program, which `cargo xtask sweep` parses in its tests.
    const OURS: &str = include_str!("../../lab/src/sweep/backend/real/load/recorded/perf-fio.json");

    fn recorded() -> Value {
        serde_json::from_str(&RECORDED[RECORDED.find("{\n").unwrap()..]).unwrap()
    }

    /// Collects the keys of a value, nested keys behind dots, without those of options, percentiles
    /// and bins.
    fn keys(value: &Value, before: &str, keys: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    let path = format!("{before}.{key}");
                    keys.push(path.clone());
                    if !matches!(&**key, "global options" | "job options" | "percentile" | "bins") {
                        self::keys(inner, &path, keys);
                    }
                }
            }
            Value::Array(all) => {
                all.iter().take(1).for_each(|inner| self::keys(inner, before, keys));
            }
            _ => {}
        }
    }

    fn sorted_keys(value: &Value) -> Vec<String> {
        let mut all = Vec::new();
        keys(value, "", &mut all);
        // Statistics of the machine's disks do not matter here.
        all.retain(|key| !key.starts_with(".disk_util."));
        all.sort();
        all
    }

    #[test]
    fn every_key_of_fios_is_there() {
        let ours = sorted_keys(&fio_json(&crate::report::fixture()));
        // With these options fio writes percentiles and bins into the total latencies alone.
        for key in sorted_keys(&recorded()) {
            let is_unused = key.starts_with(".jobs.write.");
            assert!(is_unused || ours.contains(&key), "{key} is missing");
        }
        assert_eq!(
            ours,
            sorted_keys(&serde_json::from_str(OURS).unwrap()),
            "record the file again: see docs/perf.md"
        );
    }

    #[test]
    fn figures_are_those_of_the_report() {
        let json = fio_json(&crate::report::fixture());
        let job = &json["jobs"][0];
        let read = &job["read"];
        assert_eq!((&read["total_ios"], &read["io_bytes"]), (&1000.into(), &4_096_000.into()));
        assert_eq!((&read["iops"], &read["runtime"]), (&5000.0.into(), &200.into()));
        assert_eq!((&read["lat_ns"]["min"], &read["lat_ns"]["N"]), (&1000.into(), &1000.into()));
        let median = read["clat_ns"]["percentile"]["50.000000"].as_u64().unwrap();
        assert!(median.abs_diff(500_000) < 2000, "{median}");
        assert!(read["lat_ns"]["percentile"]["99.990000"].is_u64());
        let bins = read["lat_ns"]["bins"].as_object().unwrap();
        assert_eq!(bins.values().map(|ios| ios.as_u64().unwrap()).sum::<u64>(), 1000);
        // 1 to 1000 us, uniformly.
        let deviation = read["lat_ns"]["stddev"].as_f64().unwrap();
        assert!((deviation - 288_675.0).abs() < 1000.0, "{deviation}");
        let share = |of: &str, class: &str| job[of][class].as_f64().unwrap();
        assert!((share("latency_us", "750") - 25.0).abs() < 0.3, "{}", job["latency_us"]);
        assert!((share("latency_ms", "2") - 0.1).abs() < 0.06, "{}", job["latency_ms"]);
        let sum = ["latency_ns", "latency_us", "latency_ms"].map(|of| {
            job[of].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum::<f64>()
        });
        assert!((sum.iter().sum::<f64>() - 100.0).abs() < 1e-6, "{sum:?}");
        assert_eq!(
            (&job["write"]["total_ios"], &job["trim"]["lat_ns"]["max"]),
            (&0.into(), &0.into())
        );
        assert_eq!(job["error"], 5, "the report has errors");
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(1_795_315_747), "Sun Nov 22 02:49:07 2026");
    }
}
