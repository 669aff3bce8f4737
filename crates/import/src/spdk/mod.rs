//! Reader of SPDK's JSON config: a list of RPC calls for each part of its program, in the order of
//! execution.
//!
//! | file | contents |
//! |---|---|
//! | `bdev` | block devices, including layered ones |
//! | `nvmf` | transports, subsystems, namespaces, listeners, hosts |

mod bdev;
mod nvmf;

use crate::DiskProperties;
use crate::config_builder::ConfigBuilder;
use crate::json::{ImportError, JsonNode, JsonObject};
use crate::note::Notes;
use bdev::Bdevs;

/// Parts of SPDK that concern its internals: memory pools, sockets, offload engines, threads.
const INNER: &[&str] = &[
    "accel",
    "copy",
    "fsdev",
    "interface",
    "iobuf",
    "net_framework",
    "notify",
    "scheduler",
    "sock",
    "vmd",
    "nvmf_tgt",
];

/// A call of the config.
#[derive(Debug)]
struct RpcCall<'a> {
    method: &'a str,
    /// Path of the whole entry.
    path: String,
    params: Option<JsonNode<'a>>,
}

impl<'a> RpcCall<'a> {
    fn read(node: &JsonNode<'a>) -> Result<Self, ImportError> {
        let mut entry = node.object()?;
        let method = entry.need("method")?.text()?;
        Ok(Self { method, path: node.path().to_owned(), params: entry.get("params") })
    }

    /// Returns the parameters of a call that requires some.
    fn params(&self) -> Result<JsonObject<'a>, ImportError> {
        match &self.params {
            Some(params) => params.object(),
            None => Err(ImportError::Wrong {
                path: self.path.clone(),
                what: format!("{} has no \"params\"", self.method),
                allowed: "the config is not whole".into(),
            }),
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
    let mut top = root.object()?;
    // Devices come first, regardless of their position, because namespaces refer to them.
    let parts = top.need("subsystems")?.list()?;
    for part in &parts {
        let mut part = part.object()?;
        let name = part.need("subsystem")?.text()?;
        let calls = part.list("config")?;
        match name {
            "bdev" => {
                for node in calls {
                    bdevs.call(&mut builder, &RpcCall::read(&node)?, notes)?;
                }
            }
            "nvmf" => {}
            inner if INNER.contains(&inner) || inner.starts_with("vhost") && calls.is_empty() => {
                if !calls.is_empty() {
                    let what = format!("\"{inner}\" says how SPDK works inside");
                    notes.not_applicable(part.path(), what);
                }
            }
            other => {
                if !calls.is_empty() {
                    notes.unsupported(part.path(), format!("\"{other}\" is not served here"));
                }
            }
        }
        part.finish(notes);
    }
    for part in &parts {
        let mut part = part.object()?;
        if part.need("subsystem")?.text()? == "nvmf" {
            for node in part.list("config")? {
                nvmf.call(&mut builder, &mut bdevs, &RpcCall::read(&node)?, notes)?;
            }
        }
    }
    nvmf.finish(&mut builder, notes);
    bdevs.finish(notes);
    for name in builder.prune() {
        notes.not_applicable("$.subsystems", format!("no namespace uses device \"{name}\""));
    }
    builder.need_listener("$.subsystems", notes);
    top.finish(notes);
    Ok(builder)
}
