use std::sync::Arc;

use nvmeof_random::SplitMix64;
use nvmeof_wire::identify::{Cns, Csi, Identify, NamespaceId, NamespaceIds, PreferredSizes};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Sqe, ascii};

use super::*;
use crate::admin::fixture::{
    cached_namespace, connect, discovery_controller, io_controller, namespace, nqn, subsystem,
};
use crate::admin::page::tests::read;
use crate::limits::{Limits, MAX_NAMESPACES, MAX_NSID};
use crate::spec::NamespaceSpec;
use crate::subsystem::Subsystem;

fn ask(controller: &Controller, command: Identify) -> Result<Vec<u8>, Failure> {
    whole(controller, &command.encode(1))
}

fn whole(controller: &Controller, sqe: &Sqe) -> Result<Vec<u8>, Failure> {
    read(0, IDENTIFY_SIZE, |page| identify(controller, sqe, page))
}

fn of(controller: &Controller, cns: Cns, nsid: u32) -> Result<Vec<u8>, Failure> {
    ask(controller, Identify::new(cns, nsid))
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(data[at..at + 2].try_into().unwrap())
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

#[test]
fn io_controller_reports_what_hosts_look_at() {
    let controller = io_controller(vec![cached_namespace(1)]);
    let data = of(&controller, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(data.len(), 4096);
    assert_eq!(ascii::text(&data[4..24]), Some("SERIAL0001"));
    assert_eq!(&data[14..24], b"          ", "padded with spaces");
    assert_eq!(ascii::text(&data[24..64]), Some("Model of Test"));
    assert_eq!(ascii::text(&data[64..72]), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(data[76], 0b011, "CMIC: many ports and controllers, no ANA");
    assert_eq!(data[77], 8, "MDTS: 1 MiB");
    assert_eq!(u16_at(&data, 78), controller.cntlid);
    assert_eq!(u32_at(&data, 80), 0x0002_0000, "VER");
    assert_eq!(u32_at(&data, 92), 1 << 8, "OAES: namespace attribute notices");
    assert_eq!(u32_at(&data, 96), 0b100_0001, "CTRATT: 128-bit host identifier, TBKAS");
    assert_eq!(data[111], 1, "CNTRLTYPE");
    assert_eq!(u16_at(&data, 256), 0, "OACS");
    assert_eq!(data[258], 3, "ACL");
    assert_eq!(data[259], 3, "AERL");
    assert_eq!(data[260], 0b011, "FRMW: one slot, read only");
    assert_eq!(data[261], 0b10_0110, "LPA: effects, extended, supported log pages");
    assert_eq!(data[262], 63, "ELPE");
    assert_eq!(data[263], 0, "NPSS");
    assert_eq!(u16_at(&data, 266), 0x157, "WCTEMP");
    assert_eq!(u16_at(&data, 268), 373, "CCTEMP");
    assert_eq!(u16_at(&data, 320), 10, "KAS: 1 s");
    assert_eq!(data[512], 0x66, "SQES");
    assert_eq!(data[513], 0x44, "CQES");
    assert_eq!(u16_at(&data, 514), 128, "MAXCMD");
    assert_eq!(u32_at(&data, 516), MAX_NAMESPACES, "NN");
    assert_eq!(u16_at(&data, 520), 0b1101_1101, "ONCS");
    assert_eq!(u16_at(&data, 522), 0, "FUSES");
    assert_eq!(data[525], 0b101, "VWC: present, no flush of all namespaces");
    assert_eq!(u32_at(&data, 526), 0, "AWUN, AWUPF: one block");
    assert_eq!(u32_at(&data, 536), 0x34_0001, "SGLS: supported, longer, offset, transport");
    assert_eq!(u32_at(&data, 540), MAX_NAMESPACES, "MNAN");
    let name = nqn("disks");
    assert_eq!(&data[768..768 + name.as_str().len()], name.as_str().as_bytes());
    assert!(data[768 + name.as_str().len()..1024].iter().all(|b| *b == 0), "NUL padded");
    assert_eq!(u32_at(&data, 1792), (64 + 8192) / 16, "IOCCSZ");
    assert_eq!(u32_at(&data, 1796), 1, "IORCSZ");
    assert_eq!(u16_at(&data, 1800), 0, "ICDOFF");
    assert_eq!(data[1802], 0, "FCATT: dynamic controllers");
    assert_eq!(data[1803], 1, "MSDBD");
    assert_eq!(u16_at(&data, 1804), 1, "OFCS: Disconnect");
}

#[test]
fn discovery_controller_reports_only_its_own() {
    let controller = discovery_controller();
    let data = of(&controller, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(data[111], 2, "CNTRLTYPE");
    assert_eq!(u32_at(&data, 92), 1 << 31, "OAES: discovery log changes");
    assert_eq!(u32_at(&data, 80), 0x0002_0000, "VER");
    assert_eq!(data[261], 0b10_0110, "LPA");
    assert_eq!(u32_at(&data, 536), 0x34_0001, "SGLS");
    assert_eq!(&data[768..804], b"nqn.2014-08.org.nvmexpress.discovery");
    assert_eq!(u16_at(&data, 512), 0, "SQES, CQES: no I/O queues");
    assert_eq!(u32_at(&data, 516), 0, "NN");
    assert_eq!(u16_at(&data, 520), 0, "ONCS");
    assert_eq!(data[525], 0, "VWC");
    assert_eq!(u32_at(&data, 1792), 0, "IOCCSZ");
    for cns in (0..=0xff).filter(|cns| *cns != Cns::CONTROLLER.0) {
        assert_eq!(of(&controller, Cns(cns), 1), Err(Failure::InvalidField), "CNS {cns:#x}");
    }
}

#[test]
fn limits_reach_the_host() {
    let limits = Limits {
        queue_depth: 32,
        max_transfer: 128 << 10,
        in_capsule: 4096,
        keep_alive_min_ms: 300,
        ..Limits::default()
    };
    let subsystem = Arc::new(Subsystem::new(subsystem("small", vec![])));
    let controller = connect(&subsystem, limits, "host");
    let data = of(&controller, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(data[77], 5, "MDTS: 128 KiB");
    assert_eq!(u16_at(&data, 514), 32, "MAXCMD");
    assert_eq!(u16_at(&data, 320), 3, "KAS");
    assert_eq!(u32_at(&data, 1792), (64 + 4096) / 16, "IOCCSZ");
    let data = of(&controller, Cns::CSI_CONTROLLER, 0).unwrap();
    assert_eq!(data[0], 5, "VSL is MDTS");
    assert_eq!(data[1], 13, "WZSL: 32 MiB");
    assert_eq!(data[2], 0, "WUSL");
    assert_eq!(data[3], 255, "DMRL");
    assert_eq!(u32_at(&data, 4), 1 << 23, "DMRSL: 4 GiB in blocks of 512 bytes");
    assert_eq!(u64_at(&data, 8), 1 << 31, "DMSL: as many ranges as there may be");
    assert!(data[16..].iter().all(|b| *b == 0), "reserved");
}

#[test]
fn a_host_without_a_cache_is_never_told_of_one() {
    let controller = io_controller(vec![namespace(1)]);
    let vwc = || of(&controller, Cns::CONTROLLER, 0).unwrap()[525];
    assert_eq!(vwc(), 0b100);
    assert!(controller.write_through());
    controller.subsystem.set_namespaces(vec![namespace(1), cached_namespace(2)]);
    assert_eq!(vwc(), 0b100, "hosts read it once");
    assert!(controller.write_through(), "so writes to the new namespace are durable at once");
}

#[test]
fn namespace_structure_is_what_was_configured() {
    let spec = NamespaceSpec {
        block_size: 4096,
        blocks: 0x1234_5678_9abc,
        read_only: true,
        deallocate: true,
        deallocate_reads_zero: true,
        write_zeroes: true,
        ..namespace(3)
    };
    let controller = io_controller(vec![spec, namespace(4)]);
    let data = of(&controller, Cns::NAMESPACE, 3).unwrap();
    for at in [0, 8, 16] {
        assert_eq!(u64_at(&data, at), 0x1234_5678_9abc, "NSZE, NCAP, NUSE");
    }
    assert_eq!(data[24], 0, "NSFEAT");
    assert_eq!(data[25], 0, "NLBAF: one format");
    assert_eq!(data[26], 0, "FLBAS");
    assert_eq!(data[30], 1, "NMIC: shared");
    assert_eq!(data[33], 0b1001, "DLFEAT: zeroes, Write Zeroes deallocates");
    let capacity = u128::from_le_bytes(data[48..64].try_into().unwrap());
    assert_eq!(capacity, 0x1234_5678_9abc * 4096, "NVMCAP");
    assert_eq!(data[99], 1, "NSATTR: write protected");
    assert_eq!(data[104..120], [0x22; 16], "NGUID");
    assert_eq!(data[120..128], [0x33; 8], "EUI64");
    assert_eq!(data[128..132], [0, 0, 12, 0], "LBAF0: no metadata, 4096 bytes");
    assert!(data[132..].iter().all(|b| *b == 0), "no other format");

    let data = of(&controller, Cns::NAMESPACE, 4).unwrap();
    assert_eq!(data[33], 0, "DLFEAT: not reported");
    assert_eq!(data[99], 0, "NSATTR");
    assert_eq!(data[130], 9, "LBADS: 512 bytes");
}

#[test]
fn independent_structure_says_ready() {
    let controller =
        io_controller(vec![NamespaceSpec { read_only: true, ..namespace(1) }, namespace(2)]);
    let data = of(&controller, Cns::INDEPENDENT_NAMESPACE, 1).unwrap();
    assert_eq!(data[..16], [0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]);
    assert!(data[16..].iter().all(|b| *b == 0));
    let data = of(&controller, Cns::INDEPENDENT_NAMESPACE, 2).unwrap();
    assert_eq!(data[8], 0, "NSATTR");
}

/// Result for an NSID: nonzero data, zeroes, or a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    Data,
    Zeroes,
    Not(Failure),
}

fn comes(answer: Result<Vec<u8>, Failure>) -> Comes {
    match answer {
        Err(failure) => Comes::Not(failure),
        Ok(data) if data.iter().all(|b| *b == 0) => Comes::Zeroes,
        Ok(_) => Comes::Data,
    }
}

#[test]
fn every_structure_has_its_own_rules_of_nsid() {
    let controller = io_controller(vec![namespace(1), namespace(5)]);
    let invalid = Comes::Not(Failure::InvalidNamespace);
    let field = Comes::Not(Failure::InvalidField);
    let (data, zeroes) = (Comes::Data, Comes::Zeroes);
    let nsids =
        [0, 1, 2, 5, MAX_NAMESPACES, MAX_NAMESPACES + 1, NSID_ALL - 2, NSID_ALL - 1, NSID_ALL];
    let rules = [
        (Cns::NAMESPACE, [invalid, data, zeroes, data, zeroes, invalid, invalid, invalid, invalid]),
        // Lists of the NSIDs above.
        (
            Cns::ACTIVE_NAMESPACES,
            [data, data, data, zeroes, zeroes, zeroes, zeroes, invalid, invalid],
        ),
        (
            Cns::CSI_ACTIVE_NAMESPACES,
            [data, data, data, zeroes, zeroes, zeroes, zeroes, invalid, invalid],
        ),
        // Active NSIDs only.
        (
            Cns::NAMESPACE_DESCRIPTORS,
            [invalid, data, invalid, data, invalid, invalid, invalid, invalid, invalid],
        ),
        // Nothing to report for an active NSID either.
        (
            Cns::CSI_NAMESPACE,
            [invalid, zeroes, zeroes, zeroes, zeroes, invalid, invalid, invalid, invalid],
        ),
        (
            Cns::INDEPENDENT_NAMESPACE,
            [invalid, data, zeroes, data, zeroes, invalid, invalid, invalid, invalid],
        ),
        // Data of the controller: NSID is ignored.
        (Cns::CONTROLLER, [data; 9]),
        (Cns::CSI_CONTROLLER, [data; 9]),
        // Unsupported optional structures.
        (Cns::NVM_SETS, [field; 9]),
        (Cns::ALLOCATED_NAMESPACES, [field; 9]),
        (Cns::ALLOCATED_NAMESPACE, [field; 9]),
        (Cns::CONTROLLERS, [field; 9]),
        (Cns::UUIDS, [field; 9]),
    ];
    for (cns, expected) in rules {
        for (nsid, expected) in nsids.into_iter().zip(expected) {
            assert_eq!(comes(of(&controller, cns, nsid)), expected, "{cns}, NSID {nsid:#x}");
        }
    }
}

#[test]
fn other_command_sets_are_refused() {
    let controller = io_controller(vec![namespace(1)]);
    for csi in [Csi::KEY_VALUE, Csi::ZONED, Csi(0xff)] {
        let of = |cns, nsid| ask(&controller, Identify { csi, ..Identify::new(cns, nsid) });
        assert_eq!(of(Cns::CSI_NAMESPACE, 1), Err(Failure::InvalidCommandSet));
        assert_eq!(of(Cns::CSI_NAMESPACE, 0), Err(Failure::InvalidNamespace));
        assert_eq!(of(Cns::CSI_CONTROLLER, 0), Ok(vec![0; IDENTIFY_SIZE]), "no limits");
        assert_eq!(of(Cns::CSI_ACTIVE_NAMESPACES, 0), Err(Failure::InvalidField));
    }
}

#[test]
fn command_sets_are_those_of_a_controller_that_exists() {
    let controller = io_controller(vec![]);
    let of = |cntid| ask(&controller, Identify { cntid, ..Identify::new(Cns::COMMAND_SETS, 0) });
    for cntid in [CNTID_SELF, controller.cntlid] {
        let data = of(cntid).unwrap();
        assert_eq!(u64_at(&data, 0), 1, "NVM");
        assert!(data[8..].iter().all(|b| *b == 0), "no other combination");
    }
    assert_eq!(of(controller.cntlid + 1), Err(Failure::InvalidField));
}

#[test]
fn preferred_sizes_fit_into_a_command() {
    let sizes = PreferredSizes {
        write_granularity: Some(8),
        write_alignment: Some(8),
        deallocate_granularity: Some(32),
        deallocate_alignment: Some(16),
        optimal_write: Some(2048),
        boundary: Some(256),
    };
    let of = |preferred| {
        let controller = io_controller(vec![NamespaceSpec { preferred, ..namespace(1) }]);
        assert_eq!(controller.limits.max_transfer(), 2048 * 512);
        of(&controller, Cns::NAMESPACE, 1).unwrap()
    };
    let data = of(sizes);
    assert_eq!(data[24], 1 << 4, "NSFEAT: OPTPERF");
    assert_eq!(u16_at(&data, 46), 256, "NOIOB");
    let zero_based = [64, 66, 68, 70, 72].map(|at| u16_at(&data, at));
    assert_eq!(zero_based, [7, 7, 31, 15, 2047], "NPWG, NPWA, NPDG, NPDA, NOWS");
    // A RAID with more in a stripe, or in a chunk, than fits into a command.
    let large = PreferredSizes {
        write_granularity: Some(4096),
        optimal_write: Some(2056),
        boundary: Some(4096),
        ..sizes
    };
    let data = of(large);
    assert_eq!(u16_at(&data, 46), 0, "NOIOB");
    let zero_based = [64, 66, 68, 70, 72].map(|at| u16_at(&data, at));
    assert_eq!(zero_based, [0, 7, 31, 15, 0], "NPWG, NPWA, NPDG, NPDA, NOWS");
    let data = of(PreferredSizes::default());
    assert!(data[24] == 0 && data[64..74].iter().all(|byte| *byte == 0), "nothing to report");
}

#[test]
fn nsids_reach_up_to_the_broadcast_value() {
    let controller = io_controller(vec![namespace(MAX_NSID), namespace(4420)]);
    let data = of(&controller, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(u32_at(&data, 516), 0xffff_fffe, "NN");
    assert_eq!(u32_at(&data, 540), 1024, "MNAN");
    let data = of(&controller, Cns::ACTIVE_NAMESPACES, 0).unwrap();
    assert_eq!((u32_at(&data, 0), u32_at(&data, 4), u32_at(&data, 8)), (4420, 0xffff_fffe, 0));
    for nsid in [4420, MAX_NSID] {
        assert_eq!(u64_at(&of(&controller, Cns::NAMESPACE, nsid).unwrap(), 0), 1000, "NSZE");
    }
    assert_eq!(u64_at(&of(&controller, Cns::NAMESPACE, 4421).unwrap(), 0), 0, "inactive");
    assert_eq!(of(&controller, Cns::NAMESPACE, NSID_ALL), Err(Failure::InvalidNamespace));

    // Above the highest NSID of the subsystem, NSIDs are invalid.
    let controller = io_controller(vec![namespace(4420)]);
    assert_eq!(u32_at(&of(&controller, Cns::CONTROLLER, 0).unwrap(), 516), 4420, "NN");
    assert_eq!(of(&controller, Cns::NAMESPACE, 4421), Err(Failure::InvalidNamespace));
    controller.subsystem.set_namespaces(vec![namespace(7)]);
    assert_eq!(u32_at(&of(&controller, Cns::CONTROLLER, 0).unwrap(), 516), 1024, "NN");
}

#[test]
fn lists_have_1024_ascending_nsids() {
    let controller = io_controller((1..=MAX_NAMESPACES).rev().map(namespace).collect());
    let data = of(&controller, Cns::ACTIVE_NAMESPACES, 0).unwrap();
    let nsids: Vec<u32> =
        data.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(nsids, (1..=1024).collect::<Vec<_>>());
    let data = of(&controller, Cns::ACTIVE_NAMESPACES, 1022).unwrap();
    assert_eq!(u32_at(&data, 0), 1023);
    assert_eq!(u32_at(&data, 4), 1024);
    assert_eq!(u32_at(&data, 8), 0);
}

#[test]
fn descriptors_name_only_what_there_is() {
    let bare = NamespaceSpec { uuid: [0; 16], nguid: [0; 16], eui64: [0; 8], ..namespace(2) };
    let controller = io_controller(vec![namespace(1), bare]);
    let of = |nsid| {
        let data = of(&controller, Cns::NAMESPACE_DESCRIPTORS, nsid).unwrap();
        NamespaceIds::new(&data).collect::<Vec<_>>()
    };
    assert_eq!(
        of(1),
        [
            NamespaceId::Eui64([0x33; 8]),
            NamespaceId::Nguid([0x22; 16]),
            NamespaceId::Uuid([0x11; 16]),
            NamespaceId::Csi(Csi::NVM),
        ]
    );
    assert_eq!(of(2), [NamespaceId::Csi(Csi::NVM)]);
}

#[test]
fn any_command_is_answered_in_full_or_refused() {
    let controllers =
        [io_controller(vec![namespace(1), cached_namespace(9)]), discovery_controller()];
    let mut random = SplitMix64::new(0x1d);
    for _ in 0..20_000 {
        let mut bytes = [0; 64];
        random.fill(&mut bytes);
        let mut sqe = *Sqe::ref_from_bytes(&bytes).unwrap();
        // Half of them are near supported values; otherwise all would fail because of their CNS.
        if random.coin() {
            sqe.cdw10.set(sqe.cdw10.get() & 0xffff_001f);
            sqe.nsid.set(sqe.nsid.get() & 0xf);
        }
        for controller in &controllers {
            match whole(controller, &sqe) {
                Ok(data) => assert_eq!(data.len(), IDENTIFY_SIZE),
                Err(failure) => assert!(matches!(
                    failure,
                    Failure::InvalidField | Failure::InvalidNamespace | Failure::InvalidCommandSet
                )),
            }
        }
    }
}
