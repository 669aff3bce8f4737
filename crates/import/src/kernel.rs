//! Reader of the output of `nvmetcli save` for Linux nvmet: the tree of its configfs, with
//! attributes as text.

use std::collections::{BTreeMap, BTreeSet};

use crate::DiskProperties;
use crate::config_builder::{
    ConfigBuilder, DeviceBackend, Listener, Namespace, NamespaceLimit, Referral, Subsystem,
};
use crate::json::{ImportError, JsonNode, JsonObject};
use crate::listen_address;
use crate::note::Notes;

/// Default ports of a target and of a discovery service.
const PORT: u16 = 4420;
const DISCOVERY_PORT: u16 = 8009;
/// Maximum bytes of in-capsule data, and their unit.
const IN_CAPSULE_MAX: u64 = 64 << 10;
const IN_CAPSULE_UNIT: u64 = 512;
/// Maximum controller ID (Base 2.0, 3.1.2).
const CNTLID_MAX: u64 = 65_519;

/// Reads the config of a target.
pub(crate) fn read(
    root: &JsonNode<'_>,
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<ConfigBuilder, ImportError> {
    let mut builder = ConfigBuilder::default();
    let mut top = root.object()?;
    let locked = hosts(&mut top, notes)?;
    let ports = ports(&mut builder, &mut top, notes)?;
    for node in top.list("subsystems")? {
        subsystem(&mut builder, &node, &ports, &locked, disks, notes)?;
    }
    for (name, at) in ports.linked() {
        if !builder.has_subsystem(name) {
            notes.unsupported(at, format!("no subsystem \"{name}\" is taken over"));
        }
    }
    builder.need_listener("$.ports", notes);
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
        let mut host = node.object()?;
        let nqn = host.need("nqn")?.text()?;
        let mut attributes = match host.get("attr").or_else(|| host.get("dhchap")) {
            Some(attributes) => attributes.object()?,
            None => {
                host.finish(notes);
                continue;
            }
        };
        if attributes.text("dhchap_key")?.or(attributes.text("key")?).is_some() {
            locked.insert(nqn);
        }
        attributes.skip(&["dhchap_ctrl_key", "dhchap_hash", "dhchap_dhgroup"]);
        attributes.finish(notes);
        host.finish(notes);
    }
    Ok(locked)
}

/// Subsystems and the ports that serve them.
#[derive(Debug, Default)]
struct Ports<'a> {
    /// Number of ports that are converted.
    count: usize,
    /// For each subsystem the paths of its links, one per port.
    links: BTreeMap<&'a str, Vec<String>>,
}

impl<'a> Ports<'a> {
    fn linked(&self) -> impl Iterator<Item = (&'a str, &str)> {
        self.links.iter().filter_map(|(name, paths)| Some((*name, paths.first()?.as_str())))
    }
}

fn ports<'a>(
    builder: &mut ConfigBuilder,
    top: &mut JsonObject<'a>,
    notes: &mut Notes,
) -> Result<Ports<'a>, ImportError> {
    let mut ports = Ports::default();
    for node in top.list("ports")? {
        let mut port = node.object()?;
        port.skip(&["portid"]);
        let new = listener(&mut port, notes)?;
        parameters(builder, &mut port, notes)?;
        referrals(builder, &mut port, notes)?;
        groups(&mut port, notes)?;
        let links = port.list("subsystems")?;
        if let Some(new) = new {
            ports.count += 1;
            builder.add_listener(node.path(), new, notes);
            for link in links {
                ports.links.entry(link.text()?).or_default().push(link.path().to_owned());
            }
        }
        port.finish(notes);
    }
    Ok(ports)
}

/// Returns the listener of a port; `None`, with a note, if it is not supported.
fn listener(port: &mut JsonObject<'_>, notes: &mut Notes) -> Result<Option<Listener>, ImportError> {
    let node = port.need("addr")?;
    let mut addr = node.object()?;
    let tls = addr.text("tsas")?.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("tls"));
    let required = addr.text("treq")? == Some("required");
    let address = listen_address::read(&mut addr, PORT, notes)?;
    addr.finish(notes);
    if tls && required {
        let what = "TLS only, which is not supported: hosts would connect without encryption";
        notes.unsupported(node.path(), what);
        return Ok(None);
    }
    if tls {
        notes.converted(
            node.path(),
            "TLS is offered, which is not supported: converted without TLS",
        );
    }
    Ok(address.map(|(fabric, address, port)| Listener { fabric, address, port }))
}

/// Reads the queue parameters of a port, which become limits of all listeners.
fn parameters(
    builder: &mut ConfigBuilder,
    port: &mut JsonObject<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let Some(node) = port.get("param") else { return Ok(()) };
    let mut param = node.object()?;
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
    if param.flag("pi_enable")? {
        let what = "end-to-end data protection is not offered here";
        notes.unsupported(&format!("{}.pi_enable", param.path()), what);
    }
    param.finish(notes);
    Ok(())
}

fn referrals(
    builder: &mut ConfigBuilder,
    port: &mut JsonObject<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    for node in port.list("referrals")? {
        let mut referral = node.object()?;
        referral.skip(&["name", "portid"]);
        if referral.get("enable").is_some_and(|node| node.flag() == Ok(false)) {
            notes.unsupported(node.path(), "the referral is disabled");
            continue;
        }
        let mut addr = referral.need("addr")?.object()?;
        addr.skip(&["treq", "tsas", "portid"]);
        if let Some((fabric, address, port)) =
            listen_address::read(&mut addr, DISCOVERY_PORT, notes)?
        {
            if address.is_unspecified() || port == 0 {
                notes.unsupported(node.path(), "hosts cannot connect to such an address");
            } else {
                builder.add_referral(Referral { fabric, address, port });
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
        let mut group = node.object()?;
        group.skip(&["grpid"]);
        let Some(ana) = group.get("ana") else { continue };
        let mut ana = ana.object()?;
        if let Some(state) = ana.text("state")?.filter(|state| *state != "optimized") {
            let what = format!("asymmetric access is not reported to hosts: \"{state}\" is lost");
            notes.unsupported(node.path(), what);
        }
        ana.finish(notes);
        group.finish(notes);
    }
    Ok(())
}

fn subsystem(
    builder: &mut ConfigBuilder,
    node: &JsonNode<'_>,
    ports: &Ports<'_>,
    locked: &BTreeSet<&str>,
    disks: &dyn DiskProperties,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut raw = node.object()?;
    let nqn = raw.need("nqn")?.text()?;
    let links = ports.links.get(nqn).map_or(0, Vec::len);
    if links == 0 {
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
    if links < ports.count {
        let what = format!("{links} of {} ports have it; here every listener does", ports.count);
        notes.converted(node.path(), what);
    }
    let passthru = raw.get("passthru").or_else(|| raw.get("device"));
    if let Some(passthru) = passthru {
        let what = "commands are not passed through to a controller: give its namespaces instead";
        notes.unsupported(passthru.path(), what);
    }
    attributes(&mut new, &mut raw, notes)?;
    allowed_hosts(&mut new, &mut raw, locked, notes)?;
    for entry in raw.list("namespaces")? {
        namespace(builder, &mut new, &entry, disks, notes)?;
    }
    raw.finish(notes);
    builder.add_subsystem(new);
    Ok(())
}

fn attributes(
    new: &mut Subsystem,
    raw: &mut JsonObject<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let Some(node) = raw.get("attr") else { return Ok(()) };
    let mut attr = node.object()?;
    if attr.flag("allow_any_host")? {
        new.allow_any();
    }
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
    if attr.flag("pi_enable")? {
        let what = "end-to-end data protection is not offered here";
        notes.unsupported(&format!("{}.pi_enable", attr.path()), what);
    }
    // This target reports its own values for these.
    attr.skip(&["version", "firmware", "ieee_oui"]);
    if let Some(node) = attr.get("qid_max") {
        let what = format!("io-queues is one limit for all subsystems here ({})", node.shown());
        notes.unsupported(node.path(), what);
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
    let mut raw = node.object()?;
    let nsid = raw.need("nsid")?.number(1..=u64::from(u32::MAX) - 1)?;
    if raw.get("enable").map(|node| node.flag()).transpose()? == Some(false) {
        notes.unsupported(node.path(), format!("namespace {nsid} is disabled"));
        return Ok(());
    }
    raw.skip(&["ana_grpid", "ana"]);
    let device_node = raw.need("device")?;
    let mut device = device_node.object()?;
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
    if device.flag("buffered_io")? {
        let what =
            "files are read and written past the page cache here (direct = \"off\" changes that)";
        notes.converted(&format!("{}.buffered_io", device.path()), what);
    }
    device.finish(notes);
    let known = builder.file(file).map(str::to_owned);
    let name = match known {
        Some(name) => name,
        None => {
            let block_size = block_size(path.path(), file, disks, notes);
            let medium = DeviceBackend::File { path: file.into(), block_size, read_only: false };
            let wanted = file.rsplit('/').next().unwrap_or(file);
            builder.add_device(wanted, medium)
        }
    };
    let limit = NamespaceLimit::default();
    let namespace = Namespace { nsid, device: name, uuid, nguid, eui64, limit };
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
