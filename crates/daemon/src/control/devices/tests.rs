//! Devices that are added, changed and removed, without reactors; drives are controllers in memory.

use std::sync::PoisonError;
use std::time::Instant;

use nvmeof_core::dma::{CorePool, PoolConfig};
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_fake_drive::{self as fake_drive, FakeDrive, Mode, Readiness};

use super::*;
use crate::config::Config;
use crate::config_file::Machine;
use crate::limits::Limits;

/// Longest wait until a drive's thread notices that the drive is missing.
const GUARD: Duration = Duration::from_secs(60);
const PCI: &str = "0000:61:00.0";

/// The drives of the system, by address; each test uses different addresses.
static SYSTEM: Mutex<BTreeMap<String, FakeDrive>> = Mutex::new(BTreeMap::new());

pub(in crate::control) fn plug_in(address: &str) -> FakeDrive {
    let config = fake_drive::FakeDriveConfig {
        address: address.to_owned(),
        mode: Mode::Automatic,
        ..fake_drive::FakeDriveConfig::default()
    };
    let fake = FakeDrive::new(config);
    system(|system| system.insert(address.to_owned(), fake.clone()));
    fake
}

/// Opens a drive that is plugged in.
pub(in crate::control) fn take(address: &str) -> anyhow::Result<Arc<dyn Function>> {
    let fake = system(|system| system.get(address).map(FakeDrive::function));
    fake.with_context(|| format!("there is no drive at {address}"))
}

fn pull_out(address: &str) {
    system(|system| system.remove(address));
}

fn system<T>(f: impl FnOnce(&mut BTreeMap<String, FakeDrive>) -> T) -> T {
    f(&mut SYSTEM.lock().unwrap_or_else(PoisonError::into_inner))
}

fn devices() -> (Devices, Arc<ChunkPool>) {
    let pool = ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap();
    (Devices::new(&pool, take), pool)
}

fn config(devices: &str) -> Vec<Device> {
    whole_config(devices).devices
}

fn whole_config(devices: &str) -> Config {
    let machine = Machine { cpus: vec![0], open_files: 4096, memory: 8 << 30, open: Vec::new() };
    let text = format!("[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\n{devices}");
    Config::parse("t.toml", &text, &machine).unwrap_or_else(|error| panic!("{error}"))
}

fn device(name: &str, kind: &str, keys: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ntype = \"{kind}\"\n{keys}\n")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Does what a reload does, and returns the names of the devices that it opened.
fn reload(devices: &mut Devices, wanted: &[Device]) -> anyhow::Result<Vec<String>> {
    let opened = runtime().block_on(async {
        let mut preopened = devices.begin(wanted, &[], None).done().await;
        let prepared = devices.prepare(wanted, &mut preopened, &[]).await;
        devices.leave(preopened);
        // Discarded devices are closed.
        devices.settled().await;
        prepared
    })?;
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
    // A device that is removed while it is open remains the same device.
    assert!(reload(&mut devices, &gone).unwrap().is_empty());
    assert!(stripe.device.is_gone());
    // While the device is missing, placeholders stay, and its namespaces do not change.
    for _ in 0..2 {
        assert_eq!(reload(&mut devices, &gone).unwrap(), ["bad"], "it knows no reactor to fail on");
        let missing_device = devices.get("s").unwrap();
        assert!(
            missing_device.is_missing_device()
                && missing_device.device.is_gone()
                && missing_device.id == stripe.id
        );
        assert_eq!(missing_device.device.info(), stripe.device.info());
        let error = missing_device.device.open_queue(&CorePool::new(&pool)).unwrap_err();
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
    assert_eq!(error, "device \"part\": base \"bad\" is missing");
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
    // A different queue depth does not close the drive.
    let deeper = config(&text.replace("pci =", "queue-depth = 64\npci ="));
    assert!(reload(&mut devices, &deeper).unwrap().is_empty());
    assert!(reload(&mut devices, &wanted).unwrap().is_empty());
    pull_out(PCI);
    fake.request_removal();
    wait_until(|| drive.is_gone());
    drop(drive);
    for _ in 0..2 {
        assert!(reload(&mut devices, &wanted).unwrap().is_empty());
        let missing_device = devices.get("drive").unwrap();
        assert!(
            missing_device.is_missing_device()
                && missing_device.id == id
                && devices.get("part").unwrap().is_missing_device()
        );
        assert!(!devices.get("ram").unwrap().is_missing_device());
    }
    plug_in(PCI);
    assert_eq!(reload(&mut devices, &wanted).unwrap(), ["drive", "part"]);
    let back = devices.get("part").unwrap();
    assert!(back.device.open_queue(&CorePool::new(&pool)).is_ok());
    // A namespace that the drive does not have is rejected, and the first one stays.
    let more = text + &device("none", "nvme", &format!("pci = \"{PCI}\"\nnsid = 77"));
    let error = format!("{:#}", reload(&mut devices, &config(&more)).unwrap_err());
    assert!(error.starts_with("device \"none\": 0000:61:00.0: namespace 77"), "{error}");
    assert!(!devices.get("drive").unwrap().device.is_gone());
}

/// Waits until the drive's thread has noticed an event; returns the changed devices.
fn notices(devices: &Devices) -> Vec<String> {
    wait_until(|| !devices.changed_drives().is_empty());
    changed(devices.changed_drives())
}

fn halve(fake: &FakeDrive) {
    fake.change_namespace(1, |namespace| namespace.nsze.set(namespace.nsze.get() / 2));
}

#[test]
fn a_namespace_whose_size_changes_is_followed_and_so_is_what_stands_on_it() {
    const AT: &str = "0000:62:00.0";
    let (mut devices, _pool) = devices();
    let fake = plug_in(AT);
    let text = device("drive", "nvme", &format!("pci = \"{AT}\""))
        + &device("ram", "ram", "size = \"16MiB\"")
        + &device("s", "stripe", "members = [\"drive\", \"ram\"]\nchunk = \"4KiB\"")
        + &device("part", "split", "base = \"drive\"\nsize = \"8MiB\"");
    let served = text.clone()
        + "[[subsystem]]\nnqn = \"nqn.2026-11.io.x:a\"\nallow-any-host = true\n\
           [[subsystem.namespace]]\nnsid = 1\ndevice = \"drive\"\n\
           [[subsystem.namespace]]\nnsid = 2\ndevice = \"ram\"\n";
    let (wanted, whole) = (config(&text), whole_config(&served));
    reload(&mut devices, &wanted).unwrap();
    let target = nvmeof_nvmf::Target::new(Limits::of(&whole).nvmf());
    let apply = |devices: &Devices| {
        let ports = std::iter::empty();
        let spec = super::super::apply::target_spec(&whole, ports, |name| devices.get(name));
        target.apply(spec.unwrap()).unwrap().namespaces_changed.len()
    };
    apply(&devices);
    let (size, all) = (size(&devices, "drive"), size(&devices, "s"));
    let (ram, part) = (devices.get("ram").unwrap().id, devices.get("part").unwrap().id);
    // The event reported no change of the namespace: nothing is reopened.
    fake.change_namespace(1, |_| ());
    assert!(notices(&devices).is_empty() && devices.changed_drives().is_empty());
    halve(&fake);
    let names = notices(&devices);
    assert_eq!(names, ["drive"]);
    devices.mark_stale(&names);
    assert_eq!(reload(&mut devices, &wanted).unwrap(), ["drive", "s", "part"]);
    assert_eq!(self::size(&devices, "drive"), size / 2);
    assert!(self::size(&devices, "s") < all);
    assert_ne!(devices.get("part").unwrap().id, part);
    assert_eq!(devices.get("ram").unwrap().id, ram, "it has nothing to do with it");
    // Hosts are notified of the one namespace that changed.
    assert_eq!(apply(&devices), 1);
    assert!(reload(&mut devices, &wanted).unwrap().is_empty());
    // The error names a device that cannot follow the change, and nothing changes.
    halve(&fake);
    let names = notices(&devices);
    devices.mark_stale(&names);
    let error = format!("{:#}", reload(&mut devices, &wanted).unwrap_err());
    assert!(error.starts_with("device \"part\": "), "{error}");
    assert_eq!(self::size(&devices, "drive"), size / 2);
    assert!(devices.changed_drives().is_empty(), "it is not tried time and again");
}

fn size(devices: &Devices, name: &str) -> u64 {
    devices.get(name).unwrap().device.info().size
}

#[test]
fn a_drive_that_does_not_get_ready_holds_nothing_up() {
    const AT: &str = "0000:63:00.0";
    let (mut devices, _pool) = devices();
    let fake = plug_in(AT);
    // The drive declares a timeout of two minutes, and never becomes ready.
    fake.reconfigure(|config| {
        config.cap.set_to(0xff);
        config.enable = Readiness::Never;
    });
    let ram = device("ram", "ram", "size = \"1MiB\"");
    let with = config(&(ram.clone() + &device("drive", "nvme", &format!("pci = \"{AT}\""))));
    let without = config(&ram);
    let runtime = runtime();
    runtime.block_on(async {
        let mut preopened = devices.begin(&with, &[], None);
        // The control plane is not blocked, and can even make another reload.
        assert!(preopened.give_up());
        let mut nothing = devices.begin(&without, &[], None).done().await;
        let opened = devices.prepare(&without, &mut nothing, &[]).await.unwrap();
        assert_eq!(opened.len(), 1);
        devices.commit(&without, opened);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!preopened.is_done());
        // When the drive is pulled out, opening it fails.
        fake.set_gone(true);
        let error = preopened.done().await.drive("drive").unwrap_err();
        assert!(format!("{error:#}").contains(AT), "{error:#}");
    });
}

#[test]
fn a_drive_that_does_not_shut_down_holds_nothing_up() {
    const AT: &str = "0000:64:00.0";
    let (mut devices, _pool) = devices();
    let fake = plug_in(AT);
    let wanted = config(&device("drive", "nvme", &format!("pci = \"{AT}\"")));
    reload(&mut devices, &wanted).unwrap();
    fake.reconfigure(|config| config.shutdown = Readiness::Never);
    let runtime = runtime();
    runtime.block_on(async {
        let gone = devices.commit(&[], Vec::new());
        let closing = tokio::spawn(async move {
            for open in gone {
                close(open, &[]).await;
            }
        });
        // A thread waits for the shutdown; the control plane does not.
        while !fake.is_shutting_down() {
            tokio::task::yield_now().await;
        }
        assert!(!closing.is_finished());
        fake.finish_shutdown();
        closing.await.unwrap();
    });
    assert!(!fake.is_running());
}
