//! Reader of SPDK nvmf_tgt's configuration.

use std::collections::BTreeSet;

use nvmeof_api::document::{DISCOVERY_PORT, NVM_PORT};
use nvmeof_wire::Nqn;
use nvmeof_wire::nqn::DISCOVERY_NQN;

use super::bdev::Bdevs;
use super::identity::BdevUuid;
use super::keys::nvmf as keys;
use super::transport::Transports;
use super::{RpcCall, TLS_SOCKETS, note_call};
use crate::config_builder::{ConfigBuilder, Namespace, Referral, Subsystem};
use crate::json::{ImportError, JsonNode, JsonObject};
use crate::listen_address::{self, ListenAddress};
use crate::note::Notes;
use crate::queues;

/// Short name of the discovery subsystem in SPDK's calls.
const DISCOVERY: &str = "discovery";
/// Maximum controller ID (Base 2.0, 3.1.2).
const CNTLID_MAX: u64 = 65_519;
/// Serial and model number of SPDK if the config has none.
const SERIAL: &str = "00000000000000000000";
const MODEL: &str = "SPDK bdev Controller";

/// The target under construction.
#[derive(Debug, Default)]
pub(super) struct SpdkTarget {
    /// Sockets speak TLS unless a listener chooses others.
    pub(super) has_tls_sockets: bool,
    /// Subsystems in the order of creation.
    subsystems: Vec<Subsystem>,
    /// Listeners in the order of creation.
    listeners: Vec<SpdkListener>,
    transports: Transports,
}

/// A listener of one subsystem, or of the discovery service.
#[derive(Debug)]
struct SpdkListener {
    path: String,
    address: ListenAddress,
    nqn: String,
}

impl SpdkTarget {
    /// Converts one call.
    pub(super) fn call(
        &mut self,
        builder: &mut ConfigBuilder,
        bdevs: &mut Bdevs<'_>,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        match call.method {
            "nvmf_set_config" => set_config(builder, call, notes),
            "nvmf_create_transport" => self.transports.transport(builder, call, notes),
            "nvmf_set_options" => self.transports.options(builder, call, notes),
            "nvmf_create_subsystem" => self.subsystem(builder, bdevs, call, notes),
            "nvmf_subsystem_add_ns" => self.add_namespace(builder, bdevs, call, notes),
            "nvmf_subsystem_add_listener" => self.listener(call, notes),
            "nvmf_subsystem_remove_listener" => self.remove_listener(call, notes),
            "nvmf_subsystem_remove_ns" => self.remove_namespace(builder, bdevs, call, notes),
            "nvmf_delete_subsystem" => self.delete_subsystem(builder, bdevs, call, notes),
            "nvmf_subsystem_add_host"
            | "nvmf_subsystem_set_keys"
            | "nvmf_subsystem_remove_host" => self.host(call, notes),
            "nvmf_subsystem_allow_any_host" => self.any_host(builder, call, notes),
            "nvmf_discovery_add_referral" => referral(builder, call, notes),
            "nvmf_publish_mdns_prr" => {
                builder.discovery.mdns = true;
                call.params.iter().try_for_each(|params| {
                    params.object(keys::MDNS)?.finish(notes);
                    Ok(())
                })
            }
            "nvmf_set_crdt" => {
                call.params(keys::RETRY_DELAYS)?.finish(notes);
                Ok(())
            }
            "nvmf_create_target" => {
                call.params(keys::TARGET)?.finish(notes);
                Ok(())
            }
            _ => {
                note_call(keys::CALLS, call, "this call has no counterpart", notes);
                Ok(())
            }
        }
    }

    /// Adds the subsystems to the new config.
    pub(super) fn finish(self, builder: &mut ConfigBuilder, notes: &mut Notes) {
        queues::limit(builder, &self.transports.queues, notes);
        let reached: BTreeSet<String> = self.listeners.iter().map(|one| one.nqn.clone()).collect();
        for SpdkListener { path, address, nqn } in self.listeners {
            let served = Some(nqn).filter(|nqn| !is_discovery(nqn));
            // "::" of SPDK takes IPv6 hosts only.
            builder.listeners.add(&path, address, true, served, notes);
        }
        if self.transports.sends_responses {
            builder.listeners.fold_if_disabled();
        }
        for subsystem in self.subsystems {
            let path = format!("$.subsystems (\"{}\")", subsystem.nqn);
            if !reached.contains(&subsystem.nqn) {
                notes.unsupported(&path, "it has no listener that is taken over");
                continue;
            }
            if subsystem.admits_no_host() {
                notes.converted(&path, "no host may connect, as before: add some to `hosts`");
            }
            builder.add_subsystem(subsystem);
        }
    }

    /// Returns the subsystem of a call; `None`, with a note, if it is not converted.
    fn find(
        &mut self,
        params: &mut JsonObject<'_>,
        notes: &mut Notes,
    ) -> Result<Option<&mut Subsystem>, ImportError> {
        let node = params.need("nqn")?;
        let nqn = node.text()?;
        let found = self.subsystems.iter_mut().find(|subsystem| subsystem.nqn == nqn);
        if found.is_none() {
            let what = if is_discovery(nqn) {
                "the discovery service has no settings of this kind".into()
            } else {
                format!("there is no subsystem \"{}\"", nqn.escape_debug())
            };
            notes.unsupported(node.path(), what);
        }
        Ok(found)
    }

    fn subsystem(
        &mut self,
        builder: &mut ConfigBuilder,
        bdevs: &mut Bdevs<'_>,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::SUBSYSTEM)?;
        let nqn = params.need("nqn")?.text()?;
        let mut new = match Subsystem::new(nqn) {
            Ok(_) if self.subsystems.iter().any(|other| other.nqn == nqn) => {
                notes.unsupported(&call.path, format!("\"{nqn}\" is there already"));
                return Ok(());
            }
            Ok(new) => new,
            Err(what) => {
                notes.unsupported(&call.path, what);
                return Ok(());
            }
        };
        new.allow_any_host = params.flag("allow_any_host")?;
        (new.serial, new.model) = (Some(SERIAL.into()), Some(MODEL.into()));
        for (key, most) in [("serial_number", 20), ("model_number", 40)] {
            let Some(text) = params.text(key)? else { continue };
            let label = Subsystem::label(text, most);
            if label.is_none() {
                let what =
                    format!("\"{}\" is not 1 to {most} printable characters", text.escape_debug());
                notes.unsupported(&format!("{}.{key}", params.path()), what);
            }
            if key == "serial_number" { new.serial = label } else { new.model = label }
        }
        let id = |params: &mut JsonObject<'_>, key| {
            params.get(key).map(|node| node.number(1..=CNTLID_MAX)).transpose()
        };
        new.cntlid_min = id(&mut params, "min_cntlid")?;
        new.cntlid_max = id(&mut params, "max_cntlid")?;
        if new.cntlid_min.unwrap_or(1) > new.cntlid_max.unwrap_or(CNTLID_MAX) {
            notes.unsupported(params.path(), "min_cntlid is more than max_cntlid");
            (new.cntlid_min, new.cntlid_max) = (None, None);
        }
        for node in params.list("hosts")? {
            if let Err(what) = new.allow(node.text()?) {
                notes.unsupported(node.path(), what);
            }
        }
        for node in params.list("namespaces")? {
            namespace(builder, bdevs, &mut new, &node, notes)?;
        }
        for node in params.list("listen_addresses")? {
            self.listen(nqn, &node, self.has_tls_sockets, notes)?;
        }
        params.finish(notes);
        self.subsystems.push(new);
        Ok(())
    }

    fn add_namespace(
        &mut self,
        builder: &mut ConfigBuilder,
        bdevs: &mut Bdevs<'_>,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::ADD_NAMESPACE)?;
        let node = params.need("namespace")?;
        if let Some(subsystem) = self.find(&mut params, notes)? {
            namespace(builder, bdevs, subsystem, &node, notes)?;
        }
        params.finish(notes);
        Ok(())
    }

    /// Removes a namespace. The number is free for another one.
    fn remove_namespace(
        &mut self,
        builder: &mut ConfigBuilder,
        bdevs: &mut Bdevs<'_>,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::REMOVE_NAMESPACE)?;
        let nsid = params.need("nsid")?.number(1..=u32::MAX.into())?;
        if let Some(subsystem) = self.find(&mut params, notes)? {
            if let Some(removed) = builder.remove_namespace(subsystem, nsid) {
                bdevs.release_limit(&removed.bdev);
            }
            if !subsystem.release_nsid(nsid) {
                let what = format!("the subsystem has no namespace {nsid}");
                notes.unsupported(&call.path, what);
            }
        }
        params.finish(notes);
        Ok(())
    }

    /// Removes a subsystem with its namespaces and its listeners.
    fn delete_subsystem(
        &mut self,
        builder: &mut ConfigBuilder,
        bdevs: &mut Bdevs<'_>,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::DELETE_SUBSYSTEM)?;
        if let Some(subsystem) = self.find(&mut params, notes)? {
            for nsid in subsystem.nsids() {
                if let Some(removed) = builder.remove_namespace(subsystem, nsid) {
                    bdevs.release_limit(&removed.bdev);
                }
            }
            let nqn = subsystem.nqn.clone();
            self.subsystems.retain(|subsystem| subsystem.nqn != nqn);
            self.listeners.retain(|listener| listener.nqn != nqn);
        }
        params.finish(notes);
        Ok(())
    }

    /// Removes the listener of one subsystem at an address. Other subsystems keep theirs.
    fn remove_listener(
        &mut self,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::REMOVE_LISTENER)?;
        let node = params.need("listen_address")?;
        let nqn = params.need("nqn")?.text()?;
        let is_known = is_discovery(nqn) || self.find(&mut params, notes)?.is_some();
        params.finish(notes);
        let Some(address) = address(&node, default_port(nqn), notes)?.filter(|_| is_known) else {
            return Ok(());
        };
        let before = self.listeners.len();
        let nqn = canonical(nqn);
        self.listeners.retain(|one| one.address != address || one.nqn != nqn);
        if self.listeners.len() == before {
            let what = "the subsystem has no listener at this address that is taken over";
            notes.unsupported(node.path(), what);
        }
        Ok(())
    }

    fn listener(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params(keys::LISTENER)?;
        let node = params.need("listen_address")?;
        let tls = match params.text("sock_impl")? {
            Some(sockets) => sockets == TLS_SOCKETS,
            None => self.has_tls_sockets,
        };
        let tls = params.flag("secure_channel")? || tls;
        let nqn = params.need("nqn")?.text()?;
        let is_known = is_discovery(nqn) || self.find(&mut params, notes)?.is_some();
        params.finish(notes);
        if is_known {
            self.listen(nqn, &node, tls, notes)?;
        }
        Ok(())
    }

    /// Adds a listener of a subsystem, or of the discovery service, which every listener has.
    fn listen(
        &mut self,
        nqn: &str,
        node: &JsonNode<'_>,
        tls: bool,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let Some(address) = address(node, default_port(nqn), notes)? else { return Ok(()) };
        if tls && address.0 == crate::config_builder::Fabric::Tcp {
            let what = "TLS only, which is not supported: hosts would connect without encryption";
            notes.unsupported(node.path(), what);
            return Ok(());
        }
        let nqn = canonical(nqn).to_owned();
        self.listeners.push(SpdkListener { path: node.path().to_owned(), address, nqn });
        Ok(())
    }

    /// Adds or removes a host, or requires a key of it.
    fn host(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params(keys::HOST)?;
        let host = params.need("host")?.text()?;
        let mut locked = false;
        for key in ["psk", "dhchap_key", "dhchap_ctrlr_key"] {
            locked |= params.text(key)?.is_some();
        }
        let Some(subsystem) = self.find(&mut params, notes)? else { return Ok(()) };
        params.finish(notes);
        if call.method == "nvmf_subsystem_remove_host" {
            subsystem.revoke(host);
        } else if locked {
            subsystem.revoke(host);
            let what = format!(
                "{host} has to authenticate (a key), which is not supported here: add it to \
                 `hosts` if its network is trusted"
            );
            notes.unsupported(&call.path, what);
        } else if call.method == "nvmf_subsystem_add_host"
            && let Err(what) = subsystem.allow(host)
        {
            notes.unsupported(&call.path, what);
        }
        Ok(())
    }

    fn any_host(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::ANY_HOST)?;
        let any = params.need("allow_any_host")?.flag()?;
        if params.get("nqn").is_some_and(|node| node.text().is_ok_and(is_discovery)) {
            builder.discovery.restricted = !any;
            if !any {
                let what = "hosts that a subsystem admits may connect to the discovery service";
                notes.converted(&call.path, what);
            }
        } else if let Some(subsystem) = self.find(&mut params, notes)? {
            subsystem.allow_any_host = any;
        }
        params.finish(notes);
        Ok(())
    }
}

fn is_discovery(nqn: &str) -> bool {
    nqn == DISCOVERY_NQN || nqn == DISCOVERY
}

/// Returns the full name for the short name of the discovery subsystem, otherwise `nqn`.
fn canonical(nqn: &str) -> &str {
    if is_discovery(nqn) { DISCOVERY_NQN } else { nqn }
}

fn default_port(nqn: &str) -> u16 {
    if is_discovery(nqn) { DISCOVERY_PORT } else { NVM_PORT }
}

/// Returns the address of a listener; `None`, with a note, if it is not supported.
fn address(
    node: &JsonNode<'_>,
    default_port: u16,
    notes: &mut Notes,
) -> Result<Option<ListenAddress>, ImportError> {
    let mut raw = node.object(keys::ADDRESS)?;
    let address = listen_address::read(&mut raw, default_port, notes)?;
    raw.finish(notes);
    Ok(address)
}

/// Reads a namespace of a subsystem.
fn namespace(
    builder: &mut ConfigBuilder,
    bdevs: &mut Bdevs<'_>,
    subsystem: &mut Subsystem,
    node: &JsonNode<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut raw = node.object(keys::NAMESPACE)?;
    let bdev_node = raw.need("bdev_name")?;
    let bdev_name = bdev_node.text()?;
    let nsid = match raw.get("nsid") {
        Some(node) => node.number(0..=u64::from(u32::MAX) - 1)?,
        None => 0,
    };
    let nsid = subsystem.reserve_nsid(nsid);
    let mut identifier = |key: &str| -> Result<Option<String>, ImportError> {
        let text = raw.text(key)?;
        // SPDK writes all zeroes for an absent one.
        let text = text.filter(|text| text.chars().any(|c| !matches!(c, '0' | '-')));
        Ok(text.map(str::to_owned))
    };
    let (uuid, nguid) = (identifier("uuid")?, identifier("nguid")?);
    let eui64 = identifier("eui64")?;
    if raw.flag("no_auto_visible")? {
        let what = "hosts of a subsystem see all its namespaces here: it would be open to more \
                    of them; give it a subsystem of its own";
        notes.unsupported(node.path(), what);
        return Ok(());
    }
    raw.finish(notes);
    let Some(bdev) = bdevs.find(builder, bdev_node.path(), bdev_name, notes) else {
        return Ok(());
    };
    if bdev.uuid == BdevUuid::OfDrive && uuid.is_none() {
        let what = "hosts know the namespace by the drive's UUID or NGUID, or by one that follows \
                    from it: set `uuid` to what `nvme id-ns-descs` shows there";
        notes.converted(node.path(), what);
    }
    let namespace = Namespace {
        nsid,
        device: bdev.device,
        uuid: uuid.or_else(|| bdev.uuid.text()),
        // The NGUID of SPDK is the UUID of the block device.
        nguid: nguid.or_else(|| bdev.uuid.text()),
        eui64,
        limit: bdevs.limit_of(bdev_name, bdev_node.path(), notes),
        bdev: bdev_name.to_owned(),
    };
    builder.add_namespace(subsystem, node.path(), namespace, notes);
    Ok(())
}

fn set_config(
    builder: &mut ConfigBuilder,
    call: &RpcCall<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut params = call.params(keys::CONFIG)?;
    if let Some(node) = params.get("poll_groups_mask") {
        builder.reactors = reactors(&node, notes)?;
    }
    if let Some(node) = params.get("admin_cmd_passthru") {
        node.object(keys::ADMIN_PASSTHROUGH)?.finish(notes);
    }
    params.finish(notes);
    Ok(())
}

/// Returns the CPUs of a mask, or of a list as `[0-3,8]`.
fn reactors(node: &JsonNode<'_>, notes: &mut Notes) -> Result<Option<String>, ImportError> {
    let text = node.text()?.trim();
    if let Some(list) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let is_plain = |c: char| c.is_ascii_digit() || matches!(c, '-' | ',');
        let list: String = list.chars().filter(|c| !c.is_whitespace()).collect();
        if !list.is_empty() && list.chars().all(is_plain) {
            return Ok(Some(list));
        }
    }
    let digits = text.trim_start_matches("0x").trim_start_matches("0X");
    match u128::from_str_radix(digits, 16) {
        Ok(0) => Ok(None),
        Ok(mask) => {
            let cpus = (0..128).filter(|cpu| mask >> cpu & 1 == 1);
            Ok(Some(cpus.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",")))
        }
        Err(_) => {
            let what = format!("{} is no mask of CPUs: set `reactors`", node.shown());
            notes.unsupported(node.path(), what);
            Ok(None)
        }
    }
}

fn referral(
    builder: &mut ConfigBuilder,
    call: &RpcCall<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut params = call.params(keys::REFERRAL)?;
    let node = params.need("address")?;
    let secure = params.flag("secure_channel")?;
    let mut raw = node.object(keys::REFERRAL_ADDRESS)?;
    let nqn = params.text("subnqn")?.or(raw.text("subnqn")?).filter(|nqn| *nqn != DISCOVERY_NQN);
    let address = listen_address::read(&mut raw, DISCOVERY_PORT, notes)?;
    raw.finish(notes);
    params.finish(notes);
    let Some((fabric, address, port)) = address else { return Ok(()) };
    if address.is_unspecified() || port == 0 || secure {
        let what = if secure { "TLS is not spoken here" } else { "hosts cannot connect to it" };
        notes.unsupported(node.path(), what);
    } else if let Some(Err(error)) = nqn.map(Nqn::new) {
        notes.unsupported(&call.path, format!("the NQN of the referral: {error}"));
    } else {
        builder.add_referral(Referral { fabric, address, port, nqn: nqn.map(str::to_owned) });
    }
    Ok(())
}
