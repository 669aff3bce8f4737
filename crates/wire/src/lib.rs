//! Conversion of NVMe and NVMe-oF bytes to types and back.
//!
//! The crate has no I/O, no `unsafe` and no state. A *layout* struct has the size and byte order of
//! the wire and can be viewed in place ([`zerocopy`]). A *parsed* type has host integers, counts
//! instead of 0's-based numbers, and only checked values. Enumerations of values from a peer are
//! open: a value without a name in this crate is kept, not rejected.
//!
//! Every parser is total. Any bytes give a value or an error; no parser panics, and none allocates
//! by a length from the peer.
//!
//! | module | contents | |
//! |---|---|---|
//! | [`sqe`], [`cqe`], [`status`], [`opcode`], [`sgl`] | the command, its completion, the data pointer | Base 3.3.3, 4.1.2 |
//! | [`prp`], [`pcie`], [`queues`] | structures of PCIe controllers only: PRPs, doorbells, queues in host memory | Base 4.1.1, 5.4 to 5.8, PCIe 3.1 |
//! | [`format`](mod@format), [`sanitize`] | the commands that destroy data | Base 5.14, 5.24 |
//! | [`fabrics`], [`nqn`], [`properties`] | Connect, Property Get and Set, Disconnect; names; CAP, CC, CSTS | Base 6, 4.5, 3.1.3 |
//! | [`identify`], [`log`], [`features`], [`aer`], [`abort`] | admin commands and their data | Base 5, NVM 4 |
//! | [`nvm`] | Read, Write, Compare, Write Zeroes, Verify, Dataset Management | NVM 3 |
//! | [`tcp`] | NVMe/TCP PDUs and their checks | TCP 3 |
//! | [`rdma`] | private data of the RDMA connection manager | RDMA 3 |
//! | [`ascii`] | space-padded text fields | Base 1.4 |
//!
//! `T::ref_from_bytes` and `T::read_from_bytes` of [`zerocopy::FromBytes`] read a structure, and
//! [`zerocopy::IntoBytes::as_bytes`] writes one. `encode` and `parse` of a command's type convert
//! commands:
//!
//! ```
//! use nvmeof_wire::nvm::BlockIo;
//! use nvmeof_wire::opcode::IoOpcode;
//! use nvmeof_wire::sgl::Sgl;
//!
//! let sqe = BlockIo::new(0x1000, 8).encode(IoOpcode::READ, 7, 1).with_sgl(Sgl::Transport { length: 4096 });
//! let io = BlockIo::parse(&sqe);
//! assert_eq!((io.range.slba, io.range.blocks), (0x1000, 8));
//! assert!(io.range.is_within(0x2000));
//! ```
//!
//! Section numbers are those of these specifications: NVM Express Base 2.0 ("Base"), NVM Command
//! Set 1.0 ("NVM"), NVMe/TCP Transport 1.0 ("TCP"), NVMe/RDMA Transport 1.0 ("RDMA") and NVMe over
//! PCIe Transport 1.0 ("PCIe").
#![forbid(unsafe_code)]

#[cfg(test)]
mod golden;
mod open;

pub mod abort;
pub mod aer;
pub mod ascii;
pub mod cqe;
pub mod fabrics;
pub mod features;
pub mod format;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod nvm;
pub mod opcode;
pub mod pcie;
pub mod properties;
pub mod prp;
pub mod queues;
pub mod rdma;
pub mod sanitize;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod tcp;

pub use cqe::Cqe;
pub use nqn::Nqn;
pub use sgl::{Sgl, SglDescriptor};
pub use sqe::Sqe;
pub use status::Status;

/// Crate whose traits view layout structs as bytes, in the version that this crate uses.
pub use zerocopy;
/// Little-endian integers used in layout structs.
pub use zerocopy::little_endian::{U16, U32, U64, U128};
