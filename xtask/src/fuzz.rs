//! `cargo xtask fuzz`: builds and runs the fuzz targets in `fuzz/` with the toolchain of the
//! workspace.
//!
//! The crate `libfuzzer-sys` contains the source of libFuzzer. libFuzzer requires one thing of the
//! compiler: a counter at every edge. An LLVM pass adds it, and a stable rustc has that pass. The
//! targets therefore need no nightly toolchain, no cargo-fuzz and no clang. The sanitizers would
//! need them. The code under test is safe Rust, except for the fenced modules, and is built with
//! debug assertions and overflow checks.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked, show};
use nvmeof_workspace::parallel::run_parallel;

use crate::setup;

/// A fuzz target with its maximum input length.
struct FuzzTarget {
    name: &'static str,
    about: &'static str,
    max_len: u32,
}

const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "pdu_stream",
        about: "a host's bytes into a TCP queue of ours",
        max_len: 512,
    },
    FuzzTarget {
        name: "rdma_connect",
        about: "a host's connection requests over RDMA into the target's side",
        max_len: 256,
    },
    FuzzTarget {
        name: "rdma_capsule",
        about: "a host's command capsules over RDMA, taken apart",
        max_len: 320,
    },
    FuzzTarget {
        name: "nvme_driver",
        about: "a drive's registers, data and completions into the VFIO driver",
        max_len: 384,
    },
    FuzzTarget { name: "initiator", about: "a target's bytes into our host's side", max_len: 256 },
    FuzzTarget {
        name: "sqe",
        about: "commands and their data into the queues of a target",
        max_len: 320,
    },
];

/// Maximum number of committed inputs per target.
const SEEDS: usize = 64;

/// Crates whose coverage is printed.
const COVERED: &[&str] = &["wire", "nvmf"];

/// Compiler flags that libFuzzer requires, as cargo-fuzz passes them to rustc.
///
/// Comparisons are not traced. The inputs are programs whose steps build well-formed commands and
/// PDUs, and runs are twice as fast without the trace.
const INSTRUMENT: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
];

/// LLVM version of the coverage tools; Debian 12 and 13 and Ubuntu 24.04 package it.
///
/// It reads the profiles of rustc 1.95, although rustc has a newer LLVM.
const LLVM: u8 = 19;

#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct FuzzArgs {
    /// Executions of each target
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    runs: u64,
    /// Stop each target after this time even if it has not done its runs
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Run only this target, again for more
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Then print which lines of wire and nvmf the corpus reaches
    #[arg(long)]
    coverage: bool,
    /// Then replace the committed corpus by the best of it and of what was found
    #[arg(long)]
    merge: bool,
}

fn after_help() -> String {
    let mut text = String::from("Targets:\n");
    for target in TARGETS {
        text.push_str(&format!("  {:<13} {}\n", target.name, target.about));
    }
    text.push_str(
        "\nExample: cargo xtask fuzz --runs 10000000 --target sqe\n         \
         cargo xtask fuzz --runs 0 --coverage",
    );
    text
}

/// Runs the targets.
pub(crate) fn run(args: &FuzzArgs) -> Result<ExitCode> {
    let fuzzer = Fuzzer::build()?;
    let targets = chosen(&args.target)?;
    fuzzer.run_all(&targets, args.runs, args.seconds)?;
    if args.merge {
        for target in &targets {
            fuzzer.merge(target)?;
        }
    }
    if args.coverage {
        fuzzer.coverage(&targets)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs every target for a short time, for CI: bounded in executions and in time.
pub(crate) fn fuzz_short(workspace: &Workspace) -> Result<()> {
    run_checked(&mut workspace.cargo(["fmt", "--check", "--manifest-path", "fuzz/Cargo.toml"]))?;
    Fuzzer::build()?.run_all(&chosen(&[])?, 200_000, Some(60))
}

fn chosen(names: &[String]) -> Result<Vec<&'static FuzzTarget>> {
    if let Some(unknown) = names.iter().find(|name| !TARGETS.iter().any(|t| t.name == **name)) {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        bail!("there is no fuzz target `{unknown}`; the targets are: {}", known.join(", "));
    }
    let wanted = |target: &&FuzzTarget| names.is_empty() || names.iter().any(|n| n == target.name);
    Ok(TARGETS.iter().filter(wanted).collect())
}

/// The built targets and the folders they use.
struct Fuzzer {
    workspace: Workspace,
    /// `fuzz/corpus`, committed.
    seeds: PathBuf,
    /// Inputs that runs find, their logs, and the inputs that crash a target.
    found: PathBuf,
    triple: String,
    binaries: PathBuf,
}

impl Fuzzer {
    fn build() -> Result<Self> {
        setup::ensure(&[setup::BUILD, setup::FUZZ])?;
        let workspace = Workspace::find()?;
        let triple = host_triple()?;
        let target_dir = workspace.target().join("fuzz");
        say!("building the fuzz targets");
        let binaries = build(&workspace, &triple, &target_dir, INSTRUMENT)?;
        let seeds = workspace.root().join("fuzz/corpus");
        Ok(Self { seeds, found: target_dir.join("found"), triple, binaries, workspace })
    }

    /// Runs targets, one per CPU concurrently, and all of them even if one fails.
    fn run_all(&self, targets: &[&FuzzTarget], runs: u64, seconds: Option<u64>) -> Result<()> {
        let at_once = thread::available_parallelism().map_or(1, NonZero::get);
        let run = |target: &&FuzzTarget| self.run(target, runs, seconds);
        let results = run_parallel(targets, at_once, |_| false, run);
        let failed = |result: Result<()>| result.err().map(|error| format!("{error:#}"));
        let failures: Vec<String> = results.into_iter().filter_map(failed).collect();
        ensure!(failures.is_empty(), failures.join("\n"));
        Ok(())
    }

    /// Runs a target until it has completed its runs or its time has ended.
    fn run(&self, target: &FuzzTarget, runs: u64, seconds: Option<u64>) -> Result<()> {
        let mut command = self.command(&self.binaries, target)?;
        command.arg(format!("-runs={runs}")).arg(format!("-max_len={}", target.max_len));
        command.args(["-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1", "-reload=0"]);
        command.arg(format!("-artifact_prefix={}", self.artifacts(target)));
        if let Some(seconds) = seconds {
            command.arg(format!("-max_total_time={seconds}"));
        }
        say!("$ {}", show(&command));
        let log = self.found.join(target.name).with_extension("log");
        let started = Instant::now();
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .status()
            .with_context(|| format!("cannot start the fuzz target {}", target.name))?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            let tail: Vec<&str> = text.lines().rev().take(60).collect();
            for line in tail.iter().rev() {
                say!("{line}");
            }
            bail!(
                "the fuzz target {} failed ({status}); the input is named above, the whole output is in {}",
                target.name,
                log.display()
            );
        }
        let executions = statistic(&text, "stat::number_of_executed_units:");
        say!(
            "{}: {} executions in {:.0} s, {} edges reached",
            target.name,
            executions.unwrap_or("an unknown number of"),
            started.elapsed().as_secs_f32(),
            edges(&text).unwrap_or("an unknown number of"),
        );
        Ok(())
    }

    /// Replaces the committed corpus by a few inputs that reach the same edges as all inputs
    /// together.
    fn merge(&self, target: &FuzzTarget) -> Result<()> {
        let smallest = self.found.join(target.name).with_extension("merged");
        if smallest.exists() {
            fs::remove_dir_all(&smallest)?;
        }
        fs::create_dir_all(&smallest)?;
        let seeds = self.seeds.join(target.name);
        let mut command = Command::new(self.binaries.join(target.name));
        command.args(["-set_cover_merge=1", "-use_counters=0"]).arg(&smallest);
        output_of(command.arg(self.found.join(target.name)).arg(&seeds))?;
        let mut inputs = Vec::new();
        for entry in fs::read_dir(&smallest)? {
            let entry = entry?;
            inputs.push((entry.metadata()?.len(), entry.file_name()));
        }
        // Long inputs reach many edges.
        inputs.sort_unstable_by(|a, b| b.cmp(a));
        inputs.truncate(SEEDS);
        fs::remove_dir_all(&seeds)?;
        fs::create_dir_all(&seeds)?;
        for (_, name) in &inputs {
            fs::copy(smallest.join(name), seeds.join(name))?;
        }
        say!("{}: {} files", seeds.display(), inputs.len());
        Ok(())
    }

    /// Prints the line coverage of both corpora, the committed one and the inputs found locally.
    fn coverage(&self, targets: &[&FuzzTarget]) -> Result<()> {
        setup::ensure(&[setup::COVERAGE])?;
        let target_dir = self.workspace.target().join("fuzz-coverage");
        say!("building the fuzz targets again, to count lines");
        // Low optimization: the program runs once, and the build takes most of the time.
        let flags = ["-Cinstrument-coverage", "-Copt-level=1"];
        let binaries = build(&self.workspace, &self.triple, &target_dir, &flags)?;
        let mut profiles = Vec::new();
        for target in targets {
            let profile = target_dir.join(target.name).with_extension("profraw");
            let mut command = self.command(&binaries, target)?;
            command.arg("-runs=0").env("LLVM_PROFILE_FILE", &profile);
            output_of(&mut command)?;
            profiles.push(profile);
        }
        let merged = target_dir.join("all.profdata");
        let mut merge = Command::new(format!("llvm-profdata-{LLVM}"));
        run_checked(merge.args(["merge", "-sparse", "-o"]).arg(&merged).args(&profiles))?;
        for member in COVERED {
            let sources = self.workspace.root().join("crates").join(member).join("src");
            let mut report = Command::new(format!("llvm-cov-{LLVM}"));
            report.arg("report").arg("-instr-profile").arg(&merged);
            for target in targets {
                report.arg("-object").arg(binaries.join(target.name));
            }
            report.arg("-sources").arg(&sources);
            let report = String::from_utf8(output_of(&mut report)?)?;
            nvmeof_console::show(table(member, &report));
        }
        Ok(())
    }

    /// Returns the command for a target on both corpora; new inputs go to the first.
    fn command(&self, binaries: &Path, target: &FuzzTarget) -> Result<Command> {
        let found = self.found.join(target.name);
        fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
        let mut command = Command::new(binaries.join(target.name));
        command.current_dir(self.workspace.root()).arg(found);
        command.arg(self.seeds.join(target.name));
        Ok(command)
    }

    fn artifacts(&self, target: &FuzzTarget) -> String {
        format!("{}-", self.found.join(target.name).display())
    }
}

/// Builds the targets with these flags and no others; returns their folder.
fn build(
    workspace: &Workspace,
    triple: &str,
    target_dir: &Path,
    flags: &[&str],
) -> Result<PathBuf> {
    // A target triple keeps the flags from build scripts and procedural macros, which cannot use
    // them.
    let build =
        ["build", "--release", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target"];
    let mut cargo = workspace.cargo(build);
    cargo.arg(triple).arg("--target-dir").arg(target_dir);
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    run_checked(&mut cargo)?;
    Ok(target_dir.join(triple).join("release"))
}

/// Returns the machine's target triple, as rustc reports it.
fn host_triple() -> Result<String> {
    let mut rustc = Command::new("rustc");
    let version = String::from_utf8(output_of(rustc.arg("-vV"))?)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` does not say what machine this is")?.to_owned())
}

/// The value behind `name` in libFuzzer's output.
fn statistic<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns the number of edges reached, from libFuzzer's last line of progress.
fn edges(text: &str) -> Option<&str> {
    text.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "cov:");
        words.nth(1)
    })
}

/// Formats the line columns of an `llvm-cov report`.
fn table(member: &str, report: &str) -> String {
    let mut text = format!("\n{:<40} {:>7} {:>7} {:>9}\n", "lines of", "all", "missed", "reached");
    for line in report.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Columns: name, then total, missed and covered percentage of regions, functions and lines
        // each.
        let [name, _, _, _, _, _, _, lines, missed, share, ..] = words[..] else { continue };
        if !share.ends_with('%') {
            continue;
        }
        let name = match name {
            "TOTAL" => format!("all of {member}"),
            file => format!("{member}: {file}"),
        };
        text.push_str(&format!("{name:<40} {lines:>7} {missed:>7} {share:>9}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_libfuzzer_is_understood() {
        let text = "#4 DONE   cov: 17 ft: 20 corp: 1/1b\nstat::number_of_executed_units: 200000\n";
        assert_eq!(statistic(text, "stat::number_of_executed_units:"), Some("200000"));
        assert_eq!(edges(text), Some("17"));
        assert_eq!(edges("nothing"), None);
    }

    #[test]
    fn the_columns_on_lines_are_kept() {
        let report = "\
            Filename  Regions  Missed  Cover  Functions  Missed  Executed  Lines  Missed  Cover\n\
            -----------------\n\
            sgl.rs  90  10  88.89%  9  1  88.89%  62  17  72.58%  0  0  -\n\
            TOTAL  90  10  88.89%  9  1  88.89%  62  17  72.58%  0  0  -\n";
        let lines: Vec<String> = table("wire", report)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[2..], ["wire: sgl.rs 62 17 72.58%", "all of wire 62 17 72.58%"]);
    }

    #[test]
    fn every_target_has_a_program_and_a_corpus() {
        let workspace = Workspace::find().expect("cargo runs this test");
        let fuzz = workspace.root().join("fuzz");
        let mut targets = TARGETS.iter();
        assert!(targets.all(|target| {
            fuzz.join("fuzz_targets").join(target.name).with_extension("rs").is_file()
                && fuzz.join("corpus").join(target.name).is_dir()
        }));
        assert!(chosen(&["sqe".to_owned()]).is_ok_and(|chosen| chosen.len() == 1));
        assert!(chosen(&["no-such-target".to_owned()]).is_err());
    }
}
