//! The machines of a sweep while it lasts.
//!
//! On each machine the sweep has a folder and exclusive use. Both end with the sweep, however it
//! ends.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::NamedMachines;
use super::machine::RemoteMachine;
use super::process::RunningProcess;

/// Timeout for a machine to answer.
const ANSWER: Duration = Duration::from_secs(20);

/// Creates the folder `$1` and keeps it until its stop request.
///
/// A machine is identified by its network namespace: the lock is on its file, which needs no name
/// on a disk. Folders of the same sweep begin with `$2`, because one machine can be in a sweep
/// twice.
const STAY: &str = r#"exec 9</proc/self/ns/net
if command -v flock >/dev/null && ! flock -n 9; then
  ls -d "$2"* >/dev/null 2>&1 || { echo 'another sweep uses this machine' >&2; exit 1; }
fi
trap 'rm -rf "$1"' EXIT
trap 'kill $s 2>/dev/null; exit 0' TERM INT HUP
mkdir "$1" || exit 1
echo stays
while :; do sleep 86400 9<&- & s=$!; wait $s; done"#;

/// The reachable machines of the target and the hosts. Dropping it restores them.
#[derive(Debug)]
pub(super) struct ReservedMachines {
    pub(super) target: RemoteMachine,
    /// At least one.
    pub(super) hosts: Vec<RemoteMachine>,
    /// The target's, then the hosts'.
    locks: Vec<MachineLock>,
    /// Folder of ssh's sockets, removed with this value.
    _sockets: tempfile::TempDir,
}

/// A machine that a sweep uses exclusively. Dropping it releases the machine.
#[derive(Debug)]
struct MachineLock {
    folder: String,
    _stay: RunningProcess,
}

impl ReservedMachines {
    /// Reaches all machines; `sweep` is a unique name.
    pub(super) fn reach(machines: &NamedMachines, sweep: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("sweep").tempdir()?;
        let reach =
            |name: &String| RemoteMachine::over_ssh(name, &machines.ssh_options, folder.path());
        let target = machines.target.as_ref().map_or(Ok(RemoteMachine::Local), reach)?;
        let hosts: Vec<_> = machines.hosts.iter().map(reach).collect::<Result<_>>()?;
        let hosts = if hosts.is_empty() { vec![RemoteMachine::Local] } else { hosts };
        let mut reserved = Self { target, hosts, locks: Vec::new(), _sockets: folder };
        for (number, machine) in
            std::iter::once(&reserved.target).chain(&reserved.hosts).enumerate()
        {
            reserved.locks.push(MachineLock::acquire(machine, sweep, number)?);
        }
        Ok(reserved)
    }

    /// Returns the folder for files on the target.
    pub(super) fn target_folder(&self) -> &str {
        &self.locks[0].folder
    }

    /// Returns the machine of a plan's host, assigned in turn, and the folder for its files.
    pub(super) fn host(&self, host: usize) -> (&RemoteMachine, &str) {
        let at = host % self.hosts.len();
        (&self.hosts[at], &self.locks[1 + at].folder)
    }
}

impl Drop for ReservedMachines {
    fn drop(&mut self) {
        self.locks.clear();
        std::iter::once(&self.target).chain(&self.hosts).for_each(RemoteMachine::disconnect);
    }
}

impl MachineLock {
    /// Acquires a machine; `number` distinguishes the sweep's machines.
    fn acquire(machine: &RemoteMachine, sweep: &str, number: usize) -> Result<Self> {
        machine.query("true").with_context(|| {
            format!(
                "{machine} does not respond: try `ssh {machine} true`, which must not ask anything"
            )
        })?;
        let all = format!("/tmp/nvmeof-sweep-{sweep}-");
        let folder = format!("{all}{number}");
        let words = ["-c", STAY, "stay", &folder, &all].map(str::to_owned);
        let mut stay = machine.start("sh", &words)?;
        stay.line("stays", Instant::now() + ANSWER).with_context(|| {
            format!(
                "{machine} cannot be used now; two sweeps at once would measure each other: wait for the other \
                 one's end"
            )
        })?;
        Ok(Self { folder, _stay: stay })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nvmeof_report::RunOrigin;

    use super::*;

    #[test]
    fn a_host_that_does_not_answer_is_named_and_nothing_is_left() {
        let machines = NamedMachines {
            place: RunOrigin::Remote,
            listen: "tcp://192.0.2.1".parse().unwrap(),
            target: None,
            hosts: vec!["nobody@nowhere.invalid".to_owned()],
            ssh_options: vec!["-oProxyCommand=false".to_owned(), "-F/dev/null".to_owned()],
            target_cpus: vec![0],
            host_cpus: None,
            drives: Vec::new(),
            tgt: "nvmeof-tgt".to_owned(),
            perf: "nvmeof-perf".to_owned(),
            fio: "fio".to_owned(),
            spdk_plugin: None,
        };
        let sweep = format!("test-{}-nobody", std::process::id());
        let error = free(|| ReservedMachines::reach(&machines, &sweep).map(|_| ()));
        assert!(error.contains("nobody@nowhere.invalid does not respond"), "{error}");
        assert!(!Path::new(&format!("/tmp/nvmeof-sweep-{sweep}-0")).exists(), "left behind");
    }

    /// Returns the error of `begin`, which is retried while another sweep uses this machine.
    fn free(mut begin: impl FnMut() -> Result<()>) -> String {
        let limit = Instant::now() + Duration::from_secs(120);
        loop {
            let error = begin().map_err(|error| format!("{error:#}")).err().unwrap_or_default();
            if !error.contains("another sweep") || Instant::now() > limit {
                return error;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    #[test]
    fn two_sweeps_do_not_use_one_machine_at_once_and_leave_nothing() {
        let names = ["a", "b"].map(|name| format!("test-{}-{name}", std::process::id()));
        let begin = |name: &str, number| MachineLock::acquire(&RemoteMachine::Local, name, number);
        let mut first = None;
        let refusal = free(|| {
            first = Some(begin(&names[0], 0)?);
            Ok(())
        });
        let first = first.expect(&refusal);
        // Target and host of one sweep.
        let again = begin(&names[0], 1).unwrap();
        assert!(Path::new(&first.folder).is_dir() && Path::new(&again.folder).is_dir());
        let error = format!("{:#}", begin(&names[1], 0).unwrap_err());
        assert!(error.contains("this machine cannot be used now"), "{error}");
        assert!(error.contains("another sweep uses this machine"), "{error}");
        let folders = [first.folder.clone(), again.folder.clone()];
        drop((first, again));
        assert!(folders.iter().all(|folder| !Path::new(folder).exists()), "left behind");
    }
}
