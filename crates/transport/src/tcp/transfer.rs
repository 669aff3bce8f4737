//! Data that the target requested from the host (R2T) and that has not all arrived.
//!
//! The host responds with the transfer tag of the R2T, and only the tag determines where its data
//! goes. A tag consists of a slot number and a generation, so that an earlier tag is invalid.

use std::collections::VecDeque;

use nvmeof_core::dma::Buffer;
use nvmeof_wire::tcp::TcpError;

use crate::pace::time_for;
use crate::queue::Nanos;

/// Offsets of H2CData's fields, for Fatal Error Information.
const CCCID_AT: u32 = 8;
const TTAG_AT: u32 = 10;

/// Invariant of [`Transfers::locate`]: its pull stays until the data of the PDU has arrived.
const LOCATED: &str = "a located pull";

/// One pull: an R2T for the whole of `buf`.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) token: u64,
    cid: u16,
    pub(super) buf: Buffer,
    /// Bytes that have arrived, in order.
    got: usize,
    /// True if some of them had a wrong digest.
    bad: bool,
}

#[derive(Debug)]
struct Slot {
    /// Tag of the pull in the slot, or of the last one.
    tag: u16,
    pull: Option<Pull>,
}

/// The pulls of a queue.
#[derive(Debug)]
pub(super) struct Transfers {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Bits of a tag that contain the slot number; the bits above are the generation.
    index_bits: u32,
    /// Bytes requested and not received, of all pulls.
    awaited: usize,
    /// Bytes of requested data received since the start.
    came: u64,
    /// Deadlines for the data of each pull, in the order of the requests. Some tags belong to
    /// completed pulls.
    dues: VecDeque<(u16, Nanos)>,
    /// Pulls begun since [`Self::asked`]; that call adds them to `dues`.
    unasked: Vec<u16>,
}

/// Destination of a checked H2CData: a slot, and the bytes of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataPlacement {
    pub(super) slot: u16,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Transfers {
    /// Creates slots for `depth` pulls.
    pub(super) fn new(depth: u16) -> Self {
        let mut transfers = Self {
            slots: Vec::new(),
            free: Vec::new(),
            index_bits: 0,
            awaited: 0,
            came: 0,
            dues: VecDeque::new(),
            unasked: Vec::new(),
        };
        transfers.grow(depth);
        transfers
    }

    /// Grows to at least `depth` slots. Call it while no pull is live: the layout of tags changes.
    pub(super) fn grow(&mut self, depth: u16) {
        let first = u16::try_from(self.slots.len()).expect("as many slots as an earlier depth");
        self.free.extend((first..depth).rev());
        self.slots.resize_with(depth.max(first).into(), || Slot { tag: 0, pull: None });
        self.index_bits = self.slots.len().next_power_of_two().ilog2();
        for (index, slot) in (0..=u16::MAX).zip(&mut self.slots) {
            slot.tag = index;
        }
    }

    /// Returns the number of pulls whose data has not all arrived.
    #[inline]
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the mean bytes still to arrive per pull.
    pub(super) fn mean_awaited(&self) -> usize {
        self.awaited.checked_div(self.live()).unwrap_or(0)
    }

    /// Returns the bytes of requested data received since the start.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// Adds received bytes.
    pub(super) fn count(&mut self, bytes: usize) {
        self.came += bytes as u64;
    }

    /// Returns the bytes received since the connection's start, and that number plus the bytes
    /// awaited.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.came, self.came + self.awaited as u64)
    }

    /// Sets the deadlines of the pulls begun since the last call, and returns true if there are
    /// any.
    ///
    /// The target requests their data now. Each pull gets `timeout`, plus the time that all awaited
    /// bytes take at the minimum rate.
    pub(super) fn asked(&mut self, now: Nanos, timeout: Nanos) -> bool {
        let any = !self.unasked.is_empty();
        let due = now.saturating_add(timeout).saturating_add(time_for(self.awaited as u64));
        // Earlier requests have earlier deadlines.
        let due = due.max(self.dues.back().map_or(0, |(_, due)| *due));
        for tag in self.unasked.drain(..) {
            self.dues.push_back((tag, due));
        }
        if self.dues.len() > 2 * self.slots.len() {
            let Self { dues, slots, index_bits, .. } = self;
            dues.retain(|(tag, _)| is_live(slots, *index_bits, *tag));
        }
        self.drop_done();
        any
    }

    /// Returns the earliest deadline for the data of a pull.
    pub(super) fn due(&self) -> Option<Nanos> {
        let is_live = |(tag, _): &&(u16, Nanos)| is_live(&self.slots, self.index_bits, *tag);
        self.dues.iter().find(is_live).map(|(_, due)| *due)
    }

    /// Adds the time for which the target was stalled.
    pub(super) fn extend_deadlines(&mut self, nanos: Nanos) {
        for (_, due) in &mut self.dues {
            *due = due.saturating_add(nanos);
        }
    }

    /// Drops the first deadlines whose pulls have completed.
    fn drop_done(&mut self) {
        while let Some((tag, _)) = self.dues.front()
            && !is_live(&self.slots, self.index_bits, *tag)
        {
            self.dues.pop_front();
        }
    }

    /// Begins a pull and returns its transfer tag; returns the buffer if there is no slot.
    pub(super) fn begin(&mut self, token: u64, cid: u16, buf: Buffer) -> Result<u16, Buffer> {
        let Some(index) = self.free.pop() else {
            return Err(buf);
        };
        // No bit is left for the generation if the slot number has all.
        let step = 1u16.unbounded_shl(self.index_bits);
        let slot = &mut self.slots[usize::from(index)];
        slot.tag = slot.tag.wrapping_add(step);
        self.awaited += buf.len();
        slot.pull = Some(Pull { token, cid, buf, got: 0, bad: false });
        self.unasked.push(slot.tag);
        Ok(slot.tag)
    }

    /// Returns the destination of an H2CData (TCP 3.6.2.8).
    ///
    /// The tag must be live and belong to the command. The data must be in order and within the
    /// R2T; `last` must be set exactly if it ends there.
    pub(super) fn locate(
        &self,
        cccid: u16,
        ttag: u16,
        datao: u32,
        datal: u32,
        last: bool,
    ) -> Result<DataPlacement, TcpError> {
        let index = ttag & mask(self.index_bits);
        let slot = self.slots.get(usize::from(index)).filter(|slot| slot.tag == ttag);
        let Some(pull) = slot.and_then(|slot| slot.pull.as_ref()) else {
            return Err(TcpError::field(TTAG_AT));
        };
        if pull.cid != cccid {
            return Err(TcpError::field(CCCID_AT));
        }
        let start = datao as usize;
        let end = start.saturating_add(datal as usize);
        if start != pull.got || end > pull.buf.len() {
            return Err(TcpError::OUT_OF_RANGE);
        }
        if last != (end == pull.buf.len()) {
            return Err(TcpError::SEQUENCE);
        }
        Ok(DataPlacement { slot: index, start, end })
    }

    /// Returns the bytes `from..to` of a located pull's buffer.
    pub(super) fn bytes_mut(&mut self, slot: u16, from: usize, to: usize) -> &mut [u8] {
        let pull = self.slots[usize::from(slot)].pull.as_mut();
        &mut pull.expect(LOCATED).buf.as_mut_slice()[from..to]
    }

    /// Records the data of a located PDU up to byte `end`; returns the pull if it is complete.
    pub(super) fn arrived(&mut self, slot: u16, end: usize, good: bool) -> Option<(Pull, bool)> {
        let entry = &mut self.slots[usize::from(slot)];
        let pull = entry.pull.as_mut().expect(LOCATED);
        self.awaited -= end - pull.got;
        pull.got = end;
        pull.bad |= !good;
        if pull.got < pull.buf.len() {
            return None;
        }
        let pull = entry.pull.take().expect(LOCATED);
        self.free.push(slot);
        let good = !pull.bad;
        self.drop_done();
        Some((pull, good))
    }

    /// Removes every pull.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Pull> + '_ {
        self.awaited = 0;
        self.dues.clear();
        self.unasked.clear();
        let free = &mut self.free;
        (0..=u16::MAX).zip(&mut self.slots).filter_map(|(index, slot)| {
            let pull = slot.pull.take()?;
            free.push(index);
            Some(pull)
        })
    }
}

/// Returns the bits of a tag that contain the slot number.
fn mask(index_bits: u32) -> u16 {
    u16::MAX.unbounded_shr(16 - index_bits)
}

/// Returns true if the pull of this tag is in flight.
fn is_live(slots: &[Slot], index_bits: u32, tag: u16) -> bool {
    let slot = slots.get(usize::from(tag & mask(index_bits)));
    slot.is_some_and(|slot| slot.tag == tag && slot.pull.is_some())
}
