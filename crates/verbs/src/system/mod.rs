//! The provider that is rdma-core's libraries.
//!
//! | module | what |
//! |---|---|
//! | [`library`] | the libraries, loaded once |
//! | [`device`] | a device, its protection domain, its limits; one for all who use it |
//! | [`memory`] | registered memory, memory windows |
//! | [`completions`], [`receives`] | completion queues, shared receive queues |
//! | [`listener`], [`ticket`] | connections before their queue pair |
//! | [`endpoint`] | queue pairs and their connections |
//! | `watch` | what the device says out of turn |
//!
//! Queue pairs are made and led through their states here, not by librdmacm: they live in a context of our
//! own, which stays until everything in it is gone (librdmacm closes its context when a device is removed),
//! and what the connection manager leaves at a default can be set (how soon a peer tries again that found
//! no receive, traffic class, retries).
//!
//! What keeps what alive, and so what is destroyed before what:
//!
//! ```text
//!   endpoint --> completion queue --> device (domain, then context)
//!     |    `---> shared receives --------^        ^
//!     `--> connection id --> event channel        |
//!   region, window -------------------------------'
//! ```
//!
//! A device that is removed: identifiers get an event, and when all that is made of it is dropped its context
//! is closed. librdmacm has a context of its own, which it closes when it is asked about devices the next time,
//! but not while there is no device at all; a driver that waits for contexts to be closed (soft RoCE does)
//! then finishes the removal when the process ends.
//!
//! Threads: both libraries lock what they share, so a device may be used from all threads; queues and
//! endpoints may move between threads and are used by one at a time (`&mut`).

pub mod completions;
pub mod device;
pub mod endpoint;
pub mod library;
pub mod listener;
pub mod memory;
pub mod receives;
pub mod ticket;

mod address;
mod connection;
mod post;
mod watch;

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
