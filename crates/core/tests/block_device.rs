//! The `file` device on block devices: loop devices over files, where the system has them and we
//! may make them.

#![expect(clippy::unwrap_used, reason = "a test: what cannot be is a panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_core::block::{
    BlockDevice, BlockError, BlockOp, BlockQueue, Completed, FileConfig, FileDevice,
    OpenErrorReason,
};
use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};
use rustix::event::{PollFd, PollFlags, poll};

const SIZE: u64 = 8 << 20;

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where there are none: in most containers, and without root.
    fn attach(image: &Path, sector: u32) -> Option<Self> {
        Self::attach_with(image, &["--sector-size", &sector.to_string()])
    }

    fn attach_with(image: &Path, options: &[&str]) -> Option<Self> {
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(image).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status().unwrap();
        assert!(detached.success());
    }
}

fn run(queue: &mut dyn BlockQueue, op: BlockOp) -> Completed {
    queue.submit(op).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done);
    while done.is_empty() {
        let fd = queue.event_fd().unwrap();
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
        queue.poll(&mut done);
    }
    done.remove(0)
}

fn serve(device: &Loop, image: &Path, block_size: u32) {
    let config = FileConfig::new("disk", &device.0, block_size);
    config.check().unwrap();
    let disk = FileDevice::open(&config).unwrap();
    let info = disk.info();
    assert_eq!((info.size, info.block_size), (SIZE, block_size));
    assert!(info.volatile_cache && info.write_zeroes);
    let second = FileDevice::open(&config).unwrap_err();
    assert!(matches!(second.reason, OpenErrorReason::InUse), "{second}");

    let pool = CorePool::new(&ChunkPool::new(PoolConfig::default()).unwrap());
    let mut queue = disk.open_queue(&pool).unwrap();
    let at = 1 << 20;
    let mut buf = pool.lease(64 << 10).unwrap();
    buf.as_mut_slice().fill(7);
    assert_eq!(run(&mut *queue, BlockOp::write(1, at, buf, true)).result, Ok(()));
    assert_eq!(run(&mut *queue, BlockOp::flush(2)).result, Ok(()));
    let block = u64::from(block_size);
    let zeroing = [
        BlockOp::write_zeroes(3, at, block, true, false),
        BlockOp::write_zeroes(4, at + 2 * block, block, false, true),
        BlockOp::deallocate(5, at + 4 * block, block),
    ];
    let frees = info.deallocate_reads_zero;
    for op in zeroing {
        assert_eq!(run(&mut *queue, op).result, Ok(()));
    }
    let done = run(&mut *queue, BlockOp::read(6, at, pool.lease(64 << 10).unwrap()));
    assert_eq!(done.result, Ok(()));
    let bytes = done.buf.unwrap();
    let blocks: Vec<u8> =
        bytes.as_slice().chunks(block_size as usize).take(6).map(|block| block[0]).collect();
    assert_eq!(blocks[..4], [0, 7, 0, 7]);
    assert!(!frees || blocks[4] == 0);
    assert_eq!(run(&mut *queue, BlockOp::flush(7)).result, Ok(()));
    drop((bytes, queue, disk));
    assert_eq!(pool.leased(), 0);
    let image = std::fs::read(image).unwrap();
    assert_eq!((image[(1 << 20) + block_size as usize], image[1 << 20]), (7, 0));
}

#[test]
fn block_devices_are_served_and_kept_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = 0;
    for (sector, block_size) in [(512, 512), (512, 4096), (4096, 4096)] {
        let image = folder.path().join(format!("{sector}-{block_size}"));
        std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
        let Some(device) = Loop::attach(&image, sector) else { continue };
        if sector == 4096 {
            let error = FileDevice::open(&FileConfig::new("disk", &device.0, 512)).unwrap_err();
            assert!(matches!(
                error.reason,
                OpenErrorReason::Sector { sector: 4096, block_size: 512 }
            ));
            assert!(error.to_string().ends_with("choose 4096"), "{error}");
        }
        let large = FileConfig {
            size: Some(SIZE + 4096),
            ..FileConfig::new("disk", &device.0, block_size)
        };
        let error = FileDevice::open(&large).unwrap_err();
        assert!(matches!(error.reason, OpenErrorReason::Size { .. }), "{error}");
        serve(&device, &image, block_size);
        served += 1;
    }
    println!("block devices served: {served} of 3");
}

#[test]
fn a_block_device_that_the_kernel_has_as_read_only_is_write_protected() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    let Some(device) = Loop::attach_with(&image, &["--read-only"]) else { return };
    let config = FileConfig::new("disk", &device.0, 512);
    config.check().unwrap();
    let disk = FileDevice::open(&config).unwrap();
    let info = disk.info();
    assert!(info.read_only && !info.deallocate);
    assert_eq!(info.medium, None, "a loop device has no identity");
    let pool = CorePool::new(&ChunkPool::new(PoolConfig::default()).unwrap());
    let mut queue = disk.open_queue(&pool).unwrap();
    let read = BlockOp::read(1, 0, pool.lease(4096).unwrap());
    assert_eq!(run(&mut *queue, read).result, Ok(()));
    let write = BlockOp::write(2, 0, pool.lease(4096).unwrap(), true);
    assert_eq!(run(&mut *queue, write).result, Err(BlockError::ReadOnly));
    let second = FileDevice::open(&config).unwrap_err();
    assert!(matches!(second.reason, OpenErrorReason::InUse), "{second}");
}
