//! The running daemon: everything that lives from start to stop, and its reloads.

mod listeners;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nvmeof_core::block::DeviceInfo;
use nvmeof_core::dma::ChunkPool;
use nvmeof_nvmf::{ControllerInfo, PortId, Target};
use nvmeof_pacing::{PacerParts, PolicyConfig, PolicyStatus, SharedPolicy, Waker};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

use super::accept::{Rdma, Reactors, Unconnected, url};
use super::announce::Announcements;
use super::apply::target_spec;
use super::devices::{
    ChangedDrive, Devices, OpenFunction, PreopenTask, PreopenedDevices, changed, close,
};
use super::identity::{DeviceFacts, Identities, identities, set_uuids};
use super::place::{node_of, rebalance};
use super::quiesce::{OpenRemovals, Quiescing, Removal};
use super::stats::metrics::{Availability, Scrape};
use super::stats::{self, Labels, Recorder, Sample, table};
use super::trace_session::TraceSlot;
use crate::clock;
use crate::config::{Api, Config, Listener, LogFormat, LogLevel, Rpc};
use crate::limits::{Limits, raise_open_files};
use crate::logs;
use crate::reactor::connections::ConnectionInfo;
use crate::reactor::mailbox::{Counts, Disconnected, Message, Sender, mailbox};
use crate::reactor::stats::ReportRequest;
use crate::reactor::{Handle, ReactorConfig, ReactorLoad, spawn};
use crate::tenants::{Tenants, host_rules};
pub(super) use listeners::BindPolicy;
pub(crate) use listeners::RetryState;
use listeners::Serving;

/// Minimum time that drives get to shut down when the daemon stops.
pub(super) const SHUTDOWN: Duration = Duration::from_secs(5);

/// Minimum time to flush written data to the medium of files when the daemon stops.
const FLUSH: Duration = Duration::from_secs(60);

/// The running daemon.
#[derive(Debug)]
pub(crate) struct Server {
    config: Config,
    /// Keys that are read only at start, regardless of later configs.
    fixed: StartupConfig,
    limits: Limits,
    pacing: Pacing,
    tenants: Tenants,
    target: Arc<Target>,
    pool: Arc<ChunkPool>,
    reactors: Arc<Reactors>,
    threads: Vec<Handle>,
    devices: Devices,
    removals: OpenRemovals,
    listeners: BTreeMap<PortId, Serving>,
    /// Notified when a listener has ended.
    listener_ended: Arc<Notify>,
    rdma: Arc<Rdma>,
    next_port: u16,
    announcements: Announcements,
    /// Time at which a failed announcement is repeated.
    announce_again: Option<Instant>,
    /// Names of devices and listeners in statistics.
    labels: Labels,
    recorder: Option<Recorder>,
    /// The trace session, if a caller traces commands.
    pub(super) tracing: TraceSlot,
    /// The sample that the last SIGUSR1 logged.
    shown: Option<Sample>,
}

/// Values, at start, of keys that are read only then.
#[derive(Debug)]
struct StartupConfig {
    reactors: Vec<usize>,
    busy_poll: bool,
    log: LogLevel,
    log_format: LogFormat,
    api: Option<Api>,
    rpc: Option<Rpc>,
}

/// Result of a reload.
#[derive(Debug)]
pub(super) struct Reloaded {
    /// Summary of the changes.
    pub(super) summary: String,
    /// Commands that have to end before the reload is reported.
    pub(super) removal: Removal,
}

/// The policy in force.
#[derive(Debug)]
struct Pacing {
    policy: PolicyConfig,
    shared: SharedPolicy,
}

impl Server {
    /// Starts everything, with drives that `take` opens. Hosts can connect when this returns.
    pub(super) async fn start(config: Config, take: OpenFunction) -> anyhow::Result<Self> {
        let limits = &Limits::of(&config);
        tracing::info!("{limits}");
        if let Err(error) = raise_open_files(limits) {
            tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)");
        }
        let pool = ChunkPool::new(limits.pool()).context("cannot set up the buffer pool")?;
        let target = Target::new(limits.nvmf());
        let pacing = Pacing::new(&config.pacing, limits)?;
        let (threads, reactors) = start_reactors(&config, limits, &pacing.shared, &pool, &target)?;
        let wake_all = wake_all(&reactors.senders);
        target.set_notifier(Box::new(wake_all.clone()));
        pool.set_waker(Box::new(wake_all));
        let mut server = Self {
            config: Config {
                listeners: Vec::new(),
                port_taken: Vec::new(),
                devices: Vec::new(),
                subsystems: Vec::new(),
                ..config.clone()
            },
            fixed: StartupConfig {
                reactors: config.reactors.clone(),
                busy_poll: config.busy_poll,
                log: config.log,
                log_format: config.log_format,
                api: config.api.clone(),
                rpc: config.rpc.clone(),
            },
            limits: *limits,
            removals: OpenRemovals::default(),
            pacing,
            tenants: Tenants::new(limits.pacing().machine),
            target,
            rdma: Rdma::new(&pool),
            devices: Devices::new(&pool, take),
            pool,
            reactors: Arc::new(reactors),
            threads,
            listeners: BTreeMap::new(),
            listener_ended: Arc::default(),
            next_port: 1,
            announcements: Announcements::default(),
            announce_again: None,
            labels: Labels::default(),
            recorder: None,
            tracing: TraceSlot::default(),
            shown: None,
        };
        let preopened = server.begin(&config, None).done().await;
        let reloaded = server.reload(config, preopened, BindPolicy::Optional).await;
        if let Err(error) = reloaded {
            server.stop(Duration::ZERO).await;
            return Err(error);
        }
        let has_listeners = !server.config.listeners.is_empty();
        if has_listeners && !server.listeners.values().any(Serving::listens) {
            server.stop(Duration::ZERO).await;
            anyhow::bail!("no listener of the config works here; see the warnings above");
        }
        Ok(server)
    }

    /// Begins the slow steps of a reload, for [`reload`](Self::reload).
    ///
    /// The daemon keeps serving while they run. `instead_of` was abandoned in favor of this reload.
    pub(super) fn begin(
        &mut self,
        config: &Config,
        instead_of: Option<PreopenTask>,
    ) -> PreopenTask {
        self.devices.begin(&config.devices, &self.reactors.senders, instead_of)
    }

    /// Waits until devices that were opened for a rejected change are closed.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.devices.settled()
    }

    /// Applies `config`, all of it or nothing, and returns a summary of the changes.
    ///
    /// Commands of removed items may still be at devices when this returns.
    pub(super) async fn reload(
        &mut self,
        config: Config,
        mut preopened: PreopenedDevices,
        listeners: BindPolicy,
    ) -> anyhow::Result<Reloaded> {
        let reloaded = self.reload_on(config, &mut preopened, listeners).await;
        self.devices.leave(preopened);
        reloaded
    }

    async fn reload_on(
        &mut self,
        config: Config,
        preopened: &mut PreopenedDevices,
        listeners: BindPolicy,
    ) -> anyhow::Result<Reloaded> {
        self.tenants.check(&config)?;
        let pacing = self.other_pacing(&config)?;
        let bound = self.bind_new(&config, listeners).await?;
        // From here on every failure is rolled back.
        let senders = &self.reactors.senders;
        let opened = match self.devices.prepare(&config.devices, preopened, senders).await {
            Ok(opened) => opened,
            Err(error) => {
                self.unbind(bound);
                return Err(error);
            }
        };
        let before = self.pacing.policy.clone();
        let applied = match pacing {
            Some(pacing) => self.set_pacing(pacing).await,
            None => Ok(String::new()),
        };
        let applied = applied.and_then(|policy| {
            let spec = target_spec(&config, self.ports(&config, &bound), |name| {
                let new = opened.iter().find(|open| open.config.name == name);
                new.or_else(|| self.devices.get(name))
            })?;
            Ok((policy, self.target.apply(spec)?))
        });
        let (policy, changes) = match applied {
            Ok(applied) => applied,
            Err(error) => {
                self.back_to(&before).await;
                self.devices.abandon(opened, &self.reactors.senders);
                self.unbind(bound);
                return Err(error);
            }
        };
        let longest = self.devices.quiesce_bound();
        let mut quiescing = Quiescing::of(&changes, &self.reactors.senders, longest);
        let count_opened = opened.len();
        let gone = self.devices.commit(&config.devices, opened);
        let count_closed = gone.len();
        let senders = self.reactors.senders.clone();
        // A device closes when its last command has completed, which may take longer than the
        // reload.
        quiescing.add_device(tokio::spawn(async move {
            for open in gone {
                close(open, &senders).await;
            }
        }));
        self.send_shares(&config);
        let (started, ended) = self.settle_listeners(&config, bound);
        self.labels = self.labels_of(&config);
        for key in self.fixed_differences(&config) {
            tracing::warn!("{key} has changed in the config and takes effect at the next start");
        }
        self.config = config;
        self.announce();
        let summary = format!(
            "{count_opened} devices opened, {count_closed} closed, \
             {} subsystems added, {} removed, {} namespaces changed, {} controllers ended, \
             {started} listeners started, {ended} ended{policy}",
            changes.subsystems_added.len(),
            changes.subsystems_removed.len(),
            changes.namespaces_changed.len(),
            changes.controllers_ended,
        );
        Ok(Reloaded { summary, removal: quiescing.track(&self.removals) })
    }

    /// Asks drives whose namespaces may have changed which of them did.
    ///
    /// The thread returns the names of the devices. Without such drives the result is `None`.
    pub(super) fn look_at_drives(&self) -> Option<JoinHandle<Vec<String>>> {
        let changed_drives: Vec<ChangedDrive> = self.devices.changed_drives();
        (!changed_drives.is_empty()).then(|| spawn_blocking(move || changed(changed_drives)))
    }

    /// Makes the next reload reopen these devices.
    pub(super) fn mark_stale(&mut self, devices: &[String]) {
        self.devices.mark_stale(devices);
    }

    /// Returns the line that tells scripts the addresses hosts can connect to.
    pub(super) fn ready_line(&self) -> String {
        let mut line = String::from("ready");
        for url in self.urls() {
            line.push(' ');
            line.push_str(&url);
        }
        line
    }

    /// Returns the URLs that hosts can connect to.
    pub(super) fn urls(&self) -> Vec<String> {
        let all = self.listeners.values().filter(|one| one.listens());
        all.map(|one| url(one.wanted.fabric.name(), one.address())).collect()
    }

    /// Returns the identities of the running namespaces.
    pub(crate) fn identities(&self) -> Identities {
        identities(&self.config, &|name| self.devices.get(name).map(DeviceFacts::of))
    }

    /// Copies the identities of the namespaces into the config, as they now are in the document.
    pub(super) fn pin_identities(&mut self) {
        let identities = self.identities();
        set_uuids(&mut self.config, &identities);
    }

    /// Returns the names of missing devices.
    pub(super) fn missing_devices(&self) -> Vec<String> {
        let missing = |name: &&String| self.devices.get(name).is_some_and(|it| it.device.is_gone());
        let names = self.config.devices.iter().map(|device| &device.name);
        names.filter(missing).cloned().collect()
    }

    /// The desired state, which runs except for keys that are read only at start.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the name of the policy in force.
    pub(crate) fn policy(&self) -> &'static str {
        self.pacing.policy.name()
    }

    /// Returns the number of reactors.
    pub(super) fn reactors(&self) -> usize {
        self.reactors.senders.len()
    }

    /// Returns every controller, including discovery controllers.
    pub(crate) fn controllers(&self) -> Vec<ControllerInfo> {
        self.target.controllers()
    }

    /// Returns the number of removals, of controllers or namespaces, whose commands have not ended.
    pub(crate) fn quiescing(&self) -> usize {
        self.target.quiescing() + self.removals.of_namespaces()
    }

    /// Removals whose commands have not ended.
    pub(crate) fn removals(&self) -> &OpenRemovals {
        &self.removals
    }

    /// Iterates over the listeners: port ID, config, address with the actual port, and retry state.
    ///
    /// The retry state is `None` if the listener listens.
    pub(crate) fn listeners(
        &self,
    ) -> impl Iterator<Item = (PortId, &Listener, SocketAddr, Option<&RetryState>)> {
        let all = self.listeners.iter();
        all.map(|(port, one)| (*port, &one.wanted, one.address(), one.state.waiting()))
    }

    /// Returns the properties of an open device, and whether the device is missing.
    pub(crate) fn device(&self, name: &str) -> Option<(DeviceInfo, bool)> {
        let open = self.devices.get(name)?;
        Some((open.device.info().clone(), open.device.is_gone()))
    }

    /// Returns the state of the policy in force and the counters of all reactors' pacers.
    pub(crate) async fn pacing(&self) -> (PolicyStatus, nvmeof_pacing::PacerCounters) {
        let sample = self.sample(false).await;
        (sample.pacing, sample.paced())
    }

    /// Returns every connection with the number of its reactor.
    pub(crate) async fn list_connections(&self) -> Vec<(usize, ConnectionInfo)> {
        let mut answers = Vec::new();
        for sender in &self.reactors.senders {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::ListConnections(reply));
            answers.push(answer);
        }
        let mut all = Vec::new();
        for (reactor, answer) in answers.into_iter().enumerate() {
            // A reactor that has ended has no connections.
            all.extend(answer.await.unwrap_or_default().into_iter().map(|one| (reactor, one)));
        }
        all
    }

    /// Disconnects the connection with this ID, if it exists.
    ///
    /// Its commands have ended when the returned removal has.
    pub(crate) async fn disconnect(&self, id: u64) -> Option<Removal> {
        // A connection that is moving to another reactor belongs to neither. The second pass finds
        // it.
        for _ in 0..2 {
            for sender in &self.reactors.senders {
                let (reply, answer) = oneshot::channel();
                sender.send(Message::Disconnect { id, reply });
                let disconnected: Option<Disconnected> = answer.await.unwrap_or_default();
                if let Some(quiesce) = disconnected {
                    let bound = self.devices.quiesce_bound();
                    let quiescing = Quiescing::of_connection(quiesce, bound);
                    return Some(quiescing.track(&self.removals));
                }
            }
        }
        None
    }

    /// What to call devices and listeners in statistics.
    pub(super) fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns the mailboxes of all reactors.
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.reactors.senders.clone()
    }

    /// Returns true if there are several reactors to spread queues over.
    pub(super) fn spans_reactors(&self) -> bool {
        self.reactors.senders.len() > 1
    }

    pub(super) fn policy_status(&self) -> PolicyStatus {
        self.pacing.shared.status()
    }

    /// Moves one I/O queue from the busiest reactor to the least busy one, if that evens them out.
    pub(super) fn rebalance(&self) {
        if let Some((from, to)) = rebalance(&self.reactors.loads) {
            self.reactors.senders[from].send(Message::MoveOne { to });
        }
    }

    /// Logs the daemon's resources on one line, and a table of its statistics.
    pub(super) async fn log_counts(&mut self) {
        let counts = self.counts().await;
        let target = self.target.counts();
        let mut text = format!(
            "counts connections={} io_queues={} controllers={} requests={} waiting={} buffers={} \
             permits={} leaked_permits={} buffer_memory={}\n",
            counts.connections,
            counts.io_queues,
            target.controllers,
            counts.requests,
            counts.waiting,
            counts.buffers,
            counts.permits,
            nvmeof_pacing::leaked_permits(),
            self.pool.stats().mapped,
        );
        let sample = self.sample(false).await;
        text.push_str(&table(&sample, self.shown.as_ref(), &self.labels));
        logs::write(&text);
        self.shown = Some(sample);
    }

    /// Sends statistics to a recorder from now on.
    pub(super) async fn record_to(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
        self.record().await;
    }

    /// Returns true if a recorder is active.
    pub(super) fn records(&self) -> bool {
        self.recorder.is_some()
    }

    /// Records a sample.
    pub(super) async fn record(&mut self) {
        if self.recorder.is_none() {
            return;
        }
        let sample = self.sample(true).await;
        if let Some(recorder) = &mut self.recorder {
            recorder.record(sample, &self.labels);
        }
        self.recorder = self.recorder.take().filter(Recorder::is_live);
    }

    /// Sends the same message to every reactor.
    pub(super) fn tell(&self, message: impl Fn() -> Message) {
        self.reactors.senders.iter().for_each(|sender| sender.send(message()));
    }

    /// Collects the metrics for Prometheus.
    pub(super) async fn scrape(&self) -> Scrape {
        let mapped = self.pool.stats().mapped;
        Scrape {
            sample: self.sample(false).await,
            labels: self.labels.clone(),
            availability: self.availability(),
            buffer_memory: u64::try_from(mapped).unwrap_or(u64::MAX),
        }
    }

    /// Availability of listeners and devices.
    fn availability(&self) -> Availability {
        let listener =
            |one: &Serving| (url(one.wanted.fabric.name(), one.address()), one.listens());
        let missing = self.missing_devices();
        let names = self.config.devices.iter().map(|device| device.name.clone());
        let devices = names.map(|name| (name.clone(), !missing.contains(&name)));
        Availability {
            listeners: self.listeners.values().map(listener).collect(),
            devices: devices.collect(),
        }
    }

    /// Collects a sample; all reactors are asked concurrently.
    pub(super) async fn sample(&self, recorder: bool) -> Sample {
        let mut answers = Vec::new();
        for sender in &self.reactors.senders {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Report(ReportRequest { reply, recorder }));
            answers.push(answer);
        }
        let mut reactors = Vec::new();
        for answer in answers {
            // A reactor that has ended has nothing to report.
            reactors.push(answer.await.unwrap_or_default());
        }
        let pacing = self.pacing.shared.status();
        let tenants = stats::tenants(&self.target, &self.tenants);
        Sample { policy: self.pacing.policy.name(), pacing, reactors, tenants }
    }

    /// Returns the names of the devices and listeners of `config`.
    fn labels_of(&self, config: &Config) -> Labels {
        let mut labels = Labels::default();
        for (port, serving) in &self.listeners {
            labels.add_port(*port, url(serving.wanted.fabric.name(), serving.address()));
        }
        for device in &config.devices {
            let before = config.subsystems.iter().find_map(|subsystem| {
                let found = subsystem.namespaces.iter().find(|one| one.device == device.name)?;
                Some((subsystem.nqn.as_str(), found.nsid))
            });
            if let Some(open) = self.devices.get(&device.name) {
                labels.add_device(open.id, &device.name, before);
            }
        }
        labels
    }

    /// Returns the resources that all reactors hold.
    pub(super) async fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for sender in &self.reactors.senders {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Counts(reply));
            if let Ok(counts) = answer.await {
                sum += counts;
            }
        }
        sum
    }

    /// Stops accepting, drains commands in flight for at most `timeout`, and closes everything.
    pub(super) async fn stop(mut self, timeout: Duration) {
        self.listeners.clear();
        self.announcements.end().await;
        let mut drained = Vec::new();
        for sender in &self.reactors.senders {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Drain(reply));
            drained.push(answer);
        }
        let all = async {
            for answer in drained {
                // A reactor that has ended has nothing in flight.
                let _ = answer.await;
            }
        };
        if tokio::time::timeout(timeout, all).await.is_err() && !timeout.is_zero() {
            let left = self.counts().await;
            tracing::warn!(
                requests = left.requests,
                connections = left.connections,
                "drain-timeout expired; commands still in flight get no response"
            );
        }
        if let Some(recorder) = self.recorder.take() {
            let sample = self.sample(true).await;
            recorder.finish(sample, &self.labels);
        }
        for sender in &self.reactors.senders {
            sender.send(Message::Stop);
        }
        let limit = timeout.max(SHUTDOWN);
        let (threads, devices) = (self.threads, self.devices);
        let joined = ended(spawn_blocking(move || join(threads)), limit).await;
        if !joined {
            tracing::warn!(
                "a device does not respond; the kernel cancels its commands and frees their memory"
            );
        }
        let flushed = spawn_blocking(move || {
            devices.flush_all();
            devices
        });
        let to_flush = if joined { limit.max(FLUSH) } else { limit };
        match tokio::time::timeout(to_flush, flushed).await {
            Ok(Ok(devices)) => {
                if !ended(spawn_blocking(move || drop(devices)), limit).await {
                    tracing::warn!("a drive does not shut down in time; the kernel closes it");
                }
            }
            _ => tracing::error!("a file is not flushed in time; the kernel closes it"),
        }
        tracing::info!("stopped");
    }

    /// Returns the policy of `config` if it differs from the policy in force and can replace it.
    fn other_pacing(&self, config: &Config) -> anyhow::Result<Option<Pacing>> {
        if self.pacing.policy == config.pacing || !self.may_change_pacing(config) {
            return Ok(None);
        }
        Pacing::new(&config.pacing, &self.limits).map(Some)
    }

    /// Returns true if the limits of `config` are those that run.
    ///
    /// The valid values of a policy depend on the limits. With other limits the policy was checked
    /// against the wrong ones.
    fn may_change_pacing(&self, config: &Config) -> bool {
        Limits::of(config).pacing() == self.limits.pacing()
    }

    /// Switches every reactor to another policy while it serves, and returns a description.
    ///
    /// After a failure the caller calls [`back_to`](Self::back_to).
    async fn set_pacing(&mut self, pacing: Pacing) -> anyhow::Result<String> {
        let (from, to) = (self.pacing.policy.name(), pacing.policy.name());
        let sent = self.send_pacing(&pacing.shared).await;
        self.pacing = pacing;
        // The limits were derived together, so no command can be too large.
        sent.with_context(|| format!("policy \"{to}\" cannot be put in force"))?;
        Ok(if from == to {
            format!(", policy \"{to}\" has other parameters")
        } else {
            format!(", policy \"{from}\" replaced by \"{to}\"")
        })
    }

    /// Restores the previous policy, if another one is in force.
    async fn back_to(&mut self, before: &PolicyConfig) {
        if self.pacing.policy == *before {
            return;
        }
        let name = before.name();
        match Pacing::new(before, &self.limits) {
            Ok(again) => {
                if let Err(error) = self.send_pacing(&again.shared).await {
                    tracing::error!("not every reactor went back to \"{name}\": {error:#}");
                }
                self.pacing = again;
            }
            Err(error) => tracing::error!("\"{name}\" cannot be set up again: {error:#}"),
        }
    }

    async fn send_pacing(&self, shared: &SharedPolicy) -> anyhow::Result<()> {
        let mut answers = Vec::new();
        for (parts, sender) in parts(shared, &self.reactors.senders).zip(&self.reactors.senders) {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Pacing { parts: Box::new(parts), reply });
            answers.push(answer);
        }
        let mut outcome = Ok(());
        for (index, answer) in answers.into_iter().enumerate() {
            match answer.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => outcome = Err(anyhow::anyhow!("reactor {index}: {error}")),
                Err(_) => outcome = Err(anyhow::anyhow!("reactor {index} has ended")),
            }
        }
        outcome
    }

    /// Sends every reactor the weights and limits of hosts and devices.
    fn send_shares(&mut self, config: &Config) {
        self.target.limit_hosts(host_rules(config));
        let device = |name: &str| self.devices.get(name).map(|open| open.id);
        let shares = self.tenants.change(config, device);
        for sender in &self.reactors.senders {
            sender.send(Message::QosTable(shares.clone()));
        }
    }

    /// Returns the keys read only at start whose values in `config` differ from the running ones.
    pub(super) fn fixed_differences(&self, config: &Config) -> Vec<String> {
        let now = &self.fixed;
        let mut differ = Vec::new();
        let mut note = |key: &str, same: bool| {
            if !same {
                differ.push(key.to_owned());
            }
        };
        note("reactors", now.reactors == config.reactors);
        note("busy-poll", now.busy_poll == config.busy_poll);
        note("[limits]", self.limits.settings == config.limits);
        note("[pacing]", self.may_change_pacing(config) || self.pacing.policy == config.pacing);
        note("log", now.log == config.log);
        note("log-format", now.log_format == config.log_format);
        note("[api]", now.api == config.api);
        note("[rpc]", now.rpc == config.rpc);
        differ
    }
}

impl Pacing {
    fn new(policy: &PolicyConfig, limits: &Limits) -> anyhow::Result<Self> {
        let shared = SharedPolicy::new(policy, limits.pacing().machine)
            .with_context(|| format!("[pacing]: policy \"{}\"", policy.name()))?;
        Ok(Self { policy: policy.clone(), shared })
    }
}

/// Waits for the reactors' threads. A thread ends when its devices have completed all operations.
fn join(threads: Vec<Handle>) {
    for handle in threads {
        if handle.thread.join().is_err() {
            tracing::error!("a reactor ended in a panic");
        }
    }
}

/// Returns true if a thread ends in time.
async fn ended(thread: JoinHandle<()>, limit: Duration) -> bool {
    tokio::time::timeout(limit, thread).await.is_ok()
}

/// Starts a reactor on each CPU of the config.
fn start_reactors(
    config: &Config,
    limits: &Limits,
    pacing: &SharedPolicy,
    pool: &Arc<ChunkPool>,
    target: &Arc<Target>,
) -> anyhow::Result<(Vec<Handle>, Reactors)> {
    let count = config.reactors.len();
    let loads: Arc<[ReactorLoad]> =
        std::iter::repeat_with(ReactorLoad::default).take(count).collect();
    let (senders, mailboxes): (Vec<_>, Vec<_>) =
        (0..count).map(|_| mailbox()).collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip();
    let mut threads = Vec::with_capacity(count);
    let parts = parts(pacing, &senders);
    for (index, (mailbox, pacing)) in mailboxes.into_iter().zip(parts).enumerate() {
        threads.push(spawn(ReactorConfig {
            index,
            cpu: config.reactors.get(index).copied(),
            busy_poll: config.busy_poll,
            pool: Arc::clone(pool),
            pacing,
            target: Arc::clone(target),
            peers: senders.clone(),
            mailbox,
            admin_buffers: limits.admin_buffers,
            max_transfer: limits.settings.max_transfer as usize,
            loads: Arc::clone(&loads),
            flow_depth: limits.flow_depth(),
            requests: limits.requests_per_reactor,
            clock: clock::now,
        })?);
    }
    let reactors = Reactors {
        senders,
        loads,
        nodes: config.reactors.iter().map(|&cpu| node_of(cpu)).collect(),
        max_connections: limits.settings.connections as usize + limits.unconnected as usize,
        unconnected: Unconnected::new(limits.unconnected as usize),
    };
    Ok((threads, reactors))
}

/// Returns every reactor's part of a policy.
///
/// All parts are created before the first one is used: a part created later would find less left to
/// share.
fn parts(shared: &SharedPolicy, senders: &[Sender]) -> impl Iterator<Item = PacerParts> + use<> {
    let parts: Vec<_> = senders
        .iter()
        .enumerate()
        .map(|(index, sender)| shared.parts(index, wake_one(sender)))
        .collect();
    parts.into_iter()
}

fn wake_one(sender: &Sender) -> Waker {
    let sender = sender.clone();
    Arc::new(move || sender.wake())
}

fn wake_all(senders: &[Sender]) -> impl Fn() + Send + Sync + Clone + 'static {
    let senders: Arc<[Sender]> = senders.into();
    move || senders.iter().for_each(Sender::wake)
}
