//! `nvmeofctl import`: converts a config of Linux nvmet or SPDK. It needs no daemon.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nvmeof_console::complain;
use nvmeof_import::{
    DiskProperties, DriveNamespace, ImportSource, ImportedConfig, Note, TEXT_MAX, import,
};
use serde_json::json;

use crate::output::{print, print_json};

/// Mode of the output file, which names hosts and paths.
const MODE: u32 = 0o640;
/// Bytes of a sector, the unit of sizes in sysfs.
const SECTOR: u64 = 512;

/// Input and output of the import.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nvmeofctl import /etc/nvmet/config.json -o target.toml\n  \
    rpc.py save_config | nvmeofctl import - >target.toml\n\n\
    What has no counterpart is listed on standard error, and as comments in the file.\n\
    `nvmeof-tgt --config target.toml --check` checks the rest against this machine.")]
pub struct ImportArgs {
    /// Output of `nvmetcli save` or of SPDK's `rpc.py save_config`, or a legacy .conf file of SPDK;
    /// - for standard input
    pub file: PathBuf,
    /// Write the config to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    pub force: bool,
}

pub(super) fn run(args: &ImportArgs, as_json: bool) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    let imported = import(&text, &ThisMachine).with_context(|| args.file.display().to_string())?;
    if let Some(output) = &args.output {
        write(output, &imported.toml, args.force)?;
    }
    if as_json {
        return print_json(&as_value(&imported));
    }
    if args.output.is_none() {
        print(&imported.toml)?;
    }
    for note in &imported.notes {
        complain!("{note}");
    }
    Ok(())
}

/// Reads a file or standard input, up to the maximum size of a config.
fn read(file: &Path) -> anyhow::Result<String> {
    let source: Box<dyn std::io::Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("cannot read {}", file.display()))?)
    };
    let mut bytes = Vec::new();
    // Read one byte beyond the maximum, to detect a longer text.
    let most = u64::try_from(TEXT_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let read = source.take(most).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {}", file.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{} is no text (UTF-8)", file.display()))
}

fn write(output: &Path, toml: &str, force: bool) -> anyhow::Result<()> {
    let mut open = OpenOptions::new();
    open.write(true).mode(MODE);
    if force {
        open.create(true).truncate(true)
    } else {
        open.create_new(true)
    };
    let mut file = open.open(output).with_context(|| {
        let hint = if force { "" } else { " (an existing file is kept: --force overwrites it)" };
        format!("cannot write {}{hint}", output.display())
    })?;
    file.write_all(toml.as_bytes()).with_context(|| format!("cannot write {}", output.display()))
}

fn as_value(imported: &ImportedConfig) -> serde_json::Value {
    let source = match imported.source {
        ImportSource::Kernel => "kernel",
        ImportSource::Spdk => "spdk",
    };
    let note = |note: &Note| json!({ "kind": note.kind.to_string(), "path": note.path, "what": note.what });
    json!({
        "source": source,
        "toml": imported.toml,
        "notes": imported.notes.iter().map(note).collect::<Vec<_>>(),
    })
}

/// Disk properties of this machine, from sysfs.
#[derive(Debug)]
struct ThisMachine;

impl DiskProperties for ThisMachine {
    fn block_size(&self, path: &str) -> Option<u32> {
        let folder = block_folder(path)?;
        // A partition has the block size of its disk.
        let of = |folder: &Path| fs::read_to_string(folder.join("queue/logical_block_size")).ok();
        of(&folder).or_else(|| of(folder.parent()?))?.trim().parse().ok()
    }

    fn size(&self, path: &str) -> Option<u64> {
        match block_folder(path) {
            Some(folder) => {
                let sectors: u64 =
                    fs::read_to_string(folder.join("size")).ok()?.trim().parse().ok()?;
                sectors.checked_mul(SECTOR)
            }
            None => fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len()),
        }
    }

    fn drive_namespace(&self, pci: &str, nsid: u64) -> Option<DriveNamespace> {
        drive_namespace(&Path::new("/sys/bus/pci/devices").join(pci), nsid)
    }
}

/// Returns the size of a namespace of the drive with this sysfs folder, if the kernel has it.
fn drive_namespace(drive: &Path, nsid: u64) -> Option<DriveNamespace> {
    let entries = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let namespaces = entries(drive.join("nvme")).flat_map(entries);
    namespaces.into_iter().find_map(|namespace| {
        let size = attribute::<u64>(&namespace, "size")?.checked_mul(SECTOR)?;
        let block_size = attribute(&namespace, "queue/logical_block_size")?;
        let is_it = attribute::<u64>(&namespace, "nsid") == Some(nsid);
        is_it.then_some(DriveNamespace { size, block_size })
    })
}

/// Returns the value of a namespace's attribute in sysfs.
fn attribute<T: std::str::FromStr>(namespace: &Path, name: &str) -> Option<T> {
    fs::read_to_string(namespace.join(name)).ok()?.trim().parse().ok()
}

/// Returns the sysfs folder of the block device at `path`.
fn block_folder(path: &str) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    if !fs::metadata(&real).ok()?.file_type().is_block_device() {
        return None;
    }
    fs::canonicalize(Path::new("/sys/class/block").join(real.file_name()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"{"hosts": [], "ports": [{"addr": {"trtype": "tcp", "traddr": "::1",
        "trsvcid": "4420"}, "portid": 1, "subsystems": ["nqn.2026-11.org.example:a"]}],
        "subsystems": [{"nqn": "nqn.2026-11.org.example:a", "attr": {"allow_any_host": "1"},
        "namespaces": [{"nsid": 1, "enable": 1, "device": {"path": "/dev/nothing-of-the-kind"}}]}]}"#;

    #[test]
    fn a_file_is_made_once_and_written_over_only_if_asked() {
        let folder = tempfile::tempdir().unwrap();
        let (file, output) = (folder.path().join("config.json"), folder.path().join("target.toml"));
        fs::write(&file, KERNEL).unwrap();
        let mut args = ImportArgs { file, output: Some(output.clone()), force: false };
        run(&args, false).unwrap();
        let text = fs::read_to_string(&output).unwrap();
        assert!(text.contains("path = \"/dev/nothing-of-the-kind\""), "{text}");
        assert!(
            text.contains("# converted: $.subsystems[0].namespaces[0].device.path: blocks of 512"),
            "{text}"
        );
        let error = format!("{:#}", run(&args, false).unwrap_err());
        assert!(error.contains("--force"), "{error}");
        args.force = true;
        run(&args, true).unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let mut args = ImportArgs { file: file.clone(), output: None, force: false };
        assert!(format!("{:#}", run(&args, false).unwrap_err()).contains("cannot read"));
        fs::write(&file, b"\xff\xfe").unwrap();
        assert!(format!("{:#}", run(&args, false).unwrap_err()).contains("no text"));
        fs::write(&file, "{}").unwrap();
        let error = format!("{:#}", run(&args, false).unwrap_err());
        assert!(error.contains("config.json: this is neither"), "{error}");
        args.file = PathBuf::from("/dev/zero");
        assert!(format!("{:#}", run(&args, false).unwrap_err()).contains("no config"));
    }

    #[test]
    fn a_drive_has_the_namespaces_that_the_kernel_has() {
        let folder = tempfile::tempdir().unwrap();
        let namespace = folder.path().join("nvme/nvme0/nvme0c0n2");
        fs::create_dir_all(namespace.join("queue")).unwrap();
        fs::create_dir_all(folder.path().join("nvme/nvme0/hwmon1")).unwrap();
        fs::write(namespace.join("size"), "2048\n").unwrap();
        fs::write(namespace.join("nsid"), "2\n").unwrap();
        fs::write(namespace.join("queue/logical_block_size"), "4096\n").unwrap();
        let known = DriveNamespace { size: 1 << 20, block_size: 4096 };
        assert_eq!(drive_namespace(folder.path(), 2), Some(known));
        assert_eq!(drive_namespace(folder.path(), 1), None);
    }

    #[test]
    fn a_file_has_a_size_and_no_blocks_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.raw");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let path = path.to_str().unwrap();
        assert_eq!((ThisMachine.size(path), ThisMachine.block_size(path)), (Some(4 << 20), None));
        assert_eq!(ThisMachine.size("/dev/nothing-of-the-kind"), None);
    }
}
