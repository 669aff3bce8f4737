//! Arithmetic of a load: place, size and pattern of its I/Os. No I/O, no clock.
//!
//! | file | content |
//! |---|---|
//! | `distribution` | distribution of random I/Os over a space: uniform, or with hot places |
//! | `scatter` | positions of the hot places, scattered over the space |
//! | `sizes` | block sizes and their shares |

pub(crate) mod distribution;
mod scatter;
pub(crate) mod sizes;
