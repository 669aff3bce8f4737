//! SIGHUP changes the policy while hosts are served.
//!
//! For every pair of policies, no command is lost and nothing stays waiting.

use nvmeof_tests::config::{NQN, listener, ram, subsystem};
use nvmeof_tests::{Daemon, Host, Worker, options};

/// `[pacing]` sections, tight enough that commands wait, and the names of their policies.
///
/// The pool of io_pacing is entirely in the reactors' caches: with a smaller share there it starves
/// them, which is a known behavior.
const POLICIES: [(&str, &str); 7] = [
    ("none", "policy = \"none\"\n"),
    ("buffer-credit", "policy = \"buffer-credit\"\nbudget = \"256KiB\"\n"),
    ("token-bucket", "policy = \"token-bucket\"\nrate = \"4Gb/s\"\nbudget = \"1MiB\"\n"),
    ("adaptive", "policy = \"adaptive\"\n"),
    ("prototype", "policy = \"prototype\"\nbuffers = 16\n"),
    ("token-bucket", "policy = \"token-bucket\"\nperiod = \"20us\"\n"),
    ("prototype", "policy = \"prototype\"\nperiod = \"20us\"\ndrive-limit = 2\n"),
];

fn config(pacing: &str) -> String {
    [
        "[limits]\nmax-transfer = \"128KiB\"\n[pacing]\n",
        pacing,
        &listener("127.0.0.1"),
        &ram("ram0", "64MiB", 512),
        &subsystem(NQN, &[(1, "ram0")]),
    ]
    .concat()
}

/// Returns a walk over all policies in which each follows each other one once.
fn from_each_to_each(count: usize) -> Vec<usize> {
    let mut left: Vec<Vec<usize>> =
        (0..count).map(|from| (0..count).filter(|to| *to != from).collect()).collect();
    // Hierholzer: the walk leaves every policy as often as it enters it.
    let (mut stack, mut walk) = (vec![0], Vec::new());
    while let Some(&at) = stack.last() {
        match left[at].pop() {
            Some(to) => stack.push(to),
            None => walk.extend(stack.pop()),
        }
    }
    walk.reverse();
    walk
}

#[test]
fn every_policy_takes_over_from_every_other_under_load() {
    let daemon = Daemon::start(&config(POLICIES[0].1));
    let idle = (daemon.counts(), daemon.open_files());
    let two_queues = nvmeof_initiator::ConnectOptions { queues: 2, ..options(1) };
    let workers =
        [Worker::start(&daemon.endpoint(NQN), &two_queues), deep_reader(&daemon.endpoint(NQN))];
    let walk = from_each_to_each(POLICIES.len());
    assert_eq!(walk.len(), POLICIES.len() * (POLICIES.len() - 1) + 1);
    for (before, at) in walk.iter().zip(&walk[1..]) {
        let ((from, _), (to, section)) = (POLICIES[*before], POLICIES[*at]);
        let said = daemon.reload(&config(section));
        let wanted = if from == to {
            format!("policy \"{to}\" has other parameters")
        } else {
            format!("policy \"{from}\" replaced by \"{to}\"")
        };
        assert!(said.contains(&wanted), "{said}\nlacks {wanted}");
        // Shown if the test fails.
        println!("{said}");
        workers.iter().for_each(Worker::goes_on);
    }
    workers.into_iter().for_each(Worker::stop);
    daemon.wait_for_counts(&idle.0, idle.1);
    assert_eq!(daemon.counts()["leaked_permits"], 0);
}

/// Starts another host, on separate blocks, with its whole queue depth in flight.
fn deep_reader(endpoint: &nvmeof_initiator::Endpoint) -> Worker {
    let mut host = Host::connect(endpoint, &options(2));
    for block in 0..8 {
        host.write(1, 65536 + block * 256, 128 << 10, block);
    }
    Worker::start_with(host, |host, _| {
        use nvmeof_initiator::{Buffer, Io, IoKind};
        let read = |token: u64| Io {
            token,
            nsid: 1,
            slba: 65536 + token % 8 * 256,
            blocks: 256,
            kind: IoKind::Read(Buffer::zeroed(128 << 10)),
        };
        let done = host.execute(0, (0..64).map(read).collect()).expect("the connection");
        let mut wanted = vec![0; 128 << 10];
        for done in done {
            nvmeof_tests::fill(&mut wanted, done.token % 8);
            done.result.expect("a read");
            assert!(done.buffer.expect("its buffer").as_slice() == wanted, "other data");
        }
    })
}

#[test]
fn a_policy_changes_together_with_the_limits_only_at_the_next_start() {
    let daemon = Daemon::start(&config(POLICIES[0].1));
    let other = config("policy = \"buffer-credit\"\nbudget = \"1MiB\"\n");
    let other = other.replace("128KiB", "256KiB");
    let said = daemon.reload(&other);
    assert!(!said.contains("replaced"), "{said}");
    for key in ["[limits]", "[pacing]"] {
        daemon.wait_for_line(&format!("{key} has changed in the config and takes effect at the"));
    }
    let daemon = daemon.restart();
    daemon.counts();
    daemon.wait_for_line("stats policy buffer-credit, budget 1048576 bytes");
}

#[test]
fn a_policy_that_cannot_work_changes_nothing() {
    let daemon = Daemon::start(&config(POLICIES[1].1));
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    daemon.reload_refused(&config("policy = \"buffer-credit\"\nbudget = \"64KiB\"\n"));
    daemon.wait_for_line("allowed: 256KiB (twice max-transfer) to 256MiB (buffer-memory)");
    worker.goes_on();
    daemon.counts();
    daemon.wait_for_line("stats policy buffer-credit, budget 262144 bytes");
    worker.stop();
}
