//! Listeners: each accepts on the control plane and hands its connections to reactors.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvmeof_nvmf::{PortId, Queue, Target};
use nvmeof_transport::ParkedQueue;
use nvmeof_transport::tcp::{self, TcpParams};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::place::place;
use crate::clock;
use crate::reactor::Load;
use crate::reactor::mailbox::{Message, Sender};

/// Pause after an accept failed for want of descriptors or memory, so as not to spin on it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The reactors as a listener sees them.
#[derive(Debug)]
pub(crate) struct Reactors {
    /// Their mailboxes.
    pub(crate) senders: Vec<Sender>,
    /// What each serves.
    pub(crate) loads: Arc<[Load]>,
    /// NUMA node of each, where known.
    pub(crate) nodes: Vec<Option<usize>>,
    /// Connections allowed in all.
    pub(crate) max_connections: usize,
}

impl Reactors {
    /// Connections served now.
    pub(crate) fn connections(&self) -> usize {
        self.loads.iter().map(|load| load.connections.load(Ordering::Relaxed)).sum()
    }
}

/// A listener that accepts until it is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Where it listens, with the real port.
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts accepting.
pub(crate) fn listen(
    listener: std::net::TcpListener,
    port: PortId,
    params: TcpParams,
    target: Arc<Target>,
    reactors: Arc<Reactors>,
) -> std::io::Result<Listening> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let task = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let accepted = hand_over(stream, peer, port, &params, &target, &reactors);
                    if let Err(error) = accepted {
                        tracing::warn!(%peer, %error, "connection refused");
                    }
                }
                Err(error) => {
                    tracing::warn!(%address, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(Listening { address, task })
}

fn hand_over(
    stream: TcpStream,
    peer: SocketAddr,
    port: PortId,
    params: &TcpParams,
    target: &Arc<Target>,
    reactors: &Reactors,
) -> anyhow::Result<()> {
    let (now_serving, max) = (reactors.connections(), reactors.max_connections);
    anyhow::ensure!(
        now_serving < max,
        "{now_serving} connections are open, and limits.connections allows no more"
    );
    let stream = stream.into_std()?;
    let index = place(&reactors.loads, &reactors.nodes, arrival_node(&stream));
    let local = stream.local_addr()?.ip();
    let mut queue = Box::new(Queue::new(target, port, &peer.to_string(), clock::now()));
    let parked: Box<dyn ParkedQueue> = tcp::accepted(stream, *params);
    queue.set_local_address(local);
    reactors.loads[index].connections.fetch_add(1, Ordering::Relaxed);
    reactors.senders[index].send(Message::Attach { parked, queue });
    Ok(())
}

/// The NUMA node of the CPU that a connection's packets arrive at.
fn arrival_node(stream: &std::net::TcpStream) -> Option<usize> {
    let cpu = rustix::net::sockopt::socket_incoming_cpu(stream.as_fd()).ok()?;
    super::place::node_of(usize::try_from(cpu).ok()?)
}

/// `tcp://address:port`, with IPv6 addresses in brackets.
pub(crate) fn url(transport: &str, address: SocketAddr) -> String {
    format!("{transport}://{address}")
}
