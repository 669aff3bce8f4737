//! Conversion of configs of other NVMe-oF targets to configs of nvmeof-tgt: text in, text and notes
//! out.
//!
//! ```text
//! JSON --json--> JsonNode (value, path) --kernel | spdk--> ConfigBuilder --> TOML for the daemon
//!   ^                                           |
//!   '-- spdk_conf <-- legacy .conf              '--> Note: unsupported setting, and why
//! ```
//!
//! The crate reads the output of `nvmetcli save` for Linux nvmet, and the JSON and legacy configs
//! of SPDK nvmf_tgt. Tables (`keys`) have every key with its treatment and the reason. A text that
//! cannot be parsed is an error. A setting that nvmeof-tgt does not support is a note. The import
//! drops everything that depends on it, and never serves it with less protection than before.

mod config_builder;
mod json;
mod kernel;
mod keys;
mod listen_address;
mod listeners;
mod note;
mod prototype;
mod queues;
mod spdk;
mod spdk_conf;
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
    /// Returns the size of a namespace of the NVMe drive at a PCI address. `None` if the kernel's
    /// driver does not have the drive.
    fn drive_namespace(&self, pci: &str, nsid: u64) -> Option<DriveNamespace>;
}

/// Size of a namespace of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveNamespace {
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
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

    fn drive_namespace(&self, _pci: &str, _nsid: u64) -> Option<DriveNamespace> {
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
/// If the text has none of the formats, or has a value of the wrong kind for its key. The message
/// names the value's path or line.
pub fn import(text: &str, disks: &dyn DiskProperties) -> Result<ImportedConfig, ImportError> {
    if text.len() > TEXT_MAX {
        return Err(ImportError::TooLong { bytes: text.len() });
    }
    let mut notes = Notes::default();
    let (source, builder) = if spdk_conf::is_legacy(text) {
        let conf = spdk_conf::read(text, &mut notes)?;
        let converted = convert(&conf.value, disks, &mut notes);
        notes.place(|path| conf.place(path));
        converted.map_err(|error| match error {
            ImportError::Wrong { path, what, allowed } => {
                ImportError::Wrong { path: conf.place(&path), what, allowed }
            }
            other => other,
        })?
    } else {
        convert(&parse(text)?, disks, &mut notes)?
    };
    let notes = notes.into_list();
    let toml = write(source, &builder, &notes);
    Ok(ImportedConfig { source, toml, notes })
}

/// Reads a JSON config of either target.
fn convert(
    value: &Value,
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<(ImportSource, ConfigBuilder), ImportError> {
    let root = JsonNode::root(value);
    let source = source(&root)?;
    let builder = match source {
        ImportSource::Kernel => kernel::read(&root, disks, notes)?,
        ImportSource::Spdk => spdk::read(&root, disks, notes)?,
    };
    Ok((source, builder))
}

/// Parses JSON. SPDK takes comments in its config.
fn parse(text: &str) -> Result<Value, ImportError> {
    let mut plain = text.to_owned();
    json_strip_comments::strip(&mut plain).map_err(|error| ImportError::NotJson {
        line: text.lines().count(),
        column: 0,
        what: error.to_string(),
    })?;
    serde_json::from_str(&plain).map_err(|error| ImportError::NotJson {
        line: error.line(),
        column: error.column(),
        what: error.to_string(),
    })
}

/// Detects the format. SPDK's subsystems are parts of its program and have a `config` each.
fn source(root: &JsonNode<'_>) -> Result<ImportSource, ImportError> {
    root.object(&[])?;
    if root.peek("ports").is_some() || root.peek("hosts").is_some() {
        return Ok(ImportSource::Kernel);
    }
    let Some(subsystems) = root.peek("subsystems") else {
        let what = if root.peek("jsonrpc").is_some() || root.peek("method").is_some() {
            "this is a call of SPDK's RPC, no config"
        } else {
            "it has neither \"ports\" nor \"subsystems\""
        };
        return Err(ImportError::NeitherFormat { what: what.into() });
    };
    for entry in subsystems.list()? {
        entry.object(&[])?;
        if entry.peek("subsystem").is_some() {
            return Ok(ImportSource::Spdk);
        }
        if entry.peek("nqn").is_some() {
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
