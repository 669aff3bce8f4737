//! The handle of a fabric: time, costs, and what hangs on it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock::RealTime;
use super::connection::{LoopbackListener, LoopbackTicket};
use super::counters::{Counters, EndpointCounters};
use super::device::{DeviceOptions, LoopbackDevice};
use super::faults::Faults;
use super::state::State;
use crate::error::VerbsError;

/// What things cost, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From a SEND's start to its arrival, without its bytes.
    pub send: u64,
    /// The same of an RDMA WRITE.
    pub write: u64,
    /// The same of an RDMA READ's request.
    pub read: u64,
    /// From an arrival to its acknowledgement, or to the answer of an RDMA READ without its bytes.
    pub answer: u64,
    /// At most so much is added to each of these, and to messages of the connection manager, by chance.
    pub jitter: u64,
    /// Bytes a microsecond of one queue pair in one direction; 0 for no limit.
    pub bytes_per_microsecond: u64,
    /// A message of the connection manager.
    pub message: u64,
    /// What the connection manager waits for an answer.
    pub patience: u64,
    /// A round of waiting for the peer to post a receive.
    pub not_ready: u64,
    /// What is waited for an acknowledgement before trying again.
    pub timeout: u64,
    /// At most so long after a queue pair failed its work requests are handed back.
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
    /// What `bytes` cost on the wire.
    pub(super) fn bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000).checked_div(self.bytes_per_microsecond).unwrap_or(0)
    }
}

/// Some devices that reach each other, and their time. Cheap to clone.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
}

// Everything of a fabric holds it: its state would be in every message many times.
impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// [`Self::settle`] takes what is further off than this for something that only happens when something
    /// else does not.
    const SETTLED: u64 = 10_000_000;

    /// An empty fabric. The same calls on a fabric of the same seed give the same.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(State::new(seed)) }) }
    }

    /// A device with the [default options](DeviceOptions::default).
    #[must_use]
    pub fn device(&self, name: &str) -> Arc<LoopbackDevice> {
        self.device_with(name, DeviceOptions::default())
    }

    /// A device.
    #[must_use]
    pub fn device_with(&self, name: &str, options: DeviceOptions) -> Arc<LoopbackDevice> {
        LoopbackDevice::new(self, name, options)
    }

    /// Takes connection requests for `address` to `device`.
    ///
    /// # Errors
    /// [`VerbsError::Call`] with `EADDRINUSE`, `ENODEV` for a removed device, or what the system says.
    pub fn listen(
        &self,
        device: &Arc<LoopbackDevice>,
        address: SocketAddr,
    ) -> Result<LoopbackListener, VerbsError> {
        LoopbackListener::new(device, address)
    }

    /// A resolved route from `device` to `address`. Whether anybody listens there shows when it is asked.
    #[must_use]
    pub fn route(&self, device: &Arc<LoopbackDevice>, address: SocketAddr) -> LoopbackTicket {
        LoopbackTicket::route(device, address)
    }

    /// Nanoseconds since the fabric was made.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// Lets `nanos` pass.
    pub fn advance(&self, nanos: u64) {
        let mut state = self.lock();
        let until = state.now.saturating_add(nanos);
        state.run_until(until);
    }

    /// Goes to the next event and lets it happen; false if there is none.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Lets time pass until nothing is to happen for 10 ms. That leaves out the connection manager's
    /// patience ([`Costs::patience`]), and whoever waits for a receive for ever.
    pub fn settle(&self) {
        let mut state = self.lock();
        while state.next_time().is_some_and(|next| next <= state.now + Self::SETTLED) {
            state.step();
        }
    }

    /// Has time follow the clock until the value is dropped, for tests whose threads sleep. The same seed
    /// does not give the same then.
    ///
    /// # Errors
    /// The system's, if it has no thread left.
    pub fn follow_clock(&self) -> io::Result<RealTime> {
        RealTime::start(self.clone())
    }

    /// What things cost from now on.
    pub fn set_costs(&self, costs: Costs) {
        self.lock().costs = costs;
    }

    /// What things cost.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.lock().costs
    }

    /// What is to go wrong.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(self)
    }

    /// What there is and what was done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lock().counters()
    }

    /// The same of the endpoint with this number; `None` when it is gone.
    #[must_use]
    pub fn endpoint(&self, number: u32) -> Option<EndpointCounters> {
        self.lock().queue_pairs.get(&number).map(|queue_pair| queue_pair.counters())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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

/// The address of the device with this number: of the block for documentation (RFC 5737).
pub(super) fn address_of(number: u32) -> IpAddr {
    let [.., low] = number.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, low))
}
