//! An open VFIO device, as the driver uses it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};

use super::bar::Bar;
use super::config::{CAP_MSIX, ConfigSpace, gone};
use super::error::{VfioError, failed};
use super::group::{Group, GroupDevice};
use super::host::SysfsRoots;
use super::info::RegionInfo;
use super::sys::{self, Armed};
use crate::nvme_driver::function::{DmaSpace, Function, Registers};

/// Minimum registers, up to the first doorbell (NVMe over PCIe Transport 1.0, section 3.1.2).
const LEAST_REGISTERS: u64 = 0x1000;
/// Maximum mapped bytes of BAR0; the doorbells of 65536 queues with a stride of 16 bytes need 2
/// MiB.
const MOST_REGISTERS: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Controller Configuration and its enable bit; Controller Status (Base 2.0, sections 3.1.3.5 and
/// 3.1.3.6).
const CC: u32 = 0x14;
const CC_EN: u32 = 1;
const CSTS: u32 = 0x1c;

/// An NVMe controller opened through VFIO.
///
/// Dropping it stops its memory accesses, revokes the registers, closes the device, and leaves its
/// group, in this order. The kernel resets a device when it is closed.
#[derive(Debug)]
pub(super) struct Device {
    bar: Arc<Bar>,
    config: ConfigSpace,
    can_reset: bool,
    vectors: u16,
    /// Readable when the system removes the function.
    removal: Option<OwnedFd>,
    /// Eventfds of the armed vectors; locked while they are replaced.
    armed: Mutex<Vec<OwnedFd>>,
    taken: GroupDevice,
}

impl Device {
    /// Opens the controller at an address.
    pub(super) fn open(host: &SysfsRoots, address: &str) -> Result<Self, VfioError> {
        let place = host.place(address)?;
        let group = Group::join(host, &place)?;
        let taken = group.take(address)?;
        let unusable = |why| VfioError::Unusable { address: address.to_owned(), why };
        let file = taken.file().map_err(failed(address, "opening the device"))?;
        let info =
            sys::device_info(file).map_err(failed(address, "reading the device information"))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0
            || info.regions <= VFIO_PCI_CONFIG_REGION_INDEX
            || info.irqs <= VFIO_PCI_MSIX_IRQ_INDEX
        {
            return Err(unusable("VFIO does not present the device as a PCI function"));
        }
        let region = |index| {
            let answer = sys::region_info(file, index);
            answer
                .map(|answer| RegionInfo::parse(&answer))
                .map_err(failed(address, "reading the region information"))
        };
        let config_region = region(VFIO_PCI_CONFIG_REGION_INDEX)?;
        let clone = file.try_clone().map_err(failed(address, "opening the config space"))?;
        let config = ConfigSpace::new(clone, config_region.offset);
        if !config.is_there() {
            return Err(unusable("device not responding: the vendor ID reads as all ones"));
        }
        let registers = region(VFIO_PCI_BAR0_REGION_INDEX)?;
        let len = registers.mappable.min(MOST_REGISTERS) / PAGE * PAGE;
        if !registers.accessible || len < LEAST_REGISTERS + PAGE {
            return Err(unusable("registers (BAR0) cannot be mapped, or are too few"));
        }
        let len = usize::try_from(len).map_err(|_| unusable("too many registers"))?;
        let bar = Bar::map(file, registers.offset, len)
            .map_err(failed(address, "mapping the registers"))?;
        let vectors = vectors(file, &config).map_err(failed(address, "asking for interrupts"))?;
        let removal = arm_removal(file, info.irqs)
            .map_err(failed(address, "requesting removal notifications"))?;
        let can_reset = info.flags & VFIO_DEVICE_FLAGS_RESET != 0;
        tracing::debug!(
            address,
            group = place.group,
            registers = len,
            vectors,
            can_reset,
            function_level_reset = config.has_function_level_reset().unwrap_or(false),
            "took a function"
        );
        let bar = Arc::new(bar);
        Ok(Self { bar, config, can_reset, vectors, removal, armed: Mutex::default(), taken })
    }
}

impl Function for Device {
    fn address(&self) -> &str {
        self.taken.address()
    }

    fn registers(&self) -> Arc<dyn Registers> {
        Arc::clone(&self.bar) as Arc<dyn Registers>
    }

    fn registers_len(&self) -> u64 {
        self.bar.len() as u64
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::clone(self.taken.group().container()) as Arc<dyn DmaSpace>
    }

    /// A function without MSI-X has no vectors: its queues are polled.
    fn interrupts(&self, vectors: u16) -> io::Result<Vec<OwnedFd>> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.taken.file()?;
        if !armed.is_empty() {
            // The kernel does not add vectors to armed ones, and cannot disarm if none is armed.
            sys::set_irqs(file, VFIO_PCI_MSIX_IRQ_INDEX, &[])?;
            armed.clear();
        }
        let signals = arm(vectors.min(self.vectors), |signals| {
            sys::set_irqs(file, VFIO_PCI_MSIX_IRQ_INDEX, signals)
        })?;
        *armed = signals.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(signals)
    }

    fn rearm(&self) -> io::Result<()> {
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        if armed.is_empty() {
            return Ok(());
        }
        let file = self.taken.file()?;
        // The kernel writes the function's vector table only if it believes that there is none.
        sys::set_irqs(file, VFIO_PCI_MSIX_IRQ_INDEX, &[])?;
        let signals: Vec<BorrowedFd<'_>> = armed.iter().map(AsFd::as_fd).collect();
        match sys::set_irqs(file, VFIO_PCI_MSIX_IRQ_INDEX, &signals)? {
            Armed::All => Ok(()),
            Armed::Only(left) => {
                let text =
                    format!("of {} interrupt vectors the system has {left} left", armed.len());
                Err(io::Error::other(text))
            }
        }
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        self.config.set_bus_master(on)
    }

    /// Clears the bus master bit, too.
    fn reset(&self) -> io::Result<()> {
        // Remaining memory accesses end here, whether the reset succeeds or not.
        self.config.set_bus_master(false)?;
        if !self.can_reset {
            let text = "the system knows no way to reset the function";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        sys::reset(self.taken.file()?)?;
        // The kernel restores the config space: only the registers show whether a reset happened.
        if !self.config.is_there() || self.bar.read32(CSTS) == u32::MAX {
            return Err(gone());
        }
        if self.bar.read32(CC) & CC_EN != 0 {
            return Err(io::Error::other("the controller is still enabled after a reset"));
        }
        self.config.set_bus_master(false)
    }

    fn removal(&self) -> Option<BorrowedFd<'_>> {
        self.removal.as_ref().map(AsFd::as_fd)
    }

    fn given_back(&self) -> Option<Arc<AtomicBool>> {
        Some(self.taken.group().closed())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A missing function moves no data.
        let _ = self.config.set_bus_master(false);
        if let Err(error) = self.bar.revoke() {
            // The device stays open as long as any code holds the registers.
            self.taken.group().set_stuck();
            tracing::warn!(
                address = self.address(), %error,
                "cannot unmap the registers; the device stays open"
            );
        }
        // The fields drop in their order: config space, then the device and its group with `taken`.
    }
}

/// Returns the number of MSI-X vectors of a function.
fn vectors(file: &impl AsFd, config: &ConfigSpace) -> io::Result<u16> {
    if config.capability(CAP_MSIX)?.is_none() {
        return Ok(0);
    }
    let count = sys::irq_count(file, VFIO_PCI_MSIX_IRQ_INDEX)?;
    Ok(u16::try_from(count).unwrap_or(u16::MAX))
}

/// Arms `vectors` vectors, or as many as the system can provide.
fn arm(
    vectors: u16,
    mut set: impl FnMut(&[BorrowedFd<'_>]) -> io::Result<Armed>,
) -> io::Result<Vec<OwnedFd>> {
    let mut count = vectors;
    while count > 0 {
        let signals = (0..count).map(|_| signal()).collect::<io::Result<Vec<OwnedFd>>>()?;
        let borrowed: Vec<BorrowedFd<'_>> = signals.iter().map(AsFd::as_fd).collect();
        match set(&borrowed)? {
            Armed::All => return Ok(signals),
            // Fewer each time: the available vectors may shrink between two calls.
            Armed::Only(fewer) => count = fewer.min(count - 1),
        }
    }
    Ok(Vec::new())
}

/// Makes the kernel signal the removal of the function, if supported.
fn arm_removal(file: &impl AsFd, irqs: u32) -> io::Result<Option<OwnedFd>> {
    if irqs <= VFIO_PCI_REQ_IRQ_INDEX || sys::irq_count(file, VFIO_PCI_REQ_IRQ_INDEX)? == 0 {
        return Ok(None);
    }
    let signal = signal()?;
    match sys::set_irqs(file, VFIO_PCI_REQ_IRQ_INDEX, &[signal.as_fd()])? {
        Armed::All => Ok(Some(signal)),
        Armed::Only(_) => Ok(None),
    }
}

fn signal() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the vector counts requested from a system with `left` vectors at each call, and the
    /// number armed in the end.
    fn asked(vectors: u16, left: &[u16]) -> (Vec<usize>, usize) {
        let (mut asked, mut left) = (Vec::new(), left.iter());
        let signals = arm(vectors, |signals| {
            asked.push(signals.len());
            let left = *left.next().expect("no call more");
            Ok(if usize::from(left) < signals.len() { Armed::Only(left) } else { Armed::All })
        });
        (asked, signals.expect("no error").len())
    }

    #[test]
    fn as_many_vectors_as_the_system_has() {
        assert_eq!(asked(9, &[9]), (vec![9], 9));
        assert_eq!(asked(9, &[4, 4]), (vec![9, 4], 4));
        assert_eq!(asked(9, &[4, 2, 1, 1]), (vec![9, 4, 2, 1], 1));
        assert_eq!(asked(0, &[]), (vec![], 0));
    }

    #[test]
    fn an_answer_that_makes_no_sense_ends_all_the_same() {
        let mut calls = 0;
        let signals = arm(3, |_| {
            calls += 1;
            Ok(Armed::Only(u16::MAX))
        });
        assert_eq!((signals.expect("no error").len(), calls), (0, 3));
    }

    #[test]
    fn an_error_is_passed_on() {
        let error = arm(3, |_| Err(io::Error::from_raw_os_error(libc::EINVAL)));
        assert_eq!(error.expect_err("an error").raw_os_error(), Some(libc::EINVAL));
    }
}
