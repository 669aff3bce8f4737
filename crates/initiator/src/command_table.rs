//! Outstanding commands and their identifiers, for a queue of any fabric.

use crate::{Buffer, Command, CommandError, CompletedCommand, Nanos, Transfer};

/// Bits of a command identifier that name the slot. The rest is a generation, so that a duplicate
/// or late completion does not match the next command in the slot.
const SLOT_BITS: u32 = 12;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// Maximum commands that a queue can have outstanding.
pub(crate) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// An outstanding command.
#[derive(Debug)]
pub(crate) struct OutstandingCommand {
    token: u64,
    deadline: Nanos,
    pub(crate) transfer: Transfer,
    /// Bytes of data received (In), or queued for sending (Out).
    pub(crate) moved: u32,
    /// Parts of this command's data that are not sent yet. The buffer cannot be returned before it
    /// is 0.
    pub(crate) unsent: u32,
    /// Error in the data, which overrides the controller's success.
    pub(crate) fault: Option<CommandError>,
    /// Result of the command, kept until `unsent` is 0.
    result: Option<Result<u64, CommandError>>,
}

impl OutstandingCommand {
    /// Data bytes of the command.
    pub(crate) fn len(&self) -> u32 {
        match &self.transfer {
            Transfer::None => 0,
            // No fabric accepts longer ones.
            Transfer::In(buffer) | Transfer::Out(buffer) => {
                u32::try_from(buffer.len()).unwrap_or(u32::MAX)
            }
        }
    }

    fn into_completed(self, result: Result<u64, CommandError>) -> CompletedCommand {
        let buffer: Option<Buffer> = match self.transfer {
            Transfer::None => None,
            Transfer::In(buffer) | Transfer::Out(buffer) => Some(buffer),
        };
        CompletedCommand { token: self.token, result, buffer }
    }

    /// Checks the controller's result against the data that was really transferred.
    fn judge(&self, result: Result<u64, CommandError>) -> Result<u64, CommandError> {
        let value = result?;
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let (got, want) = (self.moved, self.len());
        match self.transfer {
            Transfer::In(_) if got < want => Err(CommandError::ShortData { got, want }),
            Transfer::Out(_) if got < want => Err(CommandError::ShortWrite { got, want }),
            _ => Ok(value),
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    outstanding: Option<OutstandingCommand>,
}

/// The outstanding commands, by command identifier.
#[derive(Debug)]
pub(crate) struct CommandTable {
    slots: Box<[Slot]>,
    free: Vec<u16>,
}

impl CommandTable {
    /// Creates slots for `depth` commands, at most [`MAX_SLOTS`].
    pub(crate) fn new(depth: u16) -> Self {
        let depth = depth.clamp(1, SLOT_MASK + 1);
        let slots = (0..depth).map(|_| Slot::default()).collect();
        Self { slots, free: (0..depth).rev().collect() }
    }

    /// Returns the slot of `cid`, of any generation.
    #[inline]
    pub(crate) fn index(cid: u16) -> u16 {
        cid & SLOT_MASK
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Stores a command and assigns an identifier. Returns `None`, and changes nothing, if no slot
    /// is free.
    pub(crate) fn insert(
        &mut self,
        command: Command,
        deadline: Nanos,
    ) -> Option<(u16, &mut OutstandingCommand)> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        let cid = index | slot.generation << SLOT_BITS;
        let outstanding = slot.outstanding.insert(OutstandingCommand {
            token: command.token,
            deadline,
            transfer: command.transfer,
            moved: 0,
            unsent: 0,
            fault: None,
            result: None,
        });
        Some((cid, outstanding))
    }

    /// Returns the command `cid`, unless it does not exist or the controller has completed it
    /// already.
    #[inline]
    pub(crate) fn get_mut(&mut self, cid: u16) -> Option<&mut OutstandingCommand> {
        let slot = self.slots.get_mut(usize::from(cid & SLOT_MASK))?;
        if slot.generation != cid >> SLOT_BITS {
            return None;
        }
        slot.outstanding.as_mut().filter(|outstanding| outstanding.result.is_none())
    }

    /// Data of a command that is being sent.
    #[inline]
    pub(crate) fn data(&self, cid: u16) -> &[u8] {
        match self
            .slots
            .get(usize::from(cid & SLOT_MASK))
            .and_then(|slot| slot.outstanding.as_ref())
        {
            Some(OutstandingCommand { transfer: Transfer::Out(buffer), .. }) => buffer.as_slice(),
            _ => &[],
        }
    }

    /// Buffer for the data of command `cid`.
    #[inline]
    pub(crate) fn data_mut(&mut self, cid: u16) -> &mut [u8] {
        match self.get_mut(cid) {
            Some(OutstandingCommand { transfer: Transfer::In(buffer), .. }) => {
                buffer.as_mut_slice()
            }
            _ => &mut [],
        }
    }

    /// Records that the controller completed command `cid`. Returns false if there is no command
    /// `cid`.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        cid: u16,
        result: Result<u64, CommandError>,
        done: &mut Vec<CompletedCommand>,
    ) -> bool {
        let Some(outstanding) = self.get_mut(cid) else { return false };
        let result = outstanding.judge(result);
        if outstanding.unsent > 0 {
            outstanding.result = Some(result);
            return true;
        }
        self.retire(cid, result, done);
        true
    }

    /// Records that a part of command `cid`'s data was sent.
    pub(crate) fn piece_sent(&mut self, cid: u16, done: &mut Vec<CompletedCommand>) {
        let slot = self.slots.get_mut(usize::from(cid & SLOT_MASK));
        let Some(outstanding) = slot.and_then(|slot| slot.outstanding.as_mut()) else { return };
        outstanding.unsent = outstanding.unsent.saturating_sub(1);
        if outstanding.unsent == 0
            && let Some(result) = outstanding.result
        {
            self.retire(cid, result, done);
        }
    }

    /// Ends every command: those past their deadline as timed out, the rest as lost with the
    /// connection.
    pub(crate) fn fail_all(&mut self, now: Nanos, done: &mut Vec<CompletedCommand>) {
        for index in 0..self.slots.len() {
            let Some(outstanding) = &self.slots[index].outstanding else { continue };
            let error = if outstanding.deadline <= now {
                CommandError::TimedOut
            } else {
                CommandError::ConnectionLost
            };
            let cid = u16::try_from(index).unwrap_or(SLOT_MASK);
            self.retire(cid, Err(error), done);
        }
    }

    /// Returns true if a command is past its deadline.
    pub(crate) fn is_overdue(&self, now: Nanos) -> bool {
        self.slots.iter().any(|slot| {
            slot.outstanding.as_ref().is_some_and(|outstanding| outstanding.deadline <= now)
        })
    }

    #[inline]
    fn retire(
        &mut self,
        cid: u16,
        result: Result<u64, CommandError>,
        done: &mut Vec<CompletedCommand>,
    ) {
        let index = cid & SLOT_MASK;
        let slot = &mut self.slots[usize::from(index)];
        if let Some(outstanding) = slot.outstanding.take() {
            slot.generation = (slot.generation + 1) & (u16::MAX >> SLOT_BITS);
            self.free.push(index);
            done.push(outstanding.into_completed(result));
        }
    }
}
