//! Common parts of the fuzz targets. Each target turns bytes into a peer's actions, runs the
//! daemon's code on them, and asserts its invariants for any peer.
//!
//! The bytes are a program, not a packet. Most programs are near a peer's valid behavior, so that
//! they reach deep states, and each can deviate from it at any step.
#![forbid(unsafe_code)]

pub mod initiator;
pub mod input;
pub mod nvme_driver;
pub mod pdu_stream;
pub mod rdma_capsule;
pub mod rdma_connect;
pub mod sqe;
