//! Drive, host and parameters of a test: the first table of the report.

use std::time::SystemTime;

use nvmeof_report::steady::DriveTestSetup;

use super::plan::DriveTestPlan;
use crate::machine;
use crate::target::TargetSpace;

/// Describes a test of `space`.
pub(crate) fn describe(plan: &DriveTestPlan, space: &TargetSpace) -> DriveTestSetup {
    let (host, identity) = (machine::this(), &space.identity);
    DriveTestSetup {
        device: match &space.subnqn {
            Some(_) => format!("{}, namespace {}", space.connect, space.nsid),
            None => space.connect.clone(),
        },
        path: path(identity.kind).into(),
        model: identity.model.trim().into(),
        serial: identity.serial.trim().into(),
        firmware: identity.firmware.trim().into(),
        capacity: plan.capacity,
        block_size: plan.block_size,
        host: host.host,
        kernel: format!("Linux {}", host.kernel),
        kernel_command_line: line("/proc/cmdline"),
        distribution: distribution(&line_free("/etc/os-release")),
        board: dmi(&["board_vendor", "board_name"]),
        bios: dmi(&["bios_vendor", "bios_version", "bios_date"]),
        microcode: microcode(&line_free("/proc/cpuinfo")),
        note: String::new(),
        processor: host.cpu_model,
        processors: host.cpus,
        version: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).into(),
        command_line: machine::command(),
        started: now(),
        jobs: plan.jobs,
        iodepth: plan.iodepth,
        seconds: plan.seconds,
        precondition: plan.fills,
        rounds: plan.rounds,
        quick: plan.quick,
        departures: departures(plan, space),
    }
}

/// Returns true if the drive is the one of an earlier test.
pub(crate) fn is_same(setup: &DriveTestSetup, plan: &DriveTestPlan, space: &TargetSpace) -> bool {
    let other = describe(plan, space);
    (&setup.model, &setup.serial, &setup.device) == (&other.model, &other.serial, &other.device)
        && plan.capacity <= space.size
        && plan.block_size == space.block_size
}

/// The text of a file; empty if it cannot be read.
fn line_free(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The text of a file of one line.
fn line(path: &str) -> String {
    line_free(path).trim().to_owned()
}

/// The name of the distribution from the text of `/etc/os-release`.
fn distribution(text: &str) -> String {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

/// The revision of the microcode from the text of `/proc/cpuinfo`.
fn microcode(text: &str) -> String {
    machine::cpu_field(text, "microcode").unwrap_or_default().to_owned()
}

/// Attributes of the board that the firmware reports (SMBIOS).
fn dmi(names: &[&str]) -> String {
    let texts = names.iter().map(|name| line(&format!("/sys/class/dmi/id/{name}")));
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

fn departures(plan: &DriveTestPlan, space: &TargetSpace) -> Vec<String> {
    let mut all = plan.departures();
    if plan.capacity < space.size {
        all.push(format!("only the first {} of {} bytes are tested.", plan.capacity, space.size));
    }
    all
}

fn path(kind: &str) -> &str {
    match kind {
        "tcp" => "NVMe/TCP, by this program's own host side",
        "rdma" => "NVMe/RDMA, by this program's own host side",
        "block" => "the kernel's block device, io_uring, direct",
        "file" => "a file, io_uring",
        "nvme" => "this program's own driver, over VFIO",
        "ram" => "memory of this process",
        "null" => "nothing: reads zeroes, forgets writes",
        other => other,
    }
}

/// The time, UTC.
pub(crate) fn now() -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    utc(since_1970.map_or(0, |since| since.as_secs()))
}

/// Seconds since 1970 as a date and a time of day.
fn utc(seconds: u64) -> String {
    let (mut day, second) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970_u64;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    loop {
        let days = if is_leap(year) { 366 } else { 365 };
        if day < days {
            break;
        }
        day -= days;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machines_files_say() {
        let text = "NAME=x\nPRETTY_NAME=\"Example Linux 12\"\n";
        assert_eq!(distribution(text), "Example Linux 12");
        assert_eq!(microcode("model name\t: x\nmicrocode\t: 0x2b0\n"), "0x2b0");
        assert_eq!((distribution(""), microcode("")), (String::new(), String::new()));
        assert_eq!(line("/no/such/file"), "");
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (1_735_689_600, "2025-01-01 00:00:00 UTC"),
            (1_795_305_600, "2026-11-22 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
