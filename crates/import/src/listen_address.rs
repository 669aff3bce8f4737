//! Addresses of listeners and referrals. Both formats use the specification's names for their parts
//! (Fabrics 5.3, discovery log page entry).

use std::net::IpAddr;

use crate::config_builder::Fabric;
use crate::json::{ImportError, JsonObject};
use crate::note::Notes;

/// Fabric, address and port.
pub(crate) type ListenAddress = (Fabric, IpAddr, u16);

/// Reads `trtype`, `adrfam`, `traddr` and `trsvcid`. Returns `None`, with a note, if the address is
/// not supported.
pub(crate) fn read(
    object: &mut JsonObject<'_>,
    default_port: u16,
    notes: &mut Notes,
) -> Result<Option<ListenAddress>, ImportError> {
    // SPDK before 18.04 had "transport".
    let old = object.has("transport") && !object.has("trtype");
    let fabric = object.need(if old { "transport" } else { "trtype" })?.text()?;
    let fabric = match fabric.to_ascii_lowercase().as_str() {
        "tcp" => Fabric::Tcp,
        "rdma" => Fabric::Rdma,
        _ => {
            object.skip(&["traddr", "trsvcid"]);
            let what = format!("transport \"{fabric}\": there are only TCP and RDMA here");
            notes.unsupported(object.path(), what);
            return Ok(None);
        }
    };
    let port = match object.get("trsvcid") {
        Some(node) if node.is_text() && node.text()?.is_empty() => default_port,
        Some(node) => {
            let number = node.number(0..=u16::MAX.into())?;
            u16::try_from(number).map_err(|_| node.wrong("a port from 0 to 65535"))?
        }
        None => default_port,
    };
    let node = object.need("traddr")?;
    let text = node.text()?;
    // URLs write IPv6 in brackets; a scope refers to an interface of one machine.
    let bare = text.trim().trim_start_matches('[').trim_end_matches(']');
    match bare.parse() {
        Ok(address) => Ok(Some((fabric, address, port))),
        Err(_) => {
            let what = format!(
                "{} is no IPv4 or IPv6 address: names and scoped addresses are not looked up here",
                node.shown()
            );
            notes.unsupported(node.path(), what);
            Ok(None)
        }
    }
}
