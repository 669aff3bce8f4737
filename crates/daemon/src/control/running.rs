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

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nvmeof_api::document::{Difference, Document};
use nvmeof_api::{ApiError, Change, ErrorKind, Saved, Stats, Status};
use serde_json::Value;

use super::devices::Groundwork;
use super::file::ConfigFile;
use super::notify;
use super::server::{NewListener, Server};
use super::stats::{Recorder, lines, live};
use super::warn_of;
use crate::config::loaded::{Loaded, Refused, place, without_lines};
use crate::config::{ConfigError, DeviceKind, Problem};

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

impl Running {
    /// Starts everything. Hosts can connect when this returns.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(super) async fn start(path: &Path, loaded: Loaded) -> anyhow::Result<Self> {
        let Loaded { config, document, text } = loaded;
        let server = Server::start(config).await?;
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

    /// Gives what is counted to a recorder from now on.
    pub(super) async fn record_to(&mut self, recorder: Option<Recorder>) {
        self.server.record_to(recorder).await;
    }

    /// Reads the file again, as SIGHUP asks, for [`take_file`](Self::take_file). One that is wrong in any way
    /// changes nothing.
    pub(super) fn read_again(&self) -> Option<Loaded> {
        notify::reloading();
        match Loaded::read_with(self.file.path(), self.held()) {
            Ok(loaded) => {
                warn_of(&loaded.config);
                Some(loaded)
            }
            Err(error) => {
                tracing::error!("the config is not reloaded, nothing changes:\n{error}");
                self.tell(false);
                None
            }
        }
    }

    /// Makes what runs what was read from the file; it is logged why not.
    pub(super) async fn take_file(&mut self, loaded: Loaded, groundwork: Groundwork) {
        let text = loaded.text.clone();
        let adopted = self.adopt(loaded, groundwork, NewListener::MayBeLeftOut).await;
        match &adopted {
            Ok(summary) => {
                self.file.is_now(text, self.document.clone());
                tracing::info!("config reloaded: {summary}");
            }
            Err(error) => {
                tracing::error!("the config is not reloaded, nothing changes: {error:#}");
            }
        }
        self.tell(adopted.is_ok());
    }

    fn tell(&self, is_reloaded: bool) {
        let came_of_it = match is_reloaded {
            true => "config reloaded",
            false => "the config was not reloaded, see the log",
        };
        notify::ready(&format!("{}; {came_of_it}", self.ready_line()));
    }

    /// Opens devices anew that are not what they were, with what stands on them; it is logged why not.
    pub(super) async fn renew(&mut self, groundwork: Groundwork) {
        let config = self.server.config().clone();
        match self.server.reload(config, groundwork, NewListener::MayBeLeftOut).await {
            Ok(summary) => tracing::info!("followed a drive's namespaces: {summary}"),
            Err(error) => tracing::error!(
                "a drive's namespace has changed and cannot be followed, it is served as it was: {error:#}; \
                 change the config to what can be, and reload it"
            ),
        }
    }

    /// Reads the file again, as the API asks.
    ///
    /// # Errors
    /// What is wrong with it, or why it cannot be; nothing has changed then.
    pub(crate) async fn reload(&mut self, wish: &Wish) -> Result<Change, ApiError> {
        self.expect(wish)?;
        let loaded =
            Loaded::read_with(self.file.path(), self.held()).map_err(|error| in_file(&error))?;
        let text = loaded.text.clone();
        let change = self.change_to(loaded, wish.dry_run).await?;
        if !wish.dry_run {
            self.file.is_now(text, self.document.clone());
            notify::ready(&format!("{}; config reloaded", self.ready_line()));
        }
        Ok(change)
    }

    /// Writes what runs to the file. With `force` even if somebody else has changed the file.
    ///
    /// # Errors
    /// The file has been changed or cannot be written; it is as it was then.
    pub(crate) fn save(&mut self, wish: &Wish, force: bool) -> Result<Saved, ApiError> {
        self.expect(wish)?;
        if wish.dry_run {
            let file = self.file.path().display().to_string();
            return Ok(Saved { file, previous: None, revision: self.revision() });
        }
        let previous = self.file.save(&self.document, force)?;
        tracing::info!(file = %self.file.path().display(), "what runs is saved");
        Ok(Saved {
            file: self.file.path().display().to_string(),
            previous: previous.map(|path| path.display().to_string()),
            revision: self.revision(),
        })
    }

    /// Changes what runs by an edit of its document: the whole edit, or nothing.
    ///
    /// # Errors
    /// The state is not the one that was seen, the edit refuses, the document it makes cannot be used, or
    /// cannot be on this machine; nothing has changed then.
    pub(crate) async fn change(
        &mut self,
        wish: &Wish,
        edit: impl FnOnce(&Self, &mut Document) -> Result<(), ApiError>,
    ) -> Result<Change, ApiError> {
        self.expect(wish)?;
        let mut document = self.document.clone();
        edit(self, &mut document)?;
        let loaded = Loaded::of(document, self.held()).map_err(|refused| invalid(&refused))?;
        self.change_to(loaded, wish.dry_run).await
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
            policy: self.server.policy().into(),
            reactors: self.server.reactors(),
            devices: config.devices.len(),
            subsystems: config.subsystems.len(),
            namespaces: config.subsystems.iter().map(|one| one.namespaces.len()).sum(),
            controllers: self.server.controllers().len(),
            connections: counts.connections,
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

    /// Makes what runs what was loaded, or says what that would change.
    async fn change_to(&mut self, loaded: Loaded, dry_run: bool) -> Result<Change, ApiError> {
        let changes = self.document.differences(&loaded.document);
        let warnings =
            loaded.config.warnings.iter().map(|one| warning(&loaded.text, one)).collect();
        let pending_restart = self.server.fixed_differences(&loaded.config);
        if !dry_run {
            let groundwork = self.server.begin(&loaded.config).await.await.unwrap_or_default();
            let summary = self.adopt(loaded, groundwork, NewListener::HasToWork).await;
            let summary = summary.map_err(|error| {
                let what = format!("{error:#}");
                ApiError::new(ErrorKind::Conflict, what).hint("nothing has changed")
            })?;
            log(&changes);
            tracing::info!("changed by the API: {summary}");
        }
        Ok(Change { dry_run, revision: self.revision(), changes, pending_restart, warnings })
    }

    async fn adopt(
        &mut self,
        loaded: Loaded,
        groundwork: Groundwork,
        listeners: NewListener,
    ) -> anyhow::Result<String> {
        let Loaded { config, document, .. } = loaded;
        let summary = self.server.reload(config, groundwork, listeners).await?;
        if self.document != document {
            self.changes += 1;
            self.document = document;
        }
        Ok(summary)
    }

    /// Files that are served.
    fn held(&self) -> BTreeSet<PathBuf> {
        let files = self.server.config().devices.iter().filter_map(|device| match &device.kind {
            DeviceKind::File(file) => file.path.canonicalize().ok(),
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

/// A document's problems, without lines that nobody sees.
fn invalid(refused: &Refused) -> ApiError {
    let one = |problem: &Problem| {
        let what = without_lines(&refused.text, &problem.what);
        ApiError::new(ErrorKind::Invalid, what)
            .at(place(&refused.text, problem))
            .hint(&problem.allowed)
    };
    all(refused.error.problems.iter().map(one))
}

/// A file's problems.
fn in_file(error: &ConfigError) -> ApiError {
    let one = |problem: &Problem| {
        let mut place = problem.file.clone();
        if let Some((line, column)) = problem.position {
            place = format!("{place}:{line}:{column}");
        }
        if !problem.key.is_empty() {
            place = format!("{place}: {}", problem.key);
        }
        ApiError::new(ErrorKind::Invalid, &problem.what).at(place).hint(&problem.allowed)
    };
    all(error.problems.iter().map(one))
}

/// The first of them, with the others in its wake.
fn all(mut problems: impl Iterator<Item = ApiError>) -> ApiError {
    let first = problems.next();
    // Whoever refuses says why.
    let mut first =
        first.unwrap_or_else(|| ApiError::new(ErrorKind::Invalid, "the config cannot be used"));
    first.more = problems.collect();
    first
}

fn warning(text: &str, problem: &Problem) -> String {
    let place = place(text, problem);
    let what = without_lines(text, &problem.what);
    format!("{place}: {what}; {}", problem.allowed)
}
