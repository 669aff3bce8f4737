//! Races between a queue, its device and the supervisor, made to happen at their worst moment.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use nvmeof_core::nvme_driver::function::{DmaSpace, Function, Registers};
use nvmeof_core::nvme_driver::{ControllerState, IoQueue};
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig, Fault, Mode, When};
use nvmeof_wire::pcie::offset::DOORBELLS;

use crate::rig::{self, Rig, options, read};

/// Action that the next write of a doorbell triggers.
type Action = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// The fake's function, which acts once just after a doorbell was written.
#[derive(Debug)]
struct Interposed {
    inner: Arc<dyn Function>,
    registers: Arc<dyn Registers>,
}

struct Doorbells {
    inner: Arc<dyn Registers>,
    action: Action,
}

impl Interposed {
    fn new(inner: Arc<dyn Function>, action: Action) -> Self {
        let registers = Arc::new(Doorbells { inner: inner.registers(), action });
        Self { inner, registers }
    }
}

impl std::fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Registers for Doorbells {
    fn read32(&self, offset: u32) -> u32 {
        self.inner.read32(offset)
    }

    fn write32(&self, offset: u32, value: u32) {
        self.inner.write32(offset, value);
        if offset >= DOORBELLS {
            let action = self.action.lock().unwrap().take();
            if let Some(act) = action {
                act();
            }
        }
    }

    fn read64(&self, offset: u32) -> u64 {
        self.inner.read64(offset)
    }

    fn write64(&self, offset: u32, value: u64) {
        self.inner.write64(offset, value);
    }
}

impl Function for Interposed {
    fn address(&self) -> &str {
        self.inner.address()
    }

    fn registers(&self) -> Arc<dyn Registers> {
        Arc::clone(&self.registers)
    }

    fn registers_len(&self) -> u64 {
        self.inner.registers_len()
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        self.inner.dma()
    }

    fn interrupts(&self, vectors: u16) -> io::Result<Vec<OwnedFd>> {
        self.inner.interrupts(vectors)
    }

    fn rearm(&self) -> io::Result<()> {
        self.inner.rearm()
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        self.inner.set_bus_master(on)
    }

    fn reset(&self) -> io::Result<()> {
        self.inner.reset()
    }

    fn removal(&self) -> Option<BorrowedFd<'_>> {
        self.inner.removal()
    }

    fn given_back(&self) -> Option<Arc<AtomicBool>> {
        self.inner.given_back()
    }
}

/// Returns a rig, and the action of its next doorbell.
fn interposed() -> (Rig, Action) {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let action = Action::default();
    let function = Arc::new(Interposed::new(fake.function(), Arc::clone(&action)));
    (Rig::on(fake, function, options()), action)
}

/// Returns true if a reactor that sleeps on the queue would wake.
fn is_readable(queue: &IoQueue) -> bool {
    rig::is_readable(queue.event_fd().unwrap())
}

/// Clears the queue's descriptor, as if an announcement had been lost.
fn clear(queue: &IoQueue) {
    let _ = rustix::io::read(queue.event_fd().unwrap(), &mut [0; 8]);
}

/// Empty polls before that of the race. The queue clears its descriptor after some of them.
const POLLS: std::ops::Range<usize> = 0..130;

#[test]
fn what_the_supervisor_says_just_before_the_descriptor_is_cleared_is_not_missed() {
    let mut acknowledged = 0;
    for polls in POLLS {
        let (rig, action) = interposed();
        let mut queue = rig.queue();
        let mut done = Vec::new();
        queue.poll(&mut done);
        rig.fake.set_mode(Mode::Manual);
        clear(&queue);
        for _ in 0..polls {
            queue.poll(&mut done);
        }
        // A poll has read the gate; the supervisor stops the controller; the poll continues and may
        // clear the descriptor.
        let controller = Arc::clone(&rig.controller);
        *action.lock().unwrap() = Some(Box::new(move || controller.reset()));
        queue.submit(read(0, rig.filled(512, 0))).unwrap();
        queue.poll(&mut done);
        assert!(action.lock().unwrap().is_none() && done.is_empty());
        assert_eq!(rig.controller.state(), ControllerState::Resetting);
        rig.fake.set_mode(Mode::Automatic);
        if is_readable(&queue) {
            // It was not cleared: the reactor polls.
            queue.poll(&mut done);
        } else {
            acknowledged += 1;
            assert_eq!(rig.settle(&mut []), ControllerState::Live, "the reactor sleeps on");
            assert!(is_readable(&queue), "and is woken to go on");
        }
        drop(queue);
        rig.end();
    }
    assert!((1..POLLS.len()).contains(&acknowledged), "{acknowledged} polls cleared it");
}

#[test]
fn a_reactor_that_lost_an_announcement_gets_it_again() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    let mut done = Vec::new();
    queue.poll(&mut done);
    rig.controller.reset();
    queue.poll(&mut done);
    assert_eq!(rig.settle(&mut []), ControllerState::Live);
    assert!(is_readable(&queue));
    clear(&queue);
    rig.controller.turn();
    assert!(is_readable(&queue));
    queue.poll(&mut done);
    rig.controller.reset();
    clear(&queue);
    rig.controller.turn();
    assert!(is_readable(&queue), "a recovery waits for it");
    drop(queue);
    rig.end();
}

#[test]
fn a_command_that_the_device_was_not_told_of_keeps_its_second_try() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    let mut done = Vec::new();
    queue.poll(&mut done);
    for lost in 0..2 {
        // Written without ringing the doorbell: the next poll finds the controller stopped.
        queue.submit(read(0, rig.filled(512, 0))).unwrap();
        rig.controller.reset();
        queue.poll(&mut done);
        assert_eq!(rig.controller.stats().resubmitted, lost);
        rig.controller.turn();
        // Now the device has the command, and a reset withdraws it once.
        rig.fake.inject(When::queue(1), Fault::Lost);
        queue.poll(&mut done);
        assert_eq!(done.len(), 0);
        rig.controller.reset();
        queue.poll(&mut done);
        assert_eq!(rig.controller.stats().resubmitted, lost + 1);
        done.append(&mut rig.finish(&mut queue));
        assert_eq!(done.pop().unwrap().result, Ok(()));
    }
    drop(queue);
    rig.end();
}

#[test]
fn what_comes_just_before_the_descriptor_is_cleared_is_not_missed() {
    let mut found = 0;
    for polls in POLLS {
        let rig = Rig::new(FakeDriveConfig::default());
        let mut queue = rig.queue();
        let mut done = Vec::new();
        queue.poll(&mut done);
        for _ in 0..polls {
            queue.poll(&mut done);
        }
        clear(&queue);
        // A poll finds nothing; the device completes the command as the poll rings its doorbell;
        // the poll continues and may clear the descriptor.
        queue.submit(read(0, rig.filled(512, 0))).unwrap();
        queue.poll(&mut done);
        if is_readable(&queue) {
            assert!(done.is_empty());
            queue.poll(&mut done);
        } else {
            found += 1;
        }
        assert_eq!(done.len(), 1, "nothing would wake a reactor that sleeps now");
        drop((done, queue));
        rig.end();
    }
    assert!((1..POLLS.len()).contains(&found), "{found} polls cleared it");
}
