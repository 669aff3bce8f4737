//! The pool's memory, known to a device. Chunks come and go under a lock; on the I/O path a key is one load.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_core::dma::{Buffer, ChunkId, Registrar, SharedPool};
use nvmeof_verbs::{Device, Region};

use super::post;

/// Chunks that a pool may grow by after it was asked how many it has at most: one for each reactor.
const SLACK: usize = 1024;

/// A device's registrations of all buffer memory, one a chunk.
#[derive(Debug)]
pub struct Registration<D: Device> {
    device: Arc<D>,
    /// Local key of each chunk, by its number.
    keys: Box<[AtomicU32]>,
    regions: Mutex<Vec<Option<D::Region>>>,
}

impl<D: Device> Registration<D> {
    /// Registers what memory `pool` has, and all it will have, until it is
    /// [withdrawn](SharedPool::remove_registrar).
    ///
    /// # Errors
    /// What the device says; nothing is registered then.
    pub fn new(device: &Arc<D>, pool: &SharedPool) -> io::Result<Arc<Self>> {
        let places = pool.chunks() + SLACK;
        let registration = Arc::new(Self {
            device: Arc::clone(device),
            keys: (0..places).map(|_| AtomicU32::new(0)).collect(),
            regions: Mutex::new(Vec::new()),
        });
        pool.add_registrar(registration.clone())?;
        Ok(registration)
    }

    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// Local key of the memory of `buffer`, which is of the pool this was made for.
    #[inline]
    pub fn key_of(&self, buffer: &Buffer) -> u32 {
        // Stored before the buffer could be leased, and handed over by the lock under which the chunk was.
        self.keys.get(buffer.chunk().index()).map_or(0, |key| key.load(Ordering::Relaxed))
    }

    /// Chunks that are registered.
    pub fn regions(&self) -> usize {
        self.lock().iter().flatten().count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<D::Region>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Device> Registrar for Registration<D> {
    fn mapped(&self, chunk: ChunkId, base: NonNull<u8>, len: usize) -> io::Result<()> {
        let Some(key) = self.keys.get(chunk.index()) else {
            return Err(io::Error::other("the pool has grown beyond the table of keys"));
        };
        let region = match post::register_chunk(&self.device, base, len) {
            Ok(region) => region,
            // Its queues have ended or are about to; others want the memory, too.
            Err(error) if !self.device.is_there() => {
                tracing::debug!(device = self.device.name(), %error, "a device that is gone");
                return Ok(());
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        key.store(region.lkey(), Ordering::Relaxed);
        let mut regions = self.lock();
        if regions.len() <= chunk.index() {
            regions.resize_with(chunk.index() + 1, || None);
        }
        regions[chunk.index()] = Some(region);
        Ok(())
    }

    fn unmapping(&self, chunk: ChunkId) {
        let region = self.lock().get_mut(chunk.index()).and_then(Option::take);
        drop(region);
    }
}
