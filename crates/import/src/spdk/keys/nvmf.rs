//! Parameters of the calls that configure SPDK nvmf_tgt.

use crate::keys::{KeyTable, OFF, TAKEN, Treatment, lost, unnoticed};

const ONE_TARGET: Treatment = lost(
    &["\"nvmf_tgt\""],
    "there is one target here: its discovery log has the subsystems of all",
);
const NOT_PASSED: Treatment =
    lost(OFF, "hosts see this target's data and features, not the drive's");
const NO_ANA: &str = "asymmetric access is not reported to hosts: all paths are equal";
const VFIO_USER_ONLY: Treatment = unnoticed("concerns vfio-user, and such a transport is named");
const RDMA_SIZES: Treatment =
    unnoticed("queue-depth sizes the queues of RDMA, and shared-receives shares their receives");
const BUFFERS: Treatment = unnoticed("limits.buffer-memory bounds the buffers");
const WITH_KEYS: Treatment =
    unnoticed("has an effect with a key only, and a host with a key is named");

/// `nvmf_set_config`.
pub(crate) const CONFIG: KeyTable = &[
    ("poll_groups_mask", TAKEN),
    ("admin_cmd_passthru", TAKEN),
    ("discovery_filter", lost(&["\"match_any\""], LOG)),
    ("discovery_filters", lost(&["\"match_any\""], LOG)),
    (
        "dup_host_policy",
        lost(&["\"allow\""], "a host can connect to a subsystem any number of times"),
    ),
    ("acceptor_poll_rate", unnoticed("connections are accepted when they arrive")),
    ("conn_sched", unnoticed("the target chooses the reactor of a connection")),
    ("dhchap_digests", WITH_KEYS),
    ("dhchap_dhgroups", WITH_KEYS),
];

const LOG: &str = "the discovery log has the listeners of all addresses";

/// `admin_cmd_passthru` of `nvmf_set_config`.
pub(crate) const ADMIN_PASSTHROUGH: KeyTable = &[
    ("identify_ctrlr", NOT_PASSED),
    ("identify_uuid_list", NOT_PASSED),
    ("get_log_page", NOT_PASSED),
    ("get_set_features", NOT_PASSED),
    ("sanitize", NOT_PASSED),
    ("security_send_recv", NOT_PASSED),
    ("fw_update", NOT_PASSED),
    ("nvme_mi", NOT_PASSED),
    ("vendor_specific", NOT_PASSED),
];

/// `nvmf_create_transport`, without the keys of its pool and pacer.
pub(crate) const TRANSPORT: KeyTable = &[
    ("trtype", TAKEN),
    ("max_queue_depth", TAKEN),
    ("max_io_qpairs_per_ctrlr", TAKEN),
    ("max_qpairs_per_ctrlr", TAKEN),
    ("in_capsule_data_size", TAKEN),
    ("max_io_size", TAKEN),
    ("max_aq_depth", TAKEN),
    ("min_kato", TAKEN),
    ("c2h_success", TAKEN),
    ("num_shared_buffers", TAKEN),
    ("buf_cache_size", TAKEN),
    ("io_unit_size", TAKEN),
    ("io_pacer_period", TAKEN),
    ("io_pacer_credit", TAKEN),
    ("io_pacer_threshold", TAKEN),
    ("io_pacer_disk_credit", TAKEN),
    ("io_pacer_tuner_period", TAKEN),
    ("io_pacer_tuner_step", TAKEN),
    ("io_pacer_tuner_threshold", TAKEN),
    ("io_pacer_tuner_factor", TAKEN),
    ("tgt_name", ONE_TARGET),
    ("dif_insert_or_strip", lost(OFF, "protection information is neither inserted nor stripped")),
    ("sock_priority", lost(&["0"], "packets have the system's priority in the network")),
    ("ack_timeout", lost(&["0"], "a host that stalls is found by pdu-timeout and keep-alive")),
    (
        "disable_command_passthru",
        lost(&["true"], "vendor-specific commands are not passed to drives"),
    ),
    ("masked_oncs", lost(&["0", "\"\""], "hosts see all optional commands of this target")),
    ("masked_fuses", lost(&["0", "\"\""], "hosts see the fused commands of this target")),
    (
        "abort_timeout_sec",
        unnoticed("bounds SPDK's wait for a command that its Abort has not found"),
    ),
    ("kas", unnoticed("a keep-alive timeout is rounded up to a step here as well, of at most 1 s")),
    ("iobuf_small_cache_size", BUFFERS),
    ("iobuf_large_cache_size", BUFFERS),
    ("zcopy", unnoticed("reads are sent from device memory where that is possible")),
    ("num_cqe", RDMA_SIZES),
    ("max_srq_depth", RDMA_SIZES),
    ("no_srq", RDMA_SIZES),
    ("data_wr_pool_size", RDMA_SIZES),
    ("no_wr_batching", unnoticed("work requests are posted in batches")),
    ("control_msg_num", BUFFERS),
    ("acceptor_backlog", unnoticed("limits.connections bounds the connections that wait")),
    ("acceptor_poll_rate", unnoticed("connections are accepted when they arrive")),
    ("disable_mappable_bar0", VFIO_USER_ONLY),
    ("disable_adaptive_irq", VFIO_USER_ONLY),
    ("disable_shadow_doorbells", VFIO_USER_ONLY),
];

/// `nvmf_create_subsystem`, and `construct_nvmf_subsystem` of SPDK before 19.01.
pub(crate) const SUBSYSTEM: KeyTable = &[
    ("nqn", TAKEN),
    ("serial_number", TAKEN),
    ("model_number", TAKEN),
    ("allow_any_host", TAKEN),
    ("min_cntlid", TAKEN),
    ("max_cntlid", TAKEN),
    ("listen_addresses", TAKEN),
    ("hosts", TAKEN),
    ("namespaces", TAKEN),
    ("tgt_name", ONE_TARGET),
    ("ana_reporting", lost(OFF, NO_ANA)),
    ("passthrough", lost(OFF, "commands are not passed through to a drive")),
    ("enable_nssr", lost(OFF, "hosts cannot reset the subsystem")),
    ("admin_label", lost(&[], "the discovery log has no labels")),
    ("dmrsl", lost(&["0"], DISCARD)),
    ("max_discard_size_kib", lost(&["0"], DISCARD)),
    ("wzsl", lost(&["0"], ZEROES)),
    ("max_write_zeroes_size_kib", lost(&["0"], ZEROES)),
    ("max_namespaces", unnoticed("bounds later additions: a subsystem has up to 1024 here")),
    ("core", unnoticed("SPDK ignores it: all cores serve a subsystem")),
    ("mode", unnoticed("SPDK has one mode only")),
];

const DISCARD: &str = "hosts can discard up to this target's own limit for a command";
const ZEROES: &str = "hosts can write zeroes up to this target's own limit for a command";

/// An address of a listener.
pub(crate) const ADDRESS: KeyTable = &[
    ("trtype", TAKEN),
    ("transport", TAKEN),
    ("traddr", TAKEN),
    ("trsvcid", TAKEN),
    ("adrfam", unnoticed("the address shows its family")),
];

/// An address of a referral.
pub(crate) const REFERRAL_ADDRESS: KeyTable = &[
    ("trtype", TAKEN),
    ("transport", TAKEN),
    ("traddr", TAKEN),
    ("trsvcid", TAKEN),
    ("subnqn", TAKEN),
    ("adrfam", unnoticed("the address shows its family")),
];

/// `nvmf_subsystem_add_listener`.
pub(crate) const LISTENER: KeyTable = &[
    ("nqn", TAKEN),
    ("listen_address", TAKEN),
    ("secure_channel", TAKEN),
    ("sock_impl", TAKEN),
    ("tgt_name", ONE_TARGET),
    ("ana_state", lost(&["\"optimized\""], NO_ANA)),
    ("numa_id", VFIO_USER_ONLY),
];

/// `nvmf_subsystem_add_host`, `nvmf_subsystem_set_keys` and `nvmf_subsystem_remove_host`.
pub(crate) const HOST: KeyTable = &[
    ("nqn", TAKEN),
    ("host", TAKEN),
    ("psk", TAKEN),
    ("dhchap_key", TAKEN),
    ("dhchap_ctrlr_key", TAKEN),
    ("tgt_name", ONE_TARGET),
];

/// `nvmf_subsystem_allow_any_host`.
pub(crate) const ANY_HOST: KeyTable =
    &[("nqn", TAKEN), ("allow_any_host", TAKEN), ("tgt_name", ONE_TARGET)];

/// `nvmf_subsystem_add_ns`.
pub(crate) const ADD_NAMESPACE: KeyTable =
    &[("nqn", TAKEN), ("namespace", TAKEN), ("tgt_name", ONE_TARGET)];

/// The namespace of `nvmf_subsystem_add_ns`.
pub(crate) const NAMESPACE: KeyTable = &[
    ("bdev_name", TAKEN),
    ("nsid", TAKEN),
    ("uuid", TAKEN),
    ("nguid", TAKEN),
    ("eui64", TAKEN),
    ("no_auto_visible", TAKEN),
    ("ptpl_file", lost(&[], "hosts cannot reserve the namespace here")),
    ("anagrpid", unnoticed("has an effect with ana_reporting only, which is named")),
    ("hide_metadata", unnoticed("has an effect with metadata only, which is named")),
];

/// `nvmf_subsystem_remove_ns`.
pub(crate) const REMOVE_NAMESPACE: KeyTable =
    &[("nqn", TAKEN), ("nsid", TAKEN), ("tgt_name", ONE_TARGET)];

/// `nvmf_subsystem_remove_listener`.
pub(crate) const REMOVE_LISTENER: KeyTable =
    &[("nqn", TAKEN), ("listen_address", TAKEN), ("tgt_name", ONE_TARGET)];

/// `nvmf_delete_subsystem`.
pub(crate) const DELETE_SUBSYSTEM: KeyTable = &[("nqn", TAKEN), ("tgt_name", ONE_TARGET)];

/// `nvmf_discovery_add_referral`.
pub(crate) const REFERRAL: KeyTable =
    &[("address", TAKEN), ("secure_channel", TAKEN), ("subnqn", TAKEN), ("tgt_name", ONE_TARGET)];

/// `nvmf_publish_mdns_prr`.
pub(crate) const MDNS: KeyTable = &[("tgt_name", ONE_TARGET)];

/// `nvmf_set_crdt`.
pub(crate) const RETRY_DELAYS: KeyTable =
    &[("crdt1", NO_DELAY), ("crdt2", NO_DELAY), ("crdt3", NO_DELAY)];

const NO_DELAY: Treatment = lost(&["0"], "hosts repeat a command without this delay");

/// `nvmf_create_target`.
pub(crate) const TARGET: KeyTable = &[
    ("name", ONE_TARGET),
    ("discovery_filter", lost(&["\"match_any\""], LOG)),
    (
        "dup_host_policy",
        lost(&["\"allow\""], "a host can connect to a subsystem any number of times"),
    ),
    ("max_subsystems", unnoticed("bounds later additions, and there is no such bound here")),
];

/// `set_nvmf_target_options` of SPDK before 19.04: limits of all transports.
pub(crate) const OPTIONS: KeyTable = &[
    ("max_queue_depth", TAKEN),
    ("max_qpairs_per_ctrlr", TAKEN),
    ("in_capsule_data_size", TAKEN),
    ("max_io_size", TAKEN),
    ("io_unit_size", BUFFERS),
    ("max_subsystems", unnoticed("bounds later additions, and there is no such bound here")),
];

/// Calls that have no reader.
pub(crate) const CALLS: &[(&str, Treatment)] = &[
    (
        "nvmf_set_max_subsystems",
        unnoticed("bounds later additions, and there is no such bound here"),
    ),
    ("nvmf_stop_mdns_prr", unnoticed("the service is not announced without discovery.mdns")),
    ("nvmf_subsystem_listener_set_ana_state", lost(&[], NO_ANA)),
    ("nvmf_subsystem_set_ns_ana_group", lost(&[], NO_ANA)),
    ("nvmf_ns_add_host", lost(&[], NS_HOST)),
    ("nvmf_ns_remove_host", lost(&[], NS_HOST)),
];

const NS_HOST: &str = "hosts of a subsystem see all its namespaces here: give the namespace a \
                       subsystem for its hosts";

/// All tables by the calls that have them, with the pointer of the object in the parameters.
#[cfg(test)]
pub(crate) const ALL: &[(&str, &str, KeyTable)] = &[
    ("nvmf_set_config", "", CONFIG),
    ("nvmf_set_config", "/admin_cmd_passthru", ADMIN_PASSTHROUGH),
    ("nvmf_create_target", "", TARGET),
    ("nvmf_create_transport", "", TRANSPORT),
    ("set_nvmf_target_options", "", OPTIONS),
    ("nvmf_create_subsystem", "", SUBSYSTEM),
    ("nvmf_subsystem_add_ns", "", ADD_NAMESPACE),
    ("nvmf_subsystem_add_ns", "/namespace", NAMESPACE),
    ("nvmf_subsystem_add_listener", "", LISTENER),
    ("nvmf_subsystem_add_listener", "/listen_address", ADDRESS),
    ("nvmf_subsystem_remove_ns", "", REMOVE_NAMESPACE),
    ("nvmf_subsystem_remove_listener", "", REMOVE_LISTENER),
    ("nvmf_delete_subsystem", "", DELETE_SUBSYSTEM),
    ("nvmf_subsystem_add_host", "", HOST),
    ("nvmf_subsystem_allow_any_host", "", ANY_HOST),
    ("nvmf_discovery_add_referral", "", REFERRAL),
    ("nvmf_discovery_add_referral", "/address", REFERRAL_ADDRESS),
    ("nvmf_publish_mdns_prr", "", MDNS),
    ("nvmf_set_crdt", "", RETRY_DELAYS),
];
