//! Outstanding commands and their identifiers, for a queue of any fabric.

use crate::{Buffer, Command, CommandError, Completed, Nanos, Transfer};

/// Bits of a command identifier that name the slot. The rest is a generation, so that a duplicate
/// or late completion does not match the next command in the slot.
const SLOT_BITS: u32 = 12;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// Maximum commands that a queue can have outstanding.
pub(crate) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// An outstanding command.
#[derive(Debug)]
pub(crate) struct Busy {
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

impl Busy {
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

    fn into_completed(self, result: Result<u64, CommandError>) -> Completed {
        let buffer: Option<Buffer> = match self.transfer {
            Transfer::None => None,
            Transfer::In(buffer) | Transfer::Out(buffer) => Some(buffer),
        };
        Completed { token: self.token, result, buffer }
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
    busy: Option<Busy>,
}

/// The outstanding commands, by command identifier.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u16>,
}

impl Slots {
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
    pub(crate) fn insert(&mut self, command: Command, deadline: Nanos) -> Option<(u16, &mut Busy)> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        let cid = index | slot.generation << SLOT_BITS;
        let busy = slot.busy.insert(Busy {
            token: command.token,
            deadline,
            transfer: command.transfer,
            moved: 0,
            unsent: 0,
            fault: None,
            result: None,
        });
        Some((cid, busy))
    }

    /// Returns the command `cid`, unless it does not exist or the controller has completed it
    /// already.
    #[inline]
    pub(crate) fn get_mut(&mut self, cid: u16) -> Option<&mut Busy> {
        let slot = self.slots.get_mut(usize::from(cid & SLOT_MASK))?;
        if slot.generation != cid >> SLOT_BITS {
            return None;
        }
        slot.busy.as_mut().filter(|busy| busy.result.is_none())
    }

    /// Data of a command that is being sent.
    #[inline]
    pub(crate) fn data(&self, cid: u16) -> &[u8] {
        match self.slots.get(usize::from(cid & SLOT_MASK)).and_then(|slot| slot.busy.as_ref()) {
            Some(Busy { transfer: Transfer::Out(buffer), .. }) => buffer.as_slice(),
            _ => &[],
        }
    }

    /// Buffer for the data of command `cid`.
    #[inline]
    pub(crate) fn data_mut(&mut self, cid: u16) -> &mut [u8] {
        match self.get_mut(cid) {
            Some(Busy { transfer: Transfer::In(buffer), .. }) => buffer.as_mut_slice(),
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
        done: &mut Vec<Completed>,
    ) -> bool {
        let Some(busy) = self.get_mut(cid) else { return false };
        let result = busy.judge(result);
        if busy.unsent > 0 {
            busy.result = Some(result);
            return true;
        }
        self.retire(cid, result, done);
        true
    }

    /// Records that a part of command `cid`'s data was sent.
    pub(crate) fn piece_sent(&mut self, cid: u16, done: &mut Vec<Completed>) {
        let slot = self.slots.get_mut(usize::from(cid & SLOT_MASK));
        let Some(busy) = slot.and_then(|slot| slot.busy.as_mut()) else { return };
        busy.unsent = busy.unsent.saturating_sub(1);
        if busy.unsent == 0
            && let Some(result) = busy.result
        {
            self.retire(cid, result, done);
        }
    }

    /// Ends every command: those past their deadline as timed out, the rest as lost with the
    /// connection.
    pub(crate) fn fail_all(&mut self, now: Nanos, done: &mut Vec<Completed>) {
        for index in 0..self.slots.len() {
            let Some(busy) = &self.slots[index].busy else { continue };
            let error = if busy.deadline <= now {
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
        self.slots.iter().any(|slot| slot.busy.as_ref().is_some_and(|busy| busy.deadline <= now))
    }

    #[inline]
    fn retire(&mut self, cid: u16, result: Result<u64, CommandError>, done: &mut Vec<Completed>) {
        let index = cid & SLOT_MASK;
        let slot = &mut self.slots[usize::from(index)];
        if let Some(busy) = slot.busy.take() {
            slot.generation = (slot.generation + 1) & (u16::MAX >> SLOT_BITS);
            self.free.push(index);
            done.push(busy.into_completed(result));
        }
    }
}
