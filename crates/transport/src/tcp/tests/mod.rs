//! A raw host over a real socket; the wire crate makes its bytes, and another CRC checks them.

mod data;
mod handshake;
mod life;
mod malformed;
mod slow;
mod split;
mod world;
