//! MD RAID-0 of the drives: one that the machine has, or one assembled for the comparison.
//!
//! ```text
//!   members --find--> an array of exactly these drives: read, and left as it was found
//!             '-none, --build-md--> mdadm --build --> read --> mdadm --stop, also after an error
//! ```
//!
//! `mdadm --build` writes no superblock. The array is set read-only before it is read, so nothing
//! is written to the drives.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nvmeof_core::pci::System;
use nvmeof_core::pci::users::Usage;

/// States in which an array serves (`md/array_state`).
const SERVING: [&str; 4] = ["clean", "active", "active-idle", "write-pending"];
/// Numbers of arrays that are tried, highest first as mdadm does.
const NUMBERS: std::ops::RangeInclusive<u8> = 100..=127;
/// Maximum wait for the device node, and until nothing has an array open that is to be stopped.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Runs mdadm with arguments.
///
/// # Errors
/// It did not start, or its error output.
pub(super) type RunMdadm<'a> = Box<dyn Fn(&[String]) -> Result<(), String> + 'a>;

/// An array that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MdArray {
    pub(super) path: PathBuf,
    /// Bytes of a chunk.
    pub(super) chunk: u64,
}

impl MdArray {
    /// Finds the array whose members are exactly these block devices, by their names below `/dev`.
    ///
    /// # Errors
    /// An array of these drives must not be read; with the reason.
    pub(super) fn find(system: &System, members: &[String]) -> Result<Option<Self>, String> {
        let members: BTreeSet<&str> = members.iter().map(String::as_str).collect();
        let entries = fs::read_dir(system.sys.join("class/block")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let is_of = |name: &&String| {
            let slaves = slaves(system, name);
            !slaves.is_empty() && slaves.iter().map(String::as_str).eq(members.iter().copied())
        };
        let mut arrays = names.iter().filter(|name| name.starts_with("md")).filter(is_of);
        arrays.next().map(|name| check(system, name)).transpose()
    }

    /// Remark on the figures.
    pub(super) fn note(&self) -> String {
        format!("{}, chunks of {} KiB", self.path.display(), self.chunk >> 10)
    }
}

/// Returns the array if it may be read: RAID-0, serving, writable and unused.
fn check(system: &System, name: &str) -> Result<MdArray, String> {
    let path = system.dev.join(name);
    let shown = format!("/dev/{name}");
    let (level, state) = (text(system, name, "md/level"), text(system, name, "md/array_state"));
    if level != "raid0" {
        return Err(format!("{shown} consists of these drives and is {level}, not RAID-0"));
    }
    if text(system, name, "ro") != "0" || state == "readonly" || state == "read-auto" {
        return Err(format!(
            "{shown} is read-only ({state}): not the state in which an array serves; `mdadm \
             --readwrite {shown}` changes it"
        ));
    }
    if !SERVING.contains(&state.as_str()) {
        return Err(format!("{shown} does not serve: its state is `{state}` (`mdadm --detail`)"));
    }
    let users = Usage::read(system).map_err(|error| error.to_string())?.of_block(name);
    if !users.is_empty() {
        let users: Vec<String> = users.iter().map(ToString::to_string).collect();
        return Err(format!("{shown} is in use: {}; stop that use first", users.join("; ")));
    }
    let chunk = text(system, name, "md/chunk_size").parse().unwrap_or(0);
    Ok(MdArray { path, chunk })
}

/// Names of an array's members, sorted.
fn slaves(system: &System, name: &str) -> BTreeSet<String> {
    let folder = system.sys.join("class/block").join(name).join("slaves");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// An attribute of a block device; empty if it is missing.
fn text(system: &System, name: &str, attribute: &str) -> String {
    let file = system.sys.join("class/block").join(name).join(attribute);
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// An array that this program assembled. It has to be [stopped](Self::stop).
#[derive(Debug)]
pub(super) struct BuiltArray {
    pub(super) array: MdArray,
    name: String,
    members: BTreeSet<String>,
}

impl BuiltArray {
    /// Assembles a RAID-0 of unused drives, by their names below `/dev`, without writing to them.
    ///
    /// # Errors
    /// The reason; nothing is left assembled.
    pub(super) fn build(
        system: &System,
        mdadm: &RunMdadm<'_>,
        members: &[String],
        chunk: u64,
    ) -> Result<Self, String> {
        if members.len() < 2 {
            return Err("an array takes two drives or more".to_owned());
        }
        if !chunk.is_multiple_of(4096) || !chunk.is_power_of_two() {
            return Err("MD takes a --chunk that is a power of two from 4k".to_owned());
        }
        let usage = Usage::read(system).map_err(|error| error.to_string())?;
        for member in members {
            if let Some(user) = usage.of_block(member).first() {
                return Err(format!("/dev/{member} is in use: {user}; not made part of an array"));
            }
        }
        let is_free = |name: &String| !system.sys.join("class/block").join(name).exists();
        let name = NUMBERS.rev().map(|number| format!("md{number}")).find(is_free);
        let name = name.ok_or("no number of an MD array is free")?;
        let path = format!("/dev/{name}");
        let mut arguments = vec!["--build".to_owned(), path.clone(), "--level=0".to_owned()];
        arguments.push(format!("--chunk={}", chunk >> 10));
        arguments.push(format!("--raid-devices={}", members.len()));
        arguments.extend(members.iter().map(|member| format!("/dev/{member}")));
        mdadm(&arguments)?;
        let array = MdArray { path: system.dev.join(&name), chunk };
        let mut built = Self { array, name, members: members.iter().cloned().collect() };
        let ready = mdadm(&["--readonly".to_owned(), path]).and_then(|()| built.wait_for_node());
        match ready {
            Ok(()) => Ok(built),
            Err(why) => Err(match built.stop(system, mdadm) {
                Ok(()) => why,
                Err(stop) => format!("{why}; {stop}"),
            }),
        }
    }

    /// Returns true if it consists of these drives.
    pub(super) fn is_of(&self, members: &[String]) -> bool {
        self.members.iter().eq(members.iter().collect::<BTreeSet<_>>())
    }

    fn wait_for_node(&self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        while !self.array.path.exists() {
            if Instant::now() >= until {
                return Err(format!("/dev/{} did not appear", self.name));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Stops it, if it is still the array of these drives.
    ///
    /// # Errors
    /// It is not stopped; with the reason and the remedy.
    pub(super) fn stop(&mut self, system: &System, mdadm: &RunMdadm<'_>) -> Result<(), String> {
        let now = slaves(system, &self.name);
        if now.is_empty() {
            return Ok(());
        }
        if now != self.members {
            return Err(format!("/dev/{} is another array by now: not stopped", self.name));
        }
        // Programs open a new block device briefly, as udev does.
        let until = Instant::now() + PATIENCE;
        loop {
            let Err(why) = mdadm(&["--stop".to_owned(), format!("/dev/{}", self.name)]) else {
                return Ok(());
            };
            if Instant::now() >= until {
                let name = &self.name;
                return Err(format!(
                    "the array /dev/{name} of this comparison is still assembled ({why}): \
                     `mdadm --stop /dev/{name}`"
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Runs mdadm of this machine.
pub(super) fn run_mdadm(arguments: &[String]) -> Result<(), String> {
    let output = Command::new("mdadm").args(arguments).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| format!("mdadm does not start ({error}): install the package"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").trim();
    Err(format!("mdadm {} failed: {line}", arguments.join(" ")))
}
