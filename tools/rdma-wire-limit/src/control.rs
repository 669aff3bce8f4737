//! What both ends tell each other over TCP before anything is measured: JSON lines; the end of the connection
//! is the end of the measurement.
//!
//! ```text
//!   server: Banner --> client: Hello --> server: Answer --> requests by RDMA --> client closes
//! ```

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_rdma::{MrToken, QueuePairEndpoint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::{MAX_BLOCK, MAX_DEPTH, Mtu};

/// Changes with what the lines mean.
pub(crate) const VERSION: u32 = 1;
/// Longest line, bytes.
const MAX_LINE: usize = 4096;
/// Longest wait for a line.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a server says first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Banner {
    pub(crate) version: u32,
    /// Largest packets its device takes.
    pub(crate) mtu: Mtu,
}

impl Banner {
    /// The packets both ends take, of which ours takes `ours`.
    ///
    /// # Errors
    /// The server is of another version.
    pub(crate) fn mtu(&self, ours: Mtu) -> Result<Mtu> {
        if self.version != VERSION {
            bail!(
                "the server speaks version {}, this client {VERSION}: use one build",
                self.version
            );
        }
        Ok(self.mtu.min(ours))
    }
}

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Bytes of a request.
    pub(crate) block: u32,
    /// Requests outstanding: so many blocks of memory are needed.
    pub(crate) depth: u32,
    /// Packets to use; not above the banner's.
    pub(crate) mtu: Mtu,
    pub(crate) endpoint: QueuePairEndpoint,
}

impl Hello {
    /// Bytes of memory that are asked for.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn memory(&self, most: u64) -> Result<u64> {
        if !(1..=MAX_BLOCK).contains(&self.block) || !(1..=MAX_DEPTH).contains(&self.depth) {
            bail!("{} requests of {} bytes are out of bounds", self.depth, self.block);
        }
        let bytes = u64::from(self.block) * u64::from(self.depth);
        if bytes > most {
            bail!(
                "{} requests of {} bytes take {bytes} bytes, and the server lends {most}: ask for less, \
                 or start it with a larger --memory",
                self.depth,
                self.block
            );
        }
        Ok(bytes)
    }
}

/// What a server answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Its queue pair stands.
    Ready {
        endpoint: QueuePairEndpoint,
        /// All blocks, one behind the other.
        memory: MrToken,
    },
    /// It cannot.
    Refused { why: String },
}

/// Sends one line.
///
/// # Errors
/// What the socket says.
pub(crate) async fn send(stream: &mut TcpStream, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line).await.context("the other end is gone")
}

/// Receives one line.
///
/// # Errors
/// None came, it is too long, or it means nothing here.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> Result<T> {
    let line = timeout(PATIENCE, line(stream))
        .await
        .with_context(|| format!("the other end said nothing for {} s", PATIENCE.as_secs()))??;
    serde_json::from_slice(&line).context("the other end does not speak as this program does")
}

async fn line(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        // A line each way: nothing is behind it that a larger read would save.
        let byte = stream.read_u8().await.context("the other end is gone")?;
        if byte == b'\n' {
            return Ok(line);
        }
        if line.len() == MAX_LINE {
            bail!("the other end's line is longer than {MAX_LINE} bytes");
        }
        line.push(byte);
    }
}

/// Waits until the other end closes the connection.
pub(crate) async fn closed(stream: &mut TcpStream) {
    let mut rest = [0; 64];
    while let Ok(1..) = stream.read(&mut rest).await {}
}
