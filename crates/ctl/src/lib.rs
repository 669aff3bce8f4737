//! The program `nvmeofctl`: a command line on top of the daemon's HTTP API.
//!
//! | file | what |
//! |---|---|
//! | `args` | the command line |
//! | `client` | calls over the UNIX socket or TCP |
//! | `output` | tables for people, JSON for programs |
//! | `commands` | one file a command |
//! | `top` | what the daemon does, live |
//! | `trace` | commands followed from capsule to completion |

mod args;
mod client;
mod commands;
mod output;
mod top;
mod trace;

use std::process::ExitCode;

use clap::Parser as _;

pub use args::Args;
pub use client::{CallError, Client};

/// Exit status for a command line, or an answer to it, that says the request was wrong.
const EXIT_USAGE: u8 = 2;

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    match commands::run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nvmeofctl: {error:#}");
            match error.downcast_ref::<CallError>() {
                Some(CallError::Address { .. }) => ExitCode::from(EXIT_USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
