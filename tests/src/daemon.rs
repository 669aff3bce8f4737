//! A daemon as a user starts it: the binary, a config file, signals, its log.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nvmeof_initiator::Endpoint;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::GUARD;
use crate::build::target_daemon;

/// Counts of the daemon's objects, by name.
///
/// The memory of its buffers is omitted, because it stays for the next user.
pub type Counts = BTreeMap<String, u64>;

/// Part of its log line about a rejected config.
const REFUSED: &str = "config reload rejected";

/// A running `nvmeof-tgt`, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    ready: String,
    log: Arc<Log>,
    folder: TempDir,
}

/// The lines of standard error, as they arrive.
#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    /// Signaled on a new line and at the end of the stream.
    changed: Condvar,
    ended: Mutex<bool>,
}

impl Daemon {
    /// Starts the daemon and waits until it serves.
    ///
    /// # Panics
    /// If it does not reach that state; with its log.
    #[must_use]
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// Like [`Self::start`], with more arguments; file names in them are relative to
    /// [`Self::folder`].
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn start_with(config: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("folder for the config");
        std::fs::write(folder.path().join("target.toml"), config).expect("config");
        Self::start_in(folder, arguments)
    }

    fn start_in(folder: TempDir, arguments: &[&str]) -> Self {
        let mut child = Command::new(target_daemon())
            .arg("--config")
            .arg(folder.path().join("target.toml"))
            .args(arguments)
            .current_dir(folder.path())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nvmeof-tgt starts");
        let log = Arc::new(Log::default());
        let stderr = child.stderr.take().expect("its standard error");
        let stdout = child.stdout.take().expect("its standard output");
        let filled = Arc::clone(&log);
        std::thread::spawn(move || filled.fill(BufReader::new(stderr)));
        let (first_line, wait_for_it) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A failed send means that the test no longer waits for the line.
                let _ = first_line.send(line);
            }
        });
        let mut daemon = Self { child, ready: String::new(), log, folder };
        match wait_for_it.recv_timeout(GUARD) {
            Ok(line) => daemon.ready = line,
            Err(error) => panic!("not ready: {error}\n{}", daemon.log_text()),
        }
        daemon
    }

    /// Returns its ready line.
    #[must_use]
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    /// Returns its listen addresses, in the order of the config.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let words = self.ready.split(' ').skip(1);
        let urls = words.map(|word| word.strip_prefix("tcp://").expect("a TCP address"));
        urls.map(|url| url.parse().expect("an address")).collect()
    }

    /// Returns its first listen address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// Returns the subsystem `nqn` at its first listener.
    #[must_use]
    pub fn endpoint(&self, nqn: &str) -> Endpoint {
        format!("tcp://{}/{nqn}", self.address()).parse().expect("an endpoint")
    }

    /// Returns a folder that lives as long as the daemon and its restarted successors.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process identifier"), signal).expect("the process is there");
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait(&mut self) -> ExitStatus {
        // Its standard error ends with it.
        self.log.wait_for(|_| false, 0);
        let until = Instant::now() + GUARD;
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status;
            }
            assert!(Instant::now() < until, "it does not end\n{}", self.log_text());
            std::thread::yield_now();
        }
    }

    /// Kills it with SIGKILL and starts another one with the same folder and config.
    #[must_use]
    pub fn kill_and_restart(mut self) -> Self {
        self.child.kill().expect("kill");
        self.child.wait().expect("its end");
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Self::start_in(folder, &[])
    }

    /// Stops it cleanly and starts another one with the same folder and config.
    #[must_use]
    pub fn restart(self) -> Self {
        self.restart_after(|| {})
    }

    /// Restarts it; calls `what` while none runs.
    #[must_use]
    pub fn restart_after(mut self, what: impl FnOnce()) -> Self {
        let status = self.stop();
        assert!(status.success(), "{status}\n{}", self.log_text());
        what();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Self::start_in(folder, &[])
    }

    /// Changes the config, sends SIGHUP, and waits until the config is in force; returns the log
    /// line.
    ///
    /// # Panics
    /// If the config is rejected.
    pub fn reload(&self, config: &str) -> String {
        let said = self.offer(config);
        assert!(!said.contains(REFUSED), "{said}\n{}", self.log_text());
        said
    }

    /// Changes the config to one that is rejected; returns the log line.
    ///
    /// # Panics
    /// If the config is accepted.
    pub fn reload_refused(&self, config: &str) -> String {
        let said = self.offer(config);
        assert!(said.contains(REFUSED), "{said}");
        said
    }

    /// Changes the config, sends SIGHUP, and waits for the log line about it.
    fn offer(&self, config: &str) -> String {
        let path: PathBuf = self.folder.path().join("target.toml");
        std::fs::write(path, config).expect("config");
        let from = self.log.len();
        self.signal(Signal::HUP);
        let is_verdict = |line: &str| line.contains("config reloaded: ") || line.contains(REFUSED);
        let at = self.log.wait_for(is_verdict, from);
        let at = at.unwrap_or_else(|| panic!("no word on the reload\n{}", self.log_text()));
        let lines = self.log.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines[at..].join("\n")
    }

    /// Waits for a line of the log that contains `part`, and returns it.
    ///
    /// # Panics
    /// If none arrives.
    pub fn wait_for_line(&self, part: &str) -> String {
        match self.log.wait_for(|line| line.contains(part), 0) {
            Some(at) => self.log.line(at),
            None => panic!("no line with {part:?}\n{}", self.log_text()),
        }
    }

    /// Returns the lines of its log so far that contain `part`.
    #[must_use]
    pub fn lines_with(&self, part: &str) -> Vec<String> {
        let lines = self.log.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(part)).cloned().collect()
    }

    /// Returns its counts (SIGUSR1).
    ///
    /// # Panics
    /// If it does not report them.
    pub fn counts(&self) -> Counts {
        let from = self.log.len();
        self.signal(Signal::USR1);
        let at = self.log.wait_for(|line| line.starts_with("counts "), from);
        let at = at.unwrap_or_else(|| panic!("no counts\n{}", self.log_text()));
        let line = self.log.line(at);
        let pairs = line.split(' ').skip(1).map(|pair| {
            let (name, value) = pair.split_once('=').expect("name=value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        pairs.filter(|(name, _): &(String, u64)| name != "buffer_memory").collect()
    }

    /// Waits until it has exactly these counts and this number of open files.
    ///
    /// # Panics
    /// If that does not happen: something has leaked.
    pub fn wait_for_counts(&self, wanted: &Counts, open_files: usize) {
        let until = Instant::now() + GUARD;
        loop {
            let (counts, files) = (self.counts(), self.open_files());
            if counts == *wanted && files == open_files {
                return;
            }
            assert!(
                Instant::now() < until,
                "{counts:?} and {files} files, not {wanted:?} and {open_files}\n{}",
                self.log_text()
            );
            // No event marks the removal of the last connection.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the number of its open files.
    #[must_use]
    pub fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        files.expect("its open files").count()
    }

    /// Returns its resident memory in bytes.
    #[must_use]
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("VmRSS in kB");
        kib.trim().parse::<u64>().expect("a number") << 10
    }

    /// Returns its standard error, without the replies to signals.
    #[must_use]
    pub fn log_text(&self) -> String {
        let lines = self.log.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let asked_for = |line: &&String| line.starts_with("counts ") || line.starts_with("stats ");
        let log = lines.iter().filter(|line| !asked_for(line));
        log.map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // If kill fails, it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    fn fill(&self, reader: impl std::io::BufRead) {
        for line in reader.lines().map_while(Result::ok) {
            self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            self.changed.notify_all();
        }
        let _lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn len(&self) -> usize {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn line(&self, at: usize) -> String {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)[at].clone()
    }

    /// Returns the first line from `from` on that matches; `None` if the log ends without one, or
    /// at the timeout.
    fn wait_for(&self, wanted: impl Fn(&str) -> bool, from: usize) -> Option<usize> {
        let until = Instant::now() + GUARD;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let found = lines.iter().skip(from).position(|line| wanted(line));
            if let Some(found) = found {
                return Some(from + found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if *self.ended.lock().unwrap_or_else(PoisonError::into_inner) || left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
