//! The conditions of a run in words: the block with which every report begins.

use nvmeof_report::{Condition, show_size};

use super::setup::{
    BufferPool, DeviceKind, Disturbance, DisturbanceKind, FillRate, HostJob, Initiator,
    PacingSetup, PeriodTuner, PeriodicPacer, PointSetup, TargetDevices,
};

/// The machine of a run, and the programs on it.
#[derive(Debug, Clone)]
pub(super) struct RunMachine {
    /// The target's processor and kernel, or the platform that is simulated.
    pub(super) target: String,
    /// Programs and machines of the hosts; empty in the simulator.
    pub(super) hosts: String,
    /// The commit of the program that paces: the daemon's, or the simulator's.
    pub(super) commit: String,
}

/// Returns the conditions of a point, in the order of the block.
pub(super) fn conditions(setup: &PointSetup, on: &RunMachine) -> Vec<Condition> {
    let jobs = |of: &dyn Fn(&HostJob) -> String| of_jobs(&setup.jobs, of);
    let mut block = vec![
        Condition::new("load", jobs(&load)),
        Condition::new("queue depth", jobs(&depth)),
        Condition::new("block size", jobs(&block_sizes)),
        Condition::new("mix", jobs(&mix)),
        Condition::new("time", time(setup)),
        Condition::new("hosts", hosts(setup, &on.hosts)),
        Condition::new("devices", devices(&setup.devices)),
        Condition::new("policy", policy(&setup.pacing)),
        Condition::new("target cores", setup.cores.to_string()),
        Condition::new("target", on.target.clone()),
        Condition::new("commit", on.commit.clone()),
    ];
    let more = setup.platform.iter().map(|(key, value)| format!("platform.{key} = {value}"));
    let more = more.chain(setup.disturbances.iter().map(disturbance));
    let set = (!setup.set.is_empty()).then(|| setup.set.to_string().trim().replace('\n', ", "));
    let file = setup.config.as_ref().map(|file| format!("config {}", file.display()));
    let more: Vec<_> = more.chain(set).chain(file).collect();
    if !more.is_empty() {
        block.push(Condition::new("changed", more.join("; ")));
    }
    block
}

/// Returns a property of all jobs: once if it is the same, otherwise for each job.
fn of_jobs(jobs: &[HostJob], of: &dyn Fn(&HostJob) -> String) -> String {
    let values: Vec<String> = jobs.iter().map(of).collect();
    if values.windows(2).all(|pair| pair[0] == pair[1]) {
        return values.into_iter().next().unwrap_or_default();
    }
    let named = jobs.iter().zip(&values).map(|(job, value)| format!("{} {value}", job.name));
    named.collect::<Vec<_>>().join(", ")
}

fn load(job: &HostJob) -> String {
    let mut text = match job.reads {
        reads if reads >= 1.0 => "random reads".to_owned(),
        reads if reads <= 0.0 => "random writes".to_owned(),
        _ => "random reads and writes".to_owned(),
    };
    match (job.threads, job.shares_depth) {
        (1, _) => {}
        (threads, false) => text += &format!(", {threads} threads on each host"),
        (threads, true) => {
            text += &format!(", {threads} threads on each host share the queue depth");
        }
    }
    if !job.hosts.is_empty() {
        let hosts: Vec<_> = job.hosts.iter().map(|host| (host + 1).to_string()).collect();
        text += &format!(", host {} only", hosts.join(" and "));
    }
    if job.weight != 1 {
        text += &format!(", weight {}", job.weight);
    }
    if job.from > 0 || job.until.is_some() {
        let until = job.until.map_or_else(|| "the end".to_owned(), show_time);
        text += &format!(", from {} to {until}", show_time(job.from));
    }
    text
}

fn depth(job: &HostJob) -> String {
    job.planned_depth().0.to_string()
}

fn block_sizes(job: &HostJob) -> String {
    let all: f64 = job.blocks.iter().map(|(_, share)| share).sum();
    let sizes = job.blocks.iter().map(|(size, share)| match job.blocks.len() {
        1 => show_size((*size).into()),
        _ => format!("{:.0} % {}", share / all * 100.0, show_size((*size).into())),
    });
    sizes.collect::<Vec<_>>().join(", ")
}

fn mix(job: &HostJob) -> String {
    format!("{:.0} % reads", job.reads * 100.0)
}

fn time(setup: &PointSetup) -> String {
    let runs = if setup.repeat > 1 { format!(", {} runs", setup.repeat) } else { String::new() };
    format!("{} after {}{runs}", show_time(setup.time), show_time(setup.ramp))
}

fn hosts(setup: &PointSetup, programs: &str) -> String {
    if setup.hosts.contains(&Initiator::Local) {
        return "none: the load runs on the target".to_owned();
    }
    let mut kinds: Vec<(Initiator, usize)> = Vec::new();
    for host in &setup.hosts {
        match kinds.iter_mut().find(|(kind, _)| kind == host) {
            Some((_, count)) => *count += 1,
            None => kinds.push((*host, 1)),
        }
    }
    let kinds = kinds.iter().map(|(kind, count)| format!("{count} with {}", kind.name()));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    if programs.is_empty() { kinds } else { format!("{kinds}: {programs}") }
}

fn devices(devices: &TargetDevices) -> String {
    let count = devices.count;
    let plural = if count == 1 { "" } else { "s" };
    let mut text = match devices.kind {
        DeviceKind::Null => format!("{count} null device{plural}"),
        DeviceKind::Drive => format!("{count} drive{plural}"),
        DeviceKind::Part(parts) => format!("{count} drive{plural} in {parts} parts each"),
    };
    if let Some((delay, slow)) = devices.delay.filter(|(_, slow)| *slow > 0) {
        text += &format!(", {slow} of {} {} slower", devices.namespaces(), show_time(delay));
    }
    text
}

/// Returns the name of a policy with its parameters.
fn policy(pacing: &PacingSetup) -> String {
    let mut parameters = Vec::new();
    match pacing {
        PacingSetup::None | PacingSetup::EndlessCache | PacingSetup::Adaptive => {}
        PacingSetup::BufferCredit { budget } => {
            parameters.push(format!("budget {}", show_size(*budget)));
        }
        PacingSetup::TokenBucket { pace, burst, budget } => {
            parameters.push(match pace {
                FillRate::Rate(rate) => format!("rate {}/s", show_size(*rate)),
                FillRate::Period(period) => format!("an I/O every {}", show_time(*period)),
            });
            parameters.extend(burst.map(|burst| format!("burst {burst}")));
            parameters.extend(budget.map(|budget| format!("budget {}", show_size(budget))));
        }
        PacingSetup::Prototype { pool, pacer } => {
            parameters.extend(pool.iter().map(buffer_pool));
            parameters.extend(pacer.iter().map(periodic_pacer));
        }
    }
    if parameters.is_empty() {
        return pacing.name().to_owned();
    }
    format!("{} ({})", pacing.name(), parameters.join(", "))
}

fn buffer_pool(pool: &BufferPool) -> String {
    let cache = pool.cache.map_or_else(
        || "spread over the cores".to_owned(),
        |cache| format!("each core keeps {cache}"),
    );
    format!("{} buffers, {cache}", pool.buffers)
}

fn periodic_pacer(pacer: &PeriodicPacer) -> String {
    let mut text = match pacer.period {
        0 => "a tick at every poll".to_owned(),
        period => format!("an I/O every {}", show_time(period)),
    };
    text += &format!(", credit {}", show_size(pacer.credit.into()));
    if pacer.bypass_below > 0 {
        text += &format!(", none below {}", show_size(pacer.bypass_below.into()));
    }
    if let Some(limit) = pacer.drive_limit {
        text += &format!(", {limit} on a drive");
    }
    match pacer.tuner {
        None => {}
        Some(PeriodTuner::BytesInFlight { threshold }) => {
            text += &format!(", tuned to {} in flight", show_size(threshold));
        }
        Some(PeriodTuner::Bandwidth { interval, step }) => {
            let (step, interval) = (show_time(step), show_time(interval));
            text += &format!(", tuned to bandwidth by {step} every {interval}");
        }
    }
    text
}

fn disturbance(of: &Disturbance) -> String {
    let what = match of.what {
        DisturbanceKind::Link(rate) => format!("the link at {:.0} %", rate * 100.0),
        DisturbanceKind::Drives => "no drive completes".to_owned(),
        DisturbanceKind::Cores => "the cores stall".to_owned(),
    };
    format!("{what} for {} at {}", show_time(of.lasts), show_time(of.at))
}

/// Returns a time with the largest unit that leaves a whole number.
fn show_time(nanos: u64) -> String {
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)];
    let whole = units.iter().find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{nanos} ns"), |(name, unit)| format!("{} {name}", nanos / unit))
}

#[cfg(test)]
mod tests {
    use super::super::plan::SweepPlan;
    use super::*;

    fn block(text: &str) -> Vec<(String, String)> {
        let plan = SweepPlan::parse("p.toml", text).unwrap();
        let on = RunMachine {
            target: "A CPU, 4 CPUs, Linux 6.1".into(),
            hosts: String::new(),
            commit: "0123456789ab, dirty".into(),
        };
        let block = conditions(&plan.points[0].setup, &on);
        block.into_iter().map(|part| (part.name, part.value)).collect()
    }

    #[test]
    fn a_block_says_everything_that_a_plan_says() {
        let text = r#"
name = "x"
[target]
cores = 16
devices = { kind = "part", count = 16, parts = 3, slow = 32, delay = "1ms" }
pacing = { policy = "prototype", buffers = 96, period = "5650ns" }
[load]
reads = 70
time = "2s"
ramp = "100ms"
[[host]]
initiator = "fio-spdk"
count = 2
[[job]]
name = "slow"
devices = "part-1"
queue-depth = 1
[[job]]
name = "fast"
devices = "part-3"
queue-depth = 1024
block-size = "4KiB"
[platform]
one-way-us = 9
"#;
        let of = [
            ("load", "random reads and writes"),
            ("queue depth", "slow 1, fast 1024"),
            ("block size", "slow 128 KiB, fast 4 KiB"),
            ("mix", "70 % reads"),
            ("time", "2 s after 100 ms"),
            ("hosts", "2 with fio-spdk"),
            ("devices", "16 drives in 3 parts each, 32 of 48 1 ms slower"),
            (
                "policy",
                "prototype (96 buffers, spread over the cores, an I/O every 5650 ns, credit 128 KiB)",
            ),
            ("target cores", "16"),
            ("target", "A CPU, 4 CPUs, Linux 6.1"),
            ("commit", "0123456789ab, dirty"),
            ("changed", "platform.one-way-us = 9"),
        ];
        let wanted = of.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(block(text), wanted);
    }

    #[test]
    fn times_are_whole_numbers() {
        let times = [0, 5650, 7000, 100_000_000, 3_000_000_000].map(show_time);
        assert_eq!(times, ["0 ns", "5650 ns", "7 us", "100 ms", "3 s"]);
    }
}
