//! What the fuzz targets have in common: each target turns bytes into what a peer does, runs the code
//! of the daemon on it, and asserts what must hold whatever the peer does.
//!
//! The bytes are a program, not a packet: most programs are near what a host says in good order, so
//! that they get deep, and each may leave that order at any step.
#![forbid(unsafe_code)]

pub mod initiator;
pub mod input;
pub mod nvme_driver;
pub mod pdu_stream;
pub mod rdma_capsule;
pub mod rdma_connect;
pub mod sqe;
