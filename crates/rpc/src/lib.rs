//! SPDK's JSON-RPC, as edits of a config document and as views of the running state. No I/O.
//!
//! ```text
//! bytes --frame--> message --find--> Method --query, activity--> result
//!                                      '------edit--> changed document, and the result
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `frame` | requests in a stream of bytes |
//! | `message` | a request or a batch, and responses |
//! | `error` | errors with the codes that SPDK's clients expect |
//! | `params` | parameters of a method, each read once |
//! | `state` | the running state that methods read |
//! | `methods` | the list of methods, and a file per role |
//!
//! To add a method, add a function to a file of `methods`, and a line to its list.

mod error;
mod frame;
mod message;
mod methods;
mod params;
mod state;

pub use error::RpcError;
pub use frame::{Frames, REQUEST_MAX};
pub use message::{BATCH_MAX, Incoming, Request, Response};
pub use methods::{ActivityMethod, EditMethod, EditResult, Method, MethodKind, QueryMethod, find};
pub use params::Params;
pub use state::{Activity, BdevCounters, BdevProperties, BdevProperty, State, TransportLimits};
