use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::golden;
use crate::properties;

/// Connect (Base 6.3): QID 3, 128 entries, no SQ flow control, priority class 2, 120 s.
fn golden_connect() -> [u8; 64] {
    golden::bytes(&[
        (0, &[0x7f]),
        (1, &[0x40]),
        (2, &[0x01, 0x02]),
        (4, &[0x01]),
        (40, &[0, 0]),                   // RECFMT
        (42, &[3, 0]),                   // QID
        (44, &[127, 0]),                 // SQSIZE, 0's based
        (46, &[0b0110]),                 // CATTR
        (48, &[0xc0, 0xd4, 0x01, 0x00]), // KATO
    ])
}

#[test]
fn connect_bytes() {
    let connect = Connect {
        qid: 3,
        entries: 128,
        priority: 2,
        disable_sq_flow_control: true,
        queue_deletion: false,
        kato_ms: 120_000,
    };
    assert_eq!(connect.encode(0x0201).as_bytes(), golden_connect());
    let sqe = Sqe::read_from_bytes(&golden_connect()).unwrap();
    assert_eq!(Connect::parse(&sqe), Ok(connect));
}

#[test]
fn connect_of_another_format_is_refused() {
    let mut sqe = Sqe::read_from_bytes(&golden_connect()).unwrap();
    sqe.cdw10.set(0x0003_0102);
    assert_eq!(Connect::parse(&sqe), Err(ConnectError::Format(0x0102)));
}

#[test]
fn connect_data_bytes() {
    let hostid = core::array::from_fn(|i| u8::try_from(i).unwrap() + 1);
    let bytes: [u8; 1024] = golden::bytes(&[
        (0, &hostid),
        (16, &[0xff, 0xff]),
        (256, b"nqn.2026-11.io.example:sub"),
        (512, b"nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    ]);
    let subnqn: Nqn = "nqn.2026-11.io.example:sub".parse().unwrap();
    let hostnqn: Nqn =
        "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6".parse().unwrap();
    let built = ConnectData::new(hostid, CNTLID_DYNAMIC, &subnqn, &hostnqn);
    assert_eq!(built.as_bytes(), bytes);
    let data = ConnectData::read_from_bytes(&bytes).unwrap();
    assert_eq!(data.hostid, hostid);
    assert_eq!(data.cntlid.get(), CNTLID_DYNAMIC);
    assert_eq!(data.subnqn(), Ok(subnqn));
    assert_eq!(data.hostnqn(), Ok(hostnqn));
}

#[test]
fn a_bad_name_says_which_field() {
    let mut data = ConnectData::new_zeroed();
    assert_eq!(data.subnqn(), Err(ConnectError::Name { ipo: 256, reason: NqnError::Empty }));
    data.hostnqn = [b'a'; 256];
    let error = ConnectError::Name { ipo: 512, reason: NqnError::NotTerminated };
    assert_eq!(data.hostnqn(), Err(error));
    data.hostnqn[224] = 0;
    let error = ConnectError::Name { ipo: 512, reason: NqnError::TooLong { length: 224 } };
    assert_eq!(data.hostnqn(), Err(error));
    data.hostnqn[223] = 0;
    assert!(data.hostnqn().is_ok());
}

#[test]
fn connect_results() {
    // Bytes 0-1 CNTLID, 2-3 AUTHREQ; or bytes 0-1 IPO, byte 2 IATTR (Base 6.3).
    let result = ConnectResult {
        cntlid: 0x0102,
        authentication: true,
        authentication_over_secure_channel: false,
    };
    assert_eq!(result.encode().to_le_bytes(), [0x02, 0x01, 0x02, 0, 0, 0, 0, 0]);
    assert_eq!(ConnectResult::parse(result.encode()), result);
    let ascr = ConnectResult::parse(0x0004_0001);
    assert!(ascr.authentication_over_secure_channel && !ascr.authentication);

    let invalid = InvalidParameter { ipo: 256, in_data: true };
    assert_eq!(invalid.encode().to_le_bytes(), [0x00, 0x01, 0x01, 0, 0, 0, 0, 0]);
    assert_eq!(InvalidParameter::parse(invalid.encode()), invalid);
    let in_command = InvalidParameter { ipo: 44, in_data: false };
    assert_eq!(in_command.encode(), 44);
}

#[test]
fn property_get_bytes() {
    let bytes: [u8; 64] = golden::bytes(&[
        (0, &[0x7f, 0x40, 9, 0, 0x04]),
        (40, &[1]),    // ATTRIB: 8 bytes
        (44, &[0x00]), // OFST: CAP
    ]);
    let get = PropertyGet { size: PropertySize::Eight, offset: properties::offset::CAP };
    assert_eq!(get.encode(9).as_bytes(), bytes);
    assert_eq!(PropertyGet::parse(&Sqe::read_from_bytes(&bytes).unwrap()), get);
}

#[test]
fn property_set_bytes() {
    let bytes: [u8; 64] = golden::bytes(&[
        (0, &[0x7f, 0x40, 9, 0, 0x00]),
        (40, &[0]),
        (44, &[0x14]),                                           // OFST: CC
        (48, &[0x01, 0x00, 0x46, 0x00, 0xef, 0xcd, 0xab, 0x89]), // VALUE
    ]);
    let set = PropertySet {
        size: PropertySize::Four,
        offset: properties::offset::CC,
        value: 0x89ab_cdef_0046_0001,
    };
    assert_eq!(set.encode(9).as_bytes(), bytes);
    assert_eq!(PropertySet::parse(&Sqe::read_from_bytes(&bytes).unwrap()), set);
}

#[test]
fn property_sizes() {
    let sizes = [0u8, 1, 2, 7].map(|attrib| PropertySize::from_attrib(attrib).bytes());
    assert_eq!(sizes, [Some(4), Some(8), None, None]);
}

#[test]
fn disconnect_bytes() {
    let bytes: [u8; 64] = golden::bytes(&[(0, &[0x7f, 0x40, 5, 0, 0x08]), (40, &[1, 0])]);
    let disconnect = Disconnect { recfmt: 1 };
    assert_eq!(disconnect.encode(5).as_bytes(), bytes);
    assert_eq!(Disconnect::parse(&Sqe::read_from_bytes(&bytes).unwrap()), disconnect);
}

proptest! {
    #[test]
    fn connect_round_trip(
        qid: u16, entries in 1u32..=65536, priority in 0u8..4, flow: bool, deletion: bool, kato_ms: u32,
    ) {
        let connect = Connect {
            qid, entries, priority, disable_sq_flow_control: flow, queue_deletion: deletion, kato_ms,
        };
        prop_assert_eq!(Connect::parse(&connect.encode(1)), Ok(connect));
    }

    #[test]
    fn property_set_round_trip(attrib in 0u8..8, offset: u32, value: u64) {
        let set = PropertySet { size: PropertySize::from_attrib(attrib), offset, value };
        prop_assert_eq!(PropertySet::parse(&set.encode(1)), set);
    }
}
