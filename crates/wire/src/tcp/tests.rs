use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::cqe::Cqe;
use crate::golden;
use crate::sqe::Sqe;
use crate::status::Status;

const PLAIN: Framing = Framing::new(false, false, 0);
const DIGESTS: Framing = Framing::new(true, true, 0);

fn controller(framing: Framing) -> RxRules {
    RxRules { receiver: Receiver::Controller, framing, max_in_capsule: 8192, max_data: 131_072 }
}

fn host(framing: Framing) -> RxRules {
    RxRules { receiver: Receiver::Host, ..controller(framing) }
}

fn header(bytes: [u8; 8]) -> CommonHeader {
    CommonHeader::read_from_bytes(&bytes).unwrap()
}

#[test]
fn icreq_bytes() {
    // TCP 3.6.2.2: HPDA 3 (16 bytes), both digests, MAXR2T 0's based.
    let bytes: [u8; 128] = golden::bytes(&[
        (0, &[0x00, 0x00, 128, 0, 128, 0, 0, 0]),
        (8, &[0, 0]),
        (10, &[3]),
        (11, &[0b11]),
        (12, &[15, 0, 0, 0]),
    ]);
    let params = IcParams { pda: 3, hdgst: true, ddgst: true, max: 16 };
    assert_eq!(ICReq::new(params).as_bytes(), bytes);
    let req = ICReq::read_from_bytes(&bytes).unwrap();
    assert_eq!(req.params(), Ok(params));
    let head = RxRules::initial(Receiver::Controller).check(&req.ch).unwrap();
    assert_eq!((head.head_len, head.data_len, head.plen), (128, 0, 128));
}

#[test]
fn icresp_bytes() {
    // TCP 3.6.2.3: CPDA 0, data digest only, MAXH2CDATA 128 KiB.
    let bytes: [u8; 128] = golden::bytes(&[
        (0, &[0x01, 0x00, 128, 0, 128, 0, 0, 0]),
        (11, &[0b10]),
        (12, &[0x00, 0x00, 0x02, 0x00]),
    ]);
    let params = IcParams { pda: 0, hdgst: false, ddgst: true, max: 131_072 };
    assert_eq!(ICResp::new(params).as_bytes(), bytes);
    let resp = ICResp::read_from_bytes(&bytes).unwrap();
    assert_eq!(resp.params(), Ok(params));
    assert!(RxRules::initial(Receiver::Host).check(&resp.ch).is_ok());
}

#[test]
fn bad_parameters_are_named_by_their_offset() {
    let good = IcParams { pda: 0, hdgst: false, ddgst: false, max: 8192 };
    let mut req = ICReq::new(good);
    req.maxr2t.set(u32::MAX);
    assert_eq!(req.params().unwrap().max, u32::MAX);
    req.hpda = 32;
    assert_eq!(req.params(), Err(TcpError::field(10)));
    req.pfv.set(1);
    assert_eq!(req.params(), Err(TcpError::unsupported(8)));

    let mut resp = ICResp::new(good);
    for bad in [0, 4092, 8194] {
        resp.maxh2cdata.set(bad);
        assert_eq!(resp.params(), Err(TcpError::field(12)));
    }
    resp.cpda = 32;
    assert_eq!(resp.params(), Err(TcpError::field(10)));
    resp.pfv.set(256);
    assert_eq!(resp.params(), Err(TcpError::unsupported(8)));

    let with_digest = IcParams { hdgst: true, ..good };
    assert_eq!(with_digest.check_granted(&good), Err(TcpError::field(11)));
    assert_eq!(good.check_granted(&with_digest), Ok(()));
}

#[test]
fn term_req_bytes() {
    // TCP 3.6.2.5: invalid header field at byte 4, 8 bytes of the header in error.
    let bytes: [u8; 24] = golden::bytes(&[
        (0, &[0x03, 0x00, 24, 0, 32, 0, 0, 0]),
        (8, &[0x01, 0x00]),
        (10, &[0x04, 0x00, 0x00, 0x00]),
    ]);
    let built = TermReq::new(Receiver::Controller, TcpError::field(4), 8);
    assert_eq!(built.as_bytes(), bytes);
    let term = TermReq::read_from_bytes(&bytes).unwrap();
    assert_eq!(term.error(), TcpError::field(4));
    let head = host(DIGESTS).check(&term.ch).unwrap();
    assert_eq!((head.head_len, head.data_offset, head.data_len), (24, 24, 8));
    assert!(!head.hdgst && !head.ddgst);

    let from_host = TermReq::new(Receiver::Host, TcpError::header_digest(0x0102_0304), 255);
    assert_eq!(from_host.as_bytes()[..14], [2, 0, 24, 0, 152, 0, 0, 0, 3, 0, 4, 3, 2, 1]);
    assert_eq!(controller(PLAIN).check(&from_host.ch).unwrap().data_len, TERM_DATA_MAX);
}

#[test]
fn an_overlong_term_req_is_an_error() {
    for plen in [23, 153, u32::MAX] {
        let mut term = TermReq::new(Receiver::Host, TcpError::SEQUENCE, 0);
        term.ch.plen.set(plen);
        assert_eq!(controller(PLAIN).check(&term.ch), Err(TcpError::field(4)));
    }
}

#[test]
fn capsule_cmd_bytes() {
    // TCP 3.6.2.6: 4096 bytes of data behind 72 of header, 4 of digest and padding to 128.
    let sqe = Sqe::new(0x01, 0x1234, 1);
    let framing = Framing::new(true, true, 31);
    let built = CapsuleCmd::new(framing, sqe, 4096);
    let bytes: [u8; 72] = golden::bytes(&[
        (0, &[0x04, 0b11, 72, 128, 0x84, 0x10, 0, 0]), // PLEN 128 + 4096 + 4
        (8, &[0x01, 0x40, 0x34, 0x12, 1]),
    ]);
    assert_eq!(built.as_bytes(), bytes);
    let head = controller(framing).check(&built.ch).unwrap();
    assert_eq!((head.hlen, head.head_len, head.data_offset), (72, 76, 128));
    assert_eq!((head.data_len, head.ddgst, head.plen), (4096, true, 4228));

    // As in the Linux host's commands without data: PDO 0 (reserved), no data digest.
    let bare = CapsuleCmd::new(DIGESTS, sqe, 0);
    assert_eq!(bare.as_bytes()[..8], [0x04, 0b01, 72, 0, 76, 0, 0, 0]);
    let head = controller(DIGESTS).check(&bare.ch).unwrap();
    assert_eq!((head.data_len, head.ddgst, head.data_offset), (0, false, 76));
}

#[test]
fn capsule_resp_bytes() {
    let cqe = Cqe::new(0x1234, Status::LBA_OUT_OF_RANGE.with_dnr()).with_sqhd(5);
    let bytes: [u8; 24] = golden::bytes(&[
        (0, &[0x05, 0b01, 24, 0, 28, 0, 0, 0]),
        (16, &[5, 0]),              // SQHD
        (20, &[0x34, 0x12]),        // CID
        (22, &[0x00, 0b1000_0001]), // SC 80h, DNR
    ]);
    let built = CapsuleResp::new(DIGESTS, cqe);
    assert_eq!(built.as_bytes(), bytes);
    assert!(host(DIGESTS).check(&built.ch).is_ok());
    assert_eq!(CapsuleResp::new(PLAIN, cqe).as_bytes()[..8], [0x05, 0, 24, 0, 24, 0, 0, 0]);
}

#[test]
fn h2c_data_bytes() {
    let bytes: [u8; 24] = golden::bytes(&[
        (0, &[0x06, 0b111, 24, 28, 0x20, 0x10, 0, 0]), // PLEN 28 + 4096 + 4
        (8, &[0x34, 0x12]),                            // CCCID
        (10, &[0x78, 0x56]),                           // TTAG
        (12, &[0x00, 0x20, 0, 0]),                     // DATAO
        (16, &[0x00, 0x10, 0, 0]),                     // DATAL
    ]);
    let built = H2CData::new(DIGESTS, 0x1234, 0x5678, 8192, 4096, true);
    assert_eq!(built.as_bytes(), bytes);
    let data = H2CData::read_from_bytes(&bytes).unwrap();
    let head = controller(DIGESTS).check(&data.ch).unwrap();
    assert_eq!((head.data_offset, head.data_len, head.ddgst), (28, 4096, true));
    assert_eq!(data.check(&head), Ok(()));

    let mut wrong = data;
    wrong.datal.set(4092);
    assert_eq!(wrong.check(&head), Err(TcpError::field(16)));
    wrong.datao.set(2);
    assert_eq!(wrong.check(&head), Err(TcpError::field(12)));
}

#[test]
fn c2h_data_bytes() {
    // TCP Figure 9: HPDA 3 requests 16-byte alignment, so 8 bytes of padding follow 24 of header.
    let framing = Framing::new(false, false, 3);
    let bytes: [u8; 24] = golden::bytes(&[
        (0, &[0x07, 0b1100, 24, 32, 0x20, 0x02, 0, 0]), // PLEN 32 + 512
        (8, &[0x34, 0x12]),
        (12, &[0x00, 0x10, 0, 0]),
        (16, &[0x00, 0x02, 0, 0]),
    ]);
    let built = C2HData::new(framing, 0x1234, 4096, 512, true, true);
    assert_eq!(built.as_bytes(), bytes);
    let data = C2HData::read_from_bytes(&bytes).unwrap();
    let head = host(framing).check(&data.ch).unwrap();
    assert_eq!((head.data_offset, head.data_len), (32, 512));
    assert_eq!(data.check(&head), Ok(()));

    let early = C2HData::new(framing, 1, 0, 512, false, true);
    assert_eq!(early.check(&head), Err(TcpError::field(1)));
}

#[test]
fn r2t_bytes() {
    let bytes: [u8; 24] = golden::bytes(&[
        (0, &[0x09, 0, 24, 0, 24, 0, 0, 0]),
        (8, &[0x34, 0x12]),
        (10, &[0x78, 0x56]),
        (12, &[0x00, 0x20, 0, 0]),
        (16, &[0x00, 0x00, 0x02, 0]),
    ]);
    let built = R2T::new(PLAIN, 0x1234, 0x5678, 8192, 131_072);
    assert_eq!(built.as_bytes(), bytes);
    assert!(host(PLAIN).check(&built.ch).is_ok());
}

#[test]
fn what_is_wrong_with_a_header_is_named() {
    let rules = controller(PLAIN);
    let with_digests = controller(DIGESTS);
    let aligned = controller(Framing::new(false, false, 15));
    let max = 72 + 8192;
    let cases: [(&RxRules, [u8; 8], TcpError); 20] = [
        // Types of the other direction, and undefined ones.
        (&rules, [0x01, 0, 128, 0, 128, 0, 0, 0], TcpError::field(0)),
        (&rules, [0x05, 0, 24, 0, 24, 0, 0, 0], TcpError::field(0)),
        (&rules, [0x08, 0, 24, 0, 24, 0, 0, 0], TcpError::field(0)),
        (&rules, [0xff; 8], TcpError::field(0)),
        // Digest flags that were not negotiated.
        (&rules, [0x04, 0b01, 72, 0, 76, 0, 0, 0], TcpError::field(1)),
        (&rules, [0x04, 0b10, 72, 72, 80, 0, 0, 0], TcpError::field(1)),
        (&with_digests, [0x04, 0b00, 72, 0, 76, 0, 0, 0], TcpError::field(1)),
        (&with_digests, [0x06, 0b01, 24, 28, 0x20, 0x10, 0, 0], TcpError::field(1)),
        // HLEN.
        (&rules, [0x04, 0, 71, 0, 72, 0, 0, 0], TcpError::field(2)),
        (&rules, [0x00, 0, 0, 0, 128, 0, 0, 0], TcpError::field(2)),
        // PDO inside the header, or misaligned.
        (&rules, [0x04, 0, 72, 68, 84, 0, 0, 0], TcpError::field(3)),
        (&rules, [0x04, 0, 72, 74, 84, 0, 0, 0], TcpError::field(3)),
        (&aligned, [0x06, 0, 24, 32, 0x40, 0x10, 0, 0], TcpError::field(3)),
        // PLEN below the header, at or before PDO, without room for the digest, or above a limit.
        (&rules, [0x04, 0, 72, 0, 71, 0, 0, 0], TcpError::field(4)),
        (&rules, [0x04, 0, 72, 76, 76, 0, 0, 0], TcpError::field(4)),
        (&with_digests, [0x06, 0b11, 24, 28, 32, 0, 0, 0], TcpError::field(4)),
        (&rules, [0x06, 0, 24, 0, 24, 0, 0, 0], TcpError::field(4)),
        (&rules, [0x04, 0, 72, 72, 0xff, 0xff, 0xff, 0xff], TcpError::field(4)),
        (&rules, [0x06, 0, 24, 24, 0x1c, 0x00, 0x02, 0], TcpError::LIMIT),
        (&rules, [0x00, 0, 128, 0, 129, 0, 0, 0], TcpError::field(4)),
    ];
    for (rules, bytes, error) in cases {
        assert_eq!(rules.check(&header(bytes)), Err(error), "{bytes:02x?}");
    }
    let [p0, p1, ..] = u32::to_le_bytes(max);
    assert_eq!(rules.check(&header([4, 0, 72, 72, p0, p1, 0, 0])).unwrap().data_len, 8192);
    let over = header([4, 0, 72, 72, p0 + 1, p1, 0, 0]);
    assert_eq!(rules.check(&over), Err(TcpError::field(4)));
    let response = header([5, 0, 24, 24, 28, 0, 0, 0]);
    assert_eq!(host(PLAIN).check(&response), Err(TcpError::field(4)));
}

#[test]
fn an_alignment_out_of_range_counts_as_the_largest() {
    assert_eq!(Framing::new(false, false, 0).align(), 4);
    assert_eq!(Framing::new(false, false, 31).align(), 128);
    assert_eq!(Framing::new(false, false, 255).align(), 128);
}

#[test]
fn errors_read_well() {
    assert_eq!(
        TcpError::field(4).to_string(),
        "NVMe/TCP invalid PDU header field at byte 4 of the PDU"
    );
    assert_eq!(TcpError::LIMIT.to_string(), "NVMe/TCP data transfer or R2T limit exceeded");
    let digest = TcpError::header_digest(0xab).to_string();
    assert_eq!(digest, "NVMe/TCP header digest error: received 0x000000ab");
}

fn any_framing() -> impl Strategy<Value = Framing> {
    (any::<bool>(), any::<bool>(), 0u8..=31).prop_map(|(h, d, pda)| Framing::new(h, d, pda))
}

fn any_rules() -> impl Strategy<Value = RxRules> {
    let receiver = prop_oneof![Just(Receiver::Controller), Just(Receiver::Host)];
    (receiver, any_framing(), any::<u32>(), any::<u32>()).prop_map(
        |(receiver, framing, max_in_capsule, max_data)| RxRules {
            receiver,
            framing,
            max_in_capsule,
            max_data,
        },
    )
}

/// Generates headers that pass the first checks more often than random bytes do.
fn any_header() -> impl Strategy<Value = CommonHeader> {
    let hlen = prop_oneof![Just(24u8), Just(72), Just(128), any::<u8>()];
    let plen = prop_oneof![0u32..10_000, any::<u32>(), Just(u32::MAX)];
    (0u8..12, 0u8..16, hlen, any::<u8>(), plen).prop_map(|(pdu_type, flags, hlen, pdo, plen)| {
        CommonHeader { pdu_type: PduType(pdu_type), flags, hlen, pdo, plen: plen.into() }
    })
}

proptest! {
    #[test]
    fn an_accepted_header_adds_up(rules in any_rules(), ch in any_header()) {
        if let Ok(head) = rules.check(&ch) {
            let digest = if head.ddgst { 4 } else { 0 };
            prop_assert!(head.data_offset >= head.head_len && head.head_len >= head.hlen);
            prop_assert_eq!(
                u64::from(head.data_offset) + u64::from(head.data_len) + digest,
                u64::from(head.plen)
            );
            let limit = match head.pdu_type {
                PduType::CAPSULE_CMD => rules.max_in_capsule,
                PduType::H2C_DATA | PduType::C2H_DATA => rules.max_data,
                PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ => TERM_DATA_MAX,
                _ => 0,
            };
            prop_assert!(head.data_len <= limit);
        }
    }

    #[test]
    fn any_bytes_are_judged(rules in any_rules(), bytes: [u8; 8]) {
        let _ = rules.check(&header(bytes));
    }

    #[test]
    fn what_one_end_builds_the_other_accepts(
        framing in any_framing(), cid: u16, tag: u16, offset in 0u32..1_000_000, len in 1u32..8192, last: bool,
    ) {
        let (offset, len) = (offset * 4, len * 4);
        let to_controller = RxRules { max_in_capsule: len, max_data: len, ..controller(framing) };
        let to_host = RxRules { receiver: Receiver::Host, ..to_controller };

        let h2c = H2CData::new(framing, cid, tag, offset, len, last);
        let head = to_controller.check(&h2c.ch).unwrap();
        prop_assert_eq!(head.data_len, len);
        prop_assert_eq!(u32::from(head.data_offset) % u32::from(framing.align()), 0);
        prop_assert_eq!(h2c.check(&head), Ok(()));

        let c2h = C2HData::new(framing, cid, offset, len, last, last);
        let head = to_host.check(&c2h.ch).unwrap();
        prop_assert_eq!(head.data_len, len);
        prop_assert_eq!(c2h.check(&head), Ok(()));

        let cmd = CapsuleCmd::new(framing, Sqe::new(1, cid, 1), len);
        prop_assert_eq!(to_controller.check(&cmd.ch).unwrap().data_len, len);
        let bare = CapsuleCmd::new(framing, Sqe::new(1, cid, 1), 0);
        prop_assert_eq!(to_controller.check(&bare.ch).unwrap().data_len, 0);
        prop_assert!(to_host.check(&CapsuleResp::new(framing, Cqe::default()).ch).is_ok());
        prop_assert!(to_host.check(&R2T::new(framing, cid, tag, offset, len).ch).is_ok());
    }
}
