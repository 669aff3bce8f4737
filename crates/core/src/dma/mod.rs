//! Buffers for data.
//!
//! There is one bounded [`SharedPool`] of 2 MiB chunks per process, and one [`CorePool`] per
//! reactor. The reactor leases [`Buffer`]s from it and can split them into parts ([`Cut`]).
//! [`Reserve`]s hold buffers for uses that must never wait. [`Lent`] bytes belong to a device that
//! only exposes them.
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
mod core_pool;
mod cut;
mod lent;
mod mapping;
mod payload;
mod registrar;
mod reserve;
mod shared;
mod shares;
mod slots;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use chunk::CHUNK;
pub use core_pool::{CorePool, LeaseError};
pub use cut::Cut;
pub use lent::{Lender, Lent, LentRegion, MAX_LEND};
pub use payload::Payload;
pub use registrar::{ChunkId, Registrar};
pub use reserve::Reserve;
pub use shared::{PoolConfig, PoolError, PoolStats, SharedPool};
pub use slots::MIN_CLASS;

pub(crate) use mapping::{Mapping, PAGE};
