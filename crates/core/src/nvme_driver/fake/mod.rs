//! A controller in memory, behind the driver's seam.
//!
//! It does what a drive does, with real contents, and it looks: every rule the driver breaks is a [`Violation`], every
//! access of memory that is not mapped an [`IommuFault`]; [`Fake::assert_clean`] says that there were none. What can go
//! wrong with a drive goes wrong here on demand ([`Fault`], [`Tamper`], the switches of [`Fake`]). It has no clock and no
//! thread: it works when a doorbell is written, or when it is told to ([`Mode`]).
//!
//! ```text
//!   driver --Registers--> controller.rs --doorbell--> work.rs --> admin.rs, block_io.rs --> media.rs
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

pub use config::{Config, Mode, NamespaceConfig, Readiness};
pub use faults::{Fault, Tamper, Violation, When};
pub use memory::IommuFault;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::SmartLog;
use nvmeof_wire::nvm::BlockRange;
use nvmeof_wire::pcie::Doorbell;
use rustix::event::EventfdFlags;

use super::seam::{DmaSpace, Function, Iova, Registers};
use controller::Controller;
use memory::Space;

/// A controller in memory. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Fake {
    parts: Arc<Parts>,
}

/// What the driver gets of it, and the tests hold on to.
#[derive(Debug)]
struct Parts {
    address: String,
    registers_len: u64,
    space: Arc<Space>,
    controller: Mutex<Controller>,
    removal: OwnedFd,
}

impl Fake {
    /// A controller, disabled.
    ///
    /// # Panics
    /// If the system has no descriptor left.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let space = Arc::new(Space::new(config.first_iova));
        let removal = eventfd().expect("a descriptor for an eventfd");
        let parts = Parts {
            address: config.address.clone(),
            registers_len: registers_len(&config),
            space: Arc::clone(&space),
            controller: Mutex::new(Controller::new(config, space)),
            removal,
        };
        Self { parts: Arc::new(parts) }
    }

    /// What the driver is given.
    #[must_use]
    pub fn function(&self) -> Arc<dyn Function> {
        Arc::new(Handle { parts: Arc::clone(&self.parts), given_back: Arc::default() })
    }

    /// Does the next command, in round robin over the queues. False if there was none.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Does all there is to do; how many commands that were.
    pub fn run(&self) -> usize {
        self.lock().run()
    }

    /// Does and completes the commands that are [held](Fault::Held); how many. None if the controller is not ready.
    pub fn release(&self) -> usize {
        self.lock().release()
    }

    /// Commands taken that a fault keeps from being completed.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// When it works from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.lock().config.mode = mode;
    }

    /// Changes what it is. What was copied at its making ([`Config::address`], [`Config::namespaces`],
    /// [`Config::first_iova`]) stays.
    pub fn reconfigure(&self, change: impl FnOnce(&mut Config)) {
        change(&mut self.lock().config);
    }

    /// Plans a fault.
    pub fn inject(&self, when: When, fault: Fault) {
        self.lock().plan.add(when, fault);
    }

    /// Forgets the faults that are still to come.
    pub fn clear_faults(&self) {
        self.lock().plan.clear();
    }

    /// Lets `tamper` change what it says from now on.
    pub fn set_tamper(&self, tamper: Option<Box<dyn Tamper>>) {
        self.lock().tamper = tamper;
    }

    /// It sets CSTS.CFS and takes no commands any more.
    pub fn set_fatal(&self) {
        self.lock().fatal = true;
    }

    /// It is unplugged: registers read as ones, nothing is reached, nothing comes. `false` plugs it in again, as after
    /// a power cycle.
    pub fn set_gone(&self, gone: bool) {
        let mut controller = self.lock();
        if controller.gone && !gone {
            controller.reset();
            controller.is_armed = false;
            self.parts.space.set_bus_master(false);
        }
        controller.gone = gone;
    }

    /// Whether it was told to shut down and has not finished with it.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.lock().is_shutting_down()
    }

    /// It finishes to shut down, however long it was to take.
    pub fn finish_shutdown(&self) {
        self.lock().finish_shutdown();
    }

    /// It resets itself, as with a reset of its subsystem: disabled, queues and commands are forgotten.
    pub fn reset_itself(&self) {
        self.lock().reset();
    }

    /// The system wants the function back.
    pub fn request_removal(&self) {
        let _ = rustix::io::write(&self.parts.removal, &1_u64.to_ne_bytes());
    }

    /// The next mapping fails.
    pub fn fail_next_map(&self) {
        self.parts.space.fail_next_map();
    }

    /// The next unmapping fails.
    pub fn fail_next_unmap(&self) {
        self.parts.space.fail_next_unmap();
    }

    /// Raises an asynchronous event.
    pub fn raise(&self, event: AsyncEvent) {
        self.lock().raise(event);
    }

    /// Changes the SMART log. Command counts and the count of errors are kept by the controller.
    pub fn change_smart(&self, change: impl FnOnce(&mut SmartLog)) {
        change(&mut self.lock().logs.smart);
    }

    /// Attaches or detaches a namespace, and tells the host if it wants to know.
    pub fn set_attached(&self, nsid: u32, attached: bool) {
        let mut controller = self.lock();
        for media in controller.media.iter_mut().filter(|media| media.nsid == nsid) {
            media.attached = attached;
        }
        controller.namespace_changed(nsid);
    }

    /// Changes what Identify Namespace says, and tells the host if it wants to know. The contents keep their length.
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

    /// What is in these blocks.
    #[must_use]
    pub fn read_media(&self, nsid: u32, slba: u64, blocks: u32) -> Option<Vec<u8>> {
        let controller = self.lock();
        let media = controller.media.iter().find(|media| media.nsid == nsid)?;
        media.get(BlockRange { slba, blocks }).map(<[u8]>::to_vec)
    }

    /// Puts `data` into blocks from `slba` on; `None` if it is not whole blocks that are there.
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

    /// Loses what only the volatile write cache has.
    pub fn lose_power(&self) {
        self.lock().media.iter_mut().for_each(media::Media::lose_power);
    }

    /// Commands taken since its making with this opcode, of this queue.
    #[must_use]
    pub fn taken(&self, qid: u16, opcode: u8) -> u64 {
        self.lock().taken.get(&(qid, opcode)).copied().unwrap_or(0)
    }

    /// Writes of doorbells since its making.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.lock().doorbells
    }

    /// I/O submission queues there are.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        self.lock().sqs.keys().filter(|&&qid| qid > 0).count()
    }

    /// Whether it is enabled and ready.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.lock().is_running()
    }

    /// Memory that is mapped now: where, and bytes.
    #[must_use]
    pub fn mappings(&self) -> Vec<(Iova, u64)> {
        self.parts.space.mappings()
    }

    /// Rules broken since its making, or since they were taken.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Accesses refused since its making, or since they were taken.
    #[must_use]
    pub fn iommu_faults(&self) -> Vec<IommuFault> {
        self.parts.space.faults()
    }

    /// Takes violations and faults, for a test that breaks rules on purpose.
    pub fn take_findings(&self) -> (Vec<Violation>, Vec<IommuFault>) {
        (std::mem::take(&mut self.lock().violations), self.parts.space.take_faults())
    }

    /// Panics if a rule was broken, or memory was reached for that is not mapped.
    ///
    /// # Panics
    /// If so.
    #[track_caller]
    pub fn assert_clean(&self) {
        let (violations, faults) = (self.violations(), self.iommu_faults());
        assert!(
            violations.is_empty() && faults.is_empty(),
            "the driver broke rules: {violations:#?}\nand the device faulted: {faults:#x?}"
        );
    }

    fn lock(&self) -> MutexGuard<'_, Controller> {
        self.parts.lock()
    }
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, Controller> {
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

/// A handle of the function that the driver drops when it is done.
#[derive(Debug)]
struct Handle {
    parts: Arc<Parts>,
    given_back: Arc<AtomicBool>,
}

impl Drop for Handle {
    fn drop(&mut self) {
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
        Arc::clone(&self.parts.space) as Arc<dyn DmaSpace>
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

/// Bytes of BAR0: the registers and all doorbells, in whole pages.
fn registers_len(config: &Config) -> u64 {
    let last = Doorbell::CompletionHead(config.io_queues).stride_offset(config.cap.dstrd());
    let end = u64::from(nvmeof_wire::pcie::offset::DOORBELLS) + last + 4;
    end.next_multiple_of(0x1000).max(0x4000)
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
