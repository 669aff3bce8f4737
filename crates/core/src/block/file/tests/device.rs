//! The device on real files: opens, refusals, and correct operation.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::block::{BlockError, BlockOpKind, RejectReason};

const MIB: u64 = 1 << 20;

fn reason(result: Result<FileDevice, OpenError>) -> OpenErrorReason {
    result.expect_err("must not open").reason
}

#[test]
fn reads_what_was_written_on_every_file_system_and_mode() {
    for block_size in [512, 4096] {
        for (_folder, config) in configs(4 * MIB, block_size) {
            let device = FileDevice::open(&config).unwrap();
            assert_eq!((device.info().size, device.info().block_size), (4 * MIB, block_size));
            assert!(device.info().volatile_cache && device.info().write_zeroes);
            let pool = pool();
            let mut queue = device.open_queue(&pool).unwrap();
            let block = block_size as usize;
            let buf = pool.lease(3 * block).unwrap();
            let done = run(&mut *queue, BlockOp::read(1, MIB, buf));
            assert_eq!(done.result, Ok(()));
            assert!(done.buf.unwrap().as_slice().iter().all(|b| *b == 0), "a new file is zero");
            for fua in [false, true] {
                let byte = 0xa0 | u8::from(fua);
                let write = BlockOp::write(2, MIB, filled(&pool, 3 * block, byte), fua);
                assert_eq!(run(&mut *queue, write).result, Ok(()), "{config:?}");
                assert_eq!(run(&mut *queue, BlockOp::flush(3)).result, Ok(()));
                let buf = filled(&pool, 5 * block, 0xff);
                let done = run(&mut *queue, BlockOp::read(4, MIB - u64::from(block_size), buf));
                assert_eq!((done.token, done.result), (4, Ok(())));
                let got = done.buf.unwrap();
                let expect: Vec<u8> = (0..5 * block)
                    .map(|i| if (1..4).contains(&(i / block)) { byte } else { 0 })
                    .collect();
                assert_eq!(got.as_slice(), expect);
            }
            drop(queue);
            assert_eq!(pool.leased(), 0);
            let bytes = fs::read(&config.path).unwrap();
            assert_eq!((bytes.len() as u64, bytes[MIB as usize]), (4 * MIB, 0xa1));
        }
    }
}

#[test]
fn many_operations_at_once_all_come_back_with_their_own_data() {
    for (_folder, mut config) in configs(8 * MIB, 4096) {
        config.queue_depth = 64;
        let device = FileDevice::open(&config).unwrap();
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        let mut done = Vec::new();
        for round in 0..4_u8 {
            for token in 0..256_u64 {
                let byte = (token as u8) ^ round;
                let mut op =
                    BlockOp::write(token, token * 8192, filled(&pool, 8192, byte), token % 9 == 0);
                while let Err(rejected) = queue.submit(op) {
                    assert_eq!(rejected.reason, RejectReason::QueueFull);
                    assert_eq!(queue.in_flight(), 64);
                    op = rejected.op;
                    queue.poll(&mut done);
                }
            }
            done.append(&mut finish(&mut *queue));
            for completed in done.drain(..) {
                assert_eq!(completed.result, Ok(()));
                assert_eq!(completed.buf.unwrap().as_slice()[0], (completed.token as u8) ^ round);
            }
            for chunk in 0..4 {
                for token in chunk * 64..(chunk + 1) * 64 {
                    let buf = filled(&pool, 8192, 0xee);
                    queue.submit(BlockOp::read(token, token * 8192, buf)).unwrap();
                }
                for completed in finish(&mut *queue) {
                    let byte = (completed.token as u8) ^ round;
                    assert!(completed.buf.unwrap().as_slice().iter().all(|b| *b == byte));
                }
            }
        }
    }
}

#[test]
fn a_queue_dropped_in_full_flight_gives_every_buffer_back() {
    for (_folder, config) in configs(8 * MIB, 4096) {
        let device = FileDevice::open(&config).unwrap();
        let pool = pool();
        for polls in 0..3 {
            let mut queue = device.open_queue(&pool).unwrap();
            for token in 0..64 {
                let buf = filled(&pool, 65536, 7);
                let op = match token % 3 {
                    0 => BlockOp::write(token, token * 65536, buf, true),
                    1 => BlockOp::read(token, token * 65536, buf),
                    _ => BlockOp::write_zeroes(token, token * 65536, 65536, true, true),
                };
                queue.submit(op).unwrap();
            }
            (0..polls).for_each(|_| queue.poll(&mut Vec::new()));
            drop(queue);
            assert_eq!(pool.leased(), 0);
        }
    }
}

#[test]
fn nothing_is_written_to_buffers_that_a_dropped_queue_gave_back() {
    const READS: u64 = 16;
    for (_folder, config) in configs(READS * MIB, 4096) {
        fs::write(&config.path, vec![0xaa; (READS * MIB) as usize]).unwrap();
        let device = FileDevice::open(&config).unwrap();
        let pool = pool();
        for _ in 0..4 {
            let mut queue = device.open_queue(&pool).unwrap();
            for token in 0..READS {
                let buf = filled(&pool, MIB as usize, 7);
                queue.submit(BlockOp::read(token, token * MIB, buf)).unwrap();
            }
            // Most of them are at the drive now.
            queue.poll(&mut Vec::new());
            drop(queue);
            assert_eq!(pool.leased(), 0);
            let again: Vec<_> = (0..READS).map(|_| filled(&pool, MIB as usize, 0x55)).collect();
            // Any remaining work of the drive precedes this.
            let mut queue = device.open_queue(&pool).unwrap();
            for token in 0..READS {
                let read = BlockOp::read(token, token * MIB, pool.lease(MIB as usize).unwrap());
                let buf = run(&mut *queue, read).buf.unwrap();
                assert!(buf.as_slice().iter().all(|byte| *byte == 0xaa));
            }
            for buf in &again {
                assert!(buf.as_slice().iter().all(|byte| *byte == 0x55), "written to afterwards");
            }
        }
    }
}

#[test]
fn write_zeroes_and_deallocate_read_as_zero_and_free() {
    for (_folder, config) in configs(4 * MIB, 4096) {
        let device = FileDevice::open(&config).unwrap();
        assert!(device.info().deallocate, "the usual file systems punch holes");
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        let read = |queue: &mut dyn BlockQueue, offset| {
            let done = run(queue, BlockOp::read(9, offset, pool.lease(4096).unwrap()));
            done.result.unwrap();
            done.buf.unwrap().as_slice()[0]
        };
        let zeroing = [
            BlockOp::write_zeroes(1, MIB, 2 * MIB, false, false),
            BlockOp::write_zeroes(2, MIB, 2 * MIB, true, true),
            BlockOp::deallocate(3, MIB, 2 * MIB),
        ];
        for op in zeroing {
            for offset in (0..4 * MIB).step_by(MIB as usize) {
                let write = BlockOp::write(0, offset, filled(&pool, MIB as usize, 7), true);
                assert_eq!(run(&mut *queue, write).result, Ok(()));
            }
            let before = fs::metadata(&config.path).unwrap().blocks();
            let frees = op.kind != BlockOpKind::WriteZeroes { fua: false, deallocate: false };
            assert_eq!(run(&mut *queue, op).result, Ok(()));
            let offsets = [0, MIB, 2 * MIB, 3 * MIB, 3 * MIB - 4096];
            let found = offsets.map(|offset| read(&mut *queue, offset));
            assert_eq!(found, [7, 0, 0, 7, 0]);
            assert_eq!(run(&mut *queue, BlockOp::flush(5)).result, Ok(()));
            let after = fs::metadata(&config.path).unwrap().blocks();
            assert!(!frees || after + 2 * MIB / 512 <= before, "{before} blocks, then {after}");
        }
    }
}

#[test]
fn operations_that_make_no_sense_are_refused_with_the_right_error() {
    for (_folder, mut config) in configs(MIB, 4096) {
        let device = FileDevice::open(&config).unwrap();
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        let cases = [
            (
                BlockOp::read(0, MIB, pool.lease(4096).unwrap()),
                BlockError::OutOfRange { offset: MIB, len: 4096 },
            ),
            (
                BlockOp::read(0, u64::MAX, pool.lease(4096).unwrap()),
                BlockError::OutOfRange { offset: u64::MAX, len: 4096 },
            ),
            (
                BlockOp::read(0, 512, pool.lease(4096).unwrap()),
                BlockError::Misaligned { offset: 512, len: 4096 },
            ),
            (
                BlockOp::write(0, 0, pool.lease(100).unwrap(), false),
                BlockError::Misaligned { offset: 0, len: 100 },
            ),
            (
                BlockOp { len: 8192, ..BlockOp::read(0, 0, pool.lease(4096).unwrap()) },
                BlockError::Misaligned { offset: 0, len: 8192 },
            ),
            (BlockOp::deallocate(0, 4096, MIB), BlockError::OutOfRange { offset: 4096, len: MIB }),
        ];
        for (op, error) in cases {
            assert_eq!(run(&mut *queue, op).result, Err(error));
        }
        drop((queue, device));
        config.read_only = true;
        let device = FileDevice::open(&config).unwrap();
        let mut queue = device.open_queue(&pool).unwrap();
        let write = BlockOp::write(0, 0, pool.lease(4096).unwrap(), false);
        assert_eq!(run(&mut *queue, write).result, Err(BlockError::ReadOnly));
        assert_eq!(
            run(&mut *queue, BlockOp::deallocate(0, 0, 4096)).result,
            Err(BlockError::ReadOnly)
        );
        assert_eq!(run(&mut *queue, BlockOp::read(0, 0, pool.lease(4096).unwrap())).result, Ok(()));
        drop(queue);
        assert_eq!(pool.leased(), 0);
    }
}

#[test]
fn what_cannot_be_written_to_is_write_protected() {
    // A regular file that even root cannot write to.
    let path = "/sys/devices/system/cpu/online";
    let config = FileConfig::new("disk", path, 4096);
    config.check().unwrap();
    let device = FileDevice::open(&config).unwrap();
    assert!(device.info().read_only && !device.info().deallocate);
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let write = BlockOp::write(0, 0, pool.lease(4096).unwrap(), false);
    assert_eq!(run(&mut *queue, write).result, Err(BlockError::ReadOnly));
    // Other devices may read it, too.
    FileDevice::open(&config).unwrap();
    // A read-only file is not created with the configured size.
    let sized = FileConfig { size: Some(MIB), ..config };
    assert!(matches!(reason(FileDevice::open(&sized)), OpenErrorReason::Size { .. }));
    assert!(matches!(sized.check().unwrap_err().reason, OpenErrorReason::Size { .. }));
    drop(queue);
    // Writable files are not read-only.
    for (_folder, config) in configs(MIB, 4096) {
        assert!(!FileDevice::open(&config).unwrap().info().read_only);
    }
}

#[test]
fn a_file_that_shrank_under_us_is_an_error_and_not_old_memory() {
    for (_folder, config) in configs(MIB, 4096) {
        let device = FileDevice::open(&config).unwrap();
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        fs::OpenOptions::new().write(true).open(&config.path).unwrap().set_len(4096 * 3).unwrap();
        let done = run(&mut *queue, BlockOp::read(0, 4096 * 2, pool.lease(4096 * 2).unwrap()));
        assert_eq!(done.result, Err(BlockError::Media { errno: libc::ENODATA }));
        let done = run(&mut *queue, BlockOp::read(0, 4096 * 2, pool.lease(4096).unwrap()));
        assert_eq!(done.result, Ok(()));
    }
}

#[test]
fn a_second_server_is_kept_out_until_the_first_is_gone() {
    for (_folder, config) in configs(MIB, 512) {
        let first = FileDevice::open(&config).unwrap();
        let error = FileDevice::open(&config).unwrap_err();
        assert!(matches!(error.reason, OpenErrorReason::InUse));
        assert!(error.to_string().contains("in use"), "{error}");
        assert!(error.to_string().starts_with(config.path.to_str().unwrap()));
        let reader = FileConfig { read_only: true, ..config.clone() };
        assert!(matches!(reason(FileDevice::open(&reader)), OpenErrorReason::InUse));
        config.check().unwrap();
        drop(first);
        let readers = [FileDevice::open(&reader).unwrap(), FileDevice::open(&reader).unwrap()];
        assert!(matches!(reason(FileDevice::open(&config)), OpenErrorReason::InUse));
        drop(readers);
        FileDevice::open(&config).unwrap();
    }
}

#[test]
fn a_file_is_taken_over_from_a_device_that_ends_and_from_nobody_else() {
    for (_folder, config) in configs(MIB, 512) {
        let first = FileDevice::open(&config).unwrap();
        let other = FileConfig { name: "other".into(), block_size: 4096, ..config.clone() };
        let mut claims = vec![first.claim()];
        let second = FileDevice::take_over(&other, &mut claims).unwrap();
        assert!(claims.is_empty());
        // Each claim works once, and for its own file only.
        assert!(matches!(
            reason(FileDevice::take_over(&other, &mut claims)),
            OpenErrorReason::InUse
        ));
        let elsewhere = configs(MIB, 512).remove(0);
        claims.push(FileDevice::open(&elsewhere.1).unwrap().claim());
        assert!(matches!(
            reason(FileDevice::take_over(&other, &mut claims)),
            OpenErrorReason::InUse
        ));
        assert_eq!(claims.len(), 1);
        drop(first);
        assert!(
            matches!(reason(FileDevice::open(&config)), OpenErrorReason::InUse),
            "still claimed"
        );
        drop(second);
        // A read claim does not become a write claim while other devices read.
        let reader = FileConfig { read_only: true, ..config.clone() };
        let [one, two] = [FileDevice::open(&reader).unwrap(), FileDevice::open(&reader).unwrap()];
        let taken = FileDevice::take_over(&config, &mut vec![one.claim()]);
        assert!(matches!(reason(taken), OpenErrorReason::InUse));
        drop(two);
        FileDevice::open(&reader).unwrap();
        let writer = FileDevice::take_over(&config, &mut vec![one.claim()]).unwrap();
        assert!(!writer.info().read_only);
        drop(one);
        assert!(matches!(reason(FileDevice::open(&reader)), OpenErrorReason::InUse));
    }
}

#[test]
fn sizes_are_made_checked_and_explained() {
    for folder in folders() {
        let path = folder.path().join("disk");
        let plain = FileConfig::new("disk", &path, 4096);
        let sized = |size| FileConfig { size: Some(size), ..plain.clone() };
        assert!(matches!(plain.check().unwrap_err().reason, OpenErrorReason::Missing));
        assert!(matches!(reason(FileDevice::open(&plain)), OpenErrorReason::Missing));
        let reader = FileConfig { read_only: true, ..sized(MIB) };
        assert!(matches!(reader.check().unwrap_err().reason, OpenErrorReason::Missing));
        assert!(matches!(reason(FileDevice::open(&reader)), OpenErrorReason::Missing));
        sized(MIB).check().unwrap();
        assert!(!path.exists(), "a check creates nothing");
        assert!(matches!(sized(100).check().unwrap_err().reason, OpenErrorReason::Empty { .. }));

        // The size is no multiple of the block size: the rest is not served.
        let device = FileDevice::open(&sized((1 << 30) + 100)).unwrap();
        assert_eq!(device.info().size, 1 << 30);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), ((1 << 30) + 100, 0o600));
        assert!(meta.blocks() < 64, "a new file is sparse");
        drop(device);
        assert_eq!(FileDevice::open(&plain).unwrap().info().size, 1 << 30);
        for size in [1 << 20, 1 << 31] {
            assert!(matches!(reason(FileDevice::open(&sized(size))), OpenErrorReason::Size { .. }));
            let error = sized(size).check().unwrap_err().to_string();
            assert!(
                error.contains(&size.to_string()) && error.contains("omit \"size\""),
                "{error}"
            );
        }
        fs::write(&path, [1; 100]).unwrap();
        assert!(matches!(reason(FileDevice::open(&plain)), OpenErrorReason::Empty { .. }));
        fs::write(&path, []).unwrap();
        assert_eq!(FileDevice::open(&sized(MIB)).unwrap().info().size, MIB);
    }
}

#[test]
fn what_is_no_disk_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| reason(FileDevice::open(&FileConfig::new("d", path, 512)));
    assert!(matches!(open(folder.path()), OpenErrorReason::FileKind("a directory")));
    assert!(matches!(open("/dev/zero".as_ref()), OpenErrorReason::FileKind("a character device")));
    let missing =
        FileConfig { size: Some(MIB), ..FileConfig::new("d", "/no/such/folder/disk", 512) };
    assert!(matches!(missing.check().unwrap_err().reason, OpenErrorReason::System { .. }));
    assert!(matches!(reason(FileDevice::open(&missing)), OpenErrorReason::System { .. }));
    let path = folder.path().join("disk");
    fs::write(&path, vec![0; 8192]).unwrap();
    for block_size in [0, 1, 1024, 8192] {
        let config = FileConfig::new("d", &path, block_size);
        assert!(matches!(config.check().unwrap_err().reason, OpenErrorReason::BlockSize(_)));
        assert!(matches!(reason(FileDevice::open(&config)), OpenErrorReason::BlockSize(_)));
    }
}

#[test]
fn direct_io_is_used_where_it_goes_and_can_be_required() {
    for folder in folders() {
        let path = folder.path().join("disk");
        let base = FileConfig { size: Some(MIB), ..FileConfig::new("disk", path, 4096) };
        let auto = FileDevice::open(&base).unwrap().mode.direct;
        let never = FileConfig { direct: Direct::Never, ..base.clone() };
        assert!(!FileDevice::open(&never).unwrap().mode.direct);
        let required = FileConfig { direct: Direct::Required, ..base };
        match FileDevice::open(&required) {
            Ok(device) => assert!(auto && device.mode.direct),
            Err(error) => assert!(!auto && matches!(error.reason, OpenErrorReason::NotDirect(_))),
        }
    }
}

#[test]
fn a_polled_device_reads_or_says_that_it_cannot_be_polled() {
    for (_folder, config) in configs(MIB, 4096) {
        drop(FileDevice::open(&config).unwrap());
        let device = FileDevice::open(&config).unwrap().polled();
        assert!(!device.info().write_zeroes);
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        assert!(queue.event_fd().is_none(), "nothing tells of completions");
        for token in 0..4 {
            queue.submit(BlockOp::read(token, 0, pool.lease(4096).unwrap())).unwrap();
        }
        assert_eq!((queue.in_flight(), queue.next_due()), (4, Some(0)));
        let done = finish(&mut *queue);
        assert_eq!(done.len(), 4);
        for completed in &done {
            assert!(matches!(completed.result, Ok(()) | Err(BlockError::Unsupported)), "{done:?}");
        }
        assert_eq!(queue.next_due(), None);
        // Dropped with reads in flight.
        for token in 0..4 {
            queue.submit(BlockOp::read(token, 0, pool.lease(4096).unwrap())).unwrap();
        }
        drop((queue, done));
        assert_eq!(pool.leased(), 0);
    }
}
