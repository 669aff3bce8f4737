//! Origin of results: machine and command.

use std::thread::available_parallelism;

use nvmeof_report::engines::MachineInfo;

/// This machine.
pub(crate) fn this() -> MachineInfo {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    MachineInfo { host: text(uname.nodename()), kernel: text(uname.release()), cpus: cpus() }
}

/// CPUs this process may use.
pub(crate) fn cpus() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// The command line in shell form; the program without its folder.
pub(crate) fn command() -> String {
    let mut words = vec!["nvmeof-perf".to_owned()];
    for word in std::env::args().skip(1) {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%[]".contains(c);
        let is_plain = !word.is_empty() && word.chars().all(plain);
        words.push(if is_plain { word } else { format!("'{}'", word.replace('\'', "'\\''")) });
    }
    words.join(" ")
}
