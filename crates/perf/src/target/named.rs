//! Compares target names: a device or a subsystem has several spellings.

use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nvmeof_initiator::Endpoint;

use super::local::DeviceSpec;

/// Returns true if both name the same device, or the same subsystem at the same address.
pub(crate) fn is_same_target(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    match (one.parse(), other.parse()) {
        (Ok(DeviceSpec::File(one)), Ok(DeviceSpec::File(other))) => is_same_file(&one, &other),
        (Ok(one), Ok(other)) => one == other,
        // The parser of devices accepts no URL.
        (Err(_), Err(_)) => match (one.parse(), other.parse()) {
            (Ok(one), Ok(other)) => is_same_endpoint(&one, &other),
            _ => false,
        },
        _ => false,
    }
}

/// Returns true if both are one subsystem at one address, in any spelling. It resolves no name.
fn is_same_endpoint(one: &Endpoint, other: &Endpoint) -> bool {
    let address = |endpoint: &Endpoint| endpoint.address.host.parse::<IpAddr>().ok();
    let is_same_host = one.address.host == other.address.host
        || address(one).is_some_and(|ip| address(other) == Some(ip));
    let rest = |endpoint: &Endpoint| (endpoint.address.fabric, endpoint.address.port);
    is_same_host && rest(one) == rest(other) && one.subnqn == other.subnqn
}

/// Returns true if both lead to one file, or to one block device through any node.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (std::fs::metadata(one), std::fs::metadata(other)) else {
        return one == other;
    };
    let is_block = |meta: &std::fs::Metadata| meta.file_type().is_block_device();
    match (is_block(&one), is_block(&other)) {
        (true, true) => one.rdev() == other.rdev(),
        (false, false) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_device_in_other_words_is_the_same() {
        for (one, other) in [
            ("null:500g", "null:536870912000"),
            ("null:1t", "null"),
            ("ram:1m", "ram:1048576"),
            ("ram:1024k", "ram:1m"),
            ("pci:0000:61:00.0", "pci:61:00.0"),
            ("pci:0000:61:00.0/2", "pci:61:00.0/2"),
            ("/nowhere/a", "file:/nowhere/a"),
            (
                "tcp://[::1]:4420/nqn.2026-11.org.example:a",
                "tcp://[0::1]:4420/nqn.2026-11.org.example:a",
            ),
        ] {
            assert!(is_same_target(one, other), "{one} is {other}");
        }
        for (one, other) in [
            ("null:500g", "null"),
            ("ram:1m", "null:1m"),
            ("pci:0000:61:00.0", "pci:0000:62:00.0"),
            ("pci:0000:61:00.0/1", "pci:0000:61:00.0/2"),
            ("/nowhere/a", "/nowhere/b"),
            ("pci:0000:61:00.0", "tcp://127.0.0.1:4420/nqn.2026-11.org.example:a"),
            (
                "tcp://127.0.0.1:4420/nqn.2026-11.org.example:a",
                "tcp://127.0.0.1:4421/nqn.2026-11.org.example:a",
            ),
            ("", "tcp:"),
        ] {
            assert!(!is_same_target(one, other), "{one} is not {other}");
        }
    }

    #[test]
    fn a_file_is_the_same_by_every_path_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("disk"), "").unwrap();
        std::fs::write(at("other"), "").unwrap();
        std::os::unix::fs::symlink(at("disk"), at("link")).unwrap();
        let detour = format!("file:{}/./disk", folder.path().display());
        assert!(is_same_target(&at("disk"), &at("link")));
        assert!(is_same_target(&at("disk"), &detour));
        assert!(!is_same_target(&at("disk"), &at("other")));
        assert!(!is_same_target(&at("disk"), &at("missing")));
    }
}
