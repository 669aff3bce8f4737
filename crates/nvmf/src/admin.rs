//! The admin command set (Base 5), as far as it needs no state of the queue: functions of the target
//! and a controller, called by [`Queue`](crate::Queue) when the command came and the controller is ready.
//!
//! `sqe` is the whole command, `data` what the host sent with it. Data for the host is written into
//! its buffer by a [`PageWriter`](page::PageWriter), when there is a buffer: a command that waits
//! for one holds nothing.

pub(crate) mod effects;
pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod logs;
pub(crate) mod page;

#[cfg(test)]
pub(crate) mod fixture;
