//! The list, as `cargo run -p nvmeof-sim --example suite -- --quick --gaps FILE` writes it.

use super::Gap;

pub(super) const LIST: &[Gap] = &[];
