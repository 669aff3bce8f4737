//! Incoming capsules, and their memory.
//!
//! A receive has 64 bytes for the command, and a buffer for the bytes after it. When a capsule
//! arrives, the command is copied out. If the buffer contains data, it leaves with the command, and
//! another buffer replaces it. The receive is therefore posted again immediately, however long the
//! command takes.

use std::io;

use nvmeof_core::dma::{Buffer, BufferReservation, CorePool, LeaseError};
use nvmeof_verbs::{Device, Sge, WorkCompletion, WrId};
use nvmeof_wire::Sqe;
use nvmeof_wire::sqe::SQE_SIZE;

use super::capsule::{DataPointer, data_pointer};
use super::post::PostReceive;
use super::registration::Registration;
use super::slab::Slab;
use crate::queue::FabricError;

/// A received capsule.
#[derive(Debug)]
pub(super) struct ReceivedCapsule {
    /// The command.
    pub(super) sqe: Sqe,
    /// Location of its data.
    pub(super) pointer: Result<DataPointer, FabricError>,
    /// Bytes after the command, if they are data.
    pub(super) data: Option<Buffer>,
}

/// A capsule that is shorter than a command, or longer than its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadLength(pub(super) u32);

#[derive(Debug)]
struct Slot {
    generation: u32,
    is_posted: bool,
    /// Destination of the bytes after the command, with its key.
    behind: Option<(Buffer, u32)>,
}

/// The receives of a queue pair, or those of a shared receive queue.
#[derive(Debug)]
pub(super) struct ReceiveBuffers {
    kind: u8,
    slots: Vec<Slot>,
    commands: Slab,
    /// Maximum bytes after a command, and the reservation of buffers for them.
    behind: u32,
    reserve: Option<BufferReservation>,
    /// Pool for further buffers.
    pool: Option<CorePool>,
    posted: usize,
    /// Slots that could not be posted for lack of a buffer.
    unposted: Vec<u32>,
}

impl ReceiveBuffers {
    /// Creates `count` receives of a command and `behind` bytes; none is posted yet.
    ///
    /// Work identifiers are of `kind`, with generations from `generation` on.
    pub(super) fn new<D: Device>(
        pool: &CorePool,
        registration: &Registration<D>,
        kind: u8,
        (count, behind): (usize, u32),
        generation: u32,
    ) -> Result<Self, LeaseError> {
        let commands = Slab::new(pool, registration, count, SQE_SIZE)?;
        let reserve = match behind {
            0 => None,
            // One for each receive, one for each command in work.
            len => Some(pool.reserve(2 * count, len as usize)?),
        };
        let slot = || Slot { generation, is_posted: false, behind: None };
        Ok(Self {
            kind,
            slots: std::iter::repeat_with(slot).take(count).collect(),
            commands,
            behind,
            reserve,
            pool: Some(pool.clone()),
            posted: 0,
            unposted: Vec::with_capacity(count),
        })
    }

    /// Creates an empty set of receives, which can [grow](Self::grow).
    ///
    /// Its only buffers are those that its [stock](Self::stock) receives.
    pub(super) fn shared(pool: &CorePool, kind: u8, behind: u32) -> Result<Self, LeaseError> {
        Ok(Self {
            kind,
            slots: Vec::new(),
            commands: Slab::empty(SQE_SIZE),
            behind,
            reserve: if behind == 0 { None } else { Some(pool.reserve(0, behind as usize)?) },
            pool: None,
            posted: 0,
            unposted: Vec::new(),
        })
    }

    /// Grows to at least `count` receives.
    pub(super) fn grow<D: Device>(
        &mut self,
        pool: &CorePool,
        registration: &Registration<D>,
        count: usize,
    ) -> Result<(), LeaseError> {
        self.commands.grow(pool, registration, count)?;
        let slot = || Slot { generation: 0, is_posted: false, behind: None };
        self.slots.resize_with(count.max(self.slots.len()), slot);
        Ok(())
    }

    /// Returns the reservation for the bytes after commands; `None` if no bytes follow commands.
    pub(super) fn stock(&self) -> Option<&BufferReservation> {
        self.reserve.as_ref()
    }

    /// Returns the maximum bytes after a command.
    pub(super) fn behind(&self) -> usize {
        self.behind as usize
    }

    /// Releases the buffer of a receive that is not posted.
    pub(super) fn empty(&mut self, slot: u32) {
        let slot = &mut self.slots[slot as usize];
        if !slot.is_posted {
            slot.behind = None;
        }
    }

    /// Returns the number of receives, posted or not.
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of posted receives.
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// Returns true if a receive waits for a buffer.
    pub(super) fn has_unposted(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// Posts every receive that is not posted.
    pub(super) fn post_all<D: Device>(
        &mut self,
        to: &mut impl PostReceive,
        registration: &Registration<D>,
    ) -> io::Result<()> {
        self.unposted.clear();
        for (slot, at) in (0..=u32::MAX).zip(0..self.slots.len()) {
            if !self.slots[at].is_posted {
                self.post(slot, to, registration)?;
            }
        }
        Ok(())
    }

    /// Posts the receives that had no buffer.
    pub(super) fn post_unposted<D: Device>(
        &mut self,
        to: &mut impl PostReceive,
        registration: &Registration<D>,
    ) -> io::Result<()> {
        for _ in 0..self.unposted.len() {
            let Some(slot) = self.unposted.pop() else { break };
            let before = self.unposted.len();
            self.post(slot, to, registration)?;
            if self.unposted.len() > before {
                break;
            }
        }
        Ok(())
    }

    /// Posts a receive. If no buffer is available, it waits for
    /// [`post_unposted`](Self::post_unposted).
    pub(super) fn post<D: Device>(
        &mut self,
        slot: u32,
        to: &mut impl PostReceive,
        registration: &Registration<D>,
    ) -> io::Result<()> {
        let at = slot as usize;
        let entry = &mut self.slots[at];
        assert!(!entry.is_posted, "receive {slot} is posted");
        let mut pieces = [self.commands.piece(at), Sge::default()];
        let mut used = 1;
        if let Some(reserve) = &self.reserve {
            if entry.behind.is_none() {
                let more = || self.pool.as_ref()?.lease(self.behind as usize).ok();
                let Some(buffer) = reserve.lease().or_else(more) else {
                    self.unposted.push(slot);
                    return Ok(());
                };
                let key = registration.key_of(&buffer);
                entry.behind = Some((buffer, key));
            }
            if let Some((buffer, lkey)) = &mut entry.behind {
                let address = buffer.as_mut_ptr().expose_provenance() as u64;
                pieces[1] = Sge { address, length: self.behind, lkey: *lkey };
                used = 2;
            }
        }
        entry.generation = entry.generation.wrapping_add(1) % WrId::GENERATIONS;
        to.post_receive(WrId::new(self.kind, entry.generation, slot), &pieces[..used])?;
        entry.is_posted = true;
        self.posted += 1;
        Ok(())
    }

    /// Handles a completed receive; returns its slot, or `None` if the completion belongs to none.
    pub(super) fn came_back(&mut self, id: WrId) -> Option<u32> {
        let entry = self.slots.get_mut(id.slot() as usize)?;
        if id.kind() != self.kind || id.generation() != entry.generation || !entry.is_posted {
            return None;
        }
        entry.is_posted = false;
        self.posted -= 1;
        Some(id.slot())
    }

    /// Returns the capsule of a successful receive, with the length of the completion.
    pub(super) fn take(
        &mut self,
        slot: u32,
        completion: &WorkCompletion,
    ) -> Result<ReceivedCapsule, BadLength> {
        let bad = BadLength(completion.bytes);
        let at = slot as usize;
        let behind = (completion.bytes as usize).checked_sub(SQE_SIZE);
        let behind = behind.filter(|len| *len <= self.behind as usize).ok_or(bad)?;
        let sqe = self.commands.command(at);
        let entry = &mut self.slots[at];
        let bytes = entry.behind.as_ref().map_or(&[][..], |(buffer, _)| buffer.as_slice());
        let pointer = data_pointer(&sqe, bytes.get(..behind).ok_or(bad)?);
        let is_list = pointer.as_ref().is_ok_and(|pointer| pointer.list.is_some());
        let mut data = None;
        if behind > 0 && !is_list {
            data = entry.behind.take().map(|(mut buffer, _)| {
                buffer.truncate(behind);
                buffer
            });
        }
        Ok(ReceivedCapsule { sqe, pointer, data })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nvmeof_core::dma::{ChunkPool, MemoryRegistrar, PoolConfig};
    use nvmeof_loopback_verbs::Fabric;
    use nvmeof_verbs::Sge;

    use super::*;

    /// Accepts receives, and ignores them.
    #[derive(Default)]
    struct Recorder(Vec<WrId>);

    impl PostReceive for Recorder {
        fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
            assert_eq!(pieces.len(), 2);
            self.0.push(id);
            Ok(())
        }
    }

    #[test]
    fn a_late_completion_finds_nothing() {
        let config = PoolConfig { huge_pages: false, ..PoolConfig::default() };
        let shared = ChunkPool::new(config).unwrap();
        let pool = CorePool::new(&shared);
        let device = Fabric::new(1).device("target");
        let registration = Registration::new(&device, &shared).unwrap();
        let mut receives = ReceiveBuffers::new(&pool, &registration, 1, (2, 4096), 9).unwrap();
        let mut posted = Recorder::default();
        receives.post_all(&mut posted, &registration).unwrap();
        let [first, second] = posted.0[..] else { panic!("{:?}", posted.0) };
        assert_eq!(receives.came_back(first), Some(first.slot()));
        assert_eq!(receives.came_back(first), None, "twice");
        receives.post(first.slot(), &mut posted, &registration).unwrap();
        assert_eq!(receives.came_back(first), None, "of an earlier use of the slot");
        let other = WrId::new(2, second.generation(), second.slot());
        assert_eq!(receives.came_back(other), None, "of another kind");
        assert_eq!(receives.came_back(WrId::new(1, second.generation(), 2)), None, "of no slot");
        assert_eq!(receives.posted(), 2);
        assert_eq!(receives.came_back(second), Some(second.slot()));
        drop(receives);
        assert_eq!(pool.leased(), 0);
        let registrar: Arc<dyn MemoryRegistrar> = registration;
        shared.remove_registrar(&registrar);
    }
}
