//! A link slower than the machine: in a network namespace of its own, what leaves has so much bandwidth and no more.
//!
//! Without it processors are the bound, and on a machine that is shared these wander by a tenth from one second to the
//! next: far more than policies differ. A link wanders by less than a hundredth.

use std::fmt;
use std::process::{self, Command};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use crate::listen::{Fabric, Listen};
use crate::setup::program;
use crate::workspace::run_checked;

/// What a packet scheduler sends at once at least, in bytes: more than one packet before it is cut into segments.
const LEAST_BURST: f64 = 262_144.0;
/// It sends at once what the link takes in so many seconds.
const BURST_S: f64 = 1e-3;
/// What may wait in it, in bytes: more than sockets ever hand it.
const LIMIT: u32 = 64 << 20;

/// How fast a link is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rate {
    /// As the machine is.
    Unbound,
    Gbit(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Unbound);
        }
        text.strip_suffix("gbit")
            .and_then(|number| number.parse().ok())
            .filter(|rate| (0.1..=1000.0).contains(rate))
            .map(Self::Gbit)
            .ok_or_else(|| {
                format!("`{text}` is neither `none` nor a rate from 0.1gbit to 1000gbit")
            })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unbound => f.pad("none"),
            Self::Gbit(rate) => f.pad(&format!("{rate}gbit")),
        }
    }
}

/// A link, while it lasts.
#[derive(Debug)]
pub(super) struct Link {
    /// Of its namespace, if it has one.
    name: Option<String>,
}

impl Link {
    /// Makes one that `listen` can be reached over.
    pub(super) fn make(rate: Rate, listen: Listen) -> Result<Self> {
        let Rate::Gbit(gbit) = rate else { return Ok(Self { name: None }) };
        ensure!(
            listen.fabric == Fabric::Tcp && listen.address.is_loopback(),
            "--link {rate} is for tcp:// on a loopback address: what else is listened at, as --listen {listen}, takes \
             --link none"
        );
        for needed in ["ip", "tc"] {
            ensure!(
                program(needed).is_some(),
                "--link {rate} takes `{needed}`: install iproute2, or measure with --link none"
            );
        }
        let name = format!("nvmeof-bench-{}", process::id());
        run_checked(Command::new("ip").args(["netns", "add", &name])).context(
            "a link takes root (or CAP_SYS_ADMIN), for a network namespace; --link none takes none",
        )?;
        let link = Self { name: Some(name) };
        link.run(&["ip", "link", "set", "lo", "up"])?;
        let (burst, limit) = ((gbit * 1e9 / 8.0 * BURST_S).max(LEAST_BURST), LIMIT.to_string());
        let (rate, burst) = (format!("{}mbit", gbit * 1e3), format!("{burst:.0}"));
        let scheduler = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", &rate];
        let words: Vec<_> =
            scheduler.into_iter().chain(["burst", &burst, "limit", &limit]).collect();
        link.run(&words)
            .context("the kernel makes no slow link (CONFIG_NET_SCH_TBF); use --link none")?;
        Ok(link)
    }

    /// The same command at this link.
    pub(super) fn command(&self, command: Command) -> Command {
        let Some(name) = &self.name else { return command };
        let mut within = Command::new("ip");
        // It becomes the program, so that signals are for that.
        within.args(["netns", "exec", name]).arg(command.get_program()).args(command.get_args());
        within
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        run_checked(&mut self.command(command))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // What is left of it goes with its last process.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_they_are_typed() {
        for (text, rate) in
            [("none", Rate::Unbound), ("10gbit", Rate::Gbit(10.0)), ("2.5gbit", Rate::Gbit(2.5))]
        {
            assert_eq!(text.parse(), Ok(rate));
            assert_eq!(rate.to_string(), text);
        }
        for text in ["", "10", "gbit", "0gbit", "-1gbit", "NaNgbit", "1e9gbit", "10mbit"] {
            let error = text.parse::<Rate>().expect_err(text);
            assert!(error.contains("neither `none` nor a rate"), "{error}");
        }
    }

    #[test]
    fn what_is_not_on_the_loopback_interface_has_no_slow_link() {
        for listen in ["tcp://10.0.0.1", "rdma://127.0.0.1"] {
            let listen: Listen = listen.parse().expect("an address");
            let error = Link::make(Rate::Gbit(1.0), listen).expect_err("it is elsewhere");
            assert!(error.to_string().contains("--link none"), "{error}");
            Link::make(Rate::Unbound, listen).expect("as it is");
        }
    }

    #[test]
    fn without_a_link_a_command_is_as_it_was() {
        let link = Link { name: None };
        assert_eq!(link.command(Command::new("true")).get_program(), "true");
        let link = Link { name: Some("x".to_owned()) };
        let mut command = Command::new("echo");
        command.args(["a", "b"]);
        let within = link.command(command);
        let words: Vec<_> = within.get_args().collect();
        assert_eq!(words, ["netns", "exec", "x", "echo", "a", "b"]);
        // Nothing is there to be taken away.
        std::mem::forget(link);
    }
}
