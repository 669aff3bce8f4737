//! Outstanding commands of the host, with the data for their responses.

use std::rc::Rc;

use crate::rdma::capsule::{DataPointer, RemoteBuffer};
use crate::rdma::numbers::NumberMap;

/// A command that has no response yet.
#[derive(Debug)]
struct Command {
    pointer: DataPointer,
    /// Commands with the same identifier that arrived before the response.
    ///
    /// The layer above rejects them, or the newest of them replaces the command.
    doubles: u16,
    /// Data of the newest of them.
    newest: DataPointer,
}

/// Commands by identifier, as many as the queue has entries.
#[derive(Debug)]
pub(super) struct Commands {
    by_cid: NumberMap<u16, Command>,
    out: usize,
    depth: usize,
}

/// The host has more outstanding commands than the queue has entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

impl Commands {
    pub(super) fn new(depth: u16) -> Self {
        let mut commands = Self { by_cid: NumberMap::default(), out: 0, depth: 0 };
        commands.set_depth(depth);
        commands
    }

    /// Sets the maximum of outstanding commands.
    pub(super) fn set_depth(&mut self, depth: u16) {
        self.depth = usize::from(depth);
        // Twice the depth, so that the map never grows again: it makes room in place.
        self.by_cid.reserve((2 * self.depth).saturating_sub(self.by_cid.len()));
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Adds a command, while `unsent` responses wait for room in the send queue.
    ///
    /// The commands of these responses also count as outstanding, so that a host that takes no
    /// responses cannot accumulate an unlimited number of them.
    pub(super) fn take(
        &mut self,
        cid: u16,
        pointer: DataPointer,
        unsent: usize,
    ) -> Result<(), TooMany> {
        if self.out + unsent >= self.depth {
            return Err(TooMany);
        }
        self.out += 1;
        match self.by_cid.get_mut(&cid) {
            Some(command) => {
                command.doubles += 1;
                command.newest = pointer;
            }
            None => {
                let command = Command { pointer, doubles: 0, newest: DataPointer::default() };
                self.by_cid.insert(cid, command);
            }
        }
        Ok(())
    }

    /// Releases a command that gets no response; the newest of its identifier takes its place.
    pub(super) fn forget(&mut self, cid: u16) {
        let Some(command) = self.by_cid.get_mut(&cid) else {
            debug_assert!(false, "a command without a response is outstanding");
            return;
        };
        self.out -= 1;
        if command.doubles > 0 {
            command.doubles -= 1;
            command.pointer = std::mem::take(&mut command.newest);
        } else {
            self.by_cid.remove(&cid);
        }
    }

    /// Returns the descriptor list of a command, if it has one; `None` if the command is not
    /// outstanding.
    pub(super) fn list(&self, cid: u16) -> Option<Option<&Rc<[RemoteBuffer]>>> {
        Some(self.by_cid.get(&cid)?.pointer.list.as_ref())
    }

    /// Completes a command; returns the key that its response has to invalidate, `None` if it is
    /// not outstanding.
    pub(super) fn answered(&mut self, cid: u16) -> Option<Option<u32>> {
        let command = self.by_cid.get_mut(&cid)?;
        self.out -= 1;
        if command.doubles > 0 {
            command.doubles -= 1;
            return Some(None);
        }
        self.by_cid.remove(&cid).map(|command| command.pointer.invalidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_and_found() {
        let mut commands = Commands::new(3);
        let pointer = DataPointer { invalidate: Some(9), ..DataPointer::default() };
        commands.take(7, pointer, 0).unwrap();
        commands.take(7, DataPointer::default(), 0).unwrap();
        commands.take(8, DataPointer::default(), 0).unwrap();
        assert_eq!(commands.take(9, DataPointer::default(), 0), Err(TooMany));
        // The duplicate is rejected first, and must not invalidate the key of the other.
        assert_eq!(commands.answered(7), Some(None));
        assert_eq!(commands.answered(7), Some(Some(9)));
        assert_eq!(commands.answered(7), None);
        assert_eq!((commands.list(8), commands.list(7)), (Some(None), None));
        commands.take(9, DataPointer::default(), 0).unwrap();
        assert_eq!(commands.answered(9), Some(None));
        assert_eq!(commands.take(9, DataPointer::default(), 2), Err(TooMany));
        commands.take(9, DataPointer::default(), 1).unwrap();
        commands.set_depth(2);
        assert_eq!(commands.take(10, DataPointer::default(), 0), Err(TooMany));
    }

    #[test]
    fn a_command_without_a_response_makes_room() {
        let mut commands = Commands::new(2);
        commands.take(7, DataPointer::default(), 0).unwrap();
        commands.take(8, DataPointer::default(), 0).unwrap();
        commands.forget(8);
        // Another command takes over the identifier, with its own data.
        let pointer = DataPointer { invalidate: Some(9), ..DataPointer::default() };
        commands.take(7, pointer, 0).unwrap();
        commands.forget(7);
        assert_eq!(commands.answered(7), Some(Some(9)));
        assert_eq!((commands.answered(7), commands.out), (None, 0));
    }

    #[test]
    fn any_identifiers_take_no_more_room() {
        let mut commands = Commands::new(8);
        let before = commands.by_cid.capacity();
        for round in 0..20_000u32 {
            let cid = u16::try_from(round * 7919 % 65_536).unwrap();
            commands.take(cid, DataPointer::default(), 0).unwrap();
            if round >= 7 {
                let old = u16::try_from((round - 7) * 7919 % 65_536).unwrap();
                commands.answered(old).unwrap();
            }
        }
        assert_eq!(commands.by_cid.capacity(), before);
    }
}
