//! Reader of SPDK nvmf_tgt's configuration.

use std::collections::BTreeMap;

use super::RpcCall;
use super::bdev::Bdevs;
use crate::config_builder::{ConfigBuilder, Listener, Namespace, Referral, Subsystem};
use crate::json::{ImportError, JsonObject};
use crate::listen_address;
use crate::note::Notes;

const PORT: u16 = 4420;
const DISCOVERY_PORT: u16 = 8009;
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Maximum controller ID (Base 2.0, 3.1.2).
const CNTLID_MAX: u64 = 65_519;

/// Calls that concern SPDK's internals, and settings that always apply here.
const INNER: &[&str] = &[
    "nvmf_set_max_subsystems",
    "nvmf_set_crdt",
    "nvmf_create_target",
    "nvmf_stop_mdns_prr",
    "nvmf_publish_mdns_prr",
];

/// The target under construction.
#[derive(Debug, Default)]
pub(super) struct SpdkTarget {
    /// Subsystems in the order of creation.
    subsystems: Vec<Subsystem>,
    /// Number of listeners of each subsystem.
    listeners: BTreeMap<String, usize>,
    places: Vec<Listener>,
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
            "nvmf_create_transport" => transport(builder, call, notes),
            "nvmf_create_subsystem" => self.subsystem(call, notes),
            "nvmf_subsystem_add_ns" => self.namespace(builder, bdevs, call, notes),
            "nvmf_subsystem_add_listener" => self.listener(builder, call, notes),
            "nvmf_subsystem_add_host" => self.host(call, notes),
            "nvmf_subsystem_allow_any_host" => self.any_host(call, notes),
            "nvmf_discovery_add_referral" => referral(builder, call, notes),
            "nvmf_subsystem_listener_set_ana_state" => {
                notes.unsupported(&call.path, "asymmetric access is not reported to hosts");
                Ok(())
            }
            inner if INNER.contains(&inner) => {
                notes.not_applicable(&call.path, format!("{inner} says how SPDK works inside"));
                Ok(())
            }
            other => {
                notes.unsupported(&call.path, format!("{other} has no counterpart"));
                Ok(())
            }
        }
    }

    /// Adds the subsystems to the new config.
    pub(super) fn finish(self, builder: &mut ConfigBuilder, notes: &mut Notes) {
        let places = self.places.len();
        for subsystem in self.subsystems {
            let own = self.listeners.get(&subsystem.nqn).copied().unwrap_or(0);
            let path = format!("$.subsystems (\"{}\")", subsystem.nqn);
            if own == 0 {
                notes.unsupported(&path, "it has no listener that is taken over");
                continue;
            }
            if own < places {
                let what = format!("{own} of {places} listeners have it; here every one does");
                notes.converted(&path, what);
            }
            if subsystem.hosts.as_ref().is_some_and(std::collections::BTreeSet::is_empty) {
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
        params.skip(&["tgt_name"]);
        if nqn == DISCOVERY {
            notes.not_applicable(node.path(), "every listener here has the discovery service");
            return Ok(None);
        }
        let found = self.subsystems.iter_mut().find(|subsystem| subsystem.nqn == nqn);
        if found.is_none() {
            notes.unsupported(
                node.path(),
                format!("there is no subsystem \"{}\"", nqn.escape_debug()),
            );
        }
        Ok(found)
    }

    fn subsystem(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let nqn = params.need("nqn")?.text()?;
        let mut new = match Subsystem::new(nqn) {
            Ok(new) => new,
            Err(what) => {
                notes.unsupported(&call.path, what);
                return Ok(());
            }
        };
        if self.subsystems.iter().any(|other| other.nqn == nqn) {
            notes.unsupported(&call.path, format!("\"{nqn}\" is there already"));
            return Ok(());
        }
        if params.flag("allow_any_host")? {
            new.allow_any();
        }
        for (key, most) in [("serial_number", 20), ("model_number", 40)] {
            let Some(text) = params.text(key)? else { continue };
            let label = Subsystem::label(text, most);
            if label.is_none() {
                let what =
                    format!("\"{}\" is not 1 to {most} printable characters", text.escape_debug());
                notes.unsupported(&format!("{}.{key}", params.path()), what);
            }
            // SPDK writes all zeroes for an absent one.
            let label = label.filter(|label| label.chars().any(|c| c != '0'));
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
        if params.flag("ana_reporting")? {
            notes.unsupported(params.path(), "asymmetric access is not reported to hosts");
        }
        if params.flag("passthrough")? {
            notes.unsupported(params.path(), "commands are not passed through to a drive");
        }
        params.skip(&[
            "max_namespaces",
            "tgt_name",
            "max_discard_size_kib",
            "max_write_zeroes_size_kib",
        ]);
        params.finish(notes);
        self.subsystems.push(new);
        Ok(())
    }

    fn namespace(
        &mut self,
        builder: &mut ConfigBuilder,
        bdevs: &mut Bdevs<'_>,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let node = params.need("namespace")?;
        let Some(subsystem) = self.find(&mut params, notes)? else { return Ok(()) };
        let mut raw = node.object()?;
        let bdev = raw.need("bdev_name")?;
        let nsid = match raw.get("nsid") {
            Some(node) => node.number(0..=u64::from(u32::MAX) - 1)?,
            None => 0,
        };
        let mut namespace = Namespace { nsid, ..Namespace::default() };
        namespace.uuid = raw.text("uuid")?.map(str::to_owned);
        namespace.nguid = raw.text("nguid")?.map(str::to_owned);
        namespace.eui64 = raw.text("eui64")?.map(str::to_owned);
        raw.skip(&["anagrpid"]);
        if raw.flag("no_auto_visible")? {
            let what = "hosts of a subsystem see all its namespaces here: it would be open to more \
                        of them; give it a subsystem of its own";
            notes.unsupported(node.path(), what);
            return Ok(());
        }
        raw.without_counterpart("ptpl_file", "reservations are not kept over restarts", notes);
        raw.finish(notes);
        params.finish(notes);
        let Some(device) = bdevs.find(builder, bdev.path(), bdev.text()?, notes) else {
            return Ok(());
        };
        namespace.device = device;
        namespace.limit = bdevs.limit_of(bdev.text()?, bdev.path(), notes);
        builder.add_namespace(subsystem, node.path(), namespace, notes);
        Ok(())
    }

    fn listener(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let node = params.need("listen_address")?;
        let secure = params.flag("secure_channel")?;
        params.skip(&["ana_state", "sock_impl"]);
        let Some(subsystem) = self.find(&mut params, notes)? else { return Ok(()) };
        let nqn = subsystem.nqn.clone();
        params.finish(notes);
        let mut raw = node.object()?;
        let address = listen_address::read(&mut raw, PORT, notes)?;
        raw.finish(notes);
        if secure {
            let what = "TLS only, which is not supported: hosts would connect without encryption";
            notes.unsupported(&call.path, what);
            return Ok(());
        }
        let Some((fabric, address, port)) = address else { return Ok(()) };
        let new = Listener { fabric, address, port };
        if !self.places.contains(&new) {
            self.places.push(new.clone());
        }
        builder.add_listener(node.path(), new, notes);
        *self.listeners.entry(nqn).or_default() += 1;
        Ok(())
    }

    fn host(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let host = params.need("host")?.text()?;
        let mut locked = false;
        for key in ["psk", "dhchap_key", "dhchap_ctrlr_key"] {
            locked |= params.text(key)?.is_some();
        }
        let Some(subsystem) = self.find(&mut params, notes)? else { return Ok(()) };
        if locked {
            let what = format!(
                "{host} has to authenticate (a key), which is not supported here: add it to \
                 `hosts` if its network is trusted"
            );
            notes.unsupported(&call.path, what);
        } else if let Err(what) = subsystem.allow(host) {
            notes.unsupported(&call.path, what);
        }
        params.finish(notes);
        Ok(())
    }

    fn any_host(&mut self, call: &RpcCall<'_>, notes: &mut Notes) -> Result<(), ImportError> {
        let mut params = call.params()?;
        let any = params.get("allow_any_host").map_or(Ok(true), |node| node.flag())?;
        let Some(subsystem) = self.find(&mut params, notes)? else { return Ok(()) };
        if any {
            subsystem.allow_any();
        }
        params.finish(notes);
        Ok(())
    }
}

fn set_config(
    builder: &mut ConfigBuilder,
    call: &RpcCall<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut params = call.params()?;
    if let Some(node) = params.get("poll_groups_mask") {
        let text = node.text()?;
        let digits = text.trim_start_matches("0x").trim_start_matches("0X");
        match u128::from_str_radix(digits, 16) {
            Ok(0) => {}
            Ok(mask) => {
                let cpus = (0..128).filter(|cpu| mask >> cpu & 1 == 1);
                builder.reactors =
                    Some(cpus.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(","));
            }
            Err(_) => {
                notes.unsupported(
                    node.path(),
                    format!("{} is no mask of CPUs: set `reactors`", node.shown()),
                );
            }
        }
    }
    if let Some(node) = params.get("admin_cmd_passthru") {
        let mut passed = node.object()?;
        if passed.flag("identify_ctrlr")? {
            notes.unsupported(node.path(), "a drive's own Identify data is not passed through");
        }
        passed.finish(notes);
    }
    params.skip(&[
        "discovery_filter",
        "acceptor_poll_rate",
        "conn_sched",
        "dhchap_digests",
        "dhchap_dhgroups",
    ]);
    params.finish(notes);
    Ok(())
}

/// Reads the limits of a transport. Here all listeners have the same limits, so the largest value
/// applies.
fn transport(
    builder: &mut ConfigBuilder,
    call: &RpcCall<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut params = call.params()?;
    let kind = params.need("trtype")?.text()?;
    if !["tcp", "rdma"].contains(&kind.to_ascii_lowercase().as_str()) {
        notes.unsupported(
            &call.path,
            format!("transport \"{kind}\": there are only TCP and RDMA here"),
        );
        return Ok(());
    }
    type Fit = fn(u64) -> u64;
    let bounds: [(&str, Fit, &mut Option<u64>); 4] = [
        ("max_queue_depth", |n| n.clamp(32, 4096), &mut builder.limits.queue_depth),
        // SPDK's number includes the admin queue.
        ("max_io_qpairs_per_ctrlr", |n| n.clamp(1, 1024), &mut builder.limits.io_queues),
        ("in_capsule_data_size", |n| n.min(64 << 10) / 512 * 512, &mut builder.limits.in_capsule),
        ("max_io_size", |n| 1 << n.clamp(8192, 2 << 20).ilog2(), &mut builder.limits.max_transfer),
    ];
    for (key, fit, limit) in bounds {
        let Some(node) = params.get(key) else { continue };
        let wanted = node.number(0..=u32::MAX.into())?;
        let fits = fit(wanted);
        if fits != wanted {
            notes.converted(node.path(), format!("{wanted} becomes {fits}"));
        }
        *limit = Some(limit.map_or(fits, |other| other.max(fits)));
    }
    let inner = format!("{}: the rest says how SPDK works inside", call.method);
    notes.not_applicable(&call.path, inner);
    if params.flag("dif_insert_or_strip")? {
        notes.unsupported(params.path(), "blocks have no metadata here");
    }
    Ok(())
}

fn referral(
    builder: &mut ConfigBuilder,
    call: &RpcCall<'_>,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let mut params = call.params()?;
    let node = params.need("address")?;
    let mut raw = node.object()?;
    let secure = params.flag("secure_channel")?;
    if let Some((fabric, address, port)) = listen_address::read(&mut raw, DISCOVERY_PORT, notes)? {
        if address.is_unspecified() || port == 0 || secure {
            let what = if secure { "TLS is not spoken here" } else { "hosts cannot connect to it" };
            notes.unsupported(node.path(), what);
        } else {
            builder.add_referral(Referral { fabric, address, port });
        }
    }
    params.without_counterpart("subnqn", "discovery uses the well-known name", notes);
    raw.skip(&["subnqn"]);
    raw.finish(notes);
    params.finish(notes);
    Ok(())
}
