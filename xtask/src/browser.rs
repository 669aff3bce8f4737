//! Reports in a real browser, as a reader sees them.
//!
//! Headless Chromium opens the pages in light and in dark, and must write nothing to its console.
//! Every page must show all series and points of the results. Screenshots are kept. The daemon's
//! status page has a stage of its tests, under load (`status_page`).

mod status_page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nvmeof_console::say;
use nvmeof_workspace::checkout::{Workspace, output_of, run_checked, show};

use crate::lab;

/// Folder below the target folder.
const SHOTS: &str = "screenshots";
/// A plan with many points, one with several jobs, one with its own time series.
const PLANS: [&str; 3] = ["test-03", "test-12", "adaptive-stall"];
/// Chromium's numbers for the preferred color scheme.
const SCHEMES: [(&str, u8); 2] = [("light", 1), ("dark", 0)];

/// Opens pages of simulated sweeps, and one that is broken on purpose.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let shots = workspace.target().join(SHOTS);
    fs::create_dir_all(&shots).with_context(|| format!("cannot make {}", shots.display()))?;
    let profile = tempfile::Builder::new().prefix("browser").tempdir()?;
    let browser = Browser { profile: profile.path() };
    broken_pages_are_seen(&browser, profile.path())?;
    let lab = lab::build(workspace)?;
    for plan in PLANS {
        let (page, results) = simulate(workspace, &lab, plan, profile.path())?;
        let dom = profile.path().join(format!("{plan}.dom"));
        fs::write(&dom, browser.dom(&page)?)?;
        let mut command = Command::new(&lab);
        command.arg("page-test").arg("--json").arg(results).arg("--dom").arg(dom);
        let shown = output_of(&mut command).with_context(|| plan.to_owned())?;
        let shown = String::from_utf8_lossy(&shown).trim().to_owned();
        let mut pictures = Vec::new();
        for (scheme, number) in SCHEMES {
            let file = shots.join(format!("{plan}-{scheme}.png"));
            browser.picture(&page, &file, number)?;
            pictures.push(fs::read(&file)?);
        }
        ensure!(pictures[0] != pictures[1], "{plan}: light and dark look the same");
        say!("{plan}: {shown}; screenshots in {}", shots.display());
    }
    drive_test(workspace, &browser, &shots, profile.path())
}

/// Opens the daemon's status page, idle and under load.
pub(crate) fn run_status_page(workspace: &Workspace) -> Result<()> {
    let shots = workspace.target().join(SHOTS);
    fs::create_dir_all(&shots).with_context(|| format!("cannot make {}", shots.display()))?;
    let profile = tempfile::Builder::new().prefix("browser").tempdir()?;
    let browser = Browser { profile: profile.path() };
    status_page::run(workspace, &browser, profile.path(), &shots)
}

/// Rounds of the drive test: a verdict takes five, and no more are allowed.
const ROUNDS: usize = 5;
/// Convergence plots and their lines. Memory has blocks of 4 KiB: seven sizes remain for IOPS, four
/// for throughput, two for latency.
const SERIES: [(&str, usize); 6] = [
    ("Convergence: IOPS.", 7),
    ("Convergence: throughput of writes.", 4),
    ("Convergence: throughput of reads.", 4),
    ("Convergence: mean response time, reads/writes 100/0.", 2),
    ("Convergence: mean response time, reads/writes 65/35.", 2),
    ("Convergence: mean response time, reads/writes 0/100.", 2),
];
/// Endings of the headings of sections that have text and tables only.
const UNPICTURED: [&str; 2] = [": Steps", ": Summary"];

/// Runs a quick drive test of memory, all four tests, and checks its page: each section, each
/// picture with its caption, each series, each round.
fn drive_test(
    workspace: &Workspace,
    browser: &Browser<'_>,
    shots: &Path,
    folder: &Path,
) -> Result<()> {
    let out = folder.join("steady");
    let mut command = workspace.cargo(["run", "--quiet", "--locked", "-p", "nvmeof-perf", "--"]);
    command.args(["steady", "--device", "ram:32m", "--quick", "--time", "20ms"]);
    command.args(["--jobs", "2", "--iodepth", "4", "--rounds"]).arg(ROUNDS.to_string());
    command.arg("--out").arg(&out).stdout(Stdio::null());
    let status = command.status().with_context(|| format!("cannot start `{}`", show(&command)))?;
    ensure!(status.success(), "`{}` failed ({status})", show(&command));
    let page = out.with_extension("html");
    let dom = browser.dom(&page)?;
    let pictures = captioned_pictures(&dom)?;
    let drawn: Vec<&str> = dom.split("<svg").skip(1).collect();
    for (title, series) in SERIES {
        let title = format!("aria-label=\"{title}");
        let plot = drawn.iter().find(|svg| svg.contains(&title));
        let plot = plot.with_context(|| format!("no plot with {title}"))?;
        let (keys, marks) = (count(plot, "key "), count(plot, "mark "));
        ensure!(keys == series, "{title}: {keys} of {series} series");
        ensure!(marks == series * ROUNDS, "{title}: {marks} points of {series} series");
    }
    let convergence = drawn.iter().filter(|svg| svg.contains("aria-label=\"Convergence: ")).count();
    ensure!(convergence == SERIES.len(), "{convergence} plots of {} converge", SERIES.len());
    let mut shown = Vec::new();
    for (scheme, number) in SCHEMES {
        let file = shots.join(format!("steady-{scheme}.png"));
        browser.picture(&page, &file, number)?;
        shown.push(fs::read(&file)?);
    }
    ensure!(shown[0] != shown[1], "steady: light and dark look the same");
    say!("steady: {pictures} pictures; screenshots in {}", shots.display());
    Ok(())
}

/// Returns the number of pictures of a report. Each has a caption, numbered from 1; each section
/// has a picture, except those with text and tables only.
fn captioned_pictures(dom: &str) -> Result<usize> {
    let pictures = dom.matches("<svg").count();
    for (number, caption) in (1..).zip(dom.split("<figcaption>").skip(1)) {
        let expected = format!("Figure {number}. ");
        ensure!(caption.starts_with(&expected), "not {expected}: {}", head(caption));
    }
    let captions = dom.matches("<figcaption>").count();
    ensure!(pictures == captions, "{pictures} pictures have {captions} captions");
    let mut sections = 0;
    for section in dom.split("<h3 ").skip(1) {
        let (heading, content) = section.split_once("</h3>").context("an open heading")?;
        // The next chapter has its own sections.
        let content = content.split("<h2 ").next().unwrap_or(content);
        let has_pictures = content.contains("<svg");
        let unpictured = UNPICTURED.iter().any(|ending| heading.ends_with(ending));
        ensure!(has_pictures != unpictured, "{}: pictures: {has_pictures}", head(heading));
        sections += 1;
    }
    ensure!(sections > 0 && pictures > 0, "{sections} sections, {pictures} pictures");
    Ok(pictures)
}

/// The beginning of a text, for a message.
fn head(text: &str) -> &str {
    text.get(..80).unwrap_or(text)
}

/// Runs a plan briefly and returns the files of its page and its results.
fn simulate(
    workspace: &Workspace,
    lab: &Path,
    plan: &str,
    folder: &Path,
) -> Result<(PathBuf, PathBuf)> {
    let page = folder.join(format!("{plan}.html"));
    let results = folder.join(format!("{plan}.jsonl"));
    let file = workspace.root().join(format!("configs/sweeps/{plan}.toml"));
    let mut command = Command::new(lab);
    command.arg("sweep").arg("--plan").arg(file).args(["--where", "sim", "--short"]);
    command.arg("--html").arg(&page).arg("--json").arg(&results).stdout(Stdio::null());
    run_checked(&mut command)?;
    Ok((page, results))
}

/// Counts the elements of a class, which is the first class of its element.
fn count(svg: &str, class: &str) -> usize {
    let own = svg.split("</svg>").next().unwrap_or(svg);
    own.matches(&format!("class=\"{class}")).count()
}

/// Verifies that the check itself can fail.
fn broken_pages_are_seen(browser: &Browser<'_>, folder: &Path) -> Result<()> {
    let page = folder.join("broken.html");
    for broken in ["<script>throw new Error(\"x\")</script>", "<script>console.log(1)</script>"] {
        fs::write(&page, format!("<!DOCTYPE html><title>x</title>{broken}"))?;
        ensure!(browser.dom(&page).is_err(), "the browser did not complain of {broken}");
    }
    Ok(())
}

struct Browser<'a> {
    /// Folder for the browser's own files.
    profile: &'a Path,
}

impl Browser<'_> {
    /// Returns the page's DOM; any message on its console is an error.
    fn dom(&self, page: &Path) -> Result<String> {
        self.dom_of(&format!("file://{}", page.display()), &[])
    }

    /// Returns the DOM of a page that is served.
    fn dom_of(&self, url: &str, more: &[String]) -> Result<String> {
        self.open(url, &[&["--dump-dom".to_owned()], more].concat())
    }

    fn picture(&self, page: &Path, file: &Path, scheme: u8) -> Result<()> {
        self.picture_of(&format!("file://{}", page.display()), file, scheme, &[])
    }

    /// Takes a screenshot of a page that is served.
    fn picture_of(&self, url: &str, file: &Path, scheme: u8, more: &[String]) -> Result<()> {
        // The file of an earlier run.
        let _ = fs::remove_file(file);
        let mut all = vec![
            format!("--screenshot={}", file.display()),
            "--window-size=1280,2400".to_owned(),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        all.extend_from_slice(more);
        self.open(url, &all)?;
        let size = fs::metadata(file).with_context(|| format!("no {}", file.display()))?.len();
        ensure!(size > 10_000, "{}: {size} bytes are no picture of a page", file.display());
        Ok(())
    }

    fn open(&self, url: &str, more: &[String]) -> Result<String> {
        let mut command = Command::new("chromium");
        // Chromium's sandbox refuses to run as root; the page is trusted.
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        command.args(["--enable-logging=stderr", "--no-first-run", "--disable-extensions"]);
        command.arg(format!("--user-data-dir={}", self.profile.join("profile").display()));
        command.args(more).arg(url);
        let output = command.stdin(Stdio::null()).output().context("cannot start chromium")?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("chromium failed ({}): {complaints}", output.status);
        }
        let said: Vec<_> = complaints.lines().filter(|line| line.contains(":CONSOLE")).collect();
        ensure!(said.is_empty(), "{url}: the console says {said:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section with a heading and pictures whose captions have these numbers.
    fn section(heading: &str, numbers: &[u32]) -> String {
        let figure = |number| format!("<svg></svg><figcaption>Figure {number}. x</figcaption>");
        let figures: String = numbers.iter().map(figure).collect();
        format!("<h3 id=\"s1\">{heading}</h3>{figures}")
    }

    #[test]
    fn a_section_without_its_picture_is_found() {
        let page = [
            section("4.1 IOPS: Steps", &[]),
            section("4.2 IOPS: Convergence", &[1, 2]),
            "<h2 id=\"s5\">5 Latency</h2>".to_owned(),
            section("5.2 Latency: Convergence", &[3]),
        ];
        assert_eq!(captioned_pictures(&page.concat()).unwrap(), 3);
        let broken = [
            section("4.2 IOPS: Convergence", &[]),
            section("4.2 IOPS: Convergence", &[2]),
            section("4.1 IOPS: Steps", &[1]),
            section("4.2 IOPS: Convergence", &[1]) + "<svg></svg>",
        ];
        for page in broken {
            assert!(captioned_pictures(&page).is_err(), "{page}");
        }
        assert!(captioned_pictures("").is_err());
    }
}
