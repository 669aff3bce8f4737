//! Listeners of the config under construction, and the subsystems that each serves.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nvmeof_api::document::NVM_PORT;
use serde::Serialize;

use crate::config_builder::{Fabric, Subsystem};
use crate::listen_address::ListenAddress;
use crate::note::Notes;

/// Value of `fold-responses` with which only hosts that disable SQ flow control get no response.
const IF_DISABLED: &str = "if-disabled";

/// A listener for hosts.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Listener {
    #[serde(rename = "type")]
    fabric: Fabric,
    address: IpAddr,
    port: u16,
    /// Subsystems that it serves, if it does not serve all.
    #[serde(skip_serializing_if = "Option::is_none")]
    subsystems: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fold_responses: Option<&'static str>,
    /// Path of the first address that became this listener.
    #[serde(skip)]
    path: String,
    /// The other target has no IPv4 hosts at this listener for `::`.
    #[serde(skip)]
    is_v6_only: bool,
    #[serde(skip)]
    served: BTreeSet<String>,
}

/// Listeners in the order of the other config.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Listeners(Vec<Listener>);

impl Listener {
    fn covers(&self, other: &Self) -> bool {
        let same = self.fabric == other.fabric && self.port == other.port && self.port != 0;
        let all = self.address.is_unspecified();
        same && all && self.address.is_ipv4() == other.address.is_ipv4()
    }

    fn is_at(&self, (fabric, address, port): ListenAddress) -> bool {
        (self.fabric, self.address, self.port) == (fabric, address, port)
    }
}

impl Listeners {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a listener that serves the subsystems `served`. One for all addresses replaces those
    /// for single addresses, and serves their subsystems, too.
    pub(crate) fn add(
        &mut self,
        path: &str,
        address: ListenAddress,
        is_v6_only: bool,
        served: impl IntoIterator<Item = String>,
        notes: &mut Notes,
    ) {
        if let Some(same) = self.0.iter_mut().find(|one| one.is_at(address)) {
            same.served.extend(served);
            return;
        }
        let (fabric, address, port) = address;
        let mut new = Listener {
            fabric,
            address,
            port,
            subsystems: None,
            fold_responses: None,
            path: path.to_owned(),
            is_v6_only,
            served: served.into_iter().collect(),
        };
        if let Some(all) = self.0.iter_mut().find(|other| other.covers(&new)) {
            all.served.append(&mut new.served);
            let what = format!("the listener for all addresses has {} already", new.address);
            notes.converted(path, what);
            return;
        }
        let before = self.0.len();
        self.0.retain_mut(|other| {
            let is_covered = new.covers(other);
            if is_covered {
                new.served.append(&mut other.served);
            }
            !is_covered
        });
        if self.0.len() < before {
            notes.converted(path, "it takes the place of the listeners for single addresses");
        }
        self.0.push(new);
    }

    /// Folds responses into data over TCP only for hosts that disable SQ flow control.
    pub(crate) fn fold_if_disabled(&mut self) {
        for listener in self.0.iter_mut().filter(|one| one.fabric == Fabric::Tcp) {
            listener.fold_responses = Some(IF_DISABLED);
        }
    }

    /// Completes the listeners when all subsystems are known. The daemon does not start without a
    /// listener.
    pub(crate) fn complete(&mut self, path: &str, subsystems: &[Subsystem], notes: &mut Notes) {
        if self.0.is_empty() {
            let address = (Fabric::Tcp, Ipv4Addr::LOCALHOST.into(), NVM_PORT);
            let names = subsystems.iter().map(|subsystem| subsystem.nqn.clone());
            self.add(path, address, false, names, notes);
            let what = format!(
                "no listener is left: one at tcp 127.0.0.1:{NVM_PORT} takes their place, for a start"
            );
            notes.converted(path, what);
        }
        let v4: Vec<(Fabric, u16)> = self.v4_ports();
        for listener in &mut self.0 {
            let names = subsystems.iter().map(|subsystem| &subsystem.nqn);
            let served: Vec<String> =
                names.filter(|nqn| listener.served.contains(*nqn)).cloned().collect();
            listener.subsystems = (served.len() < subsystems.len()).then_some(served);
            let any_v6 = listener.address == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            if any_v6 && listener.is_v6_only && !v4.contains(&(listener.fabric, listener.port)) {
                let what = "IPv4 hosts can connect, too: \"::\" there takes IPv6 hosts only";
                notes.converted(&listener.path, what);
            }
        }
    }

    fn v4_ports(&self) -> Vec<(Fabric, u16)> {
        let v4 = self.0.iter().filter(|listener| listener.address.is_ipv4());
        v4.map(|listener| (listener.fabric, listener.port)).collect()
    }
}
