//! Buffers: one bounded [`SharedPool`] of 2 MiB chunks a process, one [`CorePool`] a reactor,
//! [`Buffer`]s leased from it ([`Cut`] into parts if need be), [`Reserve`]s for what must never wait, and [`Lent`] bytes that
//! a device owns and only shows.
//!
//! ```text
//! SharedPool --chunk--> CorePool --carved into one class--> Buffer --drop--> CorePool
//!      ^------------------ chunk with no lease out -----------'
//! ```
//!
//! Pages are touched only as buffers are used, and the buffer returned last is leased first, so
//! what is resident is what was in use at once, not what was configured.

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
