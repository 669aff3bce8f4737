//! Identify (Base 5.17, NVM 4.1.5).

mod controller;
mod namespace;

pub(crate) use controller::FIRMWARE;
use nvmeof_wire::Sqe;
use nvmeof_wire::identify::{
    Cns, CommandSetCombinations, Csi, IDENTIFY_SIZE, Identify, IndependentNamespace,
    NSIDS_PER_LIST, NamespaceIds, NsidList, NvmController, NvmNamespace,
};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::{Immutable, IntoBytes};

use crate::admin::page::PageWriter;
use crate::controller::Controller;
use crate::failure::Failure;
use crate::namespace::{Lookup, Namespace, NamespaceTable};

/// Highest NSID above which a list of namespaces may start (Base 5.17.2.2).
const LIST_START_MAX: u32 = NSID_ALL - 2;

/// CNTID that means the controller itself (Base 5.17.2.19).
const CNTID_SELF: u16 = 0xffff;

/// Puts the data of an Identify command: always [`IDENTIFY_SIZE`] bytes.
///
/// # Errors
/// [`Failure::InvalidField`] for a CNS, CNTID or CSI that is not served, [`Failure::InvalidNamespace`] for
/// an NSID that can name no namespace, [`Failure::InvalidCommandSet`] for a namespace whose command set
/// has no such structure.
pub(crate) fn identify(
    controller: &Controller,
    sqe: &Sqe,
    page: &mut PageWriter<'_>,
) -> Result<(), Failure> {
    let command = Identify::parse(sqe);
    if command.cns == Cns::CONTROLLER {
        return put(page, &controller::identify(controller));
    }
    if controller.is_discovery() {
        // No namespaces, no I/O command set (Base 3.1.2.3).
        return Err(Failure::InvalidField);
    }
    let namespaces = controller.namespaces();
    match command.cns {
        Cns::NAMESPACE => match active(&namespaces, command.nsid)? {
            Some(found) => put(page, &namespace::identify(found)),
            None => put_zeroes(page),
        },
        Cns::ACTIVE_NAMESPACES => list(&namespaces, command.nsid, page),
        Cns::NAMESPACE_DESCRIPTORS => descriptors(&namespaces, command.nsid, page),
        Cns::CSI_NAMESPACE => match active(&namespaces, command.nsid)? {
            // No metadata and no protection information: nothing to say.
            Some(_) if command.csi == Csi::NVM => put(page, &NvmNamespace::default()),
            Some(_) => Err(Failure::InvalidCommandSet),
            None => put_zeroes(page),
        },
        Cns::CSI_CONTROLLER => {
            only_nvm(command.csi)?;
            put(page, &controller::nvm_limits(controller))
        }
        Cns::CSI_ACTIVE_NAMESPACES => {
            only_nvm(command.csi)?;
            list(&namespaces, command.nsid, page)
        }
        Cns::INDEPENDENT_NAMESPACE => match active(&namespaces, command.nsid)? {
            Some(found) => put(page, &namespace::independent(found)),
            None => put_zeroes(page),
        },
        Cns::COMMAND_SETS if names(controller, command.cntid) => {
            put(page, &CommandSetCombinations::only(&[Csi::NVM]))
        }
        _ => Err(Failure::InvalidField),
    }
}

/// The active namespace of this NSID; `None` if it is inactive, which zeroes stand for.
fn active(namespaces: &NamespaceTable, nsid: u32) -> Result<Option<&Namespace>, Failure> {
    // FFFFFFFFh asks for what all namespaces have in common, which takes Namespace Management; without
    // it, it is an NSID like any other that is too high.
    match namespaces.lookup(nsid) {
        Lookup::Active(namespace) => Ok(Some(namespace)),
        Lookup::Inactive => Ok(None),
        Lookup::Invalid => Err(Failure::InvalidNamespace),
    }
}

/// Active NSIDs above `above`.
fn list(namespaces: &NamespaceTable, above: u32, page: &mut PageWriter<'_>) -> Result<(), Failure> {
    if above > LIST_START_MAX {
        return Err(Failure::InvalidNamespace);
    }
    let nsids = namespaces.iter().map(Namespace::nsid).filter(|nsid| *nsid > above);
    put(page, &NsidList::new(nsids.take(NSIDS_PER_LIST)))
}

/// The identifiers of an active namespace; any other NSID is refused (Base 5.17.2.3).
fn descriptors(
    namespaces: &NamespaceTable,
    nsid: u32,
    page: &mut PageWriter<'_>,
) -> Result<(), Failure> {
    let namespace = namespaces.get(nsid).ok_or(Failure::InvalidNamespace)?;
    page.put(&NamespaceIds::encode(&namespace::identifiers(namespace)));
    Ok(())
}

fn only_nvm(csi: Csi) -> Result<(), Failure> {
    if csi == Csi::NVM { Ok(()) } else { Err(Failure::InvalidField) }
}

/// Does CNTID name a controller of this subsystem?
fn names(controller: &Controller, cntid: u16) -> bool {
    cntid == CNTID_SELF
        || cntid == controller.cntlid
        || controller.subsystem.controller(cntid).is_some()
}

fn put<T: IntoBytes + Immutable>(page: &mut PageWriter<'_>, structure: &T) -> Result<(), Failure> {
    page.put(structure.as_bytes());
    Ok(())
}

/// An inactive namespace is all zeroes, which is what the end of a page is filled with.
fn put_zeroes(page: &mut PageWriter<'_>) -> Result<(), Failure> {
    page.put(&[0; IDENTIFY_SIZE]);
    Ok(())
}

/// Every structure has the size a host's buffer has.
const _: () = assert!(
    size_of::<NvmNamespace>() == IDENTIFY_SIZE
        && size_of::<NvmController>() == IDENTIFY_SIZE
        && size_of::<IndependentNamespace>() == IDENTIFY_SIZE
        && size_of::<NsidList>() == IDENTIFY_SIZE
);

#[cfg(test)]
mod tests;
