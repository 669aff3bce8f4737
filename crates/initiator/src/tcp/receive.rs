//! Splits received bytes into PDUs.
//!
//! Bytes are read into a stage, and a PDU's data is copied from there to its command. When the
//! stage ends inside a PDU's data, the next read puts the rest directly into the command's buffer:
//!
//! ```text
//! Head --C2HData--> Data --all of it--> Digest --fits or not--> Head
//!   \--any other PDU--> Head                (no digest: directly to Head)
//! ```

use std::io::IoSliceMut;

use nvmeof_wire::tcp::{
    C2HData, CH_LEN, CapsuleResp, CommonHeader, DIGEST_LEN, PduHead, PduType, R2T, RxRules,
    TcpError, TermReq, flags,
};
use nvmeof_wire::zerocopy::FromBytes;

use crate::command_table::CommandTable;
use crate::{CommandError, CompletedCommand, Transfer};

/// Bytes per read while data is small.
const STAGE: usize = 128 << 10;
/// Bytes read behind a command's data while data is large, so that little of it passes the stage.
const STAGE_LARGE: usize = 1 << 10;
/// Minimum data of one PDU that counts as large.
const LARGE: u32 = 32 << 10;

const _: () = assert!(STAGE_LARGE >= 2 * TermReq::MAX_LEN, "a header always fits");

/// Reason for ending the connection.
#[derive(Debug)]
pub(super) enum FatalPduError {
    /// The peer violated the protocol; the header of the wrong PDU goes into our TermReq.
    Protocol { error: TcpError, header: Vec<u8>, detail: String },
    /// The peer sent a TermReq.
    Terminated(TcpError),
}

/// Data of a C2HData that is being received into a command's buffer.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    cid: u16,
    start: u32,
    at: u32,
    end: u32,
    ddgst: bool,
    success: bool,
}

#[derive(Debug)]
enum State {
    Head,
    Data(Incoming),
    Digest(Incoming),
}

/// Result of [`PduReader::step`].
#[derive(Debug, Clone, Copy)]
pub(super) enum ReadStep {
    /// Nothing: more bytes are needed.
    Starved,
    /// Bytes were processed.
    Moved,
    /// An R2T was received, which has to be served before the next step.
    R2t(PendingR2t),
}

/// An R2T to be served.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingR2t {
    pub(super) cid: u16,
    pub(super) ttag: u16,
    pub(super) offset: u32,
    pub(super) len: u32,
}

#[derive(Debug)]
pub(super) struct PduReader {
    rules: RxRules,
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    /// Maximum bytes of the stage that a read fills.
    limit: usize,
    state: State,
}

impl PduReader {
    pub(super) fn new(rules: RxRules) -> Self {
        let stage = vec![0; STAGE].into_boxed_slice();
        Self { rules, stage, start: 0, end: 0, limit: STAGE, state: State::Head }
    }

    /// Buffers for the next bytes: first the rest of a command's data, then the stage.
    pub(super) fn targets<'a>(&'a mut self, commands: &'a mut CommandTable) -> [IoSliceMut<'a>; 2] {
        let direct: &mut [u8] = match &self.state {
            State::Data(incoming) => {
                &mut commands.data_mut(incoming.cid)[incoming.at as usize..incoming.end as usize]
            }
            _ => &mut [],
        };
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            // At most a header and its padding are left.
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let upto = (self.end + self.limit).min(self.stage.len());
        [IoSliceMut::new(direct), IoSliceMut::new(&mut self.stage[self.end..upto])]
    }

    /// Records that `n` bytes were written to [`PduReader::targets`]; [`PduReader::step`] processes
    /// them.
    pub(super) fn received(&mut self, mut n: usize) {
        if let State::Data(incoming) = &mut self.state {
            let direct = n.min((incoming.end - incoming.at) as usize);
            incoming.at += u32::try_from(direct).unwrap_or(0);
            n -= direct;
        }
        self.end += n;
    }

    /// Processes one part of the staged bytes.
    #[inline]
    pub(super) fn step(
        &mut self,
        commands: &mut CommandTable,
        done: &mut Vec<CompletedCommand>,
    ) -> Result<ReadStep, FatalPduError> {
        let staged = &self.stage[self.start..self.end];
        match &mut self.state {
            State::Head => return self.head(commands, done),
            State::Data(incoming) => {
                let wanted = (incoming.end - incoming.at) as usize;
                let take = wanted.min(staged.len());
                if take > 0 {
                    let at = incoming.at as usize;
                    commands.data_mut(incoming.cid)[at..at + take].copy_from_slice(&staged[..take]);
                    incoming.at += u32::try_from(take).unwrap_or(0);
                    self.start += take;
                }
                if take < wanted {
                    return Ok(ReadStep::Starved);
                }
                let incoming = *incoming;
                if incoming.ddgst {
                    self.state = State::Digest(incoming);
                } else {
                    self.state = State::Head;
                    finish_data(incoming, commands, done);
                }
            }
            State::Digest(incoming) => {
                let Some(digest) = staged.first_chunk::<{ DIGEST_LEN as usize }>() else {
                    return Ok(ReadStep::Starved);
                };
                let incoming = *incoming;
                let data = &commands.data_mut(incoming.cid)
                    [incoming.start as usize..incoming.end as usize];
                if crc_fast::crc32_iscsi(data) != u32::from_le_bytes(*digest)
                    && let Some(outstanding) = commands.get_mut(incoming.cid)
                {
                    outstanding.fault = Some(CommandError::DataDigest);
                }
                self.start += usize::from(DIGEST_LEN);
                self.state = State::Head;
                finish_data(incoming, commands, done);
            }
        }
        Ok(ReadStep::Moved)
    }

    /// Processes one header, if it is complete.
    fn head(
        &mut self,
        commands: &mut CommandTable,
        done: &mut Vec<CompletedCommand>,
    ) -> Result<ReadStep, FatalPduError> {
        let staged = &self.stage[self.start..self.end];
        let Ok((ch, _)) = CommonHeader::ref_from_prefix(staged) else {
            return Ok(ReadStep::Starved);
        };
        let fatal = |error: TcpError, len: usize, detail: String| FatalPduError::Protocol {
            error,
            header: staged[..len.min(staged.len())].to_vec(),
            detail,
        };
        let head = self
            .rules
            .check(ch)
            .map_err(|error| fatal(error, CH_LEN, format!(" ({} PDU)", ch.pdu_type)))?;
        if head.pdu_type == PduType::C2H_TERM_REQ {
            return match TermReq::read_from_prefix(staged) {
                Ok((term, _)) => Err(FatalPduError::Terminated(term.error())),
                Err(_) => Ok(ReadStep::Starved),
            };
        }
        let len = usize::from(head.data_offset);
        if staged.len() < len {
            return Ok(ReadStep::Starved);
        }
        let hlen = usize::from(head.hlen);
        if head.hdgst {
            let digest = staged[hlen..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            if digest != crc_fast::crc32_iscsi(&staged[..hlen]) {
                return Err(fatal(TcpError::header_digest(digest), hlen, String::new()));
            }
        }
        let outcome = match head.pdu_type {
            PduType::CAPSULE_RESP => capsule_resp(staged, commands, done).map(|()| ReadStep::Moved),
            PduType::C2H_DATA => c2h_data(&head, staged, commands).map(|incoming| {
                self.limit = if head.data_len >= LARGE { STAGE_LARGE } else { STAGE };
                self.state = State::Data(incoming);
                ReadStep::Moved
            }),
            PduType::R2T => r2t(staged, commands).map(ReadStep::R2t),
            _ => Err((TcpError::SEQUENCE, format!(" (unexpected {})", head.pdu_type))),
        };
        let step = outcome.map_err(|(error, detail)| fatal(error, hlen, detail))?;
        self.start += len;
        Ok(step)
    }
}

type Checked<T> = Result<T, (TcpError, String)>;

/// Byte offset of CCCID, and of the CID in a CapsuleResp.
const CCCID_OFFSET: u32 = 8;
const RESP_CID_OFFSET: u32 = 20;

fn unknown(offset: u32, cid: u16) -> (TcpError, String) {
    (TcpError::field(offset), format!(" (no command {cid:#06x} is outstanding)"))
}

fn capsule_resp(
    staged: &[u8],
    commands: &mut CommandTable,
    done: &mut Vec<CompletedCommand>,
) -> Checked<()> {
    let Ok((resp, _)) = CapsuleResp::ref_from_prefix(staged) else {
        return Err((TcpError::SEQUENCE, String::new()));
    };
    let status = resp.cqe.status();
    let result = if status.is_success() {
        Ok(resp.cqe.result.get())
    } else {
        Err(CommandError::Status { status, dw0: resp.cqe.dw0() })
    };
    let cid = resp.cqe.cid.get();
    if commands.complete(cid, result, done) { Ok(()) } else { Err(unknown(RESP_CID_OFFSET, cid)) }
}

fn c2h_data(head: &PduHead, staged: &[u8], commands: &mut CommandTable) -> Checked<Incoming> {
    let Ok((pdu, _)) = C2HData::ref_from_prefix(staged) else {
        return Err((TcpError::SEQUENCE, String::new()));
    };
    pdu.check(head).map_err(|error| (error, String::new()))?;
    let cid = pdu.cccid.get();
    let outstanding = commands.get_mut(cid).ok_or_else(|| unknown(CCCID_OFFSET, cid))?;
    let (start, len) = (pdu.datao.get(), pdu.datal.get());
    let room = match &outstanding.transfer {
        Transfer::In(_) => outstanding.len(),
        _ => 0,
    };
    // Data arrives in order (TCP 3.3.2.1), so this check also prevents counting it twice.
    if start != outstanding.moved || len > room.saturating_sub(outstanding.moved) {
        let detail = format!(
            " ({len} bytes at {start}, of {room}, where {} were received)",
            outstanding.moved
        );
        return Err((TcpError::OUT_OF_RANGE, detail));
    }
    let success = head.flags & flags::SUCCESS != 0;
    Ok(Incoming { cid, start, at: start, end: start + len, ddgst: head.ddgst, success })
}

fn r2t(staged: &[u8], commands: &mut CommandTable) -> Checked<PendingR2t> {
    let Ok((pdu, _)) = R2T::ref_from_prefix(staged) else {
        return Err((TcpError::SEQUENCE, String::new()));
    };
    let cid = pdu.cccid.get();
    let outstanding = commands.get_mut(cid).ok_or_else(|| unknown(CCCID_OFFSET, cid))?;
    if outstanding.unsent > 0 {
        // MAXR2T allows one R2T, and the data of the last one has not been sent.
        return Err((TcpError::LIMIT, String::new()));
    }
    let (offset, len) = (pdu.r2to.get(), pdu.r2tl.get());
    let room = match &outstanding.transfer {
        Transfer::Out(_) => outstanding.len(),
        _ => 0,
    };
    if len == 0 || offset != outstanding.moved || len > room.saturating_sub(outstanding.moved) {
        let detail =
            format!(" (R2T for {len} bytes at {offset}, of {room}, {} sent)", outstanding.moved);
        return Err((TcpError::OUT_OF_RANGE, detail));
    }
    Ok(PendingR2t { cid, ttag: pdu.ttag.get(), offset, len })
}

/// Handles the end of a PDU's data.
fn finish_data(incoming: Incoming, commands: &mut CommandTable, done: &mut Vec<CompletedCommand>) {
    if let Some(outstanding) = commands.get_mut(incoming.cid) {
        outstanding.moved = incoming.end;
        if incoming.success {
            commands.complete(incoming.cid, Ok(0), done);
        }
    }
}
