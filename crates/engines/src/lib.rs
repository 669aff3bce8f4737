//! I/O methods to read a drive, each as a [`BlockDevice`](nvmeof_core::block::BlockDevice).
//!
//! ```text
//!  Engine + ReadSource --open--> OpenedDevice { device, note }   for any user of block queues
//!                         '----> EngineUnavailable              a table row, not a crash
//!
//!  sync, psync, pvsync, pvsync2, pvsync2-hipri   one operation a queue: N operations, N threads
//!  libaio, io-uring, io-uring-polled             core's file device
//!  vfio                                          core's NVMe driver
//! ```
//!
//! All of them are opened for reading only: a measurement cannot destroy data.

#![forbid(unsafe_code)]

mod engine;
mod open;
mod sync;

pub use engine::{Engine, UnknownEngine};
pub use open::{
    EngineUnavailable, OpenFunction, OpenedDevice, ReadSource, open, open_with, sector_size,
};
pub use sync::SyncDevice;
