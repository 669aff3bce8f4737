//! The userspace NVMe driver.
//!
//! It knows a drive only through [`seam`]: registers, memory the drive reaches, interrupts, reset. What stands
//! behind the seam is a function handed over by VFIO ([`crate::vfio`]) or a controller in memory.
//!
//! ```text
//!   reactor ---> IoQueue (ring, slots, lists) ---> device      one a reactor and namespace, no lock
//!                   |  gate: one load a poll          ^
//!                   v                                 |
//!   control ---> Controller ---> Warden ------> admin queue, registers, resets
//!                                  ^-- thread: time, events, interrupts of the admin queue
//! ```
//!
//! * [`Controller`] is opened over a [`Function`](seam::Function), and answers what concerns the whole drive;
//! * `warden` watches over it: what takes too long, what goes wrong, resets (diagram on top of the file);
//! * `events` is what a controller tells of by itself;
//! * `gate` is how warden and queues agree without a lock (diagram on top of the file);
//! * [`IoQueue`] cuts operations into commands (`split`), points at data (`transfer`) and polls completions;
//! * `bar`, `admin`, `ring`, `bring_up`, `identify` are the parts of the specification, by section.
//!
//! `unsafe` is in `memory` (memory shared with the device), `buffers` (the pool's memory, mapped for it) and
//! `loan` (queue memory that comes back by itself).

mod admin;
mod bar;
mod bring_up;
mod buffers;
mod controller;
mod error;
mod events;
pub mod fake;
mod gate;
mod identify;
mod loan;
mod maintenance;
mod memory;
mod options;
mod queue;
mod ring;
pub mod seam;
mod split;
mod status;
#[cfg(test)]
mod tests;
mod transfer;
mod wait;
mod warden;

pub use buffers::BufferMaps;
pub use controller::{Controller, ControllerState, ControllerStats};
pub use error::{AdminError, OpenError, OpenErrorWhy};
pub use events::DriveEvent;
pub use identify::{Identity, NamespaceInfo};
pub use options::{ControllerOptions, DEFAULT_IO_TIMEOUT};
pub use queue::{Io, IoQueue};
pub use split::IoKind;
pub use wait::{SystemWait, Wait};
