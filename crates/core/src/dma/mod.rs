//! Buffers for data.
//!
//! There is one bounded [`ChunkPool`] of 2 MiB chunks per process, and one [`CorePool`] per
//! reactor. The reactor leases [`Buffer`]s from it and can split them into parts ([`SplitBuffer`]).
//! [`BufferReservation`]s hold buffers for uses that must never wait. [`ZeroCopyData`] bytes belong
//! to a device that only exposes them.
//!
//! ```text
//! SharedPool --chunk--> CorePool --divided into one class--> Buffer --drop--> CorePool
//!      ^------------------ chunk without a lease ------------'
//! ```
//!
//! Pages are touched only as buffers are used, and the buffer returned last is leased first. So the
//! resident memory is what was in use concurrently, not what was configured.

mod buffer;
mod chunk;
mod chunk_pool;
mod core_pool;
mod core_state;
mod error;
mod mapping;
mod part_counts;
mod payload;
mod registrar;
mod reserve;
mod slab;
mod split_buffer;
#[cfg(test)]
mod tests;
mod zero_copy;

pub use buffer::Buffer;
pub use chunk::CHUNK;
pub use chunk_pool::{ChunkPool, PoolConfig, PoolError, PoolStats};
pub use core_pool::CorePool;
pub use error::LeaseError;
pub use payload::Payload;
pub use registrar::{ChunkId, MemoryRegistrar};
pub use reserve::BufferReservation;
pub use slab::MIN_CLASS;
pub use split_buffer::SplitBuffer;
pub use zero_copy::{MAX_ZERO_COPY_BYTES, ZeroCopyData, ZeroCopyRegion, ZeroCopySource};

pub(crate) use mapping::{Mapping, PAGE};
