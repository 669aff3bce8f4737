//! Announcements of the discovery service by multicast DNS (TP 8009).
//!
//! Hosts that listen for `_nvme-disc._tcp` find the discovery service without its address. Each TCP
//! listener is one instance of the service.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use mdns_sd::{DaemonEvent, IfKind, ServiceDaemon, ServiceInfo};

use crate::logs::{LogCategory, limited};

/// Type of the service.
const SERVICE: &str = "_nvme-disc._tcp.local.";
/// Maximum bytes of a DNS label.
const LABEL_MAX: usize = 63;
/// Maximum time for the messages that withdraw the service.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// The instances that are announced now.
#[derive(Default)]
pub(super) struct Announcements {
    /// Runs in its own thread; `None` until something is announced.
    daemon: Option<ServiceDaemon>,
    announced: BTreeSet<Instance>,
}

/// An instance: a listener, and the NQN of the discovery service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instance {
    pub(super) address: SocketAddr,
    /// At `::`, it accepts no IPv4 hosts.
    pub(super) v6_only: bool,
    pub(super) nqn: String,
}

impl Announcements {
    /// Announces exactly these instances; withdraws others.
    ///
    /// The next call repeats what failed.
    pub(super) fn set(&mut self, wanted: &BTreeSet<Instance>) {
        if *wanted == self.announced {
            return;
        }
        if wanted.is_empty() {
            // Its end withdraws everything, and frees the port.
            self.announced.clear();
            drop(self.daemon.take().map(|daemon| daemon.shutdown()));
            return;
        }
        if let Err(error) = self.change(wanted) {
            limited!(
                LogCategory::Announcement,
                warn,
                %error,
                "the discovery service cannot be announced by multicast DNS, retrying"
            );
        }
    }

    /// Returns true if everything is announced that should be.
    pub(super) fn has(&self, wanted: &BTreeSet<Instance>) -> bool {
        self.announced == *wanted
    }

    /// Withdraws everything.
    pub(super) async fn end(&mut self) {
        let daemon = self.daemon.take();
        let Some(ended) = daemon.and_then(|daemon| daemon.shutdown().ok()) else { return };
        // Hosts forget the service on their own after its lifetime of minutes.
        let _ = tokio::time::timeout(WITHDRAWAL, ended.recv_async()).await;
    }

    fn change(&mut self, wanted: &BTreeSet<Instance>) -> Result<(), mdns_sd::Error> {
        let daemon = match &self.daemon {
            Some(daemon) => daemon,
            None => self.daemon.insert(start()?),
        };
        let host = host_name();
        let gone: Vec<Instance> = self.announced.difference(wanted).cloned().collect();
        for gone in gone {
            // The answer says only that it is done.
            drop(daemon.unregister(gone.record(&host)?.get_fullname())?);
            self.announced.remove(&gone);
        }
        let new: Vec<Instance> = wanted.difference(&self.announced).cloned().collect();
        for new in new {
            daemon.register(new.record(&host)?)?;
            tracing::debug!(address = %new.address, "discovery service announced");
            self.announced.insert(new);
        }
        Ok(())
    }
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").field("announced", &self.announced).finish_non_exhaustive()
    }
}

impl Instance {
    /// The records of the instance on the machine of this name.
    fn record(&self, host: &str) -> Result<ServiceInfo, mdns_sd::Error> {
        let ip = self.address.ip();
        let suffix = if ip.is_unspecified() {
            format!("-{}", self.address.port())
        } else {
            // Without dots, which the names of DNS escape.
            let ip = ip.to_string().replace(['.', ':'], "-");
            format!("-{ip}-{}", self.address.port())
        };
        let room = host.floor_char_boundary(LABEL_MAX.saturating_sub(suffix.len()));
        let name = format!("{}{suffix}", &host[..room]);
        // Its own name, because another responder of the machine announces the machine's name.
        let server = format!("nvmeof-tgt-{}.local.", &host[..host.floor_char_boundary(40)]);
        let keys = [("p", "tcp"), ("NQN", &self.nqn)];
        let port = self.address.port();
        if !ip.is_unspecified() {
            return ServiceInfo::new(SERVICE, &name, &server, ip, port, &keys[..]);
        }
        let mut info =
            ServiceInfo::new(SERVICE, &name, &server, "", port, &keys[..])?.enable_addr_auto();
        match (ip.is_ipv4(), self.v6_only) {
            (true, _) => info.set_interfaces(vec![IfKind::IPv4]),
            (false, true) => info.set_interfaces(vec![IfKind::IPv6]),
            (false, false) => {}
        }
        Ok(info)
    }
}

/// Starts the responder and logs its errors, for example of a network without multicast.
fn start() -> Result<ServiceDaemon, mdns_sd::Error> {
    let daemon = ServiceDaemon::new()?;
    let events = daemon.monitor()?;
    tokio::spawn(async move {
        while let Ok(event) = events.recv_async().await {
            if let DaemonEvent::Error(error) = event {
                limited!(LogCategory::Announcement, warn, %error, "multicast DNS");
            }
        }
    });
    Ok(daemon)
}

/// The first label of the machine's name.
fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use mdns_sd::ServiceEvent;

    use super::*;

    fn instance(address: &str) -> Instance {
        let nqn = "nqn.2026-11.org.example:finder".into();
        Instance { address: address.parse().unwrap(), v6_only: false, nqn }
    }

    #[test]
    fn records_name_transport_and_service() {
        let record = instance("192.0.2.1:8009").record("storage").unwrap();
        assert_eq!(record.get_fullname(), "storage-192-0-2-1-8009._nvme-disc._tcp.local.");
        assert_eq!(record.get_port(), 8009);
        assert_eq!(record.get_property_val_str("p"), Some("tcp"));
        let nqn = record.get_property_val_str("nqn");
        assert_eq!(nqn, Some("nqn.2026-11.org.example:finder"));
        assert!(record.get_addresses().contains(&"192.0.2.1".parse().unwrap()));
        let all = instance("[::]:4420").record(&"long".repeat(30)).unwrap();
        assert!(all.is_addr_auto());
        let label = all.get_fullname().split('.').next().unwrap();
        assert!(label.len() <= LABEL_MAX && label.ends_with("-4420"), "{label}");
    }

    /// A responder that uses the loopback interface only.
    fn on_loopback() -> ServiceDaemon {
        let daemon = ServiceDaemon::new().unwrap();
        daemon.disable_interface(IfKind::All).unwrap();
        daemon.enable_interface(IfKind::LoopbackV4).unwrap();
        daemon
    }

    #[tokio::test]
    async fn a_browser_finds_what_is_announced() {
        let browser = on_loopback();
        let found = browser.browse(SERVICE).unwrap();
        let mut announcements =
            Announcements { daemon: Some(on_loopback()), ..Announcements::default() };
        let wanted = instance("127.0.0.1:8009");
        announcements.set(&[wanted.clone()].into());
        let name = wanted.record(&host_name()).unwrap().get_fullname().to_owned();
        let next = async || {
            let event = tokio::time::timeout(Duration::from_secs(60), found.recv_async()).await;
            event.expect("an event in time").unwrap()
        };
        let resolved = loop {
            if let ServiceEvent::ServiceResolved(service) = next().await {
                break service;
            }
        };
        assert_eq!((resolved.get_fullname(), resolved.get_port()), (name.as_str(), 8009));
        announcements.set(&BTreeSet::new());
        loop {
            if let ServiceEvent::ServiceRemoved(_, gone) = next().await {
                assert_eq!(gone, name);
                break;
            }
        }
        announcements.end().await;
        browser.shutdown().unwrap();
    }
}
