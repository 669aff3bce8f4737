//! The program `nvmeofctl`: a command line for the daemon's HTTP API.
//!
//! | file | contents |
//! |---|---|
//! | `args` | the command line |
//! | `client` | calls over the UNIX socket or TCP |
//! | `output` | tables as text, or JSON |
//! | `commands` | one file per command |
//! | `top` | live view of the daemon |
//! | `trace` | commands traced from capsule to completion |

mod args;
mod client;
mod commands;
mod output;
mod top;
mod trace;

use std::process::ExitCode;

use anyhow::Context as _;
use nvmeof_console::complain;

pub use args::CtlArgs;
pub use client::{ApiClient, CallError};

/// Exit status for an invalid command line or API address.
const EXIT_USAGE: u8 = 2;

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    match nvmeof_console::parse() {
        Ok(args) => nvmeof_console::status("nvmeofctl", run(&args)),
        Err(code) => code,
    }
}

fn run(args: &CtlArgs) -> ExitCode {
    let signals = nvmeof_console::outlive_file_limits().context("cannot handle signals");
    match signals.and_then(|()| commands::run(args)) {
        Ok(code) => code,
        Err(error) => {
            complain!("nvmeofctl: {error:#}");
            match error.downcast_ref::<CallError>() {
                Some(CallError::Address { .. }) => ExitCode::from(EXIT_USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
