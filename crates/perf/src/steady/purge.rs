//! Purge: returns a drive to its factory state.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nvmeof_core::nvme_driver::{AdminError, Controller, ControllerOptions};
use nvmeof_core::pci::{Address, System};
use nvmeof_core::vfio;
use nvmeof_initiator::{Endpoint, FormatOutcome};
use nvmeof_report::steady::Preparation;
use nvmeof_wire::format::SecureErase;
use nvmeof_wire::sanitize::SanitizeAction;

use super::disk::DiskPurge;
use super::disk_hold::HoldableDisk;
use super::drive_under_test::DriveTestError;
use crate::args::{HostArgs, TargetArgs};
use crate::host;
use crate::patience::Patience;
use crate::target::DeviceSpec;
use crate::tool::{RunTool, ToolError, run_tool};

/// The program that formats drives under the kernel driver.
const NVME: &str = "nvme";

/// Maximum duration of a format over a fabric.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Purge method of one device.
#[derive(Debug, Clone)]
pub(crate) enum PurgeMethod {
    /// Through its controller, over the fabric.
    Fabric { endpoint: Endpoint, host: HostArgs, nsid: u32 },
    /// Through the VFIO driver.
    Driver { address: Address, nsid: Option<u32>, serial: String },
    /// An NVMe namespace of the kernel by its name below `/dev`, with nvme-cli.
    Kernel { name: String, serial: String },
    /// A block device that is no NVMe namespace, by its name below `/dev`.
    Disk { name: String, serial: String },
}

/// Returns the purge method for the device of the arguments, or the reason why there is none.
///
/// Over a fabric, it purges namespace `nsid`; a drive of this machine only if it has this serial
/// number.
pub(crate) fn method(args: &TargetArgs, nsid: u32, serial: &str) -> Result<PurgeMethod, String> {
    let device = match (&args.device[..], args.stripe) {
        ([], _) => {
            let endpoint = args.connect.first().cloned().ok_or("nothing is named")?;
            return Ok(PurgeMethod::Fabric { endpoint, host: args.host.clone(), nsid });
        }
        (_, Some(_)) => return Err("a stripe is several devices".into()),
        ([device], None) => device,
        _ => return Err("several devices".into()),
    };
    match device {
        DeviceSpec::Pci { address, nsid } => {
            let serial = serial.trim().to_owned();
            Ok(PurgeMethod::Driver { address: *address, nsid: *nsid, serial })
        }
        DeviceSpec::File(path) => kernel(path, serial),
        DeviceSpec::Null { .. } | DeviceSpec::Ram { .. } => {
            Err("memory has no state to purge".into())
        }
    }
}

fn kernel(path: &Path, serial: &str) -> Result<PurgeMethod, String> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_block = fs::metadata(&path).is_ok_and(|data| data.file_type().is_block_device());
    if !is_block {
        return Err("a file has no Format".into());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let serial = serial.trim().to_owned();
    if !name.starts_with(NVME) {
        return Ok(PurgeMethod::Disk { name: name.to_owned(), serial });
    }
    // A partition is formatted together with all others.
    let is_namespace =
        name.strip_prefix(NVME).is_some_and(|rest| rest.contains('n') && !rest.contains('p'));
    let (controller, _) = name.rsplit_once('n').unwrap_or_default();
    let siblings =
        fs::read_dir("/sys/class/block").into_iter().flatten().flatten().filter(|entry| {
            let other = entry.file_name();
            let rest =
                other.to_str().and_then(|other| other.strip_prefix(controller)?.strip_prefix('n'));
            rest.is_some_and(|number| number.chars().all(|digit| digit.is_ascii_digit()))
        });
    if is_namespace && siblings.count() > 1 {
        return Err("the drive has other namespaces, and may format all of them".into());
    }
    match is_namespace {
        true => Ok(PurgeMethod::Kernel { name: name.to_owned(), serial }),
        false => Err("not a whole NVMe namespace: Format is not available".into()),
    }
}

impl PurgeMethod {
    /// Purges the device. A drive without the capability is no error.
    ///
    /// # Errors
    /// The drive has the capability, and the purge failed.
    pub(crate) fn purge(&self) -> Result<Preparation, DriveTestError> {
        let began = Instant::now();
        let done = match self {
            Self::Fabric { endpoint, host, nsid } => by_fabric(endpoint, host, *nsid),
            Self::Driver { address, nsid, serial } => by_driver(*address, *nsid, serial),
            Self::Kernel { name, serial } | Self::Disk { name, serial } => {
                let (system, patience) = (&System::this(), Patience::FOR_UDEV);
                let disk = HoldableDisk { system, name, serial, patience };
                let done = match self {
                    Self::Kernel { .. } => by_kernel(&disk, &run_tool),
                    _ => DiskPurge { disk }.purge(&run_tool),
                };
                done.map_err(|what| DriveTestError::Device(format!("purge: {what}")))
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        Ok(match done? {
            Ok(how) => Preparation { done: true, how, seconds, bytes: 0 },
            Err(why) => Preparation { done: false, how: why, seconds, bytes: 0 },
        })
    }
}

/// The purge, or the reason for its absence; or a failure.
type Purged = Result<Result<String, String>, DriveTestError>;

fn by_fabric(endpoint: &Endpoint, host: &HostArgs, nsid: u32) -> Purged {
    let failed = |what: String| DriveTestError::Device(format!("purge: {what}"));
    let options =
        host::options(host, [&endpoint.address]).map_err(|error| failed(format!("{error:#}")))?;
    let mut controller = nvmeof_initiator::Controller::connect(endpoint, &options)
        .map_err(|error| failed(error.to_string()))?;
    let formatted = controller.format(nsid, LONGEST).map_err(|error| failed(error.to_string()))?;
    // The format is complete, even if the disconnect fails.
    let _ = controller.disconnect();
    Ok(match formatted {
        FormatOutcome::Done => Ok("Format NVM with user data erase, over the fabric".into()),
        FormatOutcome::Unsupported => Err("the controller does not support Format NVM".into()),
        FormatOutcome::Others => Err(format!("the controller {ALL}")),
    })
}

/// Reason not to request a format.
const ALL: &str = "would format other namespaces, too";

fn by_driver(address: Address, nsid: Option<u32>, serial: &str) -> Purged {
    let failed = |what: String| DriveTestError::Device(format!("purge: {what}"));
    let function = vfio::open(&address.to_string()).map_err(|error| failed(error.to_string()))?;
    let controller = Controller::open(function, ControllerOptions::default())
        .map_err(|error| failed(error.to_string()))?;
    let now = controller.identity().serial.trim();
    if now != serial {
        return Err(failed(format!(
            "{address} has become another drive: its serial number was `{serial}` and is `{now}`; \
             not purged"
        )));
    }
    let first = || -> Result<u32, DriveTestError> {
        let all = controller.namespaces().map_err(|error| failed(error.to_string()))?;
        all.first().copied().ok_or_else(|| failed("the drive has no namespace".into()))
    };
    let nsid = nsid.map_or_else(first, Ok)?;
    let all = controller.namespaces().map_err(|error| failed(error.to_string()))?;
    if all.len() > 1 {
        let count = all.len();
        return Ok(Err(format!(
            "the drive has {count} namespaces, and may format or sanitize all of them"
        )));
    }
    let format = controller.namespace(nsid).map_err(|error| failed(error.to_string()))?.format;
    match controller.format(nsid, format, SecureErase::USER_DATA, &mut |_| {}) {
        Ok(()) => return Ok(Ok("Format NVM with user data erase".into())),
        Err(AdminError::Unsupported(_)) => {}
        Err(error) => return Err(failed(format!("Format NVM: {error}"))),
    }
    for action in [SanitizeAction::BLOCK_ERASE, SanitizeAction::CRYPTO_ERASE] {
        match controller.sanitize(action, &mut |_| {}) {
            Ok(()) => return Ok(Ok(format!("Sanitize, {action}"))),
            Err(AdminError::Unsupported(_)) => {}
            Err(error) => return Err(failed(format!("Sanitize: {error}"))),
        }
    }
    Ok(Err("the drive has neither Format NVM nor Sanitize with an erase".into()))
}

fn by_kernel(disk: &HoldableDisk<'_>, run: RunTool<'_>) -> Result<Result<String, String>, String> {
    // --force: nvme-cli does not hold the namespace, too.
    let _held = disk.hold().map_err(|why| format!("{why}; not purged"))?;
    Ok(match run(NVME, &["format", &disk.path(), "--ses=1", "--force"]) {
        Ok(_) => Ok(format!("Format NVM with user data erase, by {NVME} format")),
        Err(ToolError { status: None, message }) => {
            Err(format!("the kernel has the drive, and {message} (nvme-cli)"))
        }
        Err(error) => Err(error.message),
    })
}

#[cfg(test)]
mod tests {
    use nvmeof_sysfs_fixture::{self as fixture, Machine};

    use super::*;

    #[test]
    fn only_whole_namespaces_are_formatted() {
        assert!(kernel(Path::new("/proc/self/exe"), "").unwrap_err().contains("a file"));
        assert!(kernel(Path::new("/nobody/has/this"), "").is_err());
    }

    #[test]
    fn a_namespace_of_the_kernel_is_formatted_if_it_is_unused_and_the_same() {
        let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
        let mut machine = Machine::new(folder.path()).unwrap();
        machine.drive(&fixture::host(0), "0000:01:00.0").unwrap();
        let system = &machine.system();
        let calls = std::cell::Cell::new(0);
        let purge_of = |serial, done: Result<String, ToolError>| {
            let disk = HoldableDisk { system, name: "nvme0n1", serial, patience: Patience::NONE };
            by_kernel(&disk, &|program, arguments| {
                assert_eq!((program, arguments[1]), ("nvme", "/dev/nvme0n1"));
                calls.set(calls.get() + 1);
                done.clone()
            })
        };
        let how = purge_of("SERIAL00", Ok(String::new())).unwrap().unwrap();
        assert!(how.contains("by nvme format"), "{how}");
        let missing = ToolError { status: None, message: "nvme does not start".to_owned() };
        let why = purge_of("SERIAL00", Err(missing)).unwrap().unwrap_err();
        assert!(why.contains("the kernel has the drive, and nvme does not start"), "{why}");
        let error = purge_of("SERIAL01", Ok(String::new())).unwrap_err();
        assert!(error.contains("another drive") && error.contains("not purged"), "{error}");
        machine.mount(None, "30 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw").unwrap();
        let error = purge_of("SERIAL00", Ok(String::new())).unwrap_err();
        assert!(error.contains("/data"), "{error}");
        assert_eq!(calls.get(), 2);
    }
}
