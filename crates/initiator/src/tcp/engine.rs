//! The host's side of one NVMe/TCP connection after ICResp, without the socket.

use std::io::{IoSlice, IoSliceMut};

use nvmeof_wire::U16;
use nvmeof_wire::sgl::Sgl;
use nvmeof_wire::tcp::{
    ADMIN_IN_CAPSULE, CAPSULE_CMD_LEN, CapsuleCmd, Framing, H2CData, IcParams,
    Receiver as ReceiverRole, RxRules, SHORT_LEN, TERM_DATA_MAX, TermReq,
};
use nvmeof_wire::zerocopy::IntoBytes;

use super::receive::{FatalPduError, PduReader, PendingR2t, ReadStep};
use super::send::PduWriter;
use crate::command_table::CommandTable;
use crate::{Command, CompletedCommand, Nanos, RejectReason, RejectedCommand, Transfer};

/// The length of a command's data has 32 bits on the wire.
const MAX_DATA: usize = u32::MAX as usize;

#[derive(Debug)]
pub(super) struct TcpEngine {
    commands: CommandTable,
    writer: PduWriter,
    reader: PduReader,
    framing: Framing,
    /// Maximum data bytes of an H2CData.
    max_h2c: u32,
    /// Maximum bytes of in-capsule data of commands other than fabrics commands.
    in_capsule: u32,
}

impl TcpEngine {
    /// Creates an engine for a queue of `depth` commands, with the parameters of ICResp. A command
    /// capsule has room for `in_capsule` data bytes.
    pub(super) fn new(depth: u16, granted: IcParams, in_capsule: u32) -> Self {
        let rules = RxRules {
            receiver: ReceiverRole::Host,
            framing: Framing::new(granted.hdgst, granted.ddgst, super::HPDA),
            max_in_capsule: 0,
            // The command bounds the received data.
            max_data: u32::MAX,
        };
        Self {
            commands: CommandTable::new(depth),
            writer: PduWriter::default(),
            reader: PduReader::new(rules),
            framing: Framing::new(granted.hdgst, granted.ddgst, granted.pda),
            max_h2c: granted.max,
            in_capsule,
        }
    }

    pub(super) fn commands(&self) -> &CommandTable {
        &self.commands
    }

    /// Queues a command for sending.
    #[expect(clippy::result_large_err, reason = "a submission that fails hands the command back")]
    #[inline]
    pub(super) fn submit(
        &mut self,
        command: Command,
        deadline: Nanos,
    ) -> Result<(), RejectedCommand> {
        let len = match &command.transfer {
            Transfer::None => 0,
            Transfer::In(buffer) | Transfer::Out(buffer) => buffer.len(),
        };
        if len > MAX_DATA {
            return Err(RejectedCommand { command, reason: RejectReason::TooLarge });
        }
        if self.commands.is_full() {
            return Err(RejectedCommand { command, reason: RejectReason::Full });
        }
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        let is_out = matches!(command.transfer, Transfer::Out(_));
        let limit = if command.sqe.is_fabrics() { ADMIN_IN_CAPSULE } else { self.in_capsule };
        let inline = is_out && length <= limit && length > 0;
        let mut sqe = command.sqe;
        sqe.dptr = if inline {
            Sgl::InCapsule { offset: 0, length }.encode()
        } else {
            Sgl::Transport { length }.encode()
        };
        let Some((cid, outstanding)) = self.commands.insert(command, deadline) else {
            return Ok(());
        };
        if inline {
            outstanding.moved = length;
        }
        sqe.cid = U16::new(cid);
        let inline_len = if inline { length } else { 0 };
        let capsule = CapsuleCmd::new(self.framing, sqe, inline_len);
        self.push_header(capsule.as_bytes());
        if inline {
            self.push_data(cid, CAPSULE_CMD_LEN, 0, length);
        }
        Ok(())
    }

    /// Buffers for the next received bytes.
    pub(super) fn targets(&mut self) -> [IoSliceMut<'_>; 2] {
        self.reader.targets(&mut self.commands)
    }

    /// Processes `n` bytes that were received into [`TcpEngine::targets`].
    pub(super) fn received(
        &mut self,
        n: usize,
        done: &mut Vec<CompletedCommand>,
    ) -> Result<(), FatalPduError> {
        self.reader.received(n);
        loop {
            match self.reader.step(&mut self.commands, done)? {
                ReadStep::Starved => return Ok(()),
                ReadStep::Moved => {}
                ReadStep::R2t(request) => self.serve_r2t(request),
            }
        }
    }

    /// Returns true if bytes are waiting to be sent.
    pub(super) fn has_output(&self) -> bool {
        !self.writer.is_empty()
    }

    /// Fills `out` with the next bytes to send and returns the number of filled slices.
    pub(super) fn sources<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.writer.sources(&self.commands, out)
    }

    /// Records that `n` bytes of [`TcpEngine::sources`] have been sent.
    pub(super) fn sent(&mut self, n: usize, done: &mut Vec<CompletedCommand>) {
        let commands = &mut self.commands;
        self.writer.sent(n, |cid| commands.piece_sent(cid, done));
    }

    /// Ends every command.
    pub(super) fn fail_all(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>) {
        self.writer.clear();
        self.commands.fail_all(now, done);
    }

    /// Returns the H2CTermReq that reports the error to the peer.
    pub(super) fn term_req(fatal: &FatalPduError) -> Option<Vec<u8>> {
        let FatalPduError::Protocol { error, header, .. } = fatal else { return None };
        let header = &header[..header.len().min(TERM_DATA_MAX as usize)];
        let len = u8::try_from(header.len()).unwrap_or(0);
        let mut bytes = TermReq::new(ReceiverRole::Host, *error, len).as_bytes().to_vec();
        bytes.extend_from_slice(header);
        Some(bytes)
    }

    /// Sends the data that an R2T requests, in parts of MAXH2CDATA.
    fn serve_r2t(&mut self, request: PendingR2t) {
        let PendingR2t { cid, ttag, offset, len } = request;
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(self.max_h2c);
            let last = at + piece == end;
            let header = H2CData::new(self.framing, cid, ttag, at, piece, last);
            self.push_header(header.as_bytes());
            self.push_data(cid, SHORT_LEN, at, piece);
            at += piece;
        }
        if let Some(outstanding) = self.commands.get_mut(cid) {
            outstanding.moved = end;
        }
    }

    #[inline]
    fn push_header(&mut self, header: &[u8]) {
        self.writer.push_bytes(header);
        if self.framing.hdgst {
            self.writer.push_bytes(&crc_fast::crc32_iscsi(header).to_le_bytes());
        }
    }

    /// Queues padding, data and digest for a header of `hlen` bytes.
    fn push_data(&mut self, cid: u16, hlen: u8, offset: u32, len: u32) {
        let padding = self.framing.data_offset(hlen) - self.framing.head_len(hlen);
        self.writer.push_padding(usize::from(padding));
        self.writer.push_data(cid, offset, len);
        if self.framing.ddgst {
            let data = &self.commands.data(cid)[offset as usize..][..len as usize];
            self.writer.push_bytes(&crc_fast::crc32_iscsi(data).to_le_bytes());
        }
        if let Some(outstanding) = self.commands.get_mut(cid) {
            outstanding.unsent += 1;
        }
    }
}
