//! What a run does, checked against what the target has.

use anyhow::{Result, bail, ensure};
use nvmeof_initiator::{Controller, NamespaceInfo};
use nvmeof_wire::nqn::DISCOVERY_NQN;

use crate::args::RunArgs;
use crate::units::{Mix, show_size};
use crate::verify;

/// Most logical blocks of a command: NLB has 16 bits and is 0's based.
const MAX_BLOCKS: u64 = 1 << 16;

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
    /// I/Os outstanding per flow and job.
    pub(crate) qd: u32,
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
        ensure!(
            subnqn != DISCOVERY_NQN,
            "{subnqn} is the discovery service, which has no namespaces; `nvmeof-perf discover` lists what \
             it knows"
        );
        let all = controller.namespaces();
        let chosen: Vec<_> = all
            .iter()
            .filter(|namespace| args.nsid.is_none_or(|nsid| nsid == namespace.nsid))
            .collect();
        if chosen.is_empty() {
            let have: Vec<_> = all.iter().map(|namespace| namespace.nsid.to_string()).collect();
            match args.nsid {
                Some(nsid) if !have.is_empty() => {
                    bail!(
                        "{subnqn} has no namespace {nsid} for this host; it has {}",
                        have.join(", ")
                    )
                }
                _ => bail!("{subnqn} has no namespaces for this host"),
            }
        }
        if let Some(limit) = controller.info().max_transfer.filter(|&limit| args.bs > limit) {
            bail!(
                "--bs {} is more than {subnqn} takes in one command ({}, from MDTS); use --bs {limit} or less, or \
                 raise the target's max-transfer",
                show_size(args.bs),
                show_size(limit)
            );
        }
        for namespace in chosen {
            flows.push(flow(args, controller, index, namespace)?);
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
    ensure!(
        namespace.metadata == 0,
        "{name} has {} bytes of metadata a block, which this tool does not support; format it without",
        namespace.metadata
    );
    ensure!(
        bs.is_multiple_of(block),
        "--bs {bs} is no multiple of the block size of {name}, which is {block} bytes; use a multiple of {block}"
    );
    ensure!(
        bs / block <= MAX_BLOCKS,
        "--bs {} is more than {MAX_BLOCKS} blocks of {name}; use {} or less",
        show_size(bs),
        show_size(MAX_BLOCKS * block)
    );
    ensure!(
        args.offset.is_multiple_of(bs),
        "--offset {} is no multiple of --bs {bs}; I/Os are aligned to their size",
        args.offset
    );
    let size = namespace.size();
    let left = size.saturating_sub(args.offset);
    let used = args.size.unwrap_or(left);
    ensure!(
        used <= left,
        "--offset {} and --size {} reach beyond {name}, which has {}",
        show_size(args.offset),
        show_size(used),
        show_size(size)
    );
    let units = used / bs;
    ensure!(
        units > 0,
        "no I/O of {} fits: {name} has {}, of which {} are used",
        show_size(bs),
        show_size(size),
        show_size(used)
    );
    ensure!(
        !args.verify || namespace.block_size >= verify::MIN_BLOCK,
        "--verify needs blocks of {} bytes; {name} has {block}",
        verify::MIN_BLOCK
    );
    ensure!(
        !args.verify || units >= u64::from(args.jobs),
        "--verify gives each job a part of its own: {} jobs do not fit {units} I/Os of {} in {name}",
        args.jobs,
        show_size(bs)
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
