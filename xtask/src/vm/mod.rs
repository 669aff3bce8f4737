//! `cargo xtask vm`: a QEMU machine in which a distribution's kernel is the NVMe-oF host.
//!
//! It needs no network card, no drive and no nested virtualization. One case is one or more boots.
//! Each boot runs a script from `xtask/vm/` and must report every part the script lists.

mod apt;
mod case;
mod drives;
mod initramfs;
mod kernel;
mod qemu;
mod qmp;
mod root;
mod shared_folder;

use std::env;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, run_checked};
use nvmeof_workspace::parallel::run_parallel;

use self::case::{Boot, Guest, VmCase, VmTarget};
use self::drives::DriveBay;
use self::kernel::{GuestKernel, SuiteKernel};
use self::qemu::{Accel, BootEnd, BootEnding, GuestLink, VmMachine};
use self::shared_folder::SharedFolder;
use crate::{deb, lab, setup};

/// Builds of the programs that the guest runs: the release programs, and the laboratory.
pub(crate) const PROGRAM_BUILDS: &[&[&str]] = &[
    &[
        "build",
        "--release",
        "--locked",
        "-p",
        "nvmeof-tgt",
        "-p",
        "nvmeof-ctl",
        "-p",
        "nvmeof-perf",
    ],
    &["build", "--release", "--locked", "-p", "nvmeof-verbs", "--example", "ping"],
    &[
        "build",
        "--release",
        "--locked",
        "-p",
        "nvmeof-core",
        "--example",
        "vfio_probe",
        "--example",
        "nvme_bench",
    ],
    &lab::BUILD,
];

/// Default time limit of a boot.
///
/// The guest ends itself at the limit, with its state in the log.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// Time limit of the trial boot under hardware virtualization.
const TRIAL_LIMIT: Duration = Duration::from_secs(20);
/// Size of each of the machine's two disks; sparse files.
const DISK_BYTES: u64 = 256 << 20;
const DISKS: usize = 2;
/// Number of boots of a machine that fails before it tests anything.
///
/// An emulated machine occasionally stalls before its script begins. Its kernel can also wait
/// without a task where a connection ends, and QEMU 7.2 can crash where its guest restarts.
const TRIES: usize = 3;
/// The part that runs the RDMA host of PyPI, whose wheels its guest needs.
const PYTHON_PART: &str = "rdma-python";
/// Lines of the serial log that are shown when a boot fails.
const TAIL_LINES: usize = 80;

#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct VmArgs {
    /// The case to run
    #[arg(value_name = "CASE", required_unless_present = "list")]
    case: Option<String>,
    /// List the cases, their boots and the parts each must run
    #[arg(long)]
    list: bool,
    /// Run only this boot of the case
    #[arg(long, value_name = "BOOT")]
    boot: Option<String>,
    /// Run only this part, again for more (not the whole case, so never a pass of it)
    #[arg(long, value_name = "PART")]
    part: Vec<String>,
    /// Run the scripts against this target
    #[arg(long, value_enum, default_value = "ours")]
    target: VmTarget,
    /// Boot this Debian kernel, or each of them, instead of the one of this machine's distribution
    #[arg(long, value_name = "KERNEL", value_parser = PossibleValuesParser::new(kernel::names()))]
    kernel: Option<String>,
    /// Use KVM if a short trial boot works with it; otherwise report it and emulate
    #[arg(long)]
    kvm: bool,
    /// Count instructions instead of time: each takes 2^SHIFT ns of the guest's time, it has one
    /// CPU, and its speeds are the same on a busy machine
    #[arg(long, value_name = "SHIFT", num_args = 0..=1, default_missing_value = "2", conflicts_with = "kvm")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=10))]
    icount: Option<u8>,
    /// Use the existing release binaries, without building
    #[arg(long)]
    no_build: bool,
    /// Measure only briefly, to verify that measuring works
    #[arg(long)]
    short: bool,
    /// Concurrent boots, each with two CPUs to emulate and 1 GiB: on a machine with more than two.
    /// One that measures runs alone, unless `--short` is given
    #[arg(short, long, value_name = "N", default_value = "1")]
    jobs: NonZeroUsize,
    /// Show the serial line while it runs
    #[arg(short, long, conflicts_with = "jobs")]
    verbose: bool,
}

fn after_help() -> String {
    let mut text = String::from("Cases:\n");
    for case in case::CASES {
        text.push_str(&format!("  {:<9} {}\n", case.name, case.about));
    }
    text.push_str(
        "\nExample: cargo xtask vm tcp\n         cargo xtask vm rdma --boot data --verbose\n         \
         cargo xtask vm tcp-short --kernel all",
    );
    text
}

/// Runs a case, or lists the cases.
pub(crate) fn run(args: &VmArgs) -> Result<ExitCode> {
    if args.list {
        list(args.target);
        return Ok(ExitCode::SUCCESS);
    }
    let case = case::find(args.case.as_deref().unwrap_or_default())?;
    let workspace = Workspace::find()?;
    setup::ensure(&[setup::BUILD, setup::VM, setup::VM_RDMA])?;
    if case.name == "profile" {
        setup::ensure(&[setup::VM_PROFILE])?;
    }
    if case.boots.iter().any(Boot::is_rooted) {
        setup::ensure(&[setup::DEB])?;
    }
    if case.name == "rdma" {
        setup::ensure(&[setup::PYTHON])?;
    }
    if args.kernel.is_some() || case.boots.iter().any(Boot::is_rooted) {
        setup::ensure(&[setup::VM_ROOT])?;
    }
    if args.target == VmTarget::Ours && case.name != "boot" && !args.no_build {
        for build in PROGRAM_BUILDS {
            run_checked(&mut workspace.cargo(build.iter().copied()))?;
        }
    }
    let failures = run_boots(&workspace, case, args)?;
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every part of a case against the existing release binaries, measuring briefly, and returns
/// the failures.
///
/// `kernel` is an argument of `--kernel`.
pub(crate) fn run_case(
    workspace: &Workspace,
    name: &str,
    kernel: Option<&str>,
) -> Result<Vec<String>> {
    let args = VmArgs {
        case: None,
        list: false,
        boot: None,
        part: Vec::new(),
        target: VmTarget::Ours,
        kernel: kernel.map(str::to_owned),
        kvm: false,
        icount: None,
        no_build: true,
        short: true,
        jobs: NonZeroUsize::MIN,
        verbose: false,
    };
    run_boots(workspace, case::find(name)?, &args)
}

/// Runs the chosen boots of a case on each chosen kernel, reports the failures and returns them.
fn run_boots(workspace: &Workspace, case: &VmCase, args: &VmArgs) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for kernel in kernel::by_name(args.kernel.as_deref()) {
        failures.extend(run_boots_on(workspace, case, args, kernel)?);
    }
    Ok(failures)
}

fn run_boots_on(
    workspace: &Workspace,
    case: &VmCase,
    args: &VmArgs,
    kernel: Option<&'static SuiteKernel>,
) -> Result<Vec<String>> {
    let wanted = |boot: &&Boot| args.boot.as_ref().is_none_or(|name| boot.name == *name);
    let mut chosen: Vec<(&Boot, Vec<Vec<&str>>)> = case
        .boots
        .iter()
        .filter(wanted)
        .map(|boot| (boot, choose(case, boot, args)))
        .filter(|(_, parts)| parts.iter().any(|list| !list.is_empty()))
        .collect();
    if chosen.is_empty() {
        bail!("the case {} has no such boot or part: see `cargo xtask vm --list`", case.name);
    }
    let mut bench = VmRunner::prepare(workspace, args, kernel)?;
    let mut is_whole = args.boot.is_none() && args.part.is_empty();
    if chosen.iter().any(|(_, parts)| parts.iter().flatten().any(|part| *part == PYTHON_PART)) {
        match setup::nvmeof_wheels(workspace) {
            Ok(folder) => bench.wheels = Some(folder),
            Err(error) if args.part.is_empty() => {
                say!("vm {}: the part {PYTHON_PART} is skipped: {error:#}", case.name);
                let lists = chosen.iter_mut().flat_map(|(_, parts)| parts);
                lists.for_each(|list| list.retain(|part| *part != PYTHON_PART));
                is_whole = false;
            }
            Err(error) => return Err(error),
        }
    }
    if chosen.iter().any(|(boot, _)| boot.is_rooted()) {
        for revision in [1, 2] {
            bench.packages.push(deb::build(workspace, revision)?);
        }
    }
    let alone = |(boot, _): &(&Boot, _)| !args.short && boot.measures();
    let results = run_parallel(&chosen, args.jobs.get(), alone, |(boot, parts)| {
        bench.run_boot(case, boot, parts)
    });
    let (mut failed, mut failures) = (Vec::new(), Vec::new());
    for ((boot, _), result) in chosen.iter().zip(results) {
        let found = result.with_context(|| format!("cannot run {} {}", case.name, boot.name))?;
        if !found.is_empty() {
            failed.push(boot.name);
        }
        failures.extend(found);
    }
    if failed.is_empty() {
        let extent = if is_whole { "every" } else { "the chosen" };
        say!(
            "vm {}: {extent} part of {extent} boot ran and passed (Linux {})",
            case.name,
            bench.kernel.release()
        );
        return Ok(failures);
    }
    say!("vm {}: FAILED in {}", case.name, failed.join(", "));
    let on = kernel.map(|kernel| format!(" --kernel {}", kernel.name)).unwrap_or_default();
    for boot in failed {
        let target = args.target.name();
        say!("  again: cargo xtask vm {} --boot {boot} --target {target}{on}", case.name);
    }
    Ok(failures)
}

/// Returns the parts that each guest runs: all that it lists, or the requested ones of them.
fn choose(case: &VmCase, boot: &Boot, args: &VmArgs) -> Vec<Vec<&'static str>> {
    let asked = |part: &&str| args.part.is_empty() || args.part.iter().any(|name| name == part);
    let listed = |guest: &Guest| guest.parts(args.target, case.fabric);
    boot.guests.iter().map(|guest| listed(guest).into_iter().filter(asked).collect()).collect()
}

fn list(target: VmTarget) {
    for case in case::CASES {
        say!("{}: {}", case.name, case.about);
        for boot in case.boots {
            for guest in boot.guests {
                let name = format!("{} {}", boot.name, guest.name);
                say!("  {name:<10} {}", guest.parts(target, case.fabric).join(" "));
            }
        }
    }
}

/// Resources that every boot of this run uses.
#[derive(Debug)]
struct VmRunner<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    kernel: GuestKernel,
    /// Name of a kernel that is not this machine's own, in the names of logs.
    kernel_name: Option<&'static str>,
    initramfs: PathBuf,
    accel: Accel,
    target: VmTarget,
    short: bool,
    verbose: bool,
    /// Held during the report on a boot, so that reports do not mix.
    report: Mutex<()>,
    /// Packages for the guest's own Debian: the daemon's package, and one to upgrade to.
    packages: Vec<PathBuf>,
    /// Folder of the wheels for [`PYTHON_PART`].
    wheels: Option<PathBuf>,
    /// Held while xtask runs: two runs of one checkout would share logs and disks.
    _lock: File,
}

impl<'a> VmRunner<'a> {
    fn prepare(
        workspace: &'a Workspace,
        args: &VmArgs,
        kernel: Option<&'static SuiteKernel>,
    ) -> Result<Self> {
        let folder = workspace.target().join("vm");
        fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join("lock"))?;
        if lock.try_lock().is_err() {
            say!("waiting for another `cargo xtask vm` of this checkout");
            lock.lock().context("cannot lock the machine's folder")?;
        }
        let kernel_name = kernel.map(|kernel| kernel.name);
        let kernel = GuestKernel::prepare(&cache(&folder), kernel)?;
        let initramfs = folder.join("initramfs.cpio");
        initramfs::build(&kernel, &folder.join("initramfs"), &initramfs)?;
        let mut bench = Self {
            workspace,
            folder,
            kernel,
            kernel_name,
            initramfs,
            accel: args.icount.map_or(Accel::Tcg, |shift| Accel::Counted { shift }),
            target: args.target,
            short: args.short,
            verbose: args.verbose,
            report: Mutex::new(()),
            packages: Vec::new(),
            wheels: None,
            _lock: lock,
        };
        if args.kvm {
            bench.try_kvm()?;
        }
        Ok(bench)
    }

    /// Selects KVM if the machine boots with it: on emulated hardware, kernels hang or die.
    fn try_kvm(&mut self) -> Result<()> {
        let trial = case::find("boot")?;
        self.accel = Accel::Kvm;
        for boot in trial.boots {
            let parts: Vec<_> =
                boot.guests.iter().map(|guest| guest.parts(self.target, trial.fabric)).collect();
            let runs = self.boot(trial, boot, &parts, TRIAL_LIMIT)?;
            if let Some(run) = runs.iter().find(|run| run.ending.end != BootEnd::Success) {
                let end = run.ending.end;
                say!("KVM: the trial boot ended with {end:?}: emulating instead");
                self.accel = Accel::Tcg;
                return Ok(());
            }
        }
        say!("KVM: the trial boot worked");
        Ok(())
    }

    /// Runs one boot and reports on it; returns the parts that its guests list and did not run or
    /// pass.
    fn run_boot(&self, case: &VmCase, boot: &Boot, parts: &[Vec<&str>]) -> Result<Vec<String>> {
        say!(
            "vm {} {}: Linux {}, target {}, {:?}",
            case.name,
            boot.name,
            self.kernel.release(),
            self.target.name(),
            self.accel
        );
        let mut failures = Vec::new();
        let limit = boot.guests.iter().filter_map(Guest::limit).max().unwrap_or(BOOT_LIMIT);
        let mut runs = self.boot(case, boot, parts, limit)?;
        for again in 1..TRIES {
            if runs.iter().any(|run| has_failures(&run.log)) {
                // A failure before the machine's failure stays a failure.
                break;
            }
            let Some(run) = runs.iter().find(|run| run.ending.end.is_of_the_machine()) else {
                break;
            };
            let kept = run.log.with_extension(format!("before-{again}.log"));
            fs::rename(&run.log, &kept)?;
            let why = why(run.ending.end);
            say!("vm {}: {why}; again (what it said: {})", run.name, kept.display());
            runs = self.boot(case, boot, parts, limit)?;
        }
        let _report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        for (run, parts) in runs.iter().zip(parts) {
            failures.extend(self.judge(run, parts)?);
        }
        Ok(failures)
    }

    /// Reports on one guest's run; returns the failure, unless every part ran and passed.
    fn judge(&self, run: &GuestRun, parts: &[&str]) -> Result<Option<String>> {
        let name = &run.name;
        let log = String::from_utf8_lossy(&fs::read(&run.log)?).into_owned();
        let missing = case::missing(parts, &log);
        if !self.verbose {
            for line in log.lines().filter(|line| is_report(line)) {
                say!("  {}", line.trim_start());
            }
        }
        let took = run.ending.took.as_secs_f32();
        if run.ending.end == BootEnd::Success && missing.is_empty() {
            say!("vm {name}: {} parts ok in {took:.1} s", parts.len());
            return Ok(None);
        }
        if !self.verbose {
            say!("--- the last {TAIL_LINES} lines of {}", run.log.display());
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
                say!("| {line}");
            }
        }
        say!("vm {name}: FAILED after {took:.1} s: {}", why(run.ending.end));
        if !missing.is_empty() {
            say!("  parts that did not run or did not pass: {}", missing.join(", "));
        }
        say!(
            "  serial log: {}; the daemon's own log is in the folder next to it",
            run.log.display()
        );
        let said: Vec<&str> = log.lines().map(str::trim).filter(|line| is_failure(line)).collect();
        let parts = missing.join(", ");
        Ok(Some(format!("{name}: {}; parts: {parts}; {}", why(run.ending.end), said.join("; "))))
    }

    /// Runs the guests of a boot at the same time, each with its own parts.
    fn boot(
        &self,
        case: &VmCase,
        boot: &Boot,
        parts: &[Vec<&str>],
        limit: Duration,
    ) -> Result<Vec<GuestRun>> {
        let sockets = VmSockets::new(&[case.name, boot.name].join("-"))?;
        let links = match boot.guests.len() {
            1 => vec![None],
            2 => {
                let meeting = self.folder.join(format!("{}-{}-meeting", case.name, boot.name));
                GuestLink::pair(shared_folder::fresh(meeting)?, sockets.paths()).map(Some).to_vec()
            }
            more => bail!("{more} guests: only two can be joined"),
        };
        thread::scope(|scope| {
            let guests = boot.guests.iter().zip(parts).zip(links);
            let runs: Vec<_> = guests
                .map(|((guest, parts), link)| {
                    let monitor = sockets.monitor(guest);
                    scope.spawn(move || {
                        self.run_guest(
                            case,
                            boot,
                            guest,
                            parts,
                            GuestConnections { link, monitor },
                            limit,
                        )
                    })
                })
                .collect();
            let end = |run: thread::ScopedJoinHandle<'_, _>| match run.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            runs.into_iter().map(end).collect()
        })
    }

    fn run_guest(
        &self,
        case: &VmCase,
        boot: &Boot,
        guest: &Guest,
        parts: &[&str],
        wires: GuestConnections,
        limit: Duration,
    ) -> Result<GuestRun> {
        let words = [case.name, boot.name, guest.name, self.kernel_name.unwrap_or_default()];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let name = &words.join("-");
        let wheels = self.wheels.as_ref().filter(|_| parts.contains(&PYTHON_PART));
        let parts = format!("\"{}\"", parts.join(" "));
        let settings = [
            ("TARGET", self.target.name()),
            ("FABRIC", case.fabric.name()),
            ("GUEST", guest.name),
            ("PARTS", &parts),
            ("CLOCK", self.accel.clock()),
            ("MEASURE", if self.short { "shortly" } else { "wholly" }),
        ];
        let shared_folder = SharedFolder::create(self.folder.join(name), guest.script, &settings)?;
        let root =
            guest.root().map(|release| self.root(release, name, &shared_folder)).transpose()?;
        let needs_ours = self.target == VmTarget::Ours && case.name != "boot" && root.is_none();
        if needs_ours {
            for program in ["nvmeof-tgt", "nvmeof-perf", "nvmeofctl"] {
                shared_folder.add_program(&self.workspace.release_binary(program))?;
            }
            for example in ["ping", "vfio_probe", "nvme_bench"] {
                let path = self.workspace.release_binary(&format!("examples/{example}"));
                shared_folder.add_program(&path)?;
            }
            shared_folder.add_program(&lab::program(self.workspace))?;
        }
        if let Some(wheels) = wheels {
            shared_folder.add_folder(wheels)?;
        }
        let disks = self.disks(name)?;
        let bay = DriveBay::new(case.drives, &self.folder, name, wires.monitor)?;
        let log = self.folder.join(format!("{name}.log"));
        let machine = VmMachine {
            vmlinux: &self.kernel.vmlinux(),
            initramfs: &self.initramfs,
            modules: &self.kernel.modules(),
            shared_folder: shared_folder.folder(),
            link: wires.link,
            disks: &disks,
            root: root.as_deref(),
            bay: &bay,
            log: &log,
            accel: self.accel,
            limit,
            echo: self.verbose,
        };
        let ending = machine.boot()?;
        for disk in disks.iter().chain(&root) {
            fs::remove_file(disk)?;
        }
        Ok(GuestRun { name: words.join(" "), ending, log })
    }

    /// Returns a disk with a Debian of this release; puts the packages and the operator's pages
    /// into the share.
    fn root(&self, release: &str, name: &str, shared_folder: &SharedFolder) -> Result<PathBuf> {
        let kept = root::prepare(&cache(&self.folder), release)?;
        let disk = self.folder.join(format!("{name}-root.raw"));
        run_checked(std::process::Command::new("cp").arg("--sparse=always").arg(kept).arg(&disk))?;
        for package in &self.packages {
            shared_folder.add_file(package)?;
        }
        shared_folder.add_folder(&self.workspace.root().join("docs"))?;
        Ok(disk)
    }

    fn disks(&self, name: &str) -> Result<Vec<PathBuf>> {
        (0..DISKS)
            .map(|index| {
                let path = self.folder.join(format!("{name}-disk{index}.raw"));
                File::create(&path)?.set_len(DISK_BYTES)?;
                Ok(path)
            })
            .collect()
    }
}

/// End of one guest's run, and its log.
#[derive(Debug)]
struct GuestRun {
    name: String,
    ending: BootEnding,
    log: PathBuf,
}

/// Connections of one guest with the outside.
#[derive(Debug)]
struct GuestConnections {
    /// Network to a second guest.
    link: Option<GuestLink>,
    /// Socket of QEMU's monitor, which removes and adds drives.
    monitor: PathBuf,
}

/// A folder for the sockets between two guests and of QEMU's monitors, removed with this value.
///
/// It is not in the build's folder, whose path can exceed the limit of a socket's path.
#[derive(Debug)]
struct VmSockets(PathBuf);

impl VmSockets {
    fn new(boot: &str) -> Result<Self> {
        let folder = env::temp_dir().join(format!("nvmeof-vm-{}-{boot}", std::process::id()));
        Ok(Self(shared_folder::fresh(folder)?))
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.0.join("1"), self.0.join("2")]
    }

    fn monitor(&self, guest: &Guest) -> PathBuf {
        self.0.join(format!("monitor{}", guest.name))
    }
}

impl Drop for VmSockets {
    fn drop(&mut self) {
        // A few leftover bytes in a temporary folder are no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the folder of unpacked kernels, kept between runs.
fn cache(folder: &Path) -> PathBuf {
    match env::var_os("XDG_CACHE_HOME") {
        Some(cache) if !cache.is_empty() => Path::new(&cache).join("nvmeof-tgt/vm"),
        _ => folder.join("cache"),
    }
}

/// Returns whether a line of the serial log is worth showing after a success.
fn is_report(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("part ") || line.starts_with("note ") || line.starts_with("table ")
}

/// Returns whether a serial log reports a failure. The next reader reports an unreadable log.
fn has_failures(log: &Path) -> bool {
    fs::read(log).is_ok_and(|log| says_failure(&String::from_utf8_lossy(&log)))
}

fn says_failure(log: &str) -> bool {
    log.lines().any(|line| is_failure(line.trim()))
}

fn is_failure(line: &str) -> bool {
    line.starts_with("FAIL: ") || line.starts_with("part ") && line.contains(" FAILED ")
}

fn why(end: BootEnd) -> String {
    match end {
        BootEnd::Success => "the script ended well, but not every listed part ran".to_owned(),
        BootEnd::NotUp => "the machine did not come up, so nothing was tested".to_owned(),
        BootEnd::WaitsForNobody => {
            "the guest's kernel waits for calls that no task is in".to_owned()
        }
        BootEnd::Failure(code) => format!("the guest reported code {code}"),
        BootEnd::NoReport => "the guest panicked or switched itself off".to_owned(),
        BootEnd::Broken(status) => format!("QEMU did not work or was killed ({status})"),
        BootEnd::Limit => "killed: it took too long".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_before_the_machine_did_is_seen() {
        assert!(!says_failure(
            "part sizes took 3 s\npart sizes ok\n  note FAIL: of another\nGAVE UP: it waits\n"
        ));
        assert!(says_failure("part sizes ok\n  FAIL: mixed verify\nGAVE UP: it waits\n"));
        assert!(says_failure("part sizes FAILED after 3 s\n"));
    }
}
