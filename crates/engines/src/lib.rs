//! Ways to read a drive, side by side, each as a [`BlockDevice`](nvmeof_core::block::BlockDevice).
//!
//! ```text
//!  Engine + Source --open--> Opened { device, note }      whoever drives block queues drives them all
//!                     '----> Unable                       why not, in words: a row of a table, not a crash
//!
//!  sync, psync, pvsync, pvsync2, pvsync2-hipri   one operation a queue: so many at once take as many threads
//!  io-uring, io-uring-polled                     core's file device
//!  vfio                                          core's NVMe driver
//! ```
//!
//! All of them are opened for reading only: nothing that is measured with them can be lost.

#![forbid(unsafe_code)]

mod engine;
mod open;
mod sync;

pub use engine::{Engine, UnknownEngine};
pub use open::{Opened, Source, Take, Unable, open, open_taking, sector_size};
pub use sync::SyncDevice;
