//! The list, as `cargo run -p nvmeof-lab -- suite --quick --gaps FILE` writes it.

use super::Gap;

pub(super) const LIST: &[Gap] = &[];
