//! What the driver needs of a PCI function, whatever stands behind it.
//!
//! ```text
//!   Function --registers()--> Registers   BAR0: CAP .. doorbells
//!            --dma()--------> DmaSpace    memory <-> addresses the device uses
//!            --interrupts()-> descriptors, one a vector
//! ```

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An address as the device sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u64);

/// The controller's registers, by byte offset into BAR0 (NVMe over PCIe Transport 3). Values are in host order.
///
/// An access is exactly one access of the bus of that width, in program order with all others and with what the
/// caller wrote to memory before (a doorbell needs no fence of the caller's). An offset that is not inside the
/// registers, or no multiple of the width, reads as all ones and writes nothing, as a function does that is gone.
pub trait Registers: Debug + Send + Sync {
    /// Reads 32 bits.
    fn read32(&self, offset: u32) -> u32;

    /// Writes 32 bits.
    fn write32(&self, offset: u32, value: u32);

    /// Reads 64 bits.
    fn read64(&self, offset: u32) -> u64;

    /// Writes 64 bits.
    fn write64(&self, offset: u32, value: u64);
}

/// Which memory the device reaches, and under which addresses.
pub trait DmaSpace: Debug + Send + Sync {
    /// Lets the device reach `len` bytes at `base`, both multiples of 4096. The addresses are consecutive.
    ///
    /// # Errors
    /// The system's: no addresses or no lockable memory left.
    ///
    /// # Safety
    /// The memory stays valid, and is used as memory that another party may change at any time, until
    /// [`unmap`](Self::unmap) has returned `Ok` or the space is dropped.
    unsafe fn map(&self, base: NonNull<u8>, len: usize) -> io::Result<Iova>;

    /// Takes that away again. The device cannot reach the memory once this has returned `Ok`.
    ///
    /// # Errors
    /// Nothing of that length is mapped there, or the system's: then the device may still reach it.
    fn unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
}

/// A PCI function that is ours alone until it is dropped.
pub trait Function: Debug + Send + Sync {
    /// Where it is, for messages: `0000:01:00.0`.
    fn address(&self) -> &str;

    /// Its registers.
    fn registers(&self) -> Arc<dyn Registers>;

    /// Bytes of the registers: no offset is at or beyond it.
    fn registers_len(&self) -> u64;

    /// Its view of memory.
    fn dma(&self) -> Arc<dyn DmaSpace>;

    /// Takes `vectors` MSI-X vectors, the first for vector 0: each descriptor counts what came and is readable
    /// then (eventfd, nonblocking). Fewer than asked where the function has fewer; replaces all taken before.
    ///
    /// # Errors
    /// The system's.
    fn interrupts(&self, vectors: u16) -> io::Result<Vec<OwnedFd>>;

    /// Sets up what [`interrupts`](Self::interrupts) last took once more, for the same descriptors: a function that was
    /// away has lost its table of vectors.
    ///
    /// # Errors
    /// The system's; nothing tells of completions then.
    fn rearm(&self) -> io::Result<()>;

    /// Lets it, or does not let it, start reads and writes of memory (the bus master bit).
    ///
    /// # Errors
    /// The bit did not stay: the function is gone.
    fn set_bus_master(&self, on: bool) -> io::Result<()>;

    /// Resets the function. Afterwards it reads and writes no memory, and its controller is disabled.
    ///
    /// # Errors
    /// It cannot be reset, or is gone.
    fn reset(&self) -> io::Result<()>;

    /// Readable when the system wants the function back (it is being removed).
    fn removal(&self) -> Option<BorrowedFd<'_>>;

    /// A flag that is set as soon as the function provably reaches no memory any more as it was given back: when this
    /// value is dropped, and whatever else keeps its IOMMU group in use. `None`: that is not known here.
    fn given_back(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}
