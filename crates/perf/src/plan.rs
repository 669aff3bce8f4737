//! What a run does, checked against what the target has.

use anyhow::Result;
use nvmeof_initiator::{Controller, NamespaceInfo};
use nvmeof_wire::nqn::DISCOVERY_NQN;

use crate::args::RunArgs;
use crate::units::{Mix, show_size};
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

/// A namespace under load.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Index of its controller.
    pub(crate) controller: usize,
    pub(crate) endpoint: String,
    pub(crate) subnqn: String,
    pub(crate) nsid: u32,
    pub(crate) block_size: u32,
    /// The part used, in units of `bs` bytes.
    pub(crate) first_unit: u64,
    pub(crate) units: u64,
}

/// What every job does alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) mix: Mix,
    /// Bytes of an I/O.
    pub(crate) bs: u32,
    /// I/Os outstanding per job, and per flow unless they are shared.
    pub(crate) qd: u32,
    /// The flows of a job share its I/Os.
    pub(crate) shared: bool,
    pub(crate) jobs: u16,
    pub(crate) seed: u64,
    /// Marks blocks of this run, if they are verified.
    pub(crate) verify: Option<u64>,
}

/// The flows of all controllers, as the arguments choose them.
pub(crate) fn flows(args: &RunArgs, controllers: &[Controller]) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for (index, controller) in controllers.iter().enumerate() {
        let subnqn = controller.endpoint().subnqn.as_str();
        misfit!(
            subnqn == DISCOVERY_NQN,
            "{subnqn} is the discovery service, which has no namespaces; `nvmeof-perf discover` lists what \
             it knows"
        );
        let all = controller.namespaces();
        let chosen: Vec<_> = all
            .iter()
            .filter(|namespace| {
                args.nsid.as_ref().is_none_or(|list| list.0.contains(&namespace.nsid))
            })
            .collect();
        misfit!(all.is_empty(), "{subnqn} has no namespaces for this host");
        let absent = args.nsid.iter().flat_map(|list| &list.0);
        let absent = absent.copied().find(|nsid| all.iter().all(|known| known.nsid != *nsid));
        if let Some(nsid) = absent {
            let have: Vec<_> = all.iter().map(|namespace| namespace.nsid.to_string()).collect();
            let have = have.join(", ");
            misfit!(true, "{subnqn} has no namespace {nsid} for this host; it has {have}");
        }
        if let Some(limit) = controller.info().max_transfer {
            misfit!(
                args.bs > limit,
                "--bs {} is more than {subnqn} takes in one command ({}, from MDTS); use --bs {limit} or \
                 less, or raise the target's max-transfer",
                show_size(args.bs),
                show_size(limit)
            );
        }
        for namespace in chosen {
            let flow = flow(args, controller, index, namespace)?;
            let is_same = |other: &Flow| other.subnqn == flow.subnqn && other.nsid == flow.nsid;
            misfit!(
                args.verify && flows.iter().any(is_same),
                "--verify cannot tell its own writes to namespace {} of {subnqn} apart if that is connected \
                 twice; give it to --connect once",
                flow.nsid
            );
            flows.push(flow);
        }
    }
    Ok(flows)
}

fn flow(
    args: &RunArgs,
    controller: &Controller,
    index: usize,
    namespace: &NamespaceInfo,
) -> Result<Flow> {
    let subnqn = controller.endpoint().subnqn.as_str();
    let (nsid, bs) = (namespace.nsid, args.bs);
    let name = format!("namespace {nsid} of {subnqn}");
    let block = u64::from(namespace.block_size);
    misfit!(
        namespace.metadata != 0,
        "{name} has {} bytes of metadata a block, which this tool does not support; format it without",
        namespace.metadata
    );
    misfit!(
        !bs.is_multiple_of(block),
        "--bs {bs} is no multiple of the block size of {name}, which is {block} bytes; use a multiple of {block}"
    );
    misfit!(
        bs / block > MAX_BLOCKS,
        "--bs {} is more than {MAX_BLOCKS} blocks of {name}; use {} or less",
        show_size(bs),
        show_size(MAX_BLOCKS * block)
    );
    misfit!(
        !args.offset.is_multiple_of(bs),
        "--offset {} is no multiple of --bs {bs}; I/Os are aligned to their size",
        args.offset
    );
    let size = namespace.size();
    let left = size.saturating_sub(args.offset);
    let used = args.size.unwrap_or(left);
    misfit!(
        used > left,
        "--offset {} and --size {} reach beyond {name}, which has {}",
        show_size(args.offset),
        show_size(used),
        show_size(size)
    );
    let units = used / bs;
    misfit!(
        units == 0,
        "no I/O of {} fits: {name} has {}, of which {} are used",
        show_size(bs),
        show_size(size),
        show_size(used)
    );
    misfit!(
        args.verify && namespace.block_size < verify::MIN_BLOCK,
        "--verify needs blocks of {} bytes; {name} has {block}",
        verify::MIN_BLOCK
    );
    misfit!(
        args.verify && units < u64::from(args.jobs),
        "--verify gives each job a part of its own: {} jobs do not fit {units} I/Os of {} in {name}",
        args.jobs,
        show_size(bs)
    );
    misfit!(
        args.verify && units > MAX_VERIFIED,
        "--verify remembers every I/O it wrote and {name} has {units}; use --size {} or less, or a larger --bs",
        show_size(MAX_VERIFIED * bs)
    );
    Ok(Flow {
        controller: index,
        endpoint: controller.endpoint().to_string(),
        subnqn: subnqn.to_owned(),
        nsid,
        block_size: namespace.block_size,
        first_unit: args.offset / bs,
        units,
    })
}
