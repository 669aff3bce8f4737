//! A running program: its output is kept while it runs, and it is ended when its owner drops it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// Interval of checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Time for a program to end after its stop request, before its guard is killed too.
const GRACE: Duration = Duration::from_secs(15);
/// Bytes kept of each output; no program needed here writes more.
const KEPT: usize = 64 << 20;
/// Lines of standard error that a message quotes.
const TOLD: usize = 6;

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub(super) struct RunningProcess {
    name: String,
    child: Child,
    /// Closing it ends the program.
    stdin: Option<ChildStdin>,
    stdout: Arc<CapturedOutput>,
    stderr: Arc<CapturedOutput>,
    ended: Option<ExitStatus>,
}

/// Output and status of a program that has ended.
#[derive(Debug)]
pub(super) struct FinishedProcess {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

#[derive(Debug, Default)]
struct CapturedOutput {
    state: Mutex<CaptureState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CaptureState {
    text: Vec<u8>,
    is_over: bool,
}

impl RunningProcess {
    /// Starts the program; `name` is its name in messages.
    pub(super) fn start(mut command: Command, name: &str) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let stdout = CapturedOutput::of(stdout.context("no pipe for standard output")?);
        let stderr = CapturedOutput::of(stderr.context("no pipe for standard error")?);
        let stdin = child.stdin.take();
        Ok(Self { name: name.to_owned(), child, stdin, stdout, stderr, ended: None })
    }

    /// Waits for the first line of standard output that begins with `start`; returns the rest of
    /// it.
    pub(super) fn line(&mut self, start: &str, until: Instant) -> Result<String> {
        match self.stdout.line(start, until) {
            Some(line) => Ok(line),
            // The program writes no more and is about to exit.
            None if self.stdout.state().is_over => {
                let finished = self.finish(until)?;
                bail!("{} ended with {}: {}", self.name, finished.status, finished.complaint())
            }
            None => bail!("{} did not say `{}` in time", self.name, start.trim()),
        }
    }

    /// Waits for a line of standard error that begins with `start`; returns whether there is one by
    /// `until`, or when the output ends.
    pub(super) fn has_told(&self, start: &str, until: Instant) -> bool {
        self.stderr.line(start, until).is_some()
    }

    /// Returns its process ID on its machine, which its guard reports.
    pub(super) fn pid(&self, until: Instant) -> Result<u32> {
        let line = self.stderr.line("pid ", until);
        let line = line.with_context(|| format!("{} did not start", self.name))?;
        line.trim().parse().with_context(|| format!("{}: not understood: pid {line}", self.name))
    }

    /// Waits for the program to end; kills it after `until` and returns an error.
    pub(super) fn finish(&mut self, until: Instant) -> Result<FinishedProcess> {
        while !self.has_ended() {
            if Instant::now() >= until {
                self.end();
                bail!("{} did not end in time and was ended: {}", self.name, self.complaint());
            }
            thread::sleep(LOOK);
        }
        let status = self.ended.ok_or_else(|| anyhow!("{} is lost", self.name))?;
        let (stdout, stderr) = (self.stdout.whole(until), self.stderr.whole(until));
        Ok(FinishedProcess { status, stdout, stderr })
    }

    /// Asks the program to end and waits for it.
    pub(super) fn stop(&mut self) -> Result<FinishedProcess> {
        self.stdin = None;
        self.finish(Instant::now() + GRACE)
    }

    pub(super) fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// Returns the last lines of standard error.
    pub(super) fn complaint(&self) -> String {
        complaint(&self.stderr.text())
    }

    fn end(&mut self) {
        self.stdin = None;
        let limit = Instant::now() + GRACE;
        while !self.has_ended() && Instant::now() < limit {
            thread::sleep(LOOK);
        }
        if !self.has_ended() {
            // The process can have ended since the check.
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        self.end();
    }
}

impl FinishedProcess {
    /// Returns the last lines of standard error.
    pub(super) fn complaint(&self) -> String {
        complaint(&self.stderr)
    }
}

impl CapturedOutput {
    fn of(from: impl Read + Send + 'static) -> Arc<Self> {
        let output = Arc::new(Self::default());
        let to = Arc::clone(&output);
        thread::spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let mut state = to.state();
                if state.text.len() + line.len() <= KEPT {
                    state.text.extend_from_slice(&line);
                }
                to.changed.notify_all();
                line.clear();
            }
            to.state().is_over = true;
            to.changed.notify_all();
        });
        output
    }

    /// Returns the rest of the first line that begins with `start`; `None` if there is none by
    /// `until`, or the output has ended.
    fn line(&self, start: &str, until: Instant) -> Option<String> {
        let mut state = self.state();
        loop {
            let text = String::from_utf8_lossy(&state.text);
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(rest) = whole.lines().find_map(|line| line.strip_prefix(start)) {
                return Some(rest.to_owned());
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.is_over || left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the complete output; waits for it, because a program can leave its output open to
    /// its children.
    fn whole(&self, until: Instant) -> String {
        let mut state = self.state();
        while !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        String::from_utf8_lossy(&state.text).into_owned()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.state().text).into_owned()
    }

    fn state(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Line of standard error with which a load generator tells that its load begins.
pub(super) const BEGINS: &str = "load begins";

/// Returns the last lines, without those for this program.
fn complaint(stderr: &str) -> String {
    let is_own = |line: &&str| line.starts_with("pid ") || *line == BEGINS;
    let lines: Vec<_> = stderr.lines().filter(|line| !is_own(line)).collect();
    let last = &lines[lines.len().saturating_sub(TOLD)..];
    if last.is_empty() { "it said nothing".to_owned() } else { last.join("; ") }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn shell(script: &str) -> RunningProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        RunningProcess::start(command, "a test").unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn lines_are_found_while_it_runs() {
        let mut running = shell("echo begin; echo ready here; cat >/dev/null");
        assert_eq!(running.line("ready ", soon()).unwrap(), "here");
        let finished = running.stop().unwrap();
        assert!(finished.status.success() && finished.stdout.starts_with("begin\n"));
    }

    #[test]
    fn an_end_before_the_line_is_told_with_its_reason() {
        let error = shell("echo broken >&2; exit 4").line("ready ", soon()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a test") && text.contains("broken") && text.contains('4'), "{text}");
    }

    #[test]
    fn a_line_of_standard_error_is_seen_when_it_comes_and_told_from_none() {
        let mut running = shell(&format!("read go; echo '{BEGINS}' >&2; echo why >&2; cat"));
        assert!(!running.has_told(BEGINS, Instant::now()));
        let mut stdin = running.stdin.take().unwrap();
        stdin.write_all(b"go\n").unwrap();
        assert!(running.has_told(BEGINS, soon()));
        drop(stdin);
        assert_eq!(running.finish(soon()).unwrap().complaint(), "why");
        assert!(!shell("echo no >&2").has_told(BEGINS, soon()), "the output has ended");
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let mut running = shell("cat >/dev/null; echo told >&2");
        let error = running.finish(Instant::now()).unwrap_err().to_string();
        assert!(error.contains("did not end in time"), "{error}");
        assert!(running.has_ended());
    }
}
