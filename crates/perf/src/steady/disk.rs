//! Purge of a block device of the kernel that is no NVMe namespace: SATA, SAS, or another.
//!
//! ```text
//!   held exclusively -> samples -> SATA: `ata`; SAS: sg_sanitize -> samples changed?
//!                                    '-- not possible -> block discard, if it can
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Advice, fadvise};

use super::ata::{self, AtaDrive};
use super::disk_hold::HoldableDisk;
use crate::tool::RunTool;

/// Places that are read before and after an erase, and the bytes of each.
const SAMPLES: u64 = 64;
const SAMPLE: usize = 4096;
/// Exit statuses of sg3_utils: the drive does not have the command, or not this form of it.
const ILLEGAL_REQUEST: i32 = 5;
const INVALID_OPERATION: i32 = 9;

/// A block device to purge.
#[derive(Debug)]
pub(super) struct DiskPurge<'a> {
    pub(super) disk: HoldableDisk<'a>,
}

impl DiskPurge<'_> {
    /// Purges the device; returns the method, or the reason why there is none.
    ///
    /// # Errors
    /// It is in use, or the purge began and failed.
    pub(super) fn purge(&self, run: RunTool<'_>) -> Result<Result<String, String>, String> {
        if self.attribute("partition").is_some() {
            return Ok(Err("a partition: only a whole drive is purged".to_owned()));
        }
        let held = self.disk.hold().map_err(|why| format!("{why}; not purged"))?;
        let before = samples(&held)?;
        let why = match self.erase(run)? {
            Ok(how) => {
                let after = samples(&held);
                let after =
                    after.map_err(|error| format!("{how} was reported as done; {error}"))?;
                return match unchanged(&before, &after) {
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
        self.discard(run, &why, &before)
    }

    /// Erases the device by its own command, or returns the reason why it has none.
    fn erase(&self, run: RunTool<'_>) -> Result<Result<String, String>, String> {
        let path = self.disk.path();
        if self.attribute("device/vendor").as_deref() == Some("ATA") {
            let hdparm =
                |arguments: &[&str]| run("hdparm", arguments).map_err(|error| error.message);
            AtaDrive { run: &hdparm, path: &path, patience: ata::PATIENCE }.purge(self.disk.serial)
        } else if self.attribute("device/scsi_level").is_some() {
            scsi_sanitize(run, &path)
        } else {
            Ok(Err("no command that erases it is known".to_owned()))
        }
    }

    /// Discards all blocks, because `why` prevents an erase.
    fn discard(
        &self,
        run: RunTool<'_>,
        why: &str,
        before: &[Vec<u8>],
    ) -> Result<Result<String, String>, String> {
        if self.attribute("queue/discard_max_bytes").is_none_or(|bytes| bytes == "0") {
            return Ok(Err(format!("{why}; the device has no block discard")));
        }
        if let Err(error) = run("blkdiscard", &[&self.disk.path()]) {
            return Ok(Err(format!("{why}; {}", error.message)));
        }
        // udev opens the device after a change.
        let after = self.disk.hold().and_then(|held| samples(&held));
        let after = after.map_err(|error| format!("{why}; after a block discard: {error}"))?;
        Ok(match unchanged(before, &after) {
            0 => Ok(format!("block discard, which is no purge of the specification ({why})")),
            _ => Err(format!("{why}; a block discard left data")),
        })
    }

    /// An attribute in sysfs.
    fn attribute(&self, name: &str) -> Option<String> {
        self.disk.system.block_attribute(self.disk.name, name)
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

/// Number of samples that held data and still hold the same. An erased place is all zeroes or all
/// ones, as the cells of a drive are.
fn unchanged(before: &[Vec<u8>], after: &[Vec<u8>]) -> usize {
    let is_all = |data: &[u8], value: u8| data.iter().all(|byte| *byte == value);
    let held = |data: &[u8]| !is_all(data, 0) && !is_all(data, 0xff);
    before.iter().zip(after).filter(|(old, new)| held(old) && old == new).count()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nvmeof_fake_ata::FakeAtaDrive;
    use nvmeof_sysfs_fixture::{self as fixture, Machine};

    use super::*;
    use crate::patience::Patience;
    use crate::tool::ToolError;

    const NODE: usize = 1 << 20;

    struct Bench {
        machine: Machine,
        node: std::path::PathBuf,
        calls: std::cell::RefCell<Vec<String>>,
        /// Serial number of the drive that may be purged.
        serial: &'static str,
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
            let calls = std::cell::RefCell::default();
            Self { machine, node, calls, serial: "", _folder: folder }
        }

        fn erase(&self) {
            self.fill(0);
        }

        fn fill(&self, byte: u8) {
            fs::write(&self.node, vec![byte; NODE]).unwrap();
        }

        fn purge(&self, tool: RunTool<'_>) -> Result<Result<String, String>, String> {
            let system = self.machine.system();
            let run = |program: &str, arguments: &[&str]| {
                self.calls.borrow_mut().push(format!("{program} {}", arguments.join(" ")));
                tool(program, arguments)
            };
            let (name, patience) = ("sda", Patience::NONE);
            let disk = HoldableDisk { system: &system, name, serial: self.serial, patience };
            DiskPurge { disk }.purge(&run)
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
    fn another_drive_is_not_touched_by_any_method() {
        for attributes in [ATA, &[("device/scsi_level", "7")], &[("queue/discard_max_bytes", "1")]]
        {
            let bench = Bench { serial: "SN1", ..Bench::new(attributes) };
            let error = bench.purge(&|program, _| Err(missing(program))).unwrap_err();
            assert!(error.contains("another drive") && error.contains("not purged"), "{error}");
            assert!(bench.calls.borrow().is_empty());
        }
    }

    #[test]
    fn an_erased_drive_is_all_zeroes_or_all_ones() {
        let sas: &[(&str, &str)] = &[("device/scsi_level", "7")];
        let purge_of = |before: u8, after: u8| {
            let bench = Bench::new(sas);
            bench.fill(before);
            bench.purge(&|_, _| {
                bench.fill(after);
                Ok(String::new())
            })
        };
        for (before, after) in [(7, 0), (7, 0xff), (0xff, 0xff), (0, 0), (0xff, 0)] {
            assert!(purge_of(before, after).unwrap().is_ok(), "{before} {after}");
        }
        assert!(purge_of(7, 7).unwrap_err().contains("64 of 64 places"));
    }

    #[test]
    fn a_drive_that_is_lost_by_its_erase_reports_both() {
        let bench = Bench::new(&[("device/scsi_level", "7")]);
        let lost = bench.purge(&|_, _| {
            fs::write(&bench.node, "").unwrap();
            Ok(String::new())
        });
        let error = lost.unwrap_err();
        assert!(error.contains("SCSI Sanitize, block erase was reported as done; "), "{error}");
        let bench = Bench::new(&[("queue/discard_max_bytes", "1")]);
        let lost = bench.purge(&|_, _| {
            bench.machine.mount(None, "30 1 259:640 / /data rw - ext4 /dev/sda rw").unwrap();
            Ok(String::new())
        });
        let error = lost.unwrap_err();
        assert!(error.contains("after a block discard: /dev/sda is in use"), "{error}");
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
