//! DMA buffer pool and block devices.
//!
//! Nothing here knows of NVMe over Fabrics:
//!
//! * [`dma`]: memory that devices and networks move data through, leased per reactor
//!   without a lock ([`CorePool`](dma::CorePool)) over one bounded pool
//!   ([`SharedPool`](dma::SharedPool));
//! * [`block`]: the traits of a block device and the devices themselves;
//! * [`nvme_driver`]: our own driver of NVMe drives, over [`vfio`];
//! * [`pci`]: where drives hang and who uses them.

pub mod block;
pub mod dma;
pub mod nvme_driver;
pub mod pci;
mod rng;
pub mod vfio;
