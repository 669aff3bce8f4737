//! What a load asks, by arithmetic alone: which place, how many bytes, in which pattern. No I/O, no clock.
//!
//! | file | what |
//! |---|---|
//! | `distribution` | how random I/Os spread over a space: evenly, or with hot places |
//! | `scatter` | where the hot places are: all over the space |
//! | `sizes` | block sizes and their shares |

pub(crate) mod distribution;
mod scatter;
pub(crate) mod sizes;
