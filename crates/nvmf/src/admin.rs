//! Admin commands (Base 5) that need no state of the queue.
//!
//! These are functions of the target and a controller. [`Queue`](crate::Queue) calls them when a
//! command has arrived and the controller is ready.
//!
//! `sqe` is the whole command, and `data` is the data that the host sent with it. A
//! [`PageWriter`](page::PageWriter) writes data for the host into its buffer once there is one. A
//! command that waits for a buffer holds nothing.

pub(crate) mod effects;
pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod logs;
pub(crate) mod page;

#[cfg(test)]
pub(crate) mod fixture;
