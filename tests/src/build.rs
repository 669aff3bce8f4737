//! The binaries under test, built once per test process, in the profile of the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of `nvmeof-tgt`.
///
/// # Panics
/// If it does not build.
#[must_use]
pub fn target_daemon() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| binaries().join("nvmeof-tgt"))
}

/// Returns the path of `nvmeof-perf`.
///
/// # Panics
/// If it does not build.
#[must_use]
pub fn load_generator() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| binaries().join("nvmeof-perf"))
}

/// Returns the path of `nvmeofctl`.
///
/// # Panics
/// If it does not build.
#[must_use]
pub fn control() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| binaries().join("nvmeofctl"))
}

/// Environment variable of test runs whose programs are built already.
///
/// A run of the whole workspace's tests sets it, after it has built the programs together with the
/// tests. One package alone requires fewer features of its libraries, so a build here would compile
/// most of it again.
const ARE_BUILT: &str = "NVMEOF_TESTS_PROGRAMS_ARE_BUILT";

/// Builds them and returns their folder. Cargo does nothing if they are up to date.
fn binaries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // TARGET/PROFILE/deps/this-test
        let test = std::env::current_exe().expect("path of the test");
        let folder = test.ancestors().nth(2).expect("folder of the profile").to_path_buf();
        if std::env::var_os(ARE_BUILT).is_some() {
            return folder;
        }
        let target = folder.parent().expect("target folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "-p",
            "nvmeof-tgt",
            "-p",
            "nvmeof-perf",
            "-p",
            "nvmeof-ctl",
        ]);
        cargo.arg("--target-dir").arg(target);
        match folder.file_name().and_then(|name| name.to_str()) {
            None | Some("debug") => {}
            Some(profile) => {
                cargo.args(["--profile", profile]);
            }
        }
        let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo");
        assert!(status.success(), "the binaries under test do not build: {status}");
        folder
    })
}
