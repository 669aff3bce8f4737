//! What a run does, checked against what the target has.

use anyhow::Result;

use crate::load::LoadSpec;
use crate::target::Space;
use crate::units::show_size;
use crate::verify;

/// Most logical blocks of a command: NLB has 16 bits and is 0's based.
const MAX_BLOCKS: u64 = 1 << 16;
/// Most units of a verified namespace: four bytes are remembered of each.
const MAX_VERIFIED: u64 = 1 << 32;

/// Arguments that do not fit the target: wrong usage, though it took a connection to know.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misfit(pub(crate) String);

/// Returns a [`Misfit`] if the condition holds.
macro_rules! misfit {
    ($when:expr, $($format:tt)+) => {
        if $when {
            return Err(crate::plan::Misfit(format!($($format)+)).into());
        }
    };
}
pub(crate) use misfit;

/// A space under load.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Index of the space.
    pub(crate) space: usize,
    /// Index of its device.
    pub(crate) device: usize,
    pub(crate) nsid: u32,
    /// For messages.
    pub(crate) name: String,
    /// Tells spaces apart in verified data.
    pub(crate) tag: u64,
    pub(crate) block_size: u32,
    /// The part used, in units of `bs` bytes.
    pub(crate) first_unit: u64,
    pub(crate) units: u64,
}

/// The flows of a load, if it fits its spaces.
pub(crate) fn flows(spaces: &[Space], spec: &LoadSpec) -> Result<Vec<Flow>> {
    let all = || (0..spaces.len()).collect();
    let mut flows: Vec<Flow> = Vec::new();
    for index in spec.spaces.clone().unwrap_or_else(all) {
        let Some(space) = spaces.get(index) else {
            misfit!(true, "there is no space {index}: the target has {}", spaces.len());
            continue;
        };
        let flow = flow(spec, index, space)?;
        misfit!(
            spec.verify.is_some() && flows.iter().any(|other| other.tag == flow.tag),
            "--verify cannot tell its own writes to {space} apart if that is connected twice; give it to \
             --connect or --device once"
        );
        flows.push(flow);
    }
    Ok(flows)
}

fn flow(spec: &LoadSpec, index: usize, space: &Space) -> Result<Flow> {
    let bs = u64::from(spec.bs);
    let block = u64::from(space.block_size);
    if let (Some(limit), Some(subnqn)) = (space.max_transfer, &space.subnqn) {
        misfit!(
            bs > limit,
            "--bs {} is more than {subnqn} takes in one command ({}, from MDTS); use --bs {limit} or \
             less, or raise the target's max-transfer",
            show_size(bs),
            show_size(limit)
        );
    }
    misfit!(
        space.metadata != 0,
        "{space} has {} bytes of metadata a block, which this tool does not support; format it without",
        space.metadata
    );
    misfit!(
        !bs.is_multiple_of(block),
        "--bs {bs} is no multiple of the block size of {space}, which is {block} bytes; use a multiple of {block}"
    );
    misfit!(
        space.subnqn.is_some() && bs / block > MAX_BLOCKS,
        "--bs {} is more than {MAX_BLOCKS} blocks of {space}; use {} or less",
        show_size(bs),
        show_size(MAX_BLOCKS * block)
    );
    misfit!(
        !spec.offset.is_multiple_of(bs),
        "--offset {} is no multiple of --bs {bs}; I/Os are aligned to their size",
        spec.offset
    );
    let left = space.size.saturating_sub(spec.offset);
    let used = spec.size.unwrap_or(left);
    misfit!(
        used > left,
        "--offset {} and --size {} reach beyond {space}, which has {}",
        show_size(spec.offset),
        show_size(used),
        show_size(space.size)
    );
    let units = used / bs;
    misfit!(
        units == 0,
        "no I/O of {} fits: {space} has {}, of which {} are used",
        show_size(bs),
        show_size(space.size),
        show_size(used)
    );
    check_verify(spec, space, units)?;
    let tag = verify::namespace_tag(space.subnqn.as_deref().unwrap_or(&space.connect), space.nsid);
    Ok(Flow {
        space: index,
        device: space.device,
        nsid: space.nsid,
        name: space.to_string(),
        tag,
        block_size: space.block_size,
        first_unit: spec.offset / bs,
        units,
    })
}

fn check_verify(spec: &LoadSpec, space: &Space, units: u64) -> Result<()> {
    if spec.verify.is_none() {
        return Ok(());
    }
    let bs = u64::from(spec.bs);
    misfit!(
        space.block_size < verify::MIN_BLOCK,
        "--verify needs blocks of {} bytes; {space} has {}",
        verify::MIN_BLOCK,
        space.block_size
    );
    misfit!(
        units < u64::from(spec.jobs),
        "--verify gives each job a part of its own: {} jobs do not fit {units} I/Os of {} in {space}",
        spec.jobs,
        show_size(bs)
    );
    misfit!(
        units > MAX_VERIFIED,
        "--verify remembers every I/O it wrote and {space} has {units}; use --size {} or less, or a larger --bs",
        show_size(MAX_VERIFIED * bs)
    );
    Ok(())
}
