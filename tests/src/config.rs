//! Pieces of a config file, to be concatenated. Keys without a table go first.

use std::fmt::Write as _;
use std::path::Path;

/// A subsystem of the tests.
pub const NQN: &str = "nqn.2026-11.io.nvmeof-tgt:test";
/// Another subsystem of the tests.
pub const OTHER_NQN: &str = "nqn.2026-11.io.nvmeof-tgt:other";

/// Returns a listener on `address`, at a port that the system chooses.
#[must_use]
pub fn listener(address: &str) -> String {
    listener_at(address, 0)
}

/// Returns a listener at this port.
#[must_use]
pub fn listener_at(address: &str, port: u16) -> String {
    format!("\n[[listener]]\ntype = \"tcp\"\naddress = \"{address}\"\nport = {port}\n")
}

/// Returns the API, at a socket in the daemon's folder.
#[must_use]
pub fn api() -> String {
    format!("\n[api]\nsocket = \"{}\"\n", crate::api::SOCKET)
}

/// Returns a device in memory.
#[must_use]
pub fn ram(name: &str, size: &str, block_size: u32) -> String {
    format!(
        "\n[[device]]\nname = \"{name}\"\ntype = \"ram\"\nsize = \"{size}\"\n\
         block-size = {block_size}\n"
    )
}

/// Returns a file device whose file is created.
#[must_use]
pub fn file(name: &str, path: &Path, size: &str, block_size: u32) -> String {
    format!(
        "\n[[device]]\nname = \"{name}\"\ntype = \"file\"\npath = \"{}\"\ncreate = true\n\
         size = \"{size}\"\nblock-size = {block_size}\n",
        path.display()
    )
}

/// Returns a device on top of `base`, slower by these latencies.
#[must_use]
pub fn delay(name: &str, base: &str, read: &str, write: &str) -> String {
    format!(
        "\n[[device]]\nname = \"{name}\"\ntype = \"delay\"\nbase = \"{base}\"\n\
         read-latency = \"{read}\"\nwrite-latency = \"{write}\"\n"
    )
}

/// Returns a device of any type, with these keys.
#[must_use]
pub fn device(name: &str, kind: &str, keys: &str) -> String {
    format!("\n[[device]]\nname = \"{name}\"\ntype = \"{kind}\"\n{keys}\n")
}

/// Returns a subsystem for every host, with these namespaces and devices.
#[must_use]
pub fn subsystem(nqn: &str, namespaces: &[(u32, &str)]) -> String {
    let mut text = format!("\n[[subsystem]]\nnqn = \"{nqn}\"\nallow-any-host = true\n");
    add_namespaces(&mut text, namespaces);
    text
}

/// Returns a subsystem for these hosts.
#[must_use]
pub fn subsystem_for(hosts: &[&str], nqn: &str, namespaces: &[(u32, &str)]) -> String {
    let mut text = format!("\n[[subsystem]]\nnqn = \"{nqn}\"\nhosts = {hosts:?}\n");
    add_namespaces(&mut text, namespaces);
    text
}

/// Returns one listener, one subsystem, one namespace in memory: 64 MiB in blocks of 512 bytes.
#[must_use]
pub fn small() -> String {
    [listener("127.0.0.1"), ram("ram0", "64MiB", 512), subsystem(NQN, &[(1, "ram0")])].concat()
}

fn add_namespaces(text: &mut String, namespaces: &[(u32, &str)]) {
    for (nsid, device) in namespaces {
        let written =
            write!(text, "\n[[subsystem.namespace]]\nnsid = {nsid}\ndevice = \"{device}\"\n");
        written.expect("a string takes it");
    }
}
