//! Removal, fatal status, returning controllers, and invalid completions.

use std::sync::Arc;

use nvmeof_core::block::{BlockDevice, BlockError, Completed, NvmeDevice};
use nvmeof_core::dma::CorePool;
use nvmeof_core::nvme_driver::{
    AdminError, BufferMaps, Controller, ControllerState, Io, IoKind, Wait,
};
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig, Fault, When};
use nvmeof_wire::Status;
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};

use crate::rig::{
    MILLI, Rig, SECOND, VirtualTime, io, is_readable, open, options, read, shared_pool, write,
};

fn failed(state: ControllerState) -> String {
    match state {
        ControllerState::Failed(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drive_that_is_pulled_out_ends_everything_with_gone() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.fake.inject(When::io(1, IoOpcode::READ).times(5), Fault::Lost);
    for block in 0..5 {
        queue.submit(read(block * 4096, rig.filled(4096, 0))).unwrap();
    }
    queue.poll(&mut Vec::new());
    rig.fake.set_gone(true);
    let begin = rig.time.now();
    let done = rig.finish(&mut queue);
    assert!(rig.time.now() - begin < 4 * SECOND);
    assert_eq!(done.len(), 5);
    for done in &done {
        assert_eq!(done.result, Err(BlockError::Gone));
        assert!(done.buf.is_some(), "the IOMMU proves that it cannot be written to");
    }
    assert!(failed(rig.controller.state()).contains("missing"));
    // Later operations fail, too.
    let refused = rig.run(&mut queue, io(IoKind::Flush, 0, 0));
    assert_eq!(refused.result, Err(BlockError::Gone));
    let stats = rig.controller.stats();
    assert_eq!((stats.leaked_buffers, stats.resets), (0, 0));
    drop((done, queue));
    rig.end();
}

#[test]
fn buffers_that_nothing_is_known_of_are_given_up() {
    let rig = Rig::new(FakeDriveConfig { alone: false, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    let keep = rig.filled(4096, 0);
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    queue.submit(read(0, rig.filled(8192, 0))).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done);
    rig.fake.set_gone(true);
    // Even the IOMMU unmap fails.
    rig.fake.fail_next_unmap();
    while queue.in_flight() > 0 {
        rig.controller.turn();
        rig.time.pass(10 * MILLI);
        queue.poll(&mut done);
    }
    assert_eq!(done[0].result, Err(BlockError::Gone));
    assert!(done[0].buf.is_none(), "nobody may use it any more");
    let stats = rig.controller.stats();
    assert_eq!((stats.leaked_buffers, stats.leaked_bytes), (1, 8192));
    drop((keep, queue));
    assert_eq!(rig.pool.leased(), 1, "it stays leased for good");
    rig.fake.assert_clean();
}

#[test]
fn a_drive_that_shares_its_buffers_with_others_is_taken_out_of_the_iommu() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    // Another drive in the same container: the buffers stay mapped for it.
    let neighbor = rig.fake.neighbor(FakeDriveConfig::default());
    let other = open(&neighbor, options()).unwrap();
    let other = NvmeDevice::new("other", other, 1, Arc::clone(&rig.maps)).unwrap();
    let mut others_queue = other.open_driver_queue(&rig.pool).unwrap();
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    queue.submit(read(0, rig.filled(8192, 0))).unwrap();
    queue.poll(&mut Vec::new());
    // A pending admin command gets a result.
    rig.fake.inject(When::admin(AdminOpcode::GET_LOG_PAGE), Fault::Lost);
    let fake = rig.fake.clone();
    rig.time.at_next_wait(move || fake.set_gone(true));
    let pending = rig.controller.smart();
    assert_eq!(rig.fake.taken(0, AdminOpcode::GET_LOG_PAGE.0), 1);
    assert!(matches!(pending, Err(AdminError::Failed(_))), "{pending:?}");
    let done = rig.finish(&mut queue);
    assert_eq!(done[0].result, Err(BlockError::Gone));
    assert!(done[0].buf.is_some(), "the drive that has it cannot reach memory any more");
    assert_eq!(rig.controller.stats().leaked_buffers, 0);
    drop((done, queue));
    let read = rig.run(&mut others_queue, read(0, rig.filled(8192, 1)));
    assert_eq!(read.result, Ok(()), "the other drive still reaches the buffers");
    assert_eq!(read.buf.unwrap().as_slice(), [0; 8192]);
    drop((others_queue, other));
    neighbor.assert_clean();
    rig.end();
}

#[test]
fn a_drive_that_comes_back_in_time_goes_on() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.run(&mut queue, write(0, rig.filled(4096, 7)));
    rig.run(&mut queue, io(IoKind::Flush, 0, 0));
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    queue.submit(read(0, rig.filled(4096, 0))).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done);
    rig.fake.set_gone(true);
    rig.pass(&mut queue, SECOND, &mut done);
    assert_eq!(rig.controller.state(), ControllerState::Resetting);
    assert!(done.is_empty());
    queue.submit(read(0, rig.filled(4096, 0))).unwrap();
    rig.fake.set_gone(false);
    done.append(&mut rig.finish(&mut queue));
    assert_eq!(done.len(), 2);
    for done in &done {
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.buf.as_ref().unwrap().as_slice(), [7; 4096]);
    }
    // The drive may have lost power and its cache. Every queue reports this once, with every flush
    // it has.
    let mut other = rig.queue();
    for queue in [&mut queue, &mut other] {
        queue.poll(&mut Vec::new());
    }
    for _ in 0..2 {
        queue.submit(io(IoKind::Flush, 0, 0)).unwrap();
    }
    let flushes = rig.finish(&mut queue);
    assert_eq!(flushes.len(), 2);
    assert!(flushes.iter().all(|flush| flush.result == Err(BlockError::FlushLost)));
    assert_eq!(rig.run(&mut queue, io(IoKind::Flush, 0, 0)).result, Ok(()));
    assert_eq!(rig.run(&mut other, io(IoKind::Flush, 0, 0)).result, Ok(()), "it was opened later");
    drop((done, queue, other));
    rig.end();
}

#[test]
fn a_long_write_amid_a_loss_of_the_cache_is_made_once_more() {
    for is_cancelled in [false, true] {
        let rig = Rig::new(FakeDriveConfig::default());
        let mut queue = rig.queue();
        queue.poll(&mut Vec::new());
        // Only the first of two commands of 128 KiB completes before the drive is disconnected.
        rig.fake.inject(When::io(1, IoOpcode::WRITE).after(1), Fault::Lost);
        queue.submit(write(0, rig.filled(256 << 10, 7))).unwrap();
        let mut done = Vec::new();
        rig.pass(&mut queue, SECOND, &mut done);
        rig.fake.lose_power();
        rig.fake.set_gone(true);
        rig.pass(&mut queue, SECOND, &mut done);
        assert!(done.is_empty());
        if is_cancelled {
            queue.cancel(0);
        }
        rig.fake.set_gone(false);
        done.append(&mut rig.finish(&mut queue));
        let wanted = if is_cancelled { Err(BlockError::Cancelled) } else { Ok(()) };
        assert_eq!((done.len(), &done[0].result), (1, &wanted));
        let flushes = [(); 2].map(|()| rig.run(&mut queue, io(IoKind::Flush, 0, 0)).result);
        assert_eq!(flushes, [Err(BlockError::FlushLost), Ok(())]);
        // The second flush covers the write, which executed after the loss.
        rig.fake.lose_power();
        let byte = if is_cancelled { 0 } else { 7 };
        assert_eq!(rig.fake.read_media(1, 0, 1).unwrap(), [byte; 512]);
        drop((done, queue));
        rig.end();
    }
}

#[test]
fn a_flush_that_fails_is_reported_by_every_queue_once_and_then_flushes_count_again() {
    let rig = Rig::new(FakeDriveConfig::default());
    let (mut queue, mut other) = (rig.queue(), rig.queue());
    let flush = || io(IoKind::Flush, 0, 0);
    for status in [Status::WRITE_FAULT, Status::INTERNAL_ERROR] {
        rig.fake.inject(When::io(1, IoOpcode::FLUSH), Fault::Status(status));
        for _ in 0..3 {
            queue.submit(flush()).unwrap();
        }
        let done = rig.finish(&mut queue);
        let lost = |done: &&Completed| done.result == Err(BlockError::FlushLost);
        assert_eq!((done.len(), done.iter().filter(lost).count()), (3, 2));
        assert!(done.iter().all(|done| done.result.is_err()));
        assert_eq!(rig.run(&mut other, flush()).result, Err(BlockError::FlushLost));
    }
    for queue in [&mut queue, &mut other] {
        let fua = Io { kind: IoKind::Write { fua: true }, ..write(0, rig.filled(512, 1)) };
        assert_eq!(rig.run(queue, fua).result, Ok(()));
        assert_eq!(rig.run(queue, flush()).result, Ok(()));
    }
    // A failed write concerns only itself.
    rig.fake.inject(When::io(1, IoOpcode::WRITE), Fault::Status(Status::WRITE_FAULT));
    let fua = Io { kind: IoKind::Write { fua: true }, ..write(0, rig.filled(512, 1)) };
    assert!(matches!(rig.run(&mut queue, fua).result, Err(BlockError::Media { .. })));
    assert_eq!(rig.run(&mut queue, flush()).result, Ok(()));
    drop((queue, other));
    rig.end();
}

#[test]
fn a_drive_that_goes_away_while_it_is_started_may_come_back() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.run(&mut queue, write(0, rig.filled(4096, 7)));
    // During the start: while it is identified, and when its queues are created.
    for opcode in [AdminOpcode::IDENTIFY, AdminOpcode::CREATE_IO_SQ] {
        rig.fake.inject(When::admin(opcode), Fault::Gone);
        rig.controller.reset();
        let mut done = Vec::new();
        rig.pass(&mut queue, SECOND, &mut done);
        assert_eq!(rig.controller.state(), ControllerState::Resetting, "{opcode:?}");
        rig.fake.set_gone(false);
        assert_eq!(rig.settle(&mut [&mut queue]), ControllerState::Live, "{opcode:?}");
        let read = rig.run(&mut queue, read(0, rig.filled(4096, 0)));
        assert_eq!(read.result, Ok(()));
        assert_eq!(read.buf.as_ref().unwrap().as_slice(), [7; 4096]);
    }
    drop(queue);
    rig.end();
}

#[test]
fn a_rule_broken_before_a_reset_is_no_reason_for_another_one() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    // The supervisor has no turn between the queue's report of a violation and a reset.
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::WrongCid(0x3fff));
    queue.submit(read(0, rig.filled(512, 0))).unwrap();
    for _ in 0..2 {
        queue.poll(&mut Vec::new());
    }
    rig.controller.reset();
    assert_eq!(rig.settle(&mut [&mut queue]), ControllerState::Live);
    for _ in 0..3 {
        rig.controller.turn();
        queue.poll(&mut Vec::new());
    }
    let stats = rig.controller.stats();
    assert_eq!((stats.resets, stats.violations), (1, 0));
    drop(queue);
    rig.end();
}

#[test]
fn another_drive_in_its_place_is_not_taken_for_it() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.fake.set_gone(true);
    let mut done = Vec::new();
    rig.pass(&mut queue, SECOND, &mut done);
    rig.fake.reconfigure(|config| nvmeof_wire::ascii::fill(&mut config.identify.sn, "OTHER"));
    rig.fake.set_gone(false);
    let reason = failed(rig.settle(&mut [&mut queue]));
    assert!(reason.contains("another drive") && reason.contains("OTHER"), "{reason}");
    drop(queue);
    rig.end();
}

#[test]
fn fatal_status_is_answered_by_a_reset() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.run(&mut queue, write(0, rig.filled(4096, 7)));
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Fatal);
    for block in 0..8 {
        queue.submit(read(block * 512, rig.filled(512, 0))).unwrap();
    }
    let done = rig.finish(&mut queue);
    assert_eq!(done.len(), 8);
    for done in &done {
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.buf.as_ref().unwrap().as_slice(), [7; 512]);
    }
    assert_eq!(rig.controller.stats().resets, 1);
    drop((done, queue));
    rig.end();
}

#[test]
fn a_controller_that_resets_itself_is_brought_up_again() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    let mut other = rig.queue();
    for round in 1..4 {
        rig.fake.inject(When::queue(1), Fault::Lost);
        queue.submit(write(0, rig.filled(4096, round))).unwrap();
        let mut done = Vec::new();
        queue.poll(&mut done);
        rig.fake.reset_itself();
        let mut results = done;
        for _ in 0..1000 {
            rig.controller.turn();
            queue.poll(&mut results);
            other.poll(&mut results);
            rig.time.pass(10 * MILLI);
            if queue.in_flight() == 0 {
                break;
            }
        }
        assert_eq!(results[0].result, Ok(()));
        assert_eq!(rig.fake.read_media(1, 0, 8).unwrap(), vec![round; 4096]);
    }
    drop((queue, other));
    rig.end();
}

#[test]
fn a_reset_waits_for_every_queue_and_queues_may_come_and_go_meanwhile() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut first = rig.queue();
    let mut second = rig.queue();
    let mut done = Vec::new();
    first.poll(&mut done);
    second.poll(&mut done);
    rig.controller.reset();
    for _ in 0..100 {
        rig.controller.turn();
        first.poll(&mut done);
        rig.time.pass(10 * MILLI);
    }
    // The second queue's reactor has not acknowledged yet: none of its doorbells may follow the
    // start.
    assert_eq!(rig.controller.state(), ControllerState::Resetting);
    assert!(!rig.fake.is_running());
    drop(second);
    assert_eq!(rig.settle(&mut [&mut first]), ControllerState::Live);
    let mut third = rig.queue();
    assert_eq!(rig.run(&mut third, read(0, rig.filled(512, 0))).result, Ok(()));
    assert_eq!(rig.run(&mut first, read(0, rig.filled(512, 0))).result, Ok(()));
    drop((first, third));
    rig.end();
}

#[test]
fn a_controller_that_does_not_start_again_has_failed() {
    for opcode in [AdminOpcode::IDENTIFY, AdminOpcode::CREATE_IO_SQ, AdminOpcode::SET_FEATURES] {
        let rig = Rig::new(FakeDriveConfig::default());
        let mut queue = rig.queue();
        rig.fake.inject(When::admin(opcode).times(100), Fault::Status(Status::INTERNAL_ERROR));
        queue.submit(read(0, rig.filled(512, 0))).unwrap();
        rig.controller.reset();
        let done = rig.finish(&mut queue);
        if let ControllerState::Failed(reason) = rig.settle(&mut [&mut queue]) {
            assert!(reason.contains("does not start"), "{reason}");
            assert_eq!(done[0].result, Err(BlockError::Gone));
        } else {
            panic!("{opcode:?}");
        }
        drop((done, queue));
        rig.end();
    }
    // A temporary failure is retried.
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.fake.inject(When::admin(AdminOpcode::CREATE_IO_SQ), Fault::Lost);
    rig.controller.reset();
    assert_eq!(rig.settle(&mut [&mut queue]), ControllerState::Live);
    assert_eq!(rig.run(&mut queue, read(0, rig.filled(512, 0))).result, Ok(()));
    drop(queue);
    rig.end();
}

#[test]
fn answers_to_nothing_are_answered_by_a_reset() {
    for fault in [
        Fault::WrongCid(0x3fff),
        Fault::WrongCid(0xffff),
        Fault::WrongSqid(7),
        Fault::Duplicate,
        Fault::WrongPhase,
    ] {
        let rig = Rig::new(FakeDriveConfig { abort_helps: false, ..FakeDriveConfig::default() });
        let mut queue = rig.queue();
        rig.run(&mut queue, write(0, rig.filled(4096, 3)));
        rig.fake.inject(When::io(1, IoOpcode::READ), fault.clone());
        queue.submit(read(0, rig.filled(512, 0))).unwrap();
        queue.submit(read(512, rig.filled(512, 0))).unwrap();
        let mut done = rig.finish(&mut queue);
        rig.pass(&mut queue, SECOND, &mut done);
        assert_eq!(done.len(), 2, "{fault:?}");
        for done in &done {
            assert_eq!(done.result, Ok(()), "{fault:?}");
            assert_eq!(done.buf.as_ref().unwrap().as_slice(), [3; 512], "{fault:?}");
        }
        assert_eq!(rig.controller.stats().resets, 1, "{fault:?}");
        drop((done, queue));
        rig.end();
    }
    let rig = Rig::new(FakeDriveConfig::default());
    rig.fake.inject(When::admin(AdminOpcode::GET_LOG_PAGE), Fault::WrongCid(0x1234));
    assert!(rig.controller.smart().is_err());
    assert_eq!(rig.settle(&mut []), ControllerState::Live);
    assert_eq!(rig.controller.stats().violations, 1);
    rig.end();
}

#[test]
fn statuses_mean_what_they_say() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    for (status, expected) in [
        (Status::UNRECOVERED_READ_ERROR, BlockError::Media { errno: libc::EIO }),
        (Status::LBA_OUT_OF_RANGE, BlockError::OutOfRange { offset: 4096, len: 512 }),
        (Status::NAMESPACE_WRITE_PROTECTED, BlockError::ReadOnly),
        (Status::CAPACITY_EXCEEDED, BlockError::NoSpace),
        (Status::INVALID_OPCODE, BlockError::Unsupported),
        (Status::INVALID_NAMESPACE_OR_FORMAT, BlockError::Gone),
        (Status::INTERNAL_ERROR, BlockError::Io(libc::EIO)),
        (Status::new(7, 0x42), BlockError::Io(libc::EIO)),
    ] {
        rig.fake.inject(When::queue(1), Fault::Status(status));
        let done = rig.run(&mut queue, read(4096, rig.filled(512, 0)));
        assert_eq!(done.result, Err(expected));
    }
    // One piece of several fails: the operation fails once, when all have completed.
    rig.fake.inject(When::queue(1).after(3), Fault::Status(Status::UNRECOVERED_READ_ERROR));
    let done = rig.run(&mut queue, read(0, rig.filled(2 << 20, 0)));
    assert!(done.result.is_err());
    drop((done, queue));
    rig.end();
}

#[test]
fn the_system_may_take_the_function_away() {
    let rig = Rig::new(FakeDriveConfig::default());
    let device = rig.device(1);
    let mut queue = rig.queue();
    rig.fake.inject(When::io(1, IoOpcode::READ), Fault::Lost);
    queue.submit(read(0, rig.filled(512, 0))).unwrap();
    queue.poll(&mut Vec::new());
    rig.fake.request_removal();
    let done = rig.finish(&mut queue);
    assert_eq!(done[0].result, Err(BlockError::Gone));
    assert!(done[0].buf.is_some());
    assert!(failed(rig.controller.state()).contains("removes the device"));
    assert!(!rig.fake.is_running(), "it was disabled before");
    assert!(rig.fake.is_held());
    rig.controller.turn();
    assert!(!rig.fake.is_held(), "the function is given back");
    assert_eq!(device.open_driver_queue(&rig.pool).unwrap_err(), BlockError::Gone);
    drop((done, queue, device));
    rig.end();
}

#[test]
fn the_system_may_take_the_function_away_amid_other_trouble() {
    // During a reset that waits for a queue, and while the drive is disconnected: removal is
    // immediate, and no descriptor that the thread sleeps on stays readable.
    for is_away in [false, true] {
        let rig = Rig::new(FakeDriveConfig::default());
        let mut queue = rig.queue();
        let mut done = Vec::new();
        queue.poll(&mut done);
        if is_away {
            rig.fake.set_gone(true);
        } else {
            rig.controller.reset();
        }
        rig.controller.turn();
        rig.controller.turn();
        assert_eq!(rig.controller.state(), ControllerState::Resetting);
        let wakers = rig.controller.wakers().unwrap();
        let quiet = || !wakers.iter().any(is_readable);
        assert!(quiet());
        rig.fake.request_removal();
        assert!(!quiet());
        rig.controller.turn();
        assert!(failed(rig.controller.state()).contains("removes the device"));
        assert!(quiet(), "or the thread spins until the queue lets go");
        queue.poll(&mut done);
        rig.controller.turn();
        drop((done, queue));
        rig.end();
    }
}

#[test]
fn an_interrupt_amid_a_reset_does_not_keep_the_thread_awake() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    queue.poll(&mut Vec::new());
    rig.controller.turn();
    rig.fake.raise(nvmeof_wire::aer::AsyncEvent::TEMPERATURE);
    rig.controller.reset();
    rig.controller.turn();
    assert_eq!(rig.controller.state(), ControllerState::Resetting);
    assert!(!rig.controller.wakers().unwrap().iter().any(is_readable));
    rig.settle(&mut [&mut queue]);
    drop(queue);
    rig.end();
}

#[test]
fn while_a_controller_is_being_stopped_reactors_and_questions_do_not_wait() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let time = Arc::new(VirtualTime::default());
    let wait: Arc<dyn Wait> = time.clone();
    let controller = Controller::open_stepped(fake.function(), options(), wait).unwrap();
    let shared = shared_pool();
    let maps = Arc::new(BufferMaps::new(&shared));
    let device = NvmeDevice::new("d", Arc::clone(&controller), 1, maps).unwrap();
    time.stop();
    std::thread::scope(|scope| {
        scope.spawn(|| controller.reset());
        time.await_waiting(1);
        // The thread holds the lock to stop the controller, which takes until the end of this test.
        assert_eq!(controller.state(), ControllerState::Resetting);
        assert!(!device.is_gone());
        let pool = CorePool::new(&shared);
        let queue = device.open_driver_queue(&pool).unwrap();
        assert_eq!(controller.open_queues(), 1);
        drop(queue);
        time.resume();
    });
    controller.turn();
    assert_eq!(controller.state(), ControllerState::Live);
    drop((device, controller));
    fake.assert_clean();
}

#[test]
fn a_thread_watches_over_a_controller_that_is_not_stepped() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let controller = Controller::open(fake.function(), options()).unwrap();
    assert!(controller.smart().is_ok());
    fake.request_removal();
    while !matches!(controller.state(), ControllerState::Failed(_)) {
        std::thread::yield_now();
    }
    assert!(failed(controller.state()).contains("removes the device"));
    drop(controller);
    fake.assert_clean();
    assert_eq!(fake.mappings(), []);
}
