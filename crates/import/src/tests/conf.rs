//! Legacy configs of SPDK.

use std::collections::BTreeSet;

use nvmeof_tgt::config::{Config, DeviceKind};
use proptest::prelude::*;

use super::{Files, has, machine, show, taken};
use crate::spdk_conf::keys;
use crate::{ImportError, ImportSource, NoDisks, NoteKind, import};

const CONF: &str = include_str!("fixtures/legacy.conf");

/// The least that is a config.
pub(super) const MINIMAL: &str = "\
[Transport]
  Type TCP
[Malloc]
  NumberOfLuns 1
  LunSizeInMB 16
[Subsystem1]
  NQN nqn.2016-06.io.spdk:a
  SN S1
  AllowAnyHost Yes
  Listen TCP 127.0.0.1:4420
  Namespace Malloc0
";

#[test]
fn a_legacy_config_is_taken() {
    let files = Files::new();
    let imported = import(&files.fill(CONF), &NoDisks).unwrap();
    assert_eq!(imported.source, ImportSource::Spdk);
    let config = taken(&imported.toml);
    assert_eq!(config.reactors, [0, 1, 2, 3]);
    assert_eq!((config.limits.queue_depth, config.limits.io_queues), (256, 63));
    assert_eq!(config.limits.max_transfer, 128 << 10);
    let [first, second] = config.subsystems.as_slice() else { panic!("{:?}", config.subsystems) };
    assert_eq!((first.serial.as_str(), first.model.as_str()), ("SPDK1", "A model"));
    assert_eq!(first.hosts.as_ref().map(BTreeSet::len), Some(1));
    let nsids: Vec<u32> = first.namespaces.iter().map(|one| one.nsid).collect();
    assert_eq!(nsids, [1, 16, 2, 3]);
    assert_eq!(first.namespaces[1].uuid.unwrap()[..2], [0xd5, 0x92]);
    let device = |at: usize| &config.device(&first.namespaces[at].device).unwrap().kind;
    let DeviceKind::Nvme(drive) = device(0) else { panic!("{:?}", device(0)) };
    assert_eq!((drive.pci.as_str(), drive.io_timeout.as_secs()), ("0000:05:00.0", 20));
    assert!(matches!(device(1), DeviceKind::Ram { size } if *size == 64 << 20));
    // Split of a null device of 8 GiB, without a size.
    let split = |kind: &DeviceKind| match kind {
        DeviceKind::Split { offset, size, .. } => (*offset, size.unwrap_or(0)),
        other => panic!("{other:?}"),
    };
    assert_eq!(split(device(2)), (4 << 30, 4 << 30));
    assert!(matches!(device(3), DeviceKind::Stripe { chunk, .. } if *chunk == 64 << 10));
    assert!(second.hosts.is_none());
    assert!(matches!(
        config.device(&second.namespaces[0].device).unwrap().kind,
        DeviceKind::File(_)
    ));
    assert_eq!(second.namespaces[0].limits.iops, Some(5000));
    // [Subsystem2] has no Listen: hosts reach it at every listener.
    let served: Vec<_> = config.listeners.iter().map(|one| one.subsystems.is_none()).collect();
    assert_eq!(served, [true, true]);
}

#[test]
fn the_notes_of_a_legacy_config_name_its_lines() {
    let files = Files::new();
    let notes = import(&files.fill(CONF), &NoDisks).unwrap().notes;
    let line = |part: &str| CONF.lines().position(|line| line.contains(part)).unwrap() + 1;
    for (text, place, part) in [
        ("Unknown 7", "[Transport] Unknown", "no counterpart (7)"),
        ("traddr:192.0.2.8", "[Nvme] TransportID", "elsewhere"),
        ("HotplugEnable", "[Nvme] HotplugEnable", "plugged in later"),
        ("Gone0", "[Subsystem1] Namespace", "\"Gone0\" is not created"),
        ("[Pmem]", "[Pmem]", "no such device"),
        ("[New]", "[New]", "no counterpart"),
    ] {
        let path = format!("line {} ({})", line(text), place);
        let path =
            if place.contains(' ') { path } else { format!("line {} ({place})", line(text)) };
        has(&notes, NoteKind::Unsupported, &path, part);
    }
    let pool = format!("line {} ([Transport] NumSharedBuffers)", line("NumSharedBuffers"));
    has(&notes, NoteKind::Converted, &pool, "as a comment");
    let first = format!("line {} ([Transport] MaxIOSize)", line("MaxIOSize 65536"));
    has(&notes, NoteKind::Converted, &first, "first line");
    assert!(notes.iter().all(|note| !note.path.contains('$')), "{}", show(&notes));
}

/// Without its comment signs, the pacing of io_pacing is one that the daemon takes.
#[test]
fn the_pacing_of_the_prototype_is_an_alternative() {
    let files = Files::new();
    let toml = import(&files.fill(CONF), &NoDisks).unwrap().toml;
    let at = toml.find("# [pacing]").unwrap_or_else(|| panic!("{toml}"));
    let section: String = toml[at..].lines().map(|line| format!("{}\n", &line[2..])).collect();
    assert!(section.contains("buffers = 96\ncache = 6 "), "{section}");
    // 5700 ns of each core are two commands of 128 KiB in 11400 ns / 4 reactors.
    assert!(section.contains("period = \"2850ns\"") && section.contains("credit = 262144"));
    taken(&format!("{}{section}", &toml[..at]));
}

#[test]
fn faults_of_a_legacy_config_have_their_lines() {
    for (text, part) in [
        ("[Transport\n", "line 1: a section has no \"]\""),
        ("# c\n[Nvme]\n  TransportID \"trtype:PCIe\n", "line 3: a quote has no end"),
        ("[Subsystem1]\n SN 7\n", "line 1: [Subsystem1] has no NQN"),
        ("[Subsystem1]\n NQN a\n Listen TCP\n", "line 3: Listen needs"),
        ("[Nvme]\n TransportID x\n[Subsystem1]\n NQN a\n", "line 2: TransportID needs"),
        ("[Null]\n Dev N x\n[Subsystem1]\n NQN a\n", "line 2: a value of Dev"),
        ("[Null]\n Dev N\n[Subsystem1]\n NQN a\n", "line 2: [Null] Dev has too few"),
        ("[listener]\ntype = \"tcp\"\n", "none is [Subsystem1]"),
        (
            "[Transport]\n Type TCP\n MaxQueueDepth many\n[Subsystem1]\n NQN a\n",
            "line 3 ([Transport] MaxQueueDepth): \"many\" is not valid",
        ),
    ] {
        // A first line without its bracket is JSON with a fault.
        let error = import(text, &NoDisks).expect_err(text);
        match error {
            ImportError::NotJson { .. } => assert!(text.starts_with("[Transport\n"), "{text}"),
            error => assert!(error.to_string().contains(part), "{text}: {error}"),
        }
    }
    let old =
        "[Nvmf]\n MaxQueuesPerSession 4 \\\n \n[Subsystem1]\n NQN a\n Listen TCP [::1]:4430\n";
    let imported = import(old, &NoDisks).unwrap();
    assert!(imported.toml.contains("io-queues = 3") && imported.toml.contains("port = 4430"));
}

/// Every key of the rules has an effect on the calls, or the table has its reason.
#[test]
fn every_rule_of_a_legacy_config_has_an_effect() {
    let base = import(MINIMAL, &NoDisks).unwrap();
    let differs = |section: &str, key: &str, value: &str| {
        let text = MINIMAL.replace(section, &format!("{section}\n  {key} {value}"));
        let text =
            if text == MINIMAL { format!("{MINIMAL}{section}\n  {key} {value}\n") } else { text };
        import(&text, &NoDisks) != Ok(base.clone())
    };
    let without_effect = ["max_srq_depth", "no_srq", "max_namespaces", "core", "mode"];
    let drive = ["nvme_adminq_poll_period_us", "nvme_ioq_poll_period_us", "delay_cmd_submit"];
    for (section, rules, value) in [
        ("[Transport]", keys::TRANSPORT, "300"),
        ("[Malloc]", keys::MALLOC, "4096"),
        ("[Global]", keys::GLOBAL, "0x3"),
        ("[Subsystem1]", keys::SUBSYSTEM, "nqn.2016-06.io.spdk:b"),
        ("[Nvme]", keys::NVME, "7000000"),
    ] {
        for rule in rules {
            let value = if rule.form == keys::Form::Flag { "No" } else { value };
            let flag = ["DifInsertOrStrip", "HotplugEnable", "ResetControllerOnTimeout"];
            let value = if flag.contains(&rule.key) { "Yes" } else { value };
            let exempt = without_effect.contains(&rule.param)
                || drive.contains(&rule.param)
                // These depend on another key.
                || ["period_us", "action_on_timeout", "reset", "io_unit_size", "buf_cache_size"].contains(&rule.param);
            assert!(exempt || differs(section, rule.key, value), "{section} {}", rule.key);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any line in the place of another gives an error with a line, or a config that the daemon
    /// accepts.
    #[test]
    fn one_odd_line_makes_an_error_or_a_config(
        at in any::<prop::sample::Index>(),
        value in prop_oneof![
            Just(String::new()),
            Just("[Subsystem9]".to_owned()),
            Just("\"".to_owned()),
            any::<u64>().prop_map(|number| number.to_string()),
            "\\PC{0,40}",
        ],
        keeps_key in any::<bool>(),
    ) {
        let files = Files::new();
        let text = files.fill(CONF);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let line = at.get_mut(&mut lines);
        let key = line.split_whitespace().next().filter(|_| keeps_key).unwrap_or_default();
        *line = format!("  {key} {value}");
        match import(&lines.join("\n"), &NoDisks) {
            Ok(imported) => {
                let refused = Config::parse("t", &imported.toml, &machine()).err();
                let text = refused.map(|error| error.to_string()).unwrap_or_default();
                // A missing file and the number of CPUs depend on the machine.
                let is_foreign = |line: &str| {
                    ["device.path", "reactors", "more problems"].iter().any(|part| line.contains(part))
                };
                let wrong: Vec<&str> =
                    text.lines().filter(|line| !line.is_empty() && !is_foreign(line)).collect();
                prop_assert!(wrong.is_empty(), "{lines:?}: {wrong:?}\n{}", imported.toml);
            }
            Err(ImportError::Wrong { path, .. }) => prop_assert!(!path.contains('$'), "{path}"),
            Err(ImportError::NotConf { line, .. }) => prop_assert!(line > 0),
            Err(ImportError::NeitherFormat { .. } | ImportError::NotJson { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
