//! The measurements of the mixes: pairs of turns under one continuous load of each mix.
//!
//! ```text
//! mix --> daemon, a load generator a host --a pair--> a turn without pacing, a turn of adaptive
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nvmeof_console::complain;
use nvmeof_report::{Latency, Point, PointConfig, VariedKey, jain};

use super::ResultsOutput;
use super::load_generator::{LoadGenerator, depths};
use super::mix_plan::{self, Mix};
use super::mix_results;
use super::plan::BenchPolicy;
use super::result::{self, MIX, MIXES_TEST, POLICY, TurnContext, TurnLabels};
use super::rounds::{ATTEMPTS, INTERVAL, MOMENTS, PacingBench, WARM_UP};
use super::switching_daemon::SwitchingDaemon;
use crate::bench::pinned;
use crate::interrupt;

/// A daemon under the load of all hosts; the load ends first.
struct LoadedMix {
    loads: Vec<LoadGenerator>,
    switching_daemon: SwitchingDaemon,
}

impl PacingBench<'_> {
    /// Measures all mixes, one after the other: the pairs of a mix share a daemon and a load.
    pub(super) fn mixes(&self, output: &mut ResultsOutput) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for (number, mix) in (1..).zip(&self.plan.mixes) {
            let measured = self.try_mix(mix);
            if interrupt::is_noted() {
                return Ok(points);
            }
            let measured = measured?;
            measured.iter().try_for_each(|point| output.keep(point))?;
            let line = mix_results::line(mix, &measured);
            complain!("mix {number} of {}: {line}", self.plan.mixes.len());
            points.extend(measured);
        }
        Ok(points)
    }

    /// Measures a mix, with further attempts after an error.
    fn try_mix(&self, mix: &Mix) -> Result<Vec<Point>> {
        let mut attempt = 1;
        loop {
            match self.mix(mix).with_context(|| format!("cannot measure {mix}")) {
                Err(error) if attempt < ATTEMPTS && !interrupt::is_noted() => {
                    complain!("once more: {error:#}");
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn mix(&self, mix: &Mix) -> Result<Vec<Point>> {
        let file = mix_plan::make_file(&self.folder)
            .with_context(|| format!("cannot make a file in {}", self.folder.display()))?;
        let mut loaded = self.start_mix(mix, file.path())?;
        let mut points = Vec::new();
        for number in 0..self.plan.repeat {
            for policy in mix_plan::pair(number) {
                points.push(self.mix_turn(&mut loaded, mix, policy, number + 1)?);
            }
        }
        let LoadedMix { loads, switching_daemon } = loaded;
        loads.into_iter().try_for_each(LoadGenerator::stop)?;
        switching_daemon.stop()?;
        Ok(points)
    }

    /// Starts the daemon and the load of each host.
    fn start_mix(&self, mix: &Mix, file: &Path) -> Result<LoadedMix> {
        let Self { workspace, folder, link, args, .. } = self;
        let command = link.command(pinned(workspace, false, args.target_cpu, "nvmeof-tgt"));
        let config = mix_plan::config(mix, args.jobs, args.target_cpu, args.listen, file);
        let interval = format!("{}ms", INTERVAL.min(self.plan.time / MOMENTS).as_millis());
        let switching_daemon = SwitchingDaemon::start(
            workspace,
            command,
            folder,
            config,
            BenchPolicy::None,
            &interval,
        )?;
        let address = switching_daemon.address();
        self.perf(mix_plan::fill(&address))?;
        let start = |(host, nsids): (usize, Vec<u32>)| {
            let mut command = self.initiator();
            command.args(mix.arguments(&address, host, args.jobs));
            LoadGenerator::start(command, &nsids)
        };
        let loads = mix.hosts().into_iter().enumerate().map(start).collect::<Result<_>>()?;
        interrupt::sleep(WARM_UP);
        Ok(LoadedMix { loads, switching_daemon })
    }

    fn mix_turn(
        &self,
        loaded: &mut LoadedMix,
        mix: &Mix,
        policy: BenchPolicy,
        repetition: u32,
    ) -> Result<Point> {
        let (time, ramp, jobs) = (self.plan.time, self.plan.settle(policy), self.args.jobs);
        let mut hasher = DefaultHasher::new();
        // Without the path of the file, which differs from run to run.
        let config =
            mix_plan::config(mix, jobs, self.args.target_cpu, self.args.listen, "".as_ref());
        (self.build, config, policy.config(), mix.to_string()).hash(&mut hasher);
        (jobs, ramp, time).hash(&mut hasher);
        self.rate.to_string().hash(&mut hasher);
        let LoadedMix { loads, switching_daemon } = loaded;
        switching_daemon.hand_over(loads, policy)?;
        for (load, nsids) in loads.iter_mut().zip(mix.hosts()) {
            load.change_to(&depths(&nsids, mix.depth))?;
        }
        interrupt::sleep(ramp);
        let before = switching_daemon.recorded()?;
        let counted = count(loads, time)?;
        let moments = switching_daemon.moments_since(before)?;
        if interrupt::is_noted() {
            bail!("interrupted");
        }
        let run = TurnContext {
            labels: labels(mix, policy, jobs),
            repetition,
            machine: &self.machine,
            link: self.rate,
            adaptive_settle: self.plan.adaptive_settle,
            fingerprint: &format!("{:016x}", hasher.finish()),
        };
        let of_host = |result| result::point(&run, result, &moments);
        let points = counted.iter().map(of_host).collect::<Result<_>>()?;
        together(points).context("there is no host").and_then(result::with_work)
    }
}

/// Counts on all hosts for the same time; returns their reports.
fn count(loads: &mut [LoadGenerator], time: Duration) -> Result<Vec<serde_json::Value>> {
    loads.iter_mut().try_for_each(LoadGenerator::begin_count)?;
    interrupt::sleep(time);
    loads.iter_mut().map(LoadGenerator::end_count).collect()
}

fn labels(mix: &Mix, policy: BenchPolicy, jobs: u32) -> TurnLabels {
    let key = |key: &str, value| VariedKey { key: key.to_owned(), value };
    TurnLabels {
        test: MIXES_TEST,
        varied: vec![key(MIX, mix.to_string()), key(POLICY, policy.to_string())],
        policy,
        setting: PointConfig {
            devices: format!("{} + {}", mix.fast, mix.slow),
            initiator: "nvmeof-perf".to_owned(),
            hosts: u32::try_from(mix.hosts().len()).unwrap_or(u32::MAX),
            jobs,
            cores: Some(1),
            qd: mix.depth,
            offered: mix.offered(jobs).into(),
            ..PointConfig::default()
        },
        nsids: mix.nsids().to_vec(),
    }
}

/// Returns the points of concurrent hosts as one: the sum of rates, the weighted mean of latencies,
/// and the largest of each percentile.
fn together(points: Vec<Point>) -> Option<Point> {
    let mut hosts = points.into_iter();
    let mut all = hosts.next()?;
    for (host, point) in (1..).zip(hosts) {
        let (mine, theirs) = (all.total, point.total);
        let kiops = mine.kiops + theirs.kiops;
        let [a, b] = [mine.latency_us, theirs.latency_us];
        all.total.kiops = kiops;
        all.total.gbps = mine.gbps + theirs.gbps;
        all.total.latency_us = Latency {
            mean: (a.mean * mine.kiops + b.mean * theirs.kiops) / kiops,
            p50: a.p50.max(b.p50),
            p99: a.p99.max(b.p99),
            p99_9: a.p99_9.max(b.p99_9),
            max: a.max.max(b.max),
        };
        all.flows.extend(point.flows.into_iter().map(|flow| nvmeof_report::Flow { host, ..flow }));
    }
    all.fairness = jain(&all.flows.iter().map(|flow| flow.gbps).collect::<Vec<_>>());
    Some(all)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::link::LinkRate;
    use super::super::mix_plan::MIXES;
    use super::*;

    /// Returns a point of a mix with these bandwidths of the fast and the slow namespace.
    pub(in crate::bench::pacing) fn made_up(
        mix: &Mix,
        policy: BenchPolicy,
        repetition: u32,
        gbps: [f64; 2],
    ) -> Point {
        let latency = json!({ "mean": 10.0, "p50": 9.0, "p99": 20.0, "p99_9": 30.0, "max": 40.0 });
        let run = TurnContext {
            labels: labels(mix, policy, 1),
            repetition,
            machine: "m",
            link: LinkRate::Unbound,
            adaptive_settle: Duration::ZERO,
            fingerprint: "f",
        };
        let rate = |nsid: u32| gbps[usize::from(nsid == mix.slow.nsid())];
        let of_host = |nsids: Vec<u32>| {
            let flow = |nsid: &u32| {
                let gbps = rate(*nsid);
                json!({ "nsid": nsid, "bandwidth_gbps": gbps, "latency_us": latency })
            };
            let result = json!({
                "iops": 1e3, "bandwidth_gbps": nsids.iter().map(|nsid| rate(*nsid)).sum::<f64>(),
                "errors": 0, "elapsed_s": 1.0, "cpu_seconds": 0.9, "latency_us": latency,
                "flows": nsids.iter().map(flow).collect::<Vec<_>>(),
            });
            result::point(&run, &result, &[]).expect("complete")
        };
        together(mix.hosts().into_iter().map(of_host).collect()).expect("a host")
    }

    #[test]
    fn hosts_add_up_to_one_point() {
        for mix in MIXES {
            let point = made_up(mix, BenchPolicy::Adaptive, 3, [4.0, 1.0]);
            let hosts = mix.hosts();
            let flows = hosts.iter().flatten().count();
            assert_eq!(point.flows.len(), flows, "{mix}");
            let per_host: f64 = point.flows.iter().map(|flow| flow.gbps).sum();
            assert!((point.total.gbps - per_host).abs() < 1e-9, "{mix}");
            let last = point.flows.last().map(|flow| flow.host);
            assert_eq!(last, u32::try_from(hosts.len() - 1).ok(), "{mix}");
            assert_eq!(point.value(MIX), Some(mix.to_string().as_str()));
        }
        assert!(together(Vec::new()).is_none());
    }
}
