//! Histories of block reads and writes, and a checker that searches for an order of the writes that
//! explains them.
//!
//! A test stamps every block that it writes ([`Stamp`]). It records the start and the outcome of
//! each command ([`History`]). [`History::check`] treats every block as a separate register. It
//! searches for an order of the writes in which each takes effect at one moment between its start
//! and its end. Every read must find the data of the last write before it. That is linearizability
//! (Herlihy and Wing 1990). The search is that of Wing and Gong with Lowe's just-in-time
//! linearization, and it caches visited states.
//!
//! Rules of block storage that a test has to follow:
//!
//! | outcome of a write | record | it took effect |
//! |---|---|---|
//! | success | [`History::acknowledge`] | once, before the answer |
//! | an error | [`History::fail`] | before the answer, or never |
//! | no answer, but its host learns of the end | [`History::settle`] | before that, or never |
//! | no answer, and no notification | nothing | at any time, or never |
//!
//! A host learns that its writes have ended in one of these events: its controller is reset or shut
//! down, its queue is disconnected, an operator has fenced it off, or its next association is
//! accepted.
//!
//! The crate uses no clock and no I/O, except [`seeds`](fn@seeds), which reads the environment.
//! Each event is later than those recorded before it.

mod check;
mod record;
mod report;
mod seeds;
mod stamp;

pub use check::Summary;
pub use record::{Block, History, ReadId, WriteId};
pub use report::Violation;
pub use seeds::seeds;
pub use stamp::{BLOCK, Content, Damage, Stamp};
