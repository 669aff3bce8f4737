//! RDMA: connection requests from the connection manager, and the devices at which they arrive.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context as _;
use nvmeof_core::dma::{ChunkPool, MemoryRegistrar};
use nvmeof_transport::rdma::{Limits as HostLimits, RdmaParams, Registration, admit, served};
use nvmeof_verbs::system::{Listener, ListenerEvent, ListenerOptions, SystemDevice, SystemTicket};
use nvmeof_verbs::{Device as _, PendingConnection as _, VerbsError};
use nvmeof_wire::rdma::{RejectData, RejectStatus};
use nvmeof_wire::zerocopy::IntoBytes as _;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{BindError, Service};
use crate::config;
use crate::limits::{Limits, nanos};
use crate::logs::{LogCategory, limited};

/// Requests that the connection manager queues for us.
const BACKLOG: u32 = 1024;
/// Interval between checks that every device still exists.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// State shared by all RDMA listeners: the buffer memory, registered once per device.
#[derive(Debug)]
pub(crate) struct Rdma {
    pool: Arc<ChunkPool>,
    devices: Mutex<RegisteredDevice>,
}

#[derive(Debug, Default)]
struct RegisteredDevice {
    /// Devices that can serve hosts.
    serving: Vec<Arc<Registration<SystemDevice>>>,
    /// Devices that were removed but still have a queue.
    leaving: Vec<Arc<Registration<SystemDevice>>>,
    is_watched: bool,
}

impl Rdma {
    /// Creates it for the memory of `pool`; no device is in use yet.
    pub(crate) fn new(pool: &Arc<ChunkPool>) -> Arc<Self> {
        Arc::new(Self { pool: Arc::clone(pool), devices: Mutex::default() })
    }

    /// Returns the registration of the buffer memory with `device`; the first call registers it.
    fn registration(
        self: &Arc<Self>,
        device: &Arc<SystemDevice>,
    ) -> anyhow::Result<Arc<Registration<SystemDevice>>> {
        let mut known = self.known();
        let is_it = |one: &&Arc<Registration<_>>| Arc::ptr_eq(one.device(), device);
        if let Some(registration) = known.serving.iter().find(is_it) {
            return Ok(Arc::clone(registration));
        }
        served(&**device)?;
        let registration = Registration::new(device, &self.pool)
            .with_context(|| format!("{}: cannot register the buffer memory", device.name()))?;
        tracing::info!(device = device.name(), limits = ?device.limits(), "RDMA device in use");
        known.serving.push(Arc::clone(&registration));
        if !std::mem::replace(&mut known.is_watched, true) {
            tokio::spawn(watch(Arc::downgrade(self)));
        }
        Ok(registration)
    }

    /// Drops removed devices, each when its last queue has ended; that releases its registration.
    fn look(&self) {
        let mut known = self.known();
        let RegisteredDevice { serving, leaving, .. } = &mut *known;
        for gone in serving.extract_if(.., |one| !one.device().is_present()) {
            tracing::warn!(device = gone.device().name(), "RDMA device removed");
            leaving.push(gone);
        }
        // References: the pool, this list, and every queue that has not ended.
        for done in leaving.extract_if(.., |one| Arc::strong_count(one) <= 2) {
            let registrar: Arc<dyn MemoryRegistrar> = done;
            self.pool.remove_registrar(&registrar);
        }
    }

    fn known(&self) -> MutexGuard<'_, RegisteredDevice> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the devices periodically while listeners exist.
async fn watch(rdma: Weak<Rdma>) {
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        match rdma.upgrade() {
            Some(rdma) => rdma.look(),
            None => return,
        }
    }
}

/// A listener that has bound its address.
#[derive(Debug)]
pub(crate) struct BoundRdmaListener {
    rdma: Arc<Rdma>,
    listener: Listener,
    address: SocketAddr,
    settings: config::Rdma,
}

/// Binds an address.
pub(super) fn bind(
    rdma: &Arc<Rdma>,
    address: SocketAddr,
    v6_only: bool,
    settings: &config::Rdma,
) -> Result<BoundRdmaListener, BindError> {
    let options = ListenerOptions {
        device: settings.device.clone(),
        gid_index: settings.gid_index.map(u32::from),
        traffic_class: settings.traffic_class,
        v6_only,
    };
    let listener = Listener::bind(address, BACKLOG, &options).map_err(|error| {
        let kind = match &error {
            VerbsError::Call { source, .. } => Some(source.kind()),
            _ => None,
        };
        let error = anyhow::Error::from(error);
        BindError::of(error.context(format!("cannot listen at {address} for RDMA")), kind)
    })?;
    // Check and register the device now, not for the first host or under load.
    if let Some(device) = listener.device() {
        rdma.registration(device).map_err(BindError::Impossible)?;
    }
    if let Some(limit) = locked_memory().filter(|limit| *limit < rdma.pool.most()) {
        tracing::warn!(
            limit_mib = limit >> 20,
            buffers_mib = rdma.pool.most() >> 20,
            "buffers for RDMA are locked in memory and may exceed the limit of this process, so \
             that commands fail; raise the limit (ulimit -l, LimitMEMLOCK=infinity), or lower \
             limits.buffer-memory \
             and limits.connections"
        );
    }
    let settings = settings.clone();
    Ok(BoundRdmaListener {
        rdma: Arc::clone(rdma),
        address: listener.local_addr(),
        listener,
        settings,
    })
}

impl BoundRdmaListener {
    /// Returns the address at which it listens, with the actual port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the task is aborted or the listener fails; returns the reason of the failure.
    pub(super) async fn accept(self, service: Service) -> String {
        let Self { rdma, listener, settings, .. } = self;
        let params = params(&service.limits, &settings);
        match serve(listener, &rdma, params, &service).await {
            ListenerError::Device => "the RDMA device was removed".to_owned(),
            ListenerError::Address => "the address was removed from the RDMA device".to_owned(),
            ListenerError::Listener(error) => format!("the connection manager has failed: {error}"),
        }
    }
}

/// Reason why a listener can no longer accept.
enum ListenerError {
    Device,
    Address,
    Listener(std::io::Error),
}

/// Accepts until the listener fails, and drops it.
async fn serve(
    listener: Listener,
    rdma: &Arc<Rdma>,
    params: RdmaParams,
    service: &Service,
) -> ListenerError {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for want of a promise that `Watched` keeps: one descriptor, open as \
                  long as the listener lives"
    )]
    let watched = AsyncFd::with_interest(Watched(listener), Interest::READABLE);
    let mut watched = match watched {
        Ok(watched) => watched,
        Err(error) => return ListenerError::Listener(error),
    };
    loop {
        match watched.readable_mut().await {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => return ListenerError::Listener(error),
        }
        while let Some(event) = watched.get_mut().0.next() {
            match event {
                Ok(ListenerEvent::Request(ticket)) => {
                    let peer = ticket.peer();
                    if let Err(error) = hand_over(ticket, rdma, params, service) {
                        limited!(LogCategory::ConnectionRefused, warn, %peer, "connection refused: {error:#}");
                    }
                }
                Ok(ListenerEvent::DeviceRemoved) => return ListenerError::Device,
                Ok(ListenerEvent::AddressChanged) => return ListenerError::Address,
                Err(error) => {
                    limited!(LogCategory::ConnectionRefused, warn, %error, "connection refused");
                }
            }
        }
    }
}

fn hand_over(
    ticket: SystemTicket,
    rdma: &Arc<Rdma>,
    params: RdmaParams,
    service: &Service,
) -> anyhow::Result<()> {
    let registration = match service.reactors.has_room() {
        Ok(()) => rdma.registration(ticket.device()),
        Err(error) => Err(error),
    };
    let registration = match registration {
        Ok(registration) => registration,
        Err(error) => {
            ticket.reject(RejectData::new(RejectStatus::NO_RESOURCES).as_bytes());
            return Err(error);
        }
    };
    let has_controller = |cntlid| service.target.has_controller(cntlid);
    let max_qid = service.limits.settings.io_queues;
    let may_add_queue = |cntlid| service.target.may_add_queue(cntlid);
    let limits =
        HostLimits { max_qid, has_controller: &has_controller, may_add_queue: &may_add_queue };
    match admit(ticket, &registration, params, &limits) {
        Ok(parked) => {
            let host = parked.host();
            let queue = service.queue(host, parked.local());
            let node = node_of(registration.device().name());
            service.reactors.hand_over(Box::new(parked), queue, host, node);
            Ok(())
        }
        Err(reject) => {
            let refusal = anyhow::anyhow!("{}: {}", reject.status, reject.reason);
            reject.tell();
            Err(refusal)
        }
    }
}

fn params(limits: &Limits, settings: &config::Rdma) -> RdmaParams {
    RdmaParams {
        in_capsule: limits.settings.in_capsule,
        max_transfer: limits.settings.max_transfer,
        queue_depth: limits.nvmf().io_queue_depth(),
        admin_depth: limits.nvmf().admin_queue_depth(),
        handshake_timeout: nanos(limits.settings.connect_timeout),
        transfer_timeout: nanos(limits.settings.pdu_timeout),
        shared_receives: if settings.shared_receives {
            limits.shared_receives(settings.completion_queue_depth)
        } else {
            0
        },
        cq_depth: settings.completion_queue_depth,
        retries: settings.retry_count,
        rnr_retries: settings.rnr_retry_count,
        traffic_class: settings.traffic_class,
        ..RdmaParams::default()
    }
}

/// Returns the bytes of memory that this process may lock, if that is limited.
fn locked_memory() -> Option<usize> {
    let may_all = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::IPC_LOCK));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    limit.filter(|_| !may_all).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Returns the NUMA node of an RDMA device, if the system reports one.
fn node_of(device: &str) -> Option<usize> {
    let file = Path::new("/sys/class/infiniband").join(device).join("device/numa_node");
    // The file contains -1 on a machine without NUMA nodes; that fails to parse.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A listener with a file descriptor that tokio can watch.
#[derive(Debug)]
struct Watched(Listener);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd().as_raw_fd()
    }
}
