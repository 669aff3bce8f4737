//! Tests of the driver with the fake controller, in virtual time and on one thread.

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
