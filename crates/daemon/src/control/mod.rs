//! The control plane, which runs on tokio, outside the reactors' threads.
//!
//! It starts the reactors, handles signals and new connections, applies changed configs, and stops
//! cleanly. It has no sockets for its callers: [`ControlHandle`] takes their requests. `api`
//! serves HTTP on top of that, and `rpc` SPDK's JSON-RPC.
//!
//! | module | contents |
//! |---|---|
//! | `event_loop` | the loop: signals, timers, requests |
//! | `handle` | requests of the layers above, and their results |
//! | `running` | the running state and its config file |
//! | `server` | the running daemon: pool, target, reactors, devices, listeners |
//! | `apply` | conversion of a config to the target's desired state, at start and on reload |
//! | `identity` | identities of namespaces, by which hosts recognize them |
//! | `file` | the config file, read and written |
//! | `devices` | opening and closing block devices on every reactor |
//! | `quiesce` | commands that have to end before a removal is reported |
//! | `observe` | read-only access to the running state: metrics, and tracing of commands |
//! | `trace_session` | the one trace session |
//! | `stats` | statistics of the reactors: to a file, and to the log on SIGUSR1 |
//! | `pacing_log` | log lines about the state of the adaptive policy |
//! | `change_queue` | queue of changes: one at a time, while threads open the devices it needs |
//! | `config_rejected` | rejected configs, for the log and the API |
//! | `config_warnings` | settings that are allowed but probably unintended |
//! | `workers` | the threads for calls that block, all started in advance |
//! | `notify` | notifications to systemd: ready, reloading, stopping, keep-alive |
//! | `accept`, `place` | listeners, and the reactor that serves a connection |

mod accept;
mod announce;
mod apply;
mod change_queue;
mod config_rejected;
mod config_warnings;
mod devices;
mod event_loop;
mod file;
mod handle;
mod identity;
mod notify;
mod observe;
mod pacing_log;
mod place;
mod quiesce;
mod running;
mod server;
mod stats;
mod trace_session;
mod workers;

pub(crate) use config_warnings::{config_warnings, log_config_warnings};
pub(crate) use event_loop::{ControlLoop, Signals};
pub(crate) use handle::{ControlHandle, request_channel};
pub(crate) use identity::Identities;
pub(crate) use quiesce::StillBusy;
pub(crate) use running::{ChangeOptions, ControlState};
pub(crate) use server::RetryState;
pub(crate) use stats::{DeviceTotals, RecordOptions, Recorder};
pub(crate) use trace_session::TraceId;
pub(crate) use workers::runtime;
