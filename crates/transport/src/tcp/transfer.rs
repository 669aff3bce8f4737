//! Data the host was asked for (R2T) and that has not all arrived.
//!
//! The host answers with the transfer tag we gave, and only by that tag is its data placed: a slot
//! number and a generation, so that a tag used before names nothing.

use std::collections::VecDeque;

use nvmeof_core::dma::Buffer;
use nvmeof_wire::tcp::TcpError;

use crate::pace::time_for;
use crate::queue::Nanos;

/// Offsets of H2CData's fields, for Fatal Error Information.
const CCCID_AT: u32 = 8;
const TTAG_AT: u32 = 10;

/// One pull: an R2T for the whole of `buf`.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) token: u64,
    cid: u16,
    pub(super) buf: Buffer,
    /// Bytes that arrived, in order.
    got: usize,
    /// Some of them had a wrong digest.
    bad: bool,
}

#[derive(Debug)]
struct Slot {
    /// Tag of the pull in the slot, or the last one there was.
    tag: u16,
    pull: Option<Pull>,
}

/// The pulls of a queue.
#[derive(Debug)]
pub(super) struct Transfers {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Bits of a tag that are the slot number; those above are the generation.
    index_bits: u32,
    /// Bytes asked for and not there, of all pulls.
    awaited: usize,
    /// Bytes of such data that have come since the start.
    came: u64,
    /// By when the data of each pull has to be there, in the order they were asked for: tags, some of pulls that are over.
    dues: VecDeque<(u16, Nanos)>,
    /// Pulls begun since [`Self::asked`], the last of which are in `dues`.
    unasked: Vec<u16>,
}

/// A slot that a checked H2CData header goes to, and the bytes of its buffer it fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u16,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Transfers {
    /// Room for `depth` pulls.
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

    /// Room for `depth` pulls at least. Meant for when none is live: tags change their layout.
    pub(super) fn grow(&mut self, depth: u16) {
        let first = self.slots.len().min(usize::from(u16::MAX));
        for slot in (first..usize::from(depth)).rev() {
            self.free.extend(u16::try_from(slot).ok());
        }
        self.slots.resize_with(usize::from(depth).max(first), || Slot { tag: 0, pull: None });
        self.index_bits = self.slots.len().next_power_of_two().ilog2();
        for (index, slot) in (0..=u16::MAX).zip(&mut self.slots) {
            slot.tag = index;
        }
    }

    /// Pulls whose data has not all arrived.
    #[inline]
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes still to come a pull.
    pub(super) fn mean_awaited(&self) -> usize {
        self.awaited.checked_div(self.live()).unwrap_or(0)
    }

    /// Bytes of data that was asked for that have come since the start.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// So many bytes more have come.
    pub(super) fn count(&mut self, bytes: usize) {
        self.came += bytes as u64;
    }

    /// Bytes that have come since the connection's start, and bytes that are to have come in all.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.came, self.came + self.awaited as u64)
    }

    /// The host is asked, now, for the data of the pulls begun since the last call: true if there are any. Each has
    /// `timeout`, and the time that all that is awaited by now takes at the least rate.
    pub(super) fn asked(&mut self, now: Nanos, timeout: Nanos) -> bool {
        let any = !self.unasked.is_empty();
        let due = now.saturating_add(timeout).saturating_add(time_for(self.awaited as u64));
        // What was asked for before comes before.
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

    /// By when the data of the pull that is due first has to be there.
    pub(super) fn due(&self) -> Option<Nanos> {
        let is_live = |(tag, _): &&(u16, Nanos)| is_live(&self.slots, self.index_bits, *tag);
        self.dues.iter().find(is_live).map(|(_, due)| *due)
    }

    /// The target stood still for so long.
    pub(super) fn excuse(&mut self, nanos: Nanos) {
        for (_, due) in &mut self.dues {
            *due = due.saturating_add(nanos);
        }
    }

    /// Forgets the first deadlines, as far as their pulls are over.
    fn drop_done(&mut self) {
        while let Some((tag, _)) = self.dues.front()
            && !is_live(&self.slots, self.index_bits, *tag)
        {
            self.dues.pop_front();
        }
    }

    /// Takes a pull in and gives its transfer tag; hands the buffer back if there is no slot.
    pub(super) fn begin(&mut self, token: u64, cid: u16, buf: Buffer) -> Result<u16, Buffer> {
        let Some(index) = self.free.pop() else {
            return Err(buf);
        };
        let step = 1u16.checked_shl(self.index_bits).unwrap_or(0);
        let slot = &mut self.slots[usize::from(index)];
        slot.tag = slot.tag.wrapping_add(step);
        self.awaited += buf.len();
        slot.pull = Some(Pull { token, cid, buf, got: 0, bad: false });
        self.unasked.push(slot.tag);
        Ok(slot.tag)
    }

    /// Where the data of an H2CData header goes (TCP 3.6.2.8): a live tag of that command, in
    /// order, within the R2T, `last` exactly when it ends there.
    pub(super) fn locate(
        &self,
        cccid: u16,
        ttag: u16,
        datao: u32,
        datal: u32,
        last: bool,
    ) -> Result<Place, TcpError> {
        let index = ttag & mask(self.index_bits);
        let slot = self.slots.get(usize::from(index)).filter(|slot| slot.tag == ttag);
        let Some(pull) = slot.and_then(|slot| slot.pull.as_ref()) else {
            return Err(TcpError::field(TTAG_AT));
        };
        if pull.cid != cccid {
            return Err(TcpError::field(CCCID_AT));
        }
        let start = usize::try_from(datao).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(datal).unwrap_or(usize::MAX));
        if start != pull.got || end > pull.buf.len() {
            return Err(TcpError::OUT_OF_RANGE);
        }
        if last != (end == pull.buf.len()) {
            return Err(TcpError::SEQUENCE);
        }
        Ok(Place { slot: index, start, end })
    }

    /// The bytes `from..to` of a located pull's buffer.
    pub(super) fn bytes_mut(&mut self, slot: u16, from: usize, to: usize) -> &mut [u8] {
        let pull = self.slots.get_mut(usize::from(slot)).and_then(|slot| slot.pull.as_mut());
        pull.and_then(|pull| pull.buf.as_mut_slice().get_mut(from..to)).unwrap_or_default()
    }

    /// The data of a located PDU has arrived, up to byte `end`; the pull, if that was the last of it.
    pub(super) fn arrived(&mut self, slot: u16, end: usize, good: bool) -> Option<(Pull, bool)> {
        let entry = self.slots.get_mut(usize::from(slot))?;
        let pull = entry.pull.as_mut()?;
        self.awaited -= end - pull.got;
        pull.got = end;
        pull.bad |= !good;
        if pull.got < pull.buf.len() {
            return None;
        }
        let pull = entry.pull.take()?;
        self.free.push(slot);
        let good = !pull.bad;
        self.drop_done();
        Some((pull, good))
    }

    /// Takes every pull out.
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

/// Bits of a tag that are the slot number.
fn mask(index_bits: u32) -> u16 {
    u16::MAX.checked_shr(16 - index_bits.min(16)).unwrap_or(0)
}

/// Is the pull of this tag under way?
fn is_live(slots: &[Slot], index_bits: u32, tag: u16) -> bool {
    let slot = slots.get(usize::from(tag & mask(index_bits)));
    slot.is_some_and(|slot| slot.tag == tag && slot.pull.is_some())
}
