//! The buffers of a job, for all its lanes.

use nvmeof_core::dma::CorePool;

use crate::load::LoadSpec;
use crate::queue::{Buffer, Leases, Memory};
use crate::rng::Rng;

/// Buffers that are not in use, by what memory they are and how long. The one used last goes first: its lines are warm.
#[derive(Debug)]
pub(crate) struct Buffers {
    idle: Vec<Shelf>,
    /// Where those for local devices come from, if there are any.
    pool: Option<CorePool>,
    /// What will be written without verification is random.
    contents: Option<Rng>,
    /// And new for every write.
    refills: bool,
    /// Why there was no buffer when one was needed.
    problem: Option<String>,
}

/// Buffers of one kind.
#[derive(Debug)]
struct Shelf {
    memory: Memory,
    bytes: usize,
    buffers: Vec<Buffer>,
}

impl Buffers {
    /// None yet: they are made as they are needed, at most as many of a kind as I/Os are under way at once.
    pub(crate) fn new(load: &LoadSpec, job: u64, pool: Option<CorePool>) -> Self {
        let random = load.verify.is_none() && load.mix.writes();
        let contents = random.then(|| Rng::new(load.seed, u64::MAX - job));
        Self { idle: Vec::new(), pool, contents, refills: load.refill, problem: None }
    }

    /// A buffer of so many bytes; `None` if there is no memory, and [`Buffers::take_problem`] says why.
    #[inline]
    pub(crate) fn take(&mut self, memory: Memory, bytes: u32) -> Option<Buffer> {
        let bytes = bytes as usize;
        let shelf = self.idle.iter_mut().find(|s| s.bytes == bytes && s.memory == memory);
        match shelf.and_then(|shelf| shelf.buffers.pop()) {
            Some(buffer) => Some(buffer),
            None => self.make(memory, bytes),
        }
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn put(&mut self, buffer: Buffer) {
        let (memory, bytes) = (buffer.memory(), buffer.len());
        match self.idle.iter_mut().find(|s| s.bytes == bytes && s.memory == memory) {
            Some(shelf) => shelf.buffers.push(buffer),
            None => self.idle.push(Shelf { memory, bytes, buffers: vec![buffer] }),
        }
    }

    /// Why there was no buffer, once.
    pub(crate) fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// Gives a buffer that will be written new contents, if every write is to have its own.
    #[inline]
    pub(crate) fn refill(&mut self, buffer: &mut Buffer) {
        if self.refills {
            self.fill(buffer);
        }
    }

    #[cold]
    fn make(&mut self, memory: Memory, bytes: usize) -> Option<Buffer> {
        let made = match memory {
            Memory::Fabric => nvmeof_initiator::Buffer::try_zeroed(bytes)
                .map(Buffer::Fabric)
                .ok_or_else(|| format!("the system refuses {bytes} bytes")),
            Memory::Local => Leases::of(self.pool.as_ref()?, bytes)
                .map(Buffer::Local)
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

    fn fill(&mut self, buffer: &mut Buffer) {
        let Some(rng) = &mut self.contents else { return };
        buffer.for_each_piece(|piece| {
            for word in piece.as_chunks_mut::<8>().0 {
                *word = rng.next().to_le_bytes();
            }
        });
    }
}
