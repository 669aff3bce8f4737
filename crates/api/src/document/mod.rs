//! A config as a value: the content of `target.toml`, without comments.
//!
//! It is the only form in which a state is read, changed, compared and written. The daemon
//! validates it.

pub mod device;
mod difference;
pub mod edit;
pub mod pacing;
mod size;
mod tables;
pub mod tagged;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use device::{Device, DeviceConfig};
pub use difference::{Action, Difference, KeyChange};
pub use pacing::PacingConfig;
pub use size::Size;
pub use tables::{
    ApiSection, DiscoverySection, Host, HostDefaults, Limit, LimitsSection, Listener, Namespace,
    Referral, RootComplex, RpcSection, Subsystem,
};

use tagged::Variant;

/// Newest config format of this version; written into every file.
pub const FORMAT: u32 = 1;

/// Port of NVMe over Fabrics.
pub const NVM_PORT: u16 = 4420;
/// Port of the discovery service.
pub const DISCOVERY_PORT: u16 = 8009;
/// Well-known NQN of the discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A whole config.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    /// Format of the config; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<u32>,
    /// CPUs that run a reactor: `"0-3,8"`, or `"auto"`. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reactors: Option<String>,
    /// Reactors never sleep. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<bool>,
    /// Maximum time for commands in flight to complete when the daemon stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<String>,
    /// Log level. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Format of log lines: `text` or `json`. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<String>,
    /// Control API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiSection>,
    /// SPDK's JSON-RPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<RpcSection>,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSection>,
    /// Pacing policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing: Option<PacingConfig>,
    /// Limits of hosts without their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_defaults: Option<HostDefaults>,
    /// Limits of single hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<Host>,
    /// Discovery service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoverySection>,
    /// Addresses that hosts connect to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listener: Vec<Listener>,
    /// Block devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<Device>,
    /// Capacities of root complexes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root_complex: Vec<RootComplex>,
    /// NVM subsystems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subsystem: Vec<Subsystem>,
    /// Other discovery services that hosts are referred to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referral: Vec<Referral>,
}

/// A table whose other keys depend on one key, its tag.
pub trait Tagged: Sized + 'static {
    /// The tag, like `type`.
    const TAG: &'static str;
    /// Variant of a table without the tag; `None` if the tag is required.
    const DEFAULT: Option<&'static str>;
    /// Required keys of all variants; their values are text.
    const COMMON: &'static [&'static str];

    /// Returns all variants in order.
    fn variants() -> &'static [Variant<Self>];

    /// Returns the value of its tag.
    fn name(&self) -> &'static str;
}

/// Error of a text that is not a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError(String);

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DocumentError {}

impl Document {
    /// Parses TOML.
    ///
    /// # Errors
    /// The text is not TOML, or has an unknown key or a value of the wrong type.
    pub fn from_toml(text: &str) -> Result<Self, DocumentError> {
        toml::from_str(text).map_err(|error| DocumentError(error.to_string()))
    }

    /// Writes TOML for `--config`.
    ///
    /// # Errors
    /// A number exceeds the maximum of TOML: 2^63 - 1.
    pub fn to_toml(&self) -> Result<String, DocumentError> {
        toml::to_string_pretty(self).map_err(|error| DocumentError(error.to_string()))
    }

    /// Returns the device with this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.device.iter().find(|device| device.name == name)
    }

    /// Returns the subsystem with this name.
    #[must_use]
    pub fn subsystem(&self, nqn: &str) -> Option<&Subsystem> {
        self.subsystem.iter().find(|subsystem| subsystem.nqn == nqn)
    }

    /// Describes the users of this device: namespaces, and devices layered on it.
    #[must_use]
    pub fn users_of(&self, device: &str) -> Vec<String> {
        let namespaces = self.subsystem.iter().flat_map(|subsystem| {
            let all = subsystem.namespace.iter().filter(|one| one.device == device);
            all.map(|one| format!("namespace {} of {}", one.nsid, subsystem.nqn))
        });
        let stands_on = |other: &&Device| other.kind.bases().contains(&device);
        let above = self.device.iter().filter(stands_on);
        namespaces.chain(above.map(|other| format!("device \"{}\"", other.name))).collect()
    }
}

impl Subsystem {
    /// Returns the namespace with this NSID.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespace.iter().find(|namespace| namespace.nsid == nsid)
    }
}

impl Listener {
    /// Returns the port, or its default.
    #[must_use]
    pub fn port(&self) -> u16 {
        let default = match &self.subsystems {
            Some(none) if none.is_empty() => DISCOVERY_PORT,
            _ => NVM_PORT,
        };
        self.port.unwrap_or(default)
    }

    /// Returns the ID in the API: `tcp:192.0.2.1:4420`, `tcp:[::1]:4420`.
    #[must_use]
    pub fn id(&self) -> String {
        let port = self.port();
        match self.address.parse() {
            Ok(ip) => format!("{}:{}", self.kind, std::net::SocketAddr::new(ip, port)),
            Err(_) => format!("{}:{}:{port}", self.kind, self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let text = "format = 1\nbusy-poll = true\n\n[pacing]\npolicy = \"none\"\n\n[[device]]\n\
                    name = \"a\"\ntype = \"ram\"\nsize = \"1GiB\"\nblock-size = 512\n\n\
                    [[subsystem]]\nnqn = \"n\"\nhosts = []\n\n[[subsystem.namespace]]\nnsid = 1\n\
                    device = \"a\"\n";
        let document = Document::from_toml(text).unwrap();
        assert_eq!(document.to_toml().unwrap(), text);
        let json = serde_json::to_string(&document).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&json).unwrap(), document);
        assert_eq!(document.users_of("a"), ["namespace 1 of n"]);
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused() {
        for text in ["x = 1", "format = \"1\"", "[[device]]\nname = \"a\"", "[pacing]\nx = 1"] {
            assert!(Document::from_toml(text).is_err(), "{text}");
        }
    }

    #[test]
    fn listeners_are_named_by_where_they_are() {
        let listener = |address: &str, port| Listener {
            kind: "tcp".into(),
            address: address.into(),
            port,
            ..Listener::default()
        };
        assert_eq!(listener("192.0.2.1", None).id(), "tcp:192.0.2.1:4420");
        assert_eq!(listener("::1", Some(1)).id(), "tcp:[::1]:1");
    }
}
