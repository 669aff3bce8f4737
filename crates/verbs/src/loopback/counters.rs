//! What there is and what was done, for tests to assert on.

/// Of a whole fabric. What lives first; the others only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Devices somebody holds, or something of which lives.
    pub devices: usize,
    /// Endpoints that live.
    pub endpoints: usize,
    /// Completion queues that live.
    pub completion_queues: usize,
    /// Shared receive queues that live.
    pub shared_queues: usize,
    /// Registered regions.
    pub regions: usize,
    /// Their bytes.
    pub registered: u64,
    /// Tickets that somebody holds or that wait at a listener.
    pub tickets: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections that an endpoint or a ticket knows of.
    pub connections: usize,
    /// Work requests posted to send queues.
    pub sends_posted: u64,
    /// Receives posted, own and shared.
    pub receives_posted: u64,
    /// Work requests that ended, with or without a completion.
    pub ended: u64,
    /// Those of them that did not end well.
    pub failed: u64,
    /// Completions put into completion queues.
    pub completed: u64,
    /// Completions polled.
    pub polled: u64,
    /// Completions lost by a fault.
    pub lost: u64,
    /// Shared receives that went with a queue pair that was dropped before it had given back what it took.
    pub receives_lost: u64,
    /// Bytes that SENDs carried.
    pub sent: u64,
    /// Bytes that RDMA READs moved.
    pub read: u64,
    /// Bytes that RDMA WRITEs moved.
    pub written: u64,
    /// Remote keys that a peer has invalidated.
    pub invalidated: u64,
    /// Times an RDMA READ had to wait because as many as were negotiated were outstanding.
    pub read_stalls: u64,
    /// SENDs that found no receive.
    pub not_ready: u64,
    /// Regions dropped while posted work named them.
    pub misuses: u64,
}

/// Of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Work requests posted to the send queue.
    pub sends_posted: u64,
    /// Places of the send queue that are taken: posted, and no later completion was polled.
    pub sends_held: u64,
    /// Work requests of the send queue that have not ended.
    pub sends_waiting: usize,
    /// Receives posted to its own queue.
    pub receives_posted: u64,
    /// Places of the receive queue that are taken.
    pub receives_held: u64,
    /// Receives of its own queue that nothing has come into.
    pub receives_waiting: usize,
    /// RDMA READs that are outstanding.
    pub reads: u32,
    /// Most that were at once.
    pub most_reads: u32,
    /// Times an RDMA READ had to wait because as many as were negotiated were outstanding.
    pub read_stalls: u64,
    /// Rounds that SENDs waited for a receive of the peer.
    pub not_ready_rounds: u64,
}
