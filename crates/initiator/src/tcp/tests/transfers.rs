//! Correct data transfers in both directions.

use nvmeof_wire::Status;
use nvmeof_wire::sgl::Sgl;
use nvmeof_wire::tcp::{CAPSULE_CMD_LEN, CapsuleCmd, Fes, H2CData, flags};
use nvmeof_wire::zerocopy::FromBytes;

use super::*;
use crate::{CommandError, RejectReason};

const CHUNKS: [usize; 6] = [1, 3, 24, 1000, 4097, usize::MAX];

#[test]
fn reads_arrive_whole_however_they_are_cut() {
    let data = pattern(40_000);
    for agreed in Agreed::digests() {
        for chunk in CHUNKS {
            for piece in [512, 17_000, 40_000] {
                let mut engine = agreed.engine();
                let cid = start(&mut engine, read(9, data.len()));
                let mut stream = Vec::new();
                for (at, part) in data.chunks(piece).enumerate() {
                    let offset = at * piece;
                    let last = offset + part.len() == data.len();
                    stream.extend(agreed.data(cid, offset.try_into().unwrap(), part, last, false));
                }
                stream.extend(agreed.response(cid, Status::SUCCESS));
                let done = only(feed(&mut engine, &stream, chunk).unwrap());
                assert_eq!((done.token, done.result), (9, Ok(0)), "{agreed:?} {chunk} {piece}");
                assert!(done.buffer.unwrap().as_slice() == data);
                assert_eq!(engine.commands().in_flight(), 0);
            }
        }
    }
}

#[test]
fn success_flag_completes_a_read() {
    let data = pattern(4096);
    for agreed in Agreed::digests() {
        let mut engine = agreed.engine();
        let cid = start(&mut engine, read(1, 4096));
        let stream = agreed.data(cid, 0, &data, true, true);
        let done = only(feed(&mut engine, &stream, usize::MAX).unwrap());
        assert_eq!(done.result, Ok(0));
        assert!(done.buffer.unwrap().as_slice() == data);
    }
}

#[test]
fn many_small_reads_in_one_stream() {
    let agreed = Agreed { depth: 64, ..Agreed::default() };
    let mut engine = agreed.engine();
    for round in 0..50_u64 {
        let mut stream = Vec::new();
        for token in 0..64 {
            let cid = start(&mut engine, read(round * 64 + token, 512));
            let data = [token.to_le_bytes()[0]; 512];
            stream.extend(agreed.data(cid, 0, &data, true, token % 2 == 0));
            if token % 2 == 1 {
                stream.extend(agreed.response(cid, Status::SUCCESS));
            }
        }
        let done = feed(&mut engine, &stream, 1777).unwrap();
        assert_eq!(done.len(), 64);
        for (token, completed) in (round * 64..).zip(done) {
            assert_eq!((completed.token, completed.result), (token, Ok(0)));
            let byte = (token % 64).to_le_bytes()[0];
            assert!(completed.buffer.unwrap().as_slice().iter().all(|&b| b == byte));
        }
    }
}

#[test]
fn a_small_write_goes_in_the_capsule() {
    let data = pattern(1000);
    for agreed in Agreed::digests() {
        for cpda in [0, 1, 31] {
            for chunk in CHUNKS {
                let agreed = Agreed { cpda, ..agreed };
                let mut engine = agreed.engine();
                engine.submit(write(5, &data), u64::MAX).unwrap();
                let (bytes, _) = drain(&mut engine, chunk);
                let (capsule, _) = CapsuleCmd::read_from_prefix(&bytes).unwrap();
                assert_eq!(capsule.sqe.dptr.parse(), Sgl::InCapsule { offset: 0, length: 1000 });
                let head = usize::from(CAPSULE_CMD_LEN);
                if agreed.hdgst {
                    let digest = crc_fast::crc32_iscsi(&bytes[..head]).to_le_bytes();
                    assert_eq!(bytes[head..head + 4], digest);
                }
                let pdo = usize::from(capsule.ch.pdo);
                assert_eq!(pdo % ((usize::from(cpda) + 1) * 4), 0);
                assert!(bytes[pdo..pdo + 1000] == data);
                let end = pdo + 1000 + if agreed.ddgst { 4 } else { 0 };
                if agreed.ddgst {
                    assert_eq!(bytes[pdo + 1000..], crc_fast::crc32_iscsi(&data).to_le_bytes());
                }
                assert_eq!((bytes.len(), capsule.ch.plen.get() as usize), (end, end));
                let response = agreed.response(cid_of(&bytes), Status::SUCCESS);
                let done = only(feed(&mut engine, &response, 7).unwrap());
                assert_eq!((done.token, done.result), (5, Ok(0)));
            }
        }
    }
}

/// Parses H2CData PDUs: offset, LAST and data of each.
fn h2c(agreed: Agreed, mut bytes: &[u8]) -> Vec<(u32, bool, Vec<u8>)> {
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let (pdu, _) = H2CData::read_from_prefix(bytes).unwrap();
        assert_eq!(pdu.ttag.get(), 0xbeef);
        let (pdo, len) = (usize::from(pdu.ch.pdo), pdu.datal.get() as usize);
        let data = &bytes[pdo..pdo + len];
        if agreed.ddgst {
            assert_eq!(bytes[pdo + len..pdo + len + 4], crc_fast::crc32_iscsi(data).to_le_bytes());
        }
        pdus.push((pdu.datao.get(), pdu.ch.flags & flags::LAST_PDU != 0, data.to_vec()));
        bytes = &bytes[pdu.ch.plen.get() as usize..];
    }
    pdus
}

#[test]
fn a_large_write_waits_to_be_asked_and_is_cut_to_maxh2cdata() {
    let data = pattern(50_000);
    for agreed in Agreed::digests() {
        for chunk in [1000, usize::MAX] {
            let mut engine = agreed.engine();
            engine.submit(write(6, &data), u64::MAX).unwrap();
            let (bytes, _) = drain(&mut engine, chunk);
            assert_eq!(
                bytes.len(),
                usize::from(CAPSULE_CMD_LEN) + if agreed.hdgst { 4 } else { 0 }
            );
            let cid = cid_of(&bytes);
            let mut sent: Vec<u8> = Vec::new();
            for (offset, len, pieces) in [(0, 20_000_u32, 3), (20_000, 30_000, 4)] {
                let done = feed(&mut engine, &agreed.r2t(cid, 0xbeef, offset, len), 5).unwrap();
                assert!(done.is_empty());
                let (bytes, _) = drain(&mut engine, chunk);
                let pdus = h2c(agreed, &bytes);
                assert_eq!(pdus.len(), pieces);
                for (at, (datao, last, part)) in pdus.iter().enumerate() {
                    assert_eq!(*datao as usize, sent.len());
                    assert_eq!(*last, at == pieces - 1);
                    assert!(part.len() <= agreed.max_h2c as usize);
                    sent.extend(part);
                }
            }
            assert!(sent == data);
            let response = agreed.response(cid, Status::SUCCESS);
            assert_eq!(only(feed(&mut engine, &response, usize::MAX).unwrap()).result, Ok(0));
        }
    }
}

#[test]
fn a_bad_data_digest_fails_the_command_and_not_the_connection() {
    let agreed = Agreed { ddgst: true, ..Agreed::default() };
    for success in [false, true] {
        let mut engine = agreed.engine();
        let cid = start(&mut engine, read(1, 4096));
        let mut stream = agreed.data(cid, 0, &pattern(4096), true, success);
        *stream.last_mut().unwrap() ^= 1;
        if !success {
            stream.extend(agreed.response(cid, Status::SUCCESS));
        }
        let done = only(feed(&mut engine, &stream, 999).unwrap());
        assert_eq!(done.result, Err(CommandError::DataDigest));
        let cid = start(&mut engine, read(2, 4096));
        let stream = agreed.data(cid, 0, &pattern(4096), true, true);
        assert_eq!(only(feed(&mut engine, &stream, 999).unwrap()).result, Ok(0));
    }
}

#[test]
fn a_bad_header_digest_ends_the_connection() {
    let agreed = Agreed { hdgst: true, ..Agreed::default() };
    let mut engine = agreed.engine();
    let cid = start(&mut engine, read(1, 4096));
    let mut stream = agreed.response(cid, Status::SUCCESS);
    stream[12] ^= 1;
    let fatal = feed(&mut engine, &stream, usize::MAX).unwrap_err();
    let FatalPduError::Protocol { error, header, .. } = &fatal else { panic!("{fatal:?}") };
    assert_eq!(error.fes, Fes::HEADER_DIGEST_ERROR);
    assert_eq!(header.as_slice(), &stream[..24]);
    let term = TcpEngine::term_req(&fatal).unwrap();
    assert_eq!((term[0], term.len(), &term[24..]), (0x02, 48, &stream[..24]));
}

#[test]
fn a_failed_command_has_its_status_and_its_buffer() {
    let agreed = Agreed::default();
    let mut engine = agreed.engine();
    let cid = start(&mut engine, read(1, 4096));
    let response = agreed.response(cid, Status::LBA_OUT_OF_RANGE.with_dnr());
    let done = only(feed(&mut engine, &response, usize::MAX).unwrap());
    let status = Status::LBA_OUT_OF_RANGE.with_dnr();
    assert_eq!(done.result, Err(CommandError::Status { status, dw0: 0 }));
    assert_eq!(done.buffer.unwrap().len(), 4096);
}

#[test]
fn success_without_all_the_data_is_an_error() {
    let agreed = Agreed::default();
    let mut engine = agreed.engine();
    let cid = start(&mut engine, read(1, 4096));
    let mut stream = agreed.data(cid, 0, &pattern(1024), true, false);
    stream.extend(agreed.response(cid, Status::SUCCESS));
    let done = only(feed(&mut engine, &stream, usize::MAX).unwrap());
    assert_eq!(done.result, Err(CommandError::ShortData { got: 1024, want: 4096 }));
    let cid = start(&mut engine, write(2, &pattern(8192)));
    let done = only(feed(&mut engine, &agreed.response(cid, Status::SUCCESS), 1).unwrap());
    assert_eq!(done.result, Err(CommandError::ShortWrite { got: 0, want: 8192 }));
}

#[test]
fn a_buffer_being_sent_is_not_given_back_before_it_has_left() {
    let agreed = Agreed::default();
    let mut engine = agreed.engine();
    let data = pattern(4096);
    engine.submit(write(1, &data), u64::MAX).unwrap();
    let cid = {
        let mut pieces = [IoSlice::new(&[]); 1];
        assert_eq!(engine.sources(&mut pieces), 1);
        cid_of(&pieces[0])
    };
    let mut done = Vec::new();
    engine.sent(usize::from(CAPSULE_CMD_LEN) + 100, &mut done);
    // The controller rejects the command before it has received all data.
    let refusal = agreed.response(cid, Status::NAMESPACE_WRITE_PROTECTED);
    assert!(feed(&mut engine, &refusal, usize::MAX).unwrap().is_empty());
    assert_eq!(engine.commands().in_flight(), 1);
    let (rest, done) = drain(&mut engine, 1000);
    assert!(rest == data[100..]);
    let status = Status::NAMESPACE_WRITE_PROTECTED;
    assert_eq!(only(done).result, Err(CommandError::Status { status, dw0: 0 }));
    assert_eq!(engine.commands().in_flight(), 0);
}

#[test]
fn a_full_queue_hands_the_command_back() {
    let mut engine = Agreed { depth: 2, ..Agreed::default() }.engine();
    engine.submit(read(1, 512), u64::MAX).unwrap();
    engine.submit(read(2, 512), u64::MAX).unwrap();
    let rejected = engine.submit(write(3, &pattern(512)), u64::MAX).unwrap_err();
    assert_eq!((rejected.reason, rejected.command.token), (RejectReason::Full, 3));
    assert!(matches!(rejected.command.transfer, Transfer::Out(buffer) if buffer.len() == 512));
}

#[test]
fn commands_end_as_timed_out_or_lost() {
    let mut engine = Agreed::default().engine();
    engine.submit(read(1, 512), 100).unwrap();
    engine.submit(read(2, 512), 300).unwrap();
    assert!(!engine.commands().is_overdue(99));
    assert!(engine.commands().is_overdue(100));
    let mut done = Vec::new();
    engine.fail_all(200, &mut done);
    let results: Vec<_> = done.iter().map(|c| (c.token, c.result, c.buffer.is_some())).collect();
    let (late, lost) = (CommandError::TimedOut, CommandError::ConnectionLost);
    assert_eq!(results, [(1, Err(late), true), (2, Err(lost), true)]);
    assert_eq!(engine.commands().in_flight(), 0);
    assert!(!engine.has_output());
}
