//! Tests of the stripe warnings at the start of the daemon.

use std::time::Duration;

use nvmeof_core::block::{Direct, FileConfig};
use nvmeof_core::pci::Capacities;

use super::super::balance::of_stripes;
use super::Rig;
use crate::config::{Device, DeviceKind, Drive};

fn device(name: &str, kind: DeviceKind) -> Device {
    Device { name: name.to_owned(), block_size: Some(512), kind }
}

fn nvme(name: &str, pci: &str) -> Device {
    let io_timeout = Duration::from_secs(30);
    device(
        name,
        DeviceKind::Nvme(Drive { pci: pci.to_owned(), nsid: 1, queue_depth: 256, io_timeout }),
    )
}

fn file(name: &str, path: &str) -> Device {
    let file = FileConfig {
        name: name.to_owned(),
        path: path.into(),
        size: None,
        block_size: 512,
        read_only: false,
        shared: false,
        direct: Direct::Auto,
        queue_depth: 8,
    };
    device(name, DeviceKind::File(file))
}

fn stripe(members: &[&str]) -> Device {
    let members = members.iter().map(|name| (*name).to_owned()).collect();
    device("all", DeviceKind::Stripe { members, chunk: 65536 })
}

#[test]
fn members_on_one_root_complex_are_told_of() {
    let rig = Rig::new(Vec::new());
    let mut devices: Vec<Device> =
        (1..=8).map(|bus| nvme(&format!("d{bus}"), &format!("0000:0{bus}:00.0"))).collect();
    let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    devices.push(stripe(&names));
    let lines = of_stripes(&rig.host.system, &devices, &Capacities::default());
    assert_eq!(lines.len(), 2, "{lines:?}");
    let uneven = "stripe \"all\": members hang unevenly on the root complexes (8 on 0000:00); spread are: \
                  0000:01:00.0 0000:2a:00.0";
    assert!(lines[0].starts_with(uneven), "{}", lines[0]);
    let over = "stripe \"all\": root complex 0000:00: 8 drives can do 56.7 GB/s together";
    assert!(lines[1].starts_with(over), "{}", lines[1]);
    // A configured capacity replaces the assumed one.
    assert!(lines[1].contains("assumed"), "{}", lines[1]);
    let mut capacities = Capacities::default();
    capacities.set("0000:00".parse().unwrap(), 60.0);
    assert_eq!(of_stripes(&rig.host.system, &devices, &capacities).len(), 1);
    capacities.set("0000:00".parse().unwrap(), 30.0);
    let lines = of_stripes(&rig.host.system, &devices, &capacities);
    assert!(lines[1].contains("30.0 GB/s") && !lines[1].contains("assumed"), "{}", lines[1]);
    // Without a stripe there are no warnings.
    devices.pop();
    assert_eq!(of_stripes(&rig.host.system, &devices, &Capacities::default()), [""; 0]);
}

#[test]
fn members_that_are_spread_are_not() {
    let rig = Rig::new(Vec::new());
    let addresses = ["0000:01:00.0", "0000:2a:00.0", "0000:41:00.0", "0000:61:00.0"];
    let mut devices: Vec<Device> =
        addresses.iter().enumerate().map(|(at, pci)| nvme(&format!("d{at}"), pci)).collect();
    devices.push(stripe(&["d0", "d1", "d2", "d3"]));
    assert_eq!(of_stripes(&rig.host.system, &devices, &Capacities::default()), [""; 0]);
}

#[test]
fn members_are_found_below_other_devices_and_behind_block_devices() {
    let rig = Rig::new(Vec::new());
    let part = |name: &str, base: &str| {
        let kind = DeviceKind::Split { base: base.to_owned(), offset: 0, size: None };
        device(name, kind)
    };
    // nvme0 and nvme1 are on the same root complex.
    let devices = [
        file("a", "/dev/nvme0n1"),
        nvme("b", "0000:02:00.0"),
        part("pa", "a"),
        part("pb", "b"),
        file("elsewhere", "/tmp/x"),
        stripe(&["pa", "pb", "elsewhere"]),
    ];
    let lines = of_stripes(&rig.host.system, &devices, &Capacities::default());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("(2 on 0000:00)"), "{}", lines[0]);
    // There is no better choice if all other drives are in use.
    for function in rig.host.system.nvme_functions().unwrap() {
        let name = function.controller.unwrap().name;
        let line = format!("9 1 0:9 / /{name} rw - btrfs /dev/{name}n1 rw");
        rig.machine.mount(None, &line).unwrap();
    }
    assert_eq!(of_stripes(&rig.host.system, &devices, &Capacities::default()), [""; 0]);
}
