//! A config as a value: what `target.toml` says, without its comments. The one form in which a state is
//! read, changed, compared and written; whether it makes sense is for the daemon to say.

mod difference;
pub mod edit;
mod tables;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use difference::{Action, Difference, KeyChange};
pub use tables::{
    ApiSection, Device, Host, HostDefaults, Limit, LimitsSection, Listener, Namespace,
    PacingSection, Referral, RootComplex, Subsystem,
};

/// The newest form of a config that this version knows; it is written into every file.
pub const FORMAT: u32 = 1;

/// A whole config.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    /// The form it is written in; 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<u32>,
    /// CPUs to run a reactor on: `"0-3,8"`, or `"auto"`. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reactors: Option<String>,
    /// Reactors never sleep. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<bool>,
    /// How long commands in flight may take to end when the daemon stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<String>,
    /// What is logged. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Form of a log line: `text` or `json`. Read at start only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<String>,
    /// Where the daemon can be controlled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiSection>,
    /// Bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSection>,
    /// When commands may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing: Option<PacingSection>,
    /// What a host may have that says nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_defaults: Option<HostDefaults>,
    /// What single hosts may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<Host>,
    /// Where hosts connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listener: Vec<Listener>,
    /// What is served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<Device>,
    /// What root complexes of the machine carry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root_complex: Vec<RootComplex>,
    /// What hosts see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subsystem: Vec<Subsystem>,
    /// Other discovery services that hosts are told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referral: Vec<Referral>,
}

/// A size: a number of bytes, or text with a unit, as `"512MiB"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// A number and k, KiB, M, MiB, G, GiB, T or TiB (powers of 1024).
    Text(String),
}

/// Why a text is no document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError(String);

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DocumentError {}

impl Document {
    /// Reads TOML.
    ///
    /// # Errors
    /// It is no TOML, or has a key that does not exist or is of another type.
    pub fn from_toml(text: &str) -> Result<Self, DocumentError> {
        toml::from_str(text).map_err(|error| DocumentError(error.to_string()))
    }

    /// Writes TOML that `--config` takes.
    ///
    /// # Errors
    /// A number is larger than TOML's: 2^63 - 1.
    pub fn to_toml(&self) -> Result<String, DocumentError> {
        toml::to_string_pretty(self).map_err(|error| DocumentError(error.to_string()))
    }

    /// The device of this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.device.iter().find(|device| device.name == name)
    }

    /// The subsystem of this name.
    #[must_use]
    pub fn subsystem(&self, nqn: &str) -> Option<&Subsystem> {
        self.subsystem.iter().find(|subsystem| subsystem.nqn == nqn)
    }

    /// What uses this device: namespaces, and devices that stand on it, in words.
    #[must_use]
    pub fn users_of(&self, device: &str) -> Vec<String> {
        let namespaces = self.subsystem.iter().flat_map(|subsystem| {
            let all = subsystem.namespace.iter().filter(|one| one.device == device);
            all.map(|one| format!("namespace {} of {}", one.nsid, subsystem.nqn))
        });
        let stands_on = |other: &&Device| {
            let members = other.members.iter().flatten();
            other.base.iter().chain(members).any(|base| base == device)
        };
        let above = self.device.iter().filter(stands_on);
        namespaces.chain(above.map(|other| format!("device \"{}\"", other.name))).collect()
    }
}

impl Subsystem {
    /// The namespace of this number.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespace.iter().find(|namespace| namespace.nsid == nsid)
    }
}

impl Listener {
    /// Its type, address and port, as the API names it: `tcp:192.0.2.1:4420`, `tcp:[::1]:4420`.
    #[must_use]
    pub fn id(&self) -> String {
        let port = self.port.unwrap_or(4420);
        match self.address.parse() {
            Ok(ip) => format!("{}:{}", self.kind, std::net::SocketAddr::new(ip, port)),
            Err(_) => format!("{}:{}:{port}", self.kind, self.address),
        }
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Text(text) => f.write_str(text),
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
