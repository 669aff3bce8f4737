use proptest::prelude::*;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::features::Fid;
use crate::golden;
use crate::nqn::Nqn;
use crate::opcode::IoOpcode;
use crate::status::Status;

#[test]
fn get_log_page_bytes() {
    // Base 5.16: NUMD 0's based over NUMDL and NUMDU.
    let bytes: [u8; 64] = golden::bytes(&[
        (0, &[0x02, 0x40, 1, 0, 0xff, 0xff, 0xff, 0xff]),
        (40, &[0x70, 0x80 | 0x05, 0x22, 0x11]), // LID, RAE and LSP, NUMDL
        (44, &[0x44, 0x33, 0x66, 0x55]),        // NUMDU, LSI
        (48, &[0x01, 0, 0, 0xa1, 0x02, 0, 0, 0xa2]), // LPOL, LPOU
        (56, &[0x03, 0, 0x80, 0x02]),           // UUID index, OT, CSI
    ]);
    let command = GetLogPage {
        lid: Lid::DISCOVERY,
        lsp: 5,
        retain_event: true,
        length: (0x3344_1122 + 1) * 4,
        offset: 0xa200_0002_a100_0001,
        index_offset: true,
        lsi: 0x5566,
        csi: Csi::ZONED,
        nsid: 0xffff_ffff,
        uuid_index: 3,
    };
    assert_eq!(command.encode(1).as_bytes(), bytes);
    assert_eq!(GetLogPage::parse(&Sqe::read_from_bytes(&bytes).unwrap()), command);
}

#[test]
fn lengths_at_their_ends() {
    let length = |cdw10: u32, cdw11: u32| {
        GetLogPage::parse(&Sqe::default().with_cdw10([cdw10, cdw11])).length
    };
    assert_eq!(length(0, 0), 4);
    assert_eq!(length(0xffff_0000, 0x0000_ffff), 1 << 34);
    let cut = |length| GetLogPage::parse(&GetLogPage::new(Lid::SMART, length).encode(1)).length;
    assert_eq!([0, 1, 5, u64::MAX].map(cut), [4, 4, 8, 1 << 34]);
}

#[test]
fn error_information_bytes() {
    // Base 5.16.1.2.
    let bytes: [u8; 64] = golden::bytes(&[
        (0, &[1, 0, 0, 0, 0, 0, 0, 0xa1]),
        (8, &[2, 0xa2]),
        (10, &[3, 0xa3]),
        (12, &[0x04, 0x80]), // Invalid Field, DNR, phase tag 0
        (14, &[40, 1]),
        (16, &[5, 0, 0, 0, 0, 0, 0, 0xa5]),
        (24, &[6, 0, 0, 0xa6]),
        (28, &[7]),
        (29, &[0x03]),
        (32, &[8, 0, 0, 0, 0, 0, 0, 0xa8]),
        (40, &[9, 0xa9]),
    ]);
    let entry = ErrorInformation {
        error_count: U64::new(0xa1 << 56 | 1),
        sqid: U16::new(0xa202),
        cid: U16::new(0xa303),
        status: U16::new(Status::INVALID_FIELD.with_dnr().to_field(false)),
        parameter_location: U16::new(0x0128),
        lba: U64::new(0xa5 << 56 | 5),
        nsid: U32::new(0xa600_0006),
        vendor_log: 7,
        trtype: TransportType::TCP,
        command_specific: U64::new(0xa8 << 56 | 8),
        transport_specific: U16::new(0xa909),
        ..ErrorInformation::default()
    };
    assert_eq!(entry.as_bytes(), bytes);
    let read = ErrorInformation::read_from_bytes(&bytes).unwrap();
    assert_eq!(read, entry);
    assert_eq!(read.status(), Status::INVALID_FIELD.with_dnr());
}

#[test]
fn smart_bytes() {
    // Base 5.16.1.3.
    let wide = |low: u8, high: u8| {
        let mut bytes = [0u8; 16];
        (bytes[0], bytes[15]) = (low, high);
        bytes
    };
    let counters: Vec<[u8; 16]> = (0..10).map(|i| wide(0x20 + i, 0xa0 + i)).collect();
    let bytes: [u8; 512] = golden::bytes(&[
        (0, &[0x09]),
        (1, &[0x2c, 0x01]), // 300 K
        (3, &[100]),
        (4, &[10]),
        (5, &[3]),
        (6, &[4]),
        (32, counters.as_flattened()),
        (192, &[5, 0, 0, 0xb5]),
        (196, &[6, 0, 0, 0xb6]),
        (200, &[7, 0xb7]),
        (214, &[8, 0xb8]),
        (216, &[9, 0, 0, 0xb9]),
        (220, &[10, 0, 0, 0xba]),
        (224, &[11, 0, 0, 0xbb]),
        (228, &[12, 0, 0, 0xbc]),
    ]);
    let counter = |i: u128| U128::new((0xa0 + i) << 120 | (0x20 + i));
    let mut log = SmartLog {
        critical_warning: critical_warning::SPARE | critical_warning::READ_ONLY,
        temperature: U16::new(300),
        available_spare: 100,
        spare_threshold: 10,
        percentage_used: 3,
        endurance_group_warning: 4,
        data_units_read: counter(0),
        data_units_written: counter(1),
        host_reads: counter(2),
        host_writes: counter(3),
        busy_minutes: counter(4),
        power_cycles: counter(5),
        power_on_hours: counter(6),
        unsafe_shutdowns: counter(7),
        media_errors: counter(8),
        error_log_entries: counter(9),
        warning_temperature_minutes: U32::new(0xb500_0005),
        critical_temperature_minutes: U32::new(0xb600_0006),
        thermal_transitions: [U32::new(0xb900_0009), U32::new(0xba00_000a)],
        thermal_seconds: [U32::new(0xbb00_000b), U32::new(0xbc00_000c)],
        ..SmartLog::default()
    };
    log.sensors[0] = U16::new(0xb707);
    log.sensors[7] = U16::new(0xb808);
    assert_eq!(log.as_bytes(), bytes);
    assert_eq!(SmartLog::read_from_bytes(&bytes).unwrap(), log);
}

#[test]
fn firmware_slot_bytes() {
    // Base 5.16.1.4.
    let bytes: [u8; 512] = golden::bytes(&[(0, &[0x21]), (8, b"1.0     "), (56, b"9.9     ")]);
    let mut log = FirmwareSlotLog { afi: 0x21, ..FirmwareSlotLog::default() };
    log.frs[0] = *b"1.0     ";
    log.frs[6] = *b"9.9     ";
    assert_eq!(log.as_bytes(), bytes);
    assert_eq!(FirmwareSlotLog::read_from_bytes(&bytes).unwrap(), log);
}

#[test]
fn effects_bytes() {
    // Base 5.16.1.1: LSUPP, IOS, LIDSP.
    let bytes: [u8; 1024] = golden::bytes(&[(0, &[1, 0, 0, 0]), (0x70 * 4, &[3, 0, 0x34, 0x12])]);
    let mut logs = SupportedLogPages::default();
    logs.set(Lid::SUPPORTED_LOG_PAGES, LogSupport::new().with_supported(true));
    let discovery =
        LogSupport::new().with_supported(true).with_index_offset(true).with_specific(0x1234);
    logs.set(Lid::DISCOVERY, discovery);
    assert_eq!(logs.as_bytes(), bytes);
    assert_eq!(SupportedLogPages::read_from_bytes(&bytes).unwrap().get(Lid::DISCOVERY), discovery);

    // Base 5.16.1.6: CSUPP, LBCC, NCC, NIC, CCC, CSE, UUID, CSP; admin first, then I/O.
    let bytes: [u8; 4096] =
        golden::bytes(&[(0x80 * 4, &[0x1f, 0, 0x0a, 0x02]), (1024 + 4, &[3, 0, 0x10, 0])]);
    let mut log = CommandEffectsLog::default();
    let format = CommandEffects::new()
        .with_supported(true)
        .with_content_change(true)
        .with_namespace_capability_change(true)
        .with_namespace_inventory_change(true)
        .with_controller_capability_change(true)
        .with_execution(2)
        .with_uuid_selection(true)
        .with_scope(1 << 5);
    log.set_admin(AdminOpcode::FORMAT_NVM, format);
    let write = CommandEffects::new().with_supported(true).with_content_change(true).with_scope(1);
    log.set_io(IoOpcode::WRITE, write);
    assert_eq!(log.as_bytes(), bytes);
    let read = CommandEffectsLog::read_from_bytes(&bytes).unwrap();
    assert_eq!((read.admin(AdminOpcode::FORMAT_NVM), read.io(IoOpcode::WRITE)), (format, write));
    assert_eq!(read.io(IoOpcode::READ), CommandEffects::new());

    // Base 5.16.1.18: FSUPP, UDCC, NCC, NIC, CCC, UUID, FSP.
    let bytes: [u8; 1024] = golden::bytes(&[(0x0b * 4, &[0x1f, 0, 0x28, 0])]);
    let mut log = FeatureEffectsLog::default();
    let effects = FeatureEffects::new()
        .with_supported(true)
        .with_content_change(true)
        .with_namespace_capability_change(true)
        .with_namespace_inventory_change(true)
        .with_controller_capability_change(true)
        .with_uuid_selection(true)
        .with_scope(1 << 1);
    log.set(Fid::ASYNC_EVENTS, effects);
    assert_eq!(log.as_bytes(), bytes);
    let read = FeatureEffectsLog::read_from_bytes(&bytes).unwrap();
    assert_eq!(read.get(Fid::ASYNC_EVENTS), effects);
}

#[test]
fn discovery_header_bytes() {
    // Base 5.16.1.23.
    let bytes: [u8; 1024] = golden::bytes(&[
        (0, &[1, 0, 0, 0, 0, 0, 0, 0xa1]),
        (8, &[2, 0, 0, 0, 0, 0, 0, 0xa2]),
        (16, &[0, 0]),
    ]);
    let header = DiscoveryHeader::new(0xa1 << 56 | 1, 0xa2 << 56 | 2);
    assert_eq!(header.as_bytes(), bytes);
    assert_eq!(DiscoveryHeader::read_from_bytes(&bytes).unwrap(), header);
}

#[test]
fn discovery_entry_bytes() {
    let mut trsvcid = [b' '; 32];
    trsvcid[..4].copy_from_slice(b"4420");
    let mut traddr = [b' '; 256];
    traddr[..9].copy_from_slice(b"192.0.2.1");
    let bytes: [u8; 1024] = golden::bytes(&[
        (0, &[0x03]),
        (1, &[0x01]),
        (2, &[0x02]),
        (3, &[0b101]),
        (4, &[1, 0xa1]),
        (6, &[0xff, 0xff]),
        (8, &[32, 0]),
        (10, &[0b11, 0]),
        (32, &trsvcid),
        (256, b"nqn.2026-11.io.example:sub"),
        (512, &traddr),
        (768, &[0x02]),
    ]);
    let nqn: Nqn = "nqn.2026-11.io.example:sub".parse().unwrap();
    let mut entry = DiscoveryEntry {
        trtype: TransportType::TCP,
        adrfam: AddressFamily::IPV4,
        subtype: DiscoverySubtype::NVM,
        treq: treq::SECURE_CHANNEL_REQUIRED | treq::SQ_FLOW_CONTROL_OFF,
        portid: U16::new(0xa101),
        cntlid: U16::new(0xffff),
        asqsz: U16::new(32),
        eflags: U16::new(eflags::DUPLICATE | eflags::PERSISTENT),
        subnqn: nqn.to_field(),
        ..DiscoveryEntry::default()
    };
    entry.set_address("192.0.2.1", "4420");
    entry.set_tsas(Tsas::Tcp { sectype: TcpSecurity::TLS_1_3 });
    assert_eq!(entry.as_bytes(), bytes);
    let read = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
    assert_eq!(read, entry);
    assert_eq!((read.address(), read.service()), (Some("192.0.2.1"), Some("4420")));
    assert_eq!(read.subnqn(), Ok(nqn));
    assert_eq!(read.tsas(), Tsas::Tcp { sectype: TcpSecurity::TLS_1_3 });
}

#[test]
fn rdma_tsas_bytes() {
    let mut entry = DiscoveryEntry { trtype: TransportType::RDMA, ..DiscoveryEntry::default() };
    let tsas = Tsas::Rdma {
        qptype: RdmaQueuePair::CONNECTED,
        prtype: RdmaProvider::ROCE_V2,
        cms: RdmaConnection::RDMA_CM,
        pkey: 0xffff,
    };
    entry.tsas = [0xee; 256];
    entry.set_tsas(tsas);
    assert_eq!(entry.tsas, golden::bytes(&[(0, &[1, 4, 1]), (8, &[0xff, 0xff])]));
    assert_eq!(entry.tsas(), tsas);
    entry.trtype = TransportType::INTRA_HOST;
    assert_eq!(entry.tsas(), Tsas::None);
}

#[test]
fn changed_namespaces_are_a_namespace_list() {
    let list = ChangedNamespaces::new([0xffff_ffff]);
    assert_eq!(list.as_bytes(), golden::bytes::<4096>(&[(0, &[0xff; 4])]));
}

proptest! {
    #[test]
    fn get_log_page_round_trip(
        lid: u8, lsp in 0u8..128, retain_event: bool, numd: u32, offset: u64, index_offset: bool,
        lsi: u16, csi: u8, nsid: u32,
    ) {
        let command = GetLogPage {
            lid: Lid(lid), lsp, retain_event, length: (u64::from(numd) + 1) * 4, offset,
            index_offset, lsi, csi: Csi(csi), nsid, uuid_index: lsp,
        };
        prop_assert_eq!(GetLogPage::parse(&command.encode(1)), command);
    }

    #[test]
    fn any_discovery_entry_is_read(bytes in proptest::collection::vec(any::<u8>(), 1024)) {
        let entry = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        let _ = (entry.address(), entry.service(), entry.subnqn(), entry.tsas());
    }
}
