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
    pub run: Run,
}

/// Function of a method.
#[derive(Debug)]
pub enum Run {
    /// Reads the state.
    Look(Look),
    /// Reads the state, with connections and counters.
    Watch(Watch),
    /// Edits the config.
    Edit(Edit),
}

/// Reads the state.
#[derive(Debug)]
pub struct Look(fn(&mut Params, &State) -> Result<Value, RpcError>);

/// Reads the state, with connections and counters.
#[derive(Debug)]
pub struct Watch(fn(&mut Params, &State, &Activity) -> Result<Value, RpcError>);

/// Edits the config.
#[derive(Debug)]
pub struct Edit(fn(&mut Params, &State, &mut Document) -> Result<Done, RpcError>);

/// Result of an edit, valid once the config runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
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

impl Look {
    /// Runs the method.
    ///
    /// # Errors
    /// A parameter is invalid or unknown, or names an item that does not exist.
    pub fn run(&self, mut params: Params, state: &State) -> Result<Value, RpcError> {
        let result = (self.0)(&mut params, state)?;
        params.finish().map(|()| result)
    }
}

impl Watch {
    /// Runs the method.
    ///
    /// # Errors
    /// As [`Look::run`].
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

impl Edit {
    /// Edits `document`, a copy of the state's.
    ///
    /// # Errors
    /// As [`Look::run`], or the edit is not possible; then `document` is to be dropped.
    pub fn run(
        &self,
        mut params: Params,
        state: &State,
        document: &mut Document,
    ) -> Result<Done, RpcError> {
        let done = (self.0)(&mut params, state, document)?;
        params.finish().map(|()| done)
    }
}

impl Done {
    fn new(result: impl Into<Value>) -> Self {
        Self { result: result.into(), properties: BdevProperties::new() }
    }

    /// Result of an edit that has nothing to report.
    fn ok() -> Self {
        Self::new(true)
    }
}

const fn look(
    name: &'static str,
    run: fn(&mut Params, &State) -> Result<Value, RpcError>,
) -> Method {
    Method { name, run: Run::Look(Look(run)) }
}

const fn watch(
    name: &'static str,
    run: fn(&mut Params, &State, &Activity) -> Result<Value, RpcError>,
) -> Method {
    Method { name, run: Run::Watch(Watch(run)) }
}

const fn edit(
    name: &'static str,
    run: fn(&mut Params, &State, &mut Document) -> Result<Done, RpcError>,
) -> Method {
    Method { name, run: Run::Edit(Edit(run)) }
}

/// A setting of SPDK's internals.
const fn ignored(name: &'static str) -> Method {
    look(name, framework::no_effect)
}

/// All methods.
const METHODS: &[Method] = &[
    look("rpc_get_methods", framework::methods),
    look("spdk_get_version", framework::version),
    look("framework_get_subsystems", framework::subsystems),
    look("framework_get_reactors", framework::reactors),
    look("framework_get_scheduler", framework::scheduler),
    look("framework_get_config", saved::part),
    look("save_config", saved::all),
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
    look("nvmf_set_config", transports::set_target),
    look("nvmf_set_crdt", transports::set_retry_delays),
    look("nvmf_get_targets", transports::targets),
    look("nvmf_create_transport", transports::create),
    look("nvmf_get_transports", transports::list),
    edit("nvmf_create_subsystem", subsystems::create),
    edit("nvmf_delete_subsystem", subsystems::delete),
    look("nvmf_get_subsystems", subsystems::list),
    edit("nvmf_subsystem_add_ns", namespaces::add),
    edit("nvmf_subsystem_remove_ns", namespaces::remove),
    edit("nvmf_subsystem_add_host", hosts::add),
    edit("nvmf_subsystem_remove_host", hosts::remove),
    edit("nvmf_subsystem_allow_any_host", hosts::allow_any),
    edit("nvmf_subsystem_add_listener", listeners::add),
    edit("nvmf_subsystem_remove_listener", listeners::remove),
    look("nvmf_subsystem_get_listeners", listeners::list),
    watch("nvmf_subsystem_get_controllers", connections::controllers),
    watch("nvmf_subsystem_get_qpairs", connections::queue_pairs),
    watch("nvmf_get_stats", counters::target),
    edit("nvmf_discovery_add_referral", referrals::add),
    edit("nvmf_discovery_remove_referral", referrals::remove),
    look("nvmf_discovery_get_referrals", referrals::list),
    look("bdev_get_bdevs", bdevs::list),
    watch("bdev_get_iostat", counters::bdevs),
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
