//! Atomics of the cross-core lease: the standard ones, or loom's under `--cfg loom`.
//!
//! Check the lease with
//! `RUSTFLAGS="--cfg loom" cargo test -p nvmeof-pacing --release loom_`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
