//! Commands in the machine, by number. A number is reused when its command has completed.

use nvmeof_pacing::Permit;

use crate::numbers::id;
use crate::scenario::Nanos;

/// Type of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// Opens its queue.
    Connect,
    /// Data goes to the host.
    Read,
    /// Data comes from the host.
    Write,
}

/// One command in flight or waiting.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) kind: CommandKind,
    pub(crate) stream: u32,
    pub(crate) queue: u32,
    pub(crate) bytes: u32,
    /// Position in the list of sizes.
    pub(crate) size: u32,
    /// Time at which the host issued it.
    pub(crate) issued: Nanos,
    /// Time at which it arrived at the target.
    pub(crate) arrived: Nanos,
    /// Its permit, while it is in flight.
    pub(crate) permit: Option<Permit>,
    /// Its buffer, while it has one.
    pub(crate) buffer: Option<u32>,
    /// The next command of the same queue that waits for the port.
    pub(crate) behind: Option<u32>,
}

/// All commands.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    slots: Vec<Command>,
    free: Vec<u32>,
}

impl Commands {
    pub(crate) fn add(&mut self, command: Command) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = command;
            return slot;
        }
        self.slots.push(command);
        id(self.slots.len() - 1)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) fn of(&self, slot: u32) -> &Command {
        &self.slots[slot as usize]
    }

    pub(crate) fn of_mut(&mut self, slot: u32) -> &mut Command {
        &mut self.slots[slot as usize]
    }

    /// Returns the count of numbers, in use or not.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}
