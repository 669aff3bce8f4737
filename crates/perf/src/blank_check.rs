//! Checks whether a device holds data that a load would destroy.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nvmeof_initiator::nanos;

use crate::job::JobQueue;
use crate::queue::{DeviceQueue as _, Io, IoBuffer, IoLeases, IoMemory, IoOp};
use crate::target::{Target, TargetSpace};

/// Bytes of one sample.
const LOOK: u64 = 64 << 10;
/// Adjacent samples at each end, where filesystems, partition tables and arrays put their metadata.
const ENDS: u64 = 32;
/// Samples in between, evenly spaced.
const BETWEEN: u64 = 192;
/// Maximum duration of a sample.
const PATIENCE: Duration = Duration::from_secs(30);

/// Offset of the first data found, in bytes; `None` if all samples read as zeroes.
///
/// # Errors
/// The device cannot be read.
pub(crate) fn first_data(target: &mut Target, space: &TargetSpace) -> Result<Option<u64>> {
    let index = space.device;
    let sources = target.sources(1, |device| usize::from(device == index))?;
    let source = sources.into_iter().flatten().next().context("there is no queue to read by")?;
    let mut pool = None;
    let mut queue = source.open(&mut pool)?;
    let block = u64::from(space.block_size);
    let most = space.max_transfer.unwrap_or(LOOK).min(LOOK);
    let len = (most - most % block).max(block).min(space.size - space.size % block);
    let bytes = usize::try_from(len)?;
    let mut buffer = Some(match (queue.memory(), &pool) {
        (IoMemory::Local, Some(pool)) => IoBuffer::Local(IoLeases::of(pool, bytes)?),
        _ => nvmeof_initiator::Buffer::try_zeroed(bytes)
            .map(IoBuffer::Fabric)
            .context("no memory to look for data with")?,
    });
    for place in places(space.size, len, block) {
        let data = buffer.take().context("a read has lost its buffer")?;
        let data = read(target, &mut queue, space, place, data)?;
        let filled = (0..)
            .map_while(|piece| data.piece(piece))
            .any(|piece| piece.iter().any(|byte| *byte != 0));
        if filled {
            return Ok(Some(place));
        }
        buffer = Some(data);
    }
    Ok(None)
}

/// Reads one buffer.
fn read(
    target: &Target,
    queue: &mut JobQueue,
    space: &TargetSpace,
    place: u64,
    data: IoBuffer,
) -> Result<IoBuffer> {
    let clock = target.clock();
    let block = u64::from(space.block_size);
    let bytes = data.len();
    let blocks = u32::try_from(bytes as u64 / block)?;
    let io = Io { token: 0, nsid: space.nsid, slba: place / block, blocks, op: IoOp::Read(data) };
    if queue.submit(io, clock.now()).is_err() {
        bail!("{space} accepts no reads");
    }
    let (began, mut done) = (Instant::now(), Vec::new());
    let deadline = clock.now().saturating_add(nanos(PATIENCE));
    while began.elapsed() < PATIENCE {
        queue.flush()?;
        queue.poll(clock.now().min(deadline), &mut done)?;
        if let Some(ended) = done.pop() {
            ended
                .result
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("reading {space} at byte {place}"))?;
            return ended.buffer.context("a read has lost its buffer");
        }
        std::thread::yield_now();
    }
    bail!("{space} does not respond to a read at byte {place}")
}

/// Offsets of the samples: at both ends, and evenly spaced between them.
fn places(size: u64, len: u64, block: u64) -> Vec<u64> {
    let last = (size - len) / block * block;
    let ends = (0..ENDS).flat_map(|at| [at * len, last.saturating_sub(at * len)]);
    let between = (1..=BETWEEN).map(|at| last / BETWEEN * at / block * block);
    let mut places: Vec<u64> = ends.chain(between).filter(|place| *place <= last).collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_looked_at_and_nothing_beyond() {
        for (size, block) in
            [(20_u64 << 20, 512), ((20 << 20) + 512, 512), (1 << 40, 4096), (4096, 4096)]
        {
            let len = LOOK.min(size);
            let places = places(size, len, block);
            assert_eq!(places.first(), Some(&0));
            assert_eq!(places.last().unwrap() + len, size, "{size}");
            assert!(places.iter().all(|place| place.is_multiple_of(block)));
            assert!(places.len() as u64 <= 2 * ENDS + BETWEEN);
        }
    }
}
