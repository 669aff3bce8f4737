//! Registration of the pool's memory and of zero-copy memory with an RDMA device.
//!
//! Chunks are added and removed under a lock; on the I/O path, a key is one load.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_core::dma::{
    Buffer, ChunkId, ChunkPool, MemoryRegistrar, Payload, ZeroCopyData, ZeroCopyRegion,
};
use nvmeof_verbs::{Device, DeviceKind, MemoryRegion, VerbsError};

use super::cm_worker::CmWorker;
use super::post;

/// Chunks by which a pool can grow beyond its reported maximum: one per reactor.
const SLACK: usize = 1024;

/// A device's registrations: all buffer memory, one per chunk, and zeroes for zero-copy reads.
#[derive(Debug)]
pub struct Registration<D: Device> {
    device: Arc<D>,
    cm_worker: Arc<CmWorker<D>>,
    /// Local key of each chunk, by its number.
    keys: Box<[AtomicU32]>,
    regions: Mutex<Vec<Option<D::MemoryRegion>>>,
    zeroes: Option<ZeroCopyRegistration<D>>,
}

/// Zero-copy memory that is registered with the device.
#[derive(Debug)]
struct ZeroCopyRegistration<D: Device> {
    /// Declared before the memory, which must exist until the device has deregistered it.
    region: D::MemoryRegion,
    memory: Arc<ZeroCopyRegion>,
}

/// Location of data for a device: byte `n` is at `address + n % window`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) lkey: u32,
    /// Bytes; zero only for an empty payload.
    pub(super) window: u32,
}

impl<D: Device> Registration<D> {
    /// Registers all current and future memory of `pool`, until it is
    /// [withdrawn](ChunkPool::remove_registrar).
    ///
    /// Threads make the calls for the device's connections that can block in the kernel. They start
    /// on the CPUs of the calling thread.
    ///
    /// # Errors
    /// Returns the error of the device, [`VerbsError::Unserved`] for one that cannot serve hosts;
    /// nothing is registered then.
    pub fn new(device: &Arc<D>, pool: &ChunkPool) -> io::Result<Arc<Self>> {
        served(&**device).map_err(io::Error::other)?;
        Self::with(device, pool, CmWorker::start(&**device)?)
    }

    /// Creates a registration without threads: the caller of [`CmWorker::run`] makes blocking
    /// calls. For tests in virtual time.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn without_threads(device: &Arc<D>, pool: &ChunkPool) -> io::Result<Arc<Self>> {
        served(&**device).map_err(io::Error::other)?;
        Self::with(device, pool, CmWorker::without_threads(&**device))
    }

    fn with(device: &Arc<D>, pool: &ChunkPool, cm_worker: CmWorker<D>) -> io::Result<Arc<Self>> {
        let places = pool.chunks() + SLACK;
        let registration = Arc::new(Self {
            device: Arc::clone(device),
            cm_worker: Arc::new(cm_worker),
            keys: (0..places).map(|_| AtomicU32::new(0)).collect(),
            regions: Mutex::new(Vec::new()),
            zeroes: ZeroCopyRegistration::zeroes(device),
        });
        pool.add_registrar(registration.clone())?;
        Ok(registration)
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// Returns the threads for blocking calls.
    pub fn cm_worker(&self) -> &Arc<CmWorker<D>> {
        &self.cm_worker
    }

    /// Returns the local key of `buffer`, which belongs to the pool of this registration.
    #[inline]
    pub fn key_of(&self, buffer: &Buffer) -> u32 {
        // Stored before the buffer could be leased, and published by the lock under which the chunk
        // was. `mapped` refuses a chunk without a place for its key.
        self.keys[buffer.chunk().index()].load(Ordering::Relaxed)
    }

    /// Returns the location of `payload` for the device; `None` for unregistered zero-copy memory.
    #[inline]
    pub(super) fn span_of(&self, payload: &mut Payload) -> Option<Span> {
        match payload {
            Payload::Buffer(buffer) => Some(Span {
                address: buffer.as_mut_ptr().expose_provenance() as u64,
                lkey: self.key_of(buffer),
                window: u32::try_from(buffer.len()).ok()?,
            }),
            Payload::ZeroCopy(data) => self.registered(data)?.span(),
        }
    }

    /// Returns true if the memory of `data` is registered with the device.
    #[inline]
    pub(super) fn knows(&self, data: &ZeroCopyData) -> bool {
        self.registered(data).is_some()
    }

    fn registered(&self, data: &ZeroCopyData) -> Option<&ZeroCopyRegistration<D>> {
        self.zeroes.as_ref().filter(|zeroes| Arc::ptr_eq(&zeroes.memory, data.region()))
    }

    /// Returns the number of registered chunks.
    pub fn regions(&self) -> usize {
        self.lock().iter().flatten().count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<D::MemoryRegion>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Device> ZeroCopyRegistration<D> {
    /// Registers zeroes for zero-copy reads. For a device that rejects them, zeroes are copied.
    fn zeroes(device: &Arc<D>) -> Option<Self> {
        let register = || -> io::Result<Self> {
            let memory = ZeroCopyRegion::zeroes()?;
            let region = post::register_zero_copy(device, &memory).map_err(io::Error::other)?;
            Ok(Self { region, memory })
        };
        let copied = |error: &io::Error| {
            tracing::debug!(device = device.name(), %error, "zeroes are copied for it");
        };
        register().inspect_err(copied).ok()
    }

    fn span(&self) -> Option<Span> {
        let (base, window) = self.memory.window();
        Some(Span {
            address: base.as_ptr().expose_provenance() as u64,
            lkey: self.region.lkey(),
            window: u32::try_from(window).ok()?,
        })
    }
}

/// Checks that a device can serve hosts.
///
/// # Errors
/// Returns [`VerbsError::Unserved`]. Over iWARP, the destination of an RDMA READ needs memory that
/// the peer can write to, and all memory here contains data of hosts. Other kinds (usNIC) have no
/// RDMA in this sense.
pub fn served<D: Device>(device: &D) -> Result<(), VerbsError> {
    let what = match device.kind() {
        DeviceKind::InfiniBand => return Ok(()),
        DeviceKind::Iwarp => "iWARP",
        DeviceKind::Other => "of no kind that is known",
    };
    Err(VerbsError::Unserved { device: device.name().to_owned(), what })
}

impl<D: Device> MemoryRegistrar for Registration<D> {
    fn mapped(&self, chunk: ChunkId, base: NonNull<u8>, len: usize) -> io::Result<()> {
        let Some(key) = self.keys.get(chunk.index()) else {
            return Err(io::Error::other("the pool has grown beyond the table of keys"));
        };
        let region = match post::register_chunk(&self.device, base, len) {
            Ok(region) => region,
            // Its queues have ended or soon will; other devices also need the memory.
            Err(error) if !self.device.is_present() => {
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
