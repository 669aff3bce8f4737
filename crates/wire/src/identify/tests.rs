use proptest::prelude::*;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;
use crate::ascii;
use crate::golden;

#[test]
fn identify_bytes() {
    let bytes: [u8; 64] = golden::bytes(&[
        (0, &[0x06, 0x40, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12]),
        (40, &[0x05, 0, 0xcd, 0xab]), // CNS, CNTID
        (44, &[0x21, 0x43, 0, 0x02]), // CNS specific, CSI
        (56, &[0x7f]),                // UUID index
    ]);
    let command = Identify {
        cns: Cns::CSI_NAMESPACE,
        nsid: 0x1234_5678,
        cntid: 0xabcd,
        csi: Csi::ZONED,
        cns_specific: 0x4321,
        uuid_index: 0x7f,
    };
    assert_eq!(command.encode(0x1234).as_bytes(), bytes);
    assert_eq!(Identify::parse(&Sqe::read_from_bytes(&bytes).unwrap()), command);
}

/// Every field of Base 5.17.2.1 (Figure 275) with different bytes.
#[expect(clippy::too_many_lines, reason = "one table")]
fn golden_controller() -> [u8; 4096] {
    golden::bytes(&[
        (0, &[0x01, 0xa1]),
        (2, &[0x02, 0xa2]),
        (4, b"SERIAL-0001         "),
        (24, b"A model                                 "),
        (64, b"1.0     "),
        (72, &[6]),
        (73, &[0xe3, 0xd2, 0xc1]),
        (76, &[0x0b]),
        (77, &[9]),
        (78, &[0x03, 0xa3]),
        (80, &[0x00, 0x00, 0x02, 0x00]),
        (84, &[0x04, 0, 0, 0xa4]),
        (88, &[0x05, 0, 0, 0xa5]),
        (92, &[0x00, 0x01, 0, 0x80]),
        (96, &[0x07, 0, 0, 0xa7]),
        (100, &[0x08, 0xa8]),
        (111, &[0x01]),
        (112, &[0xf9; 16]),
        (128, &[0x0a, 0xaa]),
        (130, &[0x0b, 0xab]),
        (132, &[0x0c, 0xac]),
        (253, &[0x0d]),
        (254, &[0x0e]),
        (255, &[0x0f]),
        (256, &[0x10, 0xb0]),
        (258, &[0x11]),
        (259, &[0x12]),
        (260, &[0x13]),
        (261, &[0x14]),
        (262, &[0x15]),
        (263, &[0x16]),
        (264, &[0x17]),
        (265, &[0x18]),
        (266, &[0x19, 0xb9]),
        (268, &[0x1a, 0xba]),
        (270, &[0x1b, 0xbb]),
        (272, &[0x1c, 0, 0, 0xbc]),
        (276, &[0x1d, 0, 0, 0xbd]),
        (280, &[0x1e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xbe]),
        (296, &[0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xbf]),
        (312, &[0x20, 0, 0, 0xc0]),
        (316, &[0x21, 0xc1]),
        (318, &[0x22]),
        (319, &[0x23]),
        (320, &[0x24, 0xc4]),
        (322, &[0x25, 0xc5]),
        (324, &[0x26, 0xc6]),
        (326, &[0x27, 0xc7]),
        (328, &[0x28, 0, 0, 0xc8]),
        (332, &[0x29, 0, 0, 0xc9]),
        (336, &[0x2a, 0xca]),
        (338, &[0x2b, 0xcb]),
        (340, &[0x2c, 0xcc]),
        (342, &[0x2d]),
        (343, &[0x2e]),
        (344, &[0x2f, 0, 0, 0xcf]),
        (348, &[0x30, 0, 0, 0xd0]),
        (352, &[0x31, 0, 0, 0xd1]),
        (356, &[0x32, 0xd2]),
        (368, &[0x33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xd3]),
        (512, &[0x66]),
        (513, &[0x44]),
        (514, &[0x34, 0xd4]),
        (516, &[0x35, 0, 0, 0xd5]),
        (520, &[0x36, 0xd6]),
        (522, &[0x37, 0xd7]),
        (524, &[0x38]),
        (525, &[0x07]),
        (526, &[0x39, 0xd9]),
        (528, &[0x3a, 0xda]),
        (530, &[0x3b]),
        (531, &[0x3c]),
        (532, &[0x3d, 0xdd]),
        (534, &[0x3e, 0xde]),
        (536, &[0x05, 0, 0x30, 0]),
        (540, &[0x3f, 0, 0, 0xdf]),
        (544, &[0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe0]),
        (560, &[0x41, 0, 0, 0xe1]),
        (768, b"nqn.2026-11.io.example:sub"),
        (1792, &[0x04, 0x02, 0, 0]),
        (1796, &[0x01, 0, 0, 0]),
        (1800, &[0x42, 0xe2]),
        (1802, &[0x01]),
        (1803, &[0x43]),
        (1804, &[0x01, 0]),
        (2048, &[0xc4, 0x09, 0, 0x02, 0x44, 0, 0, 0xe4, 0x45, 0, 0, 0xe5, 1, 2, 3, 4, 5, 6, 0x40]),
        (2068, &[0x46, 0xe6, 0x82]),
        (3040, &[0x99]), // the last descriptor
        (3072, &[0xee; 1024]),
    ])
}

/// The same structure, by field name.
fn controller_fields() -> Controller {
    let mut c = Controller::new_zeroed();
    c.vid = U16::new(0xa101);
    c.ssvid = U16::new(0xa202);
    c.sn = ascii::padded("SERIAL-0001");
    c.mn = ascii::padded("A model");
    c.fr = ascii::padded("1.0");
    c.rab = 6;
    c.ieee = [0xe3, 0xd2, 0xc1];
    c.cmic = cmic::MULTIPLE_PORTS | cmic::MULTIPLE_CONTROLLERS | cmic::ANA;
    c.mdts = 9;
    c.cntlid = U16::new(0xa303);
    c.ver = U32::new(crate::properties::Version::V2_0.into_bits());
    c.rtd3r = U32::new(0xa400_0004);
    c.rtd3e = U32::new(0xa500_0005);
    c.oaes = U32::new(oaes::NAMESPACE_ATTRIBUTE | oaes::DISCOVERY_LOG_CHANGE);
    c.ctratt = U32::new(0xa700_0007);
    c.rrls = U16::new(0xa808);
    c.cntrltype = ControllerType::IO.0;
    c.fguid = [0xf9; 16];
    c.crdt1 = U16::new(0xaa0a);
    c.crdt2 = U16::new(0xab0b);
    c.crdt3 = U16::new(0xac0c);
    (c.nvmsr, c.vwci, c.mec) = (0x0d, 0x0e, 0x0f);
    c.oacs = U16::new(0xb010);
    (c.acl, c.aerl, c.frmw, c.lpa) = (0x11, 0x12, 0x13, 0x14);
    (c.elpe, c.npss, c.avscc, c.apsta) = (0x15, 0x16, 0x17, 0x18);
    c.wctemp = U16::new(0xb919);
    c.cctemp = U16::new(0xba1a);
    c.mtfa = U16::new(0xbb1b);
    c.hmpre = U32::new(0xbc00_001c);
    c.hmmin = U32::new(0xbd00_001d);
    c.tnvmcap = U128::new(0xbe << 120 | 0x1e);
    c.unvmcap = U128::new(0xbf << 120 | 0x1f);
    c.rpmbs = U32::new(0xc000_0020);
    c.edstt = U16::new(0xc121);
    (c.dsto, c.fwug) = (0x22, 0x23);
    c.kas = U16::new(0xc424);
    c.hctma = U16::new(0xc525);
    c.mntmt = U16::new(0xc626);
    c.mxtmt = U16::new(0xc727);
    c.sanicap = U32::new(0xc800_0028);
    c.hmminds = U32::new(0xc900_0029);
    c.hmmaxd = U16::new(0xca2a);
    c.nsetidmax = U16::new(0xcb2b);
    c.endgidmax = U16::new(0xcc2c);
    (c.anatt, c.anacap) = (0x2d, 0x2e);
    c.anagrpmax = U32::new(0xcf00_002f);
    c.nanagrpid = U32::new(0xd000_0030);
    c.pels = U32::new(0xd100_0031);
    c.domain_id = U16::new(0xd232);
    c.megcap = U128::new(0xd3 << 120 | 0x33);
    controller_nvm_fields(&mut c);
    c
}

/// Fields from byte 512 on.
fn controller_nvm_fields(c: &mut Controller) {
    (c.sqes, c.cqes) = (0x66, 0x44);
    c.maxcmd = U16::new(0xd434);
    c.nn = U32::new(0xd500_0035);
    c.oncs = U16::new(0xd636);
    c.fuses = U16::new(0xd737);
    c.fna = 0x38;
    c.vwc = vwc::PRESENT | vwc::FLUSH_ALL_SUPPORTED;
    c.awun = U16::new(0xd939);
    c.awupf = U16::new(0xda3a);
    (c.icsvscc, c.nwpc) = (0x3b, 0x3c);
    c.acwu = U16::new(0xdd3d);
    c.cdfs = U16::new(0xde3e);
    c.sgls = U32::new(sgls::SUPPORTED | sgls::KEYED | sgls::OFFSET | sgls::TRANSPORT);
    c.mnan = U32::new(0xdf00_003f);
    c.maxdna = U128::new(0xe0 << 120 | 0x40);
    c.maxcna = U32::new(0xe100_0041);
    c.subnqn = "nqn.2026-11.io.example:sub".parse::<crate::Nqn>().unwrap().to_field();
    c.ioccsz = U32::new(4 + 8192 / 16);
    c.iorcsz = U32::new(1);
    c.icdoff = U16::new(0xe242);
    (c.fcatt, c.msdbd) = (0x01, 0x43);
    c.ofcs = U16::new(ofcs::DISCONNECT);
    c.psd[0] = PowerState {
        mp: U16::new(2500),
        reserved2: 0,
        flags: 0x02,
        enlat: U32::new(0xe400_0044),
        exlat: U32::new(0xe500_0045),
        rrt: 1,
        rrl: 2,
        rwt: 3,
        rwl: 4,
        idlp: U16::new(0x0605),
        ips: 0x40,
        reserved19: 0,
        actp: U16::new(0xe646),
        apw_aps: 0x82,
        reserved23: [0; 9],
    };
    c.psd[31].mp = U16::new(0x99);
    c.vendor = [0xee; 1024];
}

#[test]
fn controller_bytes() {
    assert_eq!(controller_fields().as_bytes(), golden_controller());
    let c = Controller::read_from_bytes(&golden_controller()).unwrap();
    assert_eq!(c, controller_fields());
    assert_eq!(c.subnqn().unwrap().as_str(), "nqn.2026-11.io.example:sub");
    assert_eq!(c.in_capsule_data(), 8192);
    assert_eq!(ascii::text(&c.sn), Some("SERIAL-0001"));
    assert_eq!(Controller::default().in_capsule_data(), 0);
}

/// Every field of the Identify Namespace structure (NVM 4.1.5.1) with different bytes.
fn golden_namespace() -> [u8; 4096] {
    golden::bytes(&[
        (0, &[1, 0, 0, 0, 0, 0, 0, 0xa1]),
        (8, &[2, 0, 0, 0, 0, 0, 0, 0xa2]),
        (16, &[3, 0, 0, 0, 0, 0, 0, 0xa3]),
        (24, &[0x14]),
        (25, &[5]),
        (26, &[0x21]),
        (27, &[7]),
        (28, &[8]),
        (29, &[9]),
        (30, &[0x01]),
        (31, &[11]),
        (32, &[12]),
        (33, &[0x09]),
        (34, &[14, 0xae]),
        (36, &[15, 0xaf]),
        (38, &[16, 0xb0]),
        (40, &[17, 0xb1]),
        (42, &[18, 0xb2]),
        (44, &[19, 0xb3]),
        (46, &[20, 0xb4]),
        (48, &[21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb5]),
        (64, &[22, 0xb6]),
        (66, &[23, 0xb7]),
        (68, &[24, 0xb8]),
        (70, &[25, 0xb9]),
        (72, &[26, 0xba]),
        (74, &[27, 0xbb]),
        (76, &[28, 0, 0, 0xbc]),
        (80, &[29]),
        (92, &[30, 0, 0, 0xbe]),
        (99, &[0x01]),
        (100, &[31, 0xbf]),
        (102, &[32, 0xc0]),
        (104, &[0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xaf]),
        (120, &[0xe0, 1, 2, 3, 4, 5, 6, 0xe7]),
        (128, &[0, 0, 9, 2]),
        (196, &[8, 0, 12, 0]), // LBAF17
        (380, &[0, 1, 13, 3]), // LBAF63
        (384, &[0xdd; 3712]),
    ])
}

#[test]
fn namespace_bytes() {
    let mut n = Namespace::new_zeroed();
    n.nsze = U64::new(0xa1 << 56 | 1);
    n.ncap = U64::new(0xa2 << 56 | 2);
    n.nuse = U64::new(0xa3 << 56 | 3);
    n.nsfeat = nsfeat::OPTIMAL_IO | nsfeat::DEALLOCATED_ERROR;
    n.nlbaf = 5;
    n.flbas = 0x21;
    (n.mc, n.dpc, n.dps) = (7, 8, 9);
    n.nmic = nmic::SHARED;
    (n.rescap, n.fpi) = (11, 12);
    n.dlfeat = dlfeat::READ_ZEROES | dlfeat::WRITE_ZEROES_DEALLOCATES;
    n.nawun = U16::new(0xae0e);
    n.nawupf = U16::new(0xaf0f);
    n.nacwu = U16::new(0xb010);
    n.nabsn = U16::new(0xb111);
    n.nabo = U16::new(0xb212);
    n.nabspf = U16::new(0xb313);
    n.noiob = U16::new(0xb414);
    n.nvmcap = U128::new(0xb5 << 120 | 21);
    n.npwg = U16::new(0xb616);
    n.npwa = U16::new(0xb717);
    n.npdg = U16::new(0xb818);
    n.npda = U16::new(0xb919);
    n.nows = U16::new(0xba1a);
    n.mssrl = U16::new(0xbb1b);
    n.mcl = U32::new(0xbc00_001c);
    n.msrc = 29;
    n.anagrpid = U32::new(0xbe00_001e);
    n.nsattr = nsattr::WRITE_PROTECTED;
    n.nvmsetid = U16::new(0xbf1f);
    n.endgid = U16::new(0xc020);
    n.nguid = [0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xaf];
    n.eui64 = [0xe0, 1, 2, 3, 4, 5, 6, 0xe7];
    n.lbaf[0] = LbaFormat { ms: U16::new(0), lbads: 9, rp: 2 };
    n.lbaf[17] = LbaFormat { ms: U16::new(8), lbads: 12, rp: 0 };
    n.lbaf[63] = LbaFormat { ms: U16::new(256), lbads: 13, rp: 3 };
    n.vendor = [0xdd; 3712];
    assert_eq!(n.as_bytes(), golden_namespace());
    let read = Namespace::read_from_bytes(&golden_namespace()).unwrap();
    assert_eq!(read, n);
    // FLBAS 21h: bits 6:5 are 01b, bits 3:0 are 1h, so format 17.
    assert_eq!((read.format_index(), read.block_size()), (17, Some(4096)));
}

#[test]
fn a_block_size_that_cannot_be_is_none() {
    let mut n = Namespace::default();
    for (lbads, size) in [(0, None), (8, None), (9, Some(512)), (31, Some(1 << 31)), (32, None)] {
        n.lbaf[0].lbads = lbads;
        assert_eq!(n.block_size(), size);
    }
    n.flbas = 0xff;
    assert_eq!(n.format_index(), 63);
    assert_eq!(n.block_size(), None);
}

#[test]
fn independent_namespace_bytes() {
    // Base 5.17.2.8, Figure 280.
    let bytes: [u8; 4096] = golden::bytes(&[
        (0, &[0x08]),
        (1, &[0x01]),
        (2, &[3]),
        (3, &[4]),
        (4, &[5, 0, 0, 0xa5]),
        (8, &[0x01]),
        (10, &[6, 0xa6]),
        (12, &[7, 0xa7]),
        (14, &[0x01]),
    ]);
    let mut n = IndependentNamespace::new_zeroed();
    n.nsfeat = nsfeat::UID_REUSE;
    n.nmic = nmic::SHARED;
    (n.rescap, n.fpi) = (3, 4);
    n.anagrpid = U32::new(0xa500_0005);
    n.nsattr = nsattr::WRITE_PROTECTED;
    n.nvmsetid = U16::new(0xa606);
    n.endgid = U16::new(0xa707);
    n.nstat = nstat::READY;
    assert_eq!(n.as_bytes(), bytes);
    assert_eq!(IndependentNamespace::read_from_bytes(&bytes).unwrap(), n);
}

#[test]
fn command_set_structures() {
    // CNS 06h, CSI 00h: VSL, WZSL, WUSL, DMRL, DMRSL, DMSL.
    let bytes: [u8; 4096] = golden::bytes(&[
        (0, &[1, 2, 3, 4]),
        (4, &[5, 0, 0, 0xa5]),
        (8, &[6, 0, 0, 0, 0, 0, 0, 0xa6]),
    ]);
    let controller = NvmController {
        vsl: 1,
        wzsl: 2,
        wusl: 3,
        dmrl: 4,
        dmrsl: U32::new(0xa500_0005),
        dmsl: U64::new(0xa6 << 56 | 6),
        ..NvmController::default()
    };
    assert_eq!(controller.as_bytes(), bytes);
    assert_eq!(NvmController::read_from_bytes(&bytes).unwrap(), controller);

    // CNS 05h, CSI 00h: LBSTM, PIC, ELBAF0 to 63.
    let bytes: [u8; 4096] = golden::bytes(&[
        (0, &[1, 0, 0, 0, 0, 0, 0, 0xa1]),
        (8, &[2]),
        (12, &[3, 1, 0, 0]),
        (264, &[4, 0, 0, 0]),
    ]);
    let mut namespace =
        NvmNamespace { lbstm: U64::new(0xa1 << 56 | 1), pic: 2, ..NvmNamespace::default() };
    namespace.elbaf[0] = U32::new(0x103);
    namespace.elbaf[63] = U32::new(4);
    assert_eq!(namespace.as_bytes(), bytes);
    assert_eq!(NvmNamespace::read_from_bytes(&bytes).unwrap(), namespace);

    // CNS 1Ch: one vector with bits 0 and 2.
    let sets = CommandSetCombinations::only(&[Csi::NVM, Csi::ZONED, Csi(64), Csi(255)]);
    assert_eq!(sets.as_bytes(), golden::bytes::<4096>(&[(0, &[0b101])]));
}

#[test]
fn nsid_list_bytes() {
    let bytes: [u8; 4096] = golden::bytes(&[(0, &[1]), (4, &[7]), (8, &[0x78, 0x56, 0x34, 0x12])]);
    let list = NsidList::new([1, 7, 0x1234_5678]);
    assert_eq!(list.as_bytes(), bytes);
    let read = NsidList::read_from_bytes(&bytes).unwrap();
    assert_eq!(read.iter().collect::<Vec<_>>(), [1, 7, 0x1234_5678]);
    // A list has at most 1024 entries; a full one has no terminator.
    let full = NsidList::new(1..5000);
    assert_eq!(full.iter().collect::<Vec<_>>(), (1..=1024).collect::<Vec<_>>());
}

#[test]
fn descriptor_bytes() {
    // Base 5.17.2.3: NIDT, NIDL, two reserved bytes, NID.
    let uuid = *b"0123456789abcdef";
    let bytes: [u8; 4096] = golden::bytes(&[
        (0, &[0x03, 16]),
        (4, &uuid),
        (20, &[0x02, 16]),
        (24, &[0xaa; 16]),
        (40, &[0x01, 8]),
        (44, &[0xbb; 8]),
        (52, &[0x04, 1]),
        (56, &[0x02]),
    ]);
    let ids = [
        NamespaceId::Uuid(uuid),
        NamespaceId::Nguid([0xaa; 16]),
        NamespaceId::Eui64([0xbb; 8]),
        NamespaceId::Csi(Csi::ZONED),
    ];
    assert_eq!(NamespaceIds::encode(&ids), bytes);
    assert_eq!(NamespaceIds::new(&bytes).collect::<Vec<_>>(), ids);
}

#[test]
fn descriptors_that_are_not_whole_end_the_list() {
    let unknown = NamespaceId::Unknown(IdentifierType(9));
    let list = [9, 2, 0, 0, 0xaa, 0xbb, 3, 15, 0, 0];
    assert_eq!(NamespaceIds::new(&list).collect::<Vec<_>>(), [unknown]);
    // A known type with the wrong length is not that identifier.
    let short = [1, 2, 0, 0, 0xaa, 0xbb];
    let eui64 = NamespaceId::Unknown(IdentifierType::EUI64);
    assert_eq!(NamespaceIds::new(&short).collect::<Vec<_>>(), [eui64]);
    assert_eq!(NamespaceIds::new(&[1, 8, 0]).count(), 0);
    // Unknown ones cannot be written, and those that do not fit are dropped.
    let many = [NamespaceId::Uuid([1; 16]); 300];
    let all = NamespaceIds::encode(&[&[unknown][..], &many].concat());
    assert_eq!(NamespaceIds::new(&all).count(), 4096 / 20);
}

proptest! {
    #[test]
    fn any_descriptor_list_is_read(bytes in proptest::collection::vec(0u8..32, 0..600)) {
        let ids: Vec<_> = NamespaceIds::new(&bytes).collect();
        prop_assert!(ids.len() <= bytes.len() / 5);
    }

    #[test]
    fn identify_round_trip(
        cns: u8, nsid: u32, cntid: u16, csi: u8, cns_specific: u16, uuid_index in 0u8..128,
    ) {
        let command =
            Identify { cns: Cns(cns), nsid, cntid, csi: Csi(csi), cns_specific, uuid_index };
        prop_assert_eq!(Identify::parse(&command.encode(1)), command);
    }

    #[test]
    fn any_namespace_has_a_format(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        let n = Namespace::read_from_bytes(&bytes).unwrap();
        prop_assert!(n.block_size().is_none_or(|size| size >= 512 && size.is_power_of_two()));
    }
}

#[test]
fn numbers_of_a_controller() {
    let mut controller = Controller::default();
    assert_eq!(controller.max_transfer(4096), None);
    controller.mdts = 5;
    assert_eq!(controller.max_transfer(4096), Some(128 << 10));
    assert_eq!(controller.max_transfer(8192), Some(256 << 10));
    controller.mdts = 255;
    assert_eq!(controller.max_transfer(1 << 27), None);
    controller.sqes = 0x66;
    controller.cqes = 0x54;
    assert_eq!(controller.entry_sizes(), (6, 4));
    // Base 5.17.2.1: OACS bit 8, FUSES bit 0, FNA bits 0 to 3.
    assert_eq!((oacs::DOORBELL_BUFFER, fuses::COMPARE_AND_WRITE), (0x100, 1));
    assert_eq!(fna::FORMAT_ALL | fna::ERASE_ALL | fna::CRYPTO_ERASE | fna::NO_BROADCAST, 0xf);
}

#[test]
fn numbers_of_a_namespace() {
    let mut namespace = Namespace::default();
    assert_eq!((namespace.formats().len(), namespace.block_size()), (1, None));
    assert_eq!((namespace.io_boundary(), namespace.atomic_write_blocks()), (None, None));
    assert_eq!(namespace.format_remaining(), None);
    namespace.nlbaf = 255;
    assert_eq!(namespace.formats().len(), 64);
    namespace.lbaf[2] = LbaFormat::new(12);
    namespace.flbas = 0x12;
    assert_eq!((namespace.block_size(), namespace.metadata_inline()), (Some(4096), true));
    assert_eq!(LbaFormat::new(32).block_size(), None);
    namespace.dps = 0x0b;
    assert_eq!(namespace.protection(), 3);
    namespace.noiob = U16::new(256);
    namespace.nawun = U16::new(7);
    namespace.nsfeat = nsfeat::ATOMIC_UNITS;
    namespace.fpi = 0x80 | 42;
    assert_eq!((namespace.io_boundary(), namespace.atomic_write_blocks()), (Some(256), Some(8)));
    assert_eq!(namespace.format_remaining(), Some(42));
}
