//! Operations: data, splitting, limits, full queues.

use nvmeof_core::block::{BlockDevice, BlockError, BlockOp, Geometry, RejectReason};
use nvmeof_core::nvme_driver::{ControllerOptions, IoKind};
use nvmeof_fake_drive::{FakeDriveConfig, Mode, NamespaceConfig};
use nvmeof_random::SplitMix64;
use nvmeof_wire::identify::{nsfeat, oacs, sgls};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{U16, U32};

use crate::rig::{Rig, io, options, read, write};

/// Returns a drive with a boundary of 64 KiB, modified by `change`.
fn config(change: impl FnOnce(&mut FakeDriveConfig)) -> FakeDriveConfig {
    let mut config = FakeDriveConfig::default();
    config.namespaces[0].identify.noiob = U16::new(128);
    change(&mut config);
    config
}

/// Returns drives with and without SGLs and shadow doorbells.
fn all_kinds() -> Vec<FakeDriveConfig> {
    let sgl = |config: &mut FakeDriveConfig| config.identify.sgls = U32::new(sgls::SUPPORTED);
    let shadow = |config: &mut FakeDriveConfig| {
        config.identify.oacs = U16::new(oacs::FORMAT | oacs::DOORBELL_BUFFER);
    };
    let mut both = config(sgl);
    shadow(&mut both);
    vec![config(|_| ()), config(sgl), config(shadow), both]
}

#[test]
fn what_was_written_is_read_in_any_size_at_any_offset() {
    for (kind, config) in all_kinds().into_iter().enumerate() {
        let rig = Rig::new(config);
        let mut queue = rig.queue();
        let mut dice = SplitMix64::new(kind as u64);
        for blocks in (1..40).chain([255, 256, 257, 1000, 2048, 4096]) {
            let len = blocks * 512;
            let offset = dice.within(0..16 << 20 >> 9) * 512 % ((16 << 20) - len as u64);
            let offset = offset - offset % 512;
            let mut data = rig.pool.lease(len).unwrap();
            data.as_mut_slice()
                .iter_mut()
                .for_each(|byte| *byte = dice.within(0..256).to_le_bytes()[0]);
            let expected = data.as_slice().to_vec();
            assert_eq!(rig.run(&mut queue, write(offset, data)).result, Ok(()));
            let media = rig.fake.read_media(1, offset / 512, u32::try_from(blocks).unwrap());
            assert!(media.unwrap() == expected, "{blocks} blocks at {offset}");
            let done = rig.run(&mut queue, read(offset, rig.filled(len, 0)));
            assert_eq!((done.token, done.result), (offset, Ok(())));
            assert!(done.buf.unwrap().as_slice() == expected, "{blocks} blocks at {offset}");
        }
        drop(queue);
        rig.end();
    }
}

#[test]
fn a_part_of_a_buffer_is_data_like_any_other() {
    let rig = Rig::new(config(|_| ()));
    let mut queue = rig.queue();
    let mut cut = nvmeof_core::dma::SplitBuffer::new(rig.filled(256 << 10, 0));
    let parts: Vec<_> =
        [512, 1536, 100 << 10, 8192, 3584].into_iter().map(|len| cut.part(len).unwrap()).collect();
    let mut offset = 0;
    for (byte, mut part) in (1_u8..).zip(parts) {
        part.as_mut_slice().fill(byte);
        let len = part.len();
        let done = rig.run(&mut queue, write(offset, part));
        assert_eq!(done.result, Ok(()));
        let done = rig.run(&mut queue, read(offset, done.buf.unwrap()));
        assert!(done.buf.unwrap().as_slice().iter().all(|b| *b == byte), "part of {len}");
        offset += len as u64;
    }
    drop((cut, queue));
    rig.end();
}

#[test]
fn compare_verify_zeroes_deallocate_and_flush() {
    let rig = Rig::new(config(|config| config.namespaces[0].identify.dlfeat = 0b1001));
    let mut queue = rig.queue();
    assert_eq!(rig.run(&mut queue, write(0, rig.filled(1 << 20, 7))).result, Ok(()));
    let compare = |byte| {
        let buf = Some(rig.filled(300 << 10, byte));
        nvmeof_core::nvme_driver::Io { buf, ..io(IoKind::Compare, 4096, 300 << 10) }
    };
    assert_eq!(rig.run(&mut queue, compare(7)).result, Ok(()));
    let differs = rig.run(&mut queue, compare(8));
    assert_eq!(differs.result, Err(BlockError::Media { errno: libc::EILSEQ }));
    drop(differs);
    assert_eq!(rig.run(&mut queue, io(IoKind::Verify, 0, 16 << 20)).result, Ok(()));
    for deallocate in [false, true] {
        let zeroes = IoKind::WriteZeroes { fua: true, deallocate };
        assert_eq!(rig.run(&mut queue, io(zeroes, 8192, 4096)).result, Ok(()));
        assert_eq!(rig.fake.read_media(1, 16, 8).unwrap(), vec![0; 4096]);
    }
    assert_eq!(rig.run(&mut queue, io(IoKind::Deallocate, 65536, 65536)).result, Ok(()));
    assert_eq!(rig.fake.read_media(1, 128, 128).unwrap(), vec![0; 65536]);
    assert_eq!(rig.fake.read_media(1, 127, 1).unwrap(), vec![7; 512]);
    assert_eq!(rig.run(&mut queue, io(IoKind::Flush, 0, 0)).result, Ok(()));
    assert_eq!(rig.fake.taken(1, IoOpcode::FLUSH.0), 1);
    drop(queue);
    rig.end();
}

#[test]
fn a_drive_reports_its_geometry_or_only_its_boundary() {
    let sizes = |config: &mut FakeDriveConfig| {
        let namespace = &mut config.namespaces[0].identify;
        namespace.npwg = U16::new(31);
        namespace.npda = U16::new(7);
        namespace.nows = U16::new(255);
    };
    let rig = Rig::new(config(sizes));
    let boundary = Some(64 << 10);
    let geometry = Geometry { boundary, ..Geometry::default() };
    assert_eq!(rig.device(1).info().geometry, geometry, "the other fields are not valid");
    rig.end();
    let rig = Rig::new(config(|config| {
        sizes(config);
        config.namespaces[0].identify.nsfeat = nsfeat::OPTIMAL_IO;
    }));
    let geometry = Geometry {
        write_granularity: Some(16 << 10),
        deallocate_alignment: Some(4 << 10),
        optimal_write: Some(128 << 10),
        ..geometry
    };
    assert_eq!(rig.device(1).info().geometry, geometry);
    rig.end();
}

#[test]
fn what_a_drive_cannot_do_is_not_asked_of_it() {
    let rig = Rig::new(config(|config| {
        config.identify.oncs = U16::new(0);
        config.identify.vwc = 0;
    }));
    let info = rig.device(1).info().clone();
    assert!(!info.write_zeroes && !info.deallocate && !info.volatile_cache);
    let mut queue = rig.queue();
    let zeroes = IoKind::WriteZeroes { fua: false, deallocate: false };
    for kind in [zeroes, IoKind::Verify, IoKind::Compare] {
        let result = rig.run(&mut queue, io(kind, 0, 512)).result;
        assert_eq!(result, Err(BlockError::Unsupported), "{kind:?}");
    }
    // A deallocation is advisory, and a flush has no effect without a cache.
    for kind in [IoKind::Deallocate, IoKind::Flush] {
        assert_eq!(rig.run(&mut queue, io(kind, 0, 512)).result, Ok(()));
    }
    assert_eq!(rig.fake.taken(1, IoOpcode::FLUSH.0), 0);
    drop(queue);
    rig.end();
}

#[test]
fn operations_that_make_no_sense_end_with_an_error() {
    let rig = Rig::new(config(|_| ()));
    let mut queue = rig.queue();
    let size = 16 << 20;
    let out = |offset, len| Err(BlockError::OutOfRange { offset, len });
    let odd = |offset, len| Err(BlockError::Misaligned { offset, len });
    let reading = |offset, len: usize| read(offset, rig.filled(len, 0));
    for (io, expected) in [
        (reading(size, 512), out(size, 512)),
        (reading(u64::MAX - 511, 512), out(u64::MAX - 511, 512)),
        (reading(256, 512), odd(256, 512)),
        (reading(0, 100), odd(0, 100)),
        (io(IoKind::Read, 0, 512), odd(0, 512)),
        (nvmeof_core::nvme_driver::Io { len: 1024, ..reading(0, 512) }, odd(0, 1024)),
        (io(IoKind::Verify, 0, 0), Ok(())),
    ] {
        assert_eq!(rig.run(&mut queue, io).result, expected);
    }
    assert!(queue.in_flight() == 0);
    drop(queue);
    rig.end();
}

#[test]
fn a_write_protected_namespace_is_read_only() {
    let rig = Rig::new(config(|config| config.namespaces[0].identify.nsattr = 1));
    assert!(rig.device(1).info().read_only);
    let mut queue = rig.queue();
    let result = rig.run(&mut queue, write(0, rig.filled(512, 0))).result;
    assert_eq!(result, Err(BlockError::ReadOnly));
    assert_eq!(rig.run(&mut queue, read(0, rig.filled(512, 0))).result, Ok(()));
    drop(queue);
    rig.end();
}

#[test]
fn an_operation_of_more_commands_than_the_queue_holds_ends() {
    let mut namespace = NamespaceConfig::new(1, 4096, 9);
    namespace.identify.noiob = U16::new(1);
    let one = FakeDriveConfig {
        namespaces: vec![namespace],
        mode: Mode::Manual,
        ..FakeDriveConfig::default()
    };
    let fake_runs = |rig: &Rig| {
        rig.fake.run();
    };
    // Opened in automatic mode.
    let rig = Rig::with(
        FakeDriveConfig { mode: Mode::Automatic, ..one },
        ControllerOptions { queue_depth: 4, ..options() },
    );
    let mut queue = rig.queue();
    rig.fake.set_mode(Mode::Manual);
    // 2048 commands of one block each, on three slots, and two more operations.
    let len = 1 << 20;
    queue.submit(write(0, rig.filled(len, 3))).unwrap();
    queue.submit(read(len as u64, rig.filled(len, 1))).unwrap();
    queue.submit(io(IoKind::Flush, 0, 0)).unwrap();
    let rejected = queue.submit(io(IoKind::Flush, 0, 0)).unwrap_err();
    assert_eq!(rejected.kind, IoKind::Flush);
    let mut done = Vec::new();
    let mut polls = 0;
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
        fake_runs(&rig);
        polls += 1;
        assert!(polls < 5000);
    }
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.result == Ok(())));
    // The operations take turns: the flush did not wait for 2000 commands.
    assert_eq!(done[0].buf.as_ref().map(|_| ()), None);
    assert_eq!(rig.fake.read_media(1, 0, 2048).unwrap(), vec![3; len]);
    drop((done, queue));
    rig.fake.set_mode(Mode::Automatic);
    rig.end();
}

#[test]
fn one_doorbell_a_poll_however_many_commands() {
    let rig = Rig::new(config(|_| ()));
    let mut queue = rig.queue();
    queue.poll(&mut Vec::new());
    let before = rig.fake.doorbells();
    for block in 0..20 {
        queue.submit(read(block * 512, rig.filled(512, 0))).unwrap();
    }
    let mut done = Vec::new();
    queue.poll(&mut done);
    assert_eq!(rig.fake.doorbells() - before, 1);
    queue.poll(&mut done);
    assert_eq!(done.len(), 20);
    assert_eq!(rig.fake.doorbells() - before, 2, "one more for all completions");
    drop((done, queue));
    rig.end();
}

#[test]
fn shadow_doorbells_spare_real_ones() {
    let mut config = all_kinds().remove(2);
    config.mode = Mode::Automatic;
    let rig = Rig::new(config);
    let mut queue = rig.queue();
    let mut done = Vec::new();
    queue.submit(read(0, rig.filled(512, 0))).unwrap();
    queue.poll(&mut done);
    done.append(&mut rig.finish(&mut queue));
    rig.fake.set_mode(Mode::Manual);
    let before = rig.fake.doorbells();
    for block in 0..200 {
        queue.submit(read(block * 512, rig.filled(512, 0))).unwrap();
        queue.poll(&mut done);
        // The controller works all the time, and polls the shadows.
        rig.fake.step();
        queue.poll(&mut done);
    }
    let written = rig.fake.doorbells() - before;
    assert!(written < 400, "{written} doorbells for 200 commands");
    assert_eq!(done.len(), 201);
    drop((done, queue));
    rig.fake.set_mode(Mode::Automatic);
    rig.end();
}

#[test]
fn a_full_queue_hands_the_operation_back() {
    let rig = Rig::new(config(|_| ()));
    let device = rig.device(1);
    let mut queue = device.open_queue(&rig.pool).unwrap();
    queue.poll(&mut Vec::new());
    rig.fake.set_mode(Mode::Manual);
    for token in 0..31 {
        queue.submit(BlockOp::read(token, 0, rig.filled(512, 0))).unwrap();
    }
    let rejected = queue.submit(BlockOp::read(99, 512, rig.filled(1024, 5))).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::QueueFull);
    assert_eq!((rejected.op.token, rejected.op.offset, rejected.op.len), (99, 512, 1024));
    assert_eq!(rejected.op.buf.as_ref().unwrap().as_slice(), [5; 1024]);
    drop(rejected);
    assert_eq!(queue.in_flight(), 31);
    rig.fake.set_mode(Mode::Automatic);
    rig.fake.run();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    assert_eq!(done.len(), 31);
    drop((done, queue, device));
    rig.end();
}

#[test]
fn a_sleeper_is_told_and_a_quiet_queue_lets_it_sleep() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let rig = Rig::new(config(|_| ()));
    let mut queue = rig.queue();
    let readable = |queue: &nvmeof_core::nvme_driver::IoQueue| {
        let fd = queue.event_fd().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    let mut done = Vec::new();
    for _ in 0..100 {
        queue.poll(&mut done);
    }
    assert!(!readable(&queue));
    queue.submit(read(0, rig.filled(512, 0))).unwrap();
    queue.poll(&mut done);
    assert!(readable(&queue) && done.is_empty());
    for _ in 0..100 {
        queue.poll(&mut done);
    }
    assert!(!readable(&queue) && done.len() == 1);
    drop((done, queue));
    rig.end();
}

#[test]
fn a_queue_that_is_dropped_waits_for_what_is_in_flight() {
    let rig = Rig::new(config(|_| ()));
    let mut queue = rig.queue();
    for block in 0..10 {
        queue.submit(write(block * 1024, rig.filled(1024, 1))).unwrap();
    }
    queue.poll(&mut Vec::new());
    drop(queue);
    assert_eq!(rig.pool.leased(), 0);
    // The next queue reuses the memory, from its last position.
    let mut queue = rig.queue();
    for _ in 0..100 {
        assert_eq!(rig.run(&mut queue, read(0, rig.filled(512, 0))).result, Ok(()));
    }
    drop(queue);
    rig.end();
}

#[test]
fn buffers_of_another_pool_are_refused() {
    let rig = Rig::new(config(|_| ()));
    let other = nvmeof_core::dma::CorePool::new(&crate::rig::shared_pool());
    assert_eq!(rig.device(1).open_driver_queue(&other).unwrap_err(), BlockError::NoMemory);
    rig.end();
}

#[test]
fn two_namespaces_share_a_controller_and_memory_is_mapped_once() {
    let namespaces = vec![NamespaceConfig::new(1, 4096, 9), NamespaceConfig::new(2, 1024, 12)];
    let rig = Rig::new(FakeDriveConfig { namespaces, ..FakeDriveConfig::default() });
    let before = rig.fake.mappings().len();
    let (one, two) = (rig.device(1), rig.device(2));
    let mut first = one.open_driver_queue(&rig.pool).unwrap();
    let mut second = two.open_driver_queue(&rig.pool).unwrap();
    assert_eq!(two.info().block_size, 4096);
    assert_eq!(rig.run(&mut first, write(0, rig.filled(8192, 1))).result, Ok(()));
    assert_eq!(rig.run(&mut second, write(0, rig.filled(8192, 2))).result, Ok(()));
    assert_eq!(rig.fake.mappings().len(), before + 1, "one chunk of buffers");
    assert_eq!(rig.fake.read_media(1, 0, 1).unwrap(), [1; 512]);
    assert_eq!(rig.fake.read_media(2, 0, 1).unwrap(), [2; 4096]);
    drop((first, second, one, two));
    rig.end();
}
