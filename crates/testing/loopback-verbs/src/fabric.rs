//! The handle of a fabric: time, costs and objects.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_verbs::VerbsError;

use crate::clock::RealTime;
use crate::connection::{LoopbackListener, LoopbackTicket};
use crate::counters::{Counters, EndpointCounters};
use crate::device::{DeviceOptions, LoopbackDevice};
use crate::faults::Faults;
use crate::state::State;

/// Costs of operations, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From the start of a SEND to its arrival, without its bytes.
    pub send: u64,
    /// From the start of an RDMA WRITE to its arrival, without its bytes.
    pub write: u64,
    /// From the start of an RDMA READ to the arrival of its request.
    pub read: u64,
    /// From an arrival to its acknowledgment, or to the response of an RDMA READ without its
    /// bytes.
    pub answer: u64,
    /// Maximum random addition to each of these costs, and to messages of the connection manager.
    pub jitter: u64,
    /// Bytes per microsecond of one queue pair in one direction; 0 for no limit.
    pub bytes_per_microsecond: u64,
    /// A message of the connection manager.
    pub message: u64,
    /// Timeout of the connection manager for a reply.
    pub patience: u64,
    /// A round of waiting for the peer to post a receive.
    pub not_ready: u64,
    /// Timeout for an acknowledgment before a retry.
    pub timeout: u64,
    /// Maximum delay from a queue pair's failure until its work requests are flushed.
    pub flush: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            send: 1_000,
            write: 1_000,
            read: 1_000,
            answer: 1_000,
            jitter: 1_500,
            bytes_per_microsecond: 10_000,
            message: 5_000,
            patience: 30_000_000_000,
            not_ready: 20_000,
            timeout: 100_000,
            flush: 4_000,
        }
    }
}

impl Costs {
    /// Returns the time of `bytes` on the wire.
    pub(crate) fn bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000).checked_div(self.bytes_per_microsecond).unwrap_or(0)
    }
}

/// A set of devices that reach each other, and their time. Cheap to clone.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<FabricInner>,
}

struct FabricInner {
    state: Mutex<State>,
}

// Every object of a fabric holds it, so a derived output would repeat its state in every message.
impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// [`Self::settle`] treats an event further in the future than this as a timeout.
    const SETTLED: u64 = 10_000_000;

    /// Creates an empty fabric. The same calls with the same seed have the same results.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { shared: Arc::new(FabricInner { state: Mutex::new(State::new(seed)) }) }
    }

    /// Creates a device with the [default options](DeviceOptions::default).
    #[must_use]
    pub fn device(&self, name: &str) -> Arc<LoopbackDevice> {
        self.device_with(name, DeviceOptions::default())
    }

    /// Creates a device with `options`.
    #[must_use]
    pub fn device_with(&self, name: &str, options: DeviceOptions) -> Arc<LoopbackDevice> {
        LoopbackDevice::new(self, name, options)
    }

    /// Listens at `address`; connection requests go to `device`.
    ///
    /// # Errors
    /// [`VerbsError::Call`] with `EADDRINUSE`, with `ENODEV` for a removed device, or with the
    /// error of the system.
    pub fn listen(
        &self,
        device: &Arc<LoopbackDevice>,
        address: SocketAddr,
    ) -> Result<LoopbackListener, VerbsError> {
        LoopbackListener::new(device, address)
    }

    /// Returns a resolved route from `device` to `address`. A missing listener shows only when the
    /// connection is requested.
    #[must_use]
    pub fn route(&self, device: &Arc<LoopbackDevice>, address: SocketAddr) -> LoopbackTicket {
        LoopbackTicket::route(device, address)
    }

    /// Nanoseconds since the fabric was created.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// Advances the time by `nanos`.
    pub fn advance(&self, nanos: u64) {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        state.run_until(until);
    }

    /// Advances to the next event and processes it. Returns false if there is none.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Advances the time until no event is due within 10 ms. It does not wait for the connection
    /// manager's timeouts ([`Costs::patience`]), nor for a SEND that waits for a receive without
    /// limit.
    pub fn settle(&self) {
        let mut state = self.lock();
        while state.next_time().is_some_and(|next| next <= state.now + Self::SETTLED) {
            state.step();
        }
    }

    /// Makes the time follow the clock until the value is dropped, for tests whose threads sleep.
    /// Results then no longer depend on the seed alone.
    ///
    /// # Errors
    /// The error of the system, if it cannot create a thread.
    pub fn follow_clock(&self) -> io::Result<RealTime> {
        RealTime::start(self.clone())
    }

    /// Sets the costs from now on.
    pub fn set_costs(&self, costs: Costs) {
        self.lock().costs = costs;
    }

    /// Returns the costs.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.lock().costs
    }

    /// Returns the handle to inject faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(self)
    }

    /// Returns the counters of the fabric.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lock().counters()
    }

    /// Returns the counters of the endpoint with this number; `None` after it is gone.
    #[must_use]
    pub fn endpoint(&self, number: u32) -> Option<EndpointCounters> {
        self.lock().queue_pairs.get(&number).map(|queue_pair| queue_pair.counters())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn counters(&self) -> Counters {
        let waiting: usize = self.listeners.values().map(|listener| listener.waiting.len()).sum();
        Counters {
            devices: self.devices.len(),
            endpoints: self.queue_pairs.len(),
            completion_queues: self.completion_queues.len(),
            shared_queues: self.shared_queues.len(),
            regions: self.regions.len(),
            registered: self.regions.values().map(|region| region.span.len() as u64).sum(),
            tickets: self.counters.tickets + waiting,
            listeners: self.listeners.len(),
            connections: self.connections.len(),
            ..self.counters
        }
    }
}

/// Address of the device with this number, from the block for documentation (RFC 5737).
pub(crate) fn address_of(number: u32) -> IpAddr {
    let [.., low] = number.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, low))
}
