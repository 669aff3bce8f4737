//! Purge of a block device of the kernel that is no NVMe namespace: SATA, SAS, or another.
//!
//! ```text
//!   unused? -> held exclusively -> samples -> SATA: `ata`; SAS: sg_sanitize -> samples changed?
//!                                               '-- not possible -> block discard, if it can
//! ```

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nvmeof_core::pci::System;
use nvmeof_core::pci::users::Usage;
use rustix::fs::{Advice, Mode, OFlags, fadvise};

use super::ata::{self, last_line};

/// Places that are read before and after an erase, and the bytes of each.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 4096;
/// Exit statuses of sg3_utils: the drive does not have the command, or not this form of it.
const ILLEGAL_REQUEST: i32 = 5;
const INVALID_OPERATION: i32 = 9;

/// Failure of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolError {
    /// Exit status; `None` if it did not start.
    pub(super) status: Option<i32>,
    pub(super) message: String,
}

/// Runs a program with arguments; returns its output.
pub(super) type RunTool<'a> = &'a dyn Fn(&str, &[&str]) -> Result<String, ToolError>;

/// A block device to purge.
#[derive(Debug)]
pub(super) struct DiskPurge<'a> {
    pub(super) system: &'a System,
    /// Name below `/dev`.
    pub(super) name: &'a str,
    /// Serial number of the drive that may be purged; empty if it is not known.
    pub(super) serial: &'a str,
}

impl DiskPurge<'_> {
    fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }

    /// Purges the device; returns the method, or the reason why there is none.
    ///
    /// # Errors
    /// It is in use, or the purge began and failed.
    pub(super) fn purge(&self, run: RunTool<'_>) -> Result<Result<String, String>, String> {
        let path = self.path();
        if self.attribute("partition").is_some() {
            return Ok(Err("a partition: only a whole drive is purged".to_owned()));
        }
        let usage = Usage::read(self.system).map_err(|error| error.to_string())?;
        if let Some(user) = usage.of_block(self.name).first() {
            return Err(format!("{path} is in use by now: {user}; not purged"));
        }
        // Nothing can mount it while it is held.
        let held = self.hold()?;
        let before = samples(&held)?;
        let erased = if self.attribute("device/vendor").as_deref() == Some("ATA") {
            let hdparm =
                |arguments: &[&str]| run("hdparm", arguments).map_err(|error| error.message);
            ata::purge(&hdparm, &path, self.serial)?
        } else if self.attribute("device/scsi_level").is_some() {
            scsi_sanitize(run, &path)?
        } else {
            Err("no command that erases it is known".to_owned())
        };
        let why = match erased {
            Ok(how) => {
                let kept = unchanged(&before, &samples(&held)?);
                return match kept {
                    0 => Ok(Ok(how)),
                    kept => Err(format!(
                        "{how} was reported as done, but {kept} of {} places that held data are \
                         unchanged",
                        before.len()
                    )),
                };
            }
            Err(why) => why,
        };
        // blkdiscard holds the device itself.
        drop(held);
        if self.attribute("queue/discard_max_bytes").is_none_or(|bytes| bytes == "0") {
            return Ok(Err(format!("{why}; the device has no block discard")));
        }
        if let Err(error) = run("blkdiscard", &[&path]) {
            return Ok(Err(format!("{why}; blkdiscard: {}", error.message)));
        }
        Ok(match unchanged(&before, &samples(&self.hold()?)?) {
            0 => Ok(format!("block discard, which is no purge of the specification ({why})")),
            _ => Err(format!("{why}; a block discard left data")),
        })
    }

    fn hold(&self) -> Result<File, String> {
        let node = self.system.dev.join(self.name);
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let held = rustix::fs::open(&node, flags, Mode::empty());
        held.map(File::from).map_err(|error| format!("{} cannot be held: {error}", self.path()))
    }

    /// An attribute in sysfs.
    fn attribute(&self, name: &str) -> Option<String> {
        let file = self.system.sys.join("class/block").join(self.name).join(name);
        fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
    }
}

/// Sanitize of a SCSI drive, by sg_sanitize. It waits for the end.
fn scsi_sanitize(run: RunTool<'_>, path: &str) -> Result<Result<String, String>, String> {
    match run("sg_sanitize", &["--block", "--quick", path]) {
        Ok(_) => Ok(Ok("SCSI Sanitize, block erase".to_owned())),
        Err(error) => match error.status {
            None | Some(ILLEGAL_REQUEST | INVALID_OPERATION) => Ok(Err(error.message)),
            Some(_) => Err(format!("SCSI Sanitize: {}", error.message)),
        },
    }
}

/// Reads evenly distributed places, past the page cache's clean pages.
fn samples(device: &File) -> Result<Vec<Vec<u8>>, String> {
    let failed = |error: std::io::Error| format!("reading samples of the device: {error}");
    let size = rustix::fs::seek(device, rustix::fs::SeekFrom::End(0));
    let size = size.map_err(|error| failed(error.into()))?;
    fadvise(device, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
    let last = size.saturating_sub(SAMPLE as u64);
    let places = (0..SAMPLES).map(|at| last / (SAMPLES - 1) * at / 4096 * 4096);
    places
        .map(|place| {
            let mut data = vec![0; SAMPLE];
            device.read_exact_at(&mut data, place).map_err(failed)?;
            Ok(data)
        })
        .collect()
}

/// Number of samples that held data and still hold the same.
fn unchanged(before: &[Vec<u8>], after: &[Vec<u8>]) -> usize {
    let held = |data: &Vec<u8>| data.iter().any(|byte| *byte != 0);
    before.iter().zip(after).filter(|(old, new)| held(old) && old == new).count()
}

/// Runs a program of this machine.
///
/// It has a separate process group: Ctrl-C must not end it while the drive erases.
pub(super) fn run_tool(program: &str, arguments: &[&str]) -> Result<String, ToolError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = command.output().map_err(|error| ToolError {
        status: None,
        message: format!("{program} does not start ({error}): install its package"),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = format!("{program} ended with {}: {}", output.status, last_line(&said));
    Err(ToolError { status: output.status.code().or(Some(-1)), message })
}

#[cfg(test)]
mod tests {
    use nvmeof_fake_ata::FakeAtaDrive;
    use nvmeof_sysfs_fixture::{self as fixture, Machine};

    use super::*;

    const NODE: usize = 1 << 20;

    struct Bench {
        machine: Machine,
        node: std::path::PathBuf,
        calls: std::cell::RefCell<Vec<String>>,
        _folder: tempfile::TempDir,
    }

    impl Bench {
        /// A disk `sda` of a kind, full of data.
        fn new(attributes: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
            let machine = Machine::new(folder.path()).unwrap();
            machine.block("devices/virtual/block", "sda", 640).unwrap();
            for (file, text) in attributes {
                machine.write(&format!("sys/devices/virtual/block/sda/{file}"), text).unwrap();
            }
            let node = machine.system().dev.join("sda");
            fs::write(&node, vec![7; NODE]).unwrap();
            Self { machine, node, calls: std::cell::RefCell::default(), _folder: folder }
        }

        fn erase(&self) {
            fs::write(&self.node, vec![0; NODE]).unwrap();
        }

        fn purge(&self, tool: RunTool<'_>) -> Result<Result<String, String>, String> {
            let system = self.machine.system();
            let run = |program: &str, arguments: &[&str]| {
                self.calls.borrow_mut().push(format!("{program} {}", arguments.join(" ")));
                tool(program, arguments)
            };
            DiskPurge { system: &system, name: "sda", serial: "" }.purge(&run)
        }
    }

    fn missing(program: &str) -> ToolError {
        ToolError { status: None, message: format!("{program} does not start") }
    }

    const ATA: &[(&str, &str)] = &[("device/vendor", "ATA     \n"), ("device/scsi_level", "6")];

    #[test]
    fn a_sata_drive_is_erased_and_verified() {
        let (bench, drive) = (Bench::new(ATA), FakeAtaDrive::new());
        let hdparm = |program: &str, arguments: &[&str]| {
            assert_eq!(program, "hdparm");
            let done = drive.hdparm(arguments);
            if drive.is_empty() {
                bench.erase();
            }
            done.map_err(|message| ToolError { status: Some(5), message })
        };
        assert_eq!(bench.purge(&hdparm), Ok(Ok("ATA Security Erase".to_owned())));
        // The drive reports success, and its data is still there.
        let (bench, drive) = (Bench::new(ATA), FakeAtaDrive::new());
        let hdparm = |_: &str, arguments: &[&str]| {
            drive.hdparm(arguments).map_err(|message| ToolError { status: Some(5), message })
        };
        let error = bench.purge(&hdparm).unwrap_err();
        assert!(error.contains("64 of 64 places that held data are unchanged"), "{error}");
    }

    #[test]
    fn a_drive_in_use_and_a_partition_are_not_touched() {
        let bench = Bench::new(ATA);
        bench.machine.mount(None, "30 1 259:640 / /data rw - ext4 /dev/sda rw").unwrap();
        let error = bench.purge(&|program, _| Err(missing(program))).unwrap_err();
        assert!(error.contains("/dev/sda is in use by now: "), "{error}");
        assert!(bench.calls.borrow().is_empty());
        let bench = Bench::new(&[("partition", "1")]);
        let why = bench.purge(&|program, _| Err(missing(program))).unwrap().unwrap_err();
        assert!(why.contains("a partition") && bench.calls.borrow().is_empty(), "{why}");
    }

    #[test]
    fn a_sas_drive_is_sanitized() {
        let sas: &[(&str, &str)] = &[("device/vendor", "EXAMPLE"), ("device/scsi_level", "7")];
        let bench = Bench::new(sas);
        let done = bench.purge(&|_, _| {
            bench.erase();
            Ok(String::new())
        });
        assert_eq!(done, Ok(Ok("SCSI Sanitize, block erase".to_owned())));
        assert_eq!(*bench.calls.borrow(), ["sg_sanitize --block --quick /dev/sda"]);
        for (status, is_failure) in
            [(Some(5), false), (Some(9), false), (None, false), (Some(2), true)]
        {
            let bench = Bench::new(sas);
            let error = ToolError { status, message: "not ready".into() };
            assert_eq!(bench.purge(&|_, _| Err(error.clone())).is_err(), is_failure, "{status:?}");
        }
    }

    #[test]
    fn what_cannot_be_erased_is_discarded_or_said_not_to_be_purged() {
        let discards: Vec<_> =
            ATA.iter().copied().chain([("queue/discard_max_bytes", "1")]).collect();
        let drive = FakeAtaDrive::new();
        drive.change(|state| state.is_frozen = true);
        let tool = |bench: &Bench, works: bool| {
            let run = |program: &str, arguments: &[&str]| {
                if program == "blkdiscard" {
                    if works {
                        bench.erase();
                    }
                    return Ok(String::new());
                }
                drive.hdparm(arguments).map_err(|message| ToolError { status: Some(5), message })
            };
            bench.purge(&run)
        };
        let how = tool(&Bench::new(&discards), true).unwrap().unwrap();
        assert!(how.starts_with("block discard, which is no purge") && how.contains("frozen"));
        let why = tool(&Bench::new(&discards), false).unwrap().unwrap_err();
        assert!(why.contains("left data"), "{why}");
        let why = tool(&Bench::new(ATA), true).unwrap().unwrap_err();
        assert!(why.contains("frozen") && why.contains("no block discard"), "{why}");
        assert_eq!(drive.changes(), 0);
    }
}
