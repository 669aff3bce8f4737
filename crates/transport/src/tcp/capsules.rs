//! Commands a host may have out, and the memory their in-capsule data goes to.

use nvmeof_core::dma::{Buffer, CorePool, LeaseError, Reserve};
use nvmeof_wire::Sqe;
use nvmeof_wire::tcp::{ADMIN_IN_CAPSULE, TcpError};

use crate::queue::{Connected, Event, FabricError};

/// Commands before Connect is done. A host sends Connect and waits; the rest is slack.
pub(super) const EARLY_DEPTH: u16 = 4;
/// Buffers for the in-capsule data of fabrics commands, on any queue.
const EARLY_BUFFERS: usize = 2;

/// A command that was held, without a buffer of any reactor.
#[derive(Debug)]
pub(super) struct Held {
    sqe: Sqe,
    /// Its in-capsule data, or that it was bad.
    data: Result<Option<Vec<u8>>, FabricError>,
}

/// The command window of a queue.
#[derive(Debug)]
pub(super) struct Capsules {
    depth: u16,
    /// Commands that came and whose response is not in the socket yet: what the host may have out,
    /// as far as it can tell.
    out: u16,
    /// Those of them whose response waits for the socket.
    leaving: u16,
    /// Most bytes of in-capsule data of a command that is no fabrics command.
    limit: u32,
    /// The promise for those commands, and the one for fabrics commands.
    reserve: Option<Reserve>,
    early: Reserve,
    pool: CorePool,
    paused: bool,
    /// Commands that came while paused, behind data that had to be read.
    held: Vec<Event>,
}

impl Capsules {
    /// The window before Connect.
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

    /// The window Connect settled; `in_capsule` bytes for an I/O queue.
    pub(super) fn connect(&mut self, info: Connected, in_capsule: u32) -> Result<(), LeaseError> {
        self.depth = info.depth;
        self.limit = if info.admin { ADMIN_IN_CAPSULE } else { in_capsule };
        self.reserve = match self.limit {
            0 => None,
            limit => Some(self.pool.reserve(usize::from(info.depth), limit as usize)?),
        };
        Ok(())
    }

    /// Counts a command in, if the host may have another one out. A host that does not read
    /// responses has their commands out: what it can make the target hold is bounded by the depth.
    pub(super) fn admit(&mut self) -> Result<(), TcpError> {
        if self.out >= self.depth {
            return Err(TcpError::SEQUENCE);
        }
        self.out += 1;
        Ok(())
    }

    /// A command is answered: its response waits for the socket. `false` if there is no such
    /// command.
    pub(super) fn answered(&mut self) -> bool {
        let any = self.leaving < self.out;
        self.leaving += u16::from(any);
        any
    }

    /// The socket has taken this many responses: their commands are no longer out.
    pub(super) fn taken(&mut self, responses: u16) {
        debug_assert!(responses <= self.leaving, "responses to no command");
        self.leaving = self.leaving.saturating_sub(responses);
        self.out = self.out.saturating_sub(responses);
    }

    /// Commands handed on whose response is not in the socket.
    pub(super) fn out(&self) -> usize {
        usize::from(self.out) - self.held.len()
    }

    /// A buffer for `len` bytes of in-capsule data of `sqe`.
    pub(super) fn buffer(&self, sqe: &Sqe, len: usize) -> Result<Buffer, TcpError> {
        let (limit, reserve) = match &self.reserve {
            Some(reserve) if !sqe.is_fabrics() => (self.limit, reserve),
            None if !sqe.is_fabrics() && self.limit < ADMIN_IN_CAPSULE => (0, &self.early),
            _ => (ADMIN_IN_CAPSULE, &self.early),
        };
        if len > limit as usize {
            return Err(TcpError::LIMIT);
        }
        // The reserve is as deep as the window; the pool helps out where the reactor is slower to
        // drop a buffer than to answer.
        let leased = reserve.lease().or_else(|| self.pool.lease(len).ok());
        let mut buf = leased.ok_or(TcpError::LIMIT)?;
        buf.truncate(len);
        Ok(buf)
    }

    /// Hands a command on, or holds it while paused.
    pub(super) fn deliver(&mut self, event: Event, events: &mut Vec<Event>) {
        if self.paused { self.held.push(event) } else { events.push(event) }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Hands on what was held, unless still paused.
    pub(super) fn release_held(&mut self, events: &mut Vec<Event>) {
        if !self.paused {
            events.append(&mut self.held);
        }
    }

    /// Takes out what was held: the connection moves to another reactor, or ends.
    pub(super) fn take_held(&mut self) -> Vec<Held> {
        let take = |event| match event {
            Event::Command { sqe, data } => {
                Some(Held { sqe, data: Ok(data.map(|data| data.as_slice().to_vec())) })
            }
            Event::CommandFailed { sqe, error } => Some(Held { sqe, data: Err(error) }),
            _ => None,
        };
        self.held.drain(..).filter_map(take).collect()
    }

    /// Holds again what another reactor held.
    pub(super) fn hold(&mut self, held: Vec<Held>) -> Result<(), LeaseError> {
        for Held { sqe, data } in held {
            let event = match data {
                Err(error) => Event::CommandFailed { sqe, error },
                Ok(None) => Event::Command { sqe, data: None },
                Ok(Some(bytes)) => {
                    // Connect may have settled a limit since that is smaller than what came before it.
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
    use nvmeof_core::dma::{PoolConfig, SharedPool};

    use super::*;

    /// Found by the fuzz target `pdu_stream`: the connection was lost.
    #[test]
    fn a_command_held_since_before_connect_survives_the_smaller_limit() {
        let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
        let pool = CorePool::new(&SharedPool::new(config).unwrap());
        let mut capsules = Capsules::new(&pool).unwrap();
        capsules.connect(Connected { admin: false, depth: 8 }, 512).unwrap();
        let held = Held { sqe: Sqe::new(1, 7, 1), data: Ok(Some(vec![3; 4096])) };
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
