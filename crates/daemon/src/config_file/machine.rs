//! Properties of the machine that a config depends on.

use std::path::Path;

use nvmeof_core::block::FileConfig;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

/// Properties of the machine that a config depends on; passed in, so that tests can choose them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// CPUs the process may run on, in order.
    pub cpus: Vec<usize>,
    /// Maximum file descriptors of the process, after it has raised its limit.
    pub open_files: u64,
    /// Bytes of memory available to the process: the machine's, or the limit of its control group.
    ///
    /// `u64::MAX` if the system does not report it.
    pub memory: u64,
    /// Open file devices of this process.
    ///
    /// A config entry that differs at most in size is not checked: the device exists, whatever its
    /// path now refers to.
    pub open: Vec<FileConfig>,
}

/// Kernel limit on CPU numbers (`CPU_SETSIZE` of the affinity calls).
const CPUS_MAX: usize = rustix::thread::CpuSet::MAX_CPU;

impl Machine {
    /// Reads the properties of this machine.
    ///
    /// # Errors
    /// The system does not report the CPUs that the process may run on.
    pub fn this() -> std::io::Result<Self> {
        let affinity = sched_getaffinity(None)?;
        let cpus = (0..CPUS_MAX).filter(|cpu| affinity.is_set(*cpu)).collect();
        let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        Ok(Self {
            cpus,
            open_files,
            memory: physical_memory().unwrap_or(u64::MAX).min(allowed_memory()),
            open: Vec::new(),
        })
    }
}

fn physical_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the memory limit of this process's control group (`MemoryMax=` of a unit), if any.
fn allowed_memory() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    group.map_or(u64::MAX, |group| allowed_in(Path::new("/sys/fs/cgroup"), group))
}

/// Returns the lowest limit of a group in the unified hierarchy at `root` and of its ancestors.
fn allowed_in(root: &Path, group: &str) -> u64 {
    let folder = root.join(group);
    let all = folder.ancestors().take_while(|folder| folder.starts_with(root));
    let limits = all.filter_map(|folder| {
        let text = std::fs::read_to_string(folder.join("memory.max")).ok()?;
        // "max" does not parse as a number, and means no limit.
        text.trim().parse().ok()
    });
    limits.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = "system.slice/nvmeof-tgt.service";
        let limit = |at: &str, text: &str| {
            std::fs::create_dir_all(root.path().join(at)).unwrap();
            std::fs::write(root.path().join(at).join("memory.max"), text).unwrap();
        };
        assert_eq!(allowed_in(root.path(), group), u64::MAX);
        limit(group, "max\n");
        assert_eq!(allowed_in(root.path(), group), u64::MAX);
        limit(group, "1000\n");
        limit("system.slice", "2000\n");
        assert_eq!(allowed_in(root.path(), group), 1000);
        limit("system.slice", "500\n");
        limit("other.slice", "1\n");
        assert_eq!(allowed_in(root.path(), group), 500);
    }

    #[test]
    fn this_machine_says_what_it_has() {
        let machine = Machine::this().unwrap();
        assert!(!machine.cpus.is_empty() && machine.cpus.is_sorted());
        assert!(machine.open_files >= 64);
        assert!((16 << 20..u64::MAX).contains(&machine.memory));
    }
}
