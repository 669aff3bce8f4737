//! Interface between the driver and a PCI function, independent of its implementation.
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

/// An address in the device's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u64);

/// Registers of the controller, by byte offset into BAR0 (NVMe over PCIe Transport 3). Values are
/// in host order.
///
/// Each access is exactly one bus access of that width. It is in program order with all other
/// accesses and with earlier writes of the caller to memory, so a doorbell needs no fence by the
/// caller. An offset outside the registers, or one that is no multiple of the width, reads as all
/// ones and writes nothing, like a missing function.
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

/// Memory that the device can reach, and its addresses.
pub trait DmaSpace: Debug + Send + Sync {
    /// Maps `len` bytes at `base` for the device, both multiples of 4096. The addresses are
    /// consecutive.
    ///
    /// # Errors
    /// The system's error: no addresses or no lockable memory left.
    ///
    /// # Safety
    /// The memory stays valid until [`unmap`](Self::unmap) has returned `Ok` or the space is
    /// dropped. Until then it is used as memory that another party may change at any time.
    unsafe fn map(&self, base: NonNull<u8>, len: usize) -> io::Result<Iova>;

    /// Unmaps that memory. The device cannot reach it once this has returned `Ok`.
    ///
    /// # Errors
    /// Nothing of that length is mapped there, or the system's error: the device may then still
    /// reach the memory.
    fn unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
}

/// A PCI function that this process owns exclusively until it is dropped.
pub trait Function: Debug + Send + Sync {
    /// Returns the PCI address for messages: `0000:01:00.0`.
    fn address(&self) -> &str;

    /// Returns the registers.
    fn registers(&self) -> Arc<dyn Registers>;

    /// Returns the bytes of the registers: every valid offset is less.
    fn registers_len(&self) -> u64;

    /// Returns the memory view of the function.
    fn dma(&self) -> Arc<dyn DmaSpace>;

    /// Sets up `vectors` MSI-X vectors, the first for vector 0. Each descriptor (eventfd,
    /// nonblocking) counts interrupts and is readable after one.
    ///
    /// Returns fewer if the function has fewer; replaces all earlier descriptors.
    ///
    /// # Errors
    /// The system's error.
    fn interrupts(&self, vectors: u16) -> io::Result<Vec<OwnedFd>>;

    /// Sets up the last [`interrupts`](Self::interrupts) again, for the same descriptors: a
    /// function that was disconnected has lost its vector table.
    ///
    /// # Errors
    /// The system's error; nothing then signals completions.
    fn rearm(&self) -> io::Result<()>;

    /// Allows or forbids reads and writes of memory by the function (the bus master bit).
    ///
    /// # Errors
    /// The bit did not change: the function is missing.
    fn set_bus_master(&self, on: bool) -> io::Result<()>;

    /// Resets the function. Afterwards it reads and writes no memory, and its controller is
    /// disabled.
    ///
    /// # Errors
    /// The function cannot be reset, or is gone.
    fn reset(&self) -> io::Result<()>;

    /// Returns a descriptor that is readable when the system removes the function.
    fn removal(&self) -> Option<BorrowedFd<'_>>;

    /// Returns a flag that is set once the function provably reaches no memory, because it was
    /// released.
    ///
    /// It is released when this value and all other users of its IOMMU group are dropped. `None`:
    /// the implementation cannot tell.
    fn given_back(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}
