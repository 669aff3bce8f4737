//! Emulated NVMe drives behind an emulated IOMMU, and their removal and insertion.
//!
//! ```text
//!   guest: ask-N  "remove 1"  --> | the share | --> serve: device_del over QMP, until it is out
//!   guest: answer-N  "ok"     <-- |           | <--
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::qmp::QemuMonitor;

/// Interval of checks for requests.
const LOOK: Duration = Duration::from_millis(50);
/// Time in which a guest must release a drive.
const LET_GO: Duration = Duration::from_secs(60);

/// Geometry of one drive of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VmDrive {
    pub(crate) serial: &'static str,
    /// Bytes of a logical block.
    pub(crate) block: u32,
    /// Bytes; a sparse file.
    pub(crate) size: u64,
    /// Root port, and function of the slot behind it. Functions of one slot are one IOMMU group.
    pub(crate) place: (u8, u8),
}

/// The drives of one boot, removed with this value.
#[derive(Debug)]
pub(crate) struct DriveBay {
    drives: Vec<(VmDrive, PathBuf)>,
    monitor: PathBuf,
}

impl DriveBay {
    /// Creates the drives' files in `folder`, with names that begin with `name`; `monitor` is
    /// QEMU's socket.
    pub(crate) fn new(
        drives: &[VmDrive],
        folder: &Path,
        name: &str,
        monitor: PathBuf,
    ) -> Result<Self> {
        let mut bay = Self { drives: Vec::new(), monitor };
        for drive in drives {
            let path = folder.join(format!("{name}-{}.raw", drive.serial));
            File::create(&path)
                .and_then(|file| file.set_len(drive.size))
                .with_context(|| format!("cannot make {}", path.display()))?;
            bay.drives.push((*drive, path));
        }
        Ok(bay)
    }

    /// Returns whether there are no drives.
    pub(crate) fn is_empty(&self) -> bool {
        self.drives.is_empty()
    }

    /// Adds the IOMMU and the drives to a machine, each behind its own root port.
    ///
    /// `pcie.0` does not support hot plug, and a drive with its own port has its own IOMMU group.
    pub(crate) fn plug(&self, qemu: &mut Command) {
        if self.is_empty() {
            return;
        }
        qemu.args(["-device", "intel-iommu,intremap=on"]);
        qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", self.monitor.display()));
        for (index, (drive, path)) in self.drives.iter().enumerate() {
            if let (port, 0) = drive.place {
                qemu.arg("-device");
                qemu.arg(format!("pcie-root-port,id=port{port},chassis={0},slot={0}", port + 1));
            }
            // Not `-drive`: QEMU would remove it with its device.
            qemu.arg("-blockdev").arg(format!(
                "driver=raw,node-name=disk{index},cache.no-flush=on,file.driver=file,file.filename={}",
                path.display()
            ));
            let mut options = String::from("nvme");
            for (key, value) in self.device(index, *drive) {
                match value {
                    Value::String(text) => options.push_str(&format!(",{key}={text}")),
                    Value::Bool(on) => {
                        options.push_str(&format!(",{key}={}", if on { "on" } else { "off" }));
                    }
                    other => options.push_str(&format!(",{key}={other}")),
                }
            }
            qemu.arg("-device").arg(options);
        }
    }

    /// Returns the options of a drive's device.
    fn device(&self, index: usize, drive: VmDrive) -> Vec<(&'static str, Value)> {
        let (port, function) = drive.place;
        let beside = |(other, _): &(VmDrive, PathBuf)| other.place.0 == port && other.place.1 > 0;
        vec![
            ("id", json!(format!("nvme{index}"))),
            ("bus", json!(format!("port{port}"))),
            ("addr", json!(format!("00.{function}"))),
            ("multifunction", json!(self.drives.iter().any(beside))),
            ("drive", json!(format!("disk{index}"))),
            ("serial", json!(drive.serial)),
            ("logical_block_size", json!(drive.block)),
            ("physical_block_size", json!(drive.block)),
        ]
    }

    /// Serves a guest's requests in its share, until `done`.
    pub(crate) fn serve(&self, shared_folder: &Path, done: &AtomicBool) -> Result<()> {
        let mut monitor = None;
        while !done.load(Ordering::Acquire) {
            for ask in asks(shared_folder)? {
                let text = fs::read_to_string(&ask)?;
                fs::remove_file(&ask)?;
                let answer = match self.obey(&mut monitor, text.trim()) {
                    Ok(()) => "ok".to_owned(),
                    Err(error) => format!("{error:#}"),
                };
                give_answer(&ask, &answer)?;
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Executes a request: `remove NUMBER` or `add NUMBER`.
    fn obey(&self, monitor: &mut Option<QemuMonitor>, text: &str) -> Result<()> {
        let Some((verb, number)) = text.split_once(' ') else { bail!("what is `{text}`?") };
        let index: usize = number.parse().with_context(|| format!("`{number}` is no number"))?;
        let Some((drive, _)) = self.drives.get(index) else { bail!("there is no drive {index}") };
        let monitor = match monitor {
            Some(monitor) => monitor,
            None => monitor.insert(QemuMonitor::connect(&self.monitor)?),
        };
        let id = format!("nvme{index}");
        match verb {
            "remove" => {
                monitor.execute("device_del", json!({ "id": id }))?;
                monitor.wait_for("DEVICE_DELETED", &id, Instant::now() + LET_GO)
            }
            "add" => {
                let mut arguments = json!({ "driver": "nvme" });
                for (key, value) in self.device(index, *drive) {
                    arguments[key] = value;
                }
                monitor.execute("device_add", arguments)
            }
            _ => bail!("unknown verb {verb}"),
        }
    }
}

impl Drop for DriveBay {
    fn drop(&mut self) {
        for (_, path) in &self.drives {
            // A leftover is a sparse file in the build's folder, which the next run overwrites.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the requests in a share, oldest first: their names end with a number that grows.
fn asks(shared_folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(shared_folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ask-")?.parse::<u64>().ok());
        found.extend(number.map(|number| (number, shared_folder.join(&name))));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Writes the answer to a request next to it, in one step.
fn give_answer(ask: &Path, text: &str) -> Result<()> {
    let name = ask.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let answer = ask.with_file_name(name.replacen("ask-", "answer-", 1));
    let draft = answer.with_extension("new");
    fs::write(&draft, text)?;
    fs::rename(&draft, &answer)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: VmDrive = VmDrive { serial: "ONE", block: 512, size: 1 << 20, place: (0, 0) };

    fn bay(folder: &Path) -> DriveBay {
        DriveBay::new(&[ONE], folder, "case", folder.join("monitor")).expect("a bay")
    }

    #[test]
    fn a_bay_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let bay = bay(folder.path());
        let file = folder.path().join("case-ONE.raw");
        assert_eq!(fs::metadata(&file).expect("its file").len(), 1 << 20);
        drop(bay);
        assert!(!file.exists());
    }

    #[test]
    fn requests_are_answered_in_their_order() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["ask-10", "ask-9", "ask-new", "answer-1", "ask-7.new"] {
            fs::write(folder.path().join(name), "remove 0").expect("a file");
        }
        let asks = asks(folder.path()).expect("requests");
        let names: Vec<_> = asks.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["ask-9", "ask-10"]);
        give_answer(&asks[0], "ok").expect("an answer");
        let answer = fs::read_to_string(folder.path().join("answer-9")).expect("the answer");
        assert_eq!(answer, "ok");
    }

    #[test]
    fn nonsense_is_answered_and_not_obeyed() {
        let folder = tempfile::tempdir().expect("a folder");
        let bay = bay(folder.path());
        for (text, part) in [
            ("remove", "what is"),
            ("remove x", "no number"),
            ("add 1", "no drive 1"),
            ("remove 0", "monitor"),
        ] {
            let error = bay.obey(&mut None, text).expect_err(text);
            assert!(format!("{error:#}").contains(part), "{text}: {error:#}");
        }
    }
}
