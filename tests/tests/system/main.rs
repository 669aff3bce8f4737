//! Tests of whole programs: the daemon, its API, its hosts and its tools, as users run them.

mod control;
mod control_access;
mod data;
mod delay;
mod docs;
mod heal;
mod hostile;
mod identity;
mod load_generator;
mod observe;
mod pacing;
mod queues;
mod rdma_pair;
mod reload;
mod spdk_rpc;
mod stacked;
mod startup;
mod stats;
mod steady;
mod surroundings;
mod tenants;
mod torture;
mod wire_input;
