//! Namespaces.

use nvmeof_api::document::{Document, Namespace};
use uuid::Uuid;

use super::{EditResult, subsystems};
use crate::{Params, RpcError, State};

pub(super) fn add(
    params: &mut Params,
    state: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let mut raw = params.object("namespace")?;
    let name: String = raw.need("bdev_name")?;
    let nsid: Option<u32> = raw.get("nsid")?;
    let uuid: Option<Uuid> = raw.get("uuid")?;
    let (nguid, eui64) = (raw.get("nguid")?, raw.get("eui64")?);
    // In SPDK, hosts read the group with `ana_reporting` only, which is refused. There is no
    // metadata to hide.
    raw.ignore(&["anagrpid", "hide_metadata"]);
    raw.refuse("ptpl_file", "reservations are not kept in a file")?;
    let why = "hosts of a subsystem see all its namespaces; use a subsystem per group of hosts";
    raw.refuse("no_auto_visible", why)?;
    raw.finish()?;
    let subsystem = subsystems::find(document, &nqn)?;
    let nsid = match nsid.filter(|nsid| *nsid != 0) {
        Some(nsid) if subsystem.namespace(nsid).is_some() => {
            let what = format!("namespace.nsid: {nqn} has a namespace {nsid} already");
            return Err(RpcError::params(what));
        }
        Some(nsid) => nsid,
        None => (1..).find(|nsid| subsystem.namespace(*nsid).is_none()).unwrap_or(u32::MAX),
    };
    let bdev = state.bdev(&name)?;
    // A bdev that a call created has a UUID; others have the identity of their data.
    let own = state.property(&bdev.config.name);
    let uuid = uuid.or(own.uuid);
    let namespace = Namespace {
        nsid,
        device: bdev.config.name.clone(),
        uuid: uuid.map(|uuid| uuid.to_string()),
        nguid,
        eui64,
        limit: own.limit,
        ..Namespace::default()
    };
    document.add_namespace(&nqn, namespace)?;
    Ok(EditResult::new(nsid))
}

pub(super) fn remove(
    params: &mut Params,
    _: &State,
    document: &mut Document,
) -> Result<EditResult, RpcError> {
    let nqn = params.subsystem()?;
    let nsid: u32 = params.need("nsid")?;
    subsystems::find(document, &nqn)?;
    document.remove_namespace(&nqn, nsid)?;
    Ok(EditResult::ok())
}
