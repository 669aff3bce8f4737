//! Device, address and packet size, from sysfs.
//!
//! `<class>/<device>/ports/<port>/gids/<index>` is an address, `gid_attrs/types/<index>` its type and
//! `gid_attrs/ndevs/<index>` its network interface.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::{Mtu, PathArgs};

/// Bytes of a RoCE v2 packet around its data, with the largest headers.
const HEADERS: u32 = 80;

/// A device with the used port and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) mtu: Mtu,
}

/// Determines the settings that the command line omits.
///
/// # Errors
/// The missing item, with the remedy.
pub(crate) fn find(args: &PathArgs) -> Result<Port> {
    Classes { rdma: "/sys/class/infiniband".into(), net: "/sys/class/net".into() }.find(args)
}

/// Folder of the devices in sysfs.
struct Classes {
    rdma: PathBuf,
    net: PathBuf,
}

impl Classes {
    fn find(&self, args: &PathArgs) -> Result<Port> {
        let device = self.device(args.device.as_deref())?;
        let port = self.rdma.join(&device).join("ports").join(args.device_port.to_string());
        if !port.is_dir() {
            bail!("device {device} has no port {}: see `rdma link`", args.device_port);
        }
        let gid_index = match args.gid_index {
            Some(index) => index,
            None => ipv4_index(&port).with_context(|| {
                format!(
                    "device {device} has no IPv4 address over RoCE v2: give its network interface an \
                     address, or choose one of its addresses with --gid-index (`ibv_devinfo -v`)"
                )
            })?,
        };
        let mtu = match args.mtu {
            Some(mtu) => mtu,
            None => self.mtu(&port, gid_index),
        };
        Ok(Port { device, port: args.device_port, gid_index, mtu })
    }

    /// Returns the requested device, or the only one.
    fn device(&self, wanted: Option<&str>) -> Result<String> {
        let mut names = list(&self.rdma);
        names.sort_unstable();
        match (wanted, names.as_slice()) {
            (_, []) => bail!(
                "this machine has no RDMA device: load its driver, or make a soft one with \
                 `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev INTERFACE`"
            ),
            (Some(wanted), names) if names.iter().any(|name| name == wanted) => {
                Ok(wanted.to_owned())
            }
            (Some(wanted), names) => {
                bail!("there is no RDMA device {wanted}; there are: {}", names.join(", "))
            }
            (None, [only]) => Ok(only.clone()),
            (None, names) => {
                bail!(
                    "there are several RDMA devices ({}): choose one with --device",
                    names.join(", ")
                )
            }
        }
    }

    /// Returns the largest packet size of the network interface, or one that fits any.
    fn mtu(&self, port: &Path, index: u8) -> Mtu {
        let interface = read(&port.join("gid_attrs/ndevs").join(index.to_string()));
        let bytes = interface.and_then(|name| read(&self.net.join(name).join("mtu")));
        let bytes: u32 = bytes.and_then(|text| text.parse().ok()).unwrap_or(1500);
        let fits = |mtu: &Mtu| mtu.bytes() + HEADERS <= bytes;
        Mtu::ALL.into_iter().find(fits).unwrap_or(Mtu::B256)
    }
}

/// Returns the first IPv4 address of a port over RoCE v2.
fn ipv4_index(port: &Path) -> Option<u8> {
    (0..=u8::MAX).find(|index| {
        let gid = read(&port.join("gids").join(index.to_string()));
        let kind = read(&port.join("gid_attrs/types").join(index.to_string()));
        let ipv4 = gid.is_some_and(|gid| gid.starts_with("0000:0000:0000:0000:0000:ffff:"));
        ipv4 && kind.is_some_and(|kind| kind.eq_ignore_ascii_case("RoCE v2"))
    })
}

/// Returns the names in a folder; none if the folder does not exist.
fn list(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    const LINK_LOCAL: &str = "fe80:0000:0000:0000:5054:00ff:fe12:3456";
    const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0101";

    /// A folder like sysfs, removed on drop.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("wire-limit-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("rdma")).expect("a folder");
            Self(path)
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, format!("{text}\n")).expect("a file");
        }

        fn with_device(self, name: &str, net_mtu: u32) -> Self {
            let port = format!("rdma/{name}/ports/1");
            for (index, gid, kind) in
                [(0, LINK_LOCAL, "RoCE v2"), (1, IPV4, "IB/RoCE v1"), (2, IPV4, "RoCE v2")]
            {
                self.write(&format!("{port}/gids/{index}"), gid);
                self.write(&format!("{port}/gid_attrs/types/{index}"), kind);
                self.write(&format!("{port}/gid_attrs/ndevs/{index}"), "net0");
            }
            self.write("net/net0/mtu", &net_mtu.to_string());
            self
        }

        fn find(&self, args: &PathArgs) -> Result<Port> {
            Classes { rdma: self.0.join("rdma"), net: self.0.join("net") }.find(args)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn args(device: Option<&str>) -> PathArgs {
        let device = device.map(str::to_owned);
        PathArgs { device, device_port: 1, gid_index: None, mtu: None, reads: 16 }
    }

    #[test]
    fn the_only_device_is_taken_with_its_address_and_its_packets() {
        let machine = Machine::new("one").with_device("rxe0", 9000);
        let port = machine.find(&args(None)).expect("a device");
        let wanted = Port { device: "rxe0".into(), port: 1, gid_index: 2, mtu: Mtu::B4096 };
        assert_eq!(port, wanted);
        let small = Machine::new("small").with_device("rxe0", 1500);
        assert_eq!(small.find(&args(None)).expect("a device").mtu, Mtu::B1024);
    }

    #[test]
    fn what_is_missing_is_said() {
        let nothing = Machine::new("nothing").find(&args(None)).expect_err("no device");
        assert!(nothing.to_string().contains("rdma link add"), "{nothing}");
        let two = Machine::new("two").with_device("a", 1500).with_device("b", 1500);
        let several = two.find(&args(None)).expect_err("two devices");
        assert!(several.to_string().contains("(a, b)"), "{several}");
        assert!(two.find(&args(Some("b"))).is_ok());
        let unknown = two.find(&args(Some("c"))).expect_err("no such device");
        assert!(unknown.to_string().contains("there are: a, b"), "{unknown}");
        let mut other_port = args(Some("a"));
        other_port.device_port = 2;
        assert!(two.find(&other_port).is_err());
    }

    #[test]
    fn a_device_without_an_ipv4_address_needs_an_index() {
        let machine = Machine::new("v6");
        machine.write("rdma/rxe0/ports/1/gids/0", LINK_LOCAL);
        machine.write("rdma/rxe0/ports/1/gid_attrs/types/0", "RoCE v2");
        let error = machine.find(&args(None)).expect_err("no address");
        assert!(error.to_string().contains("--gid-index"), "{error}");
        let mut chosen = args(None);
        chosen.gid_index = Some(0);
        assert_eq!(machine.find(&chosen).expect("a device").mtu, Mtu::B1024);
    }
}
