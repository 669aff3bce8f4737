//! `cargo xtask bench instructions`: cost of an I/O in the VFIO driver, in instructions.
//!
//! Callgrind counts the driver's instructions for reads on the controller in memory
//! (`nvme_instructions` in `benches`). It runs twice, with more reads the second time: the
//! difference excludes the warm-up. The count is the same on every run and nearly the same on every
//! machine, so CI compares it with `benches/baseline`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked};
use nvmeof_workspace::prerequisites::{self, Prerequisite};

use crate::output;

/// Counted loads: a name, bytes of a read, reads in flight.
const LINES: &[(&str, u32, u64)] = &[
    ("read 4 KiB, depth 1", 4 << 10, 1),
    ("read 4 KiB, depth 32", 4 << 10, 32),
    ("read 128 KiB, depth 1", 128 << 10, 1),
];

/// Rounds of the two runs.
const ROUNDS: [u64; 2] = [256, 1280];

/// Functions of the program at whose beginning and end Callgrind starts or stops counting.
const TOGGLES: &[&str] = &["driver_submit", "driver_poll", "outside_of_the_driver"];

/// Requirement of counting instructions.
const VALGRIND: Prerequisite =
    Prerequisite::new("valgrind", "valgrind", "Callgrind counts the instructions of an I/O");

/// Excess over the baseline that is a failure, in percent.
const TOLERANCE: f64 = 2.0;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo xtask bench instructions\n         \
    cargo xtask bench instructions --save    # what was counted becomes the baseline")]
pub(crate) struct InstructionsArgs {
    /// Make what was counted the baseline
    #[arg(long)]
    save: bool,
}

/// Counts, and fails if the count exceeds the baseline, or makes the count the baseline.
pub(super) fn run(args: &InstructionsArgs) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let counts = count(&workspace)?;
    if args.save {
        save(&workspace, &counts)?;
        return Ok(ExitCode::SUCCESS);
    }
    compare(&workspace, &counts)?;
    Ok(ExitCode::SUCCESS)
}

type Counts = BTreeMap<String, f64>;

/// Returns instructions per I/O, by line.
fn count(workspace: &Workspace) -> Result<Counts> {
    prerequisites::ensure(&[prerequisites::BUILD, &[VALGRIND]])?;
    let build = ["build", "--release", "--locked", "-p", "nvmeof-benches", "--bin"];
    let mut cargo = workspace.cargo(build);
    run_checked(cargo.arg("nvme_instructions"))?;
    let mut counts = Counts::new();
    for &(name, bytes, depth) in LINES {
        let [few, many] = ROUNDS;
        let first = collected(workspace, bytes, depth, few)?;
        let second = collected(workspace, bytes, depth, many)?;
        let more = second.checked_sub(first).filter(|more| *more > 0);
        let more = more.context("more reads take no more instructions: nothing was counted")?;
        counts.insert(name.to_owned(), ratio(more, (many - few) * depth));
    }
    Ok(counts)
}

/// Returns the instructions of the driver in one run.
fn collected(workspace: &Workspace, bytes: u32, depth: u64, rounds: u64) -> Result<u64> {
    let out = workspace.target().join("instructions.callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--demangle=no", "--collect-atstart=no"]);
    for function in TOGGLES {
        valgrind.arg(format!("--toggle-collect=*{function}*"));
    }
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(workspace.release_binary("nvme_instructions"));
    valgrind.args([u64::from(bytes), depth, rounds].map(|number| number.to_string()));
    output_of(&mut valgrind)?;
    let text =
        fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))?;
    totals(&text).with_context(|| format!("{} has no totals", out.display()))
}

/// Returns the counted instructions, which Callgrind writes at the end of its file.
fn totals(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn ratio(instructions: u64, operations: u64) -> f64 {
    instructions as f64 / operations as f64
}

/// Prints the counts next to the baseline.
fn compare(workspace: &Workspace, counts: &Counts) -> Result<()> {
    let path = baseline_path(workspace);
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let baseline: Counts = serde_json::from_slice(&text)
        .with_context(|| format!("{} does not read", path.display()))?;
    say!("\n{:<24} {:>12} {:>12} {:>9}", "instructions of an I/O", "baseline", "now", "change");
    let mut worse = Vec::new();
    for (name, now) in counts {
        let before = *baseline.get(name).with_context(|| format!("no baseline of `{name}`"))?;
        let change = percent(before, *now);
        say!("{name:<24} {before:>12.1} {now:>12.1} {change:>+8.1}%");
        if change > TOLERANCE {
            worse.push(name.as_str());
        } else if change < -TOLERANCE {
            say!("  less than the baseline: keep it, with cargo xtask bench instructions --save");
        }
    }
    ensure!(baseline.len() == counts.len(), "the baseline has lines that are not counted any more");
    if !worse.is_empty() {
        bail!("more than {TOLERANCE} % above the baseline: {}", worse.join("; "));
    }
    Ok(())
}

fn percent(before: f64, now: f64) -> f64 {
    (now / before - 1.0) * 100.0
}

fn save(workspace: &Workspace, counts: &Counts) -> Result<()> {
    let path = baseline_path(workspace);
    let rounded: Counts =
        counts.iter().map(|(name, count)| (name.clone(), (count * 10.0).round() / 10.0)).collect();
    let text = serde_json::to_string_pretty(&rounded)? + "\n";
    output::write(&path, &text)?;
    say!("{}: {rounded:?}", path.display());
    Ok(())
}

fn baseline_path(workspace: &Workspace) -> PathBuf {
    workspace.root().join("benches/baseline/nvme-driver.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_totals_are_found() {
        let text = "events: Ir\nsummary: 12\n\nfn=(1) main\n1 12\ntotals: 123456\n";
        assert_eq!(totals(text), Some(123_456));
        assert_eq!(totals("summary: 12\n"), None);
    }

    #[test]
    fn more_by_two_percent_is_told_from_less() {
        assert!(percent(100.0, 102.1) > TOLERANCE);
        assert!(percent(100.0, 101.9) < TOLERANCE);
        assert!(percent(100.0, 90.0) < -TOLERANCE);
    }

    #[test]
    fn every_line_has_a_baseline() {
        let workspace = Workspace::find().expect("cargo runs this test");
        let text = fs::read(baseline_path(&workspace)).expect("the baseline");
        let baseline: Counts = serde_json::from_slice(&text).expect("numbers by name");
        let names: Vec<&str> = baseline.keys().map(String::as_str).collect();
        let mut lines: Vec<&str> = LINES.iter().map(|(name, ..)| *name).collect();
        lines.sort_unstable();
        assert_eq!(names, lines);
    }

    #[test]
    fn the_program_has_the_functions_that_are_toggled() {
        let workspace = Workspace::find().expect("cargo runs this test");
        let program = workspace.root().join("benches/src/bin/nvme_instructions.rs");
        let text = fs::read_to_string(program).expect("the program");
        for function in TOGGLES {
            assert!(text.contains(&format!("#[inline(never)]\nfn {function}(")), "{function}");
        }
    }
}
