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

use nvmeof_core::pci::System;
use nvmeof_core::pci::users::Usage;

use crate::patience::{Patience, Refusal};
use crate::tool::run_tool;

/// States in which an array serves (`md/array_state`).
const SERVING: [&str; 4] = ["clean", "active", "active-idle", "write-pending"];
/// Numbers of arrays that are tried, highest first as mdadm does.
const NUMBERS: std::ops::RangeInclusive<u8> = 100..=127;

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
    let text = |attribute| system.block_attribute(name, attribute).unwrap_or_default();
    let (level, state) = (text("md/level"), text("md/array_state"));
    if level != "raid0" {
        return Err(format!("{shown} consists of these drives and is {level}, not RAID-0"));
    }
    if text("ro") != "0" || state == "readonly" || state == "read-auto" {
        return Err(format!(
            "{shown} is read-only ({state}): not the state in which an array serves; `mdadm \
             --readwrite {shown}` changes it, and `mdadm --stop {shown}` stops what an interrupted \
             --build-md has left"
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
    let chunk = text("md/chunk_size").parse().unwrap_or(0);
    Ok(MdArray { path, chunk })
}

/// Names of an array's members, sorted.
fn slaves(system: &System, name: &str) -> BTreeSet<String> {
    let folder = system.sys.join("class/block").join(name).join("slaves");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn exists(system: &System, name: &str) -> bool {
    system.sys.join("class/block").join(name).exists()
}

/// The machine on which arrays are assembled and stopped.
pub(super) struct Mdadm<'a> {
    pub(super) system: &'a System,
    pub(super) run: &'a RunMdadm<'a>,
    /// Maximum wait for the device node, and until nothing has an array open that changes.
    pub(super) patience: Patience,
}

impl Mdadm<'_> {
    /// Changes an array. Programs open a new block device briefly, as udev does.
    fn change(&self, option: &str, path: &str) -> Result<(), Refusal> {
        (self.run)(&[option.to_owned(), path.to_owned()]).map_err(Refusal::Transient)
    }

    /// Returns the name of a new array, if these drives are unused and fit one.
    fn free_name(&self, members: &[String], chunk: u64) -> Result<String, String> {
        if members.len() < 2 {
            return Err("an array takes two drives or more".to_owned());
        }
        if !chunk.is_multiple_of(4096) || !chunk.is_power_of_two() {
            return Err("MD takes a --chunk that is a power of two from 4k".to_owned());
        }
        let usage = Usage::read(self.system).map_err(|error| error.to_string())?;
        for member in members {
            if let Some(user) = usage.of_block(member).first() {
                return Err(format!("/dev/{member} is in use: {user}; not made part of an array"));
            }
        }
        let name = NUMBERS.rev().map(|number| format!("md{number}"));
        let name = name.into_iter().find(|name| !exists(self.system, name));
        name.ok_or_else(|| "no number of an MD array is free".to_owned())
    }
}

/// An array that this program assembles. It has to be [stopped](Self::stop).
#[derive(Debug)]
pub(super) struct BuiltArray {
    pub(super) array: MdArray,
    name: String,
    members: BTreeSet<String>,
    /// False until `mdadm --build` has succeeded.
    is_complete: bool,
}

impl BuiltArray {
    /// Assembles a RAID-0 of unused drives, by their names below `/dev`, without writing to them.
    ///
    /// # Errors
    /// The reason. What was assembled until then is stopped; if it is not, with the remedy.
    pub(super) fn build(mdadm: &Mdadm<'_>, members: &[String], chunk: u64) -> Result<Self, String> {
        let name = mdadm.free_name(members, chunk)?;
        let array = MdArray { path: mdadm.system.dev.join(&name), chunk };
        let members_by_name = members.iter().cloned().collect();
        let mut built = Self { array, name, members: members_by_name, is_complete: false };
        match built.assemble(mdadm, members) {
            Ok(()) => Ok(built),
            // It failed, or a signal ended it: some drives may be in the array.
            Err(why) => Err(match built.stop(mdadm) {
                Ok(()) => why,
                Err(stop) => format!("{why}; {stop}"),
            }),
        }
    }

    fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }

    fn assemble(&mut self, mdadm: &Mdadm<'_>, members: &[String]) -> Result<(), String> {
        let mut arguments = vec!["--build".to_owned(), self.path(), "--level=0".to_owned()];
        arguments.push(format!("--chunk={}", self.array.chunk >> 10));
        arguments.push(format!("--raid-devices={}", members.len()));
        arguments.extend(members.iter().map(|member| format!("/dev/{member}")));
        (mdadm.run)(&arguments)?;
        self.is_complete = true;
        mdadm.patience.retry(|| mdadm.change("--readonly", &self.path()))?;
        mdadm.patience.retry(|| match self.array.path.exists() {
            true => Ok(()),
            false => Err(Refusal::Transient(format!("{} did not appear", self.path()))),
        })
    }

    /// Returns true if it consists of these drives.
    pub(super) fn is_of(&self, members: &[String]) -> bool {
        self.members.iter().eq(members.iter().collect::<BTreeSet<_>>())
    }

    /// Stops it, if it is still the array of these drives.
    ///
    /// # Errors
    /// It is not stopped; with the reason and the remedy.
    pub(super) fn stop(self, mdadm: &Mdadm<'_>) -> Result<(), String> {
        let path = self.path();
        let now = slaves(mdadm.system, &self.name);
        let is_stopped = match self.is_complete {
            true => now.is_empty(),
            false => !exists(mdadm.system, &self.name),
        };
        if is_stopped {
            return Ok(());
        }
        // An array that is not complete has some of its members, or none.
        let is_ours = match self.is_complete {
            true => now == self.members,
            false => now.is_subset(&self.members),
        };
        if !is_ours {
            return Err(format!("{path} is another array by now: not stopped"));
        }
        let stopped = mdadm.patience.retry(|| match exists(mdadm.system, &self.name) {
            true => mdadm.change("--stop", &path),
            // mdadm had stopped it, and the device disappeared later.
            false => Ok(()),
        });
        stopped.map_err(|why| {
            format!(
                "the array {path} of this comparison is still assembled ({why}): `mdadm --stop \
                 {path}`"
            )
        })
    }
}

/// Runs mdadm of this machine.
pub(super) fn run_mdadm(arguments: &[String]) -> Result<(), String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run_tool("mdadm", &arguments).map(drop).map_err(|error| error.message)
}
