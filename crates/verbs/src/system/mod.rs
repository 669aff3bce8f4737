//! The provider that uses rdma-core's libraries.
//!
//! | module | contents |
//! |---|---|
//! | [`library`] | the libraries, loaded once |
//! | [`device`] | a device and its limits; one value for all users |
//! | `context`, `provider` | an open device and its protection domain; the objects that it creates |
//! | [`memory`] | registered memory, memory windows |
//! | [`completions`], [`receives`] | completion queues, shared receive queues |
//! | [`listener`], [`ticket`] | connections before their queue pair |
//! | [`endpoint`] | queue pairs and their connections |
//! | `watch` | asynchronous events of the device |
//!
//! This module creates queue pairs and changes their states; librdmacm does not. They live in our
//! own context, which stays open until everything in it is gone. librdmacm closes its context when
//! a device is removed. Attributes that the connection manager leaves at a default can be set: the
//! RNR timer, the traffic class and the retries.
//!
//! References keep objects alive, which determines the order of destruction:
//!
//! ```text
//!   endpoint --> completion queue --> device (domain, then context)
//!     |    `---> shared receives --------^        ^
//!     `--> connection id --> event channel        |
//!   region, window -------------------------------'
//! ```
//!
//! When a device is removed, identifiers get an event. The device's context is closed after all
//! objects of the device are dropped. librdmacm has its own context. It closes that context on the
//! next query for devices, but not while the machine has no device. A driver that waits for
//! contexts to be closed (Soft-RoCE does) then finishes the removal when the process ends.
//!
//! Threads: both libraries lock their shared state, so every thread can use a device. Queues and
//! endpoints can move between threads, and one thread at a time uses them (`&mut`).
//!
//! `unsafe` calls C functions here, for which there is no safe interface. Each type of this module
//! owns the pointer to one C object. In a `SAFETY` comment, an object is *live* (a context *open*)
//! because `self`, or a reference that `self` has, owns it: only the owner's `drop` destroys it.

pub mod completions;
pub mod device;
pub mod endpoint;
pub mod library;
pub mod listener;
pub mod memory;
pub mod receives;
pub mod ticket;

mod address;
mod async_events;
mod connection;
mod context;
mod post;
mod provider;

pub use completions::SystemCompletions;
pub use device::SystemDevice;
pub use endpoint::SystemEndpoint;
pub use library::Library;
pub use listener::{Listener, ListenerEvent, ListenerOptions};
pub use memory::{SystemRegion, SystemWindow};
pub use receives::SystemShared;
pub use ticket::{SystemTicket, resolve, resolve_with};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_between_threads_may() {
        fn moves<T: Send>() {}
        fn is_shared<T: Send + Sync>() {}
        is_shared::<SystemDevice>();
        is_shared::<SystemRegion>();
        moves::<SystemTicket>();
        moves::<SystemEndpoint>();
        moves::<SystemCompletions>();
        moves::<SystemShared>();
        moves::<Listener>();
    }
}
