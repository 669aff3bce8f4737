//! DMA buffer pool and block devices.
//!
//! Two halves, and nothing of NVMe in either:
//!
//! * [`dma`]: memory that devices and networks move data through, leased per reactor
//!   without a lock ([`CorePool`](dma::CorePool)) over one bounded pool
//!   ([`SharedPool`](dma::SharedPool));
//! * [`block`]: the traits of a block device and the devices themselves.

pub mod block;
pub mod dma;
mod rng;
