//! Conversion of configs of other NVMe-oF targets to configs of nvmeof-tgt: text in, text and notes
//! out.
//!
//! ```text
//! JSON --json--> JsonNode (value, path) --kernel | spdk--> ConfigBuilder --> TOML for the daemon
//!                                               |
//!                                               '--> Note: unsupported setting, and why
//! ```
//!
//! The crate reads two formats: the output of `nvmetcli save` for Linux nvmet, and the JSON config
//! of SPDK nvmf_tgt. A text that cannot be parsed is an error. A setting that nvmeof-tgt does not
//! support is a note. The import drops everything that depends on it, and never serves it with less
//! protection than before.

mod config_builder;
mod json;
mod kernel;
mod listen_address;
mod note;
mod spdk;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use json::ImportError;
pub use note::{Note, NoteKind};

use config_builder::ConfigBuilder;
use json::JsonNode;
use note::Notes;

/// Maximum bytes of a config.
pub const TEXT_MAX: usize = 16 << 20;

/// Properties of the machine's disks that a config depends on and does not state.
pub trait DiskProperties {
    /// Returns the bytes of a logical block of the block device at `path`. `None` if `path` is not
    /// a block device, or does not exist on this machine.
    fn block_size(&self, path: &str) -> Option<u32>;
    /// Returns the bytes of the file or block device at `path`; `None` if it does not exist on this
    /// machine.
    fn size(&self, path: &str) -> Option<u64>;
}

/// No disks: the import runs on a different machine than the target.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDisks;

impl DiskProperties for NoDisks {
    fn block_size(&self, _path: &str) -> Option<u32> {
        None
    }

    fn size(&self, _path: &str) -> Option<u64> {
        None
    }
}

/// Target that the config is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportSource {
    /// Linux nvmet, saved by nvmetcli.
    Kernel,
    /// SPDK nvmf_tgt.
    Spdk,
}

/// A config converted for nvmeof-tgt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedConfig {
    /// Target of the original config.
    pub source: ImportSource,
    /// `target.toml`, with the notes as comments at the top.
    pub toml: String,
    /// Settings that have no counterpart, were changed, or need a check; in the order of the file.
    pub notes: Vec<Note>,
}

/// Converts a config of another target.
///
/// # Errors
/// If the text is not JSON, has neither format, or has a value of the wrong kind for its key. The
/// message names the value's path.
pub fn import(text: &str, disks: &dyn DiskProperties) -> Result<ImportedConfig, ImportError> {
    if text.len() > TEXT_MAX {
        return Err(ImportError::TooLong { bytes: text.len() });
    }
    let value: Value = serde_json::from_str(text).map_err(|error| ImportError::NotJson {
        line: error.line(),
        column: error.column(),
        what: error.to_string(),
    })?;
    let root = JsonNode::root(&value);
    let source = source(&root)?;
    let mut notes = Notes::default();
    let builder = match source {
        ImportSource::Kernel => kernel::read(&root, disks, &mut notes)?,
        ImportSource::Spdk => spdk::read(&root, disks, &mut notes)?,
    };
    let notes = notes.into_list();
    let toml = write(source, &builder, &notes);
    Ok(ImportedConfig { source, toml, notes })
}

/// Detects the format. SPDK's subsystems are parts of its program and have a `config` each.
fn source(root: &JsonNode<'_>) -> Result<ImportSource, ImportError> {
    let mut top = root.object()?;
    if top.get("ports").is_some() || top.get("hosts").is_some() {
        return Ok(ImportSource::Kernel);
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
            return Ok(ImportSource::Spdk);
        }
        if entry.get("nqn").is_some() {
            return Ok(ImportSource::Kernel);
        }
    }
    let what = "its \"subsystems\" have neither \"nqn\" (nvmetcli) nor \"subsystem\" (SPDK)";
    Err(ImportError::NeitherFormat { what: what.into() })
}

fn write(source: ImportSource, builder: &ConfigBuilder, notes: &[Note]) -> String {
    let whose = match source {
        ImportSource::Kernel => "the Linux kernel's target (nvmetcli)",
        ImportSource::Spdk => "SPDK's target",
    };
    let mut text = format!("# Imported from a config of {whose} by `nvmeofctl import`.\n");
    text.push_str("# `nvmeof-tgt --config FILE --check` checks it against this machine.\n");
    for note in notes {
        text.push_str(&format!("# {note}\n"));
    }
    text.push('\n');
    text.push_str(&builder.to_toml());
    text
}
