//! Histories of block reads and writes, and a checker that says whether an order of the writes explains them.
//!
//! A test stamps every block that it writes ([`Stamp`]), and records when each command began and how it ended
//! ([`History`]). [`History::check`] treats every block as a register of its own. It searches for an order of the
//! writes in which each takes effect at one moment between its beginning and its end, and every read finds what the
//! last write before it left. That is linearizability (Herlihy and Wing 1990). The search is that of Wing and Gong
//! with Lowe's just-in-time linearization, and it remembers the states that it has seen.
//!
//! The rules of block storage that a test has to know:
//!
//! | how a write ends | record | it took effect |
//! |---|---|---|
//! | success | [`History::acknowledge`] | once, before the answer |
//! | an error | [`History::fail`] | before the answer, or never |
//! | no answer, and its host knows that it is over | [`History::settle`] | before that, or never |
//! | no answer, and nobody said so | nothing | at any time, or never |
//!
//! A host knows that its writes are over when its controller is reset or shut down, when its queue is disconnected,
//! when an operator has fenced it off, and when its next association is let in.
//!
//! There is no clock and no I/O here, apart from [`seeds`], which reads the environment: an event is later than those recorded before it.

mod check;
mod dice;
mod record;
mod report;
mod seeds;
mod stamp;

pub use check::Summary;
pub use dice::Dice;
pub use record::{Block, History, ReadId, WriteId};
pub use report::Violation;
pub use seeds::seeds;
pub use stamp::{BLOCK, Content, Damage, Stamp};
