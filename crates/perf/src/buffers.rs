//! The buffers of a job, shared by all its streams.

use nvmeof_core::dma::CorePool;
use nvmeof_random::SplitMix64;

use crate::load::LoadSpec;
use crate::queue::{IoBuffer, IoLeases, IoMemory};

/// Buffers not in use, grouped by memory kind and length.
///
/// The buffer used last is reused first, because its cache lines are warm.
#[derive(Debug)]
pub(crate) struct BufferCache {
    idle: Vec<Shelf>,
    /// Source of the buffers for local devices, if the job has any.
    pool: Option<CorePool>,
    /// Source of random contents for unverified writes; `None` without them.
    contents: Option<SplitMix64>,
    /// Every write gets new contents.
    refills: bool,
    /// Reason why the last allocation failed.
    problem: Option<String>,
}

/// Buffers of one kind and length.
#[derive(Debug)]
struct Shelf {
    memory: IoMemory,
    bytes: usize,
    buffers: Vec<IoBuffer>,
}

impl BufferCache {
    /// Starts empty.
    ///
    /// Buffers are allocated on demand. Of each kind there are at most as many as I/Os in flight
    /// concurrently.
    pub(crate) fn new(load: &LoadSpec, job: u64, pool: Option<CorePool>) -> Self {
        let random = load.verify.is_none() && load.mix.writes();
        let contents = random.then(|| SplitMix64::stream(load.seed, u64::MAX - job));
        Self { idle: Vec::new(), pool, contents, refills: load.refill, problem: None }
    }

    /// Returns a buffer of `bytes` bytes, or `None` if there is no memory.
    ///
    /// [`BufferCache::take_problem`] then returns the reason.
    #[inline]
    pub(crate) fn take(&mut self, memory: IoMemory, bytes: u32) -> Option<IoBuffer> {
        let bytes = bytes as usize;
        let shelf = self.idle.iter_mut().find(|s| s.bytes == bytes && s.memory == memory);
        match shelf.and_then(|shelf| shelf.buffers.pop()) {
            Some(buffer) => Some(buffer),
            None => self.make(memory, bytes),
        }
    }

    /// Returns a buffer for reuse.
    #[inline]
    pub(crate) fn put(&mut self, buffer: IoBuffer) {
        let (memory, bytes) = (buffer.memory(), buffer.len());
        match self.idle.iter_mut().find(|s| s.bytes == bytes && s.memory == memory) {
            Some(shelf) => shelf.buffers.push(buffer),
            None => self.idle.push(Shelf { memory, bytes, buffers: vec![buffer] }),
        }
    }

    /// Returns the reason for the last missing buffer, once.
    pub(crate) fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// Fills a buffer with new contents before a write, if every write requires its own.
    #[inline]
    pub(crate) fn refill(&mut self, buffer: &mut IoBuffer) {
        if self.refills {
            self.fill(buffer);
        }
    }

    #[cold]
    fn make(&mut self, memory: IoMemory, bytes: usize) -> Option<IoBuffer> {
        let made = match memory {
            IoMemory::Fabric => nvmeof_initiator::Buffer::try_zeroed(bytes)
                .map(IoBuffer::Fabric)
                .ok_or_else(|| format!("the system refuses {bytes} bytes")),
            IoMemory::Local => IoLeases::of(self.pool.as_ref()?, bytes)
                .map(IoBuffer::Local)
                .map_err(|error| error.to_string()),
        };
        match made {
            Ok(mut buffer) => {
                self.fill(&mut buffer);
                Some(buffer)
            }
            Err(why) => {
                let what = format!("no memory for I/Os: {why}; lower --qd, --jobs or --bs");
                self.problem = Some(what);
                None
            }
        }
    }

    fn fill(&mut self, buffer: &mut IoBuffer) {
        let Some(rng) = &mut self.contents else { return };
        buffer.for_each_piece(|piece| {
            for word in piece.as_chunks_mut::<8>().0 {
                *word = rng.next_u64().to_le_bytes();
            }
        });
    }
}
