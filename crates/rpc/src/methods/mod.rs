//! The methods: one list, and a file per role.
//!
//! | file | methods |
//! |---|---|
//! | `framework` | versions, the list of methods, reactors, and settings without effect here |
//! | `saved` | the running config in SPDK's form |
//! | `transports`, `subsystems`, `namespaces`, `hosts`, `listeners`, `referrals` | the target |
//! | `connections`, `counters` | activity of hosts |
//! | `bdevs` | all devices: views, deletion, limits |
//! | `storage`, `layers` | creation of devices with data, and of devices on other devices |

mod bdevs;
mod connections;
mod counters;
mod framework;
mod hosts;
mod layers;
mod listeners;
mod namespaces;
mod referrals;
mod saved;
mod storage;
mod subsystems;
mod transports;

use nvmeof_api::document::{DISCOVERY_NQN, Document};
use serde_json::Value;

use crate::{Activity, BdevProperties, Params, RpcError, State};

/// Returns true for the well-known and for the unique NQN of the discovery service.
fn is_discovery(document: &Document, nqn: &str) -> bool {
    let unique = document.discovery.as_ref().and_then(|section| section.nqn.as_deref());
    nqn == DISCOVERY_NQN || unique == Some(nqn)
}

/// A method.
#[derive(Debug)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// Its function.
    pub kind: MethodKind,
}

/// Function of a method.
#[derive(Debug)]
pub enum MethodKind {
    /// Reads the state.
    Query(QueryMethod),
    /// Reads the state, with connections and counters.
    Activity(ActivityMethod),
    /// Edits the config.
    Edit(EditMethod),
}

/// Reads the state.
#[derive(Debug)]
pub struct QueryMethod(fn(&mut Params, &State) -> Result<Value, RpcError>);

/// Reads the state, with connections and counters.
#[derive(Debug)]
pub struct ActivityMethod(fn(&mut Params, &State, &Activity) -> Result<Value, RpcError>);

/// Edits the config.
#[derive(Debug)]
pub struct EditMethod(fn(&mut Params, &State, &mut Document) -> Result<EditResult, RpcError>);

/// Result of an edit, valid once the config runs.
#[derive(Debug, Clone, PartialEq)]
pub struct EditResult {
    /// Result of the call.
    pub result: Value,
    /// Changed properties of bdevs.
    pub properties: BdevProperties,
}

/// Returns the method with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

impl QueryMethod {
    /// Runs the method.
    ///
    /// # Errors
    /// A parameter is invalid or unknown, or names an item that does not exist.
    pub fn run(&self, mut params: Params, state: &State) -> Result<Value, RpcError> {
        let result = (self.0)(&mut params, state)?;
        params.finish().map(|()| result)
    }
}

impl ActivityMethod {
    /// Runs the method.
    ///
    /// # Errors
    /// As [`QueryMethod::run`].
    pub fn run(
        &self,
        mut params: Params,
        state: &State,
        activity: &Activity,
    ) -> Result<Value, RpcError> {
        let result = (self.0)(&mut params, state, activity)?;
        params.finish().map(|()| result)
    }
}

impl EditMethod {
    /// Edits `document`, a copy of the state's.
    ///
    /// # Errors
    /// As [`QueryMethod::run`], or the edit is not possible; then `document` is to be dropped.
    pub fn run(
        &self,
        mut params: Params,
        state: &State,
        document: &mut Document,
    ) -> Result<EditResult, RpcError> {
        let done = (self.0)(&mut params, state, document)?;
        params.finish().map(|()| done)
    }
}

impl EditResult {
    fn new(result: impl Into<Value>) -> Self {
        Self { result: result.into(), properties: BdevProperties::new() }
    }

    /// Result of an edit that has nothing to report.
    fn ok() -> Self {
        Self::new(true)
    }
}

const fn query(
    name: &'static str,
    run: fn(&mut Params, &State) -> Result<Value, RpcError>,
) -> Method {
    Method { name, kind: MethodKind::Query(QueryMethod(run)) }
}

const fn activity(
    name: &'static str,
    run: fn(&mut Params, &State, &Activity) -> Result<Value, RpcError>,
) -> Method {
    Method { name, kind: MethodKind::Activity(ActivityMethod(run)) }
}

const fn edit(
    name: &'static str,
    run: fn(&mut Params, &State, &mut Document) -> Result<EditResult, RpcError>,
) -> Method {
    Method { name, kind: MethodKind::Edit(EditMethod(run)) }
}

/// A setting of SPDK's internals.
const fn ignored(name: &'static str) -> Method {
    query(name, framework::no_effect)
}

/// All methods.
const METHODS: &[Method] = &[
    query("rpc_get_methods", framework::methods),
    query("spdk_get_version", framework::version),
    query("framework_get_subsystems", framework::subsystems),
    query("framework_get_reactors", framework::reactors),
    query("framework_get_scheduler", framework::scheduler),
    query("framework_get_config", saved::part),
    query("save_config", saved::all),
    ignored(framework::START),
    ignored("framework_wait_init"),
    ignored("framework_set_scheduler"),
    ignored("accel_set_options"),
    ignored("bdev_examine"),
    ignored("bdev_iscsi_set_options"),
    ignored("bdev_nvme_set_hotplug"),
    ignored("bdev_nvme_set_options"),
    ignored("bdev_raid_set_options"),
    ignored("bdev_set_options"),
    ignored("bdev_wait_for_examine"),
    ignored("iobuf_set_options"),
    ignored("log_clear_flag"),
    ignored("log_set_flag"),
    ignored("log_set_level"),
    ignored("log_set_print_level"),
    ignored("nvmf_set_max_subsystems"),
    ignored("sock_impl_set_options"),
    ignored("sock_set_default_impl"),
    query("nvmf_set_config", transports::set_target),
    query("nvmf_set_crdt", transports::set_retry_delays),
    query("nvmf_get_targets", transports::targets),
    query("nvmf_create_transport", transports::create),
    query("nvmf_get_transports", transports::list),
    edit("nvmf_create_subsystem", subsystems::create),
    edit("nvmf_delete_subsystem", subsystems::delete),
    query("nvmf_get_subsystems", subsystems::list),
    edit("nvmf_subsystem_add_ns", namespaces::add),
    edit("nvmf_subsystem_remove_ns", namespaces::remove),
    edit("nvmf_subsystem_add_host", hosts::add),
    edit("nvmf_subsystem_remove_host", hosts::remove),
    edit("nvmf_subsystem_allow_any_host", hosts::allow_any),
    edit("nvmf_subsystem_add_listener", listeners::add),
    edit("nvmf_subsystem_remove_listener", listeners::remove),
    query("nvmf_subsystem_get_listeners", listeners::list),
    activity("nvmf_subsystem_get_controllers", connections::controllers),
    activity("nvmf_subsystem_get_qpairs", connections::queue_pairs),
    activity("nvmf_get_stats", counters::target),
    edit("nvmf_discovery_add_referral", referrals::add),
    edit("nvmf_discovery_remove_referral", referrals::remove),
    query("nvmf_discovery_get_referrals", referrals::list),
    query("bdev_get_bdevs", bdevs::list),
    activity("bdev_get_iostat", counters::bdevs),
    edit("bdev_set_qos_limit", bdevs::limit),
    edit("bdev_malloc_create", storage::create_memory),
    edit("bdev_malloc_delete", bdevs::delete_memory),
    edit("bdev_null_create", storage::create_null),
    edit("bdev_null_delete", bdevs::delete_null),
    edit("bdev_aio_create", storage::create_file),
    edit("bdev_aio_delete", bdevs::delete_file),
    edit("bdev_uring_create", storage::create_file),
    edit("bdev_uring_delete", bdevs::delete_file),
    edit("bdev_nvme_attach_controller", storage::attach_drive),
    edit("bdev_nvme_detach_controller", storage::detach_drive),
    edit("bdev_delay_create", layers::create_delay),
    edit("bdev_delay_delete", bdevs::delete_delay),
    edit("bdev_error_create", layers::create_fault),
    edit("bdev_error_delete", bdevs::delete_fault),
    edit("bdev_raid_create", layers::create_stripe),
    edit("bdev_raid_delete", bdevs::delete_stripe),
    edit("bdev_split_create", layers::create_splits),
    edit("bdev_split_delete", layers::delete_splits),
];

#[cfg(test)]
mod tests;
