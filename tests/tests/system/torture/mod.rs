//! No acknowledged write is undone, by the daemon as users start it.
//!
//! Hosts on TCP reset and shut down controllers and cut connections with writes in flight. An
//! operator fences them, and removes namespaces and connections by the API and by SIGHUP. Devices
//! stall. A checker then searches for an order of the writes that explains every read.
//!
//! The reactor's tests run the same in virtual time, with many more seeds and more faults
//! (`crates/daemon/src/reactor/tests/torture`). `TORTURE_SEEDS` sets the number of seeds and
//! `TORTURE_SEED` the first. Here a seed determines the actions, not their times.

mod host;
mod world;

use std::path::Path;
use std::time::{Duration, Instant};

use hyper::Method;
use nvmeof_history::Summary;
use nvmeof_random::SplitMix64;
use nvmeof_tests::config::{NQN, api, device, file, listener, ram, subsystem_for};
use nvmeof_tests::{Api, Daemon};
use serde_json::json;

use host::{DISKS, Host, name};
use world::{HOSTS, World};

/// Default seeds, and the number that runs concurrently: a run mostly waits.
const SEEDS: u64 = 10;
const AT_ONCE: usize = 5;
/// Duration of the faults.
const LENGTH: Duration = Duration::from_secs(3);
/// Top device of each disk: by NSID, minus one.
const TOPS: [&str; 2] = ["slow-ram", "slow-file"];

/// Returns two disks, `ram` and `file`, each under `fault` and `delay`; without a host, or without
/// a namespace.
fn config(folder: &Path, fenced: Option<usize>, missing: Option<u32>) -> String {
    let names: Vec<String> = (0..=HOSTS)
        .filter(|host| Some(*host) != fenced)
        .map(|host| name(host).to_string())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let namespaces: Vec<(u32, &str)> =
        (1..).zip(TOPS).filter(|(nsid, _)| Some(*nsid) != missing).collect();
    let stalls = "stall = \"300ms\"";
    [
        listener("127.0.0.1"),
        api(),
        ram("ram", "1MiB", 512),
        file("file", &folder.join("torture.img"), "1MiB", 512),
        device("fault-ram", "fault", &format!("base = \"ram\"\n{stalls}")),
        device("fault-file", "fault", &format!("base = \"file\"\n{stalls}")),
        device(
            "slow-ram",
            "delay",
            "base = \"fault-ram\"\nread-latency = \"0ms\"\nwrite-latency = \"1ms\"",
        ),
        device(
            "slow-file",
            "delay",
            "base = \"fault-file\"\nread-latency = \"1ms\"\nwrite-latency = \"0ms\"",
        ),
        subsystem_for(&names, NQN, &namespaces),
    ]
    .concat()
}

/// Operator that removes objects and restores them.
struct Operator<'a> {
    world: &'a World,
    daemon: &'a Daemon,
    api: Api,
    dice: SplitMix64,
    folder: &'a Path,
}

impl Operator<'_> {
    fn run(&mut self, until: Instant) {
        while Instant::now() < until {
            match self.dice.within(0..5) {
                0 => self.fence(),
                1 => self.remove_namespace(),
                2 => self.remove_connection(),
                _ => self.stall(300_000),
            }
            std::thread::sleep(Duration::from_millis(self.dice.within(0..80)));
        }
        self.stall(0);
        self.world.end();
    }

    /// Makes some operations hang, out of a million.
    fn stall(&self, stalls: u32) {
        for device in ["fault-ram", "fault-file"] {
            self.change(
                Method::PATCH,
                &format!("/v1/devices/{device}"),
                Some(json!({ "stalls": stalls })),
            );
        }
    }

    fn fence(&mut self) {
        let host = usize::try_from(self.dice.within(0..HOSTS as u64)).expect("a few hosts");
        let path = format!("/v1/subsystems/{NQN}/hosts/{}", name(host));
        if self.dice.coin() {
            self.change(Method::DELETE, &format!("{path}?force=true"), None);
            self.world.settle(Some(host), None, "host removed");
            self.pause();
            self.change(Method::PUT, &path, None);
        } else {
            self.reload(&config(self.folder, Some(host), None));
            self.world.settle(Some(host), None, "host removed");
            self.pause();
            self.reload(&config(self.folder, None, None));
        }
    }

    /// Removes a namespace and restores it.
    ///
    /// Commands that hosts sent before the operator's confirmation, and that are not read yet, must
    /// fail before the namespace exists again.
    fn remove_namespace(&mut self) {
        let nsid = u32::try_from(self.dice.within(DISKS)).expect("a small number");
        let path = format!("/v1/subsystems/{NQN}/namespaces");
        if self.dice.coin() {
            self.change(Method::DELETE, &format!("{path}/{nsid}"), None);
            self.world.settle(None, Some(nsid), "namespace removed");
            self.world.wait_for_rests();
            let device = TOPS[nsid as usize - 1];
            self.change(Method::POST, &path, Some(json!({ "nsid": nsid, "device": device })));
        } else {
            self.reload(&config(self.folder, None, Some(nsid)));
            self.world.settle(None, Some(nsid), "namespace removed");
            self.world.wait_for_rests();
            self.reload(&config(self.folder, None, None));
        }
    }

    /// Ends a controller by its admin queue's connection.
    fn remove_connection(&mut self) {
        let host = usize::try_from(self.dice.within(0..HOSTS as u64)).expect("a few hosts");
        let connections = self.api.get("/v1/connections");
        let host_name = name(host).to_string();
        let is_it = |one: &&serde_json::Value| one["host"] == host_name && one["qid"] == 0;
        let Some(found) = connections.as_array().expect("a list").iter().find(is_it) else {
            return;
        };
        let pending = self.world.pending(host);
        let path = format!("/v1/connections/{}", found["id"]);
        // It can have ended by now.
        if self.api.call(Method::DELETE, &path, None, None).is_ok() {
            self.world.settle_these(&pending, "connection removed");
        }
    }

    fn change(&self, method: Method, path: &str, body: Option<serde_json::Value>) {
        let changed = self.api.change(method, path, body);
        changed.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    fn reload(&self, config: &str) {
        self.daemon.reload(config);
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(self.dice.within(0..100)));
    }
}

/// Runs this seed; returns an error if no order explains the reads.
fn run(seed: u64) -> Result<Summary, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(&config(folder.path(), None, None));
    let world = World::default();
    let until = Instant::now() + LENGTH;
    std::thread::scope(|scope| {
        for number in 0..HOSTS {
            let mut host = Host::new(number, &world, &daemon, seed);
            scope.spawn(move || host.run());
        }
        let api = Api::of(&daemon);
        let (dice, folder) = (SplitMix64::new(seed), folder.path());
        Operator { world: &world, daemon: &daemon, api, dice, folder }.run(until);
    });
    Host::new(HOSTS, &world, &daemon, seed).read_all();
    world.into_history().check().map_err(|violation| violation.to_string())
}

#[test]
fn every_read_is_explained_by_an_order_of_the_writes() {
    let seeds: Vec<u64> = nvmeof_history::seeds(SEEDS).collect();
    let mut sum = Summary::default();
    for some in seeds.chunks(AT_ONCE) {
        let runs = std::thread::scope(|scope| {
            let runs: Vec<_> =
                some.iter().map(|&seed| (seed, scope.spawn(move || run(seed)))).collect();
            let joined = runs.into_iter().map(|(seed, run)| (seed, run.join()));
            joined.collect::<Vec<_>>()
        });
        for (seed, run) in runs {
            let again = format!("TORTURE_SEED={seed} TORTURE_SEEDS=1 runs it again");
            match run {
                Ok(Ok(summary)) => sum.add(&summary),
                Ok(Err(violation)) => panic!("{violation}\n{again}"),
                Err(_) => panic!("a panic, see above; {again}"),
            }
        }
    }
    println!("{sum:?}");
    assert!(sum.ended.contains_key("acknowledged") && sum.reads > 0, "nothing happens: {sum:?}");
}
