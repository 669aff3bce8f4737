//! Users of a drive.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nvmeof_core::pci::users::{Usage, User, claim};
use nvmeof_core::pci::{PciFunction, System};
use nvmeof_sysfs_fixture::{Machine, at};

use crate::measured;

/// Returns the drive of 0000:61:00.0 and its number.
fn drive(system: &System) -> (PciFunction, u32) {
    let function = system.function(at("0000:61:00.0")).unwrap();
    let name = function.controller.as_ref().unwrap().name.clone();
    (function, name.strip_prefix("nvme").unwrap().parse().unwrap())
}

/// Returns the users of the drive after `set_up`, and checks that no other drive has any.
fn said(set_up: impl FnOnce(&Machine, &Path, u32)) -> Vec<String> {
    let (folder, machine, system) = measured();
    let (function, number) = drive(&system);
    assert_eq!(Usage::read(&system).unwrap().of(&function), []);
    set_up(&machine, folder.path(), number);
    let usage = Usage::read(&system).unwrap();
    assert!(!usage.is_partial());
    for other in system.nvme_functions().unwrap() {
        assert!(other.address == function.address || usage.of(&other).is_empty(), "{other:?}");
    }
    let name = format!("nvme{number}");
    let (function, _) = drive(&system);
    let users = usage.of(&function);
    users.iter().map(|user| user.to_string().replace(&name, "nvmeX")).collect()
}

#[test]
fn a_block_device_by_its_name() {
    let (_folder, machine, system) = measured();
    let (_, number) = drive(&system);
    let (disk, free) = (format!("nvme{number}n1"), format!("nvme{number}n1p2"));
    for part in [1, 2] {
        machine.partition(number, part).unwrap();
    }
    machine
        .mount(None, &format!("30 1 259:{} / /home rw - ext4 /dev/x rw", number * 8 + 1))
        .unwrap();
    let usage = Usage::read(&system).unwrap();
    let [User::Mount { device, .. }] = &usage.of_block(&disk)[..] else {
        panic!("not the mount alone")
    };
    assert_eq!(*device, format!("{disk}p1"));
    assert_eq!(usage.of_block(&free), []);
    for name in [&disk, &free] {
        let about = system.disk(name);
        assert_eq!(about.serial, Some(format!("SERIAL{number:02}")));
        assert_eq!(
            (about.model.as_deref(), about.firmware.as_deref()),
            (Some("Example Gen4 3840GB"), Some("FW10"))
        );
    }
    machine.write(&format!("sys/class/block/{free}/ro"), "1\n").unwrap();
    assert_eq!((system.disk(&disk).read_only, system.disk(&free).read_only), (false, true));
    assert_eq!(system.disk("sdz"), nvmeof_core::pci::Disk::default());
}

#[test]
fn a_mounted_partition_and_swap() {
    let said = said(|machine, _, drive| {
        for number in 1..=4 {
            machine.partition(drive, number).unwrap();
        }
        let minor = drive * 8;
        let home = format!("30 1 259:{} / /home\\040x rw - ext4 /dev/gone rw", minor + 2);
        machine.mount(None, &home).unwrap();
        let root = format!("31 1 259:{} / / rw shared:1 - xfs /dev/root rw", minor + 1);
        machine.mount(None, &root).unwrap();
        // The device numbers of btrfs and overlays are virtual: the source identifies the device.
        let source = format!("32 1 0:44 /sub /data rw - btrfs /dev/nvme{drive}n1p4 rw");
        machine.mount(None, &source).unwrap();
        let swaps = format!("Filename Type\n/dev/nvme{drive}n1p3 partition 1 0 -2\n");
        machine.write("proc/swaps", &swaps).unwrap();
    });
    let expected = [
        "nvmeXn1p1 is mounted at /: the root disk",
        "nvmeXn1p2 is mounted at /home x",
        "nvmeXn1p4 is mounted at /data",
        "nvmeXn1p3 is swap space",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_mount_of_another_mount_namespace() {
    let said = said(|machine, _, drive| {
        let line = format!("40 1 259:{} / /var/lib/data rw - ext4 /dev/x rw", drive * 8);
        machine.process(77, "container", "4026532000", &[]).unwrap();
        machine.mount(Some(77), &line).unwrap();
        // Another process of the same namespace adds nothing.
        machine.process(78, "container", "4026532000", &[]).unwrap();
        machine.mount(Some(78), &line).unwrap();
    });
    assert_eq!(said, ["nvmeXn1 is mounted at /var/lib/data in the mount namespace of pid 77"]);
}

#[test]
fn volumes_and_arrays_on_it() {
    let said = said(|machine, _, drive| {
        let one = machine.partition(drive, 1).unwrap();
        let two = machine.partition(drive, 2).unwrap();
        machine.holder(&one, "dm-0").unwrap();
        machine.write("sys/class/block/dm-0/dm/name", "vg-root\n").unwrap();
        machine.write("sys/class/block/dm-0/dm/uuid", "LVM-abc\n").unwrap();
        machine.holder(&two, "md127").unwrap();
        machine.write("sys/class/block/md127/md/level", "raid1\n").unwrap();
        machine.mount(None, "50 1 0:50 / /srv rw - btrfs /dev/mapper/vg-root rw").unwrap();
    });
    let expected = [
        "dm-0 is mounted at /srv",
        "nvmeXn1p1 is part of dm-0 (LVM volume vg-root)",
        "nvmeXn1p2 is part of md127 (MD RAID, raid1)",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_holder_that_only_its_own_side_tells_of() {
    let said = said(|machine, root, drive| {
        machine.holder(&format!("nvme{drive}n1"), "md0").unwrap();
        fs::remove_file(root.join(format!("sys/class/block/nvme{drive}n1/holders/md0"))).unwrap();
    });
    assert_eq!(said, ["nvmeXn1 is part of md0 (a block device made of others)"]);
}

#[test]
fn members_of_filesystems_over_several_devices() {
    let said = said(|machine, _, drive| {
        machine.write(&format!("sys/fs/btrfs/0a/devices/nvme{drive}n1/x"), "").unwrap();
    });
    assert_eq!(said, ["nvmeXn1 is a member of a mounted btrfs filesystem"]);
}

#[test]
fn loop_devices_and_the_kernels_target() {
    let said = said(|machine, _, drive| {
        machine.block("devices/virtual/block", "loop0", 2000).unwrap();
        let path = format!("/dev/nvme{drive}n1\n");
        machine.write("sys/class/block/loop0/loop/backing_file", &path).unwrap();
        let namespaces = "sys/kernel/config/nvmet/subsystems/nqn.x/namespaces";
        machine.write(&format!("{namespaces}/1/device_path"), &path).unwrap();
        machine.write(&format!("{namespaces}/1/enable"), "1\n").unwrap();
        machine.write(&format!("{namespaces}/2/device_path"), &path).unwrap();
        machine.write(&format!("{namespaces}/2/enable"), "0\n").unwrap();
    });
    let expected = [
        "nvmeXn1 is used by the loop device loop0",
        "nvmeXn1 is used by the kernel's NVMe target, namespace 1 of nqn.x",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_controller_that_the_kernels_target_passes_commands_to() {
    let said = said(|machine, _, drive| {
        let subsystems = "sys/kernel/config/nvmet/subsystems";
        let path = format!("/dev/nvme{drive}\n");
        for (subsystem, enable) in [("nqn.on", "1\n"), ("nqn.off", "0\n")] {
            machine
                .write(&format!("{subsystems}/{subsystem}/passthru/device_path"), &path)
                .unwrap();
            machine.write(&format!("{subsystems}/{subsystem}/passthru/enable"), enable).unwrap();
        }
    });
    assert_eq!(said, ["nvmeX is used by the kernel's NVMe target, as a whole by nqn.on"]);
}

/// Without multipath in the kernel, each port of a drive has separate block devices.
#[test]
fn a_drive_with_two_ports_is_used_by_either() {
    let (folder, machine, system) = measured();
    let (one, number) = drive(&system);
    let other = system.function(at("0000:62:00.0")).unwrap();
    let port = other.controller.as_ref().unwrap().name.clone();
    let line = format!("9 1 0:9 / /data rw - btrfs /dev/{port}n1 rw");
    machine.mount(None, &line).unwrap();
    machine.process(90, "nvme", "4026531841", &[&format!("/dev/{port}")]).unwrap();
    let of = |address: &str| {
        let function = system.function(at(address)).unwrap();
        Usage::read(&system).unwrap().of(&function)
    };
    assert_eq!(of("0000:61:00.0"), []);
    let serial = format!("sys/class/block/{port}n1/../serial");
    machine.write(&serial, &format!("SERIAL{number:02}\n")).unwrap();
    let [User::Mount { device, .. }, User::Process { pid: 90, .. }] = &of("0000:61:00.0")[..]
    else {
        panic!("{:?}", of("0000:61:00.0"));
    };
    assert_eq!(*device, format!("{port}n1"));
    assert_eq!(of("0000:61:00.0"), of("0000:62:00.0"));
    assert_eq!(of("0000:63:00.0"), []);
    // Both are claimed.
    assert!(claim(&system, &one).is_ok());
    fs::remove_file(folder.path().join(format!("dev/{port}n1"))).unwrap();
    let users = claim(&system, &one).unwrap_err();
    assert!(matches!(&users[..], [User::Unknown { device, .. }] if *device == format!("{port}n1")));
    // The same serial number with another model is another drive.
    let model = format!("sys/class/block/{port}n1/../model");
    machine.write(&model, "Another model\n").unwrap();
    assert_eq!(of("0000:61:00.0"), []);
    assert!(claim(&system, &one).is_ok());
}

#[test]
fn programs_that_have_its_nodes_open() {
    let said = said(|machine, _, drive| {
        let disk = format!("/dev/nvme{drive}n1");
        let part = machine.partition(drive, 1).unwrap();
        let generic = format!("/dev/ng{drive}n1");
        let control = format!("/dev/nvme{drive}");
        machine.process(90, "fio", "4026531841", &[&disk, "/tmp/nvme0n1", &disk]).unwrap();
        machine.process(91, "cat", "4026531841", &[&format!("/dev/{part}")]).unwrap();
        machine.process(92, "nvme", "4026531841", &[&control, "socket:[1]"]).unwrap();
        machine.process(93, "spdk", "4026531841", &[&generic]).unwrap();
    });
    let expected = [
        "/dev/nvmeXn1 is open in pid 90 (fio)",
        "/dev/nvmeXn1p1 is open in pid 91 (cat)",
        "/dev/nvmeX is open in pid 92 (nvme)",
    ];
    assert_eq!(said[..3], expected);
    assert!(said[3].starts_with("/dev/ng") && said[3].ends_with("is open in pid 93 (spdk)"));
    assert_eq!(said.len(), 4);
}

/// By number: under private names, in a container, after the node was removed.
#[test]
fn programs_that_have_its_nodes_open_under_other_names() {
    let said = said(|machine, _, drive| {
        let part = machine.partition(drive, 1).unwrap();
        machine.write(&format!("sys/class/nvme/nvme{drive}/dev"), "239:7\n").unwrap();
        machine.write(&format!("sys/class/nvme-generic/ng{drive}n1/dev"), "240:7\n").unwrap();
        for pid in 90..95 {
            machine.process(pid, "program", "4026531841", &["socket:[1]"]).unwrap();
        }
        machine.open(90, "/srv/disk", &format!("b 259:{}", drive * 8)).unwrap();
        let removed = format!("/dev/{part} (deleted)");
        machine.open(91, &removed, &format!("b 259:{}", drive * 8 + 1)).unwrap();
        machine.open(92, "/dev/own/control", "c 239:7").unwrap();
        machine.open(93, "/generic", "c 240:7").unwrap();
        // Two opens of a node are one use; the same number of the other type is another device.
        machine.open(93, "/generic too", "c 240:7").unwrap();
        machine.open(94, "/srv/disk", &format!("c 259:{}", drive * 8)).unwrap();
        machine.open(94, "/generic", "b 240:7").unwrap();
    });
    let expected = [
        "/dev/nvmeXn1 is open in pid 90 (program)",
        "/dev/nvmeXn1p1 is open in pid 91 (program)",
        "/dev/nvmeX is open in pid 92 (program)",
    ];
    assert_eq!(said[..3], expected);
    assert!(said[3].starts_with("/dev/ng") && said[3].ends_with("is open in pid 93 (program)"));
    assert_eq!(said.len(), 4);
}

#[test]
fn files_that_cannot_be_seen_are_told_of() {
    let (_folder, machine, system) = measured();
    machine.process(90, "short-lived", "4026531841", &[]).unwrap();
    fs::remove_dir(system.proc.join("90/fd")).unwrap();
    assert!(!Usage::read(&system).unwrap().is_partial());
    machine.hide(91).unwrap();
    assert!(Usage::read(&system).unwrap().is_partial());
}

#[test]
fn a_multipath_namespace_is_its_head() {
    let (folder, machine, system) = measured();
    let (function, number) = drive(&system);
    let path = format!("sys/bus/pci/devices/{}/nvme/nvme{number}", function.address);
    let controller = folder.path().join(path);
    let disk = format!("nvme{number}n1");
    fs::rename(controller.join(&disk), controller.join(format!("nvme{number}c5n1"))).unwrap();
    fs::remove_file(folder.path().join("sys/class/block").join(&disk)).unwrap();
    let head = "devices/virtual/nvme-subsystem/nvme-subsys3";
    machine.block(head, &disk, 900).unwrap();
    machine.mount(None, "60 1 259:900 / /mp rw - ext4 /dev/x rw").unwrap();
    let (function, _) = drive(&system);
    let users = Usage::read(&system).unwrap().of(&function);
    assert_eq!(users, [User::Mount { device: disk, at: "/mp".into(), seen_by: None }]);
}

#[test]
fn a_drive_that_a_program_has_by_vfio() {
    let (folder, machine, system) = measured();
    let (function, _) = drive(&system);
    let link = folder.path().join(format!("sys/bus/pci/devices/{}/driver", function.address));
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("../drivers/vfio-pci", &link).unwrap();
    let group = format!("/dev/vfio/{}", function.iommu_group.unwrap());
    machine.process(95, "nvmeof-tgt", "4026531841", &["/dev/vfio/vfio", &group]).unwrap();
    let (function, _) = drive(&system);
    let users = Usage::read(&system).unwrap().of(&function);
    let [User::Process { pid: 95, .. }] = &users[..] else { panic!("{users:?}") };
}

#[test]
fn a_drive_that_a_program_has_by_vfio_or_uio_under_other_names() {
    let (folder, machine, system) = measured();
    let (function, _) = drive(&system);
    let (group, address) = (function.iommu_group.unwrap(), function.address);
    let link = folder.path().join(format!("sys/bus/pci/devices/{address}/driver"));
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("../drivers/vfio-pci", &link).unwrap();
    let below = format!("sys/bus/pci/devices/{address}");
    machine.write(&format!("sys/class/vfio/{group}/dev"), "241:3\n").unwrap();
    machine.write(&format!("{below}/vfio-dev/vfio4/dev"), "242:3\n").unwrap();
    machine.write(&format!("{below}/uio/uio5/dev"), "243:3\n").unwrap();
    let expected = [("241:3", format!("vfio/{group}")), ("242:3", "vfio/devices/vfio4".into())];
    let last = ("243:3", "uio5".to_owned());
    for (pid, (number, node)) in (95..).zip(expected.into_iter().chain([last])) {
        machine.process(pid, "guest", "4026531841", &[]).unwrap();
        machine.open(pid, "/dev/some/name", &format!("c {number}")).unwrap();
        let users = Usage::read(&system).unwrap().of(&drive(&system).0);
        let command = "guest".to_owned();
        assert_eq!(users.last(), Some(&User::Process { pid, command, node }), "{users:?}");
    }
}

#[test]
fn a_claim_looks_for_marks_and_for_the_node() {
    let (folder, machine, system) = measured();
    let (function, number) = drive(&system);
    assert!(claim(&system, &function).is_ok());
    let part = machine.partition(number, 1).unwrap();
    let node = fs::OpenOptions::new().write(true).open(folder.path().join("dev").join(&part));
    let node = node.unwrap();
    node.write_all_at(b"LABELONE", 512).unwrap();
    node.write_all_at(b"LVM2 001", 536).unwrap();
    let of = "a physical volume of LVM";
    let users = claim(&system, &function).unwrap_err();
    assert_eq!(users, [User::Member { device: part, of }]);
    fs::remove_file(folder.path().join(format!("dev/nvme{number}n1"))).unwrap();
    let users = claim(&system, &function).unwrap_err();
    assert!(matches!(users[..], [User::Unknown { .. }]), "{users:?}");
}

#[test]
fn tables_that_cannot_be_read_are_no_free_pass() {
    let (folder, _machine, system) = measured();
    fs::remove_file(folder.path().join("proc/self/mountinfo")).unwrap();
    let error = Usage::read(&system).unwrap_err().to_string();
    assert!(error.contains("mountinfo"), "{error}");
}
