//! Plots of points. Every title names the source of its figures.

use nvmeof_report::plot::SeriesShape;
use nvmeof_report::{Axis, Plot, Point, Sample, Series};

use super::data::PlotData;
use super::gather::PLATFORMS;
use super::measured;
use crate::rows::ResultRow;

/// A plot and its file name below the folder.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) file: String,
    pub(super) plot: Plot,
}

const MIB: f64 = 1_048_576.0;
/// Bytes of a command in every plan shown here.
const BLOCK: f64 = 131_072.0;
/// Queue depth of each job in the plots of slow devices.
pub(super) const SLOW_DEPTH: u32 = 341;

/// The host program in userspace, as points name it.
pub(super) const USERSPACE: &str = "fio+SPDK";
pub(super) const KERNEL: &str = "fio+kernel 8 jobs";

const LOAD: &str = "128 KiB random reads, 16 drives, two hosts, 4 target cores";
const KERNEL_LOAD: &str =
    "128 KiB random reads, 16 drives, two kernel hosts of 8 jobs, 16 target cores";

/// Every plot, in the order of the page.
pub(super) fn all(data: &PlotData) -> Vec<Figure> {
    let mut figures = Vec::new();
    for platform in PLATFORMS {
        let small = platform.to_lowercase();
        let mut add = |name: &str, plot| {
            figures.push(Figure { file: format!("{name}-{small}.svg"), plot });
        };
        add(
            "io-pacing-bandwidth",
            published(data, platform, "Bandwidth", BANDWIDTH, |r| r.bw_gbps),
        );
        add("io-pacing-hits", published(data, platform, "Cache hits", HITS, |r| r.l3_hit_pct));
        add("depth-bandwidth", depth(data, platform, USERSPACE, BANDWIDTH, |p| Some(p.total.gbps)));
        add("depth-hits", depth(data, platform, USERSPACE, HITS, |p| p.hit_pct));
        add("kernel-bandwidth", depth(data, platform, KERNEL, BANDWIDTH, |p| Some(p.total.gbps)));
        add("slow", slow(data, platform));
        add("stall", stall(data, platform));
        add("budget", budget(data, platform));
    }
    figures.push(Figure { file: "rate-b.svg".to_owned(), plot: rate(data, "B") });
    figures.extend(measured::figures(&data.measured));
    figures.extend(data.activity.iter().flat_map(measured::over_time));
    figures
}

/// Y axis: label and unit.
type AxisLabel = (&'static str, &'static str);

const BANDWIDTH: AxisLabel = ("bandwidth", "Gb/s");
const HITS: AxisLabel = ("reads of the NIC that hit the cache", "%");

pub(super) fn upwards((title, unit): AxisLabel) -> Axis {
    Axis::new(title, unit).from_zero()
}

pub(super) fn depths() -> Axis {
    Axis::new("queue depth per host", "").log2()
}

/// Simulated points of one plan, policy and platform.
pub(super) fn of<'a>(
    data: &'a PlotData,
    platform: &'a str,
    plan: &'a str,
    policy: &'a str,
) -> impl Iterator<Item = &'a Point> {
    data.simulated.iter().filter(move |point| {
        point.platform == platform && point.plan == plan && point.policy == policy
    })
}

/// The lines of a plot over depth: name, plan, policy.
pub(super) const LINES: [(&str, &str, &str); 3] = [
    ("no pacing", "test-03", "none"),
    ("96 buffers", "test-05", "prototype"),
    ("adaptive", "adaptive-03", "adaptive"),
];

fn depth(
    data: &PlotData,
    platform: &str,
    initiator: &str,
    scale: AxisLabel,
    y: fn(&Point) -> Option<f64>,
) -> Plot {
    let line = |(name, plan, policy): (&str, &str, &str)| {
        let points = of(data, platform, plan, policy).filter(|p| p.setting.initiator == initiator);
        let points = points.filter_map(|p| Some((f64::from(p.setting.qd), y(p)?)));
        Series::new(&simulated(name), points.collect())
    };
    let is_kernel = initiator == KERNEL;
    let (hosts, note) = if is_kernel { (", kernel hosts", KERNEL_LOAD) } else { ("", LOAD) };
    let what = if scale == HITS { "Cache hits" } else { "Bandwidth" };
    Plot {
        title: format!("{what} over queue depth{hosts}, simulated on platform {platform}"),
        note: format!("simulated; {note}"),
        x: if is_kernel { Axis::new("queue depth per job", "").log2() } else { depths() },
        y: upwards(scale),
        series: LINES.map(line).to_vec(),
    }
}

fn published(
    data: &PlotData,
    platform: &str,
    what: &str,
    scale: AxisLabel,
    y: fn(&ResultRow) -> Option<f64>,
) -> Plot {
    let line = |(name, test): (&str, &str)| {
        let rows = data.published.iter().filter(|row| {
            row.platform == platform && row.test == test && row.initiator == USERSPACE
        });
        let points = rows.filter_map(|row| Some((f64::from(row.qd), y(row)?)));
        Series::new(&format!("measured: {name}"), points.collect())
    };
    Plot {
        title: format!("{what} over queue depth, measured on platform {platform} with io_pacing"),
        note: format!("measured with the Mellanox SPDK io_pacing prototype; {LOAD}"),
        x: depths(),
        y: upwards(scale),
        series: [("no pacing", "3"), ("96 buffers", "5")].map(line).to_vec(),
    }
}

/// The bars of a comparison with slow devices: name, plan, policy, buffers.
pub(super) const POOLS: [(&str, &str, &str, Option<u64>); 3] = [
    ("48 buffers", "test-11", "prototype", Some(48)),
    ("96 buffers", "test-11", "prototype", Some(96)),
    ("adaptive", "adaptive-11", "adaptive", None),
];

/// Numbers of slow devices that the plots show.
pub(super) const SLOW: [u32; 3] = [0, 16, 32];

fn slow(data: &PlotData, platform: &str) -> Plot {
    let line = |(name, plan, policy, buffers): (&str, &str, &str, Option<u64>)| {
        let points = of(data, platform, plan, policy);
        let points = points.filter(|point| point.setting.num_buffers == buffers);
        let place = |point: &Point| {
            let slow = point.setting.num_delay.unwrap_or(0);
            let at = SLOW.iter().position(|number| *number == slow)?;
            Some((f64::from(u32::try_from(at).ok()?), point.total.gbps))
        };
        Series::new(&simulated(name), points.filter_map(place).collect())
    };
    let names = SLOW.map(|number| number.to_string()).to_vec();
    Plot {
        title: format!("Slow devices alongside fast ones, simulated on platform {platform}"),
        note: format!(
            "simulated; 16 drives in three parts each, queue depth {SLOW_DEPTH} a third and host"
        ),
        x: Axis { names, ..Axis::new("parts of 48 that answer 1 ms later", "") },
        y: upwards(("bandwidth of all", "Gb/s")),
        series: POOLS.map(line).to_vec(),
    }
}

fn rate(data: &PlotData, platform: &str) -> Plot {
    let mut periods: Vec<u64> = of(data, platform, "test-14", "prototype")
        .filter_map(|point| point.setting.period_ns)
        .collect();
    periods.sort_unstable();
    periods.dedup();
    let line = |period: u64| {
        let points = of(data, platform, "test-14", "prototype");
        let points = points.filter(|point| point.setting.period_ns == Some(period));
        let points = points.map(|point| (f64::from(point.setting.qd), point.total.gbps));
        Series::new(&simulated(&format!("an I/O every {period} ns")), points.collect())
    };
    Plot {
        title: format!("A fixed rate over queue depth, simulated on platform {platform}"),
        note: format!("simulated; {LOAD}"),
        x: depths(),
        y: upwards(BANDWIDTH),
        series: periods.into_iter().map(line).collect(),
    }
}

/// Returns the name of a simulated line.
fn simulated(name: &str) -> String {
    format!("simulated: {name}")
}

fn over_time(name: &str, point: &Point, y: impl Fn(&Sample) -> Option<f64>) -> Series {
    let points = point.series.iter().filter_map(|sample| Some((sample.t, y(sample)?)));
    Series { name: simulated(name), points: points.collect(), shape: SeriesShape::Line }
}

fn stall(data: &PlotData, platform: &str) -> Plot {
    let line = |(name, policy): (&str, &str)| {
        let points = of(data, platform, "adaptive-stall", policy);
        points.map(|point| over_time(name, point, |s| Some(s.gbps))).next()
    };
    Plot {
        title: format!("The link stands still for 2 ms, simulated on platform {platform}"),
        note: format!("simulated; {LOAD}, queue depth 256, at 1 s; mean of each 10 ms"),
        x: Axis::new("time", "s"),
        y: upwards(BANDWIDTH),
        series: [("no pacing", "none"), ("adaptive", "adaptive")]
            .into_iter()
            .filter_map(line)
            .collect(),
    }
}

/// Plots the budget and the bytes in flight over time, in the same run as `stall`.
fn budget(data: &PlotData, platform: &str) -> Plot {
    let run = of(data, platform, "adaptive-stall", "adaptive").next();
    let exact = |value: u64| f64::from(u32::try_from(value).unwrap_or(u32::MAX));
    let series = run.map(|point| {
        let held = |s: &Sample| Some(exact(s.buffers?) * BLOCK / MIB);
        vec![
            over_time("budget", point, |s| Some(exact(s.budget_bytes?) / MIB)),
            over_time("in flight", point, held),
        ]
    });
    Plot {
        title: format!("What adaptive allows over time, simulated on platform {platform}"),
        note: format!("simulated; the same run: {LOAD}, queue depth 256, link still at 1 s"),
        x: Axis::new("time", "s"),
        y: upwards(("data in flight", "MiB")),
        series: series.unwrap_or_default(),
    }
}
