//! A connection without its socket, for the fuzz target `initiator`.

use std::io::IoSlice;

use nvmeof_wire::tcp::IcParams;

use super::engine::TcpEngine;
use super::send::MAX_PIECES;
use crate::{Command, CompletedCommand, RejectedCommand};

/// The host's side of a connection after ICResp.
#[derive(Debug)]
pub struct FuzzedHost(TcpEngine);

impl FuzzedHost {
    /// Creates a host for `depth` commands, with the parameters of ICResp. A command capsule has
    /// room for `in_capsule` data bytes.
    #[must_use]
    pub fn new(depth: u16, granted: IcParams, in_capsule: u32) -> Self {
        Self(TcpEngine::new(depth, granted, in_capsule))
    }

    /// Queues a command for sending.
    ///
    /// # Errors
    /// The command, if it is rejected.
    pub fn submit(&mut self, command: Command) -> Result<(), RejectedCommand> {
        self.0.submit(command, u64::MAX)
    }

    /// Processes bytes as they arrive from a socket.
    ///
    /// # Errors
    /// The connection has to end; the error has the H2CTermReq to send, if there is one.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        done: &mut Vec<CompletedCommand>,
    ) -> Result<(), Option<Vec<u8>>> {
        while !bytes.is_empty() {
            let mut read = 0;
            for target in &mut self.0.targets() {
                let len = target.len().min(bytes.len());
                let (now, rest) = bytes.split_at(len);
                target[..len].copy_from_slice(now);
                bytes = rest;
                read += len;
            }
            self.0.received(read, done).map_err(|fatal| TcpEngine::term_req(&fatal))?;
        }
        Ok(())
    }

    /// Sends at most `most` of the queued bytes.
    pub fn send(&mut self, most: usize, done: &mut Vec<CompletedCommand>) -> Vec<u8> {
        let mut sent = Vec::new();
        while self.0.has_output() && sent.len() < most {
            let before = sent.len();
            let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
            let count = self.0.sources(&mut pieces);
            for piece in &pieces[..count] {
                let room = most - sent.len();
                sent.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            let len = sent.len() - before;
            self.0.sent(len, done);
        }
        sent
    }

    /// Commands outstanding.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.commands().in_flight()
    }

    /// Ends every command.
    pub fn close(&mut self, done: &mut Vec<CompletedCommand>) {
        self.0.fail_all(0, done);
    }
}
