//! Format NVM and Sanitize, which cannot be undone.
//!
//! The serial number is the only way to name the drive, and the opened drive must report it. A PCI
//! address that now belongs to another drive can therefore never select what is erased.

use std::sync::Arc;

use clap::ValueEnum;
use nvmeof_core::nvme_driver::{Controller, ControllerOptions};
use nvmeof_core::pci::VFIO_DRIVER;
use nvmeof_core::pci::users::User;
use nvmeof_wire::format::SecureErase;
use nvmeof_wire::identify::LbaFormat;
use nvmeof_wire::sanitize::SanitizeAction;

use super::inventory::{DriveInventory, IdentifyResult};
use super::{Failure, Host, Output, size};

/// Arguments of `drives format`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nvmeof-tgt drives format --block-size 4096 --destroy-data S4YPNE0R800123\n  \
    nvmeof-tgt drives format --lbaf 1 --secure-erase crypto --destroy-data S4YPNE0R800123\n\n\
    The drive has to be bound to vfio-pci and unused. Without --destroy-data it is shown what would be lost.\n\
    Exit status: 0 done, 1 refused or failed, 2 the command line is wrong."
)]
pub struct FormatArgs {
    /// LBA format by its number
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "block_size",
        required_unless_present = "block_size"
    )]
    pub(super) lbaf: Option<u8>,
    /// LBA format by its block size in bytes, without metadata: the fastest the drive has of it
    #[arg(long, value_name = "BYTES", value_parser = block_size)]
    pub(super) block_size: Option<u32>,
    /// Erase the data beyond recovery
    #[arg(long)]
    pub(super) secure_erase: Option<Erase>,
    /// The namespace; required if the drive has several
    #[arg(long, value_name = "N")]
    pub(super) nsid: Option<u32>,
    /// Proceed: all data is lost
    #[arg(long)]
    pub(super) destroy_data: bool,
    /// The drive's serial number
    pub(super) serial: String,
}

/// Arguments of `drives sanitize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    nvmeof-tgt drives sanitize --action crypto-erase --destroy-data S4YPNE0R800123\n\n\
    The drive has to be bound to vfio-pci and unused. Without --destroy-data it is shown what would be lost.\n\
    A sanitize that has begun goes on through resets and power cycles; the drive does nothing else until it is done.\n\
    Exit status: 0 done, 1 refused or failed, 2 the command line is wrong.")]
pub struct SanitizeArgs {
    /// Sanitize action
    #[arg(long)]
    pub(super) action: Action,
    /// Proceed: all data of all namespaces is lost
    #[arg(long)]
    pub(super) destroy_data: bool,
    /// The drive's serial number
    pub(super) serial: String,
}

/// Secure erase settings of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Erase {
    /// Erases all user data
    UserData,
    /// Discards the encryption key of the data
    Crypto,
}

/// Sanitize actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Action {
    /// Erases all blocks by the medium's own means
    BlockErase,
    /// Discards the encryption key of the data
    CryptoErase,
    /// Writes zeroes over all blocks, once
    Overwrite,
}

pub(super) fn format(
    host: &Host,
    args: &FormatArgs,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let drive = open(host, &args.serial)?;
    let nsids = drive.namespaces()?;
    let nsid = match (args.nsid, &nsids[..]) {
        (Some(nsid), all) if all.contains(&nsid) => nsid,
        (None, [one]) => *one,
        (_, all) => {
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            let what =
                format!("{} has namespaces {}: name one with --nsid", args.serial, all.join(", "));
            return Err(Failure::Usage(what));
        }
    };
    let formats = drive.formats(nsid)?;
    let lbaf = choose(&formats, args)?;
    let of = formats
        .get(usize::from(lbaf))
        .map_or_else(String::new, |format| format!(" ({})", show(format)));
    writeln!(output.out, "format with LBA format {lbaf}{of}, lost is:")?;
    lost(&drive, &[nsid], output)?;
    if nsids.len() > 1 {
        let what = "some drives format all namespaces together; here these would be lost, too:";
        writeln!(output.out, "{what}")?;
        let others: Vec<u32> = nsids.iter().copied().filter(|other| *other != nsid).collect();
        lost(&drive, &others, output)?;
    }
    confirmed(args.destroy_data)?;
    let erase = match args.secure_erase {
        None => SecureErase::NONE,
        Some(Erase::UserData) => SecureErase::USER_DATA,
        Some(Erase::Crypto) => SecureErase::CRYPTOGRAPHIC,
    };
    with_progress("formatting", output, |progress| drive.format(nsid, lbaf, erase, progress))?;
    writeln!(output.out, "formatted; the namespace is now:")?;
    lost(&drive, &[nsid], output)
}

pub(super) fn sanitize(
    host: &Host,
    args: &SanitizeArgs,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let drive = open(host, &args.serial)?;
    let action = match args.action {
        Action::BlockErase => SanitizeAction::BLOCK_ERASE,
        Action::CryptoErase => SanitizeAction::CRYPTO_ERASE,
        Action::Overwrite => SanitizeAction::OVERWRITE,
    };
    writeln!(output.out, "sanitize ({action}), lost is:")?;
    lost(&drive, &drive.namespaces()?, output)?;
    confirmed(args.destroy_data)?;
    with_progress("sanitizing", output, |progress| drive.sanitize(action, progress))?;
    writeln!(output.out, "sanitized")?;
    Ok(())
}

/// Opens the one drive with this serial number, if it is on `vfio-pci` and unused.
fn open(host: &Host, serial: &str) -> Result<Arc<Controller>, Failure> {
    let inventory = DriveInventory::read(host, true)?;
    let named: Vec<_> = inventory.drives.iter().filter(|d| d.serial() == Some(serial)).collect();
    let drive = match named[..] {
        [one] => one,
        [] => refuse(inventory.nobody(serial))?,
        _ => {
            let all: Vec<String> =
                named.iter().map(|drive| drive.function.address.to_string()).collect();
            refuse(format!("{serial} is the serial number of {}", all.join(", ")))?
        }
    };
    let address = drive.function.address;
    if !drive.users.is_empty() {
        let users: Vec<String> = drive.users.iter().map(User::to_string).collect();
        refuse(format!("{serial} ({address}) is in use: {}", users.join("; ")))?;
    }
    if drive.function.driver.as_deref() != Some(VFIO_DRIVER)
        || matches!(drive.says, IdentifyResult::Nothing(_))
    {
        refuse(format!(
            "{serial} ({address}) is not bound to {VFIO_DRIVER}: `nvmeof-tgt drives bind {serial}`"
        ))?;
    }
    let function = (host.open)(&address.to_string()).map_err(anyhow::Error::msg)?;
    let controller = Controller::open(function, ControllerOptions::default())?;
    // The opened function is exclusive; the one queried before may have been another drive.
    let now = &controller.identity().serial;
    if now != serial {
        refuse(format!("{address} has become another drive, {now}"))?;
    }
    Ok(controller)
}

/// Prints the namespaces that will be lost.
fn lost(drive: &Controller, nsids: &[u32], output: &mut Output<'_>) -> Result<(), Failure> {
    let identity = drive.identity();
    let name = format!("{} {} {}", drive.address(), identity.serial, identity.model);
    if nsids.is_empty() {
        writeln!(output.out, "  {name}: remaining data of deleted namespaces")?;
    }
    for nsid in nsids {
        match drive.namespace(*nsid) {
            Ok(space) => {
                let (bytes, block) = (size(space.size()), space.block_size);
                writeln!(
                    output.out,
                    "  {name}, namespace {nsid}: {bytes} in blocks of {block} bytes"
                )?;
            }
            // It can be lost nevertheless.
            Err(error) => writeln!(output.out, "  {name}: {error}")?,
        }
    }
    Ok(())
}

fn confirmed(is_confirmed: bool) -> Result<(), Failure> {
    if is_confirmed {
        return Ok(());
    }
    Err(Failure::Usage("nothing was done: repeat with --destroy-data to erase".to_owned()))
}

/// Runs a long operation and prints its progress on a terminal.
fn with_progress<E: std::error::Error + Send + Sync + 'static>(
    what: &str,
    output: &mut Output<'_>,
    work: impl FnOnce(&mut dyn FnMut(u8)) -> Result<(), E>,
) -> Result<(), Failure> {
    let mut shown = None;
    let result = work(&mut |percent| {
        if output.terminal && shown != Some(percent) {
            shown = Some(percent);
            // The terminal may be closed; the operation continues.
            let _ =
                write!(output.notes, "\r{what}: {percent} %").and_then(|()| output.notes.flush());
        }
    });
    if shown.is_some() {
        writeln!(output.notes)?;
    }
    Ok(result?)
}

/// Returns the number of the requested LBA format.
fn choose(formats: &[LbaFormat], args: &FormatArgs) -> Result<u8, Failure> {
    let list = || {
        let all = formats.iter().enumerate().filter(|(_, format)| format.lbads != 0);
        let all: Vec<String> =
            all.map(|(number, format)| format!("{number}: {}", show(format))).collect();
        all.join("; ")
    };
    if let Some(lbaf) = args.lbaf {
        return match formats.get(usize::from(lbaf)).filter(|format| format.is_plain()) {
            Some(_) => Ok(lbaf),
            None => Err(Failure::Usage(format!(
                "LBA format {lbaf} is not one without metadata; the drive has {}",
                list()
            ))),
        };
    }
    let size = args.block_size.unwrap_or_default();
    LbaFormat::fastest(formats, size).ok_or_else(|| {
        Failure::Usage(format!(
            "no LBA format has blocks of {size} bytes without metadata; the drive has {}",
            list()
        ))
    })
}

fn show(format: &LbaFormat) -> String {
    let block = format.block_size().map_or_else(|| "?".to_owned(), |size| size.to_string());
    match format.ms.get() {
        0 => format!("{block} bytes"),
        metadata => format!("{block} bytes and {metadata} of metadata"),
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    let form = "a power of two from 512 to 4096, as 4096 or 4k";
    let (number, unit) = match text.strip_suffix("KiB").or_else(|| text.strip_suffix(['k', 'K'])) {
        Some(number) => (number, 1024),
        None => (text, 1),
    };
    let bytes = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|b| b.is_power_of_two() && (512..=4096).contains(b)).ok_or_else(|| form.to_owned())
}

fn refuse<T>(what: String) -> Result<T, Failure> {
    Err(Failure::Failed(anyhow::Error::msg(what)))
}
