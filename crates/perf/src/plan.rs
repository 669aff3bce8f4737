//! The I/Os of a run, checked against the properties of the target.

use std::ops::Range;

use anyhow::Result;
use nvmeof_report::show_size;

use crate::load::LoadSpec;
use crate::target::TargetSpace;
use crate::units::TrimUse;
use crate::verify;

/// Maximum logical blocks of a command: NLB has 16 bits and is 0's based.
const MAX_BLOCKS: u64 = 1 << 16;
/// Maximum units of a verified namespace: the run stores four bytes for each.
const MAX_VERIFIED: u64 = 1 << 32;

/// Arguments that do not fit the target: wrong usage, detected only after connecting.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Returns a [`UsageError`] if the condition holds.
macro_rules! usage_error {
    ($when:expr, $($format:tt)+) => {
        if $when {
            return Err(crate::plan::UsageError(format!($($format)+)).into());
        }
    };
}
pub(crate) use usage_error;

/// A space under load.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Index of the space.
    pub(crate) space: usize,
    /// Index of its device.
    pub(crate) device: usize,
    pub(crate) nsid: u32,
    /// Name for messages.
    pub(crate) name: String,
    /// Distinguishes spaces in verified data.
    pub(crate) tag: u64,
    pub(crate) block_size: u32,
    /// Divisor of the length of every I/O, in bytes.
    pub(crate) unit: u32,
    /// Units between two places at which a random I/O may begin.
    pub(crate) align: u64,
    /// The part used, in units.
    pub(crate) first_unit: u64,
    pub(crate) units: u64,
    /// Amount of load after which it ends.
    bound: Option<LoadBound>,
}

/// Amount of load on a space, over all jobs together.
#[derive(Debug, Clone, Copy)]
enum LoadBound {
    /// Passes over the used part.
    Passes(u32),
    Bytes(u64),
}

impl Flow {
    /// The units of job `job` out of `jobs`, relative to the first one.
    pub(crate) fn share(&self, job: u64, jobs: u64) -> Range<u64> {
        self.units * job / jobs..self.units * (job + 1) / jobs
    }

    /// Bytes that all jobs together have to do; `None` without an end.
    pub(crate) fn total(&self) -> Option<u64> {
        self.quota(0, 1)
    }

    /// Bytes that job `job` has to do; `None` without an end.
    pub(crate) fn quota(&self, job: u64, jobs: u64) -> Option<u64> {
        let unit = u64::from(self.unit);
        Some(match self.bound? {
            LoadBound::Passes(passes) => {
                let share = self.share(job, jobs);
                (share.end - share.start).saturating_mul(unit).saturating_mul(passes.into())
            }
            LoadBound::Bytes(bytes) => bytes.div_ceil(jobs).next_multiple_of(unit),
        })
    }
}

/// The flows of a load, if it fits its spaces.
pub(crate) fn flows(spaces: &[TargetSpace], spec: &LoadSpec) -> Result<Vec<Flow>> {
    let all = || (0..spaces.len()).collect();
    let chosen: Vec<usize> = spec.spaces.clone().unwrap_or_else(all);
    usage_error!(spec.qd == 0 || spec.jobs == 0, "a load needs a thread and an I/O outstanding");
    let mut flows: Vec<Flow> = Vec::new();
    for &index in &chosen {
        let Some(space) = spaces.get(index) else {
            usage_error!(true, "there is no space {index}: the target has {}", spaces.len());
            continue;
        };
        let bound = match (spec.loops, spec.io_size) {
            (Some(passes), _) => Some(LoadBound::Passes(passes)),
            (None, Some(bytes)) => Some(LoadBound::Bytes(bytes.div_ceil(chosen.len() as u64))),
            (None, None) => None,
        };
        let flow = Flow { bound, ..flow(spec, index, space)? };
        usage_error!(
            spec.verify.is_some() && flows.iter().any(|other| other.tag == flow.tag),
            "--verify cannot tell its own writes to {space} apart if that is connected twice; give it to \
             --connect or --device once"
        );
        flows.push(flow);
    }
    Ok(flows)
}

/// The sizes of the reads, writes and trims that a load contains.
fn sizes(spec: &LoadSpec) -> Vec<u64> {
    let split = spec.sizes();
    let is_trim_only = spec.mix.trim == TrimUse::Only;
    let parts = [
        (spec.mix.has_reads(), &split.read),
        (spec.mix.writes(), &split.write),
        (is_trim_only, &split.trim),
    ];
    let used = parts.iter().filter(|(is_used, _)| *is_used);
    used.flat_map(|(_, sizes)| sizes.all().map(u64::from)).collect()
}

fn flow(spec: &LoadSpec, index: usize, space: &TargetSpace) -> Result<Flow> {
    let block = u64::from(space.block_size);
    let what = if spec.split.is_some() { "--bssplit" } else { "--bs" };
    let sizes = sizes(spec);
    usage_error!(
        space.metadata != 0,
        "{space} has {} bytes of metadata a block, which this tool does not support; format the \
         namespace without metadata",
        space.metadata
    );
    check_abilities(spec, space)?;
    for &bs in &sizes {
        check_size(spec, space, bs, what)?;
    }
    let unit = sizes.iter().copied().fold(0, gcd).max(1);
    let align = sizes.iter().copied().min().unwrap_or(block);
    let largest = sizes.iter().copied().max().unwrap_or(block);
    usage_error!(
        !spec.offset.is_multiple_of(align),
        "--offset {} is no multiple of {what} {align}; I/Os are aligned to their size",
        spec.offset
    );
    let left = space.size.saturating_sub(spec.offset);
    let used = spec.size.unwrap_or(left);
    usage_error!(
        used > left,
        "--offset {} and --size {} reach beyond {space}, which has {}",
        show_size(spec.offset),
        show_size(used),
        show_size(space.size)
    );
    usage_error!(
        used < largest,
        "no I/O of {} fits: {space} has {}, of which {} are used",
        show_size(largest),
        show_size(space.size),
        show_size(used)
    );
    let units = used / unit;
    check_verify(spec, space, units)?;
    let tag = verify::namespace_tag(space.subnqn.as_deref().unwrap_or(&space.connect), space.nsid);
    Ok(Flow {
        space: index,
        device: space.device,
        nsid: space.nsid,
        name: space.to_string(),
        tag,
        block_size: space.block_size,
        unit: u32::try_from(unit).unwrap_or(u32::MAX),
        align: align / unit,
        first_unit: spec.offset / unit,
        units,
        bound: None,
    })
}

/// Checks whether the space supports I/Os of `bs` bytes.
fn check_size(spec: &LoadSpec, space: &TargetSpace, bs: u64, what: &str) -> Result<()> {
    let block = u64::from(space.block_size);
    let moves_data = spec.mix.trim != TrimUse::Only;
    if let (true, Some(limit), Some(subnqn)) = (moves_data, space.max_transfer, &space.subnqn) {
        usage_error!(
            bs > limit,
            "{what} {} is more than {subnqn} takes in one command ({}, from MDTS); use {what} {limit} or \
             less, or raise the target's max-transfer",
            show_size(bs),
            show_size(limit)
        );
    }
    usage_error!(
        !bs.is_multiple_of(block),
        "{what} {bs} is no multiple of the block size of {space}, which is {block} bytes; use a multiple of {block}"
    );
    usage_error!(
        moves_data && space.subnqn.is_some() && bs / block > MAX_BLOCKS,
        "{what} {} is more than {MAX_BLOCKS} blocks of {space}; use {} or less",
        show_size(bs),
        show_size(MAX_BLOCKS * block)
    );
    Ok(())
}

/// Checks whether the space supports the operations of the load.
fn check_abilities(spec: &LoadSpec, space: &TargetSpace) -> Result<()> {
    usage_error!(
        spec.mix.destroys() && space.read_only,
        "{space} is read-only; load it with reads, or open it for writing (--rw {} has none)",
        spec.mix
    );
    usage_error!(
        spec.mix.trim != TrimUse::None && !space.deallocate,
        "{space} cannot be trimmed: deallocation is not supported; omit trims from --rw"
    );
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn check_verify(spec: &LoadSpec, space: &TargetSpace, units: u64) -> Result<()> {
    if spec.verify.is_none() {
        return Ok(());
    }
    usage_error!(
        spec.split.is_some() || spec.mix.trim != TrimUse::None,
        "--verify remembers blocks of one size that are read and written: leave --bssplit and trims out"
    );
    let bs = u64::from(spec.bs);
    usage_error!(
        space.block_size < verify::MIN_BLOCK,
        "--verify needs blocks of {} bytes; {space} has {}",
        verify::MIN_BLOCK,
        space.block_size
    );
    usage_error!(
        units < u64::from(spec.jobs),
        "--verify gives each job its own part: {} jobs do not fit {units} I/Os of {} in {space}",
        spec.jobs,
        show_size(bs)
    );
    usage_error!(
        units > MAX_VERIFIED,
        "--verify remembers every I/O it wrote and {space} has {units}; use --size {} or less, or a larger --bs",
        show_size(MAX_VERIFIED * bs)
    );
    Ok(())
}
