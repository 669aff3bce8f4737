//! `rdma-wire-limit`: the limits of a path between two RDMA devices, by raw RDMA READ and WRITE.
//!
//! | module | contents |
//! |---|---|
//! | `args` | the command line |
//! | `device` | device, address and packet size |
//! | `control` | messages over TCP before the measurement |
//! | `end` | a queue pair, and registered memory |
//! | `server`, `client` | the two ends |
//! | `result` | counting, and the output |

mod args;
mod client;
mod control;
mod device;
mod end;
mod result;
mod server;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use args::{Args, End};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One thread: a second one would only add wake-ups to the latency.
fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let local = tokio::task::LocalSet::new();
    match &args.end {
        End::Server(args) => local.block_on(&runtime, server::run(args)),
        End::Client(args) => local.block_on(&runtime, client::run(args)),
    }
}
