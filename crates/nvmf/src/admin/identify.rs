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

use crate::controller::Controller;
use crate::failure::Failure;
use crate::namespace::{Lookup, Namespace, NamespaceTable};

/// Highest NSID above which a list of namespaces may start (Base 5.17.2.2).
const LIST_START_MAX: u32 = NSID_ALL - 2;

/// CNTID that means the controller itself (Base 5.17.2.19).
const CNTID_SELF: u16 = 0xffff;

/// Answers an Identify command: always [`IDENTIFY_SIZE`] bytes.
///
/// # Errors
/// [`Failure::InvalidField`] for a CNS, CNTID or CSI that is not served, [`Failure::InvalidNamespace`] for
/// an NSID that can name no namespace, [`Failure::InvalidCommandSet`] for a namespace whose command set
/// has no such structure.
pub(crate) fn identify(controller: &Controller, sqe: &Sqe) -> Result<Vec<u8>, Failure> {
    let command = Identify::parse(sqe);
    if command.cns == Cns::CONTROLLER {
        return Ok(bytes(&controller::identify(controller)));
    }
    if controller.is_discovery() {
        // No namespaces, no I/O command set (Base 3.1.2.3).
        return Err(Failure::InvalidField);
    }
    let namespaces = controller.namespaces();
    match command.cns {
        Cns::NAMESPACE => {
            describe(&namespaces, command.nsid, |found| Ok(bytes(&namespace::identify(found))))
        }
        Cns::ACTIVE_NAMESPACES => list(&namespaces, command.nsid),
        Cns::NAMESPACE_DESCRIPTORS => descriptors(&namespaces, command.nsid),
        Cns::CSI_NAMESPACE => describe(&namespaces, command.nsid, |_| match command.csi {
            // No metadata and no protection information: nothing to say.
            Csi::NVM => Ok(bytes(&NvmNamespace::default())),
            _ => Err(Failure::InvalidCommandSet),
        }),
        Cns::CSI_CONTROLLER => {
            only_nvm(command.csi).map(|()| bytes(&controller::nvm_limits(controller)))
        }
        Cns::CSI_ACTIVE_NAMESPACES => {
            only_nvm(command.csi).and_then(|()| list(&namespaces, command.nsid))
        }
        Cns::INDEPENDENT_NAMESPACE => {
            describe(&namespaces, command.nsid, |found| Ok(bytes(&namespace::independent(found))))
        }
        Cns::COMMAND_SETS if names(controller, command.cntid) => {
            Ok(bytes(&CommandSetCombinations::only(&[Csi::NVM])))
        }
        _ => Err(Failure::InvalidField),
    }
}

/// What `active` says of an active namespace; zeroes for an inactive one.
fn describe(
    namespaces: &NamespaceTable,
    nsid: u32,
    active: impl FnOnce(&Namespace) -> Result<Vec<u8>, Failure>,
) -> Result<Vec<u8>, Failure> {
    // FFFFFFFFh asks for what all namespaces have in common, which takes Namespace Management; without
    // it, it is an NSID like any other that is too high.
    match namespaces.lookup(nsid) {
        Lookup::Active(namespace) => active(namespace),
        Lookup::Inactive => Ok(vec![0; IDENTIFY_SIZE]),
        Lookup::Invalid => Err(Failure::InvalidNamespace),
    }
}

/// Active NSIDs above `above`.
fn list(namespaces: &NamespaceTable, above: u32) -> Result<Vec<u8>, Failure> {
    if above > LIST_START_MAX {
        return Err(Failure::InvalidNamespace);
    }
    let nsids = namespaces.iter().map(Namespace::nsid).filter(|nsid| *nsid > above);
    Ok(bytes(&NsidList::new(nsids.take(NSIDS_PER_LIST))))
}

/// The identifiers of an active namespace; any other NSID is refused (Base 5.17.2.3).
fn descriptors(namespaces: &NamespaceTable, nsid: u32) -> Result<Vec<u8>, Failure> {
    let namespace = namespaces.get(nsid).ok_or(Failure::InvalidNamespace)?;
    Ok(NamespaceIds::encode(&namespace::identifiers(namespace)).to_vec())
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

fn bytes<T: IntoBytes + Immutable>(structure: &T) -> Vec<u8> {
    structure.as_bytes().to_vec()
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
