//! fio, with the Linux kernel's initiator or with SPDK's plugin.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::super::machine::{RemoteMachine, quoted};
use super::super::process::{BEGINS, FinishedProcess, RunningProcess};
use super::measured::{LoadResult, real};
use super::{LoadProgram, LoadTask, split_address};
use crate::sweep::setup::HostJob;

/// Timeout for the kernel to connect and to find its namespaces.
const CONNECT: Duration = Duration::from_secs(40);
/// Maximum number of samples: one day.
const MOST_TENTHS: usize = 864_000;

/// fio on the block devices of the kernel's initiator.
#[derive(Debug)]
pub(super) struct FioKernel {
    pub(super) fio: String,
}

/// fio with SPDK's plugin, which has its own initiator.
#[derive(Debug)]
pub(super) struct FioSpdk {
    pub(super) fio: String,
    pub(super) plugin: Option<String>,
}

impl LoadProgram for FioKernel {
    fn versions(&self, machine: &RemoteMachine) -> Result<String> {
        let fio = fio_version(machine, &self.fio)?;
        let nvme = machine.query("nvme version | head -n 1").with_context(|| {
            format!(
                "no nvme-cli on {machine}: apt-get install nvme-cli there, and use a root login"
            )
        })?;
        let root = machine.query("id -u")?;
        ensure!(
            root.trim() == "0",
            "connecting the kernel's initiator on {machine} needs root there"
        );
        let kernel = machine.query("uname -r")?;
        Ok(format!("{fio}, {}, Linux {}", nvme.trim(), kernel.trim()))
    }

    fn check(&self, _: &HostJob) -> Result<()> {
        Ok(())
    }

    /// Starts a shell that connects, reports it, and disconnects on every exit.
    fn connect(
        &self,
        machine: &RemoteMachine,
        task: &LoadTask<'_>,
    ) -> Result<Option<RunningProcess>> {
        let (fabric, address, port) = split_address(&task.address).context("no address")?;
        let script = format!(
            "nqn={}; modprobe -q nvme-{fabric}; trap 'exit 1' TERM; \
             trap 'nvme disconnect -n \"$nqn\" >/dev/null 2>&1' EXIT; \
             nvme connect -t {fabric} -a {address} -s {port} -n \"$nqn\" -q {} -I {} || exit 1; \
             for n in {}; do i=0; until [ -b \"$({})\" ]; do i=$((i+1)); [ $i -lt 300 ] || \
             {{ echo \"namespace $n did not come\" >&2; exit 1; }}; sleep 0.1; done; done; \
             echo connected; while :; do sleep 1; done",
            quoted(&task.nqn),
            host_nqn(task),
            host_id(task),
            task.nsids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
            find_device(&task.nqn),
        );
        let mut running = machine.start("sh", &["-c".to_owned(), script])?;
        running
            .line("connected", Instant::now() + CONNECT)
            .with_context(|| format!("{machine} cannot connect to {}", task.address))?;
        Ok(Some(running))
    }

    fn start(&self, machine: &RemoteMachine, task: &LoadTask<'_>) -> Result<RunningProcess> {
        let all: Vec<_> = task.nsids.iter().map(u32::to_string).collect();
        let script = format!("for n in {}; do {}; done", all.join(" "), find_device(&task.nqn));
        let names: Vec<String> = machine.query(&script)?.lines().map(str::to_owned).collect();
        ensure!(
            names.len() == all.len() && names.iter().all(|name| name.starts_with("/dev/")),
            "of the namespaces {} on {machine} only these have block devices: {}",
            all.join(", "),
            names.join(", ")
        );
        // If a device disappeared, fio would create a file of its name.
        let more = "allow_file_create=0\n";
        run(machine, &self.fio, task, &job_file(task, "io_uring", &names, more))
    }

    fn read(
        &self,
        machine: &RemoteMachine,
        task: &LoadTask<'_>,
        finished: &FinishedProcess,
    ) -> Result<LoadResult> {
        read(machine, task, finished)
    }
}

impl LoadProgram for FioSpdk {
    fn versions(&self, machine: &RemoteMachine) -> Result<String> {
        let Some(plugin) = &self.plugin else {
            bail!(
                "fio-spdk: say where SPDK's plugin is on the hosts with --spdk-plugin PATH \
                 (build/fio/spdk_nvme of an SPDK that was built with --with-fio)"
            );
        };
        let fio = fio_version(machine, &self.fio)?;
        let there = machine.query(&format!("test -f {} && echo there", quoted(plugin)));
        there.with_context(|| format!("there is no {plugin} on {machine}"))?;
        let pages = machine.query("cat /proc/sys/vm/nr_hugepages")?;
        ensure!(
            pages.trim() != "0",
            "SPDK needs huge pages, and {machine} has none: run SPDK's scripts/setup.sh there, or write their \
             number to /proc/sys/vm/nr_hugepages"
        );
        Ok(format!("{fio} with {plugin}"))
    }

    fn check(&self, _: &HostJob) -> Result<()> {
        Ok(())
    }

    fn connect(&self, _: &RemoteMachine, _: &LoadTask<'_>) -> Result<Option<RunningProcess>> {
        Ok(None)
    }

    fn start(&self, machine: &RemoteMachine, task: &LoadTask<'_>) -> Result<RunningProcess> {
        let plugin = self.plugin.as_deref().context("SPDK's plugin is not named")?;
        let plugin = machine.query(&format!("readlink -f {}", quoted(plugin)))?;
        let text = job_file(task, &spdk_engine(&plugin), &spdk_names(task)?, &spdk_options(task));
        run(machine, &self.fio, task, &text)
    }

    fn read(
        &self,
        machine: &RemoteMachine,
        task: &LoadTask<'_>,
        finished: &FinishedProcess,
    ) -> Result<LoadResult> {
        read(machine, task, finished)
    }
}

/// Returns the plugin as fio's engine, by its absolute path: fio runs in another folder.
///
/// Preloaded, as SPDK documents it, the plugin would be part of the shell of [`BEGUN`], too. That
/// shell lacks fio's functions and cannot start.
fn spdk_engine(plugin: &str) -> String {
    format!("external:{}", plugin.trim())
}

/// Returns the plugin's options in the job file, in addition to fio's own.
///
/// The plugin supports jobs only as threads. It takes the host's name from an option and ignores it
/// in a file's name.
fn spdk_options(task: &LoadTask<'_>) -> String {
    format!("thread=1\nhostnqn={}\n", host_nqn(task))
}

/// Names namespaces in the form of SPDK's plugin: a transport identifier, with the namespace at its
/// end.
fn spdk_names(task: &LoadTask<'_>) -> Result<Vec<String>> {
    let (fabric, address, port) = split_address(&task.address).context("no address")?;
    let family = if address.contains(':') { "IPv6" } else { "IPv4" };
    let name = |nsid: &u32| {
        format!(
            "trtype={} adrfam={family} traddr={address} trsvcid={port} subnqn={} ns={nsid}",
            fabric.to_uppercase(),
            task.nqn,
        )
        // fio interprets a colon as the end of a file's name.
        .replace(':', "\\:")
    };
    Ok(task.nsids.iter().map(name).collect())
}

fn host_nqn(task: &LoadTask<'_>) -> String {
    format!("nqn.2026-11.io.nvmeof-tgt:sweep-host-{}", task.host + 1)
}

fn host_id(task: &LoadTask<'_>) -> String {
    format!("5f5a1bca-0000-4000-8000-{:012x}", task.host + 1)
}

/// Returns shell code that writes the block device of namespace `$n` of a subsystem.
fn find_device(nqn: &str) -> String {
    format!(
        "for s in /sys/class/nvme-subsystem/nvme-subsys*; do \
         [ \"$(cat $s/subsysnqn)\" = {} ] || continue; \
         for d in $s/nvme*n*; do [ \"$(cat $d/nsid 2>/dev/null)\" = \"$n\" ] && echo /dev/${{d##*/}}; done; \
         done | head -n 1",
        quoted(nqn)
    )
}

fn fio_version(machine: &RemoteMachine, fio: &str) -> Result<String> {
    let version = machine.query(&format!("{} --version", quoted(fio)));
    let version = version.with_context(|| {
        format!("no fio on {machine}: apt-get install fio there, or --fio PATH")
    })?;
    Ok(version.trim().to_owned())
}

/// File that exists as soon as the load of a job begins.
const BEGUN: &str = "begun";

/// Returns fio's job file: one job of the plan.
fn job_file(task: &LoadTask<'_>, engine: &str, names: &[String], more: &str) -> String {
    let job = task.job;
    let reads = (job.reads * 100.0).round();
    let sizes = match &job.blocks[..] {
        [(size, _)] => format!("bs={size}"),
        mix => {
            let all: f64 = mix.iter().map(|(_, share)| share).sum();
            let parts =
                mix.iter().map(|(size, share)| format!("{size}/{:.0}", share / all * 100.0));
            format!("bssplit={}", parts.collect::<Vec<_>>().join(":"))
        }
    };
    let mut text = String::from("[global]\n");
    // Writing to a String cannot fail.
    let LoadTask { folder, seed, .. } = task;
    let (runtime, ramp) = (task.time / 1000, task.ramp / 1000);
    let (depth, threads) = (job.queue_depth, job.threads);
    let _ = write!(
        text,
        "ioengine={engine}\ndirect=1\nrw=randrw\nrwmixread={reads}\n{sizes}\nnorandommap=1\nrandrepeat=0\n\
         randseed={seed}\ntime_based=1\nruntime={runtime}us\nramp_time={ramp}us\niodepth={depth}\n\
         numjobs={threads}\ngroup_reporting=1\nlat_percentiles=1\nclat_percentiles=0\n\
         write_bw_log={folder}/bw\nlog_avg_msec=100\nexec_prerun=touch {folder}/{BEGUN}\n{more}",
    );
    if let Some(cpus) = &task.cpus {
        let _ = writeln!(text, "cpus_allowed={cpus}");
    }
    let _ = write!(text, "[job]\nfilename={}\n", names.join(":"));
    text
}

fn run(
    machine: &RemoteMachine,
    fio: &str,
    task: &LoadTask<'_>,
    jobs: &str,
) -> Result<RunningProcess> {
    let folder = quoted(&task.folder);
    let file = format!("{}/job.fio", task.folder);
    machine.query(&format!("mkdir -p {folder} && rm -f {folder}/bw_*.log {folder}/{BEGUN}"))?;
    machine.write(&file, jobs)?;
    machine.start("sh", &["-c".to_owned(), announced(fio, &folder, &file)])
}

/// Returns shell code that runs fio and tells when its load begins, which fio tells only by a
/// command that it runs then.
///
/// fio replaces the shell, so that it ends with the shell's guard. It runs in the task's folder, as
/// it writes the output of that command to its working directory.
fn announced(fio: &str, folder: &str, file: &str) -> String {
    format!(
        "fio=$$; (there=1; until [ -e {folder}/{BEGUN} ]; do [ \"$there\" ] || exit; sleep 0.005; \
         kill -0 $fio 2>/dev/null || there=; done; \
         echo '{BEGINS}' >&2) & program=$(readlink -f \"$(command -v {})\"); \
         cd {folder} && exec \"$program\" --output-format=json+ {}",
        quoted(fio),
        quoted(file)
    )
}

fn read(
    machine: &RemoteMachine,
    task: &LoadTask<'_>,
    finished: &FinishedProcess,
) -> Result<LoadResult> {
    ensure!(finished.status.success(), "fio failed: {}", finished.complaint());
    let mut measured = measured(&finished.stdout)?;
    let logs = machine.query(&format!("cat {}/bw_bw*.log", quoted(&task.folder)))?;
    measured.series = series(&logs);
    Ok(measured)
}

/// Extracts fio's JSON: an object with jobs that begins a line.
///
/// The text around it is skipped: notes of fio, and messages of SPDK and DPDK, including their
/// braces.
fn report(text: &str) -> Result<Value> {
    let mut told = None;
    let lines = text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    });
    for (start, _) in lines.filter(|(_, line)| line.starts_with('{')) {
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(json)) if json["jobs"].is_array() => return Ok(json),
            Some(Ok(_)) => told = told.or(Some(anyhow!("fio reports no jobs"))),
            Some(Err(error)) => {
                told = told.or(Some(anyhow::Error::new(error).context("fio's JSON is broken")));
            }
            None => {}
        }
    }
    Err(told.unwrap_or_else(|| anyhow!("fio wrote no JSON")))
}

/// Parses fio's output.
fn measured(text: &str) -> Result<LoadResult> {
    let json = report(text)?;
    let jobs = json["jobs"].as_array().context("fio reports no jobs")?;
    let mut sum = LoadResult::default();
    for job in jobs {
        let error = job["error"].as_i64().unwrap_or_default();
        ensure!(error == 0, "fio's job ended with error {error}");
        let mut seconds: f64 = 0.0;
        for side in ["read", "write"] {
            let side = &job[side];
            let number =
                |key: &str| side[key].as_u64().with_context(|| format!("fio reports no {key}"));
            let ios = number("total_ios")?;
            sum.ios += ios;
            sum.bytes += number("io_bytes")?;
            seconds = seconds.max(real(number("runtime")?) / 1e3);
            let latency = &side["lat_ns"];
            sum.latency_sum_ns += latency["mean"].as_f64().unwrap_or_default() * real(ios);
            sum.latency_max_ns =
                sum.latency_max_ns.max(latency["max"].as_u64().unwrap_or_default());
            for (nanos, ios) in latency["bins"].as_object().into_iter().flatten() {
                let (Ok(nanos), Some(ios)) = (nanos.parse::<u64>(), ios.as_u64()) else { continue };
                *sum.histogram.entry(nanos).or_default() += ios;
            }
        }
        sum.seconds = sum.seconds.max(seconds);
        let cpu = ["usr_cpu", "sys_cpu"].map(|key| job[key].as_f64().unwrap_or_default());
        sum.cpu_s += cpu.iter().sum::<f64>() / 100.0 * seconds;
    }
    ensure!(sum.ios > 0, "fio did no I/O");
    Ok(sum)
}

/// Computes the series from lines `ms, KiB/s, direction, size, ...` of all jobs and both
/// directions, job after job.
///
/// A line covers the time since the previous line.
fn series(logs: &str) -> Vec<f64> {
    let mut series: Vec<f64> = Vec::new();
    let mut before = [0_usize; 2];
    for line in logs.lines() {
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        let &[ms, rate, direction, ..] = &fields[..] else { continue };
        let (Ok(ms), Ok(rate)) = (ms.parse::<usize>(), rate.parse::<f64>()) else { continue };
        let before = &mut before[usize::from(direction != "0")];
        // The next job begins.
        let from = if ms < *before { 0 } else { *before };
        *before = ms;
        // Rounded to the nearest 100 ms.
        let (from, to) = ((from + 50) / 100, ((ms + 50) / 100).min(MOST_TENTHS));
        series.resize(series.len().max(to), 0.0);
        for gbps in series.iter_mut().take(to).skip(from) {
            *gbps += rate * 1024.0 * 8.0 / 1e9;
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(blocks: &[(u32, f64)]) -> HostJob {
        HostJob {
            name: "job 1".into(),
            devices: vec![0, 1],
            queue_depth: 32,
            threads: 8,
            shares_depth: false,
            weight: 1,
            hosts: Vec::new(),
            blocks: blocks.to_vec(),
            reads: 0.7,
            from: 0,
            until: None,
        }
    }

    fn task(job: &HostJob) -> LoadTask<'_> {
        LoadTask {
            job,
            host: 1,
            address: "rdma://[fe80::1]:4420".into(),
            nqn: "nqn.2026-11.io.x:a".into(),
            nsids: vec![1, 7],
            ramp: 500_000_000,
            time: 1_000_000_000,
            seed: 9,
            cpus: None,
            folder: "/t".into(),
        }
    }

    #[test]
    fn a_job_file_says_what_the_plan_says() {
        let job = job(&[(131_072, 1.0)]);
        let text = job_file(&task(&job), "io_uring", &["/dev/a".into(), "/dev/b".into()], "");
        for line in [
            "ioengine=io_uring",
            "rwmixread=70",
            "bs=131072",
            "iodepth=32",
            "numjobs=8",
            "runtime=1000000us",
            "ramp_time=500000us",
            "filename=/dev/a:/dev/b",
            "randseed=9",
            "log_avg_msec=100",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
        let mixed = self::job(&[(4096, 80.0), (131_072, 20.0)]);
        assert!(
            job_file(&task(&mixed), "io_uring", &[], "").contains("bssplit=4096/80:131072/20\n")
        );
    }

    #[test]
    fn names_for_spdks_plugin() {
        let job = job(&[(4096, 1.0)]);
        assert_eq!(
            spdk_names(&task(&job)).unwrap()[1],
            "trtype=RDMA adrfam=IPv6 traddr=fe80\\:\\:1 trsvcid=4420 subnqn=nqn.2026-11.io.x\\:a ns=7"
        );
        let engine = spdk_engine("/opt/spdk/build/fio/spdk_nvme\n");
        let text = job_file(&task(&job), &engine, &[], &spdk_options(&task(&job)));
        for line in [
            "ioengine=external:/opt/spdk/build/fio/spdk_nvme",
            "thread=1",
            "hostnqn=nqn.2026-11.io.nvmeof-tgt:sweep-host-2",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_recorded_output_is_taken_apart() {
        let text = include_str!("recorded/fio-psync.json");
        let read = measured(text).unwrap();
        assert!(read.ios > 0 && read.bytes == read.ios * 4096, "{read:?}");
        assert_eq!(read.histogram.values().sum::<u64>(), read.ios);
        let latency = read.figures().latency_us;
        assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max && latency.mean > 0.0);
    }

    /// SPDK and DPDK write messages to either output, by version; the report is found with `2>&1`
    /// and without.
    #[test]
    fn the_report_is_found_among_what_spdk_and_dpdk_say() {
        let text = include_str!("recorded/fio-psync.json");
        let notices = include_str!("recorded/spdk-notices.txt");
        let (before, after) = notices.split_once("-- fio's report --\n").unwrap();
        let read = measured(text).unwrap();
        assert_eq!(measured(&format!("{before}{text}{after}")).unwrap(), read);
        assert_eq!(measured(&format!("{{\n  broken\n{text}")).unwrap(), read);
        let failed = format!("{before}{after}");
        assert!(measured(&failed).unwrap_err().to_string().contains("no jobs"));
    }

    #[test]
    fn a_fio_that_fails_is_told_with_its_complaint() {
        let job = job(&[(4096, 1.0)]);
        let mut running = RemoteMachine::Local
            .start(
                "sh",
                &["-c".to_owned(), "echo 'spdk_nvme_probe() failed' >&2; exit 1".to_owned()],
            )
            .unwrap();
        let finished = running.finish(Instant::now() + CONNECT).unwrap();
        let error =
            format!("{:#}", read(&RemoteMachine::Local, &task(&job), &finished).unwrap_err());
        assert_eq!(error, "fio failed: spdk_nvme_probe() failed");
    }

    /// A script in place of fio runs the command of its job file in a shell, as fio does.
    #[test]
    fn the_begin_of_the_load_is_told_and_the_output_of_fio_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let fio = folder.path().join("fio");
        let script = "#!/bin/sh\n\
                      sh -c \"$(sed -n 's/^exec_prerun=//p' \"$2\")\"\ncat \"$2\"\n";
        std::fs::write(&fio, script).unwrap();
        std::fs::set_permissions(&fio, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let own = folder.path().join("0-0").display().to_string();
        let job = job(&[(4096, 1.0)]);
        let task = LoadTask { folder: own, ..task(&job) };
        let jobs = job_file(&task, "null", &[], "");
        let mut running =
            run(&RemoteMachine::Local, &fio.display().to_string(), &task, &jobs).unwrap();
        let until = Instant::now() + CONNECT;
        assert!(running.has_told(BEGINS, until), "the load has begun");
        let finished = running.finish(until).unwrap();
        assert_eq!((finished.status.success(), finished.stdout), (true, jobs));
    }

    #[test]
    fn our_own_load_generator_writes_what_fio_does() {
        let read = measured(include_str!("recorded/perf-fio.json")).unwrap();
        assert!(read.ios >= 500 && read.bytes == read.ios * 4096, "{read:?}");
        assert_eq!(read.histogram.values().sum::<u64>(), read.ios);
        let latency = read.figures().latency_us;
        assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max && latency.mean > 0.0);
    }

    #[test]
    fn garbage_is_told_apart_from_results() {
        for (text, says) in [
            ("", "no JSON"),
            ("fio: failed", "no JSON"),
            ("{\n\"jobs\": [", "broken"),
            ("{}", "no jobs"),
            ("{\"jobs\": [{\"error\": 5}]}", "error 5"),
            ("{\"jobs\": [{\"error\": 0}]}", "total_ios"),
        ] {
            let error = format!("{:#}", measured(text).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn bandwidth_logs_of_all_jobs_add_up() {
        let logs = "100, 1000, 0, 0, 0\n100, 8, 1, 0, 0\n302, 500, 0, 0, 0\n98, 1000, 0, 0, 0\nx\n";
        let gbps = |kib: f64| kib * 1024.0 * 8.0 / 1e9;
        let series = series(logs);
        let wanted = [gbps(2008.0), gbps(500.0), gbps(500.0)];
        assert_eq!(series.len(), 3);
        for (have, wanted) in series.iter().zip(wanted) {
            assert!((have - wanted).abs() < 1e-12, "{have} {wanted}");
        }
    }
}
