//! Messages between both ends over TCP before the measurement: JSON lines. The end of the connection
//! ends the measurement.
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

/// Version of the messages.
pub(crate) const VERSION: u32 = 1;
/// Maximum bytes of a line.
const MAX_LINE: usize = 4096;
/// Maximum time to wait for a line.
const PATIENCE: Duration = Duration::from_secs(10);

/// First message of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Banner {
    pub(crate) version: u32,
    /// Maximum packet size of its device.
    pub(crate) mtu: Mtu,
}

impl Banner {
    /// Returns the packet size of both ends, given this end's maximum `ours`.
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

/// Request of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Bytes of a request.
    pub(crate) block: u32,
    /// Outstanding requests; each needs one block of memory.
    pub(crate) depth: u32,
    /// Packet size to use, at most the banner's.
    pub(crate) mtu: Mtu,
    pub(crate) endpoint: QueuePairEndpoint,
}

impl Hello {
    /// Returns the requested bytes of memory.
    ///
    /// # Errors
    /// The invalid field.
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

/// Response of a server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Its queue pair is connected.
    Ready {
        endpoint: QueuePairEndpoint,
        /// All blocks, consecutively.
        memory: MrToken,
    },
    /// The server cannot serve the request.
    Refused { why: String },
}

/// Sends one line.
///
/// # Errors
/// The socket's error.
pub(crate) async fn send(stream: &mut TcpStream, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line).await.context("the other end is gone")
}

/// Receives one line.
///
/// # Errors
/// No line arrived, or it is too long or invalid.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> Result<T> {
    let line = timeout(PATIENCE, line(stream))
        .await
        .with_context(|| format!("the other end said nothing for {} s", PATIENCE.as_secs()))??;
    serde_json::from_slice(&line).context("the other end does not speak as this program does")
}

async fn line(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        // One line in each direction: a larger read would save nothing.
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
