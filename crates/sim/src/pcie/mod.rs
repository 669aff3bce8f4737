//! Model of the joint read rate of several drives through PCI Express: no events, no time, only
//! shared limits.
//!
//! ```text
//!   drive -- adapter -- root complex -- pair of root complexes -- memory
//!   6.64   none, or 17.4    37.9               65.1             GiB/s, each the capacity
//! ```
//!
//! There are two ways to read. **Independent**: each drive has its own queue, and the capacity is
//! shared max-min fair. **Striped**: one queue distributes its reads to the drives in turn, as fio
//! with several files and as a stripe do.
//!
//! The outstanding reads of one queue gather at the slowest drive, and all drives run at its speed:
//! `n` drives read `n` times the rate of the slowest. An additional drive can therefore slow down
//! the whole. The seventh drive on a root complex with capacity for six takes 1/7 from all drives
//! of the machine, not only from its neighbors.
//!
//! | file | what |
//! |---|---|
//! | `machine` | numbers, from a file of `configs/pcie` |
//! | `share` | rate of each drive |
//! | `measured` | measured rows, compared with the model |

mod machine;
mod measured;
mod shared_link;

pub use machine::{PcieError, PcieMachine};
pub use measured::{Check, MEASURED, MeasuredRow, checks, compare, rows};
pub use shared_link::{LinkLoad, PcieReadMode, Read};
