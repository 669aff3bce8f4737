//! The list, as `cargo run -p nvmeof-sim --example suite -- --quick --gaps FILE` writes it.

use super::Gap;
use crate::suite::Family;

pub(super) const LIST: &[Gap] = &[Gap {
    family: Family::Stall,
    case: "B half the link, kernel qd 4",
    what: "up after ms",
    reached: 370.00,
    why: "two of the first three seeds and none of the next twelve; the load wanders by more than 2 % in 50 ms unpaced, too, and is back for good after 270 ms",
}];
