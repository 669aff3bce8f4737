//! The userspace NVMe driver.
//!
//! It accesses a drive only through [`function`]: registers, DMA memory, interrupts, reset. Behind
//! this interface is a function opened through VFIO ([`crate::vfio`]), or the fake drive of tests.
//!
//! ```text
//!   reactor ---> IoQueue (ring, slots, lists) ---> device    one per reactor, namespace; no lock
//!                   |  gate: one load per poll        ^
//!                   v                                 |
//!   control ---> Controller ---> Supervisor --> admin queue, registers, resets
//!                                  ^-- thread: time, events, interrupts of the admin queue
//! ```
//!
//! * [`Controller`] is opened on a [`Function`](function::Function) (`controller::open`), and
//!   serves requests that concern the whole drive (`maintenance`);
//! * `supervisor` supervises it: timeouts, errors, resets (diagram at the top of the file);
//! * `events` holds the asynchronous events of a controller;
//! * `gate` coordinates supervisor and queues without a lock (diagram at the top of the file);
//! * [`IoQueue`] splits operations into commands (`split`), describes their data (`transfer`) and
//!   polls completions;
//! * `bar`, `admin`, `ring`, `bring_up`, `identify` implement the specification, by section.
//!
//! Modules depend downwards only: `controller::open` on `queue` and `maintenance`, these on
//! `controller`, it on `supervisor`, and all of them on `gate`, which holds what they share.
//!
//! `unsafe` is in `memory` (memory shared with the device), `buffers` (the pool's memory, mapped
//! for it) and `pooled` (queue memory that returns when dropped).

mod admin;
mod bar;
mod bring_up;
mod buffers;
mod controller;
mod error;
mod events;
pub mod function;
mod gate;
mod identify;
mod maintenance;
mod memory;
mod options;
mod pooled;
mod queue;
mod ring;
mod split;
mod status;
mod supervisor;
mod transfer;
mod wait;

pub use buffers::BufferMaps;
pub use controller::{Controller, ControllerStats};
pub use error::{AdminError, OpenError, OpenErrorReason};
pub use events::DriveEvent;
pub use gate::ControllerState;
pub use identify::{Identity, NamespaceInfo};
pub use options::{ControllerOptions, DEFAULT_IO_TIMEOUT};
pub use queue::{Io, IoQueue};
pub use split::IoKind;
pub use wait::{SystemWait, Wait};
