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

/// Highest start NSID of a list of namespaces (Base 5.17.2.2).
const LIST_START_MAX: u32 = NSID_ALL - 2;

/// CNTID for the controller itself (Base 5.17.2.19).
const CNTID_SELF: u16 = 0xffff;

/// Writes the data of an Identify command: always [`IDENTIFY_SIZE`] bytes.
///
/// # Errors
/// [`Failure::InvalidField`] for an unsupported CNS, CNTID or CSI. [`Failure::InvalidNamespace`]
/// for an NSID that cannot identify a namespace. [`Failure::InvalidCommandSet`] for a namespace
/// whose command set lacks the structure.
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
        // No namespaces and no I/O command set (Base 3.1.2.3).
        return Err(Failure::InvalidField);
    }
    let namespaces = controller.namespaces();
    match command.cns {
        Cns::NAMESPACE => match active(&namespaces, command.nsid)? {
            Some(found) => put(page, &namespace::identify(controller, found)),
            None => put_zeroes(page),
        },
        Cns::ACTIVE_NAMESPACES => list(&namespaces, command.nsid, page),
        Cns::NAMESPACE_DESCRIPTORS => descriptors(&namespaces, command.nsid, page),
        Cns::CSI_NAMESPACE => match active(&namespaces, command.nsid)? {
            // No metadata and no protection information, so nothing to report.
            Some(_) if command.csi == Csi::NVM => put(page, &NvmNamespace::default()),
            Some(_) => Err(Failure::InvalidCommandSet),
            None => put_zeroes(page),
        },
        Cns::CSI_CONTROLLER if command.csi == Csi::NVM => {
            put(page, &controller::nvm_limits(controller))
        }
        // SPDK's host reads it for every command set, and reports a failure as an error.
        Cns::CSI_CONTROLLER => put_zeroes(page),
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

/// The active namespace of this NSID; `None` if it is inactive, which zeroes represent.
fn active(namespaces: &NamespaceTable, nsid: u32) -> Result<Option<&Namespace>, Failure> {
    // FFFFFFFFh requests the common properties of all namespaces, which requires Namespace
    // Management. Without that, it is an NSID above the maximum.
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

/// Writes the identifiers of an active namespace; rejects any other NSID (Base 5.17.2.3).
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

/// Returns true if CNTID identifies a controller of this subsystem.
fn names(controller: &Controller, cntid: u16) -> bool {
    cntid == CNTID_SELF
        || cntid == controller.cntlid
        || controller.subsystem.controller(cntid).is_some()
}

fn put<T: IntoBytes + Immutable>(page: &mut PageWriter<'_>, structure: &T) -> Result<(), Failure> {
    page.put(structure.as_bytes());
    Ok(())
}

/// Writes an inactive namespace, which is all zeroes.
fn put_zeroes(page: &mut PageWriter<'_>) -> Result<(), Failure> {
    page.put(&[0; IDENTIFY_SIZE]);
    Ok(())
}

/// Every structure has the size of a host's buffer.
const _: () = assert!(
    size_of::<NvmNamespace>() == IDENTIFY_SIZE
        && size_of::<NvmController>() == IDENTIFY_SIZE
        && size_of::<IndependentNamespace>() == IDENTIFY_SIZE
        && size_of::<NsidList>() == IDENTIFY_SIZE
);

#[cfg(test)]
mod tests;
