//! Tests of binding drives and returning them.

use std::cell::Cell;
use std::io;
use std::path::Path;

use nvmeof_core::pci::SysfsWriter;
use nvmeof_sysfs_fixture::Kernel;

use super::super::bind;
use super::{Rig, arguments, fake};

#[test]
fn by_address_and_serial_number_and_back() {
    let rig = Rig::new(vec![("0000:62:00.0", fake("SERIAL99"))]);
    let serial = serial(&rig, "0000:61:00.0");
    // The same drive twice counts once.
    let ran = rig.bind(&[&serial, "0000:61:00.0", "62:00.0"]);
    ran.assert_done();
    assert_eq!(ran.out, "0000:61:00.0: nvme -> vfio-pci\n0000:62:00.0: nvme -> vfio-pci\n");
    assert_eq!(rig.driver("0000:61:00.0").as_deref(), Some("vfio-pci"));
    let again = rig.bind(&["0000:61:00.0"]);
    again.assert_done();
    assert_eq!(again.out, "0000:61:00.0: bound to vfio-pci already\n");
    // A bound drive reports its serial number itself.
    let back = rig.run(|host, output| bind::unbind(host, &arguments(&["SERIAL99"], false), output));
    back.assert_done();
    assert_eq!(back.out, "0000:62:00.0: vfio-pci -> nvme\n");
    assert_eq!(rig.driver("0000:62:00.0").as_deref(), Some("nvme"));
    assert_eq!(rig.driver("0000:61:00.0").as_deref(), Some("vfio-pci"));
}

#[test]
fn a_dry_run_writes_nothing() {
    let rig = Rig::new(Vec::new());
    let ran = rig.run(|host, output| bind::bind(host, &arguments(&["0000:61:00.0"], true), output));
    ran.assert_done();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("echo vfio-pci > /"), "{}", ran.out);
    assert!(lines[2].ends_with("sys/bus/pci/drivers_probe"), "{}", ran.out);
    assert_eq!(rig.driver("0000:61:00.0").as_deref(), Some("nvme"));
}

#[test]
fn all_or_nothing() {
    let rig = Rig::new(Vec::new());
    let disk = kernel_name(&rig, "0000:62:00.0");
    rig.machine.mount(None, &format!("9 1 0:9 / / rw - btrfs /dev/{disk}n1 rw")).unwrap();
    let ran = rig.bind(&["0000:61:00.0", "0000:62:00.0", "0000:23:00.0"]);
    let failure = ran.failure();
    let expected = format!(
        "0000:62:00.0 is in use and stays unchanged: {disk}n1 is mounted at /: the root disk\n\
         0000:23:00.0 is no NVMe drive (class 020000): only drives are handed over\nnothing was done"
    );
    assert_eq!(failure, expected);
    assert_eq!(rig.driver("0000:61:00.0").as_deref(), Some("nvme"));
}

#[test]
fn nothing_is_taken_where_not_all_can_be_seen() {
    let rig = Rig::new(Vec::new());
    rig.bind(&["0000:62:00.0"]).assert_done();
    rig.machine.hide(77).unwrap();
    let failure = rig.bind(&["0000:61:00.0", "0000:62:00.0"]).failure();
    assert!(failure.starts_with("0000:61:00.0 may be in use: "), "{failure}");
    assert!(failure.ends_with("/proc of the machine\nnothing was done"), "{failure}");
    assert_eq!(rig.driver("0000:61:00.0").as_deref(), Some("nvme"));
    // A dry run prints the writes. A drive that is already bound is not taken from any process.
    let ran = rig.run(|host, output| bind::bind(host, &arguments(&["0000:61:00.0"], true), output));
    ran.assert_done();
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    assert!(ran.notes.starts_with("note: 0000:61:00.0 may be in use: "), "{}", ran.notes);
    rig.bind(&["0000:62:00.0"]).assert_done();
    let back = arguments(&["0000:62:00.0"], false);
    rig.run(|host, output| bind::unbind(host, &back, output)).assert_done();
    assert_eq!(rig.driver("0000:62:00.0").as_deref(), Some("nvme"));
}

#[test]
fn names_that_are_no_drive() {
    let rig = Rig::new(Vec::new());
    let failure = rig.bind(&["NOBODY", "0000:99:00.0"]).failure();
    assert!(failure.contains("no drive has the serial number NOBODY"), "{failure}");
    assert!(failure.contains("there is no PCI function 0000:99:00.0"), "{failure}");
    // Part of a serial number does not match.
    let part = &serial(&rig, "0000:61:00.0")[..7];
    assert!(rig.bind(&[part]).failure().contains("no drive has the serial number"));
    // Two functions of one drive report the same serial number.
    let (a, b) = (kernel_name(&rig, "0000:61:00.0"), kernel_name(&rig, "0000:62:00.0"));
    for (address, name) in [("0000:61:00.0", a), ("0000:62:00.0", b)] {
        let file = format!("sys/bus/pci/devices/{address}/nvme/{name}/serial");
        rig.machine.write(&file, "TWIN\n").unwrap();
    }
    let failure = rig.bind(&["TWIN"]).failure();
    let expected = "TWIN is the serial number of 0000:61:00.0, 0000:62:00.0: name one address";
    assert!(failure.starts_with(expected), "{failure}");
}

/// A program holds a new drive open for a moment, as udev's workers do.
#[test]
fn who_only_looks_is_waited_for() {
    let mut rig = Rig::new(Vec::new());
    let disk = format!("/dev/{}n1", kernel_name(&rig, "0000:62:00.0"));
    let process = rig.machine.process(77, "(udev-worker)", "4026531841", &[&disk]);
    process.unwrap();
    let both = ["0000:61:00.0", "0000:62:00.0"];
    let failure = rig.bind(&both).failure();
    assert!(
        failure.contains("(udev-worker)") && failure.ends_with("nothing was done"),
        "{failure}"
    );

    // The wait is bounded: pauses of 250 ms.
    let pauses = rig.count_pauses(|_| {});
    let failure = rig.bind_within(2, &both).failure();
    assert!(failure.ends_with("nothing was done"), "{failure}");
    assert_eq!(pauses.get(), 8);

    let worker = rig.host.system.proc.join("77");
    let pauses = rig.count_pauses(move |count| {
        if count == 3 {
            std::fs::remove_dir_all(&worker).unwrap();
        }
    });
    let ran = rig.bind_within(2, &both);
    ran.assert_done();
    assert_eq!(ran.out, "0000:61:00.0: nvme -> vfio-pci\n0000:62:00.0: nvme -> vfio-pci\n");
    assert_eq!(pauses.get(), 3);
}

/// The kernel's driver interferes with one drive; the other is bound and reported once.
#[test]
fn a_drive_that_the_kernel_was_quicker_to_take_is_taken_again() {
    let mut rig = Rig::new(Vec::new());
    let kernel = Quick { kernel: rig.machine.kernel(), left: Cell::new(1) };
    rig.host.writes = Box::new(kernel);
    let pauses = rig.count_pauses(|_| {});
    let ran = rig.bind_within(1, &["0000:61:00.0", "0000:62:00.0"]);
    ran.assert_done();
    assert_eq!(ran.out, "0000:61:00.0: nvme -> vfio-pci\n0000:62:00.0: nvme -> vfio-pci\n");
    assert_eq!(pauses.get(), 1);

    let kernel = Quick { kernel: rig.machine.kernel(), left: Cell::new(1) };
    rig.run(|host, output| bind::unbind(host, &arguments(&["0000:62:00.0"], false), output))
        .assert_done();
    rig.host.writes = Box::new(kernel);
    let failure = rig.bind(&["0000:61:00.0", "0000:62:00.0"]).failure();
    assert!(failure.contains("vfio-pci did not bind the function, nvme has it"), "{failure}");
}

/// A kernel whose driver takes a drive a number of times before it can be bound to another one.
struct Quick {
    kernel: Kernel,
    left: Cell<u32>,
}

impl SysfsWriter for Quick {
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        if file.ends_with("drivers_probe") && text.contains("0000:62") && self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            let devices = file.with_file_name("devices");
            self.kernel.write(&devices.join(text).join("driver_override"), "\n")?;
        }
        self.kernel.write(file, text)
    }
}

#[test]
fn what_stays_is_not_waited_for() {
    let rig = Rig::new(Vec::new());
    let disk = kernel_name(&rig, "0000:62:00.0");
    rig.machine.process(77, "dd", "4026531841", &[&format!("/dev/{disk}n1")]).unwrap();
    rig.machine.mount(None, &format!("9 1 0:9 / /srv rw - btrfs /dev/{disk}n1 rw")).unwrap();
    // A pause would panic.
    let failure = rig.bind_within(60, &["0000:62:00.0"]).failure();
    assert!(failure.contains("is mounted at /srv"), "{failure}");
    assert!(rig.bind_within(60, &["0000:23:00.0"]).failure().contains("is no NVMe drive"));
}

fn kernel_name(rig: &Rig, address: &str) -> String {
    rig.host.system.function(address.parse().unwrap()).unwrap().controller.unwrap().name
}

fn serial(rig: &Rig, address: &str) -> String {
    let function = rig.host.system.function(address.parse().unwrap()).unwrap();
    function.controller.unwrap().serial.unwrap()
}
