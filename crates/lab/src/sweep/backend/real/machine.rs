//! A machine that runs programs: this one, or another over ssh.
//!
//! The installed ssh is used, with its config, keys and agent; one connection per machine carries
//! all commands.

use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::process::RunningProcess;

/// Timeout for a command that only queries.
const ASK: Duration = Duration::from_secs(20);

/// Runs a program, reports its process ID, and ends it when standard input closes.
///
/// Nothing remains on the machine, however the sweep ends. The program gets ten seconds to end
/// cleanly.
const GUARD: &str = "exec 3<&0
\"$@\" </dev/null 3<&- &
p=$!
echo \"pid $p\" >&2
{ cat; kill -TERM $p; sleep 10; kill -KILL $p; } <&3 >/dev/null 2>&1 &
w=$!
wait $p
r=$?
kill $w 2>/dev/null
exit $r";

/// A machine that runs programs.
#[derive(Debug, Clone)]
pub(super) enum RemoteMachine {
    /// This machine.
    Local,
    /// Another machine.
    SshMachine(SshMachine),
}

/// A machine that ssh can reach.
#[derive(Debug, Clone)]
pub(super) struct SshMachine {
    /// Destination in ssh's form: a name of its config, or user@host.
    destination: String,
    /// More arguments for ssh.
    options: Vec<String>,
    /// Socket of the shared connection.
    control: PathBuf,
}

impl RemoteMachine {
    /// Another machine; `folder` is for the socket of the connection, whose path must be short.
    pub(super) fn over_ssh(destination: &str, options: &[String], folder: &Path) -> Result<Self> {
        // ssh would interpret it as an option.
        ensure!(
            !destination.starts_with('-') && !destination.is_empty(),
            "host.ssh: `{destination}` is no destination; write user@host or a name of ssh's config"
        );
        let control = folder.join("%C");
        let (destination, options) = (destination.to_owned(), options.to_vec());
        Ok(Self::SshMachine(SshMachine { destination, options, control }))
    }

    /// Starts a program on the machine, guarded.
    pub(super) fn start(&self, program: &str, args: &[String]) -> Result<RunningProcess> {
        let words = ["sh", "-c", GUARD, "guard", program].into_iter().map(str::to_owned);
        let words: Vec<String> = words.chain(args.iter().cloned()).collect();
        let mut command = self.command(&words);
        // Ctrl-C at the terminal must only reach the sweep, which ends the programs it started.
        command.process_group(0);
        RunningProcess::start(command, &format!("{program} on {self}"))
    }

    /// Runs a script on the machine and returns its output.
    pub(super) fn query(&self, script: &str) -> Result<String> {
        let words = ["sh", "-c", script].map(str::to_owned);
        let mut command = self.command(&words);
        command.process_group(0);
        let mut running = RunningProcess::start(command, &self.to_string())?;
        let finished = running.finish(Instant::now() + ASK)?;
        ensure!(
            finished.status.success(),
            "{self}: {} ({})",
            finished.complaint(),
            finished.status
        );
        Ok(finished.stdout)
    }

    /// Writes a file on the machine.
    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        let Self::SshMachine(_) = self else {
            return std::fs::write(path, text).with_context(|| format!("cannot write {path}"));
        };
        let words = ["sh", "-c", "cat > \"$0\"", path].map(str::to_owned);
        let mut command = self.command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start ssh")?;
        if let Some(mut stdin) = child.stdin.take() {
            use std::io::Write as _;
            // If the program does not read its input, its exit status gives the reason.
            let _ = stdin.write_all(text.as_bytes());
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("{self}: cannot write {path}: {}", complaint.trim());
        }
        Ok(())
    }

    /// Ends the shared connection, if there is one.
    pub(super) fn disconnect(&self) {
        if let Self::SshMachine(ssh) = self {
            let mut command = ssh.command();
            command.args(["-O", "exit", &ssh.destination]);
            // A missing connection is not an error.
            let _ =
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }

    fn command(&self, words: &[String]) -> Command {
        match self {
            Self::Local => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
            Self::SshMachine(ssh) => {
                let mut command = ssh.command();
                let line: Vec<_> = words.iter().map(|word| quoted(word)).collect();
                command.arg(&ssh.destination).arg("--").arg(line.join(" "));
                command
            }
        }
    }
}

impl SshMachine {
    fn command(&self) -> Command {
        let mut command = Command::new("ssh");
        // No person is there to type a password; a host that disappears is detected.
        command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]);
        command.args(["-o", "ControlMaster=auto", "-o", "ControlPersist=60"]);
        command.arg("-o").arg(format!("ControlPath={}", self.control.display()));
        command.args(&self.options);
        command
    }
}

impl fmt::Display for RemoteMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "this machine",
            Self::SshMachine(ssh) => &ssh.destination,
        })
    }
}

/// Quotes a word for a POSIX shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_a_shell_as_they_are() {
        for word in ["", "a b", "it's", "$HOME `id` \"x\" \\", "line\nline", "-n"] {
            let line = format!("printf %s {}", quoted(word));
            assert_eq!(RemoteMachine::Local.query(&line).unwrap(), word);
        }
    }

    #[test]
    fn a_destination_is_never_an_option() {
        for bad in ["-oProxyCommand=x", ""] {
            assert!(RemoteMachine::over_ssh(bad, &[], Path::new("/")).is_err());
        }
    }

    #[test]
    fn what_a_machine_complains_of_is_told() {
        let error =
            RemoteMachine::Local.query("echo no such thing >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("this machine") && error.contains("no such thing"), "{error}");
    }

    #[test]
    fn a_program_ends_with_whoever_started_it() {
        let running = RemoteMachine::Local.start("sleep", &["600".into()]).unwrap();
        let pid = running.pid(Instant::now() + ASK).unwrap();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(running);
        let gone = || !Path::new(&format!("/proc/{pid}/exe")).exists();
        let limit = Instant::now() + ASK;
        while !gone() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(gone(), "process {pid} outlived us");
    }
}
