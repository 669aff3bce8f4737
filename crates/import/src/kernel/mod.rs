//! Reader of the output of `nvmetcli save` for Linux nvmet: the tree of its configfs, with
//! attributes as text.

pub(crate) mod keys;

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_api::document::{DISCOVERY_PORT, NVM_PORT};
use nvmeof_wire::Nqn;
use nvmeof_wire::nqn::DISCOVERY_NQN;

use crate::DiskProperties;
use crate::config_builder::{ConfigBuilder, DeviceBackend, Namespace, Referral, Subsystem};
use crate::json::{ImportError, JsonNode, JsonObject};
use crate::listen_address::{self, ListenAddress};
use crate::note::Notes;
use crate::queues;

/// Maximum bytes of in-capsule data, and their unit.
const IN_CAPSULE_MAX: u64 = 64 << 10;
const IN_CAPSULE_UNIT: u64 = 512;
/// Bytes of a page, the unit of MDTS.
const PAGE: u64 = 4096;
/// Maximum controller ID (Base 2.0, 3.1.2).
const CNTLID_MAX: u64 = 65_519;
/// Model number of nvmet if none is set.
const MODEL: &str = "Linux";

/// Reads the config of a target.
pub(crate) fn read(
    root: &JsonNode<'_>,
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<ConfigBuilder, ImportError> {
    let mut builder = ConfigBuilder::default();
    let mut top = root.object(keys::ROOT)?;
    if let Some(nqn) = top.text("discovery_nqn")?.filter(|nqn| *nqn != DISCOVERY_NQN) {
        match Nqn::new(nqn) {
            Ok(_) => builder.discovery.nqn = Some(nqn.into()),
            Err(error) => notes.unsupported("$.discovery_nqn", error.to_string()),
        }
    }
    let locked = hosts(&mut top, notes)?;
    let links = ports(&mut builder, &mut top, notes)?;
    let mut limits = Vec::new();
    for node in top.list("subsystems")? {
        subsystem(&mut builder, &node, (&links, &locked, &mut limits), disks, notes)?;
    }
    queues::limit(&mut builder, &limits, notes);
    for (name, at) in &links {
        if !builder.has_subsystem(name) {
            notes.unsupported(at, format!("no subsystem \"{name}\" is taken over"));
        }
    }
    builder.complete("$.ports", notes);
    top.finish(notes);
    Ok(builder)
}

/// Returns the hosts that have to authenticate.
fn hosts<'a>(
    top: &mut JsonObject<'a>,
    notes: &mut Notes,
) -> Result<BTreeSet<&'a str>, ImportError> {
    let mut locked = BTreeSet::new();
    for node in top.list("hosts")? {
        let mut host = node.object(keys::HOST)?;
        let nqn = host.need("nqn")?.text()?;
        for group in ["attr", "dhchap"] {
            let Some(attributes) = host.get(group) else { continue };
            let mut attributes = attributes.object(keys::HOST_ATTRIBUTES)?;
            for key in ["dhchap_key", "key", "dhchap_ctrl_key", "ctrl_key"] {
                if attributes.text(key)?.is_some() {
                    locked.insert(nqn);
                }
            }
            attributes.finish(notes);
        }
        host.finish(notes);
    }
    Ok(locked)
}

/// Reads the ports, and returns the subsystems that they serve with the paths of their first links.
fn ports<'a>(
    builder: &mut ConfigBuilder,
    top: &mut JsonObject<'a>,
    notes: &mut Notes,
) -> Result<BTreeMap<&'a str, String>, ImportError> {
    let mut served = BTreeMap::new();
    let ports = top.list("ports")?;
    for node in &ports {
        let mut port = node.object(keys::PORT)?;
        let address = address(&mut port, notes)?;
        parameters(builder, &mut port, notes)?;
        referrals(builder, &mut port, ports.len(), notes)?;
        groups(&mut port, notes)?;
        let links = port.list("subsystems")?;
        port.finish(notes);
        let Some(address) = address else { continue };
        if links.is_empty() {
            let what = "the port serves no subsystem: nvmet does not listen there";
            notes.not_applicable(node.path(), what);
            continue;
        }
        let mut names = Vec::new();
        for link in links {
            let nqn = link.text()?;
            if nqn != DISCOVERY_NQN {
                served.entry(nqn).or_insert_with(|| link.path().to_owned());
                names.push(nqn.to_owned());
            }
        }
        // Over TCP, "::" of nvmet takes IPv4 hosts, too.
        let v6_only = address.0 == crate::config_builder::Fabric::Rdma;
        builder.listeners.add(node.path(), address, v6_only, names, notes);
    }
    Ok(served)
}

/// Returns true if an address offers TLS, and true if it requires TLS.
fn security(addr: &mut JsonObject<'_>) -> Result<(bool, bool), ImportError> {
    let tls = addr.text("tsas")?.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("tls"));
    let required = addr.text("treq")? == Some("required");
    Ok((tls, required))
}

/// Returns the address of a port; `None`, with a note, if it is not supported.
fn address(
    port: &mut JsonObject<'_>,
    notes: &mut Notes,
) -> Result<Option<ListenAddress>, ImportError> {
    let node = port.need("addr")?;
    let mut addr = node.object(keys::ADDRESS)?;
    let (tls, required) = security(&mut addr)?;
    let address = listen_address::read(&mut addr, NVM_PORT, notes)?;
    addr.finish(notes);
    if tls && required {
        let what = "TLS only, which is not supported: hosts would connect without encryption";
        notes.unsupported(node.path(), what);
        return Ok(None);
    }
    if tls || required {
        let what = "TLS is offered, which is not supported: converted without TLS";
        notes.converted(node.path(), what);
    }
    Ok(address)
}

/// Reads the queue parameters of a port, which become limits of all listeners.
fn parameters(
    builder: &mut ConfigBuilder,
    port: &mut JsonObject<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let Some(node) = port.get("param") else { return Ok(()) };
    let mut param = node.object(keys::PARAMETERS)?;
    // nvmet writes -1 for its own default.
    let chosen = |node: &JsonNode<'_>| !(node.is_text() && node.text() == Ok("-1"));
    if let Some(node) = param.get("inline_data_size").filter(chosen) {
        let bytes = node.number(0..=u32::MAX.into())?;
        let fits = bytes.min(IN_CAPSULE_MAX) / IN_CAPSULE_UNIT * IN_CAPSULE_UNIT;
        if fits != bytes {
            notes.converted(node.path(), format!("{bytes} bytes become {fits}"));
        }
        let limit = &mut builder.limits.in_capsule;
        *limit = Some(limit.map_or(fits, |other| other.max(fits)));
    }
    if let Some(node) = param.get("max_queue_size").filter(chosen) {
        let entries = node.number(1..=u16::MAX.into())?;
        let fits = entries.clamp(32, 4096);
        if fits != entries {
            notes.converted(node.path(), format!("{entries} entries become {fits}"));
        }
        let limit = &mut builder.limits.queue_depth;
        *limit = Some(limit.map_or(fits, |other| other.max(fits)));
    }
    if let Some(node) = param.get("mdts").filter(chosen) {
        let power = node.number(0..=u8::MAX.into())?;
        // 0 is no limit there: the default here is a limit that hosts follow.
        if power > 0 {
            let bytes = PAGE << power.min(9);
            let fits = bytes.clamp(8192, 2 << 20);
            if fits != bytes || power > 9 {
                let what = format!("2^{power} pages of {PAGE} bytes become {fits} bytes");
                notes.converted(node.path(), what);
            }
            let limit = &mut builder.limits.max_transfer;
            *limit = Some(limit.map_or(fits, |other| other.max(fits)));
        }
    }
    param.finish(notes);
    Ok(())
}

/// Reads the referrals of one of `ports` ports.
fn referrals(
    builder: &mut ConfigBuilder,
    port: &mut JsonObject<'_>,
    ports: usize,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    for node in port.list("referrals")? {
        let mut referral = node.object(keys::REFERRAL)?;
        if referral.get("enable").is_some_and(|node| node.flag() == Ok(false)) {
            notes.unsupported(node.path(), "the referral is disabled");
            continue;
        }
        let mut addr = referral.need("addr")?.object(keys::REFERRAL_ADDRESS)?;
        let (tls, required) = security(&mut addr)?;
        if tls || required {
            let what = "the discovery log does not say that TLS is required there";
            notes.converted(node.path(), what);
        }
        if let Some((fabric, address, port)) =
            listen_address::read(&mut addr, DISCOVERY_PORT, notes)?
        {
            if address.is_unspecified() || port == 0 {
                notes.unsupported(node.path(), "hosts cannot connect to such an address");
            } else {
                builder.add_referral(Referral { fabric, address, port, nqn: None });
                if ports > 1 {
                    let what = "the discovery logs of all listeners have it, not of one port";
                    notes.converted(node.path(), what);
                }
            }
        }
        addr.finish(notes);
        referral.finish(notes);
    }
    Ok(())
}

/// Asymmetric access: this target reports all paths as equal.
fn groups(port: &mut JsonObject<'_>, notes: &mut Notes) -> Result<(), ImportError> {
    for node in port.list("ana_groups")? {
        let mut group = node.object(keys::GROUP)?;
        if let Some(ana) = group.get("ana") {
            let mut ana = ana.object(keys::GROUP_STATE)?;
            if let Some(state) = ana.text("state")?.filter(|state| *state != "optimized") {
                let what =
                    format!("asymmetric access is not reported to hosts: \"{state}\" is lost");
                notes.unsupported(node.path(), what);
            }
            ana.finish(notes);
        }
        group.finish(notes);
    }
    Ok(())
}

/// Reads a subsystem with the links of the ports and the hosts that have to authenticate, and adds
/// the limit of its queues to the last of `context`.
fn subsystem<'a>(
    builder: &mut ConfigBuilder,
    node: &JsonNode<'a>,
    context: (&BTreeMap<&str, String>, &BTreeSet<&str>, &mut Vec<queues::QueueLimit>),
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let (links, locked, limits) = context;
    let mut raw = node.object(keys::SUBSYSTEM)?;
    let nqn = raw.need("nqn")?.text()?;
    if !links.contains_key(nqn) {
        notes.unsupported(node.path(), format!("\"{nqn}\" is at no port that is taken over"));
        return Ok(());
    }
    let mut new = match Subsystem::new(nqn) {
        Ok(_) if builder.has_subsystem(nqn) => {
            notes.unsupported(node.path(), format!("\"{nqn}\" is there already"));
            return Ok(());
        }
        Ok(new) => new,
        Err(what) => {
            notes.unsupported(node.path(), what);
            return Ok(());
        }
    };
    passthrough(&mut raw, notes)?;
    attributes(&mut new, &mut raw, limits, notes)?;
    allowed_hosts(&mut new, &mut raw, locked, notes)?;
    for entry in raw.list("namespaces")? {
        namespace(builder, &mut new, &entry, disks, notes)?;
    }
    raw.finish(notes);
    builder.add_subsystem(new);
    Ok(())
}

/// Adds a note for a controller that the subsystem passes commands through to.
fn passthrough(raw: &mut JsonObject<'_>, notes: &mut Notes) -> Result<(), ImportError> {
    for group in ["passthru", "device"] {
        let Some(node) = raw.get(group) else { continue };
        let mut passed = node.object(keys::PASSTHROUGH)?;
        let (path, new) = (passed.text("path")?, passed.text("device_path")?);
        let is_enabled = passed.flag("enable")?;
        passed.finish(notes);
        // nvmetcli saves the group of every subsystem, mostly without a path.
        if is_enabled || path.or(new).is_some_and(|path| path != "(null)") {
            let what =
                "commands are not passed through to a controller: give its namespaces instead";
            notes.unsupported(node.path(), what);
        }
    }
    Ok(())
}

fn attributes(
    new: &mut Subsystem,
    raw: &mut JsonObject<'_>,
    limits: &mut Vec<queues::QueueLimit>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    new.model = Some(MODEL.into());
    let Some(node) = raw.get("attr") else { return Ok(()) };
    let mut attr = node.object(keys::ATTRIBUTES)?;
    new.allow_any_host = attr.flag("allow_any_host")?;
    for (key, most) in [("serial", 20), ("model", 40)] {
        let Some(text) = attr.text(key)? else { continue };
        let label = Subsystem::label(text, most);
        if label.is_none() {
            let what =
                format!("\"{}\" is not 1 to {most} printable characters", text.escape_debug());
            notes.unsupported(&format!("{}.{key}", attr.path()), what);
        }
        if key == "serial" { new.serial = label } else { new.model = label }
    }
    let id = |attr: &mut JsonObject<'_>, key| {
        attr.get(key).map(|node: JsonNode<'_>| node.number(1..=CNTLID_MAX)).transpose()
    };
    new.cntlid_min = id(&mut attr, "cntlid_min")?;
    new.cntlid_max = id(&mut attr, "cntlid_max")?;
    if new.cntlid_min.unwrap_or(1) > new.cntlid_max.unwrap_or(CNTLID_MAX) {
        notes.unsupported(attr.path(), "cntlid_min is more than cntlid_max");
        (new.cntlid_min, new.cntlid_max) = (None, None);
    }
    if let Some(node) = attr.get("qid_max") {
        let queues = node.number(1..=u16::MAX.into())?;
        limits.push(queues::QueueLimit { path: node.path().to_owned(), queues });
    }
    attr.finish(notes);
    Ok(())
}

fn allowed_hosts(
    new: &mut Subsystem,
    raw: &mut JsonObject<'_>,
    locked: &BTreeSet<&str>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let hosts = raw.list("allowed_hosts")?;
    if new.allow_any_host {
        return Ok(());
    }
    if hosts.is_empty() {
        notes.converted(raw.path(), "no host may connect, as before: add some to `hosts`");
    }
    for node in hosts {
        let nqn = node.text()?;
        if locked.contains(nqn) {
            let what = format!(
                "{nqn} has to authenticate (DH-HMAC-CHAP), which is not supported here: add it \
                 to `hosts` if its network is trusted"
            );
            notes.unsupported(node.path(), what);
        } else if let Err(what) = new.allow(nqn) {
            notes.unsupported(node.path(), what);
        }
    }
    Ok(())
}

fn namespace(
    builder: &mut ConfigBuilder,
    subsystem: &mut Subsystem,
    node: &JsonNode<'_>,
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut raw = node.object(keys::NAMESPACE)?;
    let nsid = raw.need("nsid")?.number(1..=u64::from(u32::MAX) - 1)?;
    if raw.get("enable").map(|node| node.flag()).transpose()? == Some(false) {
        notes.unsupported(node.path(), format!("namespace {nsid} is disabled"));
        return Ok(());
    }
    let device_node = raw.need("device")?;
    let mut device = device_node.object(keys::DEVICE)?;
    let path = device.need("path")?;
    let file = path.text()?;
    if !file.starts_with('/') {
        notes.unsupported(path.path(), format!("{} is no path", path.shown()));
        return Ok(());
    }
    let identifier = |device: &mut JsonObject<'_>, key| -> Result<Option<String>, ImportError> {
        Ok(device.text(key)?.map(str::to_owned))
    };
    let (uuid, nguid) = (identifier(&mut device, "uuid")?, identifier(&mut device, "nguid")?);
    let eui64 = identifier(&mut device, "eui64")?;
    for object in [&mut raw, &mut device] {
        if object.flag("buffered_io")? {
            let what = "files are read and written past the page cache here (direct = \"off\" \
                        changes that)";
            notes.converted(&format!("{}.buffered_io", object.path()), what);
        }
    }
    device.finish(notes);
    let known = builder.file(file).map(|(name, _)| name.to_owned());
    let name = match known {
        Some(name) => name,
        None => {
            let block_size = block_size(path.path(), file, disks, notes);
            let medium = DeviceBackend::File { path: file.into(), block_size, read_only: false };
            let wanted = file.rsplit('/').next().unwrap_or(file);
            builder.add_device(wanted, medium)
        }
    };
    let namespace = Namespace { nsid, device: name, uuid, nguid, eui64, ..Namespace::default() };
    builder.add_namespace(subsystem, node.path(), namespace, notes);
    raw.finish(notes);
    Ok(())
}

/// Returns the bytes of a block as hosts saw it. For a block device these are its own. For a file
/// they are those of its filesystem, at most 4096; all common filesystems have 4096 (nvmet of Linux
/// 6.1).
fn block_size(path: &str, file: &str, disks: &dyn DiskProperties, notes: &mut Notes) -> u32 {
    let assumed = if file.starts_with("/dev/") { 512 } else { 4096 };
    match disks.block_size(file) {
        Some(known @ (512 | 4096)) => known,
        Some(other) => {
            let what =
                format!("blocks of {other} bytes become {assumed}: hosts may not find their data");
            notes.converted(path, what);
            assumed
        }
        None if assumed == 512 => {
            let what = format!(
                "blocks of 512 bytes are assumed: `blockdev --getss {file}` on the old target \
                 shows the size, and `block-size` has to match"
            );
            notes.converted(path, what);
            assumed
        }
        None => assumed,
    }
}
