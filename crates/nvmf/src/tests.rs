//! Tests that drive whole queues by raw commands in virtual time.

mod admin;
mod apply;
mod connect;
mod events;
mod hosts;
mod io;
mod properties;
mod quiesce;
mod random;
mod support;
mod threads;
mod timers;
