//! Tests of layered devices and drives.

use std::time::Duration;

use nvmeof_core::block::Latency;
use nvmeof_core::block::fault::FaultPlan;

use super::{LEAST, parse};
use crate::config::{Config, DeviceKind, Drive};
use crate::limits::{DriveQueues, Limits};

/// Formats a `[[device]]` with these keys.
fn device(name: &str, kind: &str, keys: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ntype = \"{kind}\"\n{keys}\n")
}

fn ram(name: &str, size: &str) -> String {
    device(name, "ram", &format!("size = \"{size}\""))
}

fn config(devices: &[String]) -> Config {
    let text = format!("{LEAST}{}", devices.concat());
    parse(&text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// Returns the errors of incompatible devices.
fn refused(devices: &[String]) -> String {
    let text = format!("{LEAST}{}", devices.concat());
    parse(&text).expect_err(&text).to_string()
}

fn assert_refused(devices: &[String], parts: &[&str]) {
    let error = refused(devices);
    for part in parts {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn what_is_written_is_what_counts() {
    let config = config(&[
        device("all", "stripe", "members = [\"one\", \"two\"]\nchunk = \"12KiB\""),
        device("one", "split", "base = \"ram\"\nsize = \"1MiB\""),
        device("two", "split", "base = \"bad\"\noffset = \"1MiB\""),
        device(
            "bad",
            "fault",
            "base = \"late\"\nerrors = 5\ncorruptions = 6\nrejects = 7\nstalls = 8\nstall = \"9ms\"\n\
             reorder = true\nseed = 10\nbad = [\"4k+512\", \"0+1\"]\ngone = true",
        ),
        device(
            "late",
            "delay",
            "base = \"ram\"\nread-latency = \"1us\"\nwrite-latency = \"2us\"\nread-jitter = \"3us\"\n\
             write-jitter = \"4us\"\nseed = 5",
        ),
        device("ram", "ram", "size = \"4MiB\"\nblock-size = 4096"),
        device(
            "drive",
            "nvme",
            "pci = \"61:00.0\"\nnsid = 3\nqueue-depth = 64\nio-timeout = \"5s\"",
        ),
    ]);
    let names: Vec<&str> = config.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["ram", "drive", "one", "late", "bad", "two", "all"]);
    let kind = |name: &str| &config.device(name).unwrap().kind;
    let blocks = config.devices.iter().map(|device| device.block_size);
    assert!(blocks.eq([Some(4096), None].into_iter().chain([Some(4096); 5])));
    let members = vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(kind("all"), &DeviceKind::Stripe { members, chunk: 12 << 10 });
    let (base, size) = ("ram".to_owned(), Some(1 << 20));
    assert_eq!(kind("one"), &DeviceKind::Split { base, offset: 0, size });
    let base = "bad".to_owned();
    assert_eq!(kind("two"), &DeviceKind::Split { base, offset: 1 << 20, size: None });
    let us = Duration::from_micros;
    let latency = Latency { read: us(1), write: us(2), read_jitter: us(3), write_jitter: us(4) };
    assert_eq!(kind("late"), &DeviceKind::Delay { base: "ram".into(), latency, seed: 5 });
    let plan = FaultPlan {
        seed: 10,
        errors: 5,
        corruptions: 6,
        rejects: 7,
        stalls: 8,
        stall: us(9000),
        reorder: true,
        bad: vec![4096..4608, 0..1],
    };
    assert_eq!(kind("bad"), &DeviceKind::Fault { base: "late".into(), plan, gone: true });
    let drive = Drive {
        pci: "0000:61:00.0".into(),
        nsid: 3,
        queue_depth: 64,
        io_timeout: Duration::from_secs(5),
    };
    assert_eq!(kind("drive"), &DeviceKind::Nvme(drive));
    // Queues of each device and its bases: ram 1, drive 2, one 1, late 1, bad 3, two 3, all 1 + 3 +
    // 1.
    let limits = Limits::of(&config);
    let needs = &limits.needs;
    let queues = DriveQueues::of("0000:61:00.0", &config.devices, 3);
    assert_eq!(queues, DriveQueues { needed: 3, wanted: 6 });
    assert_eq!((needs.queue_files, needs.drives, needs.drive_entries), (16, 1, 64));
    // A page, an SQE and a CQE per entry and reactor (3), twice for the reopening of devices.
    assert_eq!(limits.drive_memory, 2 * 3 * 64 * (4096 + 80));
    assert!(limits.to_string().ends_with("queues to drives take up to 1566KiB"));
}

#[test]
fn members_and_bases_are_used_and_what_is_doubtful_is_told() {
    let warnings = |devices: &[String]| {
        let warnings = config(devices).warnings;
        warnings.iter().map(|warning| format!("{warning}\n")).collect::<String>()
    };
    let (one, two) = (ram("one", "1MiB"), ram("two", "1MiB"));
    let stripe = device("s", "stripe", "members = [\"one\", \"two\"]");
    let said = warnings(&[one.clone(), two.clone(), stripe.clone()]);
    assert!(!said.contains("\"one\"") && said.contains("no namespace uses device \"s\""), "{said}");
    let served = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
                  [[subsystem.namespace]]\nnsid = 1\ndevice = \"one\"\n";
    let said = warnings(&[one.clone(), two, stripe, served.into()]);
    assert!(said.contains("t.toml:5:8: device.name: the namespace of line 21 shares"), "{said}");
    let split =
        |name: &str, range: &str| device(name, "split", &format!("base = \"one\"\n{range}"));
    let apart = [split("a", "size = \"512KiB\""), split("b", "offset = \"512KiB\"")];
    let said = warnings(&[std::slice::from_ref(&one), &apart[..]].concat());
    assert!(!said.contains("bytes of"), "{said}");
    let said = warnings(&[&[one], &apart[..], &[split("c", "offset = 512\nsize = 512")]].concat());
    assert!(
        said.contains("t.toml:21:8: device.base: the bytes of \"one\" overlap those of \"a\""),
        "{said}"
    );
}

#[test]
fn splits_that_are_none_are_refused() {
    let on =
        |base: String, keys: &str| [base, device("a", "split", &format!("base = \"ram\"\n{keys}"))];
    let small = || ram("ram", "1MiB");
    assert_refused(
        &on(small(), "offset = 100"),
        &["t.toml:12:10: device.offset: 100 bytes are not"],
    );
    assert_refused(&on(small(), "size = 100"), &["t.toml:12:8: device.size", "multiples of 512"]);
    assert_refused(&on(small(), "size = 0"), &["t.toml:12:8: device.size: a device of 0 bytes"]);
    assert_refused(&on(small(), "offset = \"1MiB\""), &["device.offset: the base ends at 1MiB"]);
    let beyond = "offset = \"512KiB\"\nsize = \"513KiB\"";
    assert_refused(
        &on(small(), beyond),
        &["t.toml:13:8: device.size: only 512KiB of the base remain"],
    );
    // The known size of the base counts, through other layers as well.
    let stripe = device("ram", "stripe", "members = [\"x\", \"y\"]\nchunk = \"96KiB\"");
    let members = [ram("x", "1MiB"), ram("y", "2MiB"), stripe].concat();
    assert_refused(
        &on(members, "size = \"2MiB\""),
        &["only 1920KiB of the base remain from there"],
    );
    let drive = device("ram", "nvme", "pci = \"01:00.0\"");
    config(&on(drive, "offset = 100\nsize = \"9TiB\""));
}

#[test]
fn stripes_that_are_none_are_refused() {
    let with = |keys: &str| {
        let large = device("c", "ram", "size = \"1MiB\"\nblock-size = 4096");
        let others = [ram("b", "64KiB"), large, device("s", "stripe", keys), ram("a2", "1MiB")];
        [&[ram("a", "1MiB")], &others[..]].concat()
    };
    for (keys, parts) in [
        ("", &["t.toml:17:1: device.members: missing", "a list of 2 to 256"][..]),
        ("members = []", &["t.toml:20:11: device.members: a stripe of 0 devices is none"]),
        ("members = [\"a\"]", &["a stripe of 1 devices is none"]),
        ("members = [\"a\", \"a\"]", &["t.toml:20:17: device.members: line 20 has \"a\" already"]),
        (
            "members = [\"a\", \"s\"]",
            &["t.toml:20:17: device.members: a device cannot be its own base"],
        ),
        (
            "members = [\"a\", \"d\"]",
            &["there is no device \"d\"; allowed: \"a\", \"b\", \"c\", \"a2\""],
        ),
        ("members = [\"a\", \"c\"]", &["\"a\" has blocks of 512 bytes, but \"c\" of 4096"]),
        ("members = [\"a\", \"b\"]", &["device.chunk: \"b\" does not hold a chunk of 128KiB"]),
        (
            "members = [\"a\", \"b\"]\nchunk = 1000",
            &["t.toml:21:9: device.chunk: 1000 bytes are not whole blocks of 512"],
        ),
        ("members = [\"a\", \"a2\"]\nchunk = 0", &["device.chunk: 0 bytes is out of range"]),
    ] {
        let keys = if keys.is_empty() { "chunk = \"4KiB\"" } else { keys };
        assert_refused(&with(keys), parts);
    }
}

#[test]
fn members_share_nothing_but_through_splits() {
    let stripe = device("s", "stripe", "members = [\"a\", \"b\"]");
    let on =
        |kind: &str, name: &str, keys: &str| device(name, kind, &format!("base = \"ram\"\n{keys}"));
    let delays = [
        ram("ram", "1MiB"),
        on("delay", "a", "read-latency = \"1us\""),
        on("delay", "b", "read-latency = \"1us\""),
    ];
    let error =
        "device.members: \"a\" and \"b\" are both layered on \"ram\"; use separate data per member";
    assert_refused(&[&delays[..], std::slice::from_ref(&stripe)].concat(), &[error]);
    let splits = [
        ram("ram", "1MiB"),
        on("split", "a", "size = \"512KiB\""),
        on("split", "b", "offset = \"512KiB\""),
        stripe,
    ];
    config(&splits);
}

#[test]
fn rings_and_towers_are_refused_at_their_first_line() {
    let stripe =
        |name: &str, members: &str| device(name, "stripe", &format!("members = {members}"));
    let ring = refused(&[
        ram("ram", "1MiB"),
        stripe("a", "[\"ram\", \"b\"]"),
        device("b", "split", "base = \"c\""),
        device("c", "fault", "base = \"a\""),
        device("on", "delay", "base = \"c\"\nread-latency = \"1us\""),
    ]);
    let lines: Vec<&str> = ring.lines().collect();
    assert!(
        lines[0].starts_with("t.toml:11:11: device.members: the bases form a cycle through \"a\""),
        "{ring}"
    );
    assert!(
        lines[1].starts_with("t.toml:15:8: device.base: the bases form a cycle through \"b\""),
        "{ring}"
    );
    assert_eq!(lines.len(), 3, "one for each in the ring, none for what stands on it: {ring}");
    let mut tower = vec![ram("d1", "1GiB"), ram("x", "1GiB")];
    for number in 2..=9 {
        let below = number - 1;
        tower.push(match number % 3 {
            0 => device(&format!("d{number}"), "fault", &format!("base = \"d{below}\"")),
            1 => device(
                &format!("d{number}"),
                "split",
                &format!("base = \"d{below}\"\noffset = 512"),
            ),
            _ => device(&format!("d{number}"), "delay", &format!("base = \"d{below}\"\nseed = 1")),
        });
    }
    assert_refused(&tower, &["device.base: more than 8 devices are layered on each other"]);
    tower.pop();
    config(&tower);
}

#[test]
fn faults_are_within_bounds() {
    let bad =
        |keys: &str| [ram("ram", "1MiB"), device("a", "fault", &format!("base = \"ram\"\n{keys}"))];
    for (keys, part) in [
        ("errors = 1000001", "device.errors: 1000001 is out of range; allowed: 0 to 1000000"),
        ("rejects = -1", "device.rejects: -1 is out of range"),
        ("seed = -1", "device.seed: -1 is out of range"),
        ("stall = \"601s\"", "device.stall: 601s is out of range; allowed: 0 to 600s"),
        ("bad = [\"0+1\", \"4096\"]", "t.toml:12:15: device.bad: \"4096\" is no range of bytes"),
        ("bad = [\"1x+1\"]", "device.bad: \"1x\" has no unit of size"),
        ("bad = [\"18446744073709551615+1\"]", "the end exceeds 64 bits"),
        ("bad = [1]", "device.bad: invalid type: integer"),
    ] {
        assert_refused(&bad(keys), &[part]);
    }
}

#[test]
fn drives_are_named_by_address_and_their_namespaces_once() {
    let drive = |name: &str, keys: &str| device(name, "nvme", keys);
    for (keys, part) in [
        ("nsid = 1", "t.toml:4:1: device.pci: missing; allowed: a PCI address"),
        ("pci = \"sda\"", "t.toml:7:7: device.pci: \"sda\" is no PCI address; allowed"),
        ("pci = \"0000:01:00.8\"", "is no PCI address"),
        ("pci = \"01:00.0\"\nnsid = 0", "device.nsid: 0 is out of range; allowed: 1 to 4294967294"),
        ("pci = \"01:00.0\"\nnsid = 4294967295", "device.nsid: 4294967295 is out of range"),
        ("pci = \"01:00.0\"\nqueue-depth = 1", "device.queue-depth: 1 is out of range"),
        ("pci = \"01:00.0\"\nio-timeout = \"0s\"", "device.io-timeout: 0ms is out of range"),
        ("pci = \"01:00.0\"\nblock-size = 512", "unknown key of type \"nvme\""),
    ] {
        assert_refused(&[drive("a", keys)], &[part]);
    }
    let one = drive("a", "pci = \"0000:01:00.0\"");
    let twice = [one.clone(), drive("b", "pci = \"01:00.0\"")];
    assert_refused(
        &twice,
        &["t.toml:11:7: device.pci: the device of line 7 has namespace 1 already"],
    );
    let other = drive("b", "pci = \"01:00.0\"\nnsid = 2\nqueue-depth = 8");
    assert_refused(
        &[one.clone(), other],
        &["device.queue-depth: the device of line 7 has the same drive"],
    );
    config(&[one, drive("b", "pci = \"01:00.0\"\nnsid = 2")]);
}
