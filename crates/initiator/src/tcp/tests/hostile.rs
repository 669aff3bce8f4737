//! Peers that violate the protocol: a TermReq and the end of the connection, never a panic.

use nvmeof_random::SplitMix64;
use nvmeof_wire::Status;
use nvmeof_wire::tcp::{Fes, ICResp, Receiver as End, TcpError, TermReq};

use super::*;

/// Returns the engine's error for `stream`, which arrives with a 4 KiB read and an 8 KiB write
/// outstanding.
fn verdict(stream: impl Fn(Agreed, u16, u16) -> Vec<u8>) -> TcpError {
    let agreed = Agreed::default();
    let mut engine = agreed.engine();
    let read = start(&mut engine, read(1, 4096));
    let write = start(&mut engine, write(2, &pattern(8192)));
    match feed(&mut engine, &stream(agreed, read, write), usize::MAX) {
        Err(FatalPduError::Protocol { error, .. }) => error,
        other => panic!("accepted: {other:?}"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn every_broken_rule_is_named() {
    let ok = Status::SUCCESS;
    let data = pattern(4096);
    let cases: [(&str, Fes, TcpError); 15] = [
        (
            "completion of no command",
            Fes::INVALID_HEADER_FIELD,
            verdict(|a, _, _| a.response(3, ok)),
        ),
        (
            "identifier beyond the queue",
            Fes::INVALID_HEADER_FIELD,
            verdict(|a, _, _| a.response(0xfff, ok)),
        ),
        (
            "completed twice",
            Fes::INVALID_HEADER_FIELD,
            verdict(|a, r, _| [a.data(r, 0, &data, true, true), a.response(r, ok)].concat()),
        ),
        (
            "data of no command",
            Fes::INVALID_HEADER_FIELD,
            verdict(|a, _, _| a.data(9, 0, &data, true, false)),
        ),
        (
            "data for a write",
            Fes::DATA_OUT_OF_RANGE,
            verdict(|a, _, w| a.data(w, 0, &data, true, false)),
        ),
        (
            "data not in order",
            Fes::DATA_OUT_OF_RANGE,
            verdict(|a, r, _| a.data(r, 512, &data[..512], true, false)),
        ),
        (
            "data twice",
            Fes::DATA_OUT_OF_RANGE,
            verdict(|a, r, _| {
                let part = a.data(r, 0, &data[..512], false, false);
                [part.clone(), part].concat()
            }),
        ),
        (
            "more data than asked for",
            Fes::DATA_OUT_OF_RANGE,
            verdict(|a, r, _| a.data(r, 0, &pattern(4100), true, false)),
        ),
        (
            "SUCCESS before the last data",
            Fes::INVALID_HEADER_FIELD,
            verdict(|a, r, _| a.data(r, 0, &data, false, true)),
        ),
        ("R2T for a read", Fes::DATA_OUT_OF_RANGE, verdict(|a, r, _| a.r2t(r, 1, 0, 512))),
        ("R2T beyond the data", Fes::DATA_OUT_OF_RANGE, verdict(|a, _, w| a.r2t(w, 1, 0, 8196))),
        (
            "R2T that wraps around",
            Fes::DATA_OUT_OF_RANGE,
            verdict(|a, _, w| a.r2t(w, 1, 0, u32::MAX)),
        ),
        ("R2T for nothing", Fes::DATA_OUT_OF_RANGE, verdict(|a, _, w| a.r2t(w, 1, 0, 0))),
        (
            "R2T before the last one is answered",
            Fes::LIMIT_EXCEEDED,
            verdict(|a, _, w| [a.r2t(w, 1, 0, 4096), a.r2t(w, 2, 4096, 4096)].concat()),
        ),
        (
            "ICResp once more",
            Fes::SEQUENCE_ERROR,
            verdict(|_, _, _| {
                let params = IcParams { pda: 0, hdgst: false, ddgst: false, max: 8192 };
                ICResp::new(params).as_bytes().to_vec()
            }),
        ),
    ];
    for (what, fes, error) in cases {
        assert_eq!(error.fes, fes, "{what}");
    }
}

#[test]
fn an_in_capsule_write_is_not_asked_for_its_data_again() {
    let agreed = Agreed::default();
    let mut engine = agreed.engine();
    let cid = start(&mut engine, write(1, &pattern(4096)));
    let error = feed(&mut engine, &agreed.r2t(cid, 1, 0, 4096), usize::MAX).unwrap_err();
    assert!(
        matches!(error, FatalPduError::Protocol { error, .. } if error.fes == Fes::DATA_OUT_OF_RANGE)
    );
}

#[test]
fn r2t_and_completion_in_one_breath() {
    // The requested data is sent before the buffer is returned.
    let agreed = Agreed::default();
    let mut engine = agreed.engine();
    let cid = start(&mut engine, write(1, &pattern(8192)));
    let stream = [agreed.r2t(cid, 1, 0, 8192), agreed.response(cid, Status::SUCCESS)].concat();
    assert!(feed(&mut engine, &stream, usize::MAX).unwrap().is_empty());
    let (bytes, done) = drain(&mut engine, 1234);
    assert_eq!(bytes.len(), 24 + 8192);
    assert_eq!(only(done).result, Ok(0));
}

#[test]
fn the_peers_term_req_is_reported() {
    let agreed = Agreed { hdgst: true, ddgst: true, ..Agreed::default() };
    let mut engine = agreed.engine();
    start(&mut engine, read(1, 4096));
    let term = TermReq::new(End::Controller, TcpError::field(16), 0);
    let fatal = feed(&mut engine, term.as_bytes(), 3).unwrap_err();
    assert!(matches!(fatal, FatalPduError::Terminated(error) if error == TcpError::field(16)));
    assert_eq!(TcpEngine::term_req(&fatal), None);
}

/// Valid traffic with changed bytes has any result except a panic, and every command completes.
#[test]
fn damaged_streams_do_not_panic() {
    for seed in 0..4000 {
        let mut rng = SplitMix64::new(seed);
        let agreed =
            Agreed { hdgst: rng.index(4) == 0, ddgst: rng.index(4) == 0, ..Agreed::default() };
        let mut engine = agreed.engine();
        let mut stream = Vec::new();
        for token in 0..4 {
            if rng.index(2) == 0 {
                let cid = start(&mut engine, read(token, 2048));
                stream.extend(agreed.data(cid, 0, &pattern(1024), false, false));
                stream.extend(agreed.data(cid, 1024, &pattern(1024), true, rng.index(2) == 0));
                stream.extend(agreed.response(cid, Status::SUCCESS));
            } else {
                let cid = start(&mut engine, write(token, &pattern(8192)));
                stream.extend(agreed.r2t(cid, 7, 0, 8192));
                stream.extend(agreed.response(cid, Status::SUCCESS));
            }
        }
        for _ in 0..rng.index(4) {
            let at = rng.index(stream.len());
            stream[at] ^= 1 << rng.index(8);
        }
        if rng.index(4) == 0 {
            stream.truncate(rng.index(stream.len()));
        }
        let chunk = 1 + rng.index(3000);
        let mut done = Vec::new();
        let mut at = 0;
        while at < stream.len() {
            let end = stream.len().min(at + chunk);
            match feed(&mut engine, &stream[at..end], 512) {
                Ok(completed) => done.extend(completed),
                // The test loses completions of the failing piece, so the count below can be lower.
                Err(_) => break,
            }
            done.extend(drain(&mut engine, 700).1);
            at = end;
        }
        let came_back = done.len();
        engine.fail_all(0, &mut done);
        assert_eq!(engine.commands().in_flight(), 0, "seed {seed}");
        assert!(came_back <= 4 && done.len() <= 4, "seed {seed}: {done:?}");
    }
}

#[test]
fn noise_does_not_panic() {
    for seed in 0..4000 {
        let mut rng = SplitMix64::new(seed);
        let mut engine = Agreed { hdgst: seed % 2 == 0, ..Agreed::default() }.engine();
        start(&mut engine, read(1, 4096));
        start(&mut engine, write(2, &pattern(8192)));
        let mut noise: Vec<u8> = (0..400).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        // 50 % have a PDU type and header length that exist.
        if seed % 4 < 2 {
            let (kind, hlen) = [(5, 24), (7, 24), (9, 24), (3, 24), (1, 128)][rng.index(5)];
            noise[1] &= 0xf;
            (noise[0], noise[2], noise[3]) = (kind, hlen, 24);
            noise[5..8].fill(0);
        }
        // Any result is fine.
        let _ = feed(&mut engine, &noise, 1 + rng.index(100));
        let _ = drain(&mut engine, 100);
        engine.fail_all(0, &mut Vec::new());
    }
}
