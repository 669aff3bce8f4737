//! Data pointers of commands: PRPs, a PRP list in memory of the slot, or one SGL descriptor (Base
//! 4.1).

use nvmeof_wire::prp::{self, Prp2};
use nvmeof_wire::sqe::FLAGS_SGL;
use nvmeof_wire::{Sgl, Sqe};

use super::memory::DmaMemory;

const PAGE: u64 = crate::dma::PAGE as u64;
/// Minimum bytes of a slot's list: a range to deallocate must fit.
const LIST_MIN: usize = 64;

/// PRP lists of a queue's command slots. None crosses a page, so none is chained.
#[derive(Debug)]
pub(super) struct Lists {
    memory: DmaMemory,
    /// Bytes per list.
    size: usize,
}

impl Lists {
    /// Returns the bytes of a list for transfers of at most `transfer` bytes, which is at most 2
    /// MiB.
    pub(super) fn size_for(transfer: u64) -> usize {
        // Data that starts inside a page needs one entry more than its whole pages; PRP1 saves one.
        debug_assert!(transfer <= crate::dma::CHUNK as u64, "the list would not fit in a page");
        let entries = usize::try_from(transfer / PAGE).unwrap_or(crate::dma::PAGE);
        (entries * 8).next_power_of_two().clamp(LIST_MIN, crate::dma::PAGE)
    }

    pub(super) fn new(memory: DmaMemory, size: usize) -> Self {
        Self { memory, size }
    }

    /// Sets the data pointer of `sqe`, the command in `slot`, to `len` bytes at `address`.
    #[inline]
    pub(super) fn point(&self, sqe: Sqe, slot: usize, address: u64, len: u64, sgl: bool) -> Sqe {
        match prp::second(address, len, PAGE) {
            Prp2::Unused => sqe.with_prp(address, 0),
            Prp2::Page => sqe.with_prp(address, next_page(address)),
            Prp2::List(_) if sgl => {
                debug_assert!(len <= u64::from(u32::MAX), "a transfer is within the limits");
                let length = u32::try_from(len).unwrap_or(u32::MAX);
                let mut sqe = sqe.with_sgl(Sgl::DataBlock { address, length });
                sqe.flags = FLAGS_SGL;
                sqe
            }
            Prp2::List(entries) => {
                let at = slot * self.size;
                let entries = usize::try_from(entries).unwrap_or(usize::MAX);
                debug_assert!(entries * 8 <= self.size, "a transfer is within the limits");
                let mut page = next_page(address);
                for index in 0..entries.min(self.size / 8) {
                    self.memory.store64(at + index * 8, page);
                    page += PAGE;
                }
                sqe.with_prp(address, self.memory.address(at))
            }
        }
    }

    /// Attaches `bytes`, at most 64 in groups of 8, as the data of `sqe`.
    pub(super) fn carry(&self, sqe: Sqe, slot: usize, bytes: &[u8]) -> Sqe {
        let at = slot * self.size;
        self.memory.write(at, bytes);
        sqe.with_prp(self.memory.address(at), 0)
    }
}

fn next_page(address: u64) -> u64 {
    (address & !(PAGE - 1)) + PAGE
}
