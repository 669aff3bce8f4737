//! The running state and the document that describes it.
//!
//! This module is the only place that changes either, for signals and the API.
//!
//! ```text
//!   file --read--.                               .--> rejected: nothing has changed
//!                 v                             |
//!   document --edit--> wanted --check as a file-+--> dry run: the differences
//!      ^                                        |
//!      '--------------- replaced by <-- Server::reload, all or nothing
//! ```
//!
//! [`changes`](super::change_queue) decides the order of these steps.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Instant;

use nvmeof_api::document::{Difference, Document};
use nvmeof_api::{ApiError, Change, ErrorKind, Saved, Stats, Status};
use nvmeof_core::block::FileConfig;
use serde_json::Value;
use tokio::task::{JoinHandle, spawn_blocking};

use super::config_rejected::{ConfigRejected, warning};
use super::devices::{OpenFunction, PreopenTask, PreopenedDevices};
use super::file::ConfigFile;
use super::identity::{Identities, identity_warnings, with_uuids};
use super::notify;
use super::quiesce::Removal;
use super::server::{BindPolicy, Reloaded, Server};
use super::stats::{DeviceCounters, Recorder, device_counters, lines, live};
use crate::config::DeviceKind;
use crate::config_file::loaded::Loaded;

/// The running daemon and the document that describes it.
#[derive(Debug)]
pub(crate) struct ControlState {
    server: Server,
    document: Document,
    file: ConfigFile,
    since: Instant,
    /// Number of changes since the start.
    changes: u64,
    /// Distinguishes this process's revisions from those of an earlier process.
    boot: u32,
}

/// Conditions for a change, and whether it is only a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChangeOptions {
    /// Revisions that the caller accepts as the current one; any if `None`.
    pub(crate) seen: Option<Vec<String>>,
    /// Only reports the differences.
    pub(crate) dry_run: bool,
}

/// Edits a document.
pub(super) type Edit =
    Box<dyn FnOnce(&ControlState, &mut Document) -> Result<(), ApiError> + Send + 'static>;
/// Runs in the control loop when a change is applied, before the next one begins.
#[derive(Default)]
pub(super) struct OnApplied(Option<Box<dyn FnOnce() + Send + 'static>>);
/// Result of the check whether a config can run.
pub(super) type Checked = Result<Loaded, ConfigRejected>;
/// A function that runs on the running state.
pub(super) type Job =
    Box<dyn for<'a> FnOnce(&'a mut ControlState) -> Pin<Box<dyn Future<Output = ()> + 'a>> + Send>;

/// A checked config that is to run, and its differences from the running one.
#[derive(Debug)]
pub(super) struct ProposedConfig {
    loaded: Loaded,
    changes: Vec<Difference>,
    pending_restart: Vec<String>,
}

impl OnApplied {
    pub(super) fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(run)))
    }

    pub(super) fn run(self) {
        if let Some(run) = self.0 {
            run();
        }
    }
}

impl ProposedConfig {
    /// Converts it to the API's response, with the revision.
    pub(super) fn into_change(self, dry_run: bool, revision: String) -> Change {
        let Self { loaded, changes, pending_restart } = self;
        let warnings = loaded.config.warnings.iter();
        let warnings = warnings.map(|one| warning(&loaded.text, one)).collect();
        Change { dry_run, revision, changes, pending_restart, warnings, listening: Vec::new() }
    }
}

impl ControlState {
    /// Starts everything, with drives that `take` opens. Hosts can connect when this returns.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(super) async fn start(
        path: &Path,
        loaded: Loaded,
        take: OpenFunction,
    ) -> anyhow::Result<Self> {
        let Loaded { config, document, text } = loaded;
        let server = Server::start(config, take).await?;
        for what in identity_warnings(&Identities::new(), &server.identities()) {
            tracing::warn!("{what}");
        }
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Self {
            server,
            file: ConfigFile::new(path, text, document.clone()),
            document,
            since: Instant::now(),
            changes: 0,
            boot: since_1970.map_or(0, |since| since.subsec_nanos()) ^ std::process::id(),
        })
    }

    /// Returns the line that tells scripts the addresses hosts can connect to.
    pub(super) fn ready_line(&self) -> String {
        self.server.ready_line()
    }

    /// The running daemon.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The running daemon, for operations that leave the document unchanged.
    pub(super) fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// The desired state, which runs except for keys that are read only at start.
    pub(crate) fn document(&self) -> &Document {
        &self.document
    }

    /// Returns the current revision.
    pub(crate) fn revision(&self) -> String {
        format!("{:08x}-{}", self.boot, self.changes)
    }

    /// Stops the daemon.
    pub(super) async fn stop(self) {
        let timeout = self.server.config().drain_timeout;
        self.server.stop(timeout).await;
    }

    /// Retries listeners that wait, and makes listeners that have ended wait.
    pub(super) async fn retry_listeners(&mut self) {
        if self.server.retry_listeners().await {
            notify::ready(&self.ready_line());
        }
    }

    /// Sends statistics to a recorder from now on.
    pub(super) async fn record_to(&mut self, recorder: Option<Recorder>) {
        self.server.record_to(recorder).await;
    }

    /// Begins to read the file again after SIGHUP.
    pub(super) fn read_again(&self) -> JoinHandle<Checked> {
        notify::reloading();
        self.read()
    }

    /// Reports that the file read after SIGHUP is invalid; nothing changes.
    pub(super) fn refuse_file(&self, wrong: &ConfigRejected) {
        tracing::error!("config reload rejected, the running config is unchanged:\n{wrong}");
        self.tell_refused();
    }

    /// Applies a config that was read from the file; logs the reason of a failure.
    pub(super) async fn apply_file(&mut self, wanted: ProposedConfig, preopened: PreopenedDevices) {
        let text = wanted.loaded.text.clone();
        let adopted = self.adopt(wanted.loaded, preopened, BindPolicy::Optional).await;
        match &adopted {
            Ok(_) => self.file.is_now(text, self.document.clone()),
            Err(error) => {
                tracing::error!(
                    "config reload rejected, the running config is unchanged: {error:#}"
                );
            }
        }
        match adopted {
            Ok((reloaded, _)) => self.tell_when_ended(reloaded),
            Err(_) => self.tell_refused(),
        }
    }

    /// Reports a finished reload when the commands of removed items have ended.
    fn tell_when_ended(&self, Reloaded { summary, removal }: Reloaded) {
        let ready = self.ready_line();
        tokio::spawn(async move {
            if let Err(error) = removal.ended().await {
                tracing::warn!("config reloaded: {summary}; {error}");
                let state = "config reloaded, but commands of what was removed have not ended";
                return notify::ready(&format!("{ready}; {state}, see the log"));
            }
            tracing::info!("config reloaded: {summary}");
            notify::ready(&format!("{ready}; config reloaded"));
        });
    }

    fn tell_refused(&self) {
        notify::ready(&format!("{}; the config was not reloaded, see the log", self.ready_line()));
    }

    /// Reopens devices that have changed, with the devices layered on them; logs a failure.
    pub(super) async fn reopen_devices(&mut self, preopened: PreopenedDevices) {
        let config = self.server.config().clone();
        let before = self.server.identities();
        match self.server.reload(config, preopened, BindPolicy::Optional).await {
            Ok(Reloaded { summary, .. }) => {
                tracing::info!("drive namespaces changed, devices reopened: {summary}");
                for what in identity_warnings(&before, &self.server.identities()) {
                    tracing::warn!("{what}");
                }
            }
            Err(error) => tracing::error!(
                "drive's namespace has changed and cannot be reopened, the old one stays in use: \
                 {error:#}; correct the config and run \"nvmeofctl reload\""
            ),
        }
    }

    /// Begins to read the file again for the API.
    ///
    /// # Errors
    /// The current revision is not one that the caller accepts.
    pub(super) fn check_file(
        &self,
        options: &ChangeOptions,
    ) -> Result<JoinHandle<Checked>, ApiError> {
        self.expect(options)?;
        Ok(self.read())
    }

    /// Begins to check whether the result of an edit can run.
    ///
    /// # Errors
    /// The current revision is not one that the caller accepts, or the edit is rejected.
    pub(super) fn check_edit(
        &self,
        options: &ChangeOptions,
        edit: Edit,
    ) -> Result<JoinHandle<Checked>, ApiError> {
        self.expect(options)?;
        let mut document = self.document.clone();
        edit(self, &mut document)?;
        let open = self.open_files();
        Ok(spawn_blocking(move || Loaded::of(document, open).map_err(ConfigRejected::Document)))
    }

    /// Reads in a thread: the config may name files on servers that do not answer.
    fn read(&self) -> JoinHandle<Checked> {
        let (path, open) = (self.file.path().to_owned(), self.open_files());
        spawn_blocking(move || Loaded::read_again(&path, open).map_err(ConfigRejected::File))
    }

    /// Compares a checked config with the running one.
    pub(super) fn wanted(&self, loaded: Loaded) -> ProposedConfig {
        ProposedConfig {
            changes: self.document.differences(&loaded.document),
            pending_restart: self.server.fixed_differences(&loaded.config),
            loaded,
        }
    }

    /// Begins the slow steps of applying `wanted`, or the running config again if it is `None`.
    ///
    /// `instead_of` was abandoned in favor of this change.
    pub(super) fn begin(
        &mut self,
        wanted: Option<&ProposedConfig>,
        instead_of: Option<PreopenTask>,
    ) -> PreopenTask {
        match wanted {
            Some(wanted) => self.server.begin(&wanted.loaded.config, instead_of),
            None => {
                let config = self.server.config().clone();
                self.server.begin(&config, instead_of)
            }
        }
    }

    /// Applies a change of the API, all of it or nothing.
    ///
    /// The caller is answered when the commands of removed items have ended.
    ///
    /// # Errors
    /// The config cannot run on this machine; nothing has changed then.
    pub(super) async fn apply(
        &mut self,
        wanted: ProposedConfig,
        preopened: PreopenedDevices,
        is_file: bool,
    ) -> Result<(Change, Removal), ApiError> {
        let loaded = wanted.loaded.clone();
        let text = is_file.then(|| loaded.text.clone());
        let before = self.server.urls();
        let adopted = self.adopt(loaded, preopened, BindPolicy::Required).await;
        let (Reloaded { summary, removal }, doubtful) = adopted.map_err(|error| {
            let what = format!("{error:#}");
            ApiError::new(ErrorKind::Conflict, what).hint("nothing has changed")
        })?;
        log(&wanted.changes);
        tracing::info!("changed by the API: {summary}");
        if let Some(text) = text {
            self.file.is_now(text, self.document.clone());
            notify::ready(&format!("{}; config reloaded", self.ready_line()));
        }
        let listening =
            self.server.urls().into_iter().filter(|url| !before.contains(url)).collect();
        let mut change = Change { listening, ..wanted.into_change(false, self.revision()) };
        change.warnings.extend(doubtful);
        Ok((change, removal))
    }

    /// Writes the running config to the file, with the UUIDs in force.
    ///
    /// `force` overwrites a file that was edited since it was last read.
    ///
    /// # Errors
    /// The file has been edited or cannot be written; it is unchanged then.
    pub(crate) fn save(&mut self, options: &ChangeOptions, force: bool) -> Result<Saved, ApiError> {
        self.expect(options)?;
        if options.dry_run {
            let file = self.file.path().display().to_string();
            return Ok(Saved { file, previous: None, revision: self.revision() });
        }
        // Hosts identify disks by UUID; saving it keeps that identity if the names change later.
        let document = with_uuids(&self.document, &self.server.identities());
        let previous = self.file.save(&document, force)?;
        self.server.pin_identities();
        self.take_document(document);
        tracing::info!(file = %self.file.path().display(), "running config saved");
        Ok(Saved {
            file: self.file.path().display().to_string(),
            previous: previous.map(|path| path.display().to_string()),
            revision: self.revision(),
        })
    }

    /// Returns a summary of the running state.
    pub(crate) async fn status(&self) -> Status {
        let counts = self.server.counts().await;
        let config = self.server.config();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.since.elapsed().as_secs(),
            config_file: self.file.path().display().to_string(),
            revision: self.revision(),
            saved: self.file.says(&self.document),
            listeners: self.server.urls(),
            waiting_listeners: self.server.waiting(),
            policy: self.server.policy().into(),
            reactors: self.server.reactors(),
            devices: config.devices.len(),
            missing_devices: self.server.missing_devices(),
            subsystems: config.subsystems.len(),
            namespaces: config.subsystems.iter().map(|one| one.namespaces.len()).sum(),
            controllers: self.server.controllers().len(),
            connections: counts.connections,
            quiescing: self.server.quiescing(),
            in_flight: counts.requests,
            pending_restart: self.server.fixed_differences(config),
        }
    }

    /// Returns the statistics.
    pub(crate) async fn stats(&self) -> Stats {
        let sample = self.server.sample(false).await;
        let seconds = self.since.elapsed().as_secs_f64();
        let all = lines(seconds, &sample, None, self.server.labels());
        let object = |line| match line {
            Value::Object(line) => Some(line),
            _ => None,
        };
        Stats {
            schema: super::stats::SCHEMA,
            seconds,
            lines: all.into_iter().filter_map(object).collect(),
            live: live(&sample, self.server.labels()),
        }
    }

    /// Returns the completed I/O commands by device and by reactor.
    pub(crate) async fn device_counters(&self) -> DeviceCounters {
        device_counters(&self.server.sample(false).await, self.server.labels())
    }

    /// Checks that the current revision is one that the caller accepts, if the caller names any.
    fn expect(&self, options: &ChangeOptions) -> Result<(), ApiError> {
        let now = self.revision();
        match &options.seen {
            Some(seen) if !seen.iter().any(|one| *one == now || one == "*") => {
                let what = format!("the state is {now} by now, not {}", seen.join(" or "));
                let hint = "read the current state and repeat the change";
                Err(ApiError::new(ErrorKind::PreconditionFailed, what).hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Applies a config; returns the changes and warnings about namespace identities.
    async fn adopt(
        &mut self,
        loaded: Loaded,
        preopened: PreopenedDevices,
        listeners: BindPolicy,
    ) -> anyhow::Result<(Reloaded, Vec<String>)> {
        let Loaded { config, document, .. } = loaded;
        let before = self.server.identities();
        let reloaded = self.server.reload(config, preopened, listeners).await?;
        self.take_document(document);
        let doubtful = identity_warnings(&before, &self.server.identities());
        for what in &doubtful {
            tracing::warn!("{what}");
        }
        Ok((reloaded, doubtful))
    }

    fn take_document(&mut self, document: Document) {
        if self.document != document {
            self.changes += 1;
            self.document = document;
        }
    }

    /// Returns the file devices that are open.
    fn open_files(&self) -> Vec<FileConfig> {
        let files = self.server.config().devices.iter().filter_map(|device| match &device.kind {
            DeviceKind::File(file) => Some(file.clone()),
            _ => None,
        });
        files.collect()
    }
}

fn log(changes: &[Difference]) {
    for Difference { action, item, name, keys } in changes {
        let keys = keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(", ");
        tracing::info!(%action, item, name, keys, "the API changes the config");
    }
}
