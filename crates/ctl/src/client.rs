//! Client of the daemon's API: HTTP over a UNIX socket or TCP, one call after another.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, ETAG, HOST, IF_MATCH};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use nvmeof_api::ApiError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;

/// Timeout of a call: a change can wait for devices.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// `--api` is not a valid address.
    #[error("--api {url}: {what}; allowed: unix:PATH, or http://ADDRESS:PORT")]
    Address {
        /// The address as given.
        url: String,
        /// Description of the problem.
        what: &'static str,
    },
    /// The connection failed.
    #[error(
        "cannot reach the daemon at {url}: {source}; check that nvmeof-tgt runs with an [api] \
         section in the config and that this user may use the socket, or choose another address \
         with --api URL"
    )]
    Connect {
        /// URL of the API.
        url: String,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the daemon at {url} did not respond: {what}")]
    Broken {
        /// URL of the API.
        url: String,
        /// Description of the failure.
        what: String,
    },
    /// The daemon rejected the call.
    #[error("{0}")]
    Refused(ApiError),
}

/// Address of the API.
#[derive(Debug, Clone)]
enum Address {
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

/// The daemon's API.
#[derive(Debug)]
pub struct ApiClient {
    url: String,
    address: Address,
    token: Option<String>,
    runtime: Runtime,
}

/// A successful response.
#[derive(Debug)]
pub struct ApiResponse {
    /// Revision of the state, for `If-Match`.
    pub revision: Option<String>,
    /// The body.
    pub body: Bytes,
}

impl ApiClient {
    /// Creates a client of the API at `url`, with the token in a file if one is named.
    ///
    /// # Errors
    /// [`CallError::Address`], or the file cannot be read.
    pub fn new(url: &str, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let token = token_file.map(|file| {
            let token = std::fs::read_to_string(file)
                .with_context(|| format!("--token-file {}: cannot be read", file.display()))?;
            anyhow::Ok(token.trim().to_owned())
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        Ok(Self {
            url: url.to_owned(),
            address: Address::parse(url)?,
            token: token.transpose()?,
            runtime,
        })
    }

    /// Sends a `GET`.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, None::<&()>, None)
    }

    /// Sends a call, with a JSON body if there is one.
    ///
    /// With `revision`, the daemon rejects the call if its state has changed.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        revision: Option<&str>,
    ) -> anyhow::Result<T> {
        let response = self.send(method, path, body, revision)?;
        serde_json::from_slice(&response.body)
            .with_context(|| format!("cannot parse the daemon's response to {path}"))
    }

    /// Sends a call like [`Self::call`], and returns the response unparsed.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        revision: Option<&str>,
    ) -> anyhow::Result<ApiResponse> {
        let request = self.request(method, path, body, revision)?;
        let result = self.runtime.block_on(async {
            let result = tokio::time::timeout(TIMEOUT, self.exchange(request)).await;
            result.unwrap_or_else(|_| Err(self.broken(format!("no response in {TIMEOUT:?}"))))
        });
        let (status, response) = result?;
        if status.is_success() { Ok(response) } else { Err(self.refusal(status, &response)) }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        revision: Option<&str>,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host());
        // Each call has its own connection, so the daemon need not keep it open.
        request = request.header(CONNECTION, "close");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(revision) = revision {
            request = request.header(IF_MATCH, format!("\"{revision}\""));
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(serde_json::to_vec(body)?)
            }
            None => Bytes::new(),
        };
        request.body(Full::new(bytes)).context("the call cannot be written")
    }

    /// Sends a `POST` with a response that is streamed line by line over up to `time`.
    ///
    /// `each` receives each line as it arrives, except empty lines, and can break to end the call
    /// early.
    ///
    /// # Errors
    /// [`CallError`], or the error of `each`, which ends the call.
    pub fn lines(
        &self,
        path: &str,
        body: &impl Serialize,
        time: Duration,
        mut each: impl FnMut(&[u8]) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let request = self.request(Method::POST, path, Some(body), None)?;
        let all = async {
            let mut response = self.respond(request).await?;
            if !response.status().is_success() {
                let status = response.status();
                let response = self.collected(response).await?;
                return Err(self.refusal(status, &response));
            }
            let mut pending = Vec::new();
            while let Some(frame) = response.body_mut().frame().await {
                let frame = frame.map_err(|error| self.broken(error.to_string()))?;
                pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = pending.drain(..=end).collect();
                    if line.len() > 1 && each(&line)?.is_break() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        };
        let limit = time + TIMEOUT;
        self.runtime.block_on(async {
            let ended = tokio::time::timeout(limit, all).await;
            ended.unwrap_or_else(|_| Err(self.broken(format!("no end in {limit:?}")).into()))
        })
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, ApiResponse), CallError> {
        let response = self.respond(request).await?;
        let status = response.status();
        Ok((status, self.collected(response).await?))
    }

    /// Converts an error response of the daemon.
    fn refusal(&self, status: StatusCode, response: &ApiResponse) -> anyhow::Error {
        match serde_json::from_slice(&response.body) {
            Ok(error) => CallError::Refused(error).into(),
            Err(_) => self.broken(format!("HTTP status {status}")).into(),
        }
    }

    async fn collected(&self, response: Response<Incoming>) -> Result<ApiResponse, CallError> {
        let revision = response.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
        let revision = revision.map(|tag| tag.trim_matches('"').to_owned());
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| self.broken(error.to_string()))?.to_bytes();
        Ok(ApiResponse { revision, body })
    }

    async fn respond(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        let failed = |source| CallError::Connect { url: self.url.clone(), source };
        match &self.address {
            Address::Unix(path) => {
                self.over(UnixStream::connect(path).await.map_err(failed)?, request).await
            }
            Address::Tcp(host) => {
                // This thread resolves the name. The runtime would use another thread, and panics
                // if it cannot start one.
                let found = host.to_socket_addrs().map_err(failed)?;
                let addresses: Vec<SocketAddr> = found.collect();
                let stream = TcpStream::connect(&addresses[..]).await.map_err(failed)?;
                self.over(stream, request).await
            }
        }
    }

    async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        let broken = |error: hyper::Error| self.broken(error.to_string());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // An error of the connection also fails the call.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }

    fn broken(&self, what: String) -> CallError {
        CallError::Broken { url: self.url.clone(), what }
    }

    fn host(&self) -> &str {
        match &self.address {
            Address::Unix(_) => "localhost",
            Address::Tcp(host) => host,
        }
    }
}

impl Address {
    fn parse(url: &str) -> Result<Self, CallError> {
        let wrong = |what| CallError::Address { url: url.to_owned(), what };
        if let Some(path) = url.strip_prefix("unix:") {
            // `unix:///run/x` equals `unix:/run/x`.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() {
                Err(wrong("no path"))
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let host = url.strip_prefix("http://").ok_or_else(|| wrong("unknown scheme"))?;
        let host = host.trim_end_matches('/');
        let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(_) if !host.contains('/') => Ok(Self::Tcp(host.to_owned())),
            _ => Err(wrong("no address and port")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, path) in [("unix:/run/x", "/run/x"), ("unix:///run/x", "/run/x"), ("unix:x", "x")]
        {
            let Ok(Address::Unix(parsed)) = Address::parse(url) else { panic!("{url}") };
            assert_eq!(parsed, Path::new(path));
        }
        for (url, host) in [("http://[::1]:80/", "[::1]:80"), ("http://a:1", "a:1")] {
            let Ok(Address::Tcp(parsed)) = Address::parse(url) else { panic!("{url}") };
            assert_eq!(parsed, host);
        }
        for url in
            ["", "unix:", "https://a:1", "http://a", "http://a:1/b", "http://a:99999", "/run/x"]
        {
            assert!(matches!(Address::parse(url), Err(CallError::Address { .. })), "{url}");
        }
    }

    #[test]
    fn nobody_there_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("unix:{}/none.sock", folder.path().display());
        let client = ApiClient::new(&url, None).unwrap();
        let error = client.get::<serde_json::Value>("/v1/status").unwrap_err().to_string();
        assert!(error.contains("none.sock") && error.contains("[api]"), "{error}");
    }
}
