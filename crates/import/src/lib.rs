//! Configs of other NVMe-oF targets, as configs of nvmeof-tgt: text in, text and notes out.
//!
//! ```text
//! JSON --json--> Node (a value and its path) --kernel | spdk--> Draft --> TOML that the daemon takes
//!                                                   |
//!                                                   '--> Note: what has no counterpart, and why
//! ```
//!
//! Two formats are read: what `nvmetcli` saves of the Linux kernel's target, and the JSON config of
//! SPDK's. What cannot be read at all is an error; what can be read and not be had here is a note, and
//! what depends on it is left out, never served with less protection than it had.

mod address;
mod draft;
mod json;
mod kernel;
mod note;
mod spdk;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use json::ImportError;
pub use note::{Kind, Note};

use draft::Draft;
use json::Node;
use note::Notes;

/// Most bytes of a config that is read.
pub const TEXT_MAX: usize = 16 << 20;

/// What of the machine a config depends on and does not say.
pub trait Disks {
    /// Bytes of a logical block of the block device at `path`; `None` if it is none, or not here.
    fn block_size(&self, path: &str) -> Option<u32>;
    /// Bytes of the file or block device at `path`; `None` if it is not here.
    fn size(&self, path: &str) -> Option<u64>;
}

/// No disks: a config is read away from the machine it is for.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDisks;

impl Disks for NoDisks {
    fn block_size(&self, _path: &str) -> Option<u32> {
        None
    }

    fn size(&self, _path: &str) -> Option<u64> {
        None
    }
}

/// Whose config it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The Linux kernel's target, saved by nvmetcli.
    Kernel,
    /// SPDK's target.
    Spdk,
}

/// A config in our form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Whose it was.
    pub source: Source,
    /// `target.toml`, with the notes on top as comments.
    pub toml: String,
    /// What has no counterpart, was changed, or is to be looked at; in the order of the file.
    pub notes: Vec<Note>,
}

/// Reads a config of another target.
///
/// # Errors
/// If the text is no JSON, neither format, or has a value of a kind that its key cannot have; the
/// message names the value's path.
pub fn import(text: &str, disks: &dyn Disks) -> Result<Imported, ImportError> {
    if text.len() > TEXT_MAX {
        return Err(ImportError::TooLong { bytes: text.len() });
    }
    let value: Value = serde_json::from_str(text).map_err(|error| ImportError::NotJson {
        line: error.line(),
        column: error.column(),
        what: error.to_string(),
    })?;
    let root = Node::root(&value);
    let source = source(&root)?;
    let mut notes = Notes::default();
    let draft = match source {
        Source::Kernel => kernel::read(&root, disks, &mut notes)?,
        Source::Spdk => spdk::read(&root, disks, &mut notes)?,
    };
    let notes = notes.into_list();
    let toml = write(source, &draft, &notes);
    Ok(Imported { source, toml, notes })
}

/// Tells the formats apart: SPDK's subsystems are parts of its program and have a `config` each.
fn source(root: &Node<'_>) -> Result<Source, ImportError> {
    let mut top = root.object()?;
    if top.get("ports").is_some() || top.get("hosts").is_some() {
        return Ok(Source::Kernel);
    }
    let Some(subsystems) = top.get("subsystems") else {
        let what = if top.get("jsonrpc").is_some() || top.get("method").is_some() {
            "this is a call of SPDK's RPC, no config"
        } else {
            "it has neither \"ports\" nor \"subsystems\""
        };
        return Err(ImportError::NeitherFormat { what: what.into() });
    };
    for entry in subsystems.list()? {
        let mut entry = entry.object()?;
        if entry.get("subsystem").is_some() {
            return Ok(Source::Spdk);
        }
        if entry.get("nqn").is_some() {
            return Ok(Source::Kernel);
        }
    }
    let what = "its \"subsystems\" have neither \"nqn\" (nvmetcli) nor \"subsystem\" (SPDK)";
    Err(ImportError::NeitherFormat { what: what.into() })
}

fn write(source: Source, draft: &Draft, notes: &[Note]) -> String {
    let whose = match source {
        Source::Kernel => "the Linux kernel's target (nvmetcli)",
        Source::Spdk => "SPDK's target",
    };
    let mut text = format!("# Imported from a config of {whose} by `nvmeofctl import`.\n");
    text.push_str("# `nvmeof-tgt --config FILE --check` checks it against this machine.\n");
    for note in notes {
        text.push_str(&format!("# {note}\n"));
    }
    text.push('\n');
    text.push_str(&draft.to_toml());
    text
}
