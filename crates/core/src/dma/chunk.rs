//! Chunks: the unit of memory that moves between the shared pool and the cores.

use std::io;
use std::ptr::NonNull;

use super::mapping::Mapping;
use super::registrar::ChunkId;

/// Bytes per chunk: one huge page. Also the maximum lease.
pub const CHUNK: usize = 2 << 20;

/// Memory of a chunk, owned by the shared pool or by a core.
#[derive(Debug)]
pub(super) struct Chunk {
    memory: Mapping,
    huge: bool,
    id: ChunkId,
}

impl Chunk {
    /// Maps a huge page if `try_huge` and one is available, otherwise ordinary pages.
    pub(super) fn map(id: ChunkId, try_huge: bool) -> io::Result<Self> {
        if try_huge && let Ok(memory) = Mapping::huge(CHUNK) {
            return Ok(Self { memory, huge: true, id });
        }
        let memory = Mapping::ordinary(CHUNK, CHUNK)?;
        Ok(Self { memory, huge: false, id })
    }

    pub(super) fn is_huge(&self) -> bool {
        self.huge
    }

    pub(super) fn id(&self) -> ChunkId {
        self.id
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
}
