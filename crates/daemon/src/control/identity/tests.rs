//! Namespaces that hosts take for one disk, and namespaces that they do not.

use std::path::Path;
use std::time::Duration;

use nvmeof_core::block::{FileConfig, Latency};

use super::*;
use crate::config::Drive;
use crate::config_file::Machine;

const NQN: &str = "nqn.2026-11.org.example:a";

/// Returns a config of one subsystem with these namespaces: number, device, and more keys.
fn config_of(nqn: &str, namespaces: &[(u32, &str, &str)]) -> (Config, Document) {
    let mut text = String::from("[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\n");
    for (_, device, _) in namespaces {
        let ram = format!("[[device]]\nname = \"{device}\"\ntype = \"ram\"\nsize = 4096\n");
        text.push_str(&ram);
    }
    text.push_str(&format!("[[subsystem]]\nnqn = \"{nqn}\"\nallow-any-host = true\n"));
    for (nsid, device, keys) in namespaces {
        text.push_str(&format!(
            "[[subsystem.namespace]]\nnsid = {nsid}\ndevice = \"{device}\"\n{keys}\n"
        ));
    }
    (parse(&text), Document::from_toml(&text).unwrap())
}

fn parse(text: &str) -> Config {
    let machine = Machine { cpus: vec![0], open_files: 4096, memory: 8 << 30, open: Vec::new() };
    Config::parse("t.toml", text, &machine).unwrap_or_else(|error| panic!("{error}"))
}

/// A device: its name, its kind, and the identity of its medium.
type Device<'a> = (&'a str, DeviceKind, Option<&'a str>);

fn identities_of(config: &Config, devices: &[Device<'_>]) -> Identities {
    identities(config, &|name| {
        let (_, kind, medium) = devices.iter().find(|(known, ..)| *known == name)?;
        Some(DeviceFacts { kind, medium: *medium, origin: "" })
    })
}

fn key(nsid: u32) -> (Nqn, u32) {
    (NQN.parse().unwrap(), nsid)
}

/// Returns the UUID of namespace 1 on the device "d" among these.
fn uuid(devices: &[Device<'_>]) -> [u8; 16] {
    identities_of(&config_of(NQN, &[(1, "d", "")]).0, devices)[&key(1)].uuid
}

fn file(path: &str) -> DeviceKind {
    DeviceKind::File(FileConfig::new("d", Path::new(path), 512))
}

fn drive(pci: &str) -> DeviceKind {
    let io_timeout = Duration::from_secs(30);
    DeviceKind::Nvme(Drive { pci: pci.into(), nsid: 1, queue_depth: 64, io_timeout })
}

#[test]
fn a_medium_is_the_same_disk_wherever_it_is_and_whatever_it_is_called() {
    let one = uuid(&[("d", drive("0000:01:00.0"), Some("eui.01"))]);
    // In another slot; served by the kernel's driver; in another subsystem, by another name and
    // number.
    assert_eq!(one, uuid(&[("d", drive("0000:02:00.0"), Some("eui.01"))]));
    assert_eq!(one, uuid(&[("d", file("/dev/nvme0n1"), Some("eui.01"))]));
    let (elsewhere, _) = config_of("nqn.2026-11.org.example:b", &[(7, "other", "")]);
    let all = identities_of(&elsewhere, &[("other", drive("0000:02:00.0"), Some("eui.01"))]);
    assert!(all.values().all(|identity| identity.uuid == one));
    // Another drive in the same slot, under the same names.
    assert_ne!(one, uuid(&[("d", drive("0000:01:00.0"), Some("eui.02"))]));
    // A drive without an identity.
    assert_ne!(one, uuid(&[("d", drive("0000:01:00.0"), None)]));
}

#[test]
fn other_bytes_under_the_same_name_are_another_disk() {
    let kinds = [
        DeviceKind::Ram { size: 4096 },
        DeviceKind::Null { size: 4096 },
        file("/a"),
        file("/b"),
        drive("0000:01:00.0"),
        drive("0000:02:00.0"),
    ];
    let uuids: Vec<_> = kinds.iter().map(|kind| uuid(&[("d", kind.clone(), None)])).collect();
    for (at, one) in uuids.iter().enumerate() {
        assert_eq!(*one, uuid(&[("d", kinds[at].clone(), None)]), "the same after a restart");
        assert!(uuids[at + 1..].iter().all(|other| one != other), "{:?}", kinds[at]);
    }
    // A file keeps its UUID under another device name and size; memory has no identity but its
    // name.
    let larger = FileConfig { size: Some(8192), ..FileConfig::new("e", Path::new("/a"), 4096) };
    assert_eq!(uuids[2], uuid(&[("d", DeviceKind::File(larger), None)]));
    let (renamed, _) = config_of(NQN, &[(1, "e", "")]);
    let renamed = |kind: DeviceKind| identities_of(&renamed, &[("e", kind, None)])[&key(1)].uuid;
    assert_eq!(uuids[2], renamed(file("/a")));
    assert_ne!(uuids[0], renamed(DeviceKind::Ram { size: 4096 }));
}

#[test]
fn a_file_that_takes_anothers_place_is_another_disk() {
    let created = |origin: &str| {
        let (config, kind) = (config_of(NQN, &[(1, "d", "")]).0, file("/a"));
        let all = identities(&config, &|_| Some(DeviceFacts { kind: &kind, medium: None, origin }));
        (all[&key(1)].uuid, all[&key(1)].medium.clone())
    };
    assert_ne!(created(" born 0.000000001").0, created(" born 0.000000002").0);
    assert_ne!(created(" born 0.000000001").0, created("").0);
    assert_eq!(created(" born 0.000000001"), created(" born 0.000000001"));
    assert_eq!(created(" born 0.000000001").1, "file:/a born 0.000000001");
    assert_eq!(created("").1, "file:/a");
}

#[test]
fn what_is_saved_of_a_file_is_of_that_file() {
    let kind = file("/a");
    let on = |config: &Config, nanos: u64| {
        let origin = format!(" born 0.{nanos:09}");
        identities(config, &|_| Some(DeviceFacts { kind: &kind, medium: None, origin: &origin }))
    };
    let (config, document) = config_of(NQN, &[(1, "d", "")]);
    let before = on(&config, 1);
    let saved = with_uuids(&document, &before).to_toml().unwrap();
    assert!(saved.contains("medium = \"file:/a born 0.000000001\""), "{saved}");
    let config = parse(&saved);
    assert_eq!(on(&config, 1)[&key(1)].uuid, before[&key(1)].uuid);
    assert_eq!(identity_warnings(&Identities::new(), &on(&config, 1)), [""; 0]);
    // Another file at the path.
    let other = on(&config, 2);
    assert_ne!(other[&key(1)].uuid, before[&key(1)].uuid);
    let said = identity_warnings(&Identities::new(), &other);
    assert!(said.len() == 1 && said[0].contains("saved for file:/a born 0.000000001"), "{said:?}");
    // Its UUID applies again if the config names this file as its medium.
    let mine: String = saved
        .lines()
        .filter(|line| !line.starts_with("medium"))
        .fold(String::new(), |text, line| text + line + "\n");
    assert_eq!(on(&parse(&mine), 2)[&key(1)].uuid, before[&key(1)].uuid);
    // A `medium` without a creation time matches any file; a warning says so until the next save.
    let for_place = saved.replace(" born 0.000000001", "");
    let (config, document) = (parse(&for_place), Document::from_toml(&for_place).unwrap());
    let any = on(&config, 2);
    assert_eq!(any[&key(1)].uuid, before[&key(1)].uuid);
    let said = identity_warnings(&Identities::new(), &any);
    assert!(said.len() == 1 && said[0].contains("counts for any file"), "{said:?}");
    let saved = with_uuids(&document, &any).to_toml().unwrap();
    assert!(saved.contains("medium = \"file:/a born 0.000000002\""), "{saved}");
    let now = on(&parse(&saved), 2);
    assert_eq!(now[&key(1)].uuid, before[&key(1)].uuid);
    assert_eq!(identity_warnings(&any, &now), [""; 0]);
}

#[test]
fn what_stands_on_devices_is_known_by_them_and_by_its_part() {
    let with = |kind: DeviceKind, base: Option<&str>| {
        uuid(&[("d", kind, None), ("a", file("/a"), base), ("b", file("/b"), None)])
    };
    let split = |offset, size| DeviceKind::Split { base: "a".into(), offset, size };
    let stripe = |members: [&str; 2]| DeviceKind::Stripe {
        members: members.map(str::to_owned).to_vec(),
        chunk: 4096,
    };
    let delay = DeviceKind::Delay { base: "a".into(), latency: Latency::default(), seed: 0 };
    let kinds = [split(0, None), split(4096, None), stripe(["a", "b"]), stripe(["b", "a"]), delay];
    let uuids: Vec<_> = kinds.iter().map(|kind| with(kind.clone(), None)).collect();
    for (at, one) in uuids.iter().enumerate() {
        assert!(uuids[at + 1..].iter().all(|other| one != other), "{:?}", kinds[at]);
        assert_ne!(*one, uuid(&[("d", file("/a"), None)]), "{:?}", kinds[at]);
        assert_ne!(*one, with(kinds[at].clone(), Some("naa.5000")), "{:?}", kinds[at]);
    }
    assert_eq!(uuids[0], with(split(0, Some(8192)), None), "it grew");
}

#[test]
fn two_namespaces_on_one_medium_are_two_disks_and_it_is_said() {
    let (config, _) = config_of(NQN, &[(1, "a", ""), (2, "b", "")]);
    let (a, b) = (file("/dev/sda"), file("/dev/sdb"));
    let both = identities_of(&config, &[("a", a.clone(), Some("naa.5")), ("b", b, Some("naa.5"))]);
    assert_ne!(both[&key(1)].uuid, both[&key(2)].uuid);
    let said = identity_warnings(&Identities::new(), &both);
    assert!(said.len() == 2 && said[0].contains("another namespace is on naa.5"), "{said:?}");
    assert_eq!(identity_warnings(&both, &both), [""; 0], "once");
    // A delay on a disk is another disk, and both can be served.
    let delay = DeviceKind::Delay { base: "a".into(), latency: Latency::default(), seed: 0 };
    let both = identities_of(&config, &[("a", a, Some("naa.5")), ("b", delay, Some("naa.5"))]);
    assert_ne!(both[&key(1)].uuid, both[&key(2)].uuid);
    assert_eq!(identity_warnings(&Identities::new(), &both), [""; 0]);
}

#[test]
fn what_is_saved_counts_for_its_medium_alone() {
    let (config, document) = config_of(NQN, &[(1, "d", ""), (2, "e", "")]);
    let mut devices = [("d", file("/a"), None), ("e", drive("0000:01:00.0"), Some("eui.01"))];
    let before = identities_of(&config, &devices);
    let saved = with_uuids(&document, &before);
    let text = saved.to_toml().unwrap();
    assert!(text.contains(&show(&before[&key(1)].uuid)), "{text}");
    assert!(text.contains("medium = \"file:/a\"") && text.contains("\"eui.01\""), "{text}");
    let mut same = config;
    set_uuids(&mut same, &before);
    let config = parse(&text);
    assert_eq!(config.subsystems, same.subsystems, "what runs is what the file says");
    let after = identities_of(&config, &devices);
    let ids = |all: &Identities| -> Vec<_> {
        all.values().map(|one| (one.uuid, one.nguid, one.eui64)).collect()
    };
    assert_eq!(ids(&after), ids(&before), "hosts see no difference");
    assert_eq!(with_uuids(&saved, &after), saved);
    assert_eq!(identity_warnings(&before, &after), [""; 0]);
    // Other bytes behind the same names.
    devices[0].1 = file("/b");
    devices[1].2 = Some("eui.02");
    let others = identities_of(&config, &devices);
    for nsid in [1, 2] {
        assert_ne!(others[&key(nsid)].uuid, before[&key(nsid)].uuid);
        assert_ne!(others[&key(nsid)].nguid, before[&key(nsid)].nguid);
    }
    let said = identity_warnings(&after, &others);
    assert!(said[0].contains("is on file:/b, but its uuid was saved for file:/a"), "{said:?}");
    assert!(said[1].contains("is on eui.02"), "{said:?}");
    let saved = with_uuids(&saved, &others).to_toml().unwrap();
    assert!(saved.contains("medium = \"file:/b\"") && !saved.contains("file:/a"), "{saved}");
}

#[test]
fn what_somebody_wrote_counts_for_everything_and_it_is_said_when_the_bytes_change() {
    let uuid = "uuid = \"7a2f6a52-6b0e-4c8b-9d6e-0f3f5f0b7c11\"";
    let (config, document) = config_of(NQN, &[(1, "d", uuid)]);
    let before = identities_of(&config, &[("d", file("/a"), None)]);
    let after = identities_of(&config, &[("d", file("/b"), None)]);
    assert_eq!(before[&key(1)].uuid, after[&key(1)].uuid);
    let said = identity_warnings(&before, &after);
    assert!(said.len() == 1 && said[0].contains("was on file:/a, and keeps its uuid"), "{said:?}");
    assert_eq!(with_uuids(&document, &before), document, "it stays as it was written");
}

#[test]
fn identifiers_that_somebody_wrote_beside_the_uuid_are_told_of_when_the_bytes_change() {
    let keys = "nguid = \"00112233445566778899aabbccddeeff\"\neui64 = \"0011223344556677\"";
    let (config, document) = config_of(NQN, &[(1, "d", keys)]);
    let on = |config: &Config, path: &str| identities_of(config, &[("d", file(path), None)]);
    let (before, after) = (on(&config, "/a"), on(&config, "/b"));
    assert_ne!(before[&key(1)].uuid, after[&key(1)].uuid);
    let said = identity_warnings(&before, &after);
    assert!(said.len() == 1 && said[0].contains("keeps its nguid and eui64"), "{said:?}");
    assert_eq!(identity_warnings(&after, &after), [""; 0], "once");
    // At a start, too, the saved medium shows that the bytes have changed.
    let saved = parse(&with_uuids(&document, &before).to_toml().unwrap());
    let said = identity_warnings(&Identities::new(), &on(&saved, "/b"));
    assert!(said.len() == 2 && said[1].contains("its nguid and eui64 are as"), "{said:?}");
    assert_eq!(identity_warnings(&Identities::new(), &on(&saved, "/a")), [""; 0]);
}

#[test]
fn two_namespaces_at_one_place_are_two_disks_and_the_first_stays_what_it_was() {
    let both = [("a", file("/a"), None), ("b", file("/a"), None)];
    let alone = identities_of(&config_of(NQN, &[(1, "a", "")]).0, &both);
    let (config, document) = config_of(NQN, &[(1, "a", ""), (2, "b", "")]);
    let all = identities_of(&config, &both);
    assert_eq!(all[&key(1)], alone[&key(1)]);
    assert_ne!(all[&key(1)].uuid, all[&key(2)].uuid);
    let said = identity_warnings(&alone, &all);
    assert!(said.len() == 1 && said[0].contains("namespace 2"), "{said:?}");
    // Once saved, the UUIDs stay, even if new namespaces precede them.
    let saved = parse(&with_uuids(&document, &all).to_toml().unwrap());
    assert_eq!(identities_of(&saved, &both)[&key(2)].uuid, all[&key(2)].uuid);
    let uuid = show(&alone[&key(1)].uuid);
    let later = format!("uuid = \"{uuid}\"\nmedium = \"file:/a\"");
    let (config, _) = config_of(NQN, &[(1, "a", ""), (2, "b", &later)]);
    let all = identities_of(&config, &both);
    assert_eq!(all[&key(2)].uuid, alone[&key(1)].uuid);
    assert_ne!(all[&key(1)].uuid, all[&key(2)].uuid);
}
