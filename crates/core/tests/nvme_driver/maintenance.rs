//! Logs, events, Format NVM, Sanitize.

use std::time::Duration;

use nvmeof_core::nvme_driver::{AdminError, ControllerOptions, ControllerState, IoKind, Wait};
use nvmeof_fake_drive::{FakeDriveConfig, Fault, When};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::format::SecureErase;
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::sanitize::SanitizeAction;
use nvmeof_wire::{Status, U16};

use crate::rig::{Rig, SECOND, io, options, read, write};

#[test]
fn health_and_errors_are_read() {
    let rig = Rig::new(FakeDriveConfig::default());
    rig.fake.change_smart(|smart| smart.temperature = U16::new(310));
    let smart = rig.controller.smart().unwrap();
    assert_eq!(smart.temperature.get(), 310);
    let before = rig.controller.error_log().unwrap().len();
    let mut queue = rig.queue();
    rig.fake.inject(When::queue(1), Fault::Status(Status::UNRECOVERED_READ_ERROR));
    assert!(rig.run(&mut queue, read(4096, rig.filled(512, 0))).result.is_err());
    let log = rig.controller.error_log().unwrap();
    assert_eq!(log.len(), before + 1);
    assert_eq!(log[0].status().code(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(log[0].sqid.get(), 1);
    drop(queue);
    rig.end();
}

#[test]
fn events_are_noted_and_asked_for_again() {
    let rig = Rig::new(FakeDriveConfig::default());
    for count in 1..=10 {
        rig.fake.raise(AsyncEvent::TEMPERATURE);
        rig.fake.run();
        for _ in 0..3 {
            rig.controller.turn();
        }
        assert_eq!(rig.controller.stats().events, count);
    }
    assert_eq!(rig.controller.events().len(), 10);
    assert_eq!(rig.controller.events()[9].event, AsyncEvent::TEMPERATURE);
    rig.end();
}

#[test]
fn a_format_destroys_and_changes_the_block_size() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    rig.run(&mut queue, write(0, rig.filled(4096, 9)));
    let in_use = rig.controller.format(1, 2, SecureErase::USER_DATA, &mut |_| ());
    assert_eq!(in_use.unwrap_err(), AdminError::InUse(1));
    drop(queue);
    let formats = rig.controller.formats(1).unwrap();
    assert_eq!(formats[2].block_size(), Some(4096));
    let mut told = Vec::new();
    rig.controller.format(1, 2, SecureErase::USER_DATA, &mut |percent| told.push(percent)).unwrap();
    assert_eq!(told.last(), Some(&100));
    let namespace = rig.controller.namespace(1).unwrap();
    assert_eq!((namespace.block_size, namespace.format), (4096, 2));
    let mut queue = rig.queue();
    let done = rig.run(&mut queue, read(0, rig.filled(4096, 1)));
    assert_eq!(done.buf.unwrap().as_slice(), [0; 4096]);
    drop(queue);
    let none = rig.controller.format(1, 40, SecureErase::NONE, &mut |_| ()).unwrap_err();
    assert!(none.to_string().contains("0 to 2"), "{none}");
    rig.end();
}

#[test]
fn a_format_that_fails_says_so() {
    let rig = Rig::new(FakeDriveConfig::default());
    rig.fake.inject(
        When::admin(AdminOpcode::FORMAT_NVM),
        Fault::Status(Status::INVALID_FORMAT.with_dnr()),
    );
    let error = rig.controller.format(1, 0, SecureErase::NONE, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("Invalid Format"), "{error}");
    // It may take any time, and then completes.
    rig.fake.inject(When::admin(AdminOpcode::FORMAT_NVM), Fault::Held);
    let mut looks = 0;
    let fake = rig.fake.clone();
    let mut look = |_| {
        looks += 1;
        if looks == 1000 {
            fake.release();
        }
    };
    rig.fake.change_namespace(1, |namespace| namespace.fpi = 0x80 | 40);
    rig.controller.format(1, 0, SecureErase::NONE, &mut look).unwrap();
    assert!(looks >= 1000);
    assert_eq!(rig.controller.state(), ControllerState::Live);
    rig.end();
}

#[test]
fn a_format_without_an_answer_is_given_up_after_a_day() {
    let rig = Rig::new(FakeDriveConfig::default());
    rig.fake.inject(When::admin(AdminOpcode::FORMAT_NVM), Fault::Lost);
    let error = rig.controller.format(1, 0, SecureErase::NONE, &mut |_| ()).unwrap_err();
    assert!(matches!(error, AdminError::Timeout | AdminError::Reset), "{error:?}");
    rig.settle(&mut []);
    rig.controller.format(1, 0, SecureErase::NONE, &mut |_| ()).unwrap();
    rig.end();
}

/// Returns a rig whose drive holds a format, and with it every other admin command.
fn holding_a_format() -> Rig {
    let rig = Rig::new(FakeDriveConfig { one_admin_at_a_time: true, ..FakeDriveConfig::default() });
    rig.fake.change_namespace(1, |namespace| namespace.fpi = 0x80 | 40);
    rig.controller.turn();
    rig.fake.inject(When::admin(AdminOpcode::FORMAT_NVM), Fault::Held);
    rig
}

#[test]
fn a_query_that_waits_for_a_format_does_not_prolong_it() {
    let rig = holding_a_format();
    let error = rig.controller.format(1, 0, SecureErase::NONE, &mut |_| ()).unwrap_err();
    assert_eq!(error, AdminError::Reset);
    let day = 24 * 3600 * SECOND;
    assert!((day..day + 60 * SECOND).contains(&rig.time.now()), "{}", rig.time.now());
    assert_eq!(rig.controller.stats().resets, 1);
    rig.end();
}

#[test]
fn a_format_is_not_disturbed_by_commands_that_wait_for_it() {
    let rig = holding_a_format();
    std::thread::scope(|scope| {
        // Ten times the timeout of other admin commands.
        scope.spawn(|| {
            while rig.time.now() < 100 * SECOND {
                std::thread::yield_now();
            }
            rig.fake.release();
            rig.fake.run();
        });
        rig.controller.format(1, 0, SecureErase::NONE, &mut |_| ()).unwrap();
    });
    assert!(rig.time.now() >= 100 * SECOND);
    assert_eq!((rig.controller.stats().resets, rig.controller.state()), (0, ControllerState::Live));
    // Afterwards the timeout applies again.
    rig.fake.inject(When::admin(AdminOpcode::GET_LOG_PAGE), Fault::Lost);
    assert_eq!(rig.controller.smart().unwrap_err(), AdminError::Reset);
    assert_eq!(rig.controller.stats().resets, 1);
    rig.end();
}

#[test]
fn a_drive_that_does_not_say_how_far_a_format_is_is_not_asked() {
    let rig = Rig::new(FakeDriveConfig::default());
    rig.fake.inject(When::admin(AdminOpcode::FORMAT_NVM), Fault::Held);
    let mut looks = 0;
    let fake = rig.fake.clone();
    let before = rig.fake.taken(0, AdminOpcode::IDENTIFY.0);
    let identify = || fake.taken(0, AdminOpcode::IDENTIFY.0) - before;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while rig.time.now() < 100 * SECOND {
                std::thread::yield_now();
            }
            rig.fake.release();
        });
        rig.controller.format(1, 0, SecureErase::NONE, &mut |_| looks += 1).unwrap();
    });
    assert_eq!(looks, 1, "only that it is done");
    assert_eq!(identify(), 2, "for the formats, and whether it says");
    rig.end();
}

#[test]
fn looks_at_a_sanitize_operation_may_fail_and_it_goes_on() {
    let rig = Rig::new(FakeDriveConfig { sanitize_reads: 4, ..FakeDriveConfig::default() });
    let log = || When::admin(AdminOpcode::GET_LOG_PAGE);
    let failing = Fault::Status(Status::INTERNAL_ERROR);
    rig.fake.inject(log().after(1).times(5), failing.clone());
    rig.fake.inject(log().after(2), Fault::Lost);
    rig.controller.sanitize(SanitizeAction::BLOCK_ERASE, &mut |_| ()).unwrap();
    assert_eq!(rig.controller.stats().resets, 1, "a look that was lost");
    // In the end the error reports an unknown state.
    rig.fake.inject(log().after(1).times(1000), failing);
    let error = rig.controller.sanitize(SanitizeAction::BLOCK_ERASE, &mut |_| ()).unwrap_err();
    assert!(matches!(error, AdminError::Unknown(_)), "{error}");
    assert!(error.to_string().contains("may still be running"), "{error}");
    rig.fake.clear_faults();
    rig.end();
}

#[test]
fn an_event_is_asked_for_again_when_there_is_room() {
    // The clock runs with each wait: while one caller holds the controller and its thread is not
    // scheduled, the others' waits amount to hours.
    let patient = ControllerOptions { admin_timeout: Duration::from_secs(1 << 32), ..options() };
    let rig = Rig::with(FakeDriveConfig::default(), patient);
    // Callers hold all slots of the admin queue that event requests leave, and one waits for a
    // slot. They do nothing while the clock is stopped.
    const FREE_SLOTS: usize = 27;
    rig.fake.inject(When::admin(AdminOpcode::GET_LOG_PAGE).times(27), Fault::Held);
    rig.time.stop();
    std::thread::scope(|scope| {
        // One after the other: a caller that meets another one at the queue would wait, too.
        let mut callers = Vec::new();
        for number in 1..=FREE_SLOTS + 1 {
            callers.push(scope.spawn(|| rig.controller.smart()));
            rig.time.await_waiting(number);
        }
        assert_eq!(rig.fake.taken(0, AdminOpcode::GET_LOG_PAGE.0), FREE_SLOTS as u64);
        assert_eq!(rig.fake.held(), FREE_SLOTS);
        for count in 1..=4 {
            rig.fake.raise(AsyncEvent::TEMPERATURE);
            rig.controller.turn();
            // The fake itself runs the log read, so that it reports the next event.
            rig.fake.run();
            rig.controller.turn();
            assert_eq!(rig.controller.stats().events, count);
            rig.time.pass(2 * SECOND);
        }
        rig.fake.release();
        rig.fake.run();
        for count in 5..=8 {
            rig.controller.turn();
            rig.controller.turn();
            rig.fake.raise(AsyncEvent::TEMPERATURE);
            rig.controller.turn();
            assert_eq!(rig.controller.stats().events, count);
            rig.time.pass(2 * SECOND);
        }
        rig.time.resume();
        for caller in callers {
            caller.join().unwrap().unwrap();
        }
    });
    rig.end();
}

#[test]
fn events_are_asked_for_anew_after_a_reset_and_no_more_than_the_drive_takes() {
    let rig = Rig::new(FakeDriveConfig::default());
    // More events than are logged per period: some requests are still pending when the controller
    // is reset.
    rig.time.pass(10 * SECOND);
    for _ in 0..100 {
        rig.fake.raise(AsyncEvent::TEMPERATURE);
        rig.controller.turn();
    }
    rig.controller.reset();
    assert_eq!(rig.settle(&mut []), ControllerState::Live);
    let before = rig.controller.stats().events;
    rig.time.pass(2 * SECOND);
    for count in 1..=3 {
        rig.fake.raise(AsyncEvent::TEMPERATURE);
        for _ in 0..3 {
            rig.controller.turn();
        }
        assert!(rig.controller.stats().events >= before + count);
    }
    // A request beyond the drive's limit is a violation.
    rig.end();
}

#[test]
fn changes_of_namespaces_are_told_once_their_log_was_read() {
    let rig = Rig::new(FakeDriveConfig::default());
    let device = rig.device(1);
    assert!(device.is_current().unwrap());
    for count in 1..=3 {
        let before = rig.controller.namespace_changes();
        rig.fake.change_namespace(1, |namespace| namespace.nsze.set(namespace.nsze.get() / 2));
        rig.fake.run();
        for _ in 0..3 {
            rig.controller.turn();
        }
        assert_eq!(rig.controller.namespace_changes(), before + 1, "change {count}");
        assert!(device.may_have_changed() && !device.is_current().unwrap());
        assert!(!device.may_have_changed());
    }
    // A drive that is reset loses its pending reports.
    let before = rig.controller.namespace_changes();
    rig.controller.reset();
    assert_eq!(rig.settle(&mut []), ControllerState::Live);
    assert_ne!(rig.controller.namespace_changes(), before);
    assert!(device.may_have_changed());
    rig.fake.set_attached(1, false);
    let error = device.is_current().unwrap_err().to_string();
    assert!(error.contains("namespace 1"), "{error}");
    drop(device);
    rig.end();
}

#[test]
fn a_drive_that_tells_of_events_without_end_is_listened_to_now_and_then() {
    let rig = Rig::new(FakeDriveConfig::default());
    rig.time.pass(10 * SECOND);
    let tell = || {
        for _ in 0..1000 {
            rig.fake.raise(AsyncEvent::TEMPERATURE);
            rig.controller.turn();
        }
        rig.controller.stats().events
    };
    let first = tell();
    assert!((16..=24).contains(&first), "{first}");
    assert_eq!(tell(), first, "no time has passed");
    rig.time.pass(2 * SECOND);
    let second = tell() - first;
    assert!((16..=24).contains(&second), "{second}");
    assert_eq!(rig.controller.state(), ControllerState::Live);
    rig.end();
}

#[test]
fn sanitize_tells_how_far_it_is() {
    let rig = Rig::new(FakeDriveConfig { sanitize_reads: 4, ..FakeDriveConfig::default() });
    let mut queue = rig.queue();
    rig.run(&mut queue, write(0, rig.filled(4096, 9)));
    assert_eq!(
        rig.controller.sanitize(SanitizeAction::BLOCK_ERASE, &mut |_| ()),
        Err(AdminError::InUse(1))
    );
    drop(queue);
    let mut told = Vec::new();
    rig.controller
        .sanitize(SanitizeAction::BLOCK_ERASE, &mut |percent| told.push(percent))
        .unwrap();
    assert!(told.len() >= 2 && told.is_sorted(), "{told:?}");
    assert_eq!(told.last(), Some(&100));
    assert_eq!(rig.fake.read_media(1, 0, 8).unwrap(), vec![0; 4096]);
    rig.fake.reconfigure(|config| config.sanitize_fails = true);
    let error = rig.controller.sanitize(SanitizeAction::CRYPTO_ERASE, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("failed"), "{error}");
    rig.end();
}

#[test]
fn what_a_drive_cannot_do_is_said_before_it_is_asked() {
    let mut config = FakeDriveConfig::default();
    config.identify.oacs = U16::new(0);
    config.identify.sanicap.set(0);
    let rig = Rig::new(config);
    let format = rig.controller.format(1, 0, SecureErase::NONE, &mut |_| ()).unwrap_err();
    assert_eq!(format, AdminError::Unsupported("Format NVM"));
    let sanitize = rig.controller.sanitize(SanitizeAction::OVERWRITE, &mut |_| ()).unwrap_err();
    assert!(matches!(sanitize, AdminError::Unsupported(_)));
    rig.end();
}

#[test]
fn a_reset_on_demand_leaves_data_and_queues() {
    let rig = Rig::new(FakeDriveConfig::default());
    let mut queue = rig.queue();
    for byte in 1..4 {
        rig.run(&mut queue, write(0, rig.filled(4096, byte)));
        rig.controller.reset();
        assert_eq!(rig.settle(&mut [&mut queue]), ControllerState::Live);
        let done = rig.run(&mut queue, read(0, rig.filled(4096, 0)));
        assert_eq!(done.buf.unwrap().as_slice(), [byte; 4096]);
        assert_eq!(rig.run(&mut queue, io(IoKind::Flush, 0, 0)).result, Ok(()));
    }
    assert_eq!(rig.controller.stats().resets, 3);
    drop(queue);
    rig.end();
}
