//! What several drives read together through a machine's PCI Express, as a model: no events, no time, only who shares
//! what.
//!
//! ```text
//!   drive -- root complex -- pair of root complexes -- memory
//!   6.64        37.9               65.1                 GiB/s, each the most that goes through
//! ```
//!
//! Two ways to read. **Independent**: each drive has a queue of its own, and what is carried is shared max-min fair.
//! **Striped**: one queue deals its reads to the drives in turn, as fio does with several files and as a stripe does.
//! Then what it has outstanding gathers before the slowest drive, and all go at that one's pace: `n` drives read `n`
//! times what the slowest does. That is why a drive more can make the whole slower: the seventh on a root complex that
//! carries six takes a seventh away from all drives of the machine, not only from its neighbours.
//!
//! | file | what |
//! |---|---|
//! | `machine` | the numbers, from a file of `configs/pcie` |
//! | `share` | who gets how much |
//! | `measured` | rows that others measured, and the model beside them |

mod machine;
mod measured;
mod share;

pub use machine::{PcieError, PcieMachine};
pub use measured::{Check, MEASURED, MeasuredRow, checks, compare, rows};
pub use share::{Load, Read, Reading};
