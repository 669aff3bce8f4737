//! Binding and unbinding, against a simulated kernel that records all writes.

use std::fs;

use nvmeof_core::pci::users::{Usage, User};
use nvmeof_core::pci::*;
use nvmeof_sysfs_fixture::{Kernel, Machine, at};

use crate::measured;

const ADDRESS: &str = "0000:61:00.0";

fn bind(system: &System, kernel: &Kernel) -> Result<(), BindError> {
    let function = system.function(at(ADDRESS)).unwrap();
    let usage = Usage::read(system).unwrap();
    BindPlan::bind(system, &usage, &function, &[])?.run(system, kernel)
}

fn unbind(system: &System, kernel: &Kernel) -> Result<(), BindError> {
    let function = system.function(at(ADDRESS)).unwrap();
    let usage = Usage::read(system).unwrap();
    BindPlan::unbind(system, &usage, &function)?.run(system, kernel)
}

fn driver(system: &System) -> Option<String> {
    system.function(at(ADDRESS)).unwrap().driver
}

#[test]
fn there_and_back() {
    let (_folder, machine, system) = measured();
    let kernel = machine.kernel();
    bind(&system, &kernel).unwrap();
    let expected = [
        "vfio-pci > bus/pci/devices/0000:61:00.0/driver_override",
        "0000:61:00.0 > bus/pci/devices/0000:61:00.0/driver/unbind",
        "0000:61:00.0 > bus/pci/drivers_probe",
    ];
    assert_eq!(kernel.take_record(), expected);
    assert_eq!(driver(&system).as_deref(), Some("vfio-pci"));
    assert_eq!(system.function(at(ADDRESS)).unwrap().controller, None);
    // Binding it again does nothing.
    bind(&system, &kernel).unwrap();
    assert!(kernel.take_record().is_empty());

    unbind(&system, &kernel).unwrap();
    let expected = [
        " > bus/pci/devices/0000:61:00.0/driver_override",
        "0000:61:00.0 > bus/pci/devices/0000:61:00.0/driver/unbind",
        "0000:61:00.0 > bus/pci/drivers_probe",
    ];
    assert_eq!(kernel.take_record(), expected);
    let function = system.function(at(ADDRESS)).unwrap();
    assert_eq!(function.driver.as_deref(), Some("nvme"));
    assert_eq!(function.driver_override, None);
    assert!(function.controller.is_some());
    unbind(&system, &kernel).unwrap();
    assert!(kernel.take_record().is_empty());
}

#[test]
fn a_setting_left_behind_is_cleared() {
    let (_folder, machine, system) = measured();
    machine.link_attribute(ADDRESS, "driver_override", "vfio-pci").unwrap();
    let kernel = machine.kernel();
    unbind(&system, &kernel).unwrap();
    assert_eq!(kernel.take_record(), [" > bus/pci/devices/0000:61:00.0/driver_override"]);
}

/// Returns the error after `set_up`; checks that nothing is written.
fn refused(set_up: impl FnOnce(&Machine, &System)) -> BindError {
    let (_folder, machine, system) = measured();
    set_up(&machine, &system);
    let kernel = machine.kernel();
    let error = bind(&system, &kernel).unwrap_err();
    assert!(kernel.take_record().is_empty(), "{error}");
    assert_eq!(driver(&system).as_deref(), Some("nvme"));
    error
}

#[test]
fn a_drive_in_use_is_left_alone() {
    let error = refused(|machine, system| {
        let function = system.function(at(ADDRESS)).unwrap();
        let disk = function.controller.unwrap().namespaces[0].name.clone();
        machine.mount(None, &format!("9 1 0:9 / / rw - btrfs /dev/{disk} rw")).unwrap();
        machine.process(5, "dd", "4026531841", &[&format!("/dev/{disk}")]).unwrap();
    });
    let text = error.to_string();
    assert!(text.starts_with("0000:61:00.0 is in use and stays unchanged: nvme"), "{text}");
    assert!(text.contains("the root disk; ") && text.ends_with("is open in pid 5 (dd)"), "{text}");
}

#[test]
fn an_inactive_member_is_left_alone() {
    let error = refused(|machine, system| {
        let function = system.function(at(ADDRESS)).unwrap();
        let disk = &function.controller.unwrap().namespaces[0].name;
        let mut bytes = vec![0; 1 << 20];
        bytes[4096..4100].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
        fs::write(machine.system().dev.join(disk), bytes).unwrap();
    });
    let BindError::InUse { users, .. } = &error else { panic!("{error}") };
    assert!(matches!(users[..], [User::Member { of: "a member of an MD RAID", .. }]), "{error}");
}

#[test]
fn no_iommu_no_driver_and_what_is_no_drive() {
    let error = refused(|_, system| {
        let link = system.sys.join("bus/pci/devices").join(ADDRESS).join("iommu_group");
        fs::remove_file(link).unwrap();
    });
    assert!(error.to_string().contains("intel_iommu=on"), "{error}");
    let error = refused(|_, system| {
        fs::remove_dir(system.sys.join("bus/pci/drivers/vfio-pci")).unwrap();
    });
    assert_eq!(error.to_string(), "the kernel's driver vfio-pci is not here: modprobe vfio-pci");
    let (_folder, _machine, system) = measured();
    let usage = Usage::read(&system).unwrap();
    let network = system.function(at("0000:23:00.0")).unwrap();
    let error = BindPlan::bind(&system, &usage, &network, &[]).unwrap_err().to_string();
    assert_eq!(error, "0000:23:00.0 is no NVMe drive (class 020000): only drives are handed over");
}

#[test]
fn drivers_that_nothing_is_taken_from() {
    let (_folder, machine, system) = measured();
    let kernel = machine.kernel();
    let link = system.sys.join("bus/pci/devices").join(ADDRESS).join("driver");
    for other in ["uio_pci_generic", "xen-pciback"] {
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(format!("../drivers/{other}"), &link).unwrap();
        for error in [bind(&system, &kernel).unwrap_err(), unbind(&system, &kernel).unwrap_err()] {
            let expected = format!("{ADDRESS} is bound to {other} and stays unchanged: ");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        assert!(kernel.take_record().is_empty());
    }
    // A function without a driver is in use by no one.
    fs::remove_file(&link).unwrap();
    bind(&system, &kernel).unwrap();
    assert_eq!(driver(&system).as_deref(), Some("vfio-pci"));
}

#[test]
fn a_shared_group_names_what_else_is_in_it() {
    let error = refused(|machine, system| {
        let group = system.function(at(ADDRESS)).unwrap().iommu_group.unwrap();
        for other in ["0000:23:00.0", "0000:62:00.0", "0000:60:01.1"] {
            machine.put_in_group(other, group).unwrap();
        }
    });
    let text = error.to_string();
    assert!(text.contains("with 0000:23:00.0 (ixgbe); 0000:62:00.0 (nvme): "), "{text}");

    // Bound together, two drives do not block each other.
    let (_folder, machine, system) = measured();
    let function = system.function(at(ADDRESS)).unwrap();
    machine.put_in_group("0000:62:00.0", function.iommu_group.unwrap()).unwrap();
    let usage = Usage::read(&system).unwrap();
    let along = [at("0000:62:00.0")];
    assert_eq!(BindPlan::bind(&system, &usage, &function, &along).unwrap().steps.len(), 3);
}

#[test]
fn what_fails_on_the_way_is_taken_back() {
    for refuses in ["driver_override", "driver/unbind", "drivers_probe"] {
        let (_folder, machine, system) = measured();
        let mut kernel = machine.kernel();
        kernel.refuses = Some(refuses);
        let error = bind(&system, &kernel).unwrap_err();
        assert!(matches!(error, BindError::Write { .. }), "{refuses}: {error}");
        let record = kernel.take_record();
        assert!(record.iter().any(|step| step.starts_with(" > ")), "{refuses}: {record:?}");
        // A kernel that probes nothing leaves the function without a driver: no further rollback is
        // possible.
        let expected = (refuses != "drivers_probe").then_some("nvme");
        assert_eq!(driver(&system).as_deref(), expected, "{refuses}");
    }
}

#[test]
fn a_driver_that_does_not_take_it() {
    let (_folder, machine, system) = measured();
    let mut kernel = machine.kernel();
    kernel.deaf = Some("vfio-pci");
    let error = bind(&system, &kernel).unwrap_err().to_string();
    assert_eq!(
        error,
        "0000:61:00.0: vfio-pci did not bind the function, no driver has it; `dmesg` \
         may show the reason"
    );
    assert_eq!(driver(&system).as_deref(), Some("nvme"));
}

#[test]
fn a_drive_that_a_program_has_is_not_taken_away() {
    let (_folder, machine, system) = measured();
    let kernel = machine.kernel();
    bind(&system, &kernel).unwrap();
    let group = system.function(at(ADDRESS)).unwrap().iommu_group.unwrap();
    let group = format!("/dev/vfio/{group}");
    machine.process(95, "nvmeof-tgt", "4026531841", &[&group]).unwrap();
    let error = unbind(&system, &kernel).unwrap_err().to_string();
    assert!(error.ends_with("is open in pid 95 (nvmeof-tgt)"), "{error}");
    // Binding it again takes it from no user.
    bind(&system, &kernel).unwrap();
    assert_eq!(driver(&system).as_deref(), Some("vfio-pci"));
}
