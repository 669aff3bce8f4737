//! Reader of SPDK's JSON config: a list of RPC calls for each part of its program, in the order of
//! execution.
//!
//! | file | contents |
//! |---|---|
//! | `bdev` | block devices, including those on top of others |
//! | `nvmf` | transports, subsystems, namespaces, listeners, hosts |

mod bdev;
mod nvmf;

use crate::Disks;
use crate::draft::Draft;
use crate::json::{ImportError, Node, Object};
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
struct Call<'a> {
    method: &'a str,
    /// Path of the whole entry.
    path: String,
    params: Option<Node<'a>>,
}

impl<'a> Call<'a> {
    fn read(node: &Node<'a>) -> Result<Self, ImportError> {
        let mut entry = node.object()?;
        let method = entry.need("method")?.text()?;
        Ok(Self { method, path: node.path().to_owned(), params: entry.get("params") })
    }

    /// Returns the parameters of a call that requires some.
    fn params(&self) -> Result<Object<'a>, ImportError> {
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

/// Reads a draft of the same target.
pub(crate) fn read(
    root: &Node<'_>,
    disks: &dyn Disks,
    notes: &mut Notes,
) -> Result<Draft, ImportError> {
    let mut draft = Draft::default();
    let mut bdevs = Bdevs::new(disks);
    let mut nvmf = nvmf::Target::default();
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
                    bdevs.call(&mut draft, &Call::read(&node)?, notes)?;
                }
            }
            "nvmf" => {}
            inner if INNER.contains(&inner) || inner.starts_with("vhost") && calls.is_empty() => {
                if !calls.is_empty() {
                    let what = format!("\"{inner}\" says how SPDK works inside");
                    notes.not_needed(part.path(), what);
                }
            }
            other => {
                if !calls.is_empty() {
                    notes.left_out(part.path(), format!("\"{other}\" is not served here"));
                }
            }
        }
        part.finish(notes);
    }
    for part in &parts {
        let mut part = part.object()?;
        if part.need("subsystem")?.text()? == "nvmf" {
            for node in part.list("config")? {
                nvmf.call(&mut draft, &mut bdevs, &Call::read(&node)?, notes)?;
            }
        }
    }
    nvmf.finish(&mut draft, notes);
    bdevs.finish(notes);
    for name in draft.prune() {
        notes.not_needed("$.subsystems", format!("no namespace uses device \"{name}\""));
    }
    draft.need_listener("$.subsystems", notes);
    top.finish(notes);
    Ok(draft)
}
