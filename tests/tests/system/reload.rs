//! SIGHUP: changed objects are added or removed with the events that hosts expect; the rest
//! continues.

use nvmeof_initiator::{Address, DiscoveryLog, Fabric, IoKind, discover};
use nvmeof_tests::config::{
    NQN, OTHER_NQN, listener, listener_at, ram, small, subsystem, subsystem_for,
};
use nvmeof_tests::events::{ask_for_events, assert_event, changed_namespaces, request_event};
use nvmeof_tests::{Daemon, Host, Pdu, Raw, Worker, options};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::{DiscoveryHeader, GetLogPage, Lid};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Nqn, Status};

/// Returns namespaces 1 and those given, of 64 MiB each.
fn with_namespaces(nsids: &[u32]) -> String {
    let mut text = listener("127.0.0.1");
    let names: Vec<(u32, String)> = nsids.iter().map(|n| (*n, format!("ram{n}"))).collect();
    for (_, name) in &names {
        text += &ram(name, "64MiB", 512);
    }
    let namespaces: Vec<(u32, &str)> = names.iter().map(|(n, name)| (*n, name.as_str())).collect();
    text + &subsystem(NQN, &namespaces)
}

fn listed(daemon: &Daemon, host: u8) -> DiscoveryLog {
    let address = daemon.address();
    let address =
        Address { fabric: Fabric::Tcp, host: address.ip().to_string(), port: address.port() };
    discover(&address, &options(host)).expect("the discovery log")
}

fn names(log: &DiscoveryLog) -> Vec<&str> {
    log.entries.iter().filter(|entry| entry.is_nvm).map(|entry| entry.subnqn.as_str()).collect()
}

#[test]
fn namespaces_come_and_go_with_an_event() {
    let daemon = Daemon::start(&with_namespaces(&[1, 2]));
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let (mut admin, _) = Raw::admin(daemon.address(), NQN, &options(2));
    ask_for_events(&mut admin);
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(3));
    host.write(2, 0, 4096, 1);

    let said = daemon.reload(&with_namespaces(&[1, 2, 3]));
    assert!(said.contains("1 devices opened, 0 closed"), "{said}");
    assert_event(&mut admin, AsyncEvent::NAMESPACE_CHANGED);
    assert_eq!(changed_namespaces(&mut admin), [3]);
    request_event(&mut admin);
    worker.goes_on();
    let mut again = Host::connect(&daemon.endpoint(NQN), &options(4));
    again.write(3, 7, 4096, 2);
    again.check(3, 7, 4096, 2);
    host.check(2, 0, 4096, 1);

    let said = daemon.reload(&with_namespaces(&[1, 3]));
    assert!(said.contains("0 devices opened, 1 closed"), "{said}");
    assert_event(&mut admin, AsyncEvent::NAMESPACE_CHANGED);
    assert_eq!(changed_namespaces(&mut admin), [2]);
    let gone = host.one(2, 0, 8, IoKind::Read(nvmeof_initiator::Buffer::zeroed(4096)));
    match gone {
        Err(nvmeof_initiator::CommandError::Status { status, .. }) => {
            assert_eq!(status, Status::INVALID_FIELD.with_dnr());
        }
        other => panic!("a namespace that is gone: {other:?}"),
    }
    again.check(3, 7, 4096, 2);
    worker.goes_on();
    worker.stop();
}

#[test]
fn subsystems_come_and_go_and_discovery_tells() {
    let one = [
        listener("127.0.0.1"),
        ram("ram0", "64MiB", 512),
        ram("ram1", "64MiB", 512),
        subsystem(NQN, &[(1, "ram0")]),
    ]
    .concat();
    let both = [one.clone(), subsystem(OTHER_NQN, &[(1, "ram1")])].concat();
    let daemon = Daemon::start(&one);
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let before = listed(&daemon, 9);
    assert_eq!(names(&before), [NQN]);

    let discovery = Nqn::discovery();
    let (mut admin, _) = Raw::admin(daemon.address(), discovery.as_str(), &options(2));
    ask_for_events(&mut admin);
    let said = daemon.reload(&both);
    assert!(said.contains("1 subsystems added, 0 removed"), "{said}");
    assert_event(&mut admin, AsyncEvent::DISCOVERY_CHANGED);
    let page = GetLogPage { retain_event: false, ..GetLogPage::new(Lid::DISCOVERY, 1024) };
    let header = admin.read(page.encode(0), 1024);
    let (header, _) = DiscoveryHeader::read_from_prefix(&header).expect("the header");
    assert!(header.genctr.get() != before.generation, "the generation did not move");
    request_event(&mut admin);
    let after = listed(&daemon, 9);
    assert_eq!(names(&after), [OTHER_NQN, NQN]);
    assert_eq!(after.generation, header.genctr.get());

    let other = Worker::start(&daemon.endpoint(OTHER_NQN), &options(3));
    let said = daemon.reload(&one);
    assert!(said.contains("0 subsystems added, 1 removed"), "{said}");
    assert!(said.contains("1 controllers ended"), "{said}");
    assert_event(&mut admin, AsyncEvent::DISCOVERY_CHANGED);
    other.fails();
    worker.goes_on();
    let refused = Host::try_connect(&daemon.endpoint(OTHER_NQN), &options(3));
    assert!(refused.is_err(), "a subsystem that is gone");
    assert_eq!(names(&listed(&daemon, 9)), [NQN]);
    worker.stop();
}

#[test]
fn a_host_that_is_no_longer_allowed_is_ended_and_others_are_not() {
    let [one, two] = [options(1), options(2)].map(|host| host.hostnqn.to_string());
    let config = |hosts: &[&str]| {
        let parts = [
            listener("127.0.0.1"),
            ram("ram0", "64MiB", 512),
            subsystem_for(hosts, NQN, &[(1, "ram0")]),
        ];
        parts.concat()
    };
    let daemon = Daemon::start(&config(&[&one]));
    let refused = Host::try_connect(&daemon.endpoint(NQN), &options(2));
    assert!(refused.expect_err("not allowed").to_string().contains("not allowed"));
    assert_eq!(names(&listed(&daemon, 2)), [] as [&str; 0]);
    daemon.reload(&config(&[&one, &two]));
    assert_eq!(names(&listed(&daemon, 2)), [NQN]);
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let (mut admin, cntlid) = Raw::admin(daemon.address(), NQN, &options(2));
    let mut io = Raw::io(daemon.address(), NQN, &options(2), cntlid, 8);
    let said = daemon.reload(&config(&[&one]));
    assert!(said.contains("1 controllers ended"), "{said}");
    assert!(matches!(admin.pdu(), Pdu::End), "admin queue");
    assert!(matches!(io.pdu(), Pdu::End), "I/O queue");
    worker.goes_on();
    worker.stop();
}

#[test]
fn listeners_come_and_go_with_their_hosts() {
    let two = [small(), listener("127.0.0.2")].concat();
    let daemon = Daemon::start(&small());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let said = daemon.reload(&two);
    assert!(said.contains("1 listeners started, 0 ended"), "{said}");
    let log = listed(&daemon, 9);
    let entry = log.entries.iter().find(|entry| entry.is_nvm && entry.address == "127.0.0.2");
    let endpoint = entry.and_then(nvmeof_initiator::DiscoveryEntry::endpoint);
    let endpoint = endpoint.expect("the new listener").parse().expect("an endpoint");
    let through_it = Host::connect(&endpoint, &options(2));
    let (mut admin, _) = {
        let address = format!("127.0.0.2:{}", endpoint.address.port).parse().expect("an address");
        Raw::admin(address, NQN, &options(3))
    };
    let said = daemon.reload(&small());
    assert!(said.contains("0 listeners started, 1 ended"), "{said}");
    assert!(matches!(admin.pdu(), Pdu::End), "a controller of the listener");
    drop(through_it);
    let refused = Host::try_connect(&endpoint, &options(2));
    assert!(refused.is_err(), "a listener that is gone");
    worker.goes_on();
    worker.stop();
}

/// A listener whose address includes another's takes over its port.
///
/// If the change fails, the previous listener gets its port again, and its hosts notice nothing.
#[test]
fn a_listener_takes_its_port_from_one_whose_address_it_takes_in() {
    let on = |listener: String| {
        [listener, ram("ram0", "64MiB", 512), subsystem(NQN, &[(1, "ram0")])].concat()
    };
    let daemon = Daemon::start(&on(listener("127.0.0.1")));
    let port = daemon.address().port();
    let at = |address: &str| on(listener_at(address, port));
    let endpoint = daemon.endpoint(NQN);
    let worker = Worker::start(&endpoint, &options(1));
    // More than a process can map, which shows only when the device is opened.
    let too_large = [at("0.0.0.0"), ram("ram1", "1000TiB", 512)].concat();
    let said = daemon.reload_refused(&too_large);
    assert!(said.contains("running config is unchanged"), "{said}");
    daemon.wait_for_line("cannot allocate 1000TiB");
    worker.goes_on();
    worker.stop();
    let (mut admin, _) = Raw::admin(daemon.address(), NQN, &options(2));

    for (address, reached) in [("0.0.0.0", "127.0.0.2"), ("127.0.0.1", "127.0.0.1")] {
        let said = daemon.reload(&at(address));
        assert!(said.contains("1 listeners started, 1 ended"), "{said}");
        assert!(matches!(admin.pdu(), Pdu::End), "a controller of the listener before");
        let reached = format!("{reached}:{port}").parse().expect("an address");
        (admin, _) = Raw::admin(reached, NQN, &options(2));
        let mut host = Host::connect(&endpoint, &options(1));
        host.write(1, 0, 4096, 5);
        host.check(1, 0, 4096, 5);
    }
}

#[test]
fn a_bad_config_changes_nothing_and_says_why() {
    let good = with_namespaces(&[1, 2]);
    let daemon = Daemon::start(&good);
    let (baseline, open_files) = (daemon.counts(), daemon.open_files());
    let worker = Worker::start(&daemon.endpoint(NQN), &options(1));
    let unknown_key = [good.as_str(), "\n[limits]\nqueue_depth = 3\n"].concat();
    let missing_file = [
        good.replace("ram2", "ram3"),
        ram("ram4", "1MiB", 512),
        "\n[[device]]\nname = \"f\"\ntype = \"file\"\npath = \"/nonexistent/f\"\n".to_owned(),
    ]
    .concat();
    let cases = [
        (unknown_key, "limits.queue_depth"),
        (missing_file, "/nonexistent/f"),
        ("nonsense".to_owned(), "target.toml:1:"),
    ];
    for (config, part) in cases {
        let said = daemon.reload_refused(&config);
        assert!(said.contains("running config is unchanged"), "{said}");
        // The problems are on the following lines.
        daemon.wait_for_line(part);
        worker.goes_on();
        let mut host = Host::connect(&daemon.endpoint(NQN), &options(2));
        let nsids: Vec<u32> = host.controller.namespaces().iter().map(|n| n.nsid).collect();
        assert_eq!(nsids, [1, 2]);
        host.write(2, 0, 4096, 3);
        host.check(2, 0, 4096, 3);
    }
    // The same config changes nothing either.
    let said = daemon.reload(&good);
    assert!(said.contains("0 devices opened, 0 closed, 0 subsystems added, 0 removed"), "{said}");
    assert!(said.contains("0 namespaces changed, 0 controllers ended"), "{said}");
    worker.stop();
    daemon.wait_for_counts(&baseline, open_files);
}
