//! Listeners: each accepts on the control plane and passes its connections to reactors.

mod rdma;
mod tcp;
mod unconnected;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvmeof_nvmf::{PortId, Queue, Target};
use nvmeof_transport::DetachedQueue;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::place::choose_reactor;
use crate::clock;
use crate::config::{Fabric, Listener};
use crate::limits::Limits;
use crate::logs::{LogCategory, limited};
use crate::reactor::ReactorLoad;
use crate::reactor::mailbox::{Message, Sender};

pub(crate) use rdma::Rdma;
pub(crate) use unconnected::Unconnected;
use unconnected::UnconnectedSlot;

/// The reactors, from the view of a listener.
#[derive(Debug)]
pub(crate) struct Reactors {
    /// Their mailboxes.
    pub(crate) senders: Vec<Sender>,
    /// Load of each reactor.
    pub(crate) loads: Arc<[ReactorLoad]>,
    /// NUMA node of each reactor, where known.
    pub(crate) nodes: Vec<Option<usize>>,
    /// Maximum number of connections, including those before Connect.
    pub(crate) max_connections: usize,
    /// Connections that have not sent Connect.
    pub(crate) unconnected: Unconnected,
}

impl Reactors {
    /// Returns the number of connections being served.
    pub(crate) fn connections(&self) -> usize {
        self.loads.iter().map(|load| load.connections.load(Ordering::Relaxed)).sum()
    }

    /// Checks that another connection is allowed.
    fn has_room(&self) -> anyhow::Result<()> {
        let (now_serving, max) = (self.connections(), self.max_connections);
        anyhow::ensure!(
            now_serving < max,
            "{now_serving} connections are open, including those before Connect: \
             limits.connections is reached"
        );
        Ok(())
    }

    /// Passes a connection to a reactor; `node` is where its packets arrive, if that is known.
    fn hand_over(
        &self,
        parked: Box<dyn DetachedQueue>,
        mut queue: Box<Queue>,
        from: SocketAddr,
        node: Option<usize>,
    ) {
        let number = parked.number();
        let index = choose_reactor(&self.loads, &self.nodes, node, number);
        let here = UnconnectedSlot { reactor: index, id: queue.id() };
        let (token, replaced) = self.unconnected.admit(from.ip(), here);
        queue.keep_until_connect(token);
        if let Some(UnconnectedSlot { reactor, id }) = replaced {
            limited!(
                LogCategory::ConnectionRefused,
                warn,
                peer = %from,
                "a connection that has sent no Connect is closed for a new one: there are as many as \
                 limits.connections allows before Connect"
            );
            // No caller waits for the answer.
            self.senders[reactor].send(Message::Disconnect { id, reply: oneshot::channel().0 });
        }
        if number.is_some_and(|qid| qid > 0) {
            self.loads[index].io_queues.fetch_add(1, Ordering::Relaxed);
        }
        self.loads[index].connections.fetch_add(1, Ordering::Relaxed);
        self.senders[index].send(Message::Attach { parked, queue });
    }
}

/// The context that a listener accepts connections for.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// The port that hosts connect to.
    pub(crate) port: PortId,
    /// Target of the connections.
    pub(crate) target: Arc<Target>,
    /// Reactors that serve them.
    pub(crate) reactors: Arc<Reactors>,
    /// Limits of their connections.
    pub(crate) limits: Limits,
    /// Notified when a listener has ended.
    pub(crate) ended: Arc<Notify>,
}

impl Service {
    /// Creates the queue of a new connection.
    fn queue(&self, peer: SocketAddr, local: SocketAddr) -> Box<Queue> {
        let mut queue =
            Box::new(Queue::new(&self.target, self.port, &peer.to_string(), clock::now()));
        // A host that uses IPv4 has an IPv6 address at a listener at "::".
        queue.set_local_address(local.ip().to_canonical());
        queue
    }
}

/// A listener that has its address but does not accept yet.
#[derive(Debug)]
pub(crate) enum BoundListener {
    Tcp(tcp::BoundTcpListener),
    Rdma(rdma::BoundRdmaListener),
}

impl BoundListener {
    /// Returns the address at which it will listen, with the actual port.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Tcp(bound) => bound.address(),
            Self::Rdma(bound) => bound.address(),
        }
    }

    /// Starts accepting.
    pub(crate) fn listen(self, service: Service) -> Listening {
        let address = self.address();
        let bell = NotifyOnDrop(Arc::clone(&service.ended));
        let task = tokio::spawn(async move {
            // Dropped last: a waiter that it notifies may bind the address again.
            let _bell = bell;
            match self {
                Self::Tcp(bound) => bound.accept(service).await,
                Self::Rdma(bound) => bound.accept(service).await,
            }
        });
        Listening { address, task }
    }
}

/// Notifies a waiter when a task ends for any reason.
#[derive(Debug)]
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Reason why a listener failed to bind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// Another socket listens at the address.
    #[error("{}", said(.0))]
    Taken(anyhow::Error),
    /// The listener cannot work on this machine.
    #[error("{}", said(.0))]
    Impossible(anyhow::Error),
}

impl BindError {
    /// Classifies an error by its kind.
    fn of(error: anyhow::Error, kind: Option<std::io::ErrorKind>) -> Self {
        match kind {
            Some(std::io::ErrorKind::AddrInUse) => Self::Taken(error),
            _ => Self::Impossible(error),
        }
    }
}

/// Formats an error and its causes, without causes that the text already ends with.
fn said(error: &anyhow::Error) -> String {
    let mut all = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match (all.is_empty(), all.ends_with(&cause)) {
            (true, _) => all = cause,
            (false, true) => {}
            (false, false) => all = format!("{all}: {cause}"),
        }
    }
    all
}

/// Binds the address of a listener of the config.
pub(crate) fn bind(wanted: &Listener, rdma: &Arc<Rdma>) -> Result<BoundListener, BindError> {
    let address = SocketAddr::new(wanted.address, wanted.port);
    match wanted.fabric {
        Fabric::Tcp => tcp::bind(address, wanted.v6_only).map(BoundListener::Tcp),
        Fabric::Rdma => {
            rdma::bind(rdma, address, wanted.v6_only, &wanted.rdma).map(BoundListener::Rdma)
        }
    }
}

/// A listener that accepts until it is dropped or [has ended](Self::has_ended).
#[derive(Debug)]
pub(crate) struct Listening {
    /// Address at which it listens, with the actual port.
    pub(crate) address: SocketAddr,
    /// Ends, with the reason, when the listener can no longer accept.
    task: JoinHandle<String>,
}

impl Listening {
    /// Returns true if it can no longer accept, for example because its device was removed.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it as if its socket had failed.
    #[cfg(test)]
    pub(crate) fn break_off(&self) {
        self.task.abort();
    }

    /// Returns the reason why it has ended.
    pub(crate) async fn why_ended(mut self) -> String {
        (&mut self.task)
            .await
            .unwrap_or_else(|_| "the listener task was cancelled or panicked".to_owned())
    }

    /// Ends it; afterwards the address is free.
    pub(crate) async fn close(mut self) {
        self.task.abort();
        // The task's resources are dropped when it has ended, for whatever reason it ended.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Formats an address as `tcp://address:port`, with IPv6 addresses in brackets.
pub(crate) fn url(transport: &str, address: SocketAddr) -> String {
    format!("{transport}://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_listener_cannot_be_bound_is_said_once() {
        // No machine has an address that is reserved for documentation.
        let address = "192.0.2.9:4420".parse().unwrap();
        let error = tcp::bind(address, false).unwrap_err().to_string();
        assert_eq!(error.matches("os error").count(), 1, "{error}");
        assert!(error.starts_with("cannot listen at 192.0.2.9:4420"), "{error}");
        let error = anyhow::anyhow!("no").context("cannot be had").context("a listener");
        assert_eq!(BindError::of(error, None).to_string(), "a listener: cannot be had: no");
    }
}
