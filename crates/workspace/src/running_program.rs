//! The running program, for code that starts it again or copies it to another machine.

use std::path::{Path, PathBuf};

/// Name of the program in messages: the command by which a user starts it.
pub const NAME: &str = "cargo xtask";

/// Returns a path to the running program itself, valid while it runs.
///
/// Its path in the target folder is not suitable. A build can replace that file while the program
/// runs, and the build of `cargo xtask test` does.
#[must_use]
pub fn path() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Returns whether a path is the one [`path`] returns.
#[must_use]
pub fn is(program: &Path) -> bool {
    program == path()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Environment variable that names the file of the copy below.
    const COPY: &str = "NVMEOF_TESTS_RUNNING_PROGRAM";

    #[test]
    fn it_can_be_started_and_read_when_its_file_is_gone() {
        if let Some(file) = std::env::var_os(COPY) {
            fs::remove_file(file).unwrap();
            let size = fs::read(path()).unwrap().len();
            let again = Command::new(path()).arg("--list").output().unwrap();
            assert!(again.status.success() && size > 0, "{again:?}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("copy");
        fs::copy(std::env::current_exe().unwrap(), &file).unwrap();
        let name = "running_program::tests::it_can_be_started_and_read_when_its_file_is_gone";
        let copy = Command::new(&file).args(["--exact", name]).env(COPY, &file).output().unwrap();
        assert!(copy.status.success(), "{copy:?}");
        assert!(String::from_utf8_lossy(&copy.stdout).contains("1 passed"), "{copy:?}");
        assert!(!file.exists());
    }
}
