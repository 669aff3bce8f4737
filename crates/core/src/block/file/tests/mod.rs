#![expect(clippy::cast_possible_truncation, reason = "sizes and tokens in tests are small")]

mod aio;
mod device;
mod durability;
mod log;
mod power_cut;
mod resize;
mod ring;
mod sim;

use std::sync::Arc;

use super::*;
use crate::block::{BlockOp, Completed};
use crate::dma::{Buffer, ChunkPool, CorePool, PoolConfig};

/// Returns a separate pool for a test.
fn pool() -> CorePool {
    let config = PoolConfig { cap: 32 << 20, reserve: 0, ..PoolConfig::default() };
    CorePool::new(&ChunkPool::new(config).unwrap())
}

/// Returns a buffer filled with one byte.
fn filled(pool: &CorePool, len: usize, byte: u8) -> Buffer {
    let mut buffer = pool.lease(len).unwrap();
    buffer.as_mut_slice().fill(byte);
    buffer
}

/// Sleeps on the queue's descriptor, as a reactor does, until all operations have completed.
fn finish(queue: &mut dyn BlockQueue) -> Vec<Completed> {
    let mut done = Vec::new();
    queue.poll(&mut done);
    while queue.in_flight() > 0 {
        if let Some(fd) = queue.event_fd() {
            wait_readable(fd);
        }
        queue.poll(&mut done);
    }
    done
}

fn wait_readable(fd: std::os::fd::BorrowedFd<'_>) {
    use rustix::event::{PollFd, PollFlags, poll};
    // A completion may interrupt the sleep instead.
    let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
    assert!(matches!(woken, Ok(1) | Err(rustix::io::Errno::INTR)), "{woken:?}");
}

fn run(queue: &mut dyn BlockQueue, op: BlockOp) -> Completed {
    queue.submit(op).unwrap();
    let mut done = finish(queue);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

/// Returns folders on the available file systems: that of temporary files, and one in memory.
fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().unwrap()];
    if let Ok(folder) = tempfile::tempdir_in("/dev/shm") {
        folders.push(folder);
    }
    folders
}

/// Returns a file of `size` bytes in every folder, through the page cache and, if possible, with
/// direct I/O.
fn configs(size: u64, block_size: u32) -> Vec<(tempfile::TempDir, FileConfig)> {
    let mut configs = Vec::new();
    for direct in [Direct::Auto, Direct::Never] {
        for folder in folders() {
            let path = folder.path().join("disk");
            let base = FileConfig::new("disk", path, block_size);
            configs.push((folder, FileConfig { size: Some(size), direct, ..base }));
        }
    }
    configs
}
