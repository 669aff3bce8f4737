//! Window of the commands that a host is allowed to have in flight, and memory for in-capsule data.

use nvmeof_core::dma::{Buffer, BufferReservation, CorePool, LeaseError};
use nvmeof_wire::Sqe;
use nvmeof_wire::tcp::{ADMIN_IN_CAPSULE, TcpError};

use crate::queue::{Connected, Event, FabricError};

/// Maximum commands before Connect completes. A host sends Connect and waits; the rest is slack.
pub(super) const EARLY_DEPTH: u16 = 4;
/// Buffers for the in-capsule data of fabrics commands, on any queue.
const EARLY_BUFFERS: usize = 2;

/// A held command, without a buffer of any reactor.
#[derive(Debug)]
pub(super) struct HeldCommand {
    sqe: Sqe,
    /// Its in-capsule data, or the error in it.
    data: Result<Option<Vec<u8>>, FabricError>,
}

/// The command window of a queue.
#[derive(Debug)]
pub(super) struct CommandWindow {
    depth: u16,
    /// Commands received whose response is not in the socket yet: outstanding from the host's view.
    out: u16,
    /// Commands among them whose response waits for the socket.
    leaving: u16,
    /// Maximum bytes of in-capsule data of a command other than a fabrics command.
    limit: u32,
    /// Reservation for those commands, and the one for fabrics commands.
    reserve: Option<BufferReservation>,
    early: BufferReservation,
    pool: CorePool,
    paused: bool,
    /// Commands that arrived while paused, between data that had to be read.
    held: Vec<Event>,
}

impl CommandWindow {
    /// Creates the window for the time before Connect.
    pub(super) fn new(pool: &CorePool) -> Result<Self, LeaseError> {
        Ok(Self {
            depth: EARLY_DEPTH,
            out: 0,
            leaving: 0,
            limit: ADMIN_IN_CAPSULE,
            reserve: None,
            early: pool.reserve(EARLY_BUFFERS, ADMIN_IN_CAPSULE as usize)?,
            pool: pool.clone(),
            paused: false,
            held: Vec::new(),
        })
    }

    /// Applies the depth from Connect; `in_capsule` is the limit of an I/O queue.
    pub(super) fn connect(&mut self, info: Connected, in_capsule: u32) -> Result<(), LeaseError> {
        self.depth = info.depth;
        self.limit = if info.admin { ADMIN_IN_CAPSULE } else { in_capsule };
        self.reserve = match self.limit {
            0 => None,
            limit => Some(self.pool.reserve(usize::from(info.depth), limit as usize)?),
        };
        Ok(())
    }

    /// Counts a command, if the window has room.
    ///
    /// The commands of a host that does not read its responses stay outstanding. The depth
    /// therefore bounds the memory that this host can occupy.
    pub(super) fn admit(&mut self) -> Result<(), TcpError> {
        if self.out >= self.depth {
            return Err(TcpError::SEQUENCE);
        }
        self.out += 1;
        Ok(())
    }

    /// Records that the response of a command waits for the socket; `false` if there is no command.
    pub(super) fn answered(&mut self) -> bool {
        let any = self.leaving < self.out;
        self.leaving += u16::from(any);
        any
    }

    /// Records that the socket has taken `responses`: their commands are no longer outstanding.
    pub(super) fn taken(&mut self, responses: u16) {
        debug_assert!(responses <= self.leaving, "responses to no command");
        self.leaving = self.leaving.saturating_sub(responses);
        self.out = self.out.saturating_sub(responses);
    }

    /// Releases a command that gets no response.
    pub(super) fn forget(&mut self) {
        debug_assert!(self.leaving < self.out, "a command without a response is outstanding");
        self.out = self.out.saturating_sub(1).max(self.leaving);
    }

    /// Returns the delivered commands whose response is not in the socket.
    pub(super) fn out(&self) -> usize {
        usize::from(self.out) - self.held.len()
    }

    /// Returns a buffer for `len` bytes of in-capsule data of `sqe`.
    pub(super) fn buffer(&self, sqe: &Sqe, len: usize) -> Result<Buffer, TcpError> {
        let (limit, reserve) = match &self.reserve {
            Some(reserve) if !sqe.is_fabrics() => (self.limit, reserve),
            None if !sqe.is_fabrics() && self.limit < ADMIN_IN_CAPSULE => (0, &self.early),
            _ => (ADMIN_IN_CAPSULE, &self.early),
        };
        if len > limit as usize {
            return Err(TcpError::LIMIT);
        }
        // The reservation is as deep as the window. The pool helps if the reactor drops a buffer
        // later than it responds.
        let leased = reserve.lease().or_else(|| self.pool.lease(len).ok());
        let mut buf = leased.ok_or(TcpError::LIMIT)?;
        buf.truncate(len);
        Ok(buf)
    }

    /// Delivers a command, or holds it while paused.
    pub(super) fn deliver(&mut self, event: Event, events: &mut Vec<Event>) {
        if self.paused { self.held.push(event) } else { events.push(event) }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Delivers the held commands, unless still paused.
    pub(super) fn release_held(&mut self, events: &mut Vec<Event>) {
        if !self.paused {
            events.append(&mut self.held);
        }
    }

    /// Removes the held commands: the connection moves to another reactor, or ends.
    pub(super) fn take_held(&mut self) -> Vec<HeldCommand> {
        let take = |event| match event {
            Event::Command { sqe, data } => {
                Some(HeldCommand { sqe, data: Ok(data.map(|data| data.as_slice().to_vec())) })
            }
            Event::CommandFailed { sqe, error } => Some(HeldCommand { sqe, data: Err(error) }),
            _ => None,
        };
        self.held.drain(..).filter_map(take).collect()
    }

    /// Holds commands that another reactor held.
    pub(super) fn hold(&mut self, held: Vec<HeldCommand>) -> Result<(), LeaseError> {
        for HeldCommand { sqe, data } in held {
            let event = match data {
                Err(error) => Event::CommandFailed { sqe, error },
                Ok(None) => Event::Command { sqe, data: None },
                Ok(Some(bytes)) => {
                    // The limit that Connect has set since can be smaller than the earlier data.
                    let mut buf = match self.buffer(&sqe, bytes.len()) {
                        Ok(buf) => buf,
                        Err(_) => self.pool.lease(bytes.len())?,
                    };
                    buf.as_mut_slice().copy_from_slice(&bytes);
                    Event::Command { sqe, data: Some(buf) }
                }
            };
            self.out += 1;
            self.held.push(event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_core::dma::{ChunkPool, PoolConfig};

    use super::*;

    /// Found by the fuzz target `pdu_stream`: the connection was lost.
    #[test]
    fn a_command_held_since_before_connect_survives_the_smaller_limit() {
        let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
        let pool = CorePool::new(&ChunkPool::new(config).unwrap());
        let mut capsules = CommandWindow::new(&pool).unwrap();
        capsules.connect(Connected { admin: false, depth: 8 }, 512).unwrap();
        let held = HeldCommand { sqe: Sqe::new(1, 7, 1), data: Ok(Some(vec![3; 4096])) };
        capsules.set_paused(true);
        capsules.hold(vec![held]).unwrap();
        capsules.set_paused(false);
        let mut events = Vec::new();
        capsules.release_held(&mut events);
        match &events[..] {
            [Event::Command { data: Some(data), .. }] => assert_eq!(data.as_slice(), [3; 4096]),
            other => panic!("{other:?}"),
        }
    }
}
