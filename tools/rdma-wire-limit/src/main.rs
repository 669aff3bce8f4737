//! `rdma-wire-limit`: what a path between two RDMA devices carries at most, by raw RDMA READ and WRITE.
//!
//! | module | what |
//! |---|---|
//! | `args` | the command line |
//! | `device` | which device, which address of it, which packet size |
//! | `control` | what both ends tell each other over TCP before anything is measured |
//! | `end` | a queue pair, and registered memory |
//! | `server`, `client` | the two ends |
//! | `result` | counting, and what is printed |

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

/// One thread: the work is the device's, and a second thread would only add wake-ups to the latency.
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
