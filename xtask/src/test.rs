//! `cargo xtask test`: runs every test in stages, and prints a table of the stages at the end.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, run_checked, show};

use crate::{api_fuzz, browser, checks, deb, fuzz, lab, setup, spdk_rpc, vm};

#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct TestArgs {
    /// Formatting, clippy, unit tests and configs only: nothing that takes long or needs a QEMU
    /// machine
    #[arg(long)]
    fast: bool,
    /// Everything: the stages that take longest or need more programs, too
    #[arg(long, conflicts_with = "fast")]
    all: bool,
    /// Run only this stage, again for more
    #[arg(long, value_name = "STAGE")]
    only: Vec<String>,
}

/// Extent of a run; a stage runs from its own extent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// `--fast`.
    Fast,
    /// Neither option, as in CI.
    Usual,
    /// `--all`.
    All,
}

/// One stage of the tests.
struct TestStage {
    name: &'static str,
    about: &'static str,
    runs: Extent,
    /// The stage on which this one depends.
    needs: Option<&'static str>,
    run: fn(&Workspace) -> Result<()>,
}

const STAGES: &[TestStage] = &[
    TestStage { name: "format", about: "rustfmt", runs: Extent::Fast, needs: None, run: format },
    TestStage {
        name: "repository",
        about: "every file in the build, no machine's path, unsafe fenced, prose",
        runs: Extent::Fast,
        needs: None,
        run: repository,
    },
    TestStage {
        name: "deny",
        about: "deny.toml: licenses, duplicate versions and sources of dependencies, by cargo-deny",
        runs: Extent::All,
        needs: None,
        run: deny,
    },
    TestStage {
        name: "clippy",
        about: "every lint, all targets",
        runs: Extent::Fast,
        needs: None,
        run: clippy,
    },
    TestStage {
        name: "doc",
        about: "documentation of the code, private items too: no broken link",
        runs: Extent::Fast,
        needs: None,
        run: doc,
    },
    TestStage {
        name: "unit",
        about: "cargo test of the workspace",
        runs: Extent::Fast,
        needs: None,
        run: unit,
    },
    TestStage {
        name: "configs",
        about: "the daemon takes every shipped configuration",
        runs: Extent::Fast,
        needs: None,
        run: configs,
    },
    TestStage {
        name: "loom",
        about: "every interleaving of the pacing policies' cross-core parts",
        runs: Extent::Usual,
        needs: None,
        run: loom,
    },
    TestStage {
        name: "release",
        about: "release build of the daemon and the load generator, and the laboratory",
        runs: Extent::Usual,
        needs: None,
        run: release,
    },
    TestStage {
        name: "sweep-sim",
        about: "every point of every plan in the simulator, shortly",
        runs: Extent::Usual,
        needs: None,
        run: sweep_sim,
    },
    TestStage {
        name: "browser",
        about: "reports in a real browser: console, series, points, light and dark",
        runs: Extent::Usual,
        needs: None,
        run: browser::run,
    },
    TestStage {
        name: "status-page",
        about: "the daemon's status page in a real browser, idle and loaded",
        runs: Extent::Usual,
        needs: Some("release"),
        run: browser::run_status_page,
    },
    TestStage {
        name: "api-fuzz",
        about: "the API against its OpenAPI document, by schemathesis",
        runs: Extent::Usual,
        needs: Some("release"),
        run: api_fuzz::run,
    },
    TestStage {
        name: "spdk-rpc",
        about: "the daemon controlled by SPDK's own command line, from PyPI",
        runs: Extent::Usual,
        needs: Some("release"),
        run: spdk_rpc::run,
    },
    TestStage {
        name: "instructions",
        about: "what an I/O costs the VFIO driver, against the baseline",
        runs: Extent::Usual,
        needs: None,
        run: instructions,
    },
    TestStage {
        name: "sweep-ssh",
        about: "sweeps over ssh: two hosts, one that dies, a target that dies, Ctrl-C",
        runs: Extent::Usual,
        needs: Some("release"),
        run: sweep_ssh,
    },
    TestStage {
        name: "vm-tcp",
        about: "the Linux host over NVMe/TCP in QEMU",
        runs: Extent::Usual,
        needs: Some("release"),
        run: vm_tcp,
    },
    TestStage {
        name: "vm-kernels",
        about: "the Linux host over NVMe/TCP, shortly, on each of Debian's kernels in QEMU",
        runs: Extent::Usual,
        needs: Some("release"),
        run: vm_kernels,
    },
    TestStage {
        name: "vm-rdma",
        about: "the Linux host over NVMe/RDMA in QEMU",
        runs: Extent::Usual,
        needs: Some("release"),
        run: vm_rdma,
    },
    TestStage {
        name: "vm-vfio",
        about: "drives by the VFIO driver in QEMU, behind an emulated IOMMU",
        runs: Extent::Usual,
        needs: Some("release"),
        run: vm_vfio,
    },
    TestStage {
        name: "deb",
        about: "the Debian package and its checks",
        runs: Extent::Usual,
        needs: Some("release"),
        run: deb::test,
    },
    TestStage {
        name: "vm-deb",
        about: "the package on Debian 12 and 13 in QEMU, by the operator's pages, over a reboot",
        runs: Extent::All,
        needs: Some("release"),
        run: vm_deb,
    },
    TestStage {
        name: "fuzz",
        about: "a short run of every fuzz target",
        runs: Extent::Usual,
        needs: None,
        run: fuzz_short,
    },
];

fn after_help() -> String {
    let mut text = String::from("Stages:\n");
    for stage in STAGES {
        let extent = match stage.runs {
            Extent::Fast => "",
            Extent::Usual => " (not with --fast)",
            Extent::All => " (with --all)",
        };
        text.push_str(&format!("  {:<12} {}{extent}\n", stage.name, stage.about));
    }
    text.push_str("\nExample: cargo xtask test --fast\n         cargo xtask test --only vm-tcp");
    text
}

/// Runs the stages; the exit code is a success only if every selected stage passed.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode> {
    if let Some(unknown) = args.only.iter().find(|name| !STAGES.iter().any(|s| s.name == **name)) {
        let names: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
        bail!("there is no stage `{unknown}`; the stages are: {}", names.join(", "));
    }
    let workspace = Workspace::find()?;
    let extent = match (args.fast, args.all) {
        (true, _) => Extent::Fast,
        (_, true) => Extent::All,
        _ => Extent::Usual,
    };
    let chosen = |stage: &TestStage| match args.only.is_empty() {
        true => stage.runs <= extent,
        false => args.only.iter().any(|name| name == stage.name),
    };
    let started = Instant::now();
    let is_fast = !STAGES.iter().any(|stage| stage.runs > Extent::Fast && chosen(stage));
    let mut needs = vec![setup::BUILD, setup::TEST];
    if !is_fast {
        needs.extend([setup::VM, setup::VM_RDMA, setup::SSH, setup::BROWSER, setup::PYTHON]);
        needs.extend([setup::DEB, setup::VM_ROOT]);
    }
    setup::ensure(&needs)?;
    let mut rows = vec![StageRow::new("set-up", "passed", started.elapsed())];
    let mut failed: Vec<(&str, String)> = Vec::new();
    for stage in STAGES {
        if !chosen(stage) {
            rows.push(StageRow::new(stage.name, "not asked for", Duration::ZERO));
        } else if let Some(need) = stage.needs.filter(|need| has_failed(&failed, need)) {
            say!("\n=== {}: cannot run, {need} failed", stage.name);
            rows.push(StageRow::new(stage.name, "NOT RUN", Duration::ZERO));
            failed.push((stage.name, format!("{need} failed")));
        } else {
            let (row, error) = run_stage(&workspace, stage);
            failed.extend(error.map(|error| (stage.name, error)));
            rows.push(row);
        }
    }
    print_table(&rows, started.elapsed());
    // Repeat the errors, so that a reader of the end of a long output finds them there.
    for (name, error) in &failed {
        say!("failed: {name}; run it again: cargo xtask test --only {name}\n  {error}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A row of the table at the end.
struct StageRow {
    name: &'static str,
    result: &'static str,
    took: Duration,
}

impl StageRow {
    fn new(name: &'static str, result: &'static str, took: Duration) -> Self {
        Self { name, result, took }
    }
}

fn has_failed(failed: &[(&str, String)], stage: &str) -> bool {
    failed.iter().any(|(name, _)| *name == stage)
}

/// Runs a stage; returns its error, if it failed.
fn run_stage(workspace: &Workspace, stage: &TestStage) -> (StageRow, Option<String>) {
    say!("\n=== {}: {}", stage.name, stage.about);
    let started = Instant::now();
    let error = (stage.run)(workspace).err().map(|error| format!("{error:#}"));
    if let Some(error) = &error {
        say!("{}: {error}", stage.name);
    }
    let result = if error.is_none() { "passed" } else { "FAILED" };
    let took = started.elapsed();
    say!("=== {}: {result} in {:.1} s", stage.name, took.as_secs_f32());
    (StageRow::new(stage.name, result, took), error)
}

fn print_table(rows: &[StageRow], total: Duration) {
    say!("\n{:<12} {:<14} {:>9}", "stage", "result", "seconds");
    for row in rows {
        say!("{:<12} {:<14} {:>9.1}", row.name, row.result, row.took.as_secs_f32());
    }
    say!("{:<12} {:<14} {:>9.1}\n", "total", "", total.as_secs_f32());
}

/// Arguments that build the programs together with the tests of the workspace.
///
/// With fewer targets, cargo would choose other features of their libraries and compile these
/// twice.
const PROGRAMS_AND_TESTS: [&str; 5] = ["build", "--workspace", "--bins", "--tests", "--locked"];

/// Shows a command of a stage, then runs it.
fn step(mut command: Command) -> Result<()> {
    say!("$ {}", show(&command));
    run_checked(&mut command)
}

fn format(workspace: &Workspace) -> Result<()> {
    step(workspace.cargo(["fmt", "--all", "--check"]))
}

fn deny(workspace: &Workspace) -> Result<()> {
    if setup::find_program("cargo-deny").is_none() {
        bail!("cargo-deny is not installed: cargo install cargo-deny --locked");
    }
    step(workspace.cargo(["deny", "--locked", "check", "licenses", "bans", "sources"]))
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let lint = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    step(workspace.cargo(lint))
}

fn doc(workspace: &Workspace) -> Result<()> {
    let mut doc = workspace.cargo([
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]);
    // Private items are documented, so public ones may link to them.
    doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    step(doc)
}

fn repository(workspace: &Workspace) -> Result<()> {
    let findings = checks::run(workspace)?;
    for finding in &findings {
        say!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} finding(s)", findings.len());
    }
    Ok(())
}

fn unit(workspace: &Workspace) -> Result<()> {
    step(workspace.cargo(PROGRAMS_AND_TESTS))?;
    let mut tests = workspace.cargo(["test", "--workspace", "--locked", "--no-fail-fast"]);
    // See tests/src/build.rs.
    tests.env("NVMEOF_TESTS_PROGRAMS_ARE_BUILT", "1");
    step(tests)
}

fn configs(workspace: &Workspace) -> Result<()> {
    // The tests have built it already, if they ran.
    step(workspace.cargo(PROGRAMS_AND_TESTS))?;
    for config in ["configs/target.toml", "configs/loopback.toml"] {
        let mut command = Command::new(workspace.target().join("debug/nvmeof-tgt"));
        command.args(["--config", config, "--check"]).current_dir(workspace.root());
        step(command)?;
    }
    Ok(())
}

/// Builds the models for loom's atomics, so they cannot share a build with the rest.
fn loom(workspace: &Workspace) -> Result<()> {
    let models = ["test", "--release", "--locked", "-p", "nvmeof-pacing", "--lib", "loom_"];
    let mut command = workspace.cargo(models);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", workspace.target().join("loom"));
    step(command)
}

fn release(workspace: &Workspace) -> Result<()> {
    for build in vm::PROGRAM_BUILDS {
        step(workspace.cargo(build.iter().copied()))?;
    }
    Ok(())
}

/// Runs sweeps over ssh, between network namespaces.
fn sweep_ssh(workspace: &Workspace) -> Result<()> {
    let mut command = Command::new(lab::build(workspace)?);
    command.arg("remote-test");
    step(command)
}

/// Runs each plan on both platforms with the command of a user.
fn sweep_sim(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root().join("configs/sweeps");
    let mut plans: Vec<_> = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    plans.retain(|plan| plan.extension().is_some_and(|kind| kind == "toml"));
    plans.sort();
    let csv = workspace.target().join("sweep-sim.csv");
    let lab = lab::build(workspace)?;
    let mut rows = 0;
    for plan in &plans {
        for platform in ["A", "B"] {
            let mut command = Command::new(&lab);
            command.args(["sweep", "--where", "sim", "--short", "--platform", platform, "--plan"]);
            command.arg(plan).arg("--csv").arg(&csv).stdout(std::process::Stdio::null());
            run_checked(&mut command)?;
            rows += std::fs::read_to_string(&csv)?.lines().count() - 1;
        }
    }
    say!("{} plans on two platforms: {rows} points", plans.len());
    Ok(())
}

fn vm_tcp(workspace: &Workspace) -> Result<()> {
    vm_case(workspace, "tcp", None)
}

fn vm_kernels(workspace: &Workspace) -> Result<()> {
    vm_case(workspace, "tcp-short", Some("all"))
}

fn vm_rdma(workspace: &Workspace) -> Result<()> {
    vm_case(workspace, "rdma", None)
}

fn vm_vfio(workspace: &Workspace) -> Result<()> {
    vm_case(workspace, "vfio", None)
}

fn vm_deb(workspace: &Workspace) -> Result<()> {
    vm_case(workspace, "deb", None)
}

fn vm_case(workspace: &Workspace, name: &str, kernel: Option<&str>) -> Result<()> {
    let failures = vm::run_case(workspace, name, kernel)?;
    if !failures.is_empty() {
        bail!("the case {name} did not pass: {}", failures.join("\n  "));
    }
    Ok(())
}

fn instructions(workspace: &Workspace) -> Result<()> {
    let mut command = Command::new(lab::build(workspace)?);
    command.args(["bench", "instructions"]);
    step(command)
}

fn fuzz_short(workspace: &Workspace) -> Result<()> {
    fuzz::fuzz_short(workspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_come_first() {
        for (index, stage) in STAGES.iter().enumerate() {
            if let Some(need) = stage.needs {
                assert!(STAGES[..index].iter().any(|s| s.name == need), "{}", stage.name);
            }
        }
    }

    #[test]
    fn a_stage_that_fails_says_so() {
        let stage = TestStage {
            name: "x",
            about: "y",
            runs: Extent::Fast,
            needs: None,
            run: |_| bail!("no"),
        };
        let workspace = Workspace::find().expect("cargo runs this test");
        let (row, error) = run_stage(&workspace, &stage);
        assert_eq!(row.result, "FAILED");
        assert_eq!(error.as_deref(), Some("no"));
    }
}
