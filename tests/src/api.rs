//! Calls of the daemon's API.

use std::path::PathBuf;

use hyper::Method;
use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, Change};
use nvmeof_ctl::{ApiClient, CallError};
use serde_json::Value;

use crate::Daemon;

/// The socket of [`config::api`](crate::config::api), in the daemon's folder.
pub(crate) const SOCKET: &str = "api.sock";

/// The API of a daemon.
#[derive(Debug)]
pub struct Api {
    client: ApiClient,
    socket: PathBuf,
}

impl Api {
    /// The API of a daemon whose config has [`config::api`](crate::config::api).
    ///
    /// # Panics
    /// Never for a daemon with that config.
    #[must_use]
    pub fn of(daemon: &Daemon) -> Self {
        let socket = daemon.folder().join(SOCKET);
        let client = ApiClient::new(&format!("unix:{}", socket.display()), None).expect("a client");
        Self { client, socket }
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    /// Sends a request and returns the response.
    ///
    /// # Errors
    /// The daemon's error.
    ///
    /// # Panics
    /// If there is no response at all.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        revision: Option<&str>,
    ) -> Result<Value, ApiError> {
        let called = self.client.call(method, path, body.as_ref(), revision);
        called.map_err(|error| match error.downcast() {
            Ok(CallError::Refused(error)) => error,
            Ok(error) => panic!("{path}: {error}"),
            Err(error) => panic!("{path}: {error:#}"),
        })
    }

    /// Sends `GET`.
    ///
    /// # Panics
    /// If the request is rejected.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        let got = self.call(Method::GET, path, None, None);
        got.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns the running configuration.
    ///
    /// # Panics
    /// If it is no document.
    #[must_use]
    pub fn document(&self) -> Document {
        serde_json::from_value(self.get("/v1/config")).expect("a document")
    }

    /// Requests a change.
    ///
    /// # Errors
    /// The daemon's error.
    ///
    /// # Panics
    /// If the response describes no change.
    pub fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Change, ApiError> {
        let answer = self.call(method, path, body, None)?;
        Ok(serde_json::from_value(answer).expect("what has changed"))
    }
}
