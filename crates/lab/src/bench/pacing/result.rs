//! Builds a [`Point`] from the output of the load generator and the daemon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvmeof_report::{Figures, Flow, Latency, Point, PointConfig, RunOrigin, VariedKey, jain};
use serde_json::Value;

use super::activity::StatsSample;
use super::link::LinkRate;
use super::plan::{BenchPolicy, MeasuredStep, NSIDS, SEED};
use crate::averages::mean;

/// Keys of [`Point::varied`].
pub(super) const DEVICE: &str = "device";
pub(super) const POLICY: &str = "policy";
pub(super) const DEPTH: &str = "depth";
pub(super) const MIX: &str = "mix";
/// [`Point::test`] of mixes.
pub(super) const MIXES_TEST: &str = "pacing-mixes";

/// Maximum CPUs of the load generator: it has one, and its clocks are read one after the other.
const MOST_CPUS: f64 = 1.1;

/// Load of a turn, and its names in results.
#[derive(Debug, Clone)]
pub(super) struct TurnLabels {
    pub(super) test: &'static str,
    pub(super) varied: Vec<VariedKey>,
    pub(super) policy: BenchPolicy,
    pub(super) setting: PointConfig,
    /// Namespaces under load.
    pub(super) nsids: Vec<u32>,
}

impl TurnLabels {
    pub(super) fn of(step: MeasuredStep, jobs: u32) -> Self {
        let MeasuredStep { policy, device, depth } = step;
        let varied = [
            (DEVICE, device.to_string()),
            (POLICY, policy.to_string()),
            (DEPTH, depth.to_string()),
        ];
        Self {
            test: "pacing",
            varied: varied.map(|(key, value)| VariedKey { key: key.to_owned(), value }).to_vec(),
            policy,
            setting: PointConfig {
                devices: device.to_string(),
                initiator: "nvmeof-perf".to_owned(),
                hosts: 1,
                jobs,
                cores: Some(1),
                num_buffers: policy.buffers(),
                num_delay: Some(device.slow()),
                qd: step.qd(jobs).unwrap_or_default(),
                offered: depth.into(),
                ..PointConfig::default()
            },
            nsids: NSIDS.into_iter().filter(|&nsid| step.reads(nsid)).collect(),
        }
    }
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub(super) struct TurnContext<'a> {
    pub(super) labels: TurnLabels,
    /// Number of the repetition, from 1.
    pub(super) repetition: u32,
    /// Processor and kernel.
    pub(super) machine: &'a str,
    pub(super) link: LinkRate,
    /// Additional settling time of adaptive.
    pub(super) adaptive_settle: Duration,
    /// Hash that changes with the daemon, its config or the load.
    pub(super) fingerprint: &'a str,
}

/// Describes the conditions that results must share to be shown together.
fn circumstances(run: &TurnContext<'_>) -> Option<String> {
    let link = (run.link != LinkRate::Unbound).then(|| format!("over a link of {}", run.link));
    let settle = (!run.adaptive_settle.is_zero())
        .then(|| format!("adaptive settled {:?} more than others", run.adaptive_settle));
    let both: Vec<_> = [link, settle].into_iter().flatten().collect();
    (!both.is_empty()).then(|| both.join(", "))
}

/// Builds a point from the load generator's report of a turn and the daemon's statistics of that
/// time.
pub(super) fn point(
    run: &TurnContext<'_>,
    result: &Value,
    moments: &[StatsSample],
) -> Result<Point> {
    let errors = number(result, "/errors")?;
    ensure!(errors == 0.0, "{errors} I/Os failed");
    let (cpu, elapsed) = (number(result, "/cpu_seconds")?, number(result, "/elapsed_s")?);
    ensure!(
        cpu <= MOST_CPUS * elapsed,
        "jobs that share one CPU used {cpu:.2} s of it in {elapsed:.2} s: they ran one after the \
         other, and their rates do not add up"
    );
    let mut flows = flows(result)?;
    flows.retain(|flow| run.labels.nsids.contains(&(flow.device + 1)));
    let rates: Vec<f64> = flows.iter().map(|flow| flow.gbps).collect();
    let mean = |of: fn(&StatsSample) -> Option<f64>| mean(moments.iter().filter_map(of));
    let TurnLabels { test, varied, policy, setting, .. } = run.labels.clone();
    Ok(Point {
        plan: "bench-pacing".to_owned(),
        test: test.to_owned(),
        varied,
        repetition: run.repetition,
        place: RunOrigin::Local,
        platform: run.machine.to_owned(),
        policy: policy.to_string(),
        machines: circumstances(run),
        fingerprint: run.fingerprint.to_owned(),
        seed: SEED,
        measured_s: elapsed,
        setting,
        conditions: Vec::new(),
        measured: Vec::new(),
        total: figures(result)?,
        hosts: Vec::new(),
        jobs: Vec::new(),
        sizes: Vec::new(),
        fairness: jain(&rates),
        flows,
        wire_gbps: None,
        stddev_gbps: None,
        hit_pct: None,
        hit_from: None,
        buffers_mean: mean(|moment| Some(moment.in_flight)),
        buffers_max: None,
        in_flight_mib: mean(|moment| Some(moment.in_flight_mib)),
        budget_bytes: mean(|moment| moment.budget_mib.map(|mib| mib * 1_048_576.0)),
        period_us: None,
        period_seen_us: None,
        starved_queues: None,
        target_cpus: None,
        host_cpus: None,
        network: None,
        series: Vec::new(),
        problems: Vec::new(),
    })
}

fn figures(of: &Value) -> Result<Figures> {
    let kiops = number(of, "/iops")? / 1e3;
    // Without a completed command there is no latency: so it can be at one of several hosts.
    let latency = |key: &str| match kiops {
        0.0 => Ok(0.0),
        _ => number(of, &format!("/latency_us/{key}")),
    };
    Ok(Figures {
        kiops,
        gbps: number(of, "/bandwidth_gbps")?,
        latency_us: Latency {
            mean: latency("mean")?,
            p50: latency("p50")?,
            p99: latency("p99")?,
            p99_9: latency("p99_9")?,
            max: latency("max")?,
        },
        at_target_us: None,
    })
}

/// Refuses a point without a completed command.
pub(super) fn with_work(point: Point) -> Result<Point> {
    ensure!(point.total.kiops > 0.0, "no I/O was done: the time is too short; raise --time");
    Ok(point)
}

/// Returns the flows by namespace.
fn flows(result: &Value) -> Result<Vec<Flow>> {
    let flows = result["flows"].as_array().context("nvmeof-perf reports no flows")?;
    let mut flows: Vec<Flow> = flows
        .iter()
        .map(|flow| {
            let nsid = flow["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok());
            Ok(Flow {
                host: 0,
                job: 0,
                device: nsid.context("a flow has no namespace")?.saturating_sub(1),
                weight: 1,
                gbps: number(flow, "/bandwidth_gbps")?,
                // No command completed, so there is no latency.
                mean_us: number(flow, "/latency_us/mean").unwrap_or_default(),
                p99_us: number(flow, "/latency_us/p99").unwrap_or_default(),
            })
        })
        .collect::<Result<_>>()?;
    flows.sort_by_key(|flow| flow.device);
    Ok(flows)
}

fn number(of: &Value, pointer: &str) -> Result<f64> {
    of.pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("nvmeof-perf reports no {pointer}"))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::plan::BenchDevice;
    use super::*;

    pub(in crate::bench::pacing) fn result() -> Value {
        let latency = json!({ "mean": 10.0, "p50": 9.0, "p99": 20.0, "p99_9": 30.0, "max": 40.0 });
        let nothing = json!({ "mean": null, "p50": null, "p99": null, "p99_9": null, "max": null });
        json!({
            "turn": "counted", "iops": 4e4, "bandwidth_gbps": 42.0, "errors": 0, "elapsed_s": 1.0, "cpu_seconds": 0.9,
            "latency_us": latency,
            "flows": [
                { "nsid": 2, "bandwidth_gbps": 0.0, "latency_us": nothing },
                { "nsid": 1, "bandwidth_gbps": 42.0, "latency_us": latency },
            ],
        })
    }

    fn run(step: MeasuredStep, repetition: u32) -> TurnContext<'static> {
        TurnContext {
            labels: TurnLabels::of(step, 2),
            repetition,
            machine: "m",
            link: LinkRate::Gbit(10.0),
            adaptive_settle: Duration::from_secs(3),
            fingerprint: "f",
        }
    }

    pub(in crate::bench::pacing) fn made_up(step: MeasuredStep, repetition: u32) -> Point {
        point(&run(step, repetition), &result(), &[]).expect("complete")
    }

    #[test]
    fn a_point_has_what_was_measured_and_is_local() {
        let step = MeasuredStep {
            policy: BenchPolicy::BufferCredit(96),
            device: BenchDevice::Mix,
            depth: 64,
        };
        let run = run(step, 3);
        let at = |in_flight, budget| StatsSample {
            in_flight,
            budget_mib: Some(budget),
            ..StatsSample::default()
        };
        let point = point(&run, &result(), &[at(4.0, 1.0), at(8.0, 2.0)]).expect("complete");
        assert_eq!(
            (point.place, point.setting.qd, point.setting.offered),
            (RunOrigin::Local, 16, 64)
        );
        assert_eq!((point.total.gbps, point.total.latency_us.p99_9), (42.0, 30.0));
        assert_eq!((point.buffers_mean, point.budget_bytes), (Some(6.0), Some(1.5 * 1_048_576.0)));
        let devices: Vec<_> = point.flows.iter().map(|flow| flow.device).collect();
        assert_eq!(devices, [0, 1], "by namespace");
        assert_eq!(
            (point.value(POLICY), point.value(DEPTH)),
            (Some("buffer-credit 96"), Some("64"))
        );
        assert_eq!(point.setting.num_buffers, Some(96));
        assert_eq!(
            point.machines.as_deref(),
            Some("over a link of 10gbit, adaptive settled 3s more than others")
        );
    }

    #[test]
    fn what_is_as_usual_is_not_said() {
        let step = MeasuredStep { policy: BenchPolicy::None, device: BenchDevice::Ram, depth: 32 };
        let run = |link, settle| TurnContext {
            link,
            adaptive_settle: Duration::from_secs(settle),
            ..run(step, 1)
        };
        assert_eq!(circumstances(&run(LinkRate::Unbound, 0)), None);
        let both = [run(LinkRate::Gbit(5.0), 0), run(LinkRate::Unbound, 1)];
        let both = both.each_ref().map(|run| circumstances(run).expect("something is said"));
        assert_eq!(both, ["over a link of 5gbit", "adaptive settled 1s more than others"]);
    }

    #[test]
    fn a_host_may_complete_nothing_but_not_all_of_them() {
        let step = MeasuredStep { policy: BenchPolicy::None, device: BenchDevice::Ram, depth: 32 };
        let mut idle = result();
        idle["iops"] = json!(0.0);
        idle["bandwidth_gbps"] = json!(0.0);
        idle["latency_us"] = idle["flows"][0]["latency_us"].clone();
        let idle = point(&run(step, 1), &idle, &[]).expect("no latency");
        assert_eq!((idle.total.kiops, idle.total.latency_us), (0.0, Latency::default()));
        let error = with_work(idle).expect_err("nothing was measured");
        assert!(error.to_string().contains("raise --time"), "{error}");
        let mut lost = result();
        lost["latency_us"]["mean"] = json!(null);
        assert!(point(&run(step, 1), &lost, &[]).is_err(), "commands, but no latency");
    }

    #[test]
    fn a_run_with_errors_is_no_measurement() {
        let step = MeasuredStep { policy: BenchPolicy::None, device: BenchDevice::Ram, depth: 32 };
        let run = run(step, 1);
        let mut broken = result();
        broken["errors"] = json!(2);
        let error = point(&run, &broken, &[]).expect_err("it failed");
        assert!(error.to_string().contains("2 I/Os failed"), "{error}");
        assert!(point(&run, &json!({}), &[]).is_err());
        let mut serial = result();
        serial["cpu_seconds"] = json!(3.8);
        let error = point(&run, &serial, &[]).expect_err("four seconds in one");
        assert!(error.to_string().contains("one after the"), "{error}");
    }

    #[test]
    fn a_namespace_that_is_not_read_is_no_flow() {
        for (device, flows) in [
            (BenchDevice::Ram, vec![0]),
            (BenchDevice::Delay, vec![1]),
            (BenchDevice::Mix, vec![0, 1]),
        ] {
            let point = made_up(MeasuredStep { policy: BenchPolicy::None, device, depth: 64 }, 1);
            assert_eq!(point.flows.iter().map(|flow| flow.device).collect::<Vec<_>>(), flows);
        }
    }
}
