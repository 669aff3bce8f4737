//! `nvmeof-lab suite`: runs the acceptance suite and prints one line per case, with the median of
//! several seeds. Every figure is simulated.
//!
//! ```text
//! cargo run -p nvmeof-lab -- suite depth slow --platform A --quick
//! ```

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nvmeof_pacing::PolicyConfig;
use nvmeof_sim::Platform;
use nvmeof_sim::scenario::Pacing;
use nvmeof_sim::setups::BLOCK;

use super::{
    Case, CaseResult, Family, SEEDS, SEEDS_TO_DECIDE, Seeds, Style, SuiteMode, SuiteRunner,
    as_list, heading, line,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo run -p nvmeof-lab -- suite depth slow --platform A --quick")]
pub(crate) struct SuiteArgs {
    /// Families to run (depth, cores, slow, stall, machines, small, scale, tenants); none: all.
    families: Vec<String>,
    /// A platform by name (a file of `configs/platforms`) or another file; can be repeated.
    #[arg(long, default_values = ["A", "B"])]
    platform: Vec<String>,
    /// Fewer cases, shorter.
    #[arg(long)]
    quick: bool,
    /// adaptive, none, endless, or credit:N for N buffers of 128 KiB.
    #[arg(long, default_value = "adaptive")]
    policy: String,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Print Markdown tables.
    #[arg(long)]
    markdown: bool,
    /// Cases that run concurrently.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, from that one on; each bound applies to their median.
    #[arg(long, default_value_t = SEEDS, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Total number of seeds for a case on which those disagree.
    #[arg(long, default_value_t = SEEDS_TO_DECIDE)]
    seeds_to_decide: u64,
    /// Print the course of every run that does not pass (or of every run with --only).
    #[arg(long)]
    series: bool,
    /// Write the missed bounds to this file, as the list of known gaps (run rustfmt on it).
    #[arg(long)]
    gaps: Option<PathBuf>,
    /// List the cases and run none.
    #[arg(long)]
    list: bool,
}

/// Runs the requested cases; fails if one misses a bound.
#[expect(clippy::print_stdout, reason = "a person reads it")]
pub(crate) fn run(arguments: &SuiteArgs) -> Result<ExitCode> {
    let style = if arguments.markdown { Style::Markdown } else { Style::Text };
    let extent = if arguments.quick { SuiteMode::Quick } else { SuiteMode::Full };
    let platforms = arguments.platform.iter().map(|name| platform(name));
    let platforms = platforms.collect::<Result<_>>()?;
    let runner =
        SuiteRunner::new(platforms, policy(&arguments.policy)?, extent).seeded(arguments.seed);
    let seeds = Seeds::new(&runner, arguments.seeds, arguments.seeds_to_decide);
    let start = Instant::now();
    let mut judged = Vec::new();
    for family in families(&arguments.families)? {
        let mut wanted = family.cases(&runner);
        wanted.retain(|case| arguments.only.as_ref().is_none_or(|only| case.name.contains(only)));
        if wanted.is_empty() {
            continue;
        }
        title(style, family);
        if arguments.list {
            wanted.iter().for_each(|case| println!("{}", case.name));
            continue;
        }
        println!("{}", heading(style));
        let case_results = judge(&seeds, &wanted, arguments.threads.max(1), style)?;
        if arguments.series {
            let shown =
                |case_result: &&CaseResult| !case_result.passes() || arguments.only.is_some();
            wanted
                .iter()
                .zip(&case_results)
                .filter(|(_, v)| shown(v))
                .for_each(|(c, v)| series(c, v));
        }
        judged.extend(wanted.into_iter().zip(case_results));
    }
    if let Some(file) = &arguments.gaps {
        std::fs::write(file, as_list(&judged)).with_context(|| format!("{}", file.display()))?;
    }
    let (cases, failed) = (judged.len(), judged.iter().filter(|(_, v)| !v.passes()).count());
    let sum = |of: fn(&CaseResult) -> usize| judged.iter().map(|(_, v)| of(v)).sum::<usize>();
    let (runs, missed) = (sum(|v| v.judged), sum(|v| v.missed));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "\n{cases} cases, {failed} failed ({missed} of {runs} with one seed), {seconds:.0} s, \
         simulated; {}",
        arguments.policy
    );
    Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn title(style: Style, family: Family) {
    match style {
        Style::Text => println!("\n{}: {}", family.name(), family.about()),
        Style::Markdown => println!("\n### {}\n\n{} Simulated.\n", family.name(), family.about()),
    }
}

/// Judges a few cases concurrently and prints them in their order.
#[expect(clippy::print_stdout, reason = "a person reads it")]
fn judge(seeds: &Seeds, cases: &[Case], threads: usize, style: Style) -> Result<Vec<CaseResult>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((BTreeMap::new(), Vec::new()));
    let work = || -> Result<()> {
        while let Some((at, case)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            cases.get(at).map(|case| (at, case))
        } {
            let case_result = case.judge_each(seeds).with_context(|| format!("case {case:?}"))?;
            let mut done = done.lock().expect("nobody panics with the list");
            done.0.insert(at, case_result);
            while let Some(case_result) = {
                let at = done.1.len();
                done.0.remove(&at)
            } {
                println!("{}", line(style, &cases[done.1.len()], &case_result));
                std::io::stdout().flush()?;
                done.1.push(case_result);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(done.into_inner().expect("nobody panics with the list").1)
}

/// Prints the course of a run.
#[expect(clippy::print_stdout, reason = "a person reads it")]
fn series(case: &Case, case_result: &CaseResult) {
    println!("\n{}\n    ms    Gb/s  hit % buffers waiting budget KiB", case.name);
    for sample in &case_result.series {
        let budget =
            sample.budget.map_or_else(|| "-".to_owned(), |bytes| (bytes / 1024).to_string());
        let ms = sample.at as f64 / 1e6;
        let (gbps, hit) = (sample.gbps, sample.hit_pct);
        let (buffers, waiting) = (sample.buffers, sample.waiting);
        println!("{ms:6.0} {gbps:7.1} {hit:6.1} {buffers:7} {waiting:7} {budget:>10}");
    }
}

fn families(names: &[String]) -> Result<Vec<Family>> {
    if names.is_empty() {
        return Ok(Family::ALL.to_vec());
    }
    let all = || Family::ALL.map(Family::name).join(", ");
    let named = |name: &String| {
        Family::named(name).with_context(|| format!("no family {name}: there are {}", all()))
    };
    names.iter().map(named).collect()
}

fn platform(name: &str) -> Result<(String, Platform)> {
    let file = PathBuf::from(name);
    if file.is_file() {
        let short = file.file_stem().map_or(name.into(), |stem| stem.to_string_lossy().into());
        return Ok((short, Platform::load(&file)?));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/platforms");
    Ok((name.to_owned(), Platform::load(&root.join(format!("{name}.toml")))?))
}

fn policy(name: &str) -> Result<Pacing> {
    let policy = match name.split_once(':') {
        Some(("credit", buffers)) => {
            let buffers: u32 = buffers.parse().context("credit:N: N is a number of buffers")?;
            PolicyConfig::BufferCredit { budget: u64::from(buffers) * u64::from(BLOCK) }
        }
        None if name == "adaptive" => PolicyConfig::Adaptive,
        None if name == "none" => PolicyConfig::None,
        None if name == "endless" => return Ok(Pacing::EndlessCache),
        _ => bail!("no policy {name}: there are adaptive, none, endless and credit:N"),
    };
    Ok(Pacing::Policy(policy))
}
