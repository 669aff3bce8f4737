//! What of the machine a config depends on.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

/// What of the machine a config depends on: handed in, so that a test can stand on any machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// CPUs the process may run on, in order.
    pub cpus: Vec<usize>,
    /// File descriptors the process may have at most, once it has raised its limit.
    pub open_files: u64,
    /// Physical memory in bytes; `u64::MAX` if the system does not say.
    pub memory: u64,
    /// Files that this process serves already: their size may be changed.
    pub held: BTreeSet<PathBuf>,
}

/// The kernel's own bound on CPU numbers (`CPU_SETSIZE` of the affinity calls).
const CPUS_MAX: usize = rustix::thread::CpuSet::MAX_CPU;

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// If the system does not say on which CPUs the process may run.
    pub fn this() -> std::io::Result<Self> {
        let affinity = sched_getaffinity(None)?;
        let cpus = (0..CPUS_MAX).filter(|cpu| affinity.is_set(*cpu)).collect();
        let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        Ok(Self {
            cpus,
            open_files,
            memory: physical_memory().unwrap_or(u64::MAX),
            held: BTreeSet::new(),
        })
    }
}

fn physical_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_has() {
        let machine = Machine::this().unwrap();
        assert!(!machine.cpus.is_empty() && machine.cpus.is_sorted());
        assert!(machine.open_files >= 64);
        assert!((64 << 20..u64::MAX).contains(&machine.memory));
    }
}
