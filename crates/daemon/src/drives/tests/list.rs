//! Tests of the table and the JSON.

use serde_json::{Value, json};

use super::super::list::{self, Args};
use super::{Rig, fake};

fn args(json: bool, round_robin: bool) -> Args {
    Args { json, round_robin, root_complex: vec![("0000:60".parse().unwrap(), 30.0)] }
}

fn json(rig: &Rig) -> Value {
    let ran = rig.run(|host, output| list::run(host, &args(true, false), output));
    ran.assert_done();
    assert_eq!(ran.notes, "");
    serde_json::from_str(&ran.out).unwrap()
}

fn drive<'a>(all: &'a Value, address: &str) -> &'a Value {
    let drives = all["drives"].as_array().unwrap();
    drives.iter().find(|drive| drive["address"] == address).unwrap()
}

#[test]
fn the_table() {
    let rig = Rig::new(Vec::new());
    rig.machine.mount(None, "9 1 0:9 / / rw - btrfs /dev/nvme0n1 rw").unwrap();
    let ran = rig.run(|host, output| list::run(host, &args(false, false), output));
    ran.assert_done();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 32, "{}", ran.out);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let head = "ADDRESS SERIAL MODEL FIRMWARE SIZE ROOT SLOT NUMA LINK GB/S DRIVER IN USE";
    assert_eq!(words(lines[0]), head);
    let first = "0000:01:00.0 SERIAL00 Example Gen4 3840GB FW10 3.84 TB 0000:00 0 0 16 GT/s x4 \
                 7.9 of 7.9 nvme nvme0n1 is mounted at /: the root disk";
    assert_eq!(words(lines[1]), first);
    assert!(words(lines[2]).ends_with(" nvme no"), "{}", lines[2]);
    let over: Vec<&str> =
        ran.notes.lines().filter(|line| line.starts_with("warning: root complex")).collect();
    assert_eq!(over.len(), 4, "{}", ran.notes);
    assert!(over[3].ends_with("root complex carries 30.0 GB/s"), "{}", over[3]);
}

#[test]
fn the_order_in_which_to_take_drives() {
    let rig = Rig::new(Vec::new());
    let ran = rig.run(|host, output| list::run(host, &args(false, true), output));
    let addresses: Vec<&str> = ran.out.lines().skip(1).take(5).map(|line| &line[..12]).collect();
    let expected = ["0000:01:00.0", "0000:2a:00.0", "0000:41:00.0", "0000:61:00.0", "0000:05:00.0"];
    assert_eq!(addresses, expected);
    let all = json(&rig);
    assert_eq!(drive(&all, "0000:61:00.0")["order"], 3);
    assert_eq!(drive(&all, "0000:05:00.0")["order"], 4);
}

/// Scripts rely on these names and types.
#[test]
fn the_form_of_the_json() {
    let rig = Rig::new(Vec::new());
    rig.machine.process(5, "dd", "4026531841", &["/dev/nvme0n1"]).unwrap();
    let all = json(&rig);
    assert_eq!(all["version"], 1);
    assert_eq!(all["partial"], false);
    assert_eq!(all["drives"].as_array().unwrap().len(), 31);
    let link = json!({"gt_per_s": 16.0, "width": 4, "gb_per_s": 7.877});
    let expected = json!({
        "address": "0000:01:00.0",
        "serial": "SERIAL00",
        "model": "Example Gen4 3840GB",
        "firmware": "FW10",
        "bytes": 3_840_755_982_336_u64,
        "namespaces": [{
            "nsid": null, "device": "nvme0n1", "bytes": 3_840_755_982_336_u64, "block_size": 512
        }],
        "unknown": null,
        "root_complex": "0000:00",
        "adapter": "0000:00:01",
        "port": "0000:00:01.1",
        "slot": "0",
        "numa_node": 0,
        "iommu_group": drive(&all, "0000:01:00.0")["iommu_group"],
        "link": {"now": link, "best": link},
        "driver": "nvme",
        "driver_override": null,
        "in_use": [{"kind": "process", "text": "/dev/nvme0n1 is open in pid 5 (dd)"}],
        "order": 0
    });
    assert_eq!(*drive(&all, "0000:01:00.0"), expected);
    assert!(drive(&all, "0000:01:00.0")["iommu_group"].is_u64());
    let root = json!({
        "root_complex": "0000:60", "drives": 8, "demand_gb_per_s": 56.714, "capacity_gb_per_s": 30.0,
        "capacity_is_set": true, "over": true
    });
    assert_eq!(all["root_complexes"][3], root);
    assert!(all["warnings"].as_array().unwrap().iter().all(Value::is_string));
}

#[test]
fn what_drives_say_that_are_bound_for_us() {
    let rig = Rig::new(vec![("0000:61:00.0", fake("OURS01"))]);
    rig.bind(&["0000:61:00.0", "0000:62:00.0", "0000:63:00.0"]).assert_done();
    let group = rig.host.system.function("0000:63:00.0".parse().unwrap()).unwrap().iommu_group;
    let node = format!("/dev/vfio/{}", group.unwrap());
    rig.machine.process(7, "other", "4026531841", &[&node]).unwrap();
    let all = json(&rig);
    let asked = drive(&all, "0000:61:00.0");
    assert_eq!(asked["serial"], "OURS01");
    assert_eq!(asked["driver"], "vfio-pci");
    assert_eq!(asked["bytes"], 16 << 20);
    let space = json!([{"nsid": 1, "device": null, "bytes": 16 << 20, "block_size": 512}]);
    assert_eq!(asked["namespaces"], space);
    let failed = drive(&all, "0000:62:00.0");
    assert_eq!(failed["serial"], Value::Null);
    assert_eq!(failed["unknown"], "bound to vfio-pci: a group in the way");
    let taken = drive(&all, "0000:63:00.0");
    assert_eq!(taken["unknown"], "bound to vfio-pci, in use by pid 7 (other)");
    assert_eq!(taken["in_use"][0]["kind"], "process");
}

#[test]
fn a_machine_without_drives() {
    let rig = Rig::new(Vec::new());
    let empty = tempfile::tempdir().unwrap();
    let machine = nvmeof_sysfs_fixture::Machine::new(empty.path()).unwrap();
    let rig = Rig { host: super::Host { system: machine.system(), ..rig.host }, ..rig };
    let ran = rig.run(|host, output| list::run(host, &args(false, false), output));
    ran.assert_done();
    assert_eq!(ran.notes, "this machine has no NVMe drive\n");
    assert_eq!(json(&rig)["drives"], json!([]));
}
