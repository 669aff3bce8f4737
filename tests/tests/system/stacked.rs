//! Devices on devices over TCP: stripes and splits with every byte verified, and a device that
//! disappears and returns.

use nvmeof_initiator::{Buffer, IoKind};
use nvmeof_tests::config::{NQN, device, listener, ram, subsystem};
use nvmeof_tests::{Daemon, Host, Worker, options};

/// Returns a stripe over the halves of one memory and a whole one, with odd chunks.
fn striped(more: &str) -> String {
    let devices = [
        ram("ram0", "32MiB", 512),
        ram("ram1", "17MiB", 512),
        device("part0", "split", "base = \"ram0\"\nsize = \"16MiB\""),
        device("part1", "split", "base = \"ram0\"\noffset = \"16MiB\""),
        device(
            "stripe0",
            "stripe",
            "members = [\"part0\", \"ram1\", \"part1\"]\nchunk = \"24KiB\"",
        ),
    ];
    [&listener("127.0.0.1"), &devices.concat(), more].concat()
}

#[test]
fn a_stripe_holds_what_was_written_over_all_its_members() {
    let text = striped(&subsystem(NQN, &[(1, "stripe0"), (2, "ram0")]));
    let daemon = Daemon::start(&text);
    // The log reports the unused ends of the members: 16 and 17 MiB are not whole chunks of 24 KiB.
    daemon.wait_for_line("bytes at the end are unused");
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let chunk = 24 << 10;
    let each = (16 << 20) / chunk * chunk;
    let blocks = host.controller.namespaces().iter().map(|found| found.blocks).collect::<Vec<_>>();
    assert_eq!(blocks, [3 * each / 512, (32 << 20) / 512]);
    // Within a chunk, across a border, over all members and more, to the last byte.
    let pieces = [(0, 4096), (40, 8192), (48, 24 << 10), (7, 200 << 10), (1000, 1 << 20)];
    for (seed, (at, len)) in (0..).zip(pieces) {
        host.write(1, at, len, seed);
        host.check(1, at, len, seed);
    }
    host.write(1, blocks[0] - 256, 128 << 10, 99);
    host.check(1, blocks[0] - 256, 128 << 10, 99);
    // The first chunk is the first of the first member, at the beginning of the memory.
    host.write(1, 0, 24 << 10, 5);
    host.check(2, 0, 24 << 10, 5);
    host.flush(1);
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(2));
    worker.goes_on();
    worker.stop();
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn a_device_that_goes_away_fails_its_namespace_alone_and_comes_back() {
    let text = |gone: bool| {
        let keys = format!("base = \"ram1\"\ngone = {gone}");
        let devices = [
            ram("ram0", "64MiB", 512),
            ram("ram1", "64MiB", 512),
            device("bad0", "fault", &keys),
            device("part0", "split", "base = \"bad0\"\noffset = \"1MiB\""),
        ];
        let namespaces = subsystem(NQN, &[(1, "ram0"), (2, "part0")]);
        [listener("127.0.0.1"), devices.concat(), namespaces].concat()
    };
    let daemon = Daemon::start(&text(false));
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    host.write(2, 0, 64 << 10, 7);
    let worker = Worker::start(&daemon.endpoint(NQN), &options(2));
    let said = daemon.reload(&text(true));
    assert!(said.contains("0 devices opened, 0 closed"), "{said}");
    assert!(!reads(&mut host, 2));
    worker.goes_on();
    // Still missing: closed, and nothing is opened.
    let said = daemon.reload(&text(true));
    assert!(said.contains("0 devices opened"), "{said}");
    daemon.wait_for_line("still missing: device \"bad0\": cannot be used: the device is missing");
    assert!(!reads(&mut host, 2));
    worker.goes_on();
    let said = daemon.reload(&text(false));
    assert!(said.contains("2 devices opened, 2 closed"), "{said}");
    // The connection is the same, and so is the data.
    host.check(2, 0, 64 << 10, 7);
    worker.goes_on();
    worker.stop();
    drop(host);
    daemon.wait_for_counts(&baseline, open_files);
}

/// Returns whether a read succeeds.
fn reads(host: &mut Host, nsid: u32) -> bool {
    host.one(nsid, 0, 8, IoKind::Read(Buffer::zeroed(4096))).is_ok()
}
