//! The driver against the controller in memory, in virtual time and on one thread.

mod bring_up;
mod cancel;
mod io;
mod maintenance;
pub(super) mod rig;
mod sleep;
mod story;
mod threads;
mod timeouts;
mod trouble;
