use std::sync::Arc;

use nvmeof_random::SplitMix64;
use nvmeof_wire::U64;
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::zerocopy::FromBytes;

use super::*;
use crate::admin::fixture::{connect, nqn, subsystem};
use crate::admin::logs::tests::get_log_page;
use crate::admin::page::tests::read;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::spec::{Access, PortId, SubsystemSpec, TargetSpec};

fn port(id: u16, family: AddressFamily, address: &str, service: &str) -> PortSpec {
    PortSpec {
        id: PortId(id),
        transport: TransportKind::Tcp,
        family,
        address: address.to_owned(),
        service: service.to_owned(),
        v6_only: false,
        subsystems: None,
        folds_always: false,
    }
}

/// Two subsystems, one of them only for the host "friend", two listeners, a referral.
fn spec() -> TargetSpec {
    TargetSpec {
        subsystems: vec![
            subsystem("open", vec![]),
            SubsystemSpec {
                access: Access::Hosts([nqn("friend")].into()),
                ..subsystem("closed", vec![])
            },
        ],
        ports: vec![
            port(1, AddressFamily::Ipv4, "192.0.2.1", "4420"),
            PortSpec {
                transport: TransportKind::Rdma,
                ..port(2, AddressFamily::Ipv6, "2001:db8::1", "4421")
            },
        ],
        referrals: vec![ReferralSpec {
            transport: TransportKind::Tcp,
            family: AddressFamily::Ipv4,
            nqn: Nqn::discovery(),
            address: "192.0.2.9".to_owned(),
            service: "8009".to_owned(),
        }],
        ..TargetSpec::default()
    }
}

fn target(spec: TargetSpec) -> Arc<Target> {
    let target = Target::new(Limits::default());
    target.apply(spec).unwrap();
    target
}

/// A discovery controller of this target, reached through listener 1.
fn controller(target: &Target, host: &str) -> Arc<Controller> {
    let discovery = Arc::clone(&target.registry().discovery);
    connect(&discovery, *target.limits(), host)
}

/// The complete log.
fn log_page(target: &Target, controller: &Controller) -> Vec<u8> {
    let part = |len| {
        let put = |page: &mut PageWriter<'_>| {
            put_log_page(target, controller, page);
            Ok(())
        };
        read(0, len, put).unwrap()
    };
    let header = DiscoveryHeader::read_from_bytes(&part(DISCOVERY_RECORD_SIZE)).unwrap();
    part((1 + usize::try_from(header.numrec.get()).unwrap()) * DISCOVERY_RECORD_SIZE)
}

fn parse(page: &[u8]) -> (DiscoveryHeader, Vec<DiscoveryEntry>) {
    let (header, entries) = page.split_at(DISCOVERY_RECORD_SIZE);
    let entries = entries
        .chunks_exact(DISCOVERY_RECORD_SIZE)
        .map(|entry| DiscoveryEntry::read_from_bytes(entry).unwrap());
    (DiscoveryHeader::read_from_bytes(header).unwrap(), entries.collect())
}

/// Type, last part of the name, and address of every entry.
fn summary(page: &[u8]) -> Vec<(DiscoverySubtype, String, String)> {
    let (header, entries) = parse(page);
    assert_eq!(header.numrec, U64::new(entries.len() as u64));
    let of = |entry: &DiscoveryEntry| {
        let name = entry.subnqn().unwrap().to_string();
        let name = name.rsplit([':', '.']).next().unwrap().to_owned();
        let place = format!("{} {}", entry.address().unwrap(), entry.service().unwrap());
        (entry.subtype, name, place)
    };
    entries.iter().map(of).collect()
}

#[test]
fn a_host_sees_what_it_may_connect_to_everywhere() {
    use DiscoverySubtype as Type;
    let target = target(spec());
    let entry = |subtype, name: &str, place: &str| (subtype, name.to_owned(), place.to_owned());
    let (v4, v6) = ("192.0.2.1 4420", "2001:db8::1 4421");
    let stranger = [
        entry(Type::CURRENT_DISCOVERY, "discovery", v4),
        entry(Type::CURRENT_DISCOVERY, "discovery", v6),
        entry(Type::NVM, "open", v4),
        entry(Type::NVM, "open", v6),
        entry(Type::REFERRAL, "discovery", "192.0.2.9 8009"),
    ];
    assert_eq!(summary(&log_page(&target, &controller(&target, "stranger"))), stranger);
    let mut friend = stranger.to_vec();
    friend.insert(2, entry(Type::NVM, "closed", v4));
    friend.insert(3, entry(Type::NVM, "closed", v6));
    assert_eq!(summary(&log_page(&target, &controller(&target, "friend"))), friend);
}

#[test]
fn entries_have_the_bytes_of_the_specification() {
    let target = target(spec());
    let page = log_page(&target, &controller(&target, "stranger"));
    assert_eq!(page[..8], 1_u64.to_le_bytes(), "GENCTR");
    assert_eq!(page[8..16], 5_u64.to_le_bytes(), "NUMREC");
    assert!(page[16..1024].iter().all(|b| *b == 0), "RECFMT and reserved");

    let entry = &page[3 * 1024..4 * 1024];
    assert_eq!(entry[..4], [3, 1, 2, 0b100], "TCP, IPv4, NVM, SQ flow control may be off");
    assert_eq!(entry[4..10], [1, 0, 0xff, 0xff, 128, 0], "PORTID, CNTLID, ASQSZ");
    assert!(entry[10..32].iter().all(|b| *b == 0), "EFLAGS and reserved");
    assert_eq!(&entry[32..64], b"4420                            ");
    assert!(entry[64..256].iter().all(|b| *b == 0));
    assert_eq!(&entry[256..286], b"nqn.2026-11.org.example:open\0\0");
    assert_eq!(&entry[512..524], b"192.0.2.1   ");
    assert!(entry[524..768].iter().all(|b| *b == b' '), "padded with spaces");
    assert!(entry[768..].iter().all(|b| *b == 0), "TSAS: no security");

    let entry = &page[4 * 1024..5 * 1024];
    assert_eq!(entry[..6], [1, 2, 2, 0b100, 2, 0], "RDMA, IPv6, NVM, port 2");
    assert_eq!(entry[768..771], [1, 1, 1], "TSAS: connected, no provider named, RDMA_CM");

    let current = &page[1024..2 * 1024];
    assert_eq!(current[2], 3, "the current discovery subsystem");
    assert_eq!(current[10..12], [0b11, 0], "EFLAGS: same everywhere, persistent");
    assert_eq!(&current[256..293], b"nqn.2014-08.org.nvmexpress.discovery\0");

    let referral = &page[5 * 1024..];
    assert_eq!(referral[..4], [3, 1, 1, 0], "TCP, IPv4, referral, nothing known");
    assert_eq!(referral[6..10], [0xff, 0xff, 32, 0], "CNTLID, ASQSZ");
    assert_eq!(&referral[256..293], b"nqn.2014-08.org.nvmexpress.discovery\0");
}

#[test]
fn a_listener_on_every_address_is_told_of_as_the_one_used() {
    let spec = |ports| TargetSpec { ports, ..TargetSpec::default() };
    let v4 = || port(1, AddressFamily::Ipv4, "0.0.0.0", "4420");
    let v6 = || port(2, AddressFamily::Ipv6, "::", "4420");
    let places = |ports, used: Option<&str>| {
        let target = target(spec(ports));
        let controller = controller(&target, "host");
        if let Some(used) = used {
            controller.set_local_address(used.parse().unwrap());
        }
        let (_, entries) = parse(&log_page(&target, &controller));
        let place = |entry: &DiscoveryEntry| {
            format!("{} {} {}", entry.portid, entry.adrfam, entry.address().unwrap())
        };
        entries.iter().map(place).collect::<Vec<_>>()
    };
    assert_eq!(places(vec![v4()], Some("192.0.2.7")), ["1 ipv4 192.0.2.7"]);
    assert_eq!(places(vec![v4()], None), ["1 ipv4 0.0.0.0"], "nothing better is known");
    // `::` accepts IPv4, unless the listener of IPv4 is a different one.
    assert_eq!(
        places(vec![v4(), v6()], Some("192.0.2.7")),
        ["1 ipv4 192.0.2.7", "2 ipv4 192.0.2.7"]
    );
    let only = || PortSpec { v6_only: true, ..v6() };
    assert_eq!(places(vec![v4(), only()], Some("192.0.2.7")), ["1 ipv4 192.0.2.7"]);
    assert_eq!(
        places(vec![v4(), v6()], Some("2001:db8::5")),
        ["1 ipv6 2001:db8::5", "2 ipv6 2001:db8::5"]
    );
    // Discovery at one port of `::`, subsystems at another.
    let other = PortSpec { id: PortId(1), service: "8009".into(), ..v6() };
    assert_eq!(
        places(vec![other, v6()], Some("192.0.2.7")),
        ["1 ipv4 192.0.2.7", "2 ipv4 192.0.2.7"]
    );
    // A listener for both families, with the mapped address of its socket.
    let both = PortSpec { id: PortId(1), ..v6() };
    assert_eq!(places(vec![both], Some("::ffff:192.0.2.7")), ["1 ipv4 192.0.2.7"]);
    let one = port(3, AddressFamily::Ipv6, "2001:db8::3", "4420");
    assert_eq!(places(vec![one], Some("192.0.2.7")), ["3 ipv6 2001:db8::3"], "as configured");
}

#[test]
fn a_listener_is_listed_for_the_subsystems_that_it_serves() {
    let mut spec = spec();
    spec.ports[0].subsystems = Some([nqn("open")].into());
    spec.ports[1].subsystems = Some([].into());
    spec.ports.push(port(3, AddressFamily::Ipv4, "192.0.2.3", "4420"));
    let target = target(spec);
    let friend = controller(&target, "friend");
    let page = log_page(&target, &friend);
    let shown = summary(&page).into_iter().map(|(_, name, place)| format!("{name} {place}"));
    let expected = [
        "discovery 192.0.2.1 4420",
        "discovery 2001:db8::1 4421",
        "discovery 192.0.2.3 4420",
        "closed 192.0.2.3 4420",
        "open 192.0.2.1 4420",
        "open 192.0.2.3 4420",
        "discovery 192.0.2.9 8009",
    ];
    assert!(shown.eq(expected), "{:?}", summary(&page));
    // Read in parts, from start to end and back.
    for at in [0, 4, 5, 6, 3, 1, 7] {
        let offset = at * DISCOVERY_RECORD_SIZE;
        let command = GetLogPage { offset: offset as u64, ..GetLogPage::new(Lid::DISCOVERY, 1024) };
        let part = get_log_page(&target, &friend, &command.encode(1), 0).unwrap();
        assert_eq!(part, page[offset..offset + DISCOVERY_RECORD_SIZE], "record {at}");
    }
}

#[test]
fn the_service_is_the_same_everywhere_unless_a_listener_is_a_wildcard() {
    let flags = |spec| {
        let target = target(spec);
        let (_, entries) = parse(&log_page(&target, &controller(&target, "host")));
        entries[0].eflags.get()
    };
    assert_eq!(flags(spec()), eflags::PERSISTENT | eflags::DUPLICATE);
    let mut wildcard = spec();
    wildcard.ports.push(port(3, AddressFamily::Ipv4, "0.0.0.0", "4420"));
    assert_eq!(flags(wildcard), eflags::PERSISTENT);
}

#[test]
fn the_service_has_a_unique_name_if_one_is_configured() {
    let mut spec = spec();
    spec.discovery.nqn = Some(nqn("finder"));
    let target = target(spec);
    let page = log_page(&target, &controller(&target, "host"));
    let names: Vec<String> = summary(&page).into_iter().map(|(_, name, _)| name).collect();
    assert_eq!(names, ["finder", "finder", "open", "open", "discovery"]);
}

#[test]
fn no_change_goes_without_another_generation() {
    let target = target(spec());
    let friend = controller(&target, "friend");
    let mut last = log_page(&target, &friend);
    let mut changes: Vec<TargetSpec> = Vec::new();
    let mut change = |edit: &dyn Fn(&mut TargetSpec)| {
        let mut next = changes.last().cloned().unwrap_or_else(spec);
        edit(&mut next);
        changes.push(next);
    };
    change(&|spec| spec.subsystems.push(subsystem("third", vec![])));
    change(&|spec| spec.subsystems[1].access = Access::Hosts([nqn("other")].into()));
    change(&|spec| spec.ports[0].service = "4444".to_owned());
    change(&|spec| {
        spec.ports.pop();
    });
    change(&|spec| spec.referrals.clear());
    change(&|spec| spec.subsystems.clear());
    for (step, spec) in changes.into_iter().enumerate() {
        target.apply(spec.clone()).unwrap();
        let page = log_page(&target, &friend);
        assert_ne!(page[1024..], last[1024..], "step {step} changes what the host sees");
        assert_ne!(page[..8], last[..8], "step {step}: GENCTR");
        target.apply(spec).unwrap();
        assert_eq!(log_page(&target, &friend), page, "step {step}: the same again is no change");
        last = page;
    }
}

#[test]
fn parts_of_one_generation_make_one_log() {
    let target = target(spec());
    let friend = controller(&target, "friend");
    let read = |offset, length| {
        let command = GetLogPage { offset, ..GetLogPage::new(Lid::DISCOVERY, length) };
        get_log_page(&target, &friend, &command.encode(1), 0)
    };
    let whole = log_page(&target, &friend);
    let parts: Vec<u8> =
        (0..whole.len() as u64 / 512).flat_map(|part| read(part * 512, 512).unwrap()).collect();
    assert_eq!(parts, whole);
    let end = whole.len() as u64;
    assert_eq!(read(end, 8), Ok(vec![0; 8]));
    assert!(read(end + 4, 8).is_err());
}

/// Forty subsystems; every third one is not for the host "friend".
fn many() -> TargetSpec {
    let of = |number: usize| SubsystemSpec {
        access: match number % 3 {
            0 => Access::Hosts([nqn("other")].into()),
            1 => Access::Hosts([nqn("friend")].into()),
            _ => Access::AnyHost,
        },
        ..subsystem(&format!("number{number}"), vec![])
    };
    TargetSpec { subsystems: (0..40).map(of).collect(), ..spec() }
}

#[test]
fn pieces_in_any_order_are_pieces_of_the_log() {
    let target = target(many());
    let friend = controller(&target, "friend");
    let whole = log_page(&target, &friend);
    assert_eq!(whole.len(), 1024 * (1 + 2 * (1 + 26) + 1));
    let mut random = SplitMix64::new(1);
    for _ in 0..2000 {
        let offset = random.below(whole.len() as u64 / 4 + 1) * 4;
        let length = (random.below(3000) / 4 + 1) * 4;
        let retain_event = random.coin();
        let command =
            GetLogPage { offset, retain_event, ..GetLogPage::new(Lid::DISCOVERY, length) };
        let part = get_log_page(&target, &friend, &command.encode(1), 0).unwrap();
        let (from, len) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        let mut expected: Vec<u8> = whole.iter().copied().skip(from).take(len).collect();
        expected.resize(len, 0);
        assert!(part == expected, "{offset}+{length}");
    }
}

#[test]
fn a_host_reads_on_where_it_was() {
    let target = target(many());
    let friend = controller(&target, "friend");
    let read = |offset| {
        let command = GetLogPage { offset, ..GetLogPage::new(Lid::DISCOVERY, 4096) };
        get_log_page(&target, &friend, &command.encode(1), 0).unwrap();
        let bookmark = friend.admin().bookmark.clone().unwrap();
        bookmark.last.map(|(_, before)| before)
    };
    // A header and the service's own two entries, then two entries per subsystem.
    assert_eq!(read(0), Some(0));
    assert_eq!(read(4096), Some(4));
    assert_eq!(read(8192), Some(8));
    let before = friend.admin().bookmark.clone().unwrap().generation;
    // Another log has other positions.
    target.apply(spec()).unwrap();
    assert_eq!(read(0), Some(0));
    assert_ne!(friend.admin().bookmark.clone().unwrap().generation, before);
    let beyond = GetLogPage { offset: 16384, ..GetLogPage::new(Lid::DISCOVERY, 4) };
    let answer = get_log_page(&target, &friend, &beyond.encode(1), 0);
    assert_eq!(answer, Err(Failure::InvalidField));
}

#[test]
fn the_event_is_cleared_by_reading_without_retaining() {
    let target = target(spec());
    let host = controller(&target, "host");
    host.admin().features.async_event_config = 1 << 31;
    let read = |retain_event| {
        let command = GetLogPage { retain_event, ..GetLogPage::new(Lid::DISCOVERY, 1024) };
        get_log_page(&target, &host, &command.encode(1), 0).unwrap()
    };
    let with = |name: &str| {
        let mut spec = spec();
        spec.subsystems.push(subsystem(name, vec![]));
        target.apply(spec).unwrap();
    };
    with("a");
    assert_eq!(host.take_event(), Some(0x0070_f002));
    read(true);
    with("b");
    assert_eq!(host.take_event(), None, "retained");
    let before = read(false);
    with("c");
    assert_eq!(host.take_event(), Some(0x0070_f002));
    assert_ne!(read(true)[..8], before[..8], "GENCTR");
}

#[test]
fn a_listener_that_does_not_listen_is_in_no_log_and_keeps_its_controllers() {
    let target = target(spec());
    let host = controller(&target, "friend");
    host.admin().features.async_event_config = 1 << 31;
    let seen = || {
        let page = log_page(&target, &host);
        let (_, entries) = parse(&page);
        let mut ids: Vec<u16> = entries.iter().map(|entry| entry.portid.get()).collect();
        ids.dedup();
        (ids.contains(&1), ids.contains(&2), page[..8].to_vec())
    };
    let (first, second, before) = seen();
    assert!(first && second);
    target.hide_port(PortId(1));
    let (first, second, hidden) = seen();
    assert!(!first && second && hidden != before, "GENCTR tells it");
    assert_eq!(host.take_event(), Some(0x0070_f002));
    assert_eq!(host.death(), None, "it came through the listener, which may be back");
    // The desired state is applied again, and the listener still does not listen.
    target.apply(spec()).unwrap();
    assert_eq!(seen(), (false, true, hidden));
    // The port is another one now, because the system chose it.
    let back = PortSpec { service: "4444".into(), ..spec().ports[0].clone() };
    target.show_port(back.clone());
    let (first, second, _) = seen();
    assert!(first && second);
    let before = seen();
    target.show_port(back);
    assert_eq!(seen(), before, "it is shown already");
    // A listener that never existed.
    target.hide_port(PortId(9));
    assert_eq!(seen(), before);
    target.show_port(port(9, AddressFamily::Ipv4, "192.0.2.3", "4420"));
    assert_ne!(seen(), before);
}
