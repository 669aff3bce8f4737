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
