//! A link slower than the machine: in its own network namespace, egress has a fixed bandwidth.
//!
//! Without it processors are the bottleneck. On a shared machine their speed varies by 10 % from
//! one second to the next, far more than policies differ. A link varies by less than 1 %.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use nvmeof_workspace::checkout::run_checked;
use nvmeof_workspace::prerequisites::find_program;

use crate::listen::{Fabric, ListenAddress};

/// Minimum burst of the packet scheduler in bytes: more than one packet before segmentation.
const LEAST_BURST: f64 = 262_144.0;
/// Burst of the packet scheduler, as the time in seconds that the link takes for it.
const BURST_S: f64 = 1e-3;
/// Limit of its queue in bytes: more than sockets ever submit.
const LIMIT: u32 = 64 << 20;
/// Slower than two processors of a shared machine, and faster than most links.
const USUAL_GBIT: f64 = 10.0;
/// Folder in which `ip` keeps namespaces, and the prefix of the link's, followed by the process ID.
const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "nvmeof-bench-";

/// Rate of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LinkRate {
    /// The machine's own speed.
    Unbound,
    Gbit(f64),
}

impl FromStr for LinkRate {
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

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unbound => f.pad("none"),
            Self::Gbit(rate) => f.pad(&format!("{rate}gbit")),
        }
    }
}

impl LinkRate {
    /// Returns the default for a link to `listen`.
    pub(super) fn usual(listen: ListenAddress) -> Self {
        if is_local_tcp(listen) { Self::Gbit(USUAL_GBIT) } else { Self::Unbound }
    }

    /// Checks that this link is possible, before any other step.
    pub(super) fn check(self, listen: ListenAddress) -> Result<()> {
        if self == Self::Unbound {
            return Ok(());
        }
        ensure!(
            is_local_tcp(listen),
            "--link {self} is for tcp:// on a loopback address: what else is listened at, as --listen {listen}, takes \
             --link none"
        );
        for needed in ["ip", "tc"] {
            ensure!(
                find_program(needed).is_some(),
                "a link of {self} takes `{needed}`: install iproute2, or measure with --link none"
            );
        }
        ensure!(
            rustix::process::geteuid().is_root(),
            "a link of {self} takes root, for a network namespace: use sudo, or measure with --link none"
        );
        Ok(())
    }
}

fn is_local_tcp(listen: ListenAddress) -> bool {
    listen.fabric == Fabric::Tcp && listen.address.is_loopback()
}

/// A link, removed when dropped.
#[derive(Debug)]
pub(super) struct LoadLink {
    /// Name of its namespace, if it has one.
    name: Option<String>,
}

impl LoadLink {
    /// Creates a link that [`LinkRate::check`] accepted.
    pub(super) fn make(rate: LinkRate) -> Result<Self> {
        let LinkRate::Gbit(gbit) = rate else { return Ok(Self { name: None }) };
        remove_left_over();
        // From here on the link is removed on every exit.
        let name = format!("{PREFIX}{}", process::id());
        let link = Self { name: Some(name.clone()) };
        run_checked(Command::new("ip").args(["netns", "add", &name]))
            .context("no network namespace for a link; --link none takes none")?;
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

    /// Returns the same command at this link.
    pub(super) fn command(&self, command: Command) -> Command {
        let Some(name) = &self.name else { return command };
        let mut within = Command::new("ip");
        // `ip` becomes the program, so that signals reach the program.
        within.args(["netns", "exec", name]).arg(command.get_program()).args(command.get_args());
        within
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        run_checked(&mut self.command(command))
    }
}

/// Removes the links of killed runs.
fn remove_left_over() {
    let names = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let is_left = |pid: &str| !Path::new("/proc").join(pid).exists();
        if name.strip_prefix(PREFIX).is_some_and(is_left) {
            // Another run can remove it first.
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for LoadLink {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // The kernel removes the rest of it with its last process.
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_they_are_typed() {
        for (text, rate) in [
            ("none", LinkRate::Unbound),
            ("10gbit", LinkRate::Gbit(10.0)),
            ("2.5gbit", LinkRate::Gbit(2.5)),
        ] {
            assert_eq!(text.parse(), Ok(rate));
            assert_eq!(rate.to_string(), text);
        }
        for text in ["", "10", "gbit", "0gbit", "-1gbit", "NaNgbit", "1e9gbit", "10mbit"] {
            let error = text.parse::<LinkRate>().expect_err(text);
            assert!(error.contains("neither `none` nor a rate"), "{error}");
        }
    }

    #[test]
    fn what_is_not_on_the_loopback_interface_has_no_slow_link() {
        for listen in ["tcp://10.0.0.1", "rdma://127.0.0.1"] {
            let listen: ListenAddress = listen.parse().expect("an address");
            let error = LinkRate::Gbit(1.0).check(listen).expect_err("it is elsewhere");
            assert!(error.to_string().contains("--link none"), "{error}");
            assert_eq!(LinkRate::usual(listen), LinkRate::Unbound);
            LinkRate::Unbound.check(listen).expect("as it is");
        }
        assert_eq!(LinkRate::usual(ListenAddress::default()), LinkRate::Gbit(10.0));
    }

    #[test]
    fn without_a_link_a_command_is_as_it_was() {
        let link = LoadLink { name: None };
        assert_eq!(link.command(Command::new("true")).get_program(), "true");
        let link = LoadLink { name: Some("x".to_owned()) };
        let mut command = Command::new("echo");
        command.args(["a", "b"]);
        let within = link.command(command);
        let words: Vec<_> = within.get_args().collect();
        assert_eq!(words, ["netns", "exec", "x", "echo", "a", "b"]);
        // There is nothing to remove.
        std::mem::forget(link);
    }
}
