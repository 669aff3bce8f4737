//! Tests of Format and Sanitize, on in-memory drives.

use nvmeof_fake_drive::FakeDrive;

use super::super::Failure;
use super::super::erase::{self, Action, Erase, FormatArgs, SanitizeArgs};
use super::{Ran, Rig, fake};

const AT: &str = "0000:61:00.0";

fn rig() -> (Rig, FakeDrive) {
    let fake = fake("OURS01");
    let rig = Rig::new(vec![(AT, fake.clone())]);
    rig.bind(&[AT]).assert_done();
    fake.write_media(1, 5, &[7; 512]).unwrap();
    (rig, fake)
}

fn by_size(block_size: u32) -> FormatArgs {
    FormatArgs {
        lbaf: None,
        block_size: Some(block_size),
        secure_erase: None,
        nsid: None,
        destroy_data: true,
        serial: "OURS01".to_owned(),
    }
}

fn format(rig: &Rig, args: &FormatArgs) -> Ran {
    rig.run(|host, output| erase::format(host, args, output))
}

fn sanitize(rig: &Rig, action: Action, destroy_data: bool) -> Ran {
    let args = SanitizeArgs { action, destroy_data, serial: "OURS01".to_owned() };
    rig.run(|host, output| erase::sanitize(host, &args, output))
}

#[test]
fn a_format_by_block_size() {
    let (rig, fake) = rig();
    let ran = format(&rig, &by_size(4096));
    ran.assert_done();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "format with LBA format 2 (4096 bytes), lost is:");
    assert!(lines[1].contains(" OURS01 ") && lines[1].ends_with("16.77 MB in blocks of 512 bytes"));
    assert_eq!(lines[2], "formatted; the namespace is now:");
    assert!(lines[3].ends_with("in blocks of 4096 bytes"), "{}", ran.out);
    assert!(ran.notes.ends_with("formatting: 100 %\n"), "{:?}", ran.notes);
    assert_eq!(fake.read_media(1, 0, 1).unwrap(), [0; 4096]);
}

#[test]
fn without_the_word_nothing_is_done() {
    let (rig, fake) = rig();
    let args = FormatArgs { destroy_data: false, lbaf: Some(1), block_size: None, ..by_size(512) };
    for ran in [format(&rig, &args), sanitize(&rig, Action::BlockErase, false)] {
        assert!(matches!(ran.result, Err(Failure::Usage(_))), "{:?}", ran.result);
        // The output shows the data that would be lost nevertheless.
        assert!(ran.out.contains("OURS01") && ran.out.contains("16.77 MB"), "{}", ran.out);
        assert_eq!(fake.read_media(1, 5, 1).unwrap(), [7; 512]);
    }
}

#[test]
fn a_sanitize() {
    let (rig, fake) = rig();
    let ran = sanitize(&rig, Action::BlockErase, true);
    ran.assert_done();
    assert!(ran.out.ends_with("sanitized\n"), "{}", ran.out);
    assert!(ran.notes.ends_with("sanitizing: 100 %\n"), "{:?}", ran.notes);
    assert_eq!(fake.read_media(1, 5, 1).unwrap(), [0; 512]);
}

#[test]
fn a_sanitize_that_fails() {
    let (rig, fake) = rig();
    fake.reconfigure(|config| config.sanitize_fails = true);
    let failure = sanitize(&rig, Action::Overwrite, true).failure();
    assert!(failure.contains("the drive reports a failure"), "{failure}");
}

#[test]
fn formats_the_drive_does_not_have() {
    let (rig, fake) = rig();
    let failure = format(&rig, &by_size(1024)).failure();
    let expected = "no LBA format has blocks of 1024 bytes without metadata; \
                    the drive has 0: 512 bytes; 1: 512 bytes; 2: 4096 bytes";
    assert_eq!(failure, expected);
    let args = FormatArgs { lbaf: Some(3), block_size: None, ..by_size(512) };
    assert!(format(&rig, &args).failure().starts_with("LBA format 3 is not one"));
    fake.change_namespace(1, |namespace| namespace.lbaf[2].ms = 8.into());
    let failure = format(&rig, &by_size(4096)).failure();
    assert!(failure.ends_with("2: 4096 bytes and 8 of metadata"), "{failure}");
    assert_eq!(fake.read_media(1, 5, 1).unwrap(), [7; 512]);
}

#[test]
fn the_fastest_format_of_a_size_is_taken() {
    let (rig, fake) = rig();
    fake.change_namespace(1, |namespace| namespace.lbaf[0].rp = 2);
    let ran = format(&rig, &by_size(512));
    ran.assert_done();
    assert!(ran.out.starts_with("format with LBA format 1 (512 bytes)"), "{}", ran.out);
}

#[test]
fn secure_erase_where_the_drive_has_it() {
    let (rig, _fake) = rig();
    let args = FormatArgs { secure_erase: Some(Erase::UserData), ..by_size(512) };
    format(&rig, &args).assert_done();
}

#[test]
fn only_a_drive_that_is_bound_free_and_named_exactly() {
    let (rig, fake) = rig();
    for serial in ["OURS0", "ours01", "0000:61:00.0", ""] {
        let args = FormatArgs { serial: serial.to_owned(), ..by_size(512) };
        let failure = format(&rig, &args).failure();
        assert!(failure.starts_with("no drive has the serial number"), "{failure}");
    }
    // A drive that the kernel's driver uses.
    let function = rig.host.system.function("0000:62:00.0".parse().unwrap()).unwrap();
    let serial = function.controller.unwrap().serial.unwrap();
    let args = FormatArgs { serial: serial.clone(), ..by_size(512) };
    let failure = format(&rig, &args).failure();
    assert!(failure.ends_with(&format!("`nvmeof-tgt drives bind {serial}`")), "{failure}");
    // A drive that another process has open cannot be queried, so it is not found.
    let group = rig.host.system.function(AT.parse().unwrap()).unwrap().iommu_group.unwrap();
    let node = format!("/dev/vfio/{group}");
    rig.machine.process(8, "nvmeof-tgt", "4026531841", &[&node]).unwrap();
    let failure = format(&rig, &by_size(512)).failure();
    assert!(failure.contains("in use by pid 8 (nvmeof-tgt)"), "{failure}");
    assert_eq!(fake.read_media(1, 5, 1).unwrap(), [7; 512]);
}

#[test]
fn two_drives_that_say_the_same() {
    let rig = Rig::new(vec![(AT, fake("OURS01")), ("0000:62:00.0", fake("OURS01"))]);
    rig.bind(&[AT, "0000:62:00.0"]).assert_done();
    let failure = format(&rig, &by_size(512)).failure();
    assert_eq!(failure, "OURS01 is the serial number of 0000:61:00.0, 0000:62:00.0");
}
