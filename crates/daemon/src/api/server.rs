//! Sockets of the API.
//!
//! The daemon opens them before anything else, so that two daemons never serve the same socket.
//! File mode or token guards them. Bounds keep clients from delaying the daemon: the number of
//! connections, and the time for a head, a body and an answer.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_io_timeout::TimeoutStream;

use super::error_response::by_address;
use super::service;
use super::token::Token;
use crate::config::Api;
use crate::control::ControlHandle;
use crate::logs::{LogCategory, limited};
use crate::unix_socket::{SocketFile, unix_socket};

/// Maximum concurrent client connections; further clients receive a 503 and retry.
const CONNECTIONS: usize = 64;
/// Timeouts of client connections.
const PATIENCE: ClientTimeouts =
    ClientTimeouts { head: Duration::from_secs(10), stall: Duration::from_secs(75) };
/// Pause after accept failed for lack of descriptors or memory, to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause between attempts to listen at an address that does not exist yet.
const LATE_PAUSE: Duration = Duration::from_secs(2);
/// Response to a client beyond the maximum.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\n\r\n{\"error\":\"unavailable\",\
    \"what\":\"too many connections\",\"where\":\"\",\"hint\":\"try again\"}";

/// Timeouts of a client connection.
#[derive(Debug, Clone, Copy)]
struct ClientTimeouts {
    /// Timeout for the head of a request, from when the connection is free for it.
    head: Duration,
    /// Timeout while the client sends nothing of a body, or accepts nothing of an answer.
    stall: Duration,
}

/// Open sockets that are not served yet.
#[derive(Debug)]
pub(crate) struct ApiListener {
    file: SocketFile,
    unix: UnixListener,
    tcp: Vec<TcpListener>,
    /// Addresses that do not exist yet.
    late: Vec<SocketAddr>,
    token: Option<Token>,
}

/// Checks the config's `[api]` without serving it. With `serves`, the token has to be readable.
///
/// # Errors
/// The token cannot be read, its file contains none, or users other than its owner have access to
/// it.
pub(crate) fn check(config: &Api, serves: bool) -> anyhow::Result<()> {
    let Some(file) = config.token_file.as_deref() else { return Ok(()) };
    match serves {
        true => Token::read(file, config.insecure).map(drop),
        false => Token::check(file, config.insecure),
    }
}

/// The running API; dropping this stops it.
#[derive(Debug)]
pub(crate) struct ApiServer {
    tasks: Vec<JoinHandle<()>>,
    _file: SocketFile,
}

impl ApiListener {
    /// Opens the sockets of the config.
    ///
    /// # Errors
    /// Another daemon serves the socket, a file or an address is not available, or the token cannot
    /// be read.
    pub(crate) fn open(config: &Api) -> anyhow::Result<Self> {
        let token = config.token_file.as_deref();
        let token = token.map(|file| Token::read(file, config.insecure)).transpose()?;
        let (file, unix) = unix_socket("api.socket", &config.socket, config.mode)?;
        let (mut tcp, mut late) = (Vec::new(), Vec::new());
        for &address in &config.listen {
            match tcp_socket(address) {
                Ok(listener) => tcp.push(listener),
                // Hosts and the UNIX socket are served even while the operators' network is down.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    tracing::warn!(%address, %error, "api.listen: cannot listen yet, retrying");
                    late.push(address);
                }
                Err(error) => {
                    let what = format!(
                        "api.listen: {address} is in use; stop the other server or change the \
                         address"
                    );
                    return Err(anyhow::Error::from(error).context(what));
                }
            }
        }
        Ok(Self { file, unix, tcp, late, token })
    }

    /// Starts to serve the sockets.
    pub(crate) fn serve(self, handle: ControlHandle) -> ApiServer {
        let (router, _) = service(handle);
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut tasks = Vec::new();
        tracing::info!(socket = %self.file.path().display(), "API listens on UNIX socket");
        let guarded = match self.token {
            Some(token) => token.ask(router.clone()),
            None => by_address(router.clone()),
        };
        for listener in self.tcp {
            if let Ok(address) = listener.local_addr() {
                tracing::warn!(
                    %address,
                    "API listens on TCP without encryption; use it on trusted networks only"
                );
            }
            tasks.push(tokio::spawn(accept_tcp(listener, guarded.clone(), Arc::clone(&room))));
        }
        for address in self.late {
            tasks.push(tokio::spawn(accept_late(address, guarded.clone(), Arc::clone(&room))));
        }
        tasks.push(tokio::spawn(accept_unix(self.unix, router, room)));
        ApiServer { tasks, _file: self.file }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn tcp_socket(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept_unix(listener: UnixListener, router: Router, room: Arc<Semaphore>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(stream, &router, &room, PATIENCE),
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_tcp(listener: TcpListener, router: Router, room: Arc<Semaphore>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(stream, &router, &room, PATIENCE),
            Err(error) => pause(&error).await,
        }
    }
}

/// Retries to listen until the address exists, and then accepts.
async fn accept_late(address: SocketAddr, router: Router, room: Arc<Semaphore>) {
    let listener = loop {
        tokio::time::sleep(LATE_PAUSE).await;
        match tcp_socket(address) {
            Ok(listener) => break listener,
            Err(error) => tracing::debug!(%address, %error, "api.listen: not yet"),
        }
    };
    tracing::warn!(
        %address,
        "API listens on TCP without encryption; use it on trusted networks only"
    );
    accept_tcp(listener, router, room).await;
}

async fn pause(error: &std::io::Error) {
    limited!(LogCategory::ConnectionRefused, warn, %error, "the API cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Serves a client, or rejects it at the maximum.
fn admit<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    router: &Router,
    room: &Arc<Semaphore>,
    patience: ClientTimeouts,
) {
    match Arc::clone(room).try_acquire_owned() {
        Ok(place) => {
            tokio::spawn(talk(stream, router.clone(), place, patience));
        }
        Err(_) => {
            tokio::spawn(async move {
                let mut stream = Box::pin(stream);
                // The response fits the socket's buffer. A client that does not read it gets no
                // response.
                let _ = tokio::time::timeout(ACCEPT_PAUSE, stream.write_all(FULL)).await;
            });
        }
    }
}

/// Serves one connection until the client closes it.
async fn talk<S>(stream: S, router: Router, place: OwnedSemaphorePermit, patience: ClientTimeouts)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_read_timeout(Some(patience.stall));
    stream.set_write_timeout(Some(patience.stall));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a caller of the API is gone");
    }
    drop(place);
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::routing::post;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn an_address_that_comes_late_is_served_then() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let router = Router::new().route("/", post(async || "served"));
        let task = tokio::spawn(accept_late(address, router, Arc::new(Semaphore::new(1))));
        drop(other);
        let mut answer = String::new();
        while answer.is_empty() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else { continue };
            let ask =
                b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(ask).await.unwrap();
            stream.read_to_string(&mut answer).await.unwrap();
        }
        assert!(answer.ends_with("served"), "{answer}");
        task.abort();
    }

    /// A missing address does not prevent the socket from being served; an address in use does.
    #[tokio::test]
    async fn an_address_that_is_not_there_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let with = |address: SocketAddr| {
            let socket = folder.path().join("api.sock");
            let listen = vec![address];
            ApiListener::open(&Api {
                socket,
                mode: 0o600,
                listen,
                token_file: None,
                insecure: true,
            })
        };
        let error = with(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("stop the other server"), "{error}");
        // An address of the documentation block.
        let listener = with("192.0.2.1:4480".parse().unwrap()).unwrap();
        assert_eq!((listener.tcp.len(), listener.late.len()), (0, 1));
    }

    #[tokio::test]
    async fn callers_that_stop_in_the_middle_lose_their_places() {
        let answer = "x".repeat(1 << 20);
        let router = Router::new().route(
            "/",
            post(move |_: Bytes| {
                let answer = answer.clone();
                async { answer }
            }),
        );
        let room = Arc::new(Semaphore::new(2));
        let short =
            ClientTimeouts { head: Duration::from_millis(50), stall: Duration::from_millis(100) };
        let whole = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab";
        let half = whole.strip_suffix('b').unwrap();
        for said in ["", "POST / HT", "POST / HTTP/1.1\r\n", half, whole] {
            // Maximum of an answer that the client accepts.
            let (mut caller, stream) = tokio::io::duplex(1024);
            caller.write_all(said.as_bytes()).await.unwrap();
            admit(stream, &router, &room, short);
            assert_eq!(room.available_permits(), 1, "{said}");
            // Both permits are free only after the stalled client has lost its own.
            let guard = Duration::from_secs(60);
            let all = tokio::time::timeout(guard, room.acquire_many(2)).await;
            assert!(all.is_ok(), "{said}: it keeps its place");
            let mut got = Vec::new();
            caller.read_to_end(&mut got).await.unwrap();
            assert!(got.len() <= 1024, "{said}: {} bytes", got.len());
        }
    }
}
