//! Tests of configs that are invalid because of several lines, or as a whole.

use super::{LEAST, parse};

#[test]
fn a_config_without_listeners_is_refused_as_a_whole() {
    let error = parse("log = \"info\"\n").unwrap_err().to_string();
    assert!(error.starts_with("t.toml: listener: there is none"), "{error}");
    let error = parse("").unwrap_err().to_string();
    assert!(error.contains("[[listener]]"), "{error}");
}

#[test]
fn a_namespace_without_any_device_is_told_to_add_one() {
    let text = format!(
        "{LEAST}[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
         [[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\n"
    );
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.starts_with("t.toml:9:10: namespace.device: there is no device"), "{error}");
    assert!(error.contains("add a [[device]] of that name"), "{error}");
}

#[test]
fn a_subsystem_has_at_most_1024_namespaces() {
    use std::fmt::Write as _;
    let config = |count: u32| {
        let mut text = LEAST.to_owned();
        for number in 0..count {
            writeln!(text, "[[device]]\nname = \"d{number}\"\ntype = \"null\"\nsize = 512")
                .unwrap();
        }
        text += "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n";
        for number in 0..count {
            let nsid = u32::MAX - 1 - number;
            let key = "[[subsystem.namespace]]";
            writeln!(text, "{key}\nnsid = {nsid}\ndevice = \"d{number}\"").unwrap();
        }
        parse(&text)
    };
    config(1024).unwrap();
    let error = config(1025).unwrap_err().to_string();
    assert!(error.contains("subsystem.namespace: the subsystem has 1025 namespaces"), "{error}");
}

#[test]
fn two_namespaces_do_not_have_the_same_identifier() {
    let text = format!(
        "{LEAST}[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 512\n\
         [[device]]\nname = \"b\"\ntype = \"ram\"\nsize = 512\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
         [[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\neui64 = \"0123456789abcdef\"\n\
         [[subsystem.namespace]]\nnsid = 2\ndevice = \"b\"\neui64 = \"01-23-45-67-89-AB-CD-EF\"\n"
    );
    let error = parse(&text).unwrap_err().to_string();
    let what = "t.toml:22:9: namespace.eui64: the namespace of line 18 has the same";
    assert!(error.starts_with(what), "{error}");
}

#[test]
fn two_devices_do_not_have_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, [0; 4096]).unwrap();
    std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
    let devices = |read_only: bool| {
        let device = |name: &str| {
            format!(
                "[[device]]\nname = \"{name}\"\ntype = \"file\"\npath = \"{}/{name}\"\n\
                 read-only = {read_only}\n",
                folder.path().display()
            )
        };
        parse(&format!("{LEAST}{}{}", device("disk"), device("link")))
    };
    let error = devices(false).unwrap_err().to_string();
    assert!(error.starts_with("t.toml:12:8: device.path: the device of line 7 has"), "{error}");
    devices(true).unwrap();
}

#[test]
fn delays_stand_on_one_another_only_so_high() {
    let stack = |count: usize| {
        let mut text = format!("{LEAST}[[device]]\nname = \"d1\"\ntype = \"null\"\nsize = 512\n");
        for number in 2..=count {
            text += &format!(
                "[[device]]\nname = \"d{number}\"\ntype = \"delay\"\nbase = \"d{}\"\n\
                 read-latency = \"1ms\"\n",
                number - 1
            );
        }
        parse(&text)
    };
    stack(8).unwrap();
    let error = stack(10).unwrap_err().to_string();
    assert!(error.starts_with("t.toml:46:8: device.base: more than 8 devices"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn a_device_on_a_bad_base_is_no_error_of_its_own() {
    let text = format!(
        "{LEAST}[[device]]\nname = \"a\"\ntype = \"ram\"\n\
         [[device]]\nname = \"b\"\ntype = \"delay\"\nbase = \"a\"\nread-latency = \"1ms\"\n"
    );
    let error = parse(&text).unwrap_err();
    let keys: Vec<&str> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["device.size"]);
}

#[test]
fn a_file_of_another_size_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [0; 4096]).unwrap();
    let text = format!(
        "{LEAST}[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"{}\"\nsize = 8192\n",
        file.path().display()
    );
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.starts_with("t.toml:7:8: device.path: "), "{error}");
    assert!(error.contains("the file has 4096 bytes but 8192 are configured"), "{error}");
}

#[test]
fn everything_wrong_is_told_at_once_in_the_order_of_the_file() {
    let text = "log = \"loud\"\n[limits]\nio-queues = 0\n[[listener]]\ntype = \"tcp\"\n\
                address = \"x\"\n[[device]]\nname = \"a\"\ntype = \"ram\"\n";
    let error = parse(text).unwrap_err();
    let keys: Vec<&str> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["log", "limits.io-queues", "listener.address", "device.size"]);
    assert_eq!(error.to_string().lines().count(), 4);
}

#[test]
fn columns_count_characters() {
    let error = parse("log = \"grün\" # größer\nbusy-poll = 1\n").unwrap_err().to_string();
    assert!(error.starts_with("t.toml:2:13: busy-poll"), "{error}");
    let text = format!("{LEAST}[[subsystem]]\nhosts = [\"ä\", \"\"]\n");
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.contains("t.toml:5:15: subsystem.hosts: \"\""), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let missing = std::path::Path::new("/nowhere/target.toml");
    let error = super::Config::load(missing).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/target.toml: cannot read the file: "), "{error}");
}

/// Any content is either accepted, or rejected with a reason and a place.
#[test]
fn a_config_cut_short_or_garbled_is_refused_with_a_reason() {
    let example = include_str!("../../../../../configs/target.toml");
    let lines = example.lines().count();
    let check = |text: &str| {
        let Err(error) = parse(text) else { return };
        assert!(!error.problems.is_empty(), "{text}");
        for problem in &error.problems {
            assert!(!problem.what.is_empty());
            let (line, column) = problem.position.unwrap_or((1, 1));
            assert!((1..=lines + 1).contains(&line) && column >= 1, "{problem}");
        }
    };
    let plain: String = example
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    for end in 0..plain.len() {
        check(&plain[..end]);
        for wrong in ["\"", "=", "[", "ä", "\n", "0"] {
            check(&format!("{}{wrong}{}", &plain[..end], &plain[end + 1..]));
        }
    }
}
