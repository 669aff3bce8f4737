//! Tests of the NVMe driver with the fake drive, in virtual time and mostly on one thread.

mod bring_up;
mod cancel;
mod io;
mod maintenance;
mod races;
mod rig;
mod sleep;
mod story;
mod threads;
mod timeouts;
mod trouble;
