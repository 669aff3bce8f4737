//! What runs, and the document that says so: the one place that changes either, for signals and the API
//! alike.
//!
//! ```text
//!   file --read--.                               .--> refused: nothing has changed
//!                 v                             |
//!   document --edit--> wanted --check as a file-+--> dry run: the differences
//!      ^                                        |
//!      '------------- takes its place <-- Server::reload, all or nothing
//! ```
//!
//! When each of these is done is for [`changes`](super::changes) to say.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Instant;

use nvmeof_api::document::{Difference, Document};
use nvmeof_api::{ApiError, Change, ErrorKind, Saved, Stats, Status};
use nvmeof_core::block::FileConfig;
use serde_json::Value;
use tokio::task::{JoinHandle, spawn_blocking};

use super::changes::{Checked, Edit};
use super::devices::{Begun, Groundwork, Take};
use super::file::ConfigFile;
use super::identity::{Identities, identity_warnings, with_uuids};
use super::notify;
use super::quiesce::Removal;
use super::server::{NewListener, Reloaded, Server};
use super::stats::{Recorder, lines, live};
use super::wrong::{Wrong, warning};
use crate::config::DeviceKind;
use crate::config::loaded::Loaded;

/// What runs, and the document that says so.
#[derive(Debug)]
pub(crate) struct Running {
    server: Server,
    document: Document,
    file: ConfigFile,
    since: Instant,
    /// Number of changes since the start.
    changes: u64,
    /// Tells this process's numbers from those of one before it.
    boot: u32,
}

/// Under what condition a change is to be made, and whether at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The states that the caller has seen one of; any if not given.
    pub(crate) seen: Option<Vec<String>>,
    /// Only to look what would change.
    pub(crate) dry_run: bool,
}

/// Something to be done with what runs.
pub(crate) type Job =
    Box<dyn for<'a> FnOnce(&'a mut Running) -> Pin<Box<dyn Future<Output = ()> + 'a>> + Send>;

/// What is to be what runs, and what that would change.
#[derive(Debug)]
pub(super) struct Wanted {
    loaded: Loaded,
    changes: Vec<Difference>,
    pending_restart: Vec<String>,
}

impl Wanted {
    /// As the API tells of it, with the state's number.
    pub(super) fn told(self, dry_run: bool, revision: String) -> Change {
        let Self { loaded, changes, pending_restart } = self;
        let warnings = loaded.config.warnings.iter();
        let warnings = warnings.map(|one| warning(&loaded.text, one)).collect();
        Change { dry_run, revision, changes, pending_restart, warnings, listening: Vec::new() }
    }
}

impl Running {
    /// Starts everything, with drives that `take` takes from the system. Hosts can connect when this returns.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(super) async fn start(path: &Path, loaded: Loaded, take: Take) -> anyhow::Result<Self> {
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

    /// The line that tells scripts where hosts can connect.
    pub(super) fn ready_line(&self) -> String {
        self.server.ready_line()
    }

    /// The running daemon.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The running daemon, for what changes nothing of the document.
    pub(super) fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// What is wanted, and runs but for what is read at start only.
    pub(crate) fn document(&self) -> &Document {
        &self.document
    }

    /// The state's number.
    pub(crate) fn revision(&self) -> String {
        format!("{:08x}-{}", self.boot, self.changes)
    }

    /// Ends it.
    pub(super) async fn stop(self) {
        let timeout = self.server.config().drain_timeout;
        self.server.stop(timeout).await;
    }

    /// Tries listeners again that wait, and has those wait that have ended.
    pub(super) async fn retry_listeners(&mut self) {
        if self.server.retry_listeners().await {
            notify::ready(&self.ready_line());
        }
    }

    /// Gives what is counted to a recorder from now on.
    pub(super) async fn record_to(&mut self, recorder: Option<Recorder>) {
        self.server.record_to(recorder).await;
    }

    /// Begins to read the file again, as SIGHUP asks.
    pub(super) fn read_again(&self) -> JoinHandle<Checked> {
        notify::reloading();
        self.read()
    }

    /// The file that was read for SIGHUP is wrong: nothing changes.
    pub(super) fn refuse_file(&self, wrong: &Wrong) {
        tracing::error!("the config is not reloaded, nothing changes:\n{wrong}");
        self.tell_refused();
    }

    /// Makes what runs what was read from the file; it is logged why not.
    pub(super) async fn take_file(&mut self, wanted: Wanted, groundwork: Groundwork) {
        let text = wanted.loaded.text.clone();
        let adopted = self.adopt(wanted.loaded, groundwork, NewListener::MayWait).await;
        match &adopted {
            Ok(_) => self.file.is_now(text, self.document.clone()),
            Err(error) => {
                tracing::error!("the config is not reloaded, nothing changes: {error:#}");
            }
        }
        match adopted {
            Ok((reloaded, _)) => self.tell_when_ended(reloaded),
            Err(_) => self.tell_refused(),
        }
    }

    /// Says that the config is reloaded when the commands of what was removed have ended.
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

    /// Opens devices anew that are not what they were, with what stands on them; it is logged why not.
    pub(super) async fn renew(&mut self, groundwork: Groundwork) {
        let config = self.server.config().clone();
        let before = self.server.identities();
        match self.server.reload(config, groundwork, NewListener::MayWait).await {
            Ok(Reloaded { summary, .. }) => {
                tracing::info!("followed a drive's namespaces: {summary}");
                for what in identity_warnings(&before, &self.server.identities()) {
                    tracing::warn!("{what}");
                }
            }
            Err(error) => tracing::error!(
                "a drive's namespace has changed and cannot be followed, it is served as it was: {error:#}; \
                 change the config to what can be, and reload it"
            ),
        }
    }

    /// Begins to read the file again, as the API asks.
    ///
    /// # Errors
    /// The state is not the one that was seen.
    pub(super) fn check_file(&self, wish: &Wish) -> Result<JoinHandle<Checked>, ApiError> {
        self.expect(wish)?;
        Ok(self.read())
    }

    /// Begins to look whether what an edit of the document makes can be what runs.
    ///
    /// # Errors
    /// The state is not the one that was seen, or the edit refuses.
    pub(super) fn check_edit(
        &self,
        wish: &Wish,
        edit: Edit,
    ) -> Result<JoinHandle<Checked>, ApiError> {
        self.expect(wish)?;
        let mut document = self.document.clone();
        edit(self, &mut document)?;
        let open = self.open_files();
        Ok(spawn_blocking(move || Loaded::of(document, open).map_err(Wrong::Document)))
    }

    /// In a thread: what it names may be on servers that do not answer.
    fn read(&self) -> JoinHandle<Checked> {
        let (path, open) = (self.file.path().to_owned(), self.open_files());
        spawn_blocking(move || Loaded::read_again(&path, open).map_err(Wrong::File))
    }

    /// What was checked, beside what runs.
    pub(super) fn wanted(&self, loaded: Loaded) -> Wanted {
        Wanted {
            changes: self.document.differences(&loaded.document),
            pending_restart: self.server.fixed_differences(&loaded.config),
            loaded,
        }
    }

    /// Begins what takes long of making this what runs, or what runs once more. `instead_of` was given up for it.
    pub(super) fn begin(&mut self, wanted: Option<&Wanted>, instead_of: Option<Begun>) -> Begun {
        match wanted {
            Some(wanted) => self.server.begin(&wanted.loaded.config, instead_of),
            None => {
                let config = self.server.config().clone();
                self.server.begin(&config, instead_of)
            }
        }
    }

    /// Makes what runs what the API wants: all of it, or nothing. The caller is told when what was removed has ended.
    ///
    /// # Errors
    /// It cannot be on this machine; nothing has changed then.
    pub(super) async fn make(
        &mut self,
        wanted: Wanted,
        groundwork: Groundwork,
        is_file: bool,
    ) -> Result<(Change, Removal), ApiError> {
        let loaded = wanted.loaded.clone();
        let text = is_file.then(|| loaded.text.clone());
        let before = self.server.urls();
        let adopted = self.adopt(loaded, groundwork, NewListener::HasToWork).await;
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
        let mut change = Change { listening, ..wanted.told(false, self.revision()) };
        change.warnings.extend(doubtful);
        Ok((change, removal))
    }

    /// Writes what runs to the file, with the UUIDs that are in force. With `force` even if somebody else has changed
    /// the file.
    ///
    /// # Errors
    /// The file has been changed or cannot be written; it is as it was then.
    pub(crate) fn save(&mut self, wish: &Wish, force: bool) -> Result<Saved, ApiError> {
        self.expect(wish)?;
        if wish.dry_run {
            let file = self.file.path().display().to_string();
            return Ok(Saved { file, previous: None, revision: self.revision() });
        }
        // What hosts know disks by is kept, whatever these are called from then on.
        let document = with_uuids(&self.document, &self.server.identities());
        let previous = self.file.save(&document, force)?;
        self.server.pin_identities();
        self.take_document(document);
        tracing::info!(file = %self.file.path().display(), "what runs is saved");
        Ok(Saved {
            file: self.file.path().display().to_string(),
            previous: previous.map(|path| path.display().to_string()),
            revision: self.revision(),
        })
    }

    /// What runs, in short.
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
            departing: self.server.departing(),
            in_flight: counts.requests,
            pending_restart: self.server.fixed_differences(config),
        }
    }

    /// What was counted.
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

    /// The state is one that the caller has seen, if it says so.
    fn expect(&self, wish: &Wish) -> Result<(), ApiError> {
        let now = self.revision();
        match &wish.seen {
            Some(seen) if !seen.iter().any(|one| *one == now || one == "*") => {
                let what = format!("the state is {now} by now, not {}", seen.join(" or "));
                let hint = "look at it again, then decide anew";
                Err(ApiError::new(ErrorKind::Changed, what).at("if-match").hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Says what changed, and what may not be meant of what hosts know disks by.
    async fn adopt(
        &mut self,
        loaded: Loaded,
        groundwork: Groundwork,
        listeners: NewListener,
    ) -> anyhow::Result<(Reloaded, Vec<String>)> {
        let Loaded { config, document, .. } = loaded;
        let before = self.server.identities();
        let reloaded = self.server.reload(config, groundwork, listeners).await?;
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

    /// File devices that are open.
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
