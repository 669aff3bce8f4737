//! `nvmeof-tgt drives`: the machine's NVMe drives, and handing them to this program and back.
//!
//! | file | what |
//! |---|---|
//! | `census` | all drives: what the system knows, and what bound drives say of themselves |
//! | `list`, `json` | them as a table, and for programs |
//! | `bind` | handing over, and back |
//! | `erase` | Format NVM and Sanitize |
//! | `spread` | stripes whose members hang unevenly |

mod bind;
mod census;
mod erase;
mod json;
mod list;
pub(crate) mod spread;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use nvmeof_console::complain;
use nvmeof_core::nvme_driver::seam::Function;
use nvmeof_core::pci::{Sysfs, System, Writes};
use nvmeof_core::vfio;

/// Exit status for a command line that is wrong.
const EXIT_USAGE: u8 = 2;

/// What to do with the drives.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show all NVMe drives: where they hang, how fast their links are, who uses them
    List(list::Args),
    /// Take drives from the kernel, for devices of type "nvme"; those in use are left alone
    Bind(bind::Args),
    /// Give drives back to the kernel
    Unbind(bind::Args),
    /// Format a namespace of a bound drive: all its data is lost
    Format(erase::FormatArgs),
    /// Sanitize a bound drive: all its data is lost, beyond recovery
    Sanitize(erase::SanitizeArgs),
}

/// Runs it. Exit status: 0 done, 1 refused or failed, 2 the command line is wrong.
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

/// The machine, or one that tests made up.
struct Host {
    system: System,
    writes: Box<dyn Writes>,
    /// Takes a function that is bound to `vfio-pci`.
    open: Box<Open>,
    /// Loads a module of the kernel; whether that worked shows afterwards.
    load: fn(&str),
    /// Lets time pass.
    pause: Box<dyn Fn(Duration)>,
}

type Open = dyn Fn(&str) -> Result<Arc<dyn Function>, String>;

/// Where results and notes go.
struct Output<'a> {
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    /// Whether notes go to a person.
    terminal: bool,
}

/// Why a command did not do what it was to.
#[derive(Debug)]
enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// Anything else.
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
    // What is missing afterwards is said by whoever needs it, with the command to give.
    let _ = std::process::Command::new("modprobe").arg("-q").arg(module).status();
}

/// Bytes in decimal units, as drives are sold: `3.84 TB`.
fn size(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    let hundredths = bytes / (unit / 100);
    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}
