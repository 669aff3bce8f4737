//! The admin queue: commands with a page of data each, and the owners of their completions.
//!
//! It belongs to the supervisor. A command occupies its slot until its completion arrives, or the
//! controller is stopped; the page of data belongs to the slot.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nvmeof_wire::Sqe;
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::status::Status;

use super::bar::{AdminRings, Bar, StatusSnapshot};
use super::error::AdminError;
use super::function::{DmaSpace, Registers};
use super::gate::{Event, Violation};
use super::memory::DmaMemory;
use super::ring::{RingPair, Shadows};
use super::wait::Wait;

/// Entries of the admin queues.
const ENTRIES: u16 = 32;
/// Maximum concurrent commands.
const SLOTS: usize = ENTRIES as usize - 1;
/// Bits of a command identifier for the slot; the higher bits are the slot's generation.
const SLOT_BITS: u32 = 5;
const PAGE: usize = crate::dma::PAGE;
/// Interval between polls for a command, in nanoseconds.
const LOOK: u64 = 1_000_000;

/// Data of a command: one page.
pub(super) type Page = Box<[u8; PAGE]>;

/// Requester of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A caller of the controller, by number.
    Caller(u64),
    /// The caller that waits in [`AdminQueue::run`].
    Runner,
    /// The supervisor: an Asynchronous Event Request.
    Event,
    /// The supervisor: the log page of an event.
    EventLog(AsyncEvent),
    /// The supervisor: the abort of a command on an I/O queue.
    Abort {
        /// Index of the queue.
        queue: usize,
        /// Identifier of the command.
        cid: u16,
    },
}

/// Result of a command.
#[derive(Debug)]
pub(super) struct AdminCompletion {
    pub(super) owner: Owner,
    pub(super) result: Result<AdminReply, AdminError>,
}

/// A successful completion.
#[derive(Debug)]
pub(super) struct AdminReply {
    /// Dword 0 of the completion.
    pub(super) dw0: u32,
    /// Data from the controller, if requested.
    pub(super) data: Option<Page>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Number of commands the slot has had.
    generation: u16,
    out: Option<Out>,
}

#[derive(Debug, Clone, Copy)]
struct Out {
    owner: Owner,
    wants_data: bool,
    /// Time by which the completion must arrive.
    deadline: Option<u64>,
}

pub(super) struct AdminQueue {
    ring: RingPair,
    pages: DmaMemory,
    slots: [Slot; SLOTS],
    regs: Arc<dyn Registers>,
    event: Option<Event>,
    /// Completions that arrived while the caller waited for another one.
    early: Vec<AdminCompletion>,
}

impl AdminQueue {
    /// Creates the queue of the controller of `bar`, which is not enabled yet. `event` is that of
    /// vector 0.
    pub(super) fn new(
        bar: &Bar,
        space: &Arc<dyn DmaSpace>,
        event: Option<Event>,
    ) -> std::io::Result<Self> {
        let memory = DmaMemory::new(space, RingPair::size(ENTRIES))?;
        let pages = DmaMemory::new(space, SLOTS * PAGE)?;
        let doorbells = bar.doorbells(0).ok_or_else(|| {
            // `Bar::probe` refuses a controller without admin doorbells.
            std::io::Error::other("admin doorbells are outside of the registers")
        })?;
        let slots = [Slot { generation: 0, out: None }; SLOTS];
        let ring = RingPair::new(memory, 0, ENTRIES, doorbells);
        Ok(Self { ring, pages, slots, regs: Arc::clone(bar.regs()), event, early: Vec::new() })
    }

    pub(super) fn rings(&self) -> AdminRings {
        let (submission, completion) = self.ring.addresses();
        AdminRings { submission, completion, entries: ENTRIES }
    }

    pub(super) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// Enables or disables shadow doorbells.
    pub(super) fn set_shadows(&mut self, shadows: Option<Arc<Shadows>>, dstrd: u8) {
        self.ring.set_shadows(shadows, dstrd);
    }

    /// Resets the queue for a disabled controller. Returns the results of commands that will not
    /// complete.
    pub(super) fn begin(&mut self, generation: u64) -> Vec<AdminCompletion> {
        self.ring.set_shadows(None, 0);
        self.ring.begin(generation);
        self.fail_all(&AdminError::Reset)
    }

    /// Completes all commands in flight with `error`, because the controller is stopped.
    pub(super) fn fail_all(&mut self, error: &AdminError) -> Vec<AdminCompletion> {
        let mut answers = std::mem::take(&mut self.early);
        for slot in &mut self.slots {
            if let Some(out) = slot.out.take() {
                answers.push(AdminCompletion { owner: out.owner, result: Err(error.clone()) });
            }
        }
        answers
    }

    /// Submits `sqe`. Sets its identifier and, with `wants_data`, its data pointer to a page for
    /// the controller to write.
    pub(super) fn submit(
        &mut self,
        mut sqe: Sqe,
        wants_data: bool,
        owner: Owner,
        deadline: Option<u64>,
    ) -> Result<(), AdminError> {
        let free = self.slots.iter_mut().enumerate().find(|(_, slot)| slot.out.is_none());
        let Some((index, slot)) = free else { return Err(AdminError::Busy) };
        slot.generation = slot.generation.wrapping_add(1);
        slot.out = Some(Out { owner, wants_data, deadline });
        sqe.cid.set(cid_of(index, slot.generation));
        if wants_data {
            self.pages.clear(index * PAGE, PAGE);
            sqe = sqe.with_prp(self.pages.address(index * PAGE), 0);
        }
        self.ring.push(&sqe);
        self.ring.ring(self.regs.as_ref());
        Ok(())
    }

    /// Processes the available completions.
    pub(super) fn poll(&mut self, answers: &mut Vec<AdminCompletion>) -> Result<(), Violation> {
        answers.append(&mut self.early);
        self.clear_event();
        let mut verdict = Ok(());
        for _ in 0..ENTRIES {
            let Some(cqe) = self.ring.pop() else { break };
            if cqe.sqid.get() != 0 {
                verdict = Err(Violation::OtherQueue);
                break;
            }
            let cid = cqe.cid.get();
            let index = usize::from(cid & ((1 << SLOT_BITS) - 1));
            let slot = self.slots.get_mut(index);
            let slot = slot.filter(|slot| cid_of(index, slot.generation) == cid);
            let Some(out) = slot.and_then(|slot| slot.out.take()) else {
                verdict = Err(Violation::UnknownCommand);
                break;
            };
            let status = cqe.status();
            let result = if status.is_success() {
                Ok(AdminReply { dw0: cqe.dw0(), data: out.wants_data.then(|| self.page(index)) })
            } else {
                Err(AdminError::Status(status))
            };
            answers.push(AdminCompletion { owner: out.owner, result });
        }
        self.ring.ring(self.regs.as_ref());
        verdict
    }

    /// Submits a command and waits for its completion; keeps other completions.
    pub(super) fn run(
        &mut self,
        bar: &Bar,
        wait: &dyn Wait,
        timeout: u64,
        sqe: Sqe,
        wants_data: bool,
    ) -> Result<AdminReply, AdminError> {
        let end = wait.now().saturating_add(timeout);
        self.submit(sqe, wants_data, Owner::Runner, Some(end))?;
        let mut answers = Vec::new();
        loop {
            let verdict = self.poll(&mut answers);
            let own = answers.iter().position(|answer| answer.owner == Owner::Runner);
            if let Some(index) = own {
                let answer = answers.swap_remove(index);
                self.early = answers;
                return answer.result;
            }
            if let Err(violation) = verdict {
                self.early = answers;
                let what = format!("admin queue: unexpected completion ({violation:?})");
                return Err(AdminError::Failed(what));
            }
            match bar.look() {
                StatusSnapshot::Absent => {
                    return Err(AdminError::Failed("the controller is missing".to_owned()));
                }
                StatusSnapshot::There(csts) if csts.cfs() => {
                    return Err(AdminError::Failed(
                        "the controller reports a fatal status".to_owned(),
                    ));
                }
                StatusSnapshot::There(_) if wait.now() >= end => return Err(AdminError::Timeout),
                StatusSnapshot::There(_) => wait.wait(self.event().as_slice(), LOOK),
            }
        }
    }

    /// Returns true if a command exceeded its timeout.
    ///
    /// While a command runs that may take longer than `patience`, like Format NVM, the controller
    /// may process no other. The time of other commands starts when it completes, and is at least
    /// `patience`.
    pub(super) fn is_overdue(&mut self, now: u64, patience: u64) -> bool {
        let later = now.saturating_add(patience);
        let last = self.slots.iter().filter_map(|slot| slot.out.as_ref()?.deadline).max();
        let mut deadlines =
            self.slots.iter_mut().filter_map(|slot| slot.out.as_mut()?.deadline.as_mut());
        if last <= Some(later) {
            return deadlines.any(|deadline| *deadline <= now);
        }
        deadlines.for_each(|deadline| *deadline = later.max(*deadline));
        false
    }

    /// Clears the descriptor: the caller polls everything it signaled afterwards.
    pub(super) fn clear_event(&self) {
        if let Some(event) = &self.event {
            event.clear();
        }
    }

    /// Returns the number of aborts in flight.
    pub(super) fn aborts(&self) -> usize {
        let outs = self.slots.iter().filter_map(|slot| slot.out.as_ref());
        outs.filter(|out| matches!(out.owner, Owner::Abort { .. })).count()
    }

    /// Returns true if the abort of this command is in flight.
    pub(super) fn is_aborting(&self, queue: usize, cid: u16) -> bool {
        let mut outs = self.slots.iter().filter_map(|slot| slot.out.as_ref());
        outs.any(|out| out.owner == Owner::Abort { queue, cid })
    }

    fn page(&self, index: usize) -> Page {
        let mut page = Box::new([0; PAGE]);
        self.pages.read(index * PAGE, &mut page[..]);
        page
    }
}

impl AdminReply {
    /// Returns the data, or an error if there is none.
    pub(super) fn into_data(self) -> Result<Page, AdminError> {
        self.data.ok_or(AdminError::Status(Status::INTERNAL_ERROR))
    }
}

impl fmt::Debug for AdminQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = self.slots.iter().filter(|slot| slot.out.is_some()).count();
        f.debug_struct("AdminQueue")
            .field("ring", &self.ring)
            .field("out", &out)
            .finish_non_exhaustive()
    }
}

/// Returns the identifier: the slot, and above it the generation. The slot is less than 31, so no
/// identifier is FFFFh (Base 3.3.3.1).
fn cid_of(index: usize, generation: u16) -> u16 {
    debug_assert!(index < SLOTS, "slot {index}");
    let slot = u16::try_from(index).unwrap_or(u16::MAX);
    generation << SLOT_BITS | slot
}
