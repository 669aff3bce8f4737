//! SPDK's JSON-RPC over a UNIX socket.
//!
//! ```text
//! client --JSON--> server (socket, requests in order) --> service --> a method of nvmeof_rpc
//!                                                           |  ControlHandle: query, or change
//!                                                           v
//!                  response <------------------- control loop: ControlState, one change each
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `server` | the socket: opened, bounded |
//! | `service` | calls of methods |
//! | `snapshot` | the running state as methods read it |

mod server;
mod service;
mod snapshot;

pub(crate) use server::RpcListener;
