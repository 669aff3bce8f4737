//! Devices that come, change and go, without reactors; drives are controllers in memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

use nvmeof_core::dma::{CorePool, PoolConfig};
use nvmeof_core::nvme_driver::fake::{self, Fake, Mode};

use super::*;
use crate::config::{Config, Machine};

/// How long a drive's own thread may take to see that the drive is gone.
const GUARD: Duration = Duration::from_secs(60);
const PCI: &str = "0000:61:00.0";

thread_local! {
    /// The drives that the system has, by address.
    static SYSTEM: RefCell<BTreeMap<String, Fake>> = const { RefCell::new(BTreeMap::new()) };
}

fn plug_in(address: &str) -> Fake {
    let config = fake::Config {
        address: address.to_owned(),
        mode: Mode::Automatic,
        ..fake::Config::default()
    };
    let fake = Fake::new(config);
    SYSTEM.with_borrow_mut(|system| system.insert(address.to_owned(), fake.clone()));
    fake
}

fn devices() -> (Devices, Arc<SharedPool>) {
    let pool = SharedPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap();
    let drives = Drives::taking(&pool, |address| {
        let fake = SYSTEM.with_borrow(|system| system.get(address).map(Fake::function));
        fake.with_context(|| format!("there is no drive at {address}"))
    });
    (Devices { open: BTreeMap::new(), next_id: 0, drives }, pool)
}

fn config(devices: &str) -> Vec<Device> {
    let machine =
        Machine { cpus: vec![0], open_files: 4096, memory: 8 << 30, held: BTreeSet::new() };
    let text = format!("[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\n{devices}");
    Config::parse("t.toml", &text, &machine).unwrap_or_else(|error| panic!("{error}")).devices
}

fn device(name: &str, kind: &str, keys: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ntype = \"{kind}\"\n{keys}\n")
}

/// What a reload does; the names of what it opened.
fn reload(devices: &mut Devices, wanted: &[Device]) -> anyhow::Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let opened = runtime.block_on(devices.prepare(wanted, &[]))?;
    let names = opened.iter().map(|open| open.config.name.clone()).collect();
    drop(devices.commit(wanted, opened));
    Ok(names)
}

fn wait_until(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < GUARD, "it does not happen");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_gone_is_opened_anew_with_what_stands_on_it_and_nothing_else_is() {
    let (mut devices, pool) = devices();
    let text = |gone: bool| {
        [
            device("ram", "ram", "size = \"1MiB\""),
            device("other", "split", "base = \"ram\"\noffset = \"512KiB\""),
            device("bad", "fault", &format!("base = \"ram\"\ngone = {gone}")),
            device("part", "split", "base = \"bad\"\nsize = \"512KiB\""),
            device("s", "stripe", "members = [\"part\", \"other\"]\nchunk = \"4KiB\""),
        ]
        .concat()
    };
    let (there, gone) = (config(&text(false)), config(&text(true)));
    let all = ["ram", "other", "bad", "part", "s"];
    assert_eq!(reload(&mut devices, &there).unwrap(), all);
    assert!(reload(&mut devices, &there).unwrap().is_empty());
    let stripe = devices.get("s").unwrap().clone();
    // Taken away while it is open, it is the same device.
    assert!(reload(&mut devices, &gone).unwrap().is_empty());
    assert!(stripe.device.is_gone());
    // As long as it is away, places are kept, and what is served of it stays as it was.
    for _ in 0..2 {
        assert_eq!(reload(&mut devices, &gone).unwrap(), ["bad"], "it knows no reactor to fail on");
        let ghost = devices.get("s").unwrap();
        assert!(ghost.is_ghost() && ghost.device.is_gone() && ghost.id == stripe.id);
        assert_eq!(ghost.device.info(), stripe.device.info());
        let error = ghost.device.open_queue(&CorePool::new(&pool)).unwrap_err();
        assert_eq!(error, nvmeof_core::block::BlockError::Gone);
    }
    assert_eq!(reload(&mut devices, &there).unwrap(), ["bad", "part", "s"]);
    let back = devices.get("s").unwrap();
    assert!(!back.device.is_gone() && back.id != stripe.id);
    assert!(back.device.open_queue(&CorePool::new(&pool)).is_ok());
    assert!(reload(&mut devices, &there).unwrap().is_empty());
}

#[test]
fn what_stands_on_a_device_that_is_gone_is_refused_if_it_is_new() {
    let (mut devices, _pool) = devices();
    let bad = |gone: bool| {
        device("ram", "ram", "size = \"1MiB\"")
            + &device("bad", "fault", &format!("base = \"ram\"\ngone = {gone}"))
    };
    reload(&mut devices, &config(&bad(false))).unwrap();
    reload(&mut devices, &config(&bad(true))).unwrap();
    let with = bad(true) + &device("part", "split", "base = \"bad\"");
    let error = format!("{:#}", reload(&mut devices, &config(&with)).unwrap_err());
    assert_eq!(error, "device \"part\": its base \"bad\" is gone");
}

#[test]
fn namespaces_of_a_drive_share_it_and_come_back_when_it_does() {
    let (mut devices, pool) = devices();
    let text = device("drive", "nvme", &format!("pci = \"{PCI}\""))
        + &device("part", "split", "base = \"drive\"\nsize = \"64KiB\"")
        + &device("ram", "ram", "size = \"1MiB\"");
    let wanted = config(&text);
    let error = format!("{:#}", reload(&mut devices, &wanted).unwrap_err());
    assert_eq!(error, "device \"drive\": there is no drive at 0000:61:00.0");
    let fake = plug_in(PCI);
    assert_eq!(reload(&mut devices, &wanted).unwrap(), ["drive", "part", "ram"]);
    let drive = Arc::clone(&devices.get("drive").unwrap().device);
    assert!(drive.info().size > 64 << 10 && !drive.is_gone());
    assert!(drive.open_queue(&CorePool::new(&pool)).is_ok());
    let id = devices.get("drive").unwrap().id;
    // Another depth is no reason to close it.
    let deeper = config(&text.replace("pci =", "queue-depth = 64\npci ="));
    assert!(reload(&mut devices, &deeper).unwrap().is_empty());
    assert!(reload(&mut devices, &wanted).unwrap().is_empty());
    SYSTEM.with_borrow_mut(BTreeMap::clear);
    fake.request_removal();
    wait_until(|| drive.is_gone());
    drop(drive);
    for _ in 0..2 {
        assert!(reload(&mut devices, &wanted).unwrap().is_empty());
        let ghost = devices.get("drive").unwrap();
        assert!(ghost.is_ghost() && ghost.id == id && devices.get("part").unwrap().is_ghost());
        assert!(!devices.get("ram").unwrap().is_ghost());
    }
    plug_in(PCI);
    assert_eq!(reload(&mut devices, &wanted).unwrap(), ["drive", "part"]);
    let back = devices.get("part").unwrap();
    assert!(back.device.open_queue(&CorePool::new(&pool)).is_ok());
    // Another namespace that the drive does not have is refused, and the first stays.
    let more = text + &device("none", "nvme", &format!("pci = \"{PCI}\"\nnsid = 77"));
    let error = format!("{:#}", reload(&mut devices, &config(&more)).unwrap_err());
    assert!(error.starts_with("device \"none\": 0000:61:00.0: namespace 77"), "{error}");
    assert!(!devices.get("drive").unwrap().device.is_gone());
}
