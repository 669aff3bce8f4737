//! Tests of valid configs and of warnings.

use std::time::Duration;

use nvmeof_core::block::{Direct, FileConfig, Latency};
use nvmeof_pacing::PolicyConfig;

use super::{LEAST, machine, parse};
use crate::config::{Config, DeviceKind, Fabric, LimitSettings, LogFormat, LogLevel};
use crate::config_file::Machine;
use crate::limits::Limits;

#[test]
fn the_least_config_has_the_defaults() {
    let config = parse(LEAST).unwrap();
    assert_eq!(config.reactors, [0, 1, 3]);
    assert!(!config.busy_poll);
    assert_eq!(config.drain_timeout, Duration::from_secs(10));
    assert_eq!((config.log, config.log_format), (LogLevel::Info, LogFormat::Text));
    assert_eq!(config.limits, LimitSettings::default());
    assert_eq!(Limits::of(&config).needs.reactors, 3);
    assert_eq!(config.pacing, PolicyConfig::Adaptive);
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.listeners[0].fabric, Fabric::Tcp);
    assert_eq!(config.listeners[0].port, 4420);
    assert!(config.devices.is_empty() && config.referrals.is_empty());
}

/// Calls of `[rpc]` can add the first listener.
#[test]
fn a_config_with_rpc_needs_no_listener() {
    let config = parse("[rpc]\n").unwrap();
    assert!(config.listeners.is_empty());
    assert!(config.warnings.iter().any(|one| one.key == "listener"), "{:?}", config.warnings);
    let rpc = config.rpc.unwrap();
    assert_eq!((rpc.socket.to_str(), rpc.mode), (Some("/var/tmp/spdk.sock"), 0o660));
    assert!(parse("").is_err());
}

#[test]
fn listeners_serve_what_they_list() {
    let text = r#"
        [discovery]
        nqn = "finder"
        restricted = true
        mdns = true
        [[listener]]
        type = "tcp"
        address = "::1"
        subsystems = []
        fold-responses = "if-disabled"
        [[listener]]
        type = "tcp"
        address = "::"
        subsystems = ["nqn.storage-1-6f5902ac", "2b1a44e0-2f44-4f7e-b0a5-1f9f3c1d7a10"]
        [[subsystem]]
        nqn = "nqn.storage-1-6f5902ac"
        hosts = ["nqn.2014-08.org.nvmexpress:NVMf:uuid:07e4a0a641d54bff96b28a173dcfb6b5"]
        [[subsystem]]
        nqn = "2b1a44e0-2f44-4f7e-b0a5-1f9f3c1d7a10"
        allow-any-host = true
    "#;
    let config = parse(text).unwrap();
    assert_eq!(config.discovery.nqn.as_ref().map(|nqn| nqn.as_str()), Some("finder"));
    assert!(config.discovery.is_restricted && config.discovery.is_announced);
    let [discovery, both] = &*config.listeners else { panic!("{:?}", config.listeners) };
    assert_eq!((discovery.port, both.port), (8009, 4420));
    assert_eq!((discovery.folds_always, both.folds_always), (false, true));
    let served =
        |listener: &crate::config::Listener| listener.subsystems.clone().map(|it| it.len());
    assert_eq!((served(discovery), served(both)), (Some(0), Some(2)));
}

#[test]
fn the_ipv6_wildcard_leaves_ipv4_to_a_listener_of_its_port() {
    let v6_only = |others: &str| {
        let text = format!("[[listener]]\ntype = \"tcp\"\naddress = \"::\"\n{others}");
        parse(&text).unwrap().listeners[0].v6_only
    };
    assert!(!v6_only(""));
    assert!(!v6_only("[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\nport = 4421\n"));
    assert!(!v6_only("[[listener]]\ntype = \"rdma\"\naddress = \"127.0.0.1\"\n"));
    let ours = "[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\n";
    assert!(v6_only(ours));
    // Every other IPv4 address is lost.
    let text = format!("[[listener]]\ntype = \"tcp\"\naddress = \"::\"\n{ours}");
    let warnings = parse(&text).unwrap().warnings;
    let found = warnings.iter().any(|one| one.to_string().contains("accepts no IPv4 host"));
    assert!(found, "{warnings:?}");
    let text = text.replace("127.0.0.1", "0.0.0.0");
    let warnings = parse(&text).unwrap().warnings;
    assert!(!warnings.iter().any(|one| one.to_string().contains("accepts no IPv4 host")));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn what_is_written_is_what_counts() {
    let text = r#"
        reactors = "1,3"
        busy-poll = true
        drain-timeout = "500ms"
        log = "debug"
        log-format = "json"
        [limits]
        connections = 10
        io-queues = 4
        queue-depth = 64
        max-transfer = "256k"
        in-capsule = 0
        buffer-memory = "64MiB"
        keep-alive-min = "5s"
        connect-timeout = "3s"
        pdu-timeout = "1min"
        [pacing]
        policy = "buffer-credit"
        budget = "12MiB"
        [[listener]]
        type = "tcp"
        address = "[::]"
        port = 0
        [[listener]]
        type = "tcp"
        address = "::"
        port = 0
        [[device]]
        name = "big"
        type = "null"
        size = "16TiB"
        block-size = 4096
        [[device]]
        name = "mem"
        type = "ram"
        size = 1048576
        [[subsystem]]
        nqn = "nqn.2026-11.org.example:x"
        hosts = ["nqn.2026-11.org.example:h"]
        serial = "S 1"
        model = "M"
        cntlid-min = 5
        cntlid-max = 6
        [[subsystem.namespace]]
        nsid = 7
        device = "mem"
        weight = 4
        uuid = "7A2F6A52-6b0e-4c8b-9d6e-0f3f5f0b7c11"
        nguid = "0123456789abcdef0123456789abcdef"
        eui64 = "01:23:45:67:89:ab:cd:ef"
        [[subsystem]]
        nqn = "nqn.2026-11.org.example:y"
        allow-any-host = true
        [[subsystem.namespace]]
        nsid = 7
        device = "big"
        [[referral]]
        type = "rdma"
        address = "192.0.2.1"
    "#;
    let config = parse(text).unwrap();
    assert_eq!(config.warnings, []);
    assert_eq!(config.reactors, [1, 3]);
    assert!(config.busy_poll);
    assert_eq!(config.drain_timeout, Duration::from_millis(500));
    assert_eq!((config.log, config.log_format), (LogLevel::Debug, LogFormat::Json));
    let settings = config.limits;
    assert_eq!((settings.connections, settings.io_queues, settings.queue_depth), (10, 4, 64));
    assert_eq!((settings.max_transfer, settings.in_capsule), (256 << 10, 0));
    assert_eq!(settings.buffer_memory, 64 << 20);
    assert_eq!(settings.keep_alive_min, Duration::from_secs(5));
    assert_eq!(settings.connect_timeout, Duration::from_secs(3));
    assert_eq!(settings.pdu_timeout, Duration::from_secs(60));
    assert_eq!(Limits::of(&config).mdts, 6);
    assert_eq!(config.pacing, PolicyConfig::BufferCredit { budget: 12 << 20 });
    assert_eq!(config.listeners.len(), 2);
    let big = config.device("big").unwrap();
    assert_eq!((big.block_size, &big.kind), (Some(4096), &DeviceKind::Null { size: 16 << 40 }));
    assert_eq!(config.device("mem").unwrap().kind, DeviceKind::Ram { size: 1 << 20 });
    let [x, y] = &config.subsystems[..] else { panic!("two subsystems") };
    assert_eq!(x.hosts.as_ref().unwrap().len(), 1);
    assert_eq!((x.serial.as_str(), x.model.as_str()), ("S 1", "M"));
    assert_eq!((x.cntlid_min, x.cntlid_max), (5, 6));
    assert_eq!((x.namespaces[0].weight, y.namespaces[0].weight), (4, 1));
    assert_eq!(x.namespaces[0].uuid.unwrap()[..4], [0x7a, 0x2f, 0x6a, 0x52]);
    assert_eq!(x.namespaces[0].nguid.unwrap()[..4], [0x01, 0x23, 0x45, 0x67]);
    let eui64 = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    assert_eq!((x.namespaces[0].eui64, &x.namespaces[0].medium), (Some(eui64), &None));
    assert!(y.hosts.is_none());
    assert_eq!((y.cntlid_min, y.cntlid_max), (1, 65519));
    assert_eq!((y.serial.len(), y.namespaces[0].nsid), (20, 7));
    assert_eq!(y.namespaces[0].uuid, None, "it follows the medium");
    assert_eq!(config.referrals[0].port, 8009);
    assert!(config.referrals[0].nqn.is_discovery());
}

#[test]
fn a_subsystem_does_not_depend_on_what_else_is_there() {
    let subsystem = |extra: &str| {
        let text = format!(
            "{LEAST}{extra}[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 512\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
             [[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\n"
        );
        parse(&text).unwrap().subsystems.remove(0)
    };
    let alone = subsystem("");
    assert_eq!(alone, subsystem("[[device]]\nname = \"b\"\ntype = \"null\"\nsize = 512\n"));
}

#[test]
fn a_file_device_takes_what_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [0; 8192]).unwrap();
    let path = file.path().display();
    let text = format!(
        "{LEAST}[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"{path}\"\n\
         block-size = 4096\nread-only = true\ndirect = \"off\"\n"
    );
    let config = parse(&text).unwrap();
    let DeviceKind::File(config) = &config.devices[0].kind else { panic!("a file") };
    assert_eq!((config.name.as_str(), config.path.as_path()), ("a", file.path()));
    assert_eq!((config.size, config.block_size), (None, 4096));
    assert_eq!((config.read_only, config.direct), (true, Direct::Never));
}

#[test]
fn a_file_that_is_open_is_not_looked_at() {
    let entry = |name: &str, more: &str| {
        format!(
            "{LEAST}[[device]]\nname = \"{name}\"\ntype = \"file\"\npath = \"/nowhere/at/all\"\n{more}"
        )
    };
    let open = vec![FileConfig::new("a", "/nowhere/at/all", 512)];
    let machine = Machine { open, ..machine() };
    let parse = |text: &str| Config::parse("t.toml", text, &machine);
    for text in [entry("a", ""), entry("a", "size = 4096\n")] {
        let warnings = parse(&text).unwrap().warnings;
        assert!(warnings[0].to_string().contains("file no longer exists"), "{warnings:?}");
    }
    for text in [entry("b", ""), entry("a", "read-only = true\n")] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all: file does not exist;"), "{error}");
    }
}

#[test]
fn delays_stand_behind_their_bases_and_have_their_blocks() {
    let text = format!(
        "{LEAST}[[device]]\nname = \"top\"\ntype = \"delay\"\nbase = \"slow\"\nread-latency = \"1ms\"\n\
         [[device]]\nname = \"slow\"\ntype = \"delay\"\nbase = \"ram\"\nread-latency = \"85us\"\n\
         write-latency = \"2s\"\n\
         [[device]]\nname = \"ram\"\ntype = \"ram\"\nsize = 4096\nblock-size = 4096\n\
         [[device]]\nname = \"other\"\ntype = \"delay\"\nbase = \"ram\"\nwrite-latency = \"1us\"\n"
    );
    let config = parse(&text).unwrap();
    let names: Vec<&str> = config.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["ram", "other", "slow", "top"]);
    assert!(config.devices.iter().all(|device| device.block_size == Some(4096)));
    let kind = |base: &str, read, write| {
        let (read, write) = (Duration::from_micros(read), Duration::from_micros(write));
        DeviceKind::Delay {
            base: base.into(),
            latency: Latency { read, write, ..Latency::default() },
            seed: 0,
        }
    };
    assert_eq!(config.device("top").unwrap().kind, kind("slow", 1000, 0));
    assert_eq!(config.device("slow").unwrap().kind, kind("ram", 85, 2_000_000));
    assert_eq!(config.device("other").unwrap().kind, kind("ram", 0, 1));
    // Each layer opens its own queue, down to the memory.
    assert_eq!(Limits::of(&config).needs.queue_files, 4);
}

#[test]
fn checking_creates_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let text = format!(
        "{LEAST}[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"{}\"\ncreate = true\n\
         size = \"1MiB\"\n",
        path.display()
    );
    let config = parse(&text).unwrap();
    let DeviceKind::File(config) = &config.devices[0].kind else { panic!("a file") };
    assert_eq!(config.size, Some(1 << 20));
    assert!(!path.exists());
}

#[test]
fn what_is_doubtful_is_a_warning_with_its_line() {
    let warning = |text: &str| {
        let warnings = parse(&format!("{LEAST}{text}")).unwrap().warnings;
        warnings.iter().map(|warning| format!("{warning}\n")).collect::<String>()
    };
    let unused = warning("[[device]]\nname = \"a\"\ntype = \"null\"\nsize = 512\n");
    assert!(unused.contains("t.toml:5:8: device.name: no namespace uses"), "{unused}");
    let base = "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = 512\n";
    let delay =
        warning(&format!("{base}[[device]]\nname = \"b\"\ntype = \"delay\"\nbase = \"a\"\n"));
    assert!(!delay.contains("uses device \"a\""), "a base is used: {delay}");
    assert!(delay.contains("t.toml:9:8: device.name: no namespace uses device \"b\""), "{delay}");
    assert!(delay.contains("t.toml:8:1: device.read-latency: no latency is set"), "{delay}");
    let nobody = warning("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nhosts = []\n");
    assert!(nobody.contains("t.toml:6:9: subsystem.hosts: the list is empty"), "{nobody}");
    assert!(warning("").contains("subsystem: there is none"));
    let memory = warning("[limits]\nbuffer-memory = \"9GiB\"\n");
    assert!(memory.contains("t.toml:5:17: limits: buffers may grow to"), "{memory}");
}
