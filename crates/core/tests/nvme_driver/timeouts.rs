//! Timeouts, step by step: wake, abort, controller reset, failed.

use nvmeof_core::block::BlockError;
use nvmeof_core::nvme_driver::{ControllerOptions, ControllerState, IoKind, Wait};
use nvmeof_fake_drive::{FakeDriveConfig, Fault, Mode, Readiness, When};
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};

use crate::rig::{Rig, SECOND, io, options, read, write};

const TIMED_OUT: BlockError = BlockError::Io(libc::ETIMEDOUT);

#[test]
fn a_command_that_is_late_is_aborted() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    let begin = rig.time.now();
    queue.submit(read(0, rig.filled(4096, 0))).unwrap();
    queue.submit(read(4096, rig.filled(4096, 0))).unwrap();
    let mut done = Vec::new();
    rig.pass(&mut queue, 7 * SECOND, &mut done);
    assert_eq!(done.len(), 1, "the other one is done long since");
    assert_eq!(rig.fake.taken(0, AdminOpcode::ABORT.0), 0);
    let last = rig.finish(&mut queue);
    let took = (rig.time.now() - begin) / SECOND;
    assert!((8..=11).contains(&took), "{took} seconds for a timeout of 8");
    assert_eq!(last[0].result, Err(TIMED_OUT));
    assert_eq!(rig.fake.taken(0, AdminOpcode::ABORT.0), 1);
    rig.controller.turn();
    let stats = rig.controller.stats();
    assert_eq!((stats.timeouts, stats.aborts, stats.resets), (1, 1, 0));
    drop((done, last, queue));
    rig.end();
}

#[test]
fn if_aborting_does_not_help_the_controller_is_reset_and_the_command_sent_again() {
    let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    rig.run(&mut queue, write(0, rig.filled(4096, 5)));
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    let done = rig.run(&mut queue, read(0, rig.filled(4096, 0)));
    assert_eq!(done.result, Ok(()));
    assert_eq!(done.buf.unwrap().as_slice(), [5; 4096]);
    let stats = rig.controller.stats();
    assert_eq!((stats.resets, stats.resubmitted, stats.leaked_buffers), (1, 1, 0));
    drop(queue);
    rig.end();
}

#[test]
fn a_command_is_sent_again_once_and_then_fails() {
    let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    rig.fake.inject(When::io(1, IoOpcode::WRITE).times(2), Fault::Lost);
    queue.submit(write(0, rig.filled(4096, 5))).unwrap();
    queue.submit(io(IoKind::Flush, 0, 0)).unwrap();
    let done = rig.finish(&mut queue);
    let result = |token: u64, is_write: bool| {
        let this = done.iter().find(|d| d.token == token && d.buf.is_some() == is_write);
        this.unwrap().result.clone()
    };
    assert_eq!(result(0, true), Err(TIMED_OUT));
    assert_eq!(result(0, false), Ok(()));
    assert_eq!(rig.controller.stats().resets, 2);
    drop((done, queue));
    rig.end();
}

#[test]
fn buffers_stay_with_the_device_until_it_is_stopped() {
    let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    // Held: it writes to the buffer when it is released, at any time.
    rig.fake.inject(When::io(1, IoOpcode::READ).times(2), Fault::Held);
    queue.submit(read(0, rig.filled(4096, 1))).unwrap();
    let mut done = Vec::new();
    let mut was_running = true;
    for _ in 0..4000 {
        queue.poll(&mut done);
        if !done.is_empty() {
            break;
        }
        rig.controller.turn();
        was_running = rig.fake.is_running();
        rig.time.pass(SECOND / 50);
    }
    assert_eq!(done[0].result, Err(TIMED_OUT));
    assert_eq!(done[0].buf.as_ref().unwrap().as_slice(), [1; 4096]);
    assert!(!was_running, "it came back while the controller could still write to it");
    assert_eq!(rig.fake.held(), 0);
    rig.settle(&mut [&mut queue]);
    assert_eq!(rig.fake.release(), 0);
    drop((done, queue));
    rig.end();
}

#[test]
fn a_controller_that_needs_too_many_resets_has_failed() {
    let few = ControllerOptions { resets: 2, ..options() };
    let rig = Rig::with(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() }, few);
    let mut queue = rig.queue();
    rig.fake.inject(When::queue(1).times(1000), Fault::Lost);
    let mut results = Vec::new();
    for _ in 0..3 {
        queue.submit(read(0, rig.filled(4096, 0))).unwrap();
        results.extend(rig.finish(&mut queue).into_iter().map(|done| done.result));
    }
    assert!(results.contains(&Err(BlockError::Gone)), "{results:?}");
    let ControllerState::Failed(reason) = rig.controller.state() else { panic!("not failed") };
    assert!(reason.contains("after 2 resets"), "{reason}");
    assert_eq!(rig.controller.stats().leaked_buffers, 0);
    assert!(rig.device_is_refused());
    drop(queue);
    rig.end();
}

impl Rig {
    fn device_is_refused(&self) -> bool {
        self.controller.namespace(1).is_err()
    }
}

#[test]
fn an_admin_command_without_an_answer_resets_the_controller() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.fake.inject(When::admin(AdminOpcode::GET_LOG_PAGE), Fault::Lost);
    let error = rig.controller.smart().unwrap_err();
    assert_eq!(error, nvmeof_core::nvme_driver::AdminError::Reset);
    assert_eq!(rig.settle(&mut [&mut queue]), ControllerState::Live);
    assert!(rig.controller.smart().is_ok());
    assert_eq!(rig.run(&mut queue, read(0, rig.filled(512, 0))).result, Ok(()));
    drop(queue);
    rig.end();
}

#[test]
fn a_lost_interrupt_is_made_up_for() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    let mut done = Vec::new();
    rig.pass(&mut queue, SECOND, &mut done);
    rig.fake.set_mode(Mode::Manual);
    queue.submit(read(0, rig.filled(512, 0))).unwrap();
    queue.poll(&mut done);
    // The reactor sleeps; the device completes, but no interrupt arrives.
    let readable = |queue: &nvmeof_core::nvme_driver::IoQueue| {
        let fd = queue.event_fd().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    assert!(!readable(&queue));
    for _ in 0..60 {
        rig.controller.turn();
        rig.time.pass(SECOND / 10);
    }
    assert!(readable(&queue), "the supervisor wakes it before it aborts anything");
    rig.fake.set_mode(Mode::Automatic);
    rig.fake.run();
    done.append(&mut rig.finish(&mut queue));
    assert_eq!(done[0].result, Ok(()));
    assert_eq!(rig.controller.stats().timeouts, 0);
    drop((done, queue));
    rig.end();
}

#[test]
fn proofs_are_tried_in_order_and_the_last_is_the_iommu() {
    // RDY never becomes 0: only a function reset stops the device.
    let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    rig.fake.reconfigure(|config| config.disable = Readiness::Never);
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    let done = rig.run(&mut queue, read(0, rig.filled(4096, 0)));
    assert_eq!(done.result, Ok(()), "after a reset of the function it runs again");
    drop((done, queue));
    rig.fake.reconfigure(|config| config.disable = Readiness::AfterReads(0));
    rig.end();

    // Without a reset, the bus master bit stops the device, and the controller fails.
    let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    rig.fake.reconfigure(|config| {
        config.disable = Readiness::Never;
        config.can_reset = false;
    });
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    let done = rig.run(&mut queue, read(0, rig.filled(4096, 0)));
    assert_eq!(done.result, Err(BlockError::Gone));
    assert!(done.buf.is_some(), "the buffer is back");
    assert_eq!(rig.controller.stats().leaked_buffers, 0);
    drop((done, queue));
    rig.fake.reconfigure(|config| config.disable = Readiness::AfterReads(0));
    assert_eq!(rig.pool.leased(), 0);
    rig.fake.assert_clean();
}
