//! Checks of error messages.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nvmeof_verbs::system::{Listener, ListenerOptions, SystemDevice, resolve};
use nvmeof_verbs::{Device, PendingConnection, VerbsError};
use nvmeof_verbs_conformance::{ACCESS, Memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::ends::{self, listen};

/// An address for documentation, which no machine has.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn refused(address: SocketAddr, options: &ListenerOptions) -> Result<VerbsError> {
    match Listener::bind(address, 8, options) {
        Ok(listener) => bail!("{listener:?} listens"),
        Err(error) => {
            println!("     {error}");
            Ok(error)
        }
    }
}

pub(crate) fn listening(address: IpAddr) -> Result<()> {
    let any = ListenerOptions::default();
    let listener = listen(address)?;
    let taken = listener.local_addr();
    ensure!(taken.port() != 0 && taken.ip() == address, "listening at {taken}");
    match refused(taken, &any)? {
        VerbsError::Call { source, .. } if source.kind() == ErrorKind::AddrInUse => {}
        other => bail!("{other:?}"),
    }
    match refused(SocketAddr::new(NOBODY, 0), &any)? {
        VerbsError::NoDeviceAt { address } if address.ip() == NOBODY => {}
        other => bail!("{other:?}"),
    }
    let other = ListenerOptions { device: Some("mlx5_77".to_owned()), ..any.clone() };
    match refused(SocketAddr::new(address, 0), &other)? {
        VerbsError::OtherDevice { wanted, .. } if &*wanted == "mlx5_77" => {}
        other => bail!("{other:?}"),
    }
    let other = ListenerOptions { gid_index: Some(0), ..any.clone() };
    match refused(SocketAddr::new(address, 0), &other)? {
        VerbsError::OtherGid { index: 0, .. } => {}
        other => bail!("{other:?}"),
    }
    let Some(device) = listener.device() else { bail!("the listener has no device") };
    let name = device.name().to_owned();
    let found = (0..16).find(|index| {
        let options = ListenerOptions {
            device: Some(name.clone()),
            gid_index: Some(*index),
            traffic_class: Some(0x68),
            ..ListenerOptions::default()
        };
        Listener::bind(SocketAddr::new(address, 0), 8, &options).is_ok()
    });
    ensure!(found.is_some(), "no GID index of {name} is {address}");
    let same = SystemDevice::by_name(&name)?;
    ensure!(Arc::ptr_eq(device, &same), "two of one device");
    match SystemDevice::by_name("mlx5_77") {
        Err(VerbsError::UnknownDevice { have, .. }) if have.contains(&name) => Ok(()),
        other => bail!("{other:?}"),
    }
}

pub(crate) fn route(address: IpAddr) -> Result<()> {
    // The port has no listener, but the route resolves; the rejection would be an event.
    resolve(SocketAddr::new(address, 1), None, Duration::from_secs(5))?;
    let there = SocketAddr::new(address, 1);
    match resolve(there, Some(NOBODY), Duration::from_secs(5)) {
        Err(VerbsError::NoDeviceAt { address }) if address.ip() == NOBODY => Ok(()),
        other => bail!("{other:?}"),
    }
}

#[expect(clippy::print_stdout, reason = "a person reads it")]
pub(crate) fn locked_memory(address: IpAddr) -> Result<()> {
    let listener = listen(address)?;
    let ticket = ends::route(&listener)?;
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    sets.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets)?;
    let maximum = getrlimit(Resource::Memlock).maximum;
    setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), maximum })?;
    let bytes = 4 << 20;
    match Memory::new(ticket.device(), bytes, ACCESS) {
        Err(error @ VerbsError::LockedMemory { bytes: told, .. }) if told == bytes => {
            println!("     {error}");
            Ok(())
        }
        Err(other) => bail!("{other:?}"),
        Ok(memory) => bail!("{} bytes are registered", memory.len()),
    }
}
