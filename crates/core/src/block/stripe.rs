//! `stripe`: several devices as one, with chunks distributed round-robin (RAID-0).
//!
//! ```text
//!  submit --in one chunk----------> member, unchanged ------------------> returned by poll
//!         --more: a parent and its children, each with a part of the buffer
//!                    |--> member --done--> one child less --the last--> parent returned
//!                    '--> waiting, if its member is full
//! ```
//!
//! A queue has a queue of each member and shares nothing with other queues: no lock, no second
//! hand-over. An operation in one chunk costs a shift and a multiplication. It keeps its token, and
//! its completion goes from the member directly to the caller. Only operations that span several
//! members have state here. The members move their data from and to parts of the one buffer
//! ([`SplitBuffer`]), without a copy. A range without data is one run per member, whatever
//! its number of chunks.

mod layout;
mod parents;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use self::layout::{Layout, MemberOffset};
use self::parents::{SplitOps, is_child};
use super::signal::any_of;
use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Geometry,
    RejectReason, Rejected,
};
use crate::dma::{CorePool, SplitBuffer, ZeroCopyData};

/// Completions and waiting children a queue reserves room for at start.
const ROOM: usize = 64;

/// The stripe device.
#[derive(Debug)]
pub struct StripeDevice {
    info: DeviceInfo,
    members: Vec<Arc<dyn BlockDevice>>,
    layout: Layout,
}

/// Reason why devices cannot form a stripe.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum StripeError {
    /// The stripe has no members.
    #[error("a stripe needs members")]
    Empty,
    /// The members have different block sizes.
    #[error(
        "members have different block sizes: {first:?} {first_size} bytes, {other:?} {other_size} \
         bytes"
    )]
    BlockSize {
        /// The first member's name.
        first: String,
        /// Bytes per block of the first member.
        first_size: u32,
        /// Name of another member.
        other: String,
        /// Bytes per block of that member.
        other_size: u32,
    },
    /// The chunk size is no multiple of the block size.
    #[error("chunks of {chunk} bytes are not whole blocks of {block_size} bytes")]
    Chunk {
        /// Bytes per chunk.
        chunk: u64,
        /// Bytes per block.
        block_size: u32,
    },
    /// A member is smaller than one chunk.
    #[error("{member:?} has {size} bytes, less than a chunk of {chunk}")]
    Small {
        /// The member's name.
        member: String,
        /// Bytes of the member.
        size: u64,
        /// Bytes per chunk.
        chunk: u64,
    },
}

impl StripeDevice {
    /// Creates a stripe over `members`, in this order, in chunks of `chunk` bytes.
    ///
    /// Each member contributes as many whole chunks as the smallest one has. The log reports the
    /// unused bytes of the others.
    ///
    /// # Errors
    /// The members do not fit together.
    pub fn new(
        name: &str,
        members: Vec<Arc<dyn BlockDevice>>,
        chunk: u64,
    ) -> Result<Self, StripeError> {
        let first = members.first().ok_or(StripeError::Empty)?.info();
        let block_size = first.block_size;
        if let Some(other) = members.iter().map(|m| m.info()).find(|o| o.block_size != block_size) {
            return Err(StripeError::BlockSize {
                first: first.name.clone(),
                first_size: block_size,
                other: other.name.clone(),
                other_size: other.block_size,
            });
        }
        if chunk == 0 || !chunk.is_multiple_of(block_size.into()) {
            return Err(StripeError::Chunk { chunk, block_size });
        }
        let smallest = members.iter().map(|m| m.info()).min_by_key(|info| info.size);
        let smallest = smallest.unwrap_or(first);
        let each = smallest.size - smallest.size % chunk;
        if each == 0 {
            let (member, size) = (smallest.name.clone(), smallest.size);
            return Err(StripeError::Small { member, size, chunk });
        }
        for info in members.iter().map(|m| m.info()).filter(|info| info.size > each) {
            let unused = info.size - each;
            tracing::info!(
                stripe = name,
                member = info.name,
                unused,
                "bytes at the end are unused"
            );
        }
        let medium = medium(&members, chunk);
        let geometries: Vec<Geometry> = members.iter().map(|m| m.info().geometry).collect();
        let geometry = Geometry::of_stripe(&geometries, chunk);
        let info = DeviceInfo { medium, geometry, ..combined(name, &members, each) };
        let layout = Layout::new(chunk, members.len());
        Ok(Self { info, members, layout })
    }
}

/// Combines the capabilities common to all members with the restrictions of any member.
fn combined(name: &str, members: &[Arc<dyn BlockDevice>], each: u64) -> DeviceInfo {
    let any = |what: fn(&DeviceInfo) -> bool| members.iter().any(|member| what(member.info()));
    DeviceInfo {
        name: name.to_owned(),
        size: each.saturating_mul(members.len() as u64),
        block_size: members.first().map_or(512, |member| member.info().block_size),
        read_only: any(|info| info.read_only),
        volatile_cache: any(|info| info.volatile_cache),
        deallocate: !any(|info| !info.deallocate),
        deallocate_reads_zero: !any(|info| !info.deallocate_reads_zero),
        write_zeroes: !any(|info| !info.write_zeroes),
        geometry: Geometry::default(),
        medium: None,
    }
}

/// Identity of a stripe: the identities of the members in their order, and the chunk size.
fn medium(members: &[Arc<dyn BlockDevice>], chunk: u64) -> Option<String> {
    let each: Option<Vec<&str>> =
        members.iter().map(|member| member.info().medium.as_deref()).collect();
    each.map(|each| format!("stripe({chunk};{})", each.join(";")))
}

impl BlockDevice for StripeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(StripeQueue::new(self, pool)?))
    }

    fn quiesce_bound(&self) -> Option<Duration> {
        let mut bounds = self.members.iter().map(|member| member.quiesce_bound());
        bounds.try_fold(Duration::ZERO, |longest, bound| bound.map(|bound| longest.max(bound)))
    }

    fn is_gone(&self) -> bool {
        self.members.iter().any(|member| member.is_gone())
    }
}

#[derive(Debug)]
struct StripeQueue {
    members: Vec<Box<dyn BlockQueue>>,
    info: DeviceInfo,
    layout: Layout,
    /// Operations submitted and not returned.
    in_flight: usize,
    parents: SplitOps,
    /// Children whose members were full. While there are any, the queue takes no new operation.
    waiting: VecDeque<(usize, BlockOp)>,
    /// Operations completed without a member.
    ended: Vec<Completed>,
    /// Readable when the descriptor of a member is.
    watch: Option<OwnedFd>,
}

impl StripeQueue {
    fn new(device: &StripeDevice, pool: &CorePool) -> Result<Self, BlockError> {
        let members = device.members.iter().map(|member| member.open_queue(pool));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let watch = any_of(members.iter().filter_map(|member| member.event_fd()))
            .map_err(|error| BlockError::from_errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(Self {
            members,
            info: device.info.clone(),
            layout: device.layout,
            in_flight: 0,
            parents: SplitOps::with_room(ROOM),
            waiting: VecDeque::with_capacity(ROOM),
            ended: Vec::with_capacity(ROOM),
            watch,
        })
    }

    /// Passes an operation to one member, with only its offset changed.
    #[inline]
    fn pass(&mut self, mut op: BlockOp, place: MemberOffset) -> Result<(), Rejected> {
        let offset = op.offset;
        op.offset = place.offset;
        self.members[place.member].submit(op).map_err(|mut rejected| {
            rejected.op.offset = offset;
            rejected
        })
    }

    /// Returns true if a member can take the operation unchanged, provided it lies in one chunk.
    #[inline]
    fn may_pass(&self, op: &BlockOp) -> bool {
        let refused = self.info.read_only && op.is_write();
        op.kind != BlockOpKind::Flush && !refused && !is_child(op.token)
    }

    /// Splits an operation over several members.
    #[inline(never)]
    fn spread(&mut self, op: BlockOp) {
        let BlockOp { token, kind, offset, len, buf } = op;
        // The parent counts as its own child until all are submitted, so no child completes it
        // earlier.
        let (parent, child) = self.parents.begin(token);
        match buf {
            Some(buf) if matches!(kind, BlockOpKind::Read | BlockOpKind::Write { .. }) => {
                let mut cut = SplitBuffer::new(buf);
                let (mut at, end) = (offset, offset + len);
                while at < end {
                    let MemberOffset { member, offset, left } = self.layout.place(at);
                    let len = left.min(end - at);
                    at += len;
                    // `check` has verified that the buffer fits the operation.
                    let buf = usize::try_from(len).ok().and_then(|len| cut.part(len));
                    self.give(parent, member, BlockOp { token: child, kind, offset, len, buf });
                }
                self.parents.keep(parent, cut);
            }
            _ => {
                for member in 0..self.members.len() {
                    let run = if kind == BlockOpKind::Flush {
                        Some((0, 0))
                    } else {
                        self.layout.run(offset, len, member)
                    };
                    let Some((offset, len)) = run else { continue };
                    let op = BlockOp { token: child, kind, offset, len, buf: None };
                    self.give(parent, member, op);
                }
            }
        }
        self.ended.extend(self.parents.child_done(parent, Ok(())));
    }

    /// Adds a child to `parent`: submits it to its member or queues it behind waiting children.
    fn give(&mut self, parent: u32, member: usize, op: BlockOp) {
        self.parents.child_begun(parent);
        if !self.waiting.is_empty() {
            self.waiting.push_back((member, op));
            return;
        }
        if let Some(op) = self.submit_child(member, op) {
            self.waiting.push_back((member, op));
        }
    }

    /// Submits a child; returns it if its member is full.
    fn submit_child(&mut self, member: usize, op: BlockOp) -> Option<BlockOp> {
        match self.members[member].submit(op) {
            Ok(()) => None,
            Err(Rejected { op, reason: RejectReason::QueueFull }) => Some(op),
            Err(Rejected { op, reason: RejectReason::Invalid(error) }) => {
                let child = op.complete(Err(error));
                self.ended.extend(self.parents.completed(child));
                None
            }
        }
    }

    /// Submits waiting children; returns true if a member took one and must be polled.
    fn give_out(&mut self) -> bool {
        let mut any = false;
        while let Some((member, op)) = self.waiting.pop_front() {
            if let Some(op) = self.submit_child(member, op) {
                self.waiting.push_front((member, op));
                break;
            }
            any = true;
        }
        any
    }

    /// Polls the members, and replaces children by their completed parents.
    #[inline]
    fn poll_members(&mut self, done: &mut Vec<Completed>) {
        let before = done.len();
        for member in &mut self.members {
            member.poll(done);
        }
        if self.parents.any() && done.len() > before {
            for child in done.extract_if(before.., |completed| is_child(completed.token)) {
                self.ended.extend(self.parents.completed(child));
            }
        }
    }
}

impl BlockQueue for StripeQueue {
    #[inline]
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        if !self.waiting.is_empty() {
            return Err(Rejected { op, reason: RejectReason::QueueFull });
        }
        let is_inside = op.offset.checked_add(op.len).is_some_and(|end| end <= self.info.size);
        if is_inside && self.may_pass(&op) {
            let place = self.layout.place(op.offset);
            if op.len <= place.left {
                // The member detects all other errors.
                self.pass(op, place)?;
                self.in_flight += 1;
                return Ok(());
            }
        }
        self.in_flight += 1;
        match op.check(&self.info) {
            Ok(()) => self.spread(op),
            Err(error) => self.ended.push(op.complete(Err(error))),
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completed>) {
        let before = done.len();
        self.poll_members(done);
        while !self.waiting.is_empty() && self.give_out() {
            // A member may batch what it just took: it must start before the reactor sleeps.
            self.poll_members(done);
        }
        if !self.ended.is_empty() {
            done.append(&mut self.ended);
        }
        self.in_flight -= done.len() - before;
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn cancel(&mut self, token: u64) {
        let mut tokens = self.parents.children_of(token);
        if !self.waiting.is_empty() && !tokens.is_empty() {
            for (member, op) in std::mem::take(&mut self.waiting) {
                if tokens.contains(&op.token) {
                    let child = op.complete(Err(BlockError::Cancelled));
                    self.ended.extend(self.parents.completed(child));
                } else {
                    self.waiting.push_back((member, op));
                }
            }
        }
        // Members also have whole operations under the caller's token, unless it looks like a
        // child's.
        if !is_child(token) {
            tokens.push(token);
        }
        for member in &mut self.members {
            tokens.iter().for_each(|token| member.cancel(*token));
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    fn needs_polls(&self) -> bool {
        self.members.iter().any(|member| member.needs_polls())
    }

    fn next_due(&self) -> Option<u64> {
        // A full member with nothing in flight sends no signal when it has room again.
        let stuck = self.waiting.front().filter(|(at, _)| self.members[*at].in_flight() == 0);
        let members = self.members.iter().filter_map(|member| member.next_due());
        members.chain(stuck.map(|_| 0)).min()
    }

    /// Passes a zero-copy read to the member, if one chunk holds it all.
    #[inline]
    fn zero_copy_read(&mut self, offset: u64, len: u32) -> Option<ZeroCopyData> {
        let end = offset.checked_add(u64::from(len))?;
        if end > self.info.size {
            return None;
        }
        let place = self.layout.place(offset);
        if u64::from(len) > place.left {
            return None;
        }
        self.members.get_mut(place.member)?.zero_copy_read(place.offset, len)
    }
}
