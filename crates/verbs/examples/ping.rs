//! Probe of the QEMU boots (`cargo xtask vm`): both ends of RDMA connections in one process.
//!
//! The program prints a line for each check, and succeeds only if all passed. It tests the
//! rdma-core provider on a machine with an RDMA device, for example Soft-RoCE:
//!
//! ```text
//! cargo run -p nvmeof-verbs --example ping -- 10.0.1.1
//! ```
//!
//! With `removal` after the address, it waits until the device is removed, and releases everything.
//! Then it waits until the device returns, and uses it. The operator removes and restores the
//! device (`rdma link`).

mod ping {
    pub(crate) mod checks;
    pub(crate) mod ends;
    pub(crate) mod refusals;
    pub(crate) mod removal;
}

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use nvmeof_verbs::system::SystemDevice;
use ping::ends::{Ends, Shape};
use ping::{checks, refusals, removal};

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<ExitCode> {
    let address = std::env::args().nth(1).context("the address of an RDMA device is missing")?;
    let address: IpAddr = address.parse().with_context(|| format!("{address} is no address"))?;
    println!("devices: {}", SystemDevice::list()?.join(", "));

    let mut score = Score::default();
    match std::env::args().nth(2).as_deref() {
        None => every_check(&mut score, address),
        Some("removal") => {
            score.check("a device goes and comes back", || removal::there_and_back(address));
        }
        Some(other) => bail!("{other} is not known: only `removal` is"),
    }
    score.end()
}

fn every_check(score: &mut Score, address: IpAddr) {
    score.check("private data goes both ways, and depths", || checks::private_data(address));
    score.check("a refusal carries its reason", || checks::refusal(address));
    score.check("a refused connection gives its receives back", || {
        checks::refused_receives(address)
    });
    score.check("a dropped request is refused", || checks::dropped_request(address));
    score.check("what is sent has its traffic class", || checks::traffic_class(address));
    score.check("connections leave nothing behind", || checks::leaks(address));
    for shape in [Shape::Own, Shape::Shared] {
        for (name, check) in nvmeof_verbs_conformance::checks::<SystemDevice>() {
            score.check(&format!("{name} ({shape})"), || {
                check(&mut Ends::new(address, shape)?.pair);
                Ok(())
            });
        }
    }
    score.check("a chain of two writes and a send completes once", || checks::chain(address));
    score.check("an inline send needs no key", || checks::inline(address));
    score.check("a bound window is invalidated by the peer's send", || checks::window(address));
    score.check("the completion channel wakes", || checks::wake_up(address));
    score.check("everything posted comes back at the end", || checks::flush(address));
    score.check("a dropped endpoint ends the connection", || checks::dropped_endpoint(address));
    score.check("a send without a receive is tried again", || checks::late_receive(address));
    score.check("a send without a receive fails in the end", || checks::no_receive(address));
    score.check("a wrong key fails, and shared receives or not, the peer is told", || {
        checks::wrong_key(address, Shape::Own)?;
        checks::wrong_key(address, Shape::Shared)
    });
    score.check("listening where it cannot be says why", || refusals::listening(address));
    score.check("a route to nowhere says why", || refusals::route(address));
    // The last check, because it drops rights permanently.
    score.check("too little lockable memory says so", || refusals::locked_memory(address));
}

/// Numbers of checks that passed and failed.
#[derive(Debug, Default)]
struct Score {
    passed: u32,
    failed: u32,
}

impl Score {
    #[expect(clippy::print_stdout, reason = "a person reads it")]
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let outcome = catch_unwind(AssertUnwindSafe(check));
        let why = match outcome {
            Ok(Ok(())) => {
                println!("ok   {name}");
                self.passed += 1;
                return;
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "panicked".to_owned(),
        };
        println!("FAIL {name}: {why}");
        self.failed += 1;
    }

    #[expect(clippy::print_stdout, reason = "a person reads it")]
    fn end(&self) -> Result<ExitCode> {
        println!("{} passed, {} failed", self.passed, self.failed);
        ensure!(self.passed > 0, "nothing was checked");
        Ok(if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
