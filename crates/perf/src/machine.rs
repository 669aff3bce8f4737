//! Origin of results: machine and command.

use std::thread::available_parallelism;

use nvmeof_report::engines::MachineInfo;

/// This machine.
pub(crate) fn this() -> MachineInfo {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    MachineInfo {
        host: text(uname.nodename()),
        kernel: text(uname.release()),
        cpus: cpus(),
        cpu_model: cpu_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
    }
}

/// Model of the CPUs from the text of `/proc/cpuinfo`; without one, the architecture.
fn cpu_model(cpuinfo: &str) -> String {
    cpu_field(cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned()
}

/// Field of the first CPU in the text of `/proc/cpuinfo`.
pub(crate) fn cpu_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_the_cpus() {
        let text = "processor\t: 0\nmodel name\t: Example CPU @ 2.90GHz\nmodel name\t: other\n";
        assert_eq!(cpu_model(text), "Example CPU @ 2.90GHz");
        assert_eq!(cpu_model("processor : 0\n"), std::env::consts::ARCH);
    }
}
