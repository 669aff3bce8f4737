//! Location of a function in the PCI topology, from the host bridge down.
//!
//! ```text
//!   host bridge pci0000:60          root complex 0000:60
//!    +- 60:01.1 -- 61:00.0 drive    adapter 0000:60:01: device 1, its functions are a slot's ports
//!    +- 60:01.2 -- 62:00.0 drive       the same
//!    +- 60:03.1 -- switch 65:00.0   adapter 0000:60:03.1: all functions below share that one port
//!                   +- 66:00.0 -- 67:00.0 drive
//!                   +- 66:01.0 -- 68:00.0 drive
//! ```

use std::fmt;
use std::path::{Component, Path};

use super::address::{Address, RootComplex};

/// Path to a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciLocation {
    /// Root complex at the start. A domain behind a function (Intel VMD) belongs to the root
    /// complex of that function.
    pub root_complex: RootComplex,
    /// Bridges on the path, from the root port to the function's own port. Empty for a function
    /// that is part of the root complex.
    pub ports: Vec<Address>,
    /// The function.
    pub function: Address,
}

/// Shared attachment of drives in a root complex: the device whose functions are their root ports,
/// or the single root port above a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adapter {
    /// Root complex.
    pub root_complex: RootComplex,
    /// Device number on the root bus.
    pub device: u8,
    /// Root port, if a switch is below it.
    pub port: Option<u8>,
}

impl PciLocation {
    /// Parses a resolved path below `/sys/devices`, like `pci0000:60/0000:60:01.1/0000:61:00.0`.
    /// `None` if it is no path to a PCI function.
    #[must_use]
    pub fn from_path(path: &Path) -> Option<Self> {
        let mut root_complex = None;
        let mut chain = Vec::new();
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let Some(name) = name.to_str() else { continue };
            if root_complex.is_none() {
                root_complex = name.strip_prefix("pci").and_then(|name| name.parse().ok());
            } else if let Ok(address) = name.parse() {
                chain.push(address);
            }
        }
        let function = chain.pop()?;
        Some(Self { root_complex: root_complex?, ports: chain, function })
    }

    /// Returns the port that the function is connected to.
    #[must_use]
    pub fn port(&self) -> Option<Address> {
        self.ports.last().copied()
    }

    /// Returns the adapter that the function shares with its neighbors.
    #[must_use]
    pub fn adapter(&self) -> Adapter {
        let first = self.ports.first().copied().unwrap_or(self.function);
        let switched = self.ports.len() > 1;
        Adapter {
            root_complex: self.root_complex,
            device: first.device,
            port: switched.then_some(first.function),
        }
    }
}

impl fmt::Display for Adapter {
    /// Formats the adapter as `0000:60:01`, or with its root port as `0000:60:01.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:02x}", self.root_complex, self.device)?;
        match self.port {
            Some(port) => write!(f, ".{port:x}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> PciLocation {
        PciLocation::from_path(Path::new(path)).unwrap()
    }

    #[test]
    fn a_drive_on_a_port_of_its_own() {
        let place = place("/sys/devices/pci0000:60/0000:60:01.1/0000:61:00.0");
        assert_eq!(place.root_complex.to_string(), "0000:60");
        assert_eq!(place.port().unwrap().to_string(), "0000:60:01.1");
        assert_eq!(place.adapter().to_string(), "0000:60:01");
    }

    #[test]
    fn a_drive_behind_a_switch() {
        let place =
            place("/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0/0000:22:01.0/0000:24:00.0");
        assert_eq!(place.ports.len(), 3);
        assert_eq!(place.port().unwrap().to_string(), "0000:22:01.0");
        assert_eq!(place.adapter().to_string(), "0000:20:01.1");
    }

    #[test]
    fn a_drive_of_the_root_complex_and_one_of_a_domain_behind_a_function() {
        let direct = place("/sys/devices/pci0000:00/0000:00:04.0");
        assert_eq!(direct.port(), None);
        assert_eq!(direct.adapter().to_string(), "0000:00:04");
        let vmd =
            place("/sys/devices/pci0000:60/0000:60:05.5/pci10000:00/10000:00:02.0/10000:01:00.0");
        assert_eq!(vmd.root_complex.to_string(), "0000:60");
        assert_eq!(vmd.function.to_string(), "10000:01:00.0");
    }

    #[test]
    fn a_path_to_something_else() {
        for path in ["/sys/devices/platform/nvme", "/sys/devices/pci0000:60", ""] {
            assert_eq!(PciLocation::from_path(Path::new(path)), None, "{path}");
        }
    }
}
