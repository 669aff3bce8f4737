//! PCI functions as the system reports them: location, driver and users.
//!
//! | file | contents |
//! |---|---|
//! | `address` | `0000:61:00.0` and `0000:60` |
//! | `topology` | the path from the host bridge to a function, and its shared parts |
//! | `link` | speed and width, in GB/s |
//! | `function` | NVMe functions and their attributes |
//! | `node` | device nodes by their numbers |
//! | `disk` | the drive of a block device |
//! | `users` | users of a drive: mounts, swap, holders, programs |
//! | `bind` | binding a function to `vfio-pci` and back |
//! | `order` | round-robin over root complexes and adapters |
//! | `load` | root complexes and ports with more demand than capacity; uneven stripes |
//!
//! Everything is read below the folders of [`System`], so that a simulated machine is read like
//! this one.

mod address;
mod bind;
mod disk;
mod function;
mod interleave;
mod link;
mod load;
mod node;
mod system;
mod topology;
pub mod users;

pub use address::{Address, AddressError, RootComplex};
pub use bind::{BindError, BindPlan, NVME_DRIVER, Sysfs, SysfsWrite, SysfsWriter, VFIO_DRIVER};
pub use disk::Disk;
pub use function::{KernelController, Links, Namespace, PciFunction};
pub use interleave::order;
pub use link::{Link, PAYLOAD_SHARE};
pub use load::{
    Capacities, MEASURED_ROOT_COMPLEX_GB_PER_S, RootComplexLoad, Warning, loads, uneven, warnings,
};
pub use node::{NodeId, NodeKind};
pub use system::{PciError, System};
pub use topology::{Adapter, PciLocation};
