//! Reads return the written data, over every kind of device, block size, data transfer and spread
//! of queues. Flushed data survives the daemon.

use std::os::unix::fs::FileExt as _;

use nvmeof_initiator::{Buffer, CommandError, ConnectOptions, Io, IoKind};
use nvmeof_tests::config::{NQN, file, listener, ram, small, subsystem};
use nvmeof_tests::{Daemon, Host, Raw, fill, options};
use nvmeof_wire::Status;
use nvmeof_wire::identify::{Cns, DESCRIPTORS_SIZE, Identify, NamespaceId, NamespaceIds};
use nvmeof_wire::nvm::DsmRange;
use nvmeof_wire::zerocopy::IntoBytes;

/// Seed of all data in this file.
const SEED: u64 = 0x006e_766d_652d_6f66;

/// Returns namespaces 1 to 4: memory and file, blocks of 512 and 4096 bytes; 16 MiB each.
fn every_device(folder: &std::path::Path) -> String {
    [
        listener("127.0.0.1"),
        ram("ram512", "16MiB", 512),
        ram("ram4096", "16MiB", 4096),
        file("file512", &folder.join("a.img"), "16MiB", 512),
        file("file4096", &folder.join("b.img"), "16MiB", 4096),
        subsystem(NQN, &[(1, "ram512"), (2, "ram4096"), (3, "file512"), (4, "file4096")]),
    ]
    .concat()
}

/// Writes a region of `len` bytes in transfers of `bs`, then reads it back in reverse.
///
/// The transfers fill the queues and are spread over them.
fn write_and_check(host: &mut Host, nsid: u32, len: usize, bs: usize, seed: u64) {
    let block = host.block_size(nsid) as usize;
    let blocks = u32::try_from(bs / block).expect("few blocks");
    let count = (len / bs) as u64;
    let queues = host.queues.len();
    let is_for = |token: u64, at: usize| token % queues as u64 == at as u64;
    let io = |token: u64, kind| Io { token, nsid, slba: token * u64::from(blocks), blocks, kind };
    for at in 0..queues {
        let ios = (0..count).filter(|token| is_for(*token, at)).map(|token| {
            let mut data = Buffer::zeroed(bs);
            fill(data.as_mut_slice(), seed ^ token);
            io(token, IoKind::Write { data, fua: token % 5 == 0 })
        });
        for completed in host.execute(at, ios.collect()).expect("the connection") {
            completed.result.unwrap_or_else(|e| panic!("write {}: {e}", completed.token));
        }
    }
    let mut wanted = vec![0; bs];
    for at in 0..queues {
        let mine = (0..count).rev().filter(|token| is_for(token + 1, at));
        let ios = mine.map(|token| io(token, IoKind::Read(Buffer::zeroed(bs))));
        for completed in host.execute(at, ios.collect()).expect("the connection") {
            completed.result.unwrap_or_else(|e| panic!("read {}: {e}", completed.token));
            fill(&mut wanted, seed ^ completed.token);
            let got = completed.buffer.expect("its buffer");
            assert!(got.as_slice() == wanted, "transfer {} of {bs} bytes", completed.token);
        }
    }
}

#[test]
fn every_device_block_size_digest_and_transfer_size() {
    println!("seed {SEED:#x}");
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&every_device(folder.path()));
    for (hdgst, ddgst) in [(false, false), (true, false), (false, true), (true, true)] {
        let options = ConnectOptions { hdgst, ddgst, queues: 2, ..options(1) };
        let mut host = Host::connect(&daemon.endpoint(NQN), &options);
        assert_eq!(host.queues.len(), 2);
        for nsid in 1..=4 {
            let block = host.block_size(nsid) as usize;
            // One block; the maximum of a capsule, one block more; an odd size; the maximum of a
            // command.
            for bs in [block, 8192, 8192 + block, 68 << 10, 1 << 20] {
                let seed = SEED ^ (u64::from(nsid) << 56) ^ ((bs as u64) << 24);
                write_and_check(&mut host, nsid, (64 * bs).min(4 << 20), bs, seed);
            }
            host.flush(nsid);
        }
    }
}

#[test]
fn commands_besides_read_and_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&every_device(folder.path()));
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for nsid in 1..=4 {
        let block = host.block_size(nsid) as usize;
        let len = 64 * block;
        host.write(nsid, 0, len, SEED);
        let data = host.read(nsid, 0, len);
        host.one(nsid, 0, 64, IoKind::Compare(data)).expect("the same");
        let mut other = host.read(nsid, 0, len);
        other.as_mut_slice()[len - 1] ^= 1;
        match host.one(nsid, 0, 64, IoKind::Compare(other)) {
            Err(CommandError::Status { status, .. }) => {
                assert_eq!(status, Status::COMPARE_FAILURE.with_dnr());
            }
            other => panic!("namespace {nsid}: {other:?}"),
        }
        host.one(nsid, 0, 64, IoKind::Verify).expect("readable");
        host.one(nsid, 1, 2, IoKind::WriteZeroes { deallocate: nsid % 2 == 0 }).expect("zeroed");
        let read = host.read(nsid, 0, len);
        let mut wanted = vec![0; len];
        fill(&mut wanted, SEED);
        wanted[block..3 * block].fill(0);
        assert!(read.as_slice() == wanted, "namespace {nsid}: zeroes");
        let ranges = [DsmRange::new(8, 8), DsmRange::new(32, 8)];
        host.one(nsid, 0, 0, IoKind::Deallocate(Buffer::from(ranges.as_bytes()))).expect("done");
        // Deallocated blocks read as anything; the others must be unchanged.
        let read = host.read(nsid, 0, len);
        for (from, to) in [(0, 8), (16, 32), (40, 64)] {
            let part = from * block..to * block;
            assert!(
                read.as_slice()[part.clone()] == wanted[part],
                "namespace {nsid}: {from}..{to}"
            );
        }
        let beyond = [DsmRange::new(0, 1), DsmRange::new(u64::MAX - 1, 4)];
        match host.one(nsid, 0, 0, IoKind::Deallocate(Buffer::from(beyond.as_bytes()))) {
            Err(CommandError::Status { status, .. }) => {
                assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_dnr());
            }
            other => panic!("namespace {nsid}: {other:?}"),
        }
    }
}

#[test]
fn many_queues_over_two_reactors() {
    println!("seed {SEED:#x}");
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let reactors = if cpus > 1 { "reactors = \"0-1\"\n" } else { "reactors = \"0\"\n" };
    let daemon = Daemon::start(&[reactors, &small()].concat());
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let options = ConnectOptions { queues: 8, depth: 32, ..options(1) };
    let mut host = Host::connect(&daemon.endpoint(NQN), &options);
    assert_eq!(host.queues.len(), 8);
    for (round, bs) in [4096, 65536, 512, 131_072].into_iter().enumerate() {
        write_and_check(&mut host, 1, 512 * bs.min(32768), bs, SEED ^ round as u64);
    }
    drop(host);
    daemon.wait_for_counts(&baseline, open_files);
}

#[test]
fn a_small_budget_paces_many_queues_and_hangs_none() {
    println!("seed {SEED:#x}");
    let limits = "[limits]\nmax-transfer = \"128KiB\"\nbuffer-memory = \"8MiB\"\n";
    let pacing = "[pacing]\npolicy = \"buffer-credit\"\nbudget = \"256KiB\"\n";
    let devices = [ram("ram0", "64MiB", 4096), subsystem(NQN, &[(1, "ram0")])].concat();
    let config = [limits, pacing, &listener("127.0.0.1"), &devices].concat();
    let daemon = Daemon::start(&config);
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let threads: Vec<_> = (0..4_u8)
        .map(|number| {
            let endpoint = daemon.endpoint(NQN);
            std::thread::spawn(move || {
                let options = ConnectOptions { queues: 4, depth: 33, ..options(number) };
                let mut host = Host::connect(&endpoint, &options);
                keep_busy(&mut host, u64::from(number));
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a host");
    }
    daemon.wait_for_counts(&baseline, open_files);
}

/// Fills every queue with writes and then reads of 128 KiB, all queues concurrently, in this host's
/// quarter.
fn keep_busy(host: &mut Host, quarter: u64) {
    const BS: usize = 128 << 10;
    let (clock, blocks) = (host.controller.clock(), 32);
    let per_queue = 32_u64;
    let slba = |token: u64| (quarter * 128 + token) * u64::from(blocks);
    for write in [true, false] {
        for (at, queue) in (0_u64..).zip(&mut host.queues) {
            for token in at * per_queue..(at + 1) * per_queue {
                let mut buffer = Buffer::zeroed(BS);
                let kind = if write {
                    fill(buffer.as_mut_slice(), SEED ^ slba(token));
                    IoKind::Write { data: buffer, fua: false }
                } else {
                    IoKind::Read(buffer)
                };
                let io = Io { token, nsid: 1, slba: slba(token), blocks, kind };
                assert!(queue.submit(io, clock.now()).is_ok(), "a command was not taken");
            }
        }
        let mut left = host.queues.len() as u64 * per_queue;
        while left > 0 {
            let before = left;
            for queue in &mut host.queues {
                let mut done = Vec::new();
                queue.flush().expect("the connection");
                queue.poll(clock.now(), &mut done).expect("the connection");
                for completed in done {
                    completed.result.expect("a command");
                    left -= 1;
                    if !write {
                        let mut wanted = vec![0; BS];
                        fill(&mut wanted, SEED ^ slba(completed.token));
                        assert!(completed.buffer.expect("its buffer").as_slice() == wanted);
                    }
                }
            }
            if left == before {
                // Wait on one queue; the others are polled again directly afterwards.
                host.queues[0].wait(std::time::Duration::from_millis(1));
                host.controller.poll().expect("keep alive");
            }
        }
    }
}

/// Returns the identifiers of a namespace as a host reads them, and the serial number.
fn identity(daemon: &Daemon, nsid: u32) -> (Vec<NamespaceId>, Vec<u8>) {
    let (mut admin, _) = Raw::admin(daemon.address(), NQN, &options(7));
    let sqe = Identify::new(Cns::NAMESPACE_DESCRIPTORS, nsid).encode(0);
    let list = admin.read(sqe, DESCRIPTORS_SIZE);
    let controller = admin.read(Identify::new(Cns::CONTROLLER, 0).encode(0), 4096);
    (NamespaceIds::new(&list).collect(), controller[4..24].to_vec())
}

#[test]
fn a_restart_keeps_identities_and_the_contents_of_files() {
    println!("seed {SEED:#x}");
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&every_device(folder.path()));
    let before: Vec<_> = (1..=4).map(|nsid| identity(&daemon, nsid)).collect();
    for (at, (ids, _)) in before.iter().enumerate() {
        assert!(ids.iter().any(|id| matches!(id, NamespaceId::Uuid(_))), "{ids:?}");
        assert!(ids.iter().any(|id| matches!(id, NamespaceId::Nguid(_))), "{ids:?}");
        assert!(before[..at].iter().all(|(other, _)| other != ids), "two namespaces alike");
    }
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for nsid in 1..=4 {
        host.write(nsid, 8, 1 << 20, SEED ^ u64::from(nsid));
    }
    drop(host);
    let daemon = daemon.restart();
    let after: Vec<_> = (1..=4).map(|nsid| identity(&daemon, nsid)).collect();
    assert_eq!(before, after);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for nsid in [1, 2] {
        let read = host.read(nsid, 8, 1 << 20);
        assert!(read.as_slice().iter().all(|&byte| byte == 0), "memory outlives its process");
    }
    for nsid in [3, 4] {
        host.check(nsid, 8, 1 << 20, SEED ^ u64::from(nsid));
    }
}

#[test]
fn what_was_flushed_outlives_a_kill() {
    println!("seed {SEED:#x}");
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&every_device(folder.path()));
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for nsid in [3, 4] {
        host.write(nsid, 0, 256 << 10, SEED);
        host.flush(nsid);
        let mut data = Buffer::zeroed(4096);
        fill(data.as_mut_slice(), SEED + 1);
        let blocks = 4096 / host.block_size(nsid);
        host.one(nsid, 1024, blocks, IoKind::Write { data, fua: true }).expect("FUA");
    }
    let daemon = daemon.kill_and_restart();
    drop(host);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    for nsid in [3, 4] {
        host.check(nsid, 0, 256 << 10, SEED);
        host.check(nsid, 1024, 4096, SEED + 1);
    }
    // The data are in the file, too, at the namespace's offset.
    let image = std::fs::File::open(folder.path().join("b.img")).expect("the file");
    let (mut found, mut wanted) = (vec![0; 4096], vec![0; 4096]);
    image.read_exact_at(&mut found, 1024 * 4096).expect("its bytes");
    fill(&mut wanted, SEED + 1);
    assert!(found == wanted);
}
