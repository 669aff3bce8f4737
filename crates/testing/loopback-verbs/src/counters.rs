//! Counters of live objects and of finished work, for assertions in tests.

/// Counters of a whole fabric: first the live objects, then counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Devices that are held, directly or by one of their objects.
    pub devices: usize,
    /// Live endpoints.
    pub endpoints: usize,
    /// Live completion queues.
    pub completion_queues: usize,
    /// Live shared receive queues.
    pub shared_queues: usize,
    /// Registered regions.
    pub regions: usize,
    /// Registered bytes.
    pub registered: u64,
    /// Tickets that are held or wait at a listener.
    pub tickets: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections that an endpoint or a ticket refers to.
    pub connections: usize,
    /// Work requests posted to send queues.
    pub sends_posted: u64,
    /// Receives posted, own and shared.
    pub receives_posted: u64,
    /// Work requests that ended, with or without a completion.
    pub ended: u64,
    /// Work requests that ended without success.
    pub failed: u64,
    /// Completions added to completion queues.
    pub completed: u64,
    /// Completions polled.
    pub polled: u64,
    /// Completions lost by a fault.
    pub lost: u64,
    /// Shared receives lost with a queue pair that was dropped before it had returned all that it
    /// took.
    pub receives_lost: u64,
    /// Bytes that SENDs carried.
    pub sent: u64,
    /// Bytes that RDMA READs moved.
    pub read: u64,
    /// Bytes that RDMA WRITEs moved.
    pub written: u64,
    /// Remote keys that a peer has invalidated.
    pub invalidated: u64,
    /// Number of times that an RDMA READ waited because the negotiated number was outstanding.
    pub read_stalls: u64,
    /// SENDs that found no receive.
    pub not_ready: u64,
    /// Regions dropped while posted work referred to them.
    pub misuses: u64,
}

/// Counters of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Work requests posted to the send queue.
    pub sends_posted: u64,
    /// Entries of the send queue in use: posted, and no completion of it or of a later work request
    /// was polled.
    pub sends_held: u64,
    /// Work requests of the send queue that have not ended.
    pub sends_waiting: usize,
    /// Receives posted to the endpoint's own queue.
    pub receives_posted: u64,
    /// Entries of the receive queue in use.
    pub receives_held: u64,
    /// Unused receives of the endpoint's own queue.
    pub receives_waiting: usize,
    /// RDMA READs that are outstanding.
    pub reads: u32,
    /// Maximum of RDMA READs that were outstanding concurrently.
    pub most_reads: u32,
    /// Number of times that an RDMA READ waited because the negotiated number was outstanding.
    pub read_stalls: u64,
    /// Rounds that SENDs waited for a receive of the peer.
    pub not_ready_rounds: u64,
}
