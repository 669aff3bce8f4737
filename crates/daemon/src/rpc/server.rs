//! The socket of the RPC server.
//!
//! The file mode guards it. A client may keep its connection open without requests, as SPDK's
//! clients do.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_rpc::{Frames, Incoming, Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::service::Service;
use crate::config::Rpc;
use crate::control::ControlHandle;
use crate::logs::{LogCategory, limited};
use crate::unix_socket::{SocketFile, unix_socket};

/// Maximum concurrent connections; further clients wait in the backlog of the socket.
const CONNECTIONS: usize = 64;
/// Pause after accept failed for lack of descriptors or memory, to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a client that does not read its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(75);
/// Bytes that one read returns at most.
const READ_SIZE: usize = 64 << 10;

/// The open socket, not served yet.
#[derive(Debug)]
pub(crate) struct RpcListener {
    file: SocketFile,
    unix: UnixListener,
}

/// The running server; dropping this stops it.
#[derive(Debug)]
pub(crate) struct RpcServer {
    task: JoinHandle<()>,
    _file: SocketFile,
}

impl RpcListener {
    /// Opens the socket of the config; logs a warning if that is not possible.
    ///
    /// Any user may occupy a path in `/var/tmp`, the folder of SPDK's clients. That must not
    /// prevent the service of hosts.
    pub(crate) fn open(config: &Rpc) -> Option<Self> {
        match unix_socket("rpc.socket", &config.socket, config.mode) {
            Ok((file, unix)) => Some(Self { file, unix }),
            Err(error) => {
                tracing::warn!(
                    "RPC is not served until the daemon is started again; hosts are served: \
                     {error:#}"
                );
                None
            }
        }
    }

    /// Starts to serve the socket.
    pub(crate) fn serve(self, handle: ControlHandle) -> RpcServer {
        tracing::info!(socket = %self.file.path().display(), "RPC listens on UNIX socket");
        let task = tokio::spawn(accept(self.unix, Service::new(handle)));
        RpcServer { task, _file: self.file }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: UnixListener, service: Service) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = service.clone();
                tokio::spawn(async move {
                    if let Err(error) = talk(stream, &service).await {
                        tracing::debug!(%error, "RPC client is gone");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                limited!(LogCategory::ConnectionRefused, warn, %error, "RPC cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers the requests of a connection in order, until the client closes it.
///
/// Bytes that are not JSON end the connection, because nothing shows where the next request begins.
async fn talk(mut stream: UnixStream, service: &Service) -> std::io::Result<()> {
    let mut frames = Frames::default();
    let mut bytes = vec![0; READ_SIZE];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        frames.push(&bytes[..count]);
        loop {
            match frames.next_value() {
                Ok(Some(value)) => {
                    answer(&mut stream, service, Incoming::of(value)).await?;
                }
                Ok(None) => break,
                Err(error) => return send_one(&mut stream, Response::to_unknown(&error)).await,
            }
        }
    }
}

/// Runs a request or the requests of a batch in order, and sends the responses.
async fn answer(
    stream: &mut UnixStream,
    service: &Service,
    incoming: Incoming,
) -> std::io::Result<()> {
    match incoming {
        Incoming::One(request) => send_one(stream, service.answer(request).await).await,
        Incoming::Batch(requests) => send_batch(stream, service, requests).await,
        Incoming::Invalid(error) => send_one(stream, Response::to_unknown(&error)).await,
    }
}

/// Sends the responses of a batch as elements of an array, each before the next request runs.
///
/// Memory is therefore bounded by one response.
async fn send_batch(
    stream: &mut UnixStream,
    service: &Service,
    requests: Vec<Request>,
) -> std::io::Result<()> {
    let mut opening = '[';
    for request in requests {
        if let Some(text) = service.answer(request).await.into_text() {
            send(stream, &format!("{opening}{text}")).await?;
            opening = ',';
        }
    }
    // Without a response, there is no array.
    if opening == ',' { send(stream, "]\n").await } else { Ok(()) }
}

async fn send_one(stream: &mut UnixStream, response: Response) -> std::io::Result<()> {
    let Some(text) = response.into_text() else { return Ok(()) };
    send(stream, &format!("{text}\n")).await
}

async fn send(stream: &mut UnixStream, text: &str) -> std::io::Result<()> {
    tokio::time::timeout(WRITE_TIMEOUT, stream.write_all(text.as_bytes())).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_cannot_be_opened_does_not_end_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("spdk.sock");
        std::fs::write(&socket, "foreign").unwrap();
        let config = Rpc { socket: socket.clone(), mode: 0o660 };
        assert!(RpcListener::open(&config).is_none());
        assert_eq!(std::fs::read_to_string(&socket).unwrap(), "foreign");
        std::fs::remove_file(&socket).unwrap();
        assert!(RpcListener::open(&config).is_some());
    }
}
