//! Probe of the QEMU boots (`cargo xtask vm`): measures and verifies a drive.
//!
//! It accesses the drive through the VFIO driver, without any fabric.
//!
//! Usage:
//! * `nvme_bench randread ADDRESS DEPTH SECONDS poll|sleep`: reads of 4 KiB at random offsets,
//!   `DEPTH` in flight. `poll` spins for completions, `sleep` waits for the queue's descriptor when
//!   there is none.
//! * `nvme_bench write ADDRESS SEED BYTES`: writes a pattern from the start, and flushes.
//! * `nvme_bench verify ADDRESS SEED BYTES`: reads it back and compares.
//!
//! One line on stdout reports the result; the exit code is 1 on any error.

use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nvmeof_core::block::{BlockDevice, BlockOp, BlockQueue, Completed, NvmeDevice};
use nvmeof_core::dma::{Buffer, ChunkPool, CorePool, PoolConfig};
use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions};
use nvmeof_core::vfio;
use nvmeof_random::SplitMix64;
use rustix::event::{PollFd, PollFlags, poll};

type Failure = Box<dyn Error>;

const BLOCK_LEN: usize = 4096;
const BLOCK: u64 = BLOCK_LEN as u64;
/// Bytes of one operation of `write` and `verify`: longer than the drive's MDTS or one page list
/// allows.
const PIECE_LEN: usize = 1 << 20;
const PIECE: u64 = PIECE_LEN as u64;
/// Pieces in flight.
const PIECES: u64 = 4;

#[expect(clippy::print_stderr, clippy::print_stdout, reason = "a person reads it")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["randread", address, depth, seconds, how @ ("poll" | "sleep")] => {
            random_reads(address, depth, seconds, *how == "sleep")
        }
        ["write", address, seed, bytes] => pattern(address, seed, bytes, true),
        ["verify", address, seed, bytes] => pattern(address, seed, bytes, false),
        _ => {
            eprintln!(
                "nvme_bench randread ADDRESS DEPTH SECONDS poll|sleep | write|verify ADDRESS SEED BYTES"
            );
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAIL: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The opened first namespace of a drive, and buffers that it reaches.
struct Drive {
    device: NvmeDevice,
    pool: CorePool,
}

impl Drive {
    fn open(address: &str) -> Result<Self, Failure> {
        let shared = ChunkPool::new(PoolConfig { cap: 64 << 20, ..PoolConfig::default() })?;
        let maps = std::sync::Arc::new(BufferMaps::new(&shared));
        let controller = Controller::open(vfio::open(address)?, ControllerOptions::default())?;
        let device = NvmeDevice::new("drive", controller, 1, maps)?;
        Ok(Self { device, pool: CorePool::new(&shared) })
    }
}

fn random_reads(
    address: &str,
    depth: &str,
    seconds: &str,
    sleeps: bool,
) -> Result<String, Failure> {
    let (depth, seconds): (u32, f64) = (depth.parse()?, seconds.parse()?);
    let drive = Drive::open(address)?;
    let blocks = drive.device.info().size / BLOCK;
    let mut queue = drive.device.open_queue(&drive.pool)?;
    // The same offsets in every run.
    let mut random = SplitMix64::new(0);
    let mut read = move |buffer: Buffer| BlockOp::read(0, random.below(blocks) * BLOCK, buffer);
    for _ in 0..depth {
        let buffer = drive.pool.lease(BLOCK_LEN)?;
        queue.submit(read(buffer)).map_err(|rejected| rejected.to_string())?;
    }
    let (mut count, mut done) = (0_u64, Vec::new());
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        wait_and_poll(queue.as_mut(), &mut done, sleeps)?;
        for completed in done.drain(..) {
            let buffer = buffer_of(completed)?;
            queue.submit(read(buffer)).map_err(|rejected| rejected.to_string())?;
            count += 1;
        }
    }
    let took = started.elapsed().as_secs_f64();
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate to print")]
    let rate = count as f64 / took;
    Ok(format!("randread depth {depth} rate {rate:.0}/s of {count} reads"))
}

/// Polls; if it is allowed to sleep and there was no completion, waits for one.
fn wait_and_poll(
    queue: &mut dyn BlockQueue,
    done: &mut Vec<Completed>,
    sleeps: bool,
) -> Result<(), Failure> {
    queue.poll(done);
    if done.is_empty() && sleeps {
        let fd = queue.event_fd().ok_or("the queue has no descriptor")?;
        poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], None)?;
    }
    Ok(())
}

fn buffer_of(completed: Completed) -> Result<Buffer, Failure> {
    completed.result?;
    completed.buf.ok_or_else(|| "a read without its buffer".into())
}

/// Writes a pattern, or reads it back.
fn pattern(address: &str, seed: &str, bytes: &str, writes: bool) -> Result<String, Failure> {
    let (seed, bytes): (u64, u64) = (seed.parse()?, bytes.parse()?);
    let drive = Drive::open(address)?;
    if bytes > drive.device.info().size || !bytes.is_multiple_of(PIECE) {
        return Err(format!("{bytes} bytes are no whole pieces of the drive").into());
    }
    let mut queue = drive.device.open_queue(&drive.pool)?;
    let (mut next, mut finished, mut done) = (0, 0, Vec::new());
    let pieces = bytes / PIECE;
    while finished < pieces {
        while next < pieces && next - finished < PIECES {
            let mut buffer = drive.pool.lease(PIECE_LEN)?;
            let op = if writes {
                fill(buffer.as_mut_slice(), seed, next * PIECE);
                BlockOp::write(next, next * PIECE, buffer, false)
            } else {
                buffer.as_mut_slice().fill(0xa5);
                BlockOp::read(next, next * PIECE, buffer)
            };
            queue.submit(op).map_err(|rejected| rejected.to_string())?;
            next += 1;
        }
        wait_and_poll(queue.as_mut(), &mut done, true)?;
        for completed in done.drain(..) {
            let offset = completed.token * PIECE;
            let buffer = buffer_of(completed)?;
            if !writes {
                compare(buffer.as_slice(), seed, offset)?;
            }
            finished += 1;
        }
    }
    if writes {
        queue.submit(BlockOp::flush(0)).map_err(|rejected| rejected.to_string())?;
        while queue.in_flight() > 0 {
            wait_and_poll(queue.as_mut(), &mut done, true)?;
        }
        done.drain(..).try_for_each(|completed| completed.result)?;
    }
    Ok(format!("{} {bytes} bytes", if writes { "wrote" } else { "verified" }))
}

/// Eight bytes of the pattern: the seed, mixed with the word's offset.
fn word(seed: u64, offset: u64) -> u64 {
    (offset ^ seed.rotate_left(32)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ offset
}

fn fill(bytes: &mut [u8], seed: u64, offset: u64) {
    for (place, at) in bytes.chunks_exact_mut(8).zip((offset..).step_by(8)) {
        place.copy_from_slice(&word(seed, at).to_le_bytes());
    }
}

fn compare(bytes: &[u8], seed: u64, offset: u64) -> Result<(), Failure> {
    for (place, at) in bytes.chunks_exact(8).zip((offset..).step_by(8)) {
        if place != word(seed, at).to_le_bytes() {
            return Err(format!("byte {at} and after it are not what was written").into());
        }
    }
    Ok(())
}
