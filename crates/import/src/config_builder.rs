//! The config under construction, and the daemon's rules for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nvmeof_wire::Nqn;
use serde::Serialize;

use crate::listeners::Listeners;
use crate::note::Notes;
use crate::prototype::Prototype;

/// Maximum characters of a device's name.
const NAME_MAX: usize = 64;
/// Maximum namespaces of a subsystem.
const NAMESPACES_MAX: usize = 1024;

/// A config of nvmeof-tgt under construction. `configs/target.toml` documents the names of its
/// keys.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ConfigBuilder {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reactors: Option<String>,
    #[serde(skip_serializing_if = "HostLimits::is_empty")]
    pub(crate) limits: HostLimits,
    #[serde(skip_serializing_if = "Discovery::is_empty")]
    pub(crate) discovery: Discovery,
    #[serde(rename = "listener", skip_serializing_if = "Listeners::is_empty")]
    pub(crate) listeners: Listeners,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device: Vec<Device>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subsystem: Vec<Subsystem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    referral: Vec<Referral>,
    /// Pacing of the other target.
    #[serde(skip)]
    pub(crate) prototype: Option<Prototype>,
    /// Devices that a namespace uses.
    #[serde(skip)]
    served: BTreeSet<String>,
    /// Identifiers that a namespace uses, with their kind before them.
    #[serde(skip)]
    identifiers: BTreeSet<String>,
}

/// Limits that hosts see.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct HostLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) io_queues: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_depth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_transfer: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_capsule: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_alive_min: Option<String>,
    #[serde(skip)]
    keep_alive_min_ms: u64,
}

impl HostLimits {
    /// Raises the minimum keep-alive timeout to `ms`.
    pub(crate) fn raise_keep_alive_min(&mut self, ms: u64) {
        self.keep_alive_min_ms = self.keep_alive_min_ms.max(ms);
        self.keep_alive_min = Some(format!("{}ms", self.keep_alive_min_ms));
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The discovery service.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Discovery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nqn: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) restricted: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mdns: bool,
}

impl Discovery {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Fabrics that nvmeof-tgt supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    Tcp,
    Rdma,
}

/// A device and its name.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Device {
    name: String,
    #[serde(flatten)]
    what: DeviceBackend,
}

/// Backend of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "kebab-case")]
pub(crate) enum DeviceBackend {
    Null {
        size: u64,
        block_size: u32,
    },
    Ram {
        size: u64,
        block_size: u32,
    },
    File {
        path: String,
        block_size: u32,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        read_only: bool,
    },
    Nvme {
        pci: String,
        nsid: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        io_timeout: Option<String>,
    },
    Split {
        base: String,
        #[serde(skip_serializing_if = "is_zero")]
        offset: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    Stripe {
        members: Vec<String>,
        chunk: u64,
    },
    Delay {
        base: String,
        read_latency: String,
        write_latency: String,
    },
    Fault {
        base: String,
    },
}

/// A subsystem, as hosts see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) allow_any_host: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<BTreeSet<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cntlid_min: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cntlid_max: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespace: Vec<Namespace>,
    /// Numbers of all namespaces of SPDK, also of those that are not taken over.
    #[serde(skip)]
    nsids: BTreeSet<u64>,
}

/// A namespace from the other config.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Namespace {
    pub(crate) nsid: u64,
    pub(crate) device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nguid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eui64: Option<String>,
    #[serde(skip_serializing_if = "NamespaceLimit::is_empty")]
    pub(crate) limit: NamespaceLimit,
    /// Name of the block device in a config of SPDK.
    #[serde(skip)]
    pub(crate) bdev: String,
}

/// Rate limit of a namespace.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NamespaceLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) iops: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<String>,
}

impl NamespaceLimit {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Another discovery service.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Referral {
    #[serde(rename = "type")]
    pub(crate) fabric: Fabric,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Name of its discovery subsystem, unless it is the well-known one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nqn: Option<String>,
}

impl ConfigBuilder {
    /// Adds a referral unless it exists.
    pub(crate) fn add_referral(&mut self, new: Referral) {
        if !self.referral.contains(&new) {
            self.referral.push(new);
        }
    }

    /// Adds a device under the requested name or a similar one, and returns the name.
    pub(crate) fn add_device(&mut self, wanted: &str, what: DeviceBackend) -> String {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let mut name: String =
            wanted.chars().map(|c| if good(c) { c } else { '_' }).take(NAME_MAX).collect();
        if name.is_empty() {
            name.push_str("device");
        }
        let taken = |name: &str| self.device.iter().any(|device| device.name == name);
        let mut number = 2;
        let stem: String = name.chars().take(NAME_MAX - 8).collect();
        while taken(&name) {
            name = format!("{stem}-{number}");
            number += 1;
        }
        self.device.push(Device { name: name.clone(), what });
        name
    }

    /// Returns the name and the backend of the file device of this path.
    pub(crate) fn file(&self, path: &str) -> Option<(&str, &DeviceBackend)> {
        let of = |what: &DeviceBackend| matches!(what, DeviceBackend::File { path: other, .. } if other == path);
        let device = self.device.iter().find(|device| of(&device.what))?;
        Some((&device.name, &device.what))
    }

    /// Returns a device for one more namespace on `device`: `device` itself for the first,
    /// otherwise a split of its whole size.
    fn share(&mut self, device: &str) -> String {
        if self.served.insert(device.to_owned()) {
            return device.to_owned();
        }
        let all = DeviceBackend::Split { base: device.to_owned(), offset: 0, size: None };
        let name = self.add_device(device, all);
        self.served.insert(name.clone());
        name
    }

    /// Adds a namespace to a subsystem, following the daemon's rules.
    pub(crate) fn add_namespace(
        &mut self,
        subsystem: &mut Subsystem,
        path: &str,
        namespace: Namespace,
        notes: &mut Notes,
    ) {
        let mut namespace = namespace;
        if subsystem.namespace.len() >= NAMESPACES_MAX {
            let what = format!("a subsystem has at most {NAMESPACES_MAX} namespaces here");
            notes.unsupported(path, what);
            return;
        }
        if subsystem.namespace.iter().any(|other| other.nsid == namespace.nsid) {
            let what = format!("the subsystem has a namespace {} already", namespace.nsid);
            notes.unsupported(path, what);
            return;
        }
        for (kind, digits, identifier) in [
            ("uuid", 32, &mut namespace.uuid),
            ("nguid", 32, &mut namespace.nguid),
            ("eui64", 16, &mut namespace.eui64),
        ] {
            let Some(text) = identifier.take() else { continue };
            let plain = digits_of(&text);
            if plain.chars().all(|c| c == '0') {
                // The other target writes this for an absent identifier.
                continue;
            }
            if plain.len() != digits || !plain.chars().all(|c| c.is_ascii_hexdigit()) {
                let what = format!("{kind} \"{text}\" is no identifier of {digits} digits");
                notes.unsupported(path, what);
            } else if self.identifiers.insert(format!("{kind} {plain}")) {
                *identifier = Some(text.to_ascii_lowercase());
            } else {
                let what =
                    format!("{kind} {text} is another namespace's already: it gets one of its own");
                notes.converted(path, what);
            }
        }
        namespace.device = self.share(&namespace.device);
        subsystem.namespace.push(namespace);
    }

    /// Removes a namespace of a subsystem and returns it. Its device and its identifiers are free
    /// for another namespace.
    pub(crate) fn remove_namespace(
        &mut self,
        subsystem: &mut Subsystem,
        nsid: u64,
    ) -> Option<Namespace> {
        let at = subsystem.namespace.iter().position(|namespace| namespace.nsid == nsid)?;
        let removed = subsystem.namespace.remove(at);
        self.served.remove(&removed.device);
        for (kind, identifier) in
            [("uuid", &removed.uuid), ("nguid", &removed.nguid), ("eui64", &removed.eui64)]
        {
            if let Some(text) = identifier {
                self.identifiers.remove(&format!("{kind} {}", digits_of(text)));
            }
        }
        Some(removed)
    }

    /// Adds a complete subsystem.
    pub(crate) fn add_subsystem(&mut self, mut subsystem: Subsystem) {
        if subsystem.allow_any_host {
            subsystem.hosts = None;
        }
        self.subsystem.push(subsystem);
    }

    /// Returns true if a subsystem has this name.
    pub(crate) fn has_subsystem(&self, nqn: &str) -> bool {
        self.subsystem.iter().any(|subsystem| subsystem.nqn == nqn)
    }

    /// Removes devices that nothing uses, and returns their names.
    pub(crate) fn prune(&mut self) -> Vec<String> {
        let mut used = self.served.clone();
        let mut bases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for device in &self.device {
            bases.insert(&device.name, device.what.bases());
        }
        let mut waiting: Vec<String> = used.iter().cloned().collect();
        while let Some(name) = waiting.pop() {
            for base in bases.get(name.as_str()).into_iter().flatten() {
                if used.insert((*base).to_owned()) {
                    waiting.push((*base).to_owned());
                }
            }
        }
        let gone = self.device.iter().filter(|device| !used.contains(&device.name));
        let gone = gone.map(|device| device.name.clone()).collect();
        self.device.retain(|device| used.contains(&device.name));
        gone
    }

    /// Completes the config after the last subsystem.
    pub(crate) fn complete(&mut self, path: &str, notes: &mut Notes) {
        for name in self.prune() {
            notes.not_applicable(path, format!("no namespace uses device \"{name}\""));
        }
        self.listeners.complete(path, &self.subsystem, notes);
    }

    /// Returns the config as TOML, with the pacing of the other target as comments.
    pub(crate) fn to_toml(&self) -> String {
        // Every type here has a form in TOML, and values come before tables.
        let mut text = toml::to_string(self)
            .unwrap_or_else(|error| format!("# it cannot be written: {error}\n"));
        if let Some(prototype) = &self.prototype {
            let reactors = self.reactors.as_deref().map(cpus_in);
            text.push_str(&prototype.to_comment(reactors, self.limits.max_transfer));
        }
        text
    }
}

impl DeviceBackend {
    fn bases(&self) -> Vec<&str> {
        match self {
            Self::Null { .. } | Self::Ram { .. } | Self::File { .. } | Self::Nvme { .. } => {
                Vec::new()
            }
            Self::Split { base, .. } | Self::Delay { base, .. } | Self::Fault { base } => {
                vec![base]
            }
            Self::Stripe { members, .. } => members.iter().map(String::as_str).collect(),
        }
    }
}

impl Subsystem {
    /// Creates a subsystem with a valid name, or returns the error of the name.
    pub(crate) fn new(nqn: &str) -> Result<Self, String> {
        let name = Nqn::new(nqn).map_err(|error| format!("\"{nqn}\": {error}"))?;
        if name.is_discovery() {
            return Err("the discovery service is always there".into());
        }
        Ok(Self {
            nqn: nqn.into(),
            allow_any_host: false,
            hosts: Some(BTreeSet::new()),
            serial: None,
            model: None,
            cntlid_min: None,
            cntlid_max: None,
            namespace: Vec::new(),
            nsids: BTreeSet::new(),
        })
    }

    /// Returns the numbers of its namespaces.
    pub(crate) fn nsids(&self) -> Vec<u64> {
        self.namespace.iter().map(|namespace| namespace.nsid).collect()
    }

    /// Takes a number for a namespace of SPDK, and returns it. 0 stands for the lowest free one.
    pub(crate) fn reserve_nsid(&mut self, nsid: u64) -> u64 {
        let lowest = (1..).find(|nsid| !self.nsids.contains(nsid)).unwrap_or(1);
        let nsid = if nsid == 0 { lowest } else { nsid };
        self.nsids.insert(nsid);
        nsid
    }

    /// Frees the number of a namespace of SPDK. Returns false if no namespace has it.
    pub(crate) fn release_nsid(&mut self, nsid: u64) -> bool {
        self.nsids.remove(&nsid)
    }

    /// Allows a host; returns the error of its name.
    pub(crate) fn allow(&mut self, host: &str) -> Result<(), String> {
        Nqn::new(host).map_err(|error| format!("\"{host}\": {error}"))?;
        if let Some(hosts) = &mut self.hosts {
            hosts.insert(host.into());
        }
        Ok(())
    }

    /// Returns true if no host may connect.
    pub(crate) fn admits_no_host(&self) -> bool {
        !self.allow_any_host && self.hosts.as_ref().is_none_or(BTreeSet::is_empty)
    }

    /// Revokes the permission of a host.
    pub(crate) fn revoke(&mut self, host: &str) {
        if let Some(hosts) = &mut self.hosts {
            hosts.remove(host);
        }
    }

    /// Returns a valid serial or model number: printable ASCII of 1 to `most` characters, without
    /// spaces at the ends.
    pub(crate) fn label(text: &str, most: usize) -> Option<String> {
        let text = text.trim();
        let printable = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        ((1..=most).contains(&text.len()) && printable).then(|| text.to_owned())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Returns the digits of an identifier, without the characters between them.
fn digits_of(identifier: &str) -> String {
    let digits = identifier.chars().filter(|c| !matches!(c, '-' | ':'));
    digits.map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the number of CPUs in a list as `0-3,8`.
fn cpus_in(list: &str) -> u64 {
    let count = |part: &str| match part.split_once('-') {
        Some((first, last)) => match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
            (Ok(first), Ok(last)) => last.saturating_sub(first).saturating_add(1),
            _ => 1,
        },
        None => 1,
    };
    list.split(',').map(count).sum()
}
