//! DMA buffer pool and block devices.
//!
//! This crate does not depend on NVMe over Fabrics:
//!
//! * [`dma`]: memory for data of devices and networks. Each reactor leases it without a lock
//!   ([`CorePool`](dma::CorePool)) from one bounded pool ([`ChunkPool`](dma::ChunkPool));
//! * [`block`]: the traits of a block device and the devices themselves;
//! * [`nvme_driver`]: the VFIO driver of NVMe drives, layered on [`vfio`];
//! * [`pci`]: the location and the users of drives;
//! * [`slot_table`]: values by slot number, for operations that wait for a device.
//!
//! `examples/one_drive.rs` reads a block of one drive through the driver.

pub mod block;
pub mod dma;
pub mod nvme_driver;
pub mod pci;
pub mod slot_table;
pub mod vfio;
