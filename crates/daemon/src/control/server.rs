//! The running daemon: everything that lives from start to stop, and how it changes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nvmeof_core::block::DeviceInfo;
use nvmeof_core::dma::SharedPool;
use nvmeof_nvmf::{ControllerInfo, PortId, Target};
use nvmeof_pacing::{Parts, PolicyConfig, Shared, Snapshot, Waker};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use super::accept::{self, BindError, Listening, Rdma, Reactors, Service, url};
use super::apply::target_spec;
use super::devices::{Devices, Groundwork, Suspect, changed, close};
use super::place::{node_of, rebalance};
use super::stats::metrics::Scrape;
use super::stats::{self, Labels, Recorder, Sample, table};
use super::watch::Tracing;
use crate::clock;
use crate::config::{Api, Config, Fabric, Listener, LogFormat, LogLevel, Problem, policy_name};
use crate::limits::{Limits, raise_open_files};
use crate::reactor::mailbox::{Counts, Message, Sender, mailbox};
use crate::reactor::roll::Listed;
use crate::reactor::stats::Ask;
use crate::reactor::{Handle, Load, Plan, spawn};
use crate::tenants::{Tenants, host_rules};

/// How long drives may take to shut down at least, when the daemon stops.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// A port that somebody else listens on. The config can only be changed, so it ends the daemon with
/// the status of a bad config.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PortTaken(Problem);

/// The running daemon.
#[derive(Debug)]
pub(crate) struct Server {
    config: Config,
    /// Read at start only, whatever the config says by now.
    fixed: Fixed,
    limits: Limits,
    pacing: Pacing,
    tenants: Tenants,
    target: Arc<Target>,
    pool: Arc<SharedPool>,
    reactors: Arc<Reactors>,
    threads: Vec<Handle>,
    devices: Devices,
    listeners: BTreeMap<PortId, Serving>,
    rdma: Arc<Rdma>,
    next_port: u16,
    /// What to call devices and listeners in statistics.
    labels: Labels,
    recorder: Option<Recorder>,
    /// Who has commands followed.
    pub(super) tracing: Tracing,
    /// What SIGUSR1 last showed.
    shown: Option<Sample>,
}

/// What is read at start only, as it was then.
#[derive(Debug)]
struct Fixed {
    reactors: Vec<usize>,
    busy_poll: bool,
    log: LogLevel,
    log_format: LogFormat,
    api: Option<Api>,
}

/// What is to be done with a new listener that cannot work here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NewListener {
    /// It is left out, with a warning: another may work.
    MayBeLeftOut,
    /// Nothing changes.
    HasToWork,
}

/// The policy in force.
#[derive(Debug)]
struct Pacing {
    policy: PolicyConfig,
    shared: Shared,
}

/// A listener of the config, and its socket.
#[derive(Debug)]
struct Serving {
    wanted: Listener,
    listening: Listening,
}

/// A listener of the config that got its socket but does not accept yet.
struct Bound {
    port: PortId,
    wanted: Listener,
    socket: accept::Bound,
    address: SocketAddr,
}

impl Server {
    /// Starts everything. Hosts can connect when this returns.
    pub(super) async fn start(config: Config) -> anyhow::Result<Self> {
        let limits = &config.limits;
        tracing::info!("{limits}");
        if let Err(error) = raise_open_files(limits) {
            tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)");
        }
        let pool = SharedPool::new(limits.pool()).context("cannot set up the buffer pool")?;
        let target = Target::new(limits.nvmf());
        let pacing = Pacing::new(&config.pacing, limits)?;
        let (threads, reactors) = start_reactors(&config, &pacing.shared, &pool, &target)?;
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
            fixed: Fixed {
                reactors: config.reactors.clone(),
                busy_poll: config.busy_poll,
                log: config.log,
                log_format: config.log_format,
                api: config.api.clone(),
            },
            limits: config.limits,
            pacing,
            tenants: Tenants::new(limits.pacing().machine),
            target,
            rdma: Rdma::new(&pool),
            devices: Devices::new(&pool),
            pool,
            reactors: Arc::new(reactors),
            threads,
            listeners: BTreeMap::new(),
            next_port: 1,
            labels: Labels::default(),
            recorder: None,
            tracing: Tracing::default(),
            shown: None,
        };
        let reloaded = match server.begin(&config).await.await {
            Ok(groundwork) => server.reload(config, groundwork, NewListener::MayBeLeftOut).await,
            Err(error) => Err(anyhow::Error::new(error).context("opening drives")),
        };
        if let Err(error) = reloaded {
            server.stop(Duration::ZERO).await;
            return Err(error);
        }
        if server.listeners.is_empty() {
            server.stop(Duration::ZERO).await;
            anyhow::bail!("no listener of the config works here; see the warnings above");
        }
        Ok(server)
    }

    /// Begins what takes long of a reload, for [`reload`](Self::reload). Everything goes on meanwhile.
    pub(super) async fn begin(&mut self, config: &Config) -> JoinHandle<Groundwork> {
        self.devices.begin(&config.devices, &self.reactors.senders).await
    }

    /// Changes what runs to what `config` wants, or nothing at all. Says what changed.
    pub(super) async fn reload(
        &mut self,
        config: Config,
        groundwork: Groundwork,
        listeners: NewListener,
    ) -> anyhow::Result<String> {
        self.tenants.check(&config)?;
        let pacing = self.other_pacing(&config)?;
        let bound = self.bind_new(&config, listeners)?;
        let senders = &self.reactors.senders;
        let opened = self.devices.prepare(&config.devices, groundwork, senders).await?;
        // From here on whatever fails is undone.
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
                self.devices.abandon(opened, &self.reactors.senders).await;
                return Err(error);
            }
        };
        let count_opened = opened.len();
        let gone = self.devices.commit(&config.devices, opened);
        let count_closed = gone.len();
        let senders = self.reactors.senders.clone();
        // A device closes when its last command is done, which may take longer than the reload.
        tokio::spawn(async move {
            for open in gone {
                close(open, &senders).await;
            }
        });
        self.send_shares(&config);
        let (started, ended) = self.settle_listeners(&config, bound);
        self.labels = self.labels_of(&config);
        for key in self.fixed_differences(&config) {
            tracing::warn!("{key} has changed in the config; it takes effect at the next start");
        }
        self.config = config;
        Ok(format!(
            "{count_opened} devices opened, {count_closed} closed, \
             {} subsystems added, {} removed, {} namespaces changed, {} controllers ended, \
             {started} listeners started, {ended} ended{policy}",
            changes.subsystems_added.len(),
            changes.subsystems_removed.len(),
            changes.namespaces_changed.len(),
            changes.controllers_ended,
        ))
    }

    /// Begins to ask drives whose namespaces may have changed which of them have, if there are any; the answer is the
    /// names of devices.
    pub(super) fn look_at_drives(&self) -> Option<JoinHandle<Vec<String>>> {
        let suspects: Vec<Suspect> = self.devices.suspects();
        (!suspects.is_empty()).then(|| spawn_blocking(move || changed(suspects)))
    }

    /// Has these devices opened anew by the next reload.
    pub(super) fn outdate(&mut self, devices: &[String]) {
        self.devices.outdate(devices);
    }

    /// The line that tells scripts where hosts can connect.
    pub(super) fn ready_line(&self) -> String {
        let mut line = String::from("ready");
        for url in self.urls() {
            line.push(' ');
            line.push_str(&url);
        }
        line
    }

    /// Where hosts can connect.
    pub(super) fn urls(&self) -> Vec<String> {
        let url = |serving: &Serving| url(serving.wanted.fabric.name(), serving.listening.address);
        self.listeners.values().map(url).collect()
    }

    /// What is wanted, and runs but for what is read at start only.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Name of the policy in force.
    pub(crate) fn policy(&self) -> &'static str {
        policy_name(&self.pacing.policy)
    }

    /// How many reactors there are.
    pub(super) fn reactors(&self) -> usize {
        self.reactors.senders.len()
    }

    /// Every controller, those for discovery among them.
    pub(crate) fn controllers(&self) -> Vec<ControllerInfo> {
        self.target.controllers()
    }

    /// The listeners that work: number, what the config says, the address with the real port.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (PortId, &Listener, SocketAddr)> {
        let all = self.listeners.iter();
        all.map(|(port, serving)| (*port, &serving.wanted, serving.listening.address))
    }

    /// What an open device is, and whether it is gone.
    pub(crate) fn device(&self, name: &str) -> Option<(DeviceInfo, bool)> {
        let open = self.devices.get(name)?;
        Some((open.device.info().clone(), open.device.is_gone()))
    }

    /// Where the policy in force stands, and what went through it on all reactors.
    pub(crate) async fn pacing(&self) -> (Snapshot, nvmeof_pacing::Counts) {
        let sample = self.sample(false).await;
        (sample.pacing, sample.paced())
    }

    /// Every connection, with the number of its reactor.
    pub(crate) async fn roll(&self) -> Vec<(usize, Listed)> {
        let mut answers = Vec::new();
        for sender in &self.reactors.senders {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Roll(reply));
            answers.push(answer);
        }
        let mut all = Vec::new();
        for (reactor, answer) in answers.into_iter().enumerate() {
            // A reactor that has ended has none.
            all.extend(answer.await.unwrap_or_default().into_iter().map(|one| (reactor, one)));
        }
        all
    }

    /// Ends the connection of this name. Whether there is one.
    pub(crate) async fn dismiss(&self, id: u64) -> bool {
        // One that moves to another reactor meanwhile is in neither's hands: then it is asked for again.
        for _ in 0..2 {
            for sender in &self.reactors.senders {
                let (reply, answer) = oneshot::channel();
                sender.send(Message::Dismiss { id, reply });
                if answer.await.unwrap_or(false) {
                    return true;
                }
            }
        }
        false
    }

    /// What to call devices and listeners in statistics.
    pub(super) fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Every reactor's mailbox.
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.reactors.senders.clone()
    }

    /// Whether there is more than one reactor to spread queues over.
    pub(super) fn spans_reactors(&self) -> bool {
        self.reactors.senders.len() > 1
    }

    /// Moves one I/O queue from the busiest reactor to the idlest, if that evens them out.
    pub(super) fn rebalance(&self) {
        if let Some((from, to)) = rebalance(&self.reactors.loads) {
            self.reactors.senders[from].send(Message::MoveOne { to });
        }
    }

    /// Logs what the daemon holds, on one line, and a table of what it counted.
    pub(super) async fn log_counts(&mut self) {
        let counts = self.counts().await;
        let target = self.target.counts();
        // Nobody reads it if standard error is closed.
        let _ = writeln!(
            std::io::stderr(),
            "counts connections={} io_queues={} controllers={} requests={} waiting={} buffers={} \
             permits={} lost_permits={} buffer_memory={}",
            counts.connections,
            counts.io_queues,
            target.controllers,
            counts.requests,
            counts.waiting,
            counts.buffers,
            counts.permits,
            nvmeof_pacing::lost_permits(),
            self.pool.stats().mapped,
        );
        let sample = self.sample(false).await;
        let text = table(&sample, self.shown.as_ref(), &self.labels);
        let _ = std::io::stderr().write_all(text.as_bytes());
        self.shown = Some(sample);
    }

    /// Gives what is counted to a recorder from now on.
    pub(super) async fn record_to(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
        self.record().await;
    }

    /// Whether anybody records.
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

    /// Tells every reactor the same.
    pub(super) fn tell(&self, message: impl Fn() -> Message) {
        self.reactors.senders.iter().for_each(|sender| sender.send(message()));
    }

    /// What is counted, for Prometheus.
    pub(super) async fn scrape(&self) -> Scrape {
        let mapped = self.pool.stats().mapped;
        Scrape {
            sample: self.sample(false).await,
            labels: self.labels.clone(),
            buffer_memory: u64::try_from(mapped).unwrap_or(u64::MAX),
        }
    }

    /// What every reactor says, asked all at once.
    pub(super) async fn sample(&self, recorder: bool) -> Sample {
        let mut answers = Vec::new();
        for sender in &self.reactors.senders {
            let (reply, answer) = oneshot::channel();
            sender.send(Message::Report(Ask { reply, recorder }));
            answers.push(answer);
        }
        let mut reactors = Vec::new();
        for answer in answers {
            // A reactor that has ended has nothing more to say.
            reactors.push(answer.await.unwrap_or_default());
        }
        let pacing = self.pacing.shared.snapshot();
        let tenants = stats::tenants(&self.target, &self.tenants);
        Sample { policy: policy_name(&self.pacing.policy), pacing, reactors, tenants }
    }

    /// What the devices and listeners of `config` are called.
    fn labels_of(&self, config: &Config) -> Labels {
        let mut labels = Labels::default();
        for (port, serving) in &self.listeners {
            labels.add_port(*port, url(serving.wanted.fabric.name(), serving.listening.address));
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

    /// What all reactors hold.
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

    /// Stops accepting, lets commands in flight end for at most `timeout`, closes everything.
    pub(super) async fn stop(mut self, timeout: Duration) {
        self.listeners.clear();
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
                "drain-timeout is over; commands still in flight end unanswered"
            );
        }
        if let Some(recorder) = self.recorder.take() {
            let sample = self.sample(true).await;
            recorder.finish(sample, &self.labels);
        }
        for sender in &self.reactors.senders {
            sender.send(Message::Stop);
        }
        for handle in self.threads.drain(..) {
            if handle.thread.join().is_err() {
                tracing::error!("a reactor ended in a panic");
            }
        }
        self.devices.flush_all();
        let devices = self.devices;
        let ended = spawn_blocking(move || drop(devices));
        if tokio::time::timeout(timeout.max(SHUTDOWN), ended).await.is_err() {
            tracing::warn!("a drive does not shut down; it is left to the system");
        }
        tracing::info!("stopped");
    }

    /// The policy of `config`, if it is another than the one in force and can take its place.
    fn other_pacing(&self, config: &Config) -> anyhow::Result<Option<Pacing>> {
        if self.pacing.policy == config.pacing || !self.may_change_pacing(config) {
            return Ok(None);
        }
        Pacing::new(&config.pacing, &self.limits).map(Some)
    }

    /// What a policy may be set to depends on the limits: with others than those that run it was
    /// checked against the wrong ones.
    fn may_change_pacing(&self, config: &Config) -> bool {
        config.limits.pacing() == self.limits.pacing()
    }

    /// Puts another policy in force on every reactor, while they serve. Says what happened; after a
    /// failure the caller goes [back](Self::back_to).
    async fn set_pacing(&mut self, pacing: Pacing) -> anyhow::Result<String> {
        let (from, to) = (policy_name(&self.pacing.policy), policy_name(&pacing.policy));
        let sent = self.send_pacing(&pacing.shared).await;
        self.pacing = pacing;
        // With limits that were derived together no command can be too large.
        sent.with_context(|| format!("policy \"{to}\" cannot be put in force"))?;
        Ok(if from == to {
            format!(", policy \"{to}\" has other parameters")
        } else {
            format!(", policy \"{from}\" replaced by \"{to}\"")
        })
    }

    /// Puts the policy that was in force in force again, if another is by now.
    async fn back_to(&mut self, before: &PolicyConfig) {
        if self.pacing.policy == *before {
            return;
        }
        let name = policy_name(before);
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

    async fn send_pacing(&self, shared: &Shared) -> anyhow::Result<()> {
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

    /// Tells every reactor the weights and limits of hosts and devices.
    fn send_shares(&mut self, config: &Config) {
        self.target.limit_hosts(host_rules(config));
        let device = |name: &str| self.devices.get(name).map(|open| open.id);
        let shares = self.tenants.change(config, device);
        for sender in &self.reactors.senders {
            sender.send(Message::Shares(shares.clone()));
        }
    }

    /// Keys that are read at start only and differ in `config` from what runs.
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
        note("[limits]", self.limits.settings == config.limits.settings);
        note("[pacing]", self.may_change_pacing(config) || self.pacing.policy == config.pacing);
        note("log", now.log == config.log);
        note("log-format", now.log_format == config.log_format);
        note("[api]", now.api == config.api);
        differ
    }

    /// Sockets for the listeners of `config` that have none yet. A port that is taken is an error; so is
    /// a new listener that cannot work here, or a warning, as it is asked for.
    fn bind_new(&mut self, config: &Config, listeners: NewListener) -> anyhow::Result<Vec<Bound>> {
        let mut bound = Vec::new();
        let staying = self.staying(config);
        let all = config.listeners.iter().zip(&config.port_taken).zip(staying);
        for ((wanted, taken), _) in all.filter(|(_, stays)| stays.is_none()) {
            match accept::bind(wanted, &self.rdma) {
                Ok(socket) => {
                    let address = socket.address();
                    let port = PortId(self.next_port);
                    self.next_port = self.next_port.wrapping_add(1).max(1);
                    let wanted = wanted.clone();
                    bound.push(Bound { port, wanted, socket, address });
                }
                Err(BindError::Taken(_)) => return Err(PortTaken(taken.clone()).into()),
                Err(error)
                    if listeners == NewListener::HasToWork
                        && !self.config.listeners.contains(wanted) =>
                {
                    anyhow::bail!("the listener cannot work here: {error}");
                }
                Err(error) => tracing::warn!("the listener is left out: {error}"),
            }
        }
        Ok(bound)
    }

    /// For each listener of `config`, in order, the port that serves it already; of two that are alike
    /// (both at port 0) each has its own.
    fn staying(&self, config: &Config) -> Vec<Option<PortId>> {
        let mut serving: Vec<_> =
            self.listeners.iter().map(|(port, serving)| (*port, &serving.wanted)).collect();
        let one = |wanted: &Listener| {
            let at = serving.iter().position(|(_, other)| *other == wanted)?;
            Some(serving.remove(at).0)
        };
        config.listeners.iter().map(one).collect()
    }

    /// The ports there will be: those that stay and those that are new.
    fn ports<'a>(
        &'a self,
        config: &'a Config,
        bound: &'a [Bound],
    ) -> impl Iterator<Item = (PortId, Fabric, SocketAddr)> + 'a {
        let stay = self
            .staying(config)
            .into_iter()
            .flatten()
            .filter_map(|port| Some((port, self.listeners.get(&port)?)))
            .map(|(port, serving)| (port, serving.wanted.fabric, serving.listening.address));
        let new = bound.iter().map(|bound| (bound.port, bound.wanted.fabric, bound.address));
        stay.chain(new)
    }

    /// Ends listeners that are no longer wanted and starts accepting on the new ones.
    fn settle_listeners(&mut self, config: &Config, bound: Vec<Bound>) -> (usize, usize) {
        let before = self.listeners.len();
        let staying = self.staying(config);
        self.listeners.retain(|port, _| staying.contains(&Some(*port)));
        let ended = before - self.listeners.len();
        let started = bound.len();
        for Bound { port, wanted, socket, .. } in bound {
            let service = Service {
                port,
                target: Arc::clone(&self.target),
                reactors: Arc::clone(&self.reactors),
                limits: self.limits,
            };
            let listening = socket.listen(service);
            self.listeners.insert(port, Serving { wanted, listening });
        }
        (started, ended)
    }
}

impl Pacing {
    fn new(policy: &PolicyConfig, limits: &Limits) -> anyhow::Result<Self> {
        let shared = Shared::new(policy, limits.pacing().machine)
            .with_context(|| format!("[pacing]: policy \"{}\"", policy_name(policy)))?;
        Ok(Self { policy: policy.clone(), shared })
    }
}

/// Starts a reactor on each CPU of the config.
fn start_reactors(
    config: &Config,
    pacing: &Shared,
    pool: &Arc<SharedPool>,
    target: &Arc<Target>,
) -> anyhow::Result<(Vec<Handle>, Reactors)> {
    let count = config.reactors.len();
    let loads: Arc<[Load]> = std::iter::repeat_with(Load::default).take(count).collect();
    let (senders, mailboxes): (Vec<_>, Vec<_>) =
        (0..count).map(|_| mailbox()).collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip();
    let limits = &config.limits;
    let mut threads = Vec::with_capacity(count);
    let parts = parts(pacing, &senders);
    for (index, (mailbox, pacing)) in mailboxes.into_iter().zip(parts).enumerate() {
        threads.push(spawn(Plan {
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
        max_connections: limits.settings.connections as usize,
    };
    Ok((threads, reactors))
}

/// Every reactor's part of a policy. All are made before the first is used: whoever came late would
/// find less of what there is to share out.
fn parts(shared: &Shared, senders: &[Sender]) -> impl Iterator<Item = Parts> + use<> {
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
