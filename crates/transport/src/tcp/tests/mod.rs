//! A raw host over a real socket, its bytes made with the wire crate and checked with another CRC.

mod data;
mod handshake;
mod life;
mod malformed;
mod slow;
mod split;
mod world;
