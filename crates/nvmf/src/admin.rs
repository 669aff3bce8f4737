//! The admin command set (Base 5), as far as it needs no state of the queue: functions of the target
//! and a controller, called by [`Queue`](crate::Queue) when the command came and the controller is ready.
//!
//! `sqe` is the whole command, `data` what the host sent with it. Data that is returned goes to the
//! host as it is; the queue checks it against the data pointer.

pub(crate) mod effects;
pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod logs;

#[cfg(test)]
pub(crate) mod fixture;
