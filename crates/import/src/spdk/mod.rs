//! Reader of SPDK's JSON config: a list of RPC calls for each part of its program, in the order of
//! execution.
//!
//! | file | contents |
//! |---|---|
//! | `keys` | the parameters of each call, with their treatment |
//! | `bdev` | block devices, including layered ones, and their UUIDs (`identity`) |
//! | `nvmf` | subsystems, namespaces, listeners, hosts |
//! | `transport` | limits of transports |

mod bdev;
mod identity;
pub(crate) mod keys;
mod nvmf;
mod transport;

use crate::DiskProperties;
use crate::config_builder::ConfigBuilder;
use crate::json::{ImportError, JsonNode, JsonObject};
use crate::keys::{KeyTable, Treatment};
use crate::note::Notes;
use bdev::Bdevs;

/// Socket implementation of SPDK that speaks TLS.
const TLS_SOCKETS: &str = "ssl";

/// A call of the config.
#[derive(Debug)]
struct RpcCall<'a> {
    method: &'a str,
    /// Path of the whole entry.
    path: String,
    params: Option<JsonNode<'a>>,
}

impl<'a> RpcCall<'a> {
    fn read(node: &JsonNode<'a>, notes: &mut Notes) -> Result<Self, ImportError> {
        let mut entry = node.object(keys::CALL)?;
        let written = entry.need("method")?.text()?;
        let params = entry.get("params");
        entry.finish(notes);
        let new = keys::OLD_NAMES.iter().find(|(old, _)| *old == written);
        let method = new.map_or(written, |(_, new)| new);
        Ok(Self { method, path: node.path().to_owned(), params })
    }

    /// Returns the parameters of a call that requires some.
    fn params(&self, keys: KeyTable) -> Result<JsonObject<'a>, ImportError> {
        match &self.params {
            Some(params) => params.object(keys),
            None => Err(ImportError::Wrong {
                path: self.path.clone(),
                what: format!("{} has no \"params\"", self.method),
                allowed: "the config is not whole".into(),
            }),
        }
    }
}

/// Adds the note of a call that has no reader; `otherwise` is the text for one that is unknown.
fn note_call(calls: &[(&str, Treatment)], call: &RpcCall<'_>, otherwise: &str, notes: &mut Notes) {
    let method = call.method;
    match calls.iter().find(|(name, _)| *name == method).map(|(_, treatment)| treatment) {
        Some(Treatment::Unnoticed(reason)) => {
            notes.not_applicable(&call.path, format!("{method}: {reason}"));
        }
        Some(Treatment::Lost { consequence, .. }) => {
            notes.unsupported(&call.path, format!("{method}: {consequence}"));
        }
        Some(Treatment::Taken) | None => {
            notes.unsupported(&call.path, format!("{method}: {otherwise}"));
        }
    }
}

/// Reads the config of a target.
pub(crate) fn read(
    root: &JsonNode<'_>,
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<ConfigBuilder, ImportError> {
    let mut builder = ConfigBuilder::default();
    let mut bdevs = Bdevs::new(disks);
    let mut nvmf = nvmf::SpdkTarget::default();
    let mut top = root.object(keys::ROOT)?;
    // Devices come first, regardless of their position, because namespaces refer to them.
    let parts = top.need("subsystems")?.list()?;
    let mut served = Vec::new();
    for part in &parts {
        let mut part = part.object(keys::PART)?;
        let name = part.need("subsystem")?.text()?;
        let nodes = part.list("config")?;
        let path = part.path().to_owned();
        part.finish(notes);
        let calls = nodes.iter().map(|node| RpcCall::read(node, notes));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        match name {
            "bdev" => bdevs.calls(&mut builder, calls, notes)?,
            "nvmf" => served.extend(calls),
            "sock" => {
                for call in calls.iter().filter(|call| call.method == "sock_set_default_impl") {
                    let mut params = call.params(keys::SOCKETS)?;
                    nvmf.has_tls_sockets = params.text("impl_name")? == Some(TLS_SOCKETS);
                    params.finish(notes);
                }
                note_part("sock", &path, &calls, notes);
            }
            other => note_part(other, &path, &calls, notes),
        }
    }
    for call in &served {
        nvmf.call(&mut builder, &mut bdevs, call, notes)?;
    }
    nvmf.finish(&mut builder, notes);
    bdevs.finish(notes);
    builder.complete("$.subsystems", notes);
    top.finish(notes);
    Ok(builder)
}

/// Adds the note of a part that has no reader.
fn note_part(name: &str, path: &str, calls: &[RpcCall<'_>], notes: &mut Notes) {
    if calls.is_empty() {
        return;
    }
    match keys::PARTS.iter().find(|(part, _)| *part == name).map(|(_, treatment)| treatment) {
        Some(Treatment::Unnoticed(reason)) => {
            notes.not_applicable(path, format!("\"{name}\": {reason}"));
        }
        Some(Treatment::Lost { consequence, .. }) => {
            notes.unsupported(path, format!("\"{name}\": {consequence}"));
        }
        Some(Treatment::Taken) | None => {
            notes.unsupported(path, format!("\"{name}\" is not served here"));
        }
    }
}
