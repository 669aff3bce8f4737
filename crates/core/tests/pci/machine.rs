//! Topology, links, order and loads of the machine with four root complexes.

use std::collections::BTreeMap;

use nvmeof_core::pci::*;
use nvmeof_sysfs_fixture::{DRIVE_BYTES, Machine, at, host};

use crate::measured;

/// Returns the 30 data drives: all but the one behind the switch.
fn data_drives(system: &System) -> Vec<PciFunction> {
    let all = system.nvme_functions().unwrap();
    all.into_iter().filter(|drive| drive.place.ports.len() == 1).collect()
}

fn counts<'a>(drives: impl IntoIterator<Item = &'a PciFunction>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for drive in drives {
        *counts.entry(drive.place.root_complex.to_string()).or_default() += 1;
    }
    counts
}

#[test]
fn every_drive_is_found_and_nothing_else() {
    let (_folder, _machine, system) = measured();
    let drives = system.nvme_functions().unwrap();
    assert_eq!(drives.len(), 31);
    let expected = [("0000:00", 8), ("0000:20", 7), ("0000:40", 8), ("0000:60", 8)];
    let expected = expected.map(|(root, count)| (root.to_owned(), count));
    assert_eq!(counts(&drives), BTreeMap::from(expected));
    assert_eq!(data_drives(&system).len(), 30);
    assert!(drives.is_sorted_by_key(|drive| drive.address));
}

#[test]
fn what_is_known_of_a_drive() {
    let (_folder, _machine, system) = measured();
    let drive = system.function(at("0000:61:00.0")).unwrap();
    assert!(drive.is_nvme());
    assert_eq!(drive.place.port(), Some(at("0000:60:01.1")));
    assert_eq!(drive.place.adapter().to_string(), "0000:60:01");
    assert_eq!(drive.numa_node, Some(0));
    assert!(drive.iommu_group.is_some());
    assert_eq!(drive.driver.as_deref(), Some("nvme"));
    assert_eq!(drive.driver_override, None);
    assert_eq!(drive.bytes(), Some(DRIVE_BYTES));
    let link = drive.links.now.unwrap();
    assert_eq!(link.to_string(), "16 GT/s x4");
    assert_eq!(drive.links.best, Some(link));
    let controller = drive.controller.unwrap();
    assert_eq!(drive.slot.as_deref(), controller.name.strip_prefix("nvme"));
    assert_eq!(controller.model.as_deref(), Some("Example Gen4 3840GB"));
    assert_eq!(controller.firmware.as_deref(), Some("FW10"));
    assert_eq!(controller.namespaces.len(), 1);
    assert_eq!(controller.namespaces[0].block_size, Some(512));
}

#[test]
fn the_drive_behind_the_switch() {
    let (_folder, _machine, system) = measured();
    let drive = system.function(at("0000:24:00.0")).unwrap();
    let ports = ["0000:20:01.1", "0000:21:00.0", "0000:22:01.0"].map(at);
    assert_eq!(drive.place.ports, ports);
    // The other ports of device 1 have separate drives, which do not share the switch's link.
    assert_eq!(drive.place.adapter().to_string(), "0000:20:01.1");
    let neighbour = system.function(at("0000:2a:00.0")).unwrap();
    assert_eq!(neighbour.place.port(), Some(at("0000:20:01.2")));
    assert_eq!(neighbour.place.adapter().to_string(), "0000:20:01");
    // The port is PCIe 3.0.
    assert_eq!(drive.links.best.unwrap().to_string(), "8 GT/s x4");
}

#[test]
fn any_first_few_are_spread() {
    let (_folder, _machine, system) = measured();
    let drives = data_drives(&system);
    let ordered = order(&drives);
    assert_eq!(ordered.len(), 30);
    for taken in 1..=24 {
        let counts = counts(ordered[..taken].iter().copied());
        let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
        assert!(most - least <= 1, "{taken}: {counts:?}");
        assert_eq!(counts.len(), taken.min(4), "{taken}");
    }
    let eight: Vec<String> =
        ordered[..8].iter().map(|drive| drive.place.adapter().to_string()).collect();
    // Two on each root complex, on two adapters.
    let expected = [
        "0000:00:01",
        "0000:20:01",
        "0000:40:01",
        "0000:60:01",
        "0000:00:03",
        "0000:20:03",
        "0000:40:03",
        "0000:60:03",
    ];
    assert_eq!(eight, expected);
    // In the order of their names, all eight are on one root complex.
    assert_eq!(counts(&drives[..8]).len(), 1);
}

#[test]
fn the_order_does_not_hang_on_how_drives_are_given() {
    let (_folder, _machine, system) = measured();
    let mut drives = data_drives(&system);
    let expected: Vec<Address> = order(&drives).iter().map(|drive| drive.address).collect();
    drives.reverse();
    let reversed: Vec<Address> = order(&drives).iter().map(|drive| drive.address).collect();
    assert_eq!(reversed, expected);
    assert!(order(&[]).is_empty());
}

#[test]
fn root_complexes_with_more_than_they_carry_are_named() {
    let (_folder, _machine, system) = measured();
    let drives = system.nvme_functions().unwrap();
    let text: Vec<String> = warnings(&system, &drives, &Capacities::default())
        .iter()
        .map(ToString::to_string)
        .collect();
    let expected = "root complex 0000:60: 8 drives can do 56.7 GB/s together, the root complex \
                    carries 42.6 GB/s \
                    (assumed: see docs/drives.md)";
    assert!(text.iter().any(|line| line == expected), "{text:?}");
    // Seven drives exceed its capacity, too, one of them of PCIe 3.0; six would not.
    let over = text.iter().filter(|line| line.starts_with("root complex")).count();
    assert_eq!(over, 4, "{text:?}");
    let six: Vec<PciFunction> = data_drives(&system)
        .into_iter()
        .filter(|drive| drive.place.root_complex.bus == 0x20)
        .collect();
    assert_eq!(six.len(), 6);
    assert!(warnings(&system, &six, &Capacities::default()).is_empty());
    let mut set = Capacities::default();
    set.set("0000:20".parse().unwrap(), 40.0);
    let warned = warnings(&system, &six, &set);
    let [Warning::RootComplex(load)] = &warned[..] else { panic!("{warned:?}") };
    assert!(load.is_set);
    assert_eq!(load.drives, 6);
    let shown = warned[0].to_string();
    assert!(shown.ends_with("root complex carries 40.0 GB/s"), "{shown}");
}

#[test]
fn a_switch_carries_what_its_port_does() {
    let folder = tempfile::tempdir_in(nvmeof_sysfs_fixture::folder()).unwrap();
    let mut machine = Machine::new(folder.path()).unwrap();
    let port = machine.bridge(&host(0x40), "0000:40:01.1", "16.0 GT/s PCIe", 8).unwrap();
    let switch = machine.bridge(&port, "0000:41:00.0", "16.0 GT/s PCIe", 8).unwrap();
    for (device, bus) in (0..4).zip(0x43..) {
        let below = format!("0000:42:{device:02x}.0");
        let below = machine.bridge(&switch, &below, "16.0 GT/s PCIe", 4).unwrap();
        machine.drive(&below, &format!("0000:{bus:02x}:00.0")).unwrap();
    }
    let system = machine.system();
    let drives = system.nvme_functions().unwrap();
    let load = &loads(&system, &drives, &Capacities::default())[0];
    // The bandwidth of two drives: the root port has eight lanes.
    assert!((load.demand_gb_per_s - 14.18).abs() < 0.01, "{load:?}");
    let warned = warnings(&system, &drives, &Capacities::default());
    let ports: Vec<Address> = warned
        .iter()
        .map(|warning| match warning {
            Warning::Port { port, drives: 4, .. } => *port,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(ports, [at("0000:40:01.1"), at("0000:41:00.0")]);
    let shown = warned[0].to_string();
    let expected = "port 0000:40:01.1: the 4 drives below it can do 28.4 GB/s together, its link \
                    (16 GT/s x8) carries 14.2 GB/s";
    assert_eq!(shown, expected);
}

#[test]
fn a_link_below_its_best_is_told() {
    let (_folder, machine, system) = measured();
    machine.link_attribute("0000:2c:00.0", "current_link_width", "2").unwrap();
    let drives = [system.function(at("0000:2c:00.0")).unwrap()];
    let warned = warnings(&system, &drives, &Capacities::default());
    let expected =
        "0000:2c:00.0: its link runs at 16 GT/s x2 (3.9 GB/s) and could at 16 GT/s x4 (7.9 GB/s)";
    assert_eq!(warned[0].to_string(), expected);
    assert_eq!(warned.len(), 1);
    // A link that is down is not reported as slow.
    machine.link_attribute("0000:2c:00.0", "current_link_width", "0").unwrap();
    let drives = [system.function(at("0000:2c:00.0")).unwrap()];
    assert_eq!(drives[0].links.now, None);
    assert!(warnings(&system, &drives, &Capacities::default()).is_empty());
}

#[test]
fn members_of_a_stripe_that_could_be_spread_better() {
    let (_folder, _machine, system) = measured();
    let drives = data_drives(&system);
    let first_eight = &drives[..8];
    let warning = uneven(first_eight, &drives).unwrap();
    let shown = warning.to_string();
    assert!(shown.contains("(8 on 0000:00); spread are: 0000:01:00.0 0000:2a:00.0"), "{shown}");
    let spread: Vec<PciFunction> = order(&drives).into_iter().take(8).cloned().collect();
    assert_eq!(uneven(&spread, &drives), None);
    // Two on each root complex, but on one adapter.
    let one_adapter: Vec<PciFunction> = drives
        .iter()
        .filter(|drive| {
            let port = drive.place.port().unwrap();
            port.device == 3 && port.function <= 2
        })
        .cloned()
        .collect();
    assert_eq!(one_adapter.len(), 8);
    assert!(uneven(&one_adapter, &drives).is_some());
    assert_eq!(uneven(&drives, &drives), None);
    assert_eq!(uneven(&[], &drives), None);
    // Without better drives there is no warning.
    assert_eq!(uneven(first_eight, first_eight), None);
}

#[test]
fn a_machine_without_pci_has_no_drives() {
    let folder = tempfile::tempdir_in(nvmeof_sysfs_fixture::folder()).unwrap();
    let system = System::below(folder.path());
    assert!(system.nvme_functions().unwrap().is_empty());
    assert_eq!(system.function(at("0000:61:00.0")), None);
}
