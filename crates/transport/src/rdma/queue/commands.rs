//! Commands the host has out: what their responses need to know.

use std::rc::Rc;

use crate::rdma::capsule::{DataPointer, Remote};
use crate::rdma::numbers::NumberMap;

/// A command that came and was not answered.
#[derive(Debug)]
struct Command {
    pointer: DataPointer,
    /// Commands with the same identifier that came meanwhile. They are refused above, and nothing is kept of
    /// them but that they were counted.
    doubles: u16,
}

/// Commands by identifier, as many as the queue has entries.
#[derive(Debug)]
pub(super) struct Commands {
    by_cid: NumberMap<u16, Command>,
    out: usize,
    depth: usize,
}

/// The host has more commands out than the queue has entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

impl Commands {
    pub(super) fn new(depth: u16) -> Self {
        let mut commands = Self { by_cid: NumberMap::default(), out: 0, depth: 0 };
        commands.set_depth(depth);
        commands
    }

    /// How many the host may have out.
    pub(super) fn set_depth(&mut self, depth: u16) {
        self.depth = usize::from(depth);
        // Twice as much, so that the map never grows again: it makes room in place.
        self.by_cid.reserve((2 * self.depth).saturating_sub(self.by_cid.len()));
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// A command came, while `unsent` responses wait for room in the send queue: the host has their
    /// commands out, too, and one that takes no responses cannot have any number of them wait.
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
        self.by_cid
            .entry(cid)
            .and_modify(|command| command.doubles += 1)
            .or_insert(Command { pointer, doubles: 0 });
        Ok(())
    }

    /// The list of descriptors of a command, if it has one; `None` if no such command is out.
    pub(super) fn list(&self, cid: u16) -> Option<Option<&Rc<[Remote]>>> {
        Some(self.by_cid.get(&cid)?.pointer.list.as_ref())
    }

    /// A command is answered: the key that its response is to invalidate. `None` if it is not out.
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
        // The double is refused first, and must not invalidate the other's key.
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
