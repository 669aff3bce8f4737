//! PCI functions as the system knows them: where they hang, what drives them, who uses them.
//!
//! | file | what |
//! |---|---|
//! | `address` | `0000:61:00.0` and `0000:60` |
//! | `topology` | the way from the host bridge to a function, and what it shares on it |
//! | `link` | speed and width, in GB/s |
//! | `function` | NVMe functions and what is known of them |
//! | `node` | device nodes by their numbers |
//! | `disk` | which drive a block device is on |
//! | `users` | who uses a drive: mounts, swap, holders, programs |
//! | `bind` | handing a function to `vfio-pci` and back |
//! | `order` | round-robin over root complexes and adapters |
//! | `load` | root complexes and ports that more hangs on than they carry; uneven stripes |
//!
//! Everything is read below [`System`]'s folders, so that a made-up machine is read as this one is.

mod address;
mod bind;
mod disk;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod function;
mod link;
mod load;
mod node;
mod order;
mod system;
#[cfg(test)]
mod tests;
mod topology;
pub mod users;

pub use address::{Address, AddressError, RootComplex};
pub use bind::{BindError, NVME_DRIVER, Plan, Step, Sysfs, VFIO_DRIVER, Writes};
pub use disk::Disk;
pub use function::{KernelController, Links, Namespace, PciFunction};
pub use link::{Link, PAYLOAD_SHARE};
pub use load::{
    Capacities, MEASURED_ROOT_COMPLEX_GB_PER_S, RootComplexLoad, Warning, loads, uneven, warnings,
};
pub use node::{NodeId, NodeKind};
pub use order::order;
pub use system::{PciError, System};
pub use topology::{Adapter, Place};
