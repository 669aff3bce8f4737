//! Real machines as a backend: the daemon on one, load generators on the same or on more.
//!
//! ```text
//! Setup --config--> daemon's TOML -> Target (machine) <--load-- Generator a host and job (machine)
//!                                        |                             |
//!                                        '--counters, statistics--> gather --> Point
//! ```
//!
//! | file | content |
//! |---|---|
//! | `machine`, `process` | a program here or over ssh, ended however the sweep ends |
//! | `reserved_machines` | the machines while the sweep lasts |
//! | `config` | the daemon's config for a point |
//! | `target`, `counters`, `cache` | the running daemon, and counters of kernel and processor |
//! | `load` | one file per load generator |
//! | `gather` | one point from all of it |

mod cache;
mod config;
mod counters;
mod gather;
mod load;
mod machine;
mod process;
mod reserved_machines;
mod target;

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use nvmeof_report::{Point, RunOrigin};

use super::super::conditions::RunMachine;
use super::super::plan::PlannedPoint;
use super::super::setup::{DeviceKind, Initiator, PointSetup};
use super::{PointRun, SweepBackend, digest};
use crate::interrupt;
use crate::listen::ListenAddress;
use cache::CacheCounters;
use config::DaemonSetup;
use counters::TargetInterface;
use gather::PointSources;
use load::{LoadProgram, LoadResult, LoadTask, ProgramPaths};
use machine::RemoteMachine;
use process::{FinishedProcess, RunningProcess};
use reserved_machines::ReservedMachines;
use target::DaemonProcess;

/// Time for load generators to connect and to end, in addition to the measured time.
const SLACK: Duration = Duration::from_secs(60);
/// Program on the target's machine that counts hits in the cache.
const LINUX_PERF: &str = "perf";
/// Interval of checks on running programs.
const LOOK: Duration = Duration::from_millis(20);

/// Result of counting hits in the cache, if there were counters.
type CountedHits = Option<Result<FinishedProcess>>;

/// Machines that the user names.
#[derive(Debug, Clone)]
pub(crate) struct NamedMachines {
    pub(crate) place: RunOrigin,
    pub(crate) listen: ListenAddress,
    /// The target's machine; this machine if `None`.
    pub(crate) target: Option<String>,
    /// Machines of the plan's hosts, assigned in turn; this machine if empty.
    pub(crate) hosts: Vec<String>,
    pub(crate) ssh_options: Vec<String>,
    /// CPUs of the target's reactors, and of each host's load generator.
    pub(crate) target_cpus: Vec<usize>,
    pub(crate) host_cpus: Option<String>,
    pub(crate) drives: Vec<String>,
    /// Programs on the target and on the hosts.
    pub(crate) tgt: String,
    pub(crate) perf: String,
    pub(crate) fio: String,
    pub(crate) spdk_plugin: Option<String>,
}

/// The machines, checked and ready.
#[derive(Debug)]
pub(crate) struct RealMachines {
    machines: NamedMachines,
    reserved: ReservedMachines,
    programs: ProgramPaths,
    wire: TargetInterface,
    cache: CacheCounters,
    /// Description of the target's machine.
    platform: String,
    /// Description of the programs and their machines.
    about: String,
    /// The same for the block of a report.
    on: RunMachine,
}

impl RealMachines {
    /// Checks every machine: it must answer and have everything that the plan requires.
    pub(crate) fn new(machines: NamedMachines, points: &[PlannedPoint]) -> Result<Self> {
        let programs = ProgramPaths {
            perf: machines.perf.clone(),
            fio: machines.fio.clone(),
            spdk_plugin: machines.spdk_plugin.clone(),
        };
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let sweep = digest(format!("{} {now}", std::process::id()).as_bytes());
        let reserved = ReservedMachines::reach(&machines, &sweep)?;
        let wire = TargetInterface::of(&reserved.target, machines.listen.address)?;
        let cache = CacheCounters::probe(&reserved.target, LINUX_PERF);
        let platform = describe(&reserved.target)?;
        let target = platform.clone();
        let on = RunMachine { target, hosts: String::new(), commit: String::new() };
        let about = String::new();
        let mut this = Self { machines, reserved, programs, wire, cache, platform, about, on };
        let (version, mut about) = (this.daemon_version()?, this.check_programs(points)?);
        this.on.commit = match nvmeof_build_info::commit_in(&version) {
            Some(commit) => commit.to_owned(),
            None => format!("unknown; the program says {version}"),
        };
        this.on.hosts = about.join("; ");
        about.insert(0, format!("{version} on {}", this.platform));
        about.extend(this.stand_in(points));
        this.about = about.join("; ");
        Ok(this)
    }

    /// Returns what the daemon on the target says of its version.
    fn daemon_version(&self) -> Result<String> {
        let version = format!("{} --version", machine::quoted(&self.machines.tgt));
        let version = self.reserved.target.query(&version).with_context(|| {
            format!("no nvmeof-tgt on {}: say where it is with --tgt PATH", self.reserved.target)
        })?;
        Ok(version.trim().to_owned())
    }

    /// Returns the programs on each host; a missing requirement ends the sweep before it begins.
    fn check_programs(&self, points: &[PlannedPoint]) -> Result<Vec<String>> {
        let mut about = Vec::new();
        let mut seen: Vec<(usize, Initiator)> = Vec::new();
        for point in points {
            for (at, host) in point.setup.hosts.iter().enumerate() {
                let (at, initiator) = (at % self.reserved.hosts.len(), self.initiator(*host));
                if !seen.contains(&(at, initiator)) {
                    seen.push((at, initiator));
                }
            }
        }
        for (at, initiator) in seen {
            let machine = &self.reserved.hosts[at];
            let programs = load::generator(initiator, &self.programs).versions(machine)?;
            about.push(format!("{programs} on {}", describe(machine)?));
            let behind = clock_apart(machine)?;
            ensure!(
                behind < 5.0,
                "the clock of {machine} is {behind:.0} s off: set the clock, or results cannot be \
                 distinguished by time"
            );
        }
        Ok(about)
    }

    /// Returns what stands for the plan's drives, if anything does.
    fn stand_in(&self, points: &[PlannedPoint]) -> Option<String> {
        let stands_in = |point: &PlannedPoint| {
            let drives = !matches!(point.setup.devices.kind, DeviceKind::Null);
            drives && point.setup.config.is_none()
        };
        let us = config::STAND_IN_LATENCY / 1000;
        (self.machines.drives.is_empty() && points.iter().any(stands_in))
            .then(|| format!("null devices that take {us} us longer stand for the drives"))
    }

    /// Returns the initiator; on this machine alone, `nvmeof-perf` replaces the initiators of the
    /// kernel and SPDK.
    fn initiator(&self, planned: Initiator) -> Initiator {
        match planned {
            Initiator::FioKernel | Initiator::FioSpdk
                if self.machines.place == RunOrigin::Local =>
            {
                Initiator::Perf
            }
            planned => planned,
        }
    }

    fn daemon_setup(&self, setup: &PointSetup) -> DaemonSetup {
        let cpus = &self.machines.target_cpus;
        let wanted = setup.cores as usize;
        let list: Vec<_> = cpus[..wanted].iter().map(ToString::to_string).collect();
        DaemonSetup {
            listen: self.machines.listen,
            cpus: list.join(","),
            reactors: u32::try_from(wanted).unwrap_or(u32::MAX),
            drives: self.machines.drives.clone(),
        }
    }

    fn measure(&self, run: &PointRun<'_>) -> Result<Point> {
        let setup = &run.point.setup;
        let daemon_setup = self.daemon_setup(setup);
        let served = config::served(setup, &daemon_setup)?;
        let folder = self.reserved.target_folder();
        let mut target =
            DaemonProcess::start(&self.reserved.target, &self.machines.tgt, folder, &served)?;
        let address = self.reachable(&target.address);
        let mut tasks = Vec::new();
        for (number, job) in setup.jobs.iter().enumerate() {
            for host in 0..setup.hosts.len() {
                if !job.hosts.is_empty() && !job.hosts.iter().any(|own| *own as usize == host) {
                    continue;
                }
                let folder = format!("{}/{host}-{number}", self.reserved.host(host).1);
                let nsids = job.devices.iter().map(|at| served.nsids[*at as usize]).collect();
                let task = LoadTask {
                    job,
                    host,
                    address: address.clone(),
                    nqn: served.nqn.clone(),
                    nsids,
                    ramp: setup.ramp,
                    time: setup.time,
                    seed: run.seed.wrapping_add(tasks.len() as u64),
                    cpus: self.machines.host_cpus.clone(),
                    folder,
                };
                tasks.push((number, task));
            }
        }
        let (measured, change, counted) = self.load(setup, &tasks, &mut target)?;
        let (hits, hit_from) = self.cache.read(counted);
        let moments = target.stop()?;
        let gathered = PointSources {
            run,
            place: self.machines.place,
            platform: &self.platform,
            machines: &self.about,
            on: &self.on,
            fingerprint: self.fingerprint(setup, run.seed),
            interface: &self.wire.interface,
            tasks: &tasks,
            measured: &measured,
            change,
            hits: &hits,
            hit_from,
            moments: &moments,
        };
        Ok(gather::point(&gathered))
    }

    /// Connects, starts all load generators together, and waits.
    fn load(
        &self,
        setup: &PointSetup,
        tasks: &[(usize, LoadTask<'_>)],
        target: &mut DaemonProcess<'_>,
    ) -> Result<(Vec<LoadResult>, counters::CounterChange, CountedHits)> {
        let generators: Vec<Box<dyn LoadProgram>> =
            setup.hosts.iter().map(|host| load::generator(*host, &self.programs)).collect();
        let connections = self.connect(&generators, tasks)?;
        let mut running = Vec::new();
        for (_, task) in tasks {
            let started = generators[task.host].start(self.machine_of(task.host), task);
            running.push(started.with_context(|| self.name_of(task.host))?);
        }
        let mut loads = RunningLoads { machines: self, tasks, running, target };
        let (change, hits) = loads.count(setup)?;
        let limit = Instant::now() + SLACK;
        loads.wait(limit, |running| running.iter_mut().all(RunningProcess::has_ended))?;
        let mut measured = Vec::new();
        for ((_, task), running) in tasks.iter().zip(&mut loads.running) {
            let machine = self.machine_of(task.host);
            let read = running
                .finish(limit)
                .and_then(|finished| generators[task.host].read(machine, task, &finished));
            measured.push(
                read.with_context(|| format!("{}, {}", self.name_of(task.host), task.job.title()))?,
            );
        }
        for mut connection in connections {
            connection.stop().context("a host does not disconnect")?;
        }
        let hits = hits.map(|running| running.and_then(|mut running| running.finish(limit)));
        Ok((measured, change, hits))
    }

    /// Connects every host: one connection carries all its jobs.
    fn connect(
        &self,
        generators: &[Box<dyn LoadProgram>],
        tasks: &[(usize, LoadTask<'_>)],
    ) -> Result<Vec<RunningProcess>> {
        let mut connections = Vec::new();
        for (host, generator) in generators.iter().enumerate() {
            let mut own = tasks.iter().filter(|(_, task)| task.host == host);
            let Some((_, first)) = own.next() else { continue };
            let mut task = first.clone();
            task.nsids.extend(own.flat_map(|(_, task)| &task.nsids));
            task.nsids.sort_unstable();
            task.nsids.dedup();
            let connected = generator.connect(self.machine_of(host), &task);
            connections.extend(connected.with_context(|| self.name_of(host))?);
        }
        Ok(connections)
    }

    fn machine_of(&self, host: usize) -> &RemoteMachine {
        self.reserved.host(host).0
    }

    fn name_of(&self, host: usize) -> String {
        format!("host {} ({})", host + 1, self.machine_of(host))
    }

    /// Returns the address for hosts: the daemon's port at the address by which hosts reach it.
    fn reachable(&self, ready: &str) -> String {
        let port = ready.rsplit(':').next().unwrap_or_default();
        let ListenAddress { fabric, address, .. } = self.machines.listen;
        let host = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        format!("{}://{host}:{port}", fabric.name())
    }
}

/// The load generators of one run, and the target that they load.
struct RunningLoads<'a, 'b> {
    machines: &'a RealMachines,
    tasks: &'a [(usize, LoadTask<'a>)],
    running: Vec<RunningProcess>,
    target: &'a mut DaemonProcess<'b>,
}

impl RunningLoads<'_, '_> {
    /// Counts at the target while the load is measured: from the end of the ramp, which begins when
    /// the last load generator tells that its load begins, until the end of the measured time.
    fn count(
        &mut self,
        setup: &PointSetup,
    ) -> Result<(counters::CounterChange, Option<Result<RunningProcess>>)> {
        let limit = Instant::now() + SLACK;
        for at in 0..self.running.len() {
            while !self.running[at].has_told(process::BEGINS, Instant::now() + LOOK) {
                self.check()?;
                if self.running[at].has_ended() || Instant::now() >= limit {
                    let host = self.machines.name_of(self.tasks[at].1.host);
                    bail!("{host}: no load began: {}", self.running[at].complaint());
                }
            }
        }
        let time = Duration::from_nanos(setup.time);
        let begin = Instant::now() + Duration::from_nanos(setup.ramp);
        self.wait(begin, |_| false)?;
        let before = self.target.counters(&self.machines.wire)?;
        // Reading takes a while: the second reading has to end with the load.
        let reading = begin.elapsed().min(time / 4);
        let counted = time.saturating_sub(2 * reading);
        let hits = self.machines.cache.start(&self.machines.reserved.target, counted).transpose();
        self.wait(begin + time - reading, |running| {
            running.iter_mut().any(RunningProcess::has_ended)
        })?;
        let after = self.target.counters(&self.machines.wire)?;
        Ok((after.since(&before), hits))
    }

    /// Waits until a time, or until the load generators fulfill a condition.
    fn wait(
        &mut self,
        until: Instant,
        wanted: impl Fn(&mut [RunningProcess]) -> bool,
    ) -> Result<()> {
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if wanted(&mut self.running) || left.is_zero() {
                return Ok(());
            }
            thread::sleep(LOOK.min(left));
        }
    }

    /// Fails if the user has interrupted the sweep, or the target or a load generator has failed.
    fn check(&mut self) -> Result<()> {
        if interrupt::is_noted() {
            bail!("interrupted");
        }
        self.target.check()?;
        for ((_, task), running) in self.tasks.iter().zip(&mut self.running) {
            if running.has_ended()
                && let Ok(finished) = running.finish(Instant::now() + LOOK)
                && !finished.status.success()
            {
                let host = self.machines.name_of(task.host);
                bail!("{host}: {} ({})", finished.complaint(), finished.status);
            }
        }
        Ok(())
    }
}

impl SweepBackend for RealMachines {
    fn platform(&self) -> String {
        self.platform.clone()
    }

    fn check(&self, point: &PlannedPoint) -> Result<()> {
        let setup = &point.setup;
        ensure!(
            setup.disturbances.is_empty(),
            "disturb: only the simulator can; exclude the entry with only-where = [\"sim\"]"
        );
        ensure!(
            setup.platform.is_empty(),
            "platform: only the simulator's machine has numbers to change; use only-where = [\"sim\"]"
        );
        for job in &setup.jobs {
            ensure!(
                job.from == 0 && job.until.is_none(),
                "{}: `from` and `until` are for the simulator",
                job.title()
            );
        }
        for host in &setup.hosts {
            ensure!(
                *host != Initiator::Local,
                "host.initiator = \"local\": only the simulator; `nvmeof-perf run --device` loads a \
                 drive without a fabric"
            );
            let generator = load::generator(*host, &self.programs);
            setup.jobs.iter().try_for_each(|job| generator.check(job))?;
        }
        config::served(setup, &self.daemon_setup(setup)).map(|_| ())
    }

    /// Returns the point with the CPUs of the target and the available initiators.
    fn adapted(&self, point: &PlannedPoint) -> PlannedPoint {
        let mut point = point.clone();
        let have = u32::try_from(self.machines.target_cpus.len()).unwrap_or(u32::MAX);
        point.setup.cores = point.setup.cores.min(have);
        for host in &mut point.setup.hosts {
            *host = self.initiator(*host);
        }
        for varied in &mut point.varied {
            match varied.key.as_str() {
                "target.cores" => varied.value = point.setup.cores.to_string(),
                "host.initiator" => varied.value = point.setup.hosts[0].name().to_owned(),
                _ => {}
            }
        }
        point
    }

    fn fingerprint(&self, setup: &PointSetup, seed: u64) -> String {
        let repeat_is_not_in_it = PointSetup { repeat: 1, ..setup.clone() };
        let machines = (&self.machines.listen, &self.machines.target_cpus, &self.machines.drives);
        digest(format!("{repeat_is_not_in_it:?} {seed} {machines:?} {}", self.about).as_bytes())
    }

    fn run(&self, run: &PointRun<'_>) -> Result<Point> {
        self.measure(run)
    }

    fn parallel_points(&self) -> usize {
        1
    }

    fn is_interrupted(&self) -> bool {
        interrupt::is_noted()
    }
}

/// Returns processor, CPUs and kernel.
fn describe(machine: &RemoteMachine) -> Result<String> {
    let text = machine.query("grep -m 1 'model name' /proc/cpuinfo; nproc; uname -r")?;
    let lines: Vec<_> = text.lines().collect();
    let [model, cpus, kernel] = lines[..] else { bail!("{machine}: not understood: {text}") };
    let model = model.split(':').nth(1).unwrap_or("").trim();
    Ok(format!("{model}, {cpus} CPUs, Linux {kernel}"))
}

/// Returns the offset in seconds between a machine's clock and the local clock.
fn clock_apart(machine: &RemoteMachine) -> Result<f64> {
    let text = machine.query("date +%s.%N")?;
    let there: f64 = text.trim().parse().with_context(|| format!("{machine}: no time: {text}"))?;
    let here = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    Ok((here - there).abs())
}
