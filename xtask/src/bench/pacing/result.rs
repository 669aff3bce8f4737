//! From what the load generator and the daemon wrote to a [`Point`].

use anyhow::{Context, Result};
use nvmeof_report::{Figures, Flow, Latency, Point, Setting, Turn, Varied, Where, jain};
use serde_json::Value;

use super::activity::Moment;
use super::plan::{SEED, Step};
use crate::middle::middle;

/// Keys of [`Point::varied`].
pub(super) const DEVICE: &str = "device";
pub(super) const POLICY: &str = "policy";
pub(super) const DEPTH: &str = "depth";

/// What a run was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) step: Step,
    /// From 1.
    pub(super) repetition: u32,
    pub(super) jobs: u32,
    /// Processor and kernel.
    pub(super) machine: &'a str,
    /// Changes with the daemon, its config or the load.
    pub(super) fingerprint: &'a str,
}

/// One turn of a step.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    pub(super) elapsed_s: f64,
    pub(super) figures: Figures,
    /// By namespace: those that the step reads.
    pub(super) flows: Vec<Flow>,
    /// What the daemon wrote down meanwhile.
    pub(super) moments: Vec<Moment>,
}

impl Counted {
    /// Takes what the load generator reports of a turn.
    pub(super) fn read(step: Step, result: &Value, moments: Vec<Moment>) -> Result<Self> {
        let elapsed_s = number(result, "/elapsed_s")?;
        let mut flows = flows(result)?;
        flows.retain(|flow| step.reads(flow.device + 1));
        Ok(Self { elapsed_s, figures: figures(result)?, flows, moments })
    }
}

/// What a step came to in a round, by the middle of its turns.
pub(super) fn point(run: &Run<'_>, turns: &[Counted]) -> Point {
    let Step { policy, device, depth } = run.step;
    let flows = middle_flows(turns);
    let rates: Vec<f64> = flows.iter().map(|flow| flow.gbps).collect();
    let moments = || turns.iter().flat_map(|turn| &turn.moments);
    let mean = |of: fn(&Moment) -> Option<f64>| mean(moments().filter_map(of));
    let varied =
        [(DEVICE, device.to_string()), (POLICY, policy.to_string()), (DEPTH, depth.to_string())];
    Point {
        plan: "bench-pacing".to_owned(),
        test: "pacing".to_owned(),
        varied: varied.map(|(key, value)| Varied { key: key.to_owned(), value }).to_vec(),
        repetition: run.repetition,
        place: Where::Local,
        platform: run.machine.to_owned(),
        policy: policy.to_string(),
        machines: None,
        fingerprint: run.fingerprint.to_owned(),
        seed: SEED,
        measured_s: turns.iter().map(|turn| turn.elapsed_s).sum(),
        setting: Setting {
            devices: device.to_string(),
            initiator: "nvmeof-perf".to_owned(),
            hosts: 1,
            jobs: run.jobs,
            cores: Some(1),
            num_buffers: policy.buffers(),
            num_delay: Some(device.slow()),
            qd: run.step.qd(run.jobs).unwrap_or_default(),
            offered: depth.into(),
            ..Setting::default()
        },
        total: middle_figures(turns),
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
        starved_queues: None,
        target_cpus: None,
        host_cpus: None,
        network: None,
        series: Vec::new(),
        turns: turns.iter().map(turn).collect(),
        problems: Vec::new(),
    }
}

fn turn(counted: &Counted) -> Turn {
    // More digits than that say nothing, and there are thousands of turns.
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    Turn {
        gbps: rounded(counted.figures.gbps),
        p99_us: rounded(counted.figures.latency_us.p99),
        p99_9_us: rounded(counted.figures.latency_us.p99_9),
        flows_gbps: counted.flows.iter().map(|flow| rounded(flow.gbps)).collect(),
    }
}

fn middle_figures(turns: &[Counted]) -> Figures {
    let middle = |of: fn(&Figures) -> f64| middle_of(turns.iter().map(|turn| of(&turn.figures)));
    Figures {
        kiops: middle(|figures| figures.kiops),
        gbps: middle(|figures| figures.gbps),
        latency_us: Latency {
            mean: middle(|figures| figures.latency_us.mean),
            p50: middle(|figures| figures.latency_us.p50),
            p99: middle(|figures| figures.latency_us.p99),
            p99_9: middle(|figures| figures.latency_us.p99_9),
            max: turns.iter().map(|turn| turn.figures.latency_us.max).fold(0.0, f64::max),
        },
        at_target_us: None,
    }
}

fn middle_flows(turns: &[Counted]) -> Vec<Flow> {
    let Some(first) = turns.first() else { return Vec::new() };
    let flow = |(at, flow): (usize, &Flow)| {
        let middle = |of: fn(&Flow) -> f64| {
            middle_of(turns.iter().filter_map(|turn| turn.flows.get(at)).map(of))
        };
        Flow {
            gbps: middle(|flow| flow.gbps),
            mean_us: middle(|flow| flow.mean_us),
            p99_us: middle(|flow| flow.p99_us),
            ..*flow
        }
    };
    first.flows.iter().enumerate().map(flow).collect()
}

fn middle_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    middle(&values).unwrap_or_default()
}

/// A point for each turn, so that turns of the same number are compared; points without turns as they are.
pub(super) fn by_turn(points: &[Point]) -> Vec<Point> {
    let most = points.iter().map(|point| point.turns.len()).max().unwrap_or_default().max(1);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let mut all = Vec::new();
    for point in points {
        if point.turns.is_empty() {
            all.push(point.clone());
        }
        let before = point.repetition.saturating_sub(1) * most;
        for (number, turn) in (1..).zip(&point.turns) {
            let mut one = Point { turns: Vec::new(), repetition: before + number, ..point.clone() };
            one.total.gbps = turn.gbps;
            (one.total.latency_us.p99, one.total.latency_us.p99_9) = (turn.p99_us, turn.p99_9_us);
            for (flow, &gbps) in one.flows.iter_mut().zip(&turn.flows_gbps) {
                flow.gbps = gbps;
            }
            all.push(one);
        }
    }
    all
}

fn figures(of: &Value) -> Result<Figures> {
    let latency = |key: &str| number(of, &format!("/latency_us/{key}"));
    Ok(Figures {
        kiops: number(of, "/iops")? / 1e3,
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

/// By namespace.
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
                // Nothing got through: there is no latency to tell.
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

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::plan::{Device, Policy};
    use super::*;

    pub(in crate::bench::pacing) fn result() -> Value {
        let latency = json!({ "mean": 10.0, "p50": 9.0, "p99": 20.0, "p99_9": 30.0, "max": 40.0 });
        let nothing = json!({ "mean": null, "p50": null, "p99": null, "p99_9": null, "max": null });
        json!({
            "turn": "counted", "iops": 4e4, "bandwidth_gbps": 42.0, "elapsed_s": 0.5, "latency_us": latency,
            "flows": [
                { "nsid": 2, "bandwidth_gbps": 0.0, "latency_us": nothing },
                { "nsid": 1, "bandwidth_gbps": 42.0, "latency_us": latency },
            ],
        })
    }

    fn run(step: Step, repetition: u32) -> Run<'static> {
        Run { step, repetition, jobs: 2, machine: "m", fingerprint: "f" }
    }

    pub(in crate::bench::pacing) fn made_up(step: Step, repetition: u32) -> Point {
        let counted = Counted::read(step, &result(), Vec::new()).expect("complete");
        // As a point of one turn; what tells turns apart is tested here alone.
        Point { turns: Vec::new(), ..point(&run(step, repetition), &[counted]) }
    }

    /// Turns with these bandwidths.
    fn turns(step: Step, gbps: &[f64]) -> Vec<Counted> {
        let turn = |gbps: &f64| {
            let mut result = result();
            result["bandwidth_gbps"] = json!(gbps);
            result["flows"][1]["bandwidth_gbps"] = json!(gbps / 2.0);
            result["latency_us"]["p99"] = json!(1000.0 / gbps);
            result["latency_us"]["max"] = json!(gbps);
            let at = Moment { in_flight: *gbps, budget_mib: Some(1.5), ..Moment::default() };
            Counted::read(step, &result, vec![at]).expect("complete")
        };
        gbps.iter().map(turn).collect()
    }

    #[test]
    fn a_point_is_the_middle_of_its_turns_and_is_local() {
        let step = Step { policy: Policy::BufferCredit(96), device: Device::Mix, depth: 64 };
        let point = point(&run(step, 3), &turns(step, &[10.0, 50.0, 20.0]));
        assert_eq!((point.place, point.setting.qd, point.setting.offered), (Where::Local, 16, 64));
        let latency = point.total.latency_us;
        assert_eq!((point.total.gbps, latency.p99, latency.max), (20.0, 50.0, 50.0));
        assert_eq!((point.measured_s, point.repetition), (1.5, 3));
        let moments = [10.0, 50.0, 20.0].iter().sum::<f64>() / 3.0;
        assert_eq!((point.buffers_mean, point.budget_bytes), (Some(moments), Some(1.5 * 1_048_576.0)));
        let flows: Vec<_> = point.flows.iter().map(|flow| (flow.device, flow.gbps)).collect();
        assert_eq!(flows, [(0, 10.0), (1, 0.0)], "by namespace");
        assert_eq!(
            (point.value(POLICY), point.value(DEPTH)),
            (Some("buffer-credit 96"), Some("64"))
        );
        assert_eq!(point.setting.num_buffers, Some(96));
        assert_eq!(point.turns[1], Turn {
            gbps: 50.0,
            p99_us: 20.0,
            p99_9_us: 30.0,
            flows_gbps: vec![25.0, 0.0],
        });
    }

    #[test]
    fn a_namespace_that_is_not_read_is_no_flow() {
        let step = Step { policy: Policy::None, device: Device::Ram, depth: 64 };
        let point = point(&run(step, 1), &turns(step, &[10.0]));
        assert_eq!(point.flows.iter().map(|flow| flow.device).collect::<Vec<_>>(), [0]);
        let step = Step { device: Device::Delay, ..step };
        let counted = Counted::read(step, &result(), Vec::new()).expect("complete");
        assert_eq!(counted.flows.iter().map(|flow| flow.device).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn turns_of_a_round_are_told_apart_from_those_of_another() {
        let step = Step { policy: Policy::None, device: Device::Mix, depth: 64 };
        let points = [
            point(&run(step, 1), &turns(step, &[10.0, 20.0])),
            point(&run(step, 2), &turns(step, &[30.0])),
            made_up(step, 9),
        ];
        let turns = by_turn(&points);
        let shown: Vec<_> = turns
            .iter()
            .map(|point| (point.repetition, point.total.gbps, point.flows[0].gbps))
            .collect();
        assert_eq!(shown, [(1, 10.0, 5.0), (2, 20.0, 10.0), (3, 30.0, 15.0), (9, 42.0, 42.0)]);
        assert_eq!(turns[0].total.latency_us.p99, 100.0);
    }

    #[test]
    fn a_turn_in_which_nothing_got_through_is_no_measurement() {
        let step = Step { policy: Policy::None, device: Device::Ram, depth: 32 };
        let mut none = result();
        none["latency_us"]["p99"] = json!(null);
        let error = Counted::read(step, &none, Vec::new()).expect_err("nothing got through");
        assert!(error.to_string().contains("/latency_us/p99"), "{error}");
    }
}
