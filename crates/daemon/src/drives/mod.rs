//! `nvmeof-tgt drives`: lists the machine's NVMe drives, and binds and erases them.
//!
//! | file | contents |
//! |---|---|
//! | `inventory` | all drives, as the system and the bound drives themselves report them |
//! | `list`, `json` | drives as a table and as JSON |
//! | `bind` | binding to `vfio-pci`, and returning to the kernel |
//! | `erase` | Format NVM and Sanitize |
//! | `balance` | stripes with unevenly distributed members |

pub(crate) mod balance;
mod bind;
mod erase;
mod inventory;
mod json;
mod list;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use nvmeof_console::complain;
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_core::pci::{Sysfs, SysfsWriter, System};
use nvmeof_core::vfio;

/// Exit status for an invalid command line.
const EXIT_USAGE: u8 = 2;

/// Subcommands of `drives`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show all NVMe drives: their location, link speed and users
    List(list::Args),
    /// Bind drives for devices of type "nvme"; drives in use are not touched
    Bind(bind::Args),
    /// Return drives to the kernel
    Unbind(bind::Args),
    /// Format a namespace of a bound drive: all its data is lost
    Format(erase::FormatArgs),
    /// Sanitize a bound drive: all its data is lost, beyond recovery
    Sanitize(erase::SanitizeArgs),
}

/// Runs a command. Exit status: 0 done, 1 refused or failed, 2 the command line is wrong.
#[must_use]
pub fn run(command: &Command) -> ExitCode {
    let host = Host::this();
    let terminal = io::stderr().is_terminal();
    let (mut out, mut notes) = (nvmeof_console::Stdout, nvmeof_console::Stderr);
    let mut output = Output { out: &mut out, notes: &mut notes, terminal };
    let result = match command {
        Command::List(args) => list::run(&host, args, &mut output),
        Command::Bind(args) => bind::bind(&host, args, &mut output),
        Command::Unbind(args) => bind::unbind(&host, args, &mut output),
        Command::Format(args) => erase::format(&host, args, &mut output),
        Command::Sanitize(args) => erase::sanitize(&host, args, &mut output),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain!("nvmeof-tgt: {failure}");
            match failure {
                Failure::Usage(_) => ExitCode::from(EXIT_USAGE),
                Failure::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// The machine, or a fake of it in tests.
struct Host {
    system: System,
    writes: Box<dyn SysfsWriter>,
    /// Opens a function that is bound to `vfio-pci`.
    open: Box<Open>,
    /// Loads a kernel module; later steps show whether that worked.
    load: fn(&str),
    /// Waits for a duration.
    pause: Box<dyn Fn(Duration)>,
}

type Open = dyn Fn(&str) -> Result<Arc<dyn Function>, String>;

/// Outputs for results and notes.
struct Output<'a> {
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    /// True if notes go to a terminal.
    terminal: bool,
}

/// Failure of a command.
#[derive(Debug)]
enum Failure {
    /// The command line is invalid.
    Usage(String),
    /// Any other failure.
    Failed(anyhow::Error),
}

impl Host {
    fn this() -> Self {
        Self {
            system: System::this(),
            writes: Box::new(Sysfs),
            open: Box::new(|address| vfio::open(address).map_err(|error| error.to_string())),
            load,
            pause: Box::new(std::thread::sleep),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) => f.write_str(what),
            Self::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn load(module: &str) {
    // A step that lacks the module reports that, with the remedy.
    let _ = std::process::Command::new("modprobe").arg("-q").arg(module).status();
}

/// Formats bytes in decimal units, as on drive labels: `3.84 TB`.
fn size(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    let hundredths = bytes / (unit / 100);
    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}
