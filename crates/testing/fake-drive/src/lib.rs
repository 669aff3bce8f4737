//! A fake NVMe drive in memory, behind the driver's function interface, for tests.
//!
//! It behaves like a drive with real contents, and it checks the driver. Every violated rule is a
//! [`Violation`], and every access to unmapped memory an [`IommuFault`];
//! [`FakeDrive::assert_clean`] verifies that there were none. Faults of a drive are injected on
//! demand ([`Fault`], [`Tamper`], the methods of [`FakeDrive`]). It has no clock and no thread: it
//! works when a doorbell is written, or on request ([`Mode`]).
//!
//! ```text
//!   driver --Registers--> controller.rs -doorbell-> work.rs -> admin.rs, block_io.rs -> media.rs
//!      |                                                |  data.rs (PRPs, SGLs)
//!      +------DmaSpace-----> memory.rs <----------------+
//! ```

mod admin;
mod admin_queues;
mod block_io;
mod config;
mod controller;
mod data;
mod faults;
mod features;
mod logs;
mod media;
mod memory;
mod queues;
mod work;

#[cfg(test)]
mod tests;

pub use config::{FakeDriveConfig, Mode, NamespaceConfig, Readiness};
pub use faults::{Fault, Tamper, Violation, When};
pub use memory::IommuFault;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_core::nvme_driver::function::{DmaSpace, Function, Iova, Registers};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::SmartLog;
use nvmeof_wire::nvm::BlockRange;
use nvmeof_wire::pcie::Doorbell;
use rustix::event::EventfdFlags;

use crate::controller::FakeController;
use crate::memory::{Iommu, Space};

/// A controller in memory. Clones refer to the same one.
#[derive(Debug, Clone)]
pub struct FakeDrive {
    parts: Arc<Parts>,
}

/// State shared by the driver's handles and the tests.
#[derive(Debug)]
struct Parts {
    address: String,
    registers_len: u64,
    space: Arc<Space>,
    controller: Mutex<FakeController>,
    removal: OwnedFd,
    /// Functions that a driver holds.
    handles: AtomicUsize,
}

impl FakeDrive {
    /// Creates a controller, disabled.
    ///
    /// # Panics
    /// If no descriptor is available.
    #[must_use]
    pub fn new(config: FakeDriveConfig) -> Self {
        let iommu = Arc::new(Iommu::new(config.first_iova));
        Self::behind(iommu, config)
    }

    /// Creates another controller behind the IOMMU of this one, like a drive in the same VFIO
    /// container: memory mapped for one is mapped for both.
    ///
    /// # Panics
    /// If no descriptor is available.
    #[must_use]
    pub fn neighbor(&self, config: FakeDriveConfig) -> Self {
        Self::behind(Arc::clone(self.parts.space.iommu()), config)
    }

    fn behind(iommu: Arc<Iommu>, config: FakeDriveConfig) -> Self {
        let space = Arc::new(Space::new(iommu));
        let removal = eventfd().expect("a descriptor for an eventfd");
        let parts = Parts {
            address: config.address.clone(),
            registers_len: registers_len(&config),
            space: Arc::clone(&space),
            controller: Mutex::new(FakeController::new(config, space)),
            removal,
            handles: AtomicUsize::new(0),
        };
        Self { parts: Arc::new(parts) }
    }

    /// Returns the function for the driver.
    #[must_use]
    pub fn function(&self) -> Arc<dyn Function> {
        self.parts.handles.fetch_add(1, Ordering::AcqRel);
        Arc::new(Handle { parts: Arc::clone(&self.parts), given_back: Arc::default() })
    }

    /// Returns true if a driver holds the function.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.parts.handles.load(Ordering::Acquire) > 0
    }

    /// Executes the next command, in round robin over the queues. Returns false if there was none.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Executes all commands; returns their number.
    pub fn run(&self) -> usize {
        self.lock().run()
    }

    /// Executes and completes the [held](Fault::Held) commands; returns their number. Does nothing
    /// if the controller is not ready.
    pub fn release(&self) -> usize {
        self.lock().release()
    }

    /// Returns the number of commands taken that a fault keeps from completing.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Sets the trigger of its work.
    pub fn set_mode(&self, mode: Mode) {
        self.lock().config.mode = mode;
    }

    /// Changes the configuration. Values copied at creation ([`FakeDriveConfig::address`],
    /// [`FakeDriveConfig::namespaces`], [`FakeDriveConfig::first_iova`]) stay.
    pub fn reconfigure(&self, change: impl FnOnce(&mut FakeDriveConfig)) {
        change(&mut self.lock().config);
    }

    /// Injects a fault.
    pub fn inject(&self, when: When, fault: Fault) {
        self.lock().plan.add(when, fault);
    }

    /// Removes all pending faults.
    pub fn clear_faults(&self) {
        self.lock().plan.clear();
    }

    /// Installs or removes `tamper`, which changes the controller's output.
    pub fn set_tamper(&self, tamper: Option<Box<dyn Tamper>>) {
        self.lock().tamper = tamper;
    }

    /// Sets CSTS.CFS; the controller takes no commands any more.
    pub fn set_fatal(&self) {
        self.lock().fatal = true;
    }

    /// Unplugs the function: registers read as ones, memory is unreachable, no interrupts. `false`
    /// plugs it in again, like a power cycle.
    pub fn set_gone(&self, gone: bool) {
        let mut controller = self.lock();
        if controller.gone && !gone {
            controller.reset();
            controller.is_armed = false;
            self.parts.space.set_bus_master(false);
        }
        controller.gone = gone;
    }

    /// Returns true if a shutdown was requested and has not completed.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.lock().is_shutting_down()
    }

    /// Completes a shutdown, whatever its configured delay.
    pub fn finish_shutdown(&self) {
        self.lock().finish_shutdown();
    }

    /// Resets the controller, as a subsystem reset does: disabled, queues and commands are lost.
    pub fn reset_itself(&self) {
        self.lock().reset();
    }

    /// Signals that the system removes the function.
    pub fn request_removal(&self) {
        let _ = rustix::io::write(&self.parts.removal, &1_u64.to_ne_bytes());
    }

    /// Makes the next mapping fail, of this controller or a [neighbor](Self::neighbor).
    pub fn fail_next_map(&self) {
        self.parts.space.iommu().fail_next_map();
    }

    /// Makes the next unmapping fail, of this controller or a [neighbor](Self::neighbor).
    pub fn fail_next_unmap(&self) {
        self.parts.space.iommu().fail_next_unmap();
    }

    /// Raises an asynchronous event.
    pub fn raise(&self, event: AsyncEvent) {
        self.lock().raise(event);
    }

    /// Changes the SMART log. The controller itself maintains the counts of commands and errors.
    pub fn change_smart(&self, change: impl FnOnce(&mut SmartLog)) {
        change(&mut self.lock().logs.smart);
    }

    /// Attaches or detaches a namespace, and notifies the host if it enabled that event.
    pub fn set_attached(&self, nsid: u32, attached: bool) {
        let mut controller = self.lock();
        for media in controller.media.iter_mut().filter(|media| media.nsid == nsid) {
            media.attached = attached;
        }
        controller.namespace_changed(nsid);
    }

    /// Changes Identify Namespace, and notifies the host if it enabled that event. The contents
    /// keep their length.
    pub fn change_namespace(
        &self,
        nsid: u32,
        change: impl FnOnce(&mut nvmeof_wire::identify::Namespace),
    ) {
        let mut controller = self.lock();
        if let Some(media) = controller.media.iter_mut().find(|media| media.nsid == nsid) {
            change(&mut media.identify);
        }
        controller.namespace_changed(nsid);
    }

    /// Returns the contents of these blocks.
    #[must_use]
    pub fn read_media(&self, nsid: u32, slba: u64, blocks: u32) -> Option<Vec<u8>> {
        let controller = self.lock();
        let media = controller.media.iter().find(|media| media.nsid == nsid)?;
        media.get(BlockRange { slba, blocks }).map(<[u8]>::to_vec)
    }

    /// Writes `data` to blocks from `slba`; returns `None` if it is not whole, existing blocks.
    pub fn write_media(&self, nsid: u32, slba: u64, data: &[u8]) -> Option<()> {
        let mut controller = self.lock();
        let media = controller.media.iter_mut().find(|media| media.nsid == nsid)?;
        let block = media.block();
        let len = data.len() as u64;
        if block == 0 || !len.is_multiple_of(block) {
            return None;
        }
        let blocks = u32::try_from(len / block).ok()?;
        media.put(BlockRange { slba, blocks }, data, false)
    }

    /// Discards the contents of the volatile write cache.
    pub fn lose_power(&self) {
        self.lock().media.iter_mut().for_each(media::Media::lose_power);
    }

    /// Returns the number of commands taken since creation with this opcode, on this queue.
    #[must_use]
    pub fn taken(&self, qid: u16, opcode: u8) -> u64 {
        self.lock().taken.get(&(qid, opcode)).copied().unwrap_or(0)
    }

    /// Returns the number of doorbell writes since creation.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.lock().doorbells
    }

    /// Returns the number of I/O submission queues.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        self.lock().sqs.keys().filter(|&&qid| qid > 0).count()
    }

    /// Returns true if the controller is enabled and ready.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.lock().is_running()
    }

    /// Returns the current mappings of the IOMMU: address and bytes.
    #[must_use]
    pub fn mappings(&self) -> Vec<(Iova, u64)> {
        self.parts.space.iommu().mappings()
    }

    /// Returns the rules violated since creation, or since they were taken.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Returns the accesses refused since creation, or since they were taken.
    #[must_use]
    pub fn iommu_faults(&self) -> Vec<IommuFault> {
        self.parts.space.faults()
    }

    /// Takes violations and faults, for a test that violates rules deliberately.
    pub fn take_findings(&self) -> (Vec<Violation>, Vec<IommuFault>) {
        (std::mem::take(&mut self.lock().violations), self.parts.space.take_faults())
    }

    /// Asserts that no rule was violated, and no unmapped memory accessed.
    ///
    /// # Panics
    /// On any violation or fault.
    #[track_caller]
    pub fn assert_clean(&self) {
        let (violations, faults) = (self.violations(), self.iommu_faults());
        assert!(
            violations.is_empty() && faults.is_empty(),
            "the driver broke rules: {violations:#?}\nand the device faulted: {faults:#x?}"
        );
    }

    fn lock(&self) -> MutexGuard<'_, FakeController> {
        self.parts.lock()
    }
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, FakeController> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, offset: u32, width: u32, value: u64) {
        let mut controller = self.lock();
        controller.write(offset, width, value);
        if offset >= nvmeof_wire::pcie::offset::DOORBELLS
            && controller.config.mode == Mode::Automatic
        {
            controller.run();
        }
    }
}

/// The driver's handle of the registers.
#[derive(Debug)]
struct Bar(Arc<Parts>);

impl Registers for Bar {
    fn read32(&self, offset: u32) -> u32 {
        u32::try_from(self.0.lock().read(offset, 4)).unwrap_or(u32::MAX)
    }

    fn write32(&self, offset: u32, value: u32) {
        self.0.write(offset, 4, value.into());
    }

    fn read64(&self, offset: u32) -> u64 {
        self.0.lock().read(offset, 8)
    }

    fn write64(&self, offset: u32, value: u64) {
        self.0.write(offset, 8, value);
    }
}

/// The driver's handle of the function, dropped when the driver is done.
#[derive(Debug)]
struct Handle {
    parts: Arc<Parts>,
    given_back: Arc<AtomicBool>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.parts.handles.fetch_sub(1, Ordering::AcqRel);
        if self.parts.lock().config.alone {
            self.parts.space.set_bus_master(false);
            self.given_back.store(true, Ordering::Release);
        }
    }
}

impl Function for Handle {
    fn address(&self) -> &str {
        &self.parts.address
    }

    fn registers(&self) -> Arc<dyn Registers> {
        Arc::new(Bar(Arc::clone(&self.parts)))
    }

    fn registers_len(&self) -> u64 {
        self.parts.registers_len
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::clone(self.parts.space.iommu()) as Arc<dyn DmaSpace>
    }

    fn interrupts(&self, vectors: u16) -> io::Result<Vec<OwnedFd>> {
        let mut controller = self.parts.lock();
        let count = vectors.min(controller.config.vectors);
        controller.is_armed = true;
        controller.interrupts = (0..count).map(|_| eventfd()).collect::<io::Result<_>>()?;
        controller.interrupts.iter().map(OwnedFd::try_clone).collect()
    }

    fn rearm(&self) -> io::Result<()> {
        let mut controller = self.parts.lock();
        if controller.gone || !controller.config.can_rearm {
            return Err(io::ErrorKind::NotConnected.into());
        }
        controller.is_armed = true;
        Ok(())
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        if self.parts.lock().gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.parts.space.set_bus_master(on);
        Ok(())
    }

    fn reset(&self) -> io::Result<()> {
        let mut controller = self.parts.lock();
        if controller.gone || !controller.config.can_reset {
            return Err(io::ErrorKind::NotConnected.into());
        }
        controller.reset();
        self.parts.space.set_bus_master(false);
        Ok(())
    }

    fn removal(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.removal.as_fd())
    }

    fn given_back(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.given_back))
    }
}

/// Returns the bytes of BAR0: the registers and all doorbells, in whole pages.
fn registers_len(config: &FakeDriveConfig) -> u64 {
    let last = Doorbell::CompletionHead(config.io_queues).stride_offset(config.cap.dstrd());
    let end = u64::from(nvmeof_wire::pcie::offset::DOORBELLS) + last + 4;
    end.next_multiple_of(0x1000).max(0x4000)
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
