//! Parameters of the calls that create block devices.

use crate::keys::{KeyTable, OFF, TAKEN, Treatment, lost, unnoticed};

const FABRICS_ONLY: Treatment =
    unnoticed("concerns controllers over fabrics, and one as a device is named");
const WITH_METADATA: Treatment = unnoticed("has an effect with metadata only, which is named");
const NO_METADATA: Treatment = lost(&["0"], "blocks have no metadata here");
const NO_HINT: Treatment =
    lost(&["0"], "hosts see no preferred sizes: they may send less favorable commands");
const DRIVE_IS_SPDKS: Treatment = unnoticed("a setting of SPDK's driver: the one here has its own");

/// `bdev_malloc_create` and `bdev_null_create`.
pub(crate) const MEMORY: KeyTable = &[
    ("name", TAKEN),
    ("num_blocks", TAKEN),
    ("block_size", TAKEN),
    ("physical_block_size", TAKEN),
    ("uuid", TAKEN),
    ("md_size", NO_METADATA),
    ("dif_type", NO_METADATA),
    ("md_interleave", WITH_METADATA),
    ("dif_is_head_of_md", WITH_METADATA),
    ("dif_pi_format", WITH_METADATA),
    ("optimal_io_boundary", NO_HINT),
    ("preferred_write_granularity", NO_HINT),
    ("preferred_write_alignment", NO_HINT),
    ("optimal_write_size", NO_HINT),
    ("preferred_unmap_granularity", NO_HINT),
    ("preferred_unmap_alignment", NO_HINT),
    ("numa_id", unnoticed("the system places the memory")),
];

/// `bdev_aio_create` and `bdev_uring_create`.
pub(crate) const FILE: KeyTable = &[
    ("name", TAKEN),
    ("filename", TAKEN),
    ("block_size", TAKEN),
    ("readonly", TAKEN),
    ("uuid", TAKEN),
    ("fallocate", unnoticed("files deallocate here where the file system can")),
    ("nowait", unnoticed("io_uring does not block here")),
];

/// `bdev_nvme_attach_controller` of a local drive.
pub(crate) const DRIVE: KeyTable = &[
    ("name", TAKEN),
    ("trtype", TAKEN),
    ("traddr", TAKEN),
    ("prchk_reftag", lost(OFF, "protection information is not checked here")),
    ("prchk_guard", lost(OFF, "protection information is not checked here")),
    ("adrfam", FABRICS_ONLY),
    ("trsvcid", FABRICS_ONLY),
    ("priority", FABRICS_ONLY),
    ("subnqn", FABRICS_ONLY),
    ("hostnqn", FABRICS_ONLY),
    ("hostaddr", FABRICS_ONLY),
    ("hostsvcid", FABRICS_ONLY),
    ("hdgst", FABRICS_ONLY),
    ("ddgst", FABRICS_ONLY),
    ("psk", FABRICS_ONLY),
    ("dhchap_key", FABRICS_ONLY),
    ("dhchap_ctrlr_key", FABRICS_ONLY),
    ("fabrics_connect_timeout_us", FABRICS_ONLY),
    ("disable_sq_flow_control", FABRICS_ONLY),
    ("multipath", FABRICS_ONLY),
    ("multipath_opts", FABRICS_ONLY),
    ("ctrlr_loss_timeout_sec", NO_LOSS_TIMEOUT),
    ("reconnect_delay_sec", unnoticed("a missing drive is opened again on a reload")),
    ("fast_io_fail_timeout_sec", unnoticed("commands of a missing drive fail immediately")),
    ("num_io_queues", DRIVE_IS_SPDKS),
    ("max_bdevs", unnoticed("namespaces of the drive are named one by one")),
    ("allow_unrecognized_csi", unnoticed("such a namespace takes commands passed through only")),
];

const NO_LOSS_TIMEOUT: Treatment =
    lost(&["0"], "commands of a missing drive fail immediately here, without a wait");
const NO_RETRIES: &str = "hosts repeat a command that a drive failed, not the target";

/// `bdev_nvme_set_options`.
pub(crate) const DRIVES: KeyTable = &[
    ("timeout_us", TAKEN),
    ("action_on_timeout", TAKEN),
    ("generate_uuids", TAKEN),
    ("timeout_admin_us", DRIVE_IS_SPDKS),
    ("retry_count", lost(&["4"], NO_RETRIES)),
    ("transport_retry_count", lost(&["4"], NO_RETRIES)),
    ("bdev_retry_count", lost(&["3"], NO_RETRIES)),
    ("ctrlr_loss_timeout_sec", NO_LOSS_TIMEOUT),
    ("reconnect_delay_sec", unnoticed("a missing drive is opened again on a reload")),
    ("fast_io_fail_timeout_sec", unnoticed("commands of a missing drive fail immediately")),
    ("enable_flush", unnoticed("a Flush always reaches the drive here")),
    ("keep_alive_timeout_ms", FABRICS_ONLY),
    ("transport_ack_timeout", FABRICS_ONLY),
    ("transport_tos", FABRICS_ONLY),
    ("tcp_connect_timeout_ms", FABRICS_ONLY),
    ("rdma_srq_size", FABRICS_ONLY),
    ("rdma_max_cq_size", FABRICS_ONLY),
    ("rdma_cm_event_timeout_ms", FABRICS_ONLY),
    ("rdma_umr_per_io", FABRICS_ONLY),
    ("dhchap_digests", FABRICS_ONLY),
    ("dhchap_dhgroups", FABRICS_ONLY),
    ("disable_auto_failback", FABRICS_ONLY),
    ("multipath_opts", FABRICS_ONLY),
    ("io_path_stat", FABRICS_ONLY),
    ("arbitration_burst", DRIVE_IS_SPDKS),
    ("low_priority_weight", DRIVE_IS_SPDKS),
    ("medium_priority_weight", DRIVE_IS_SPDKS),
    ("high_priority_weight", DRIVE_IS_SPDKS),
    ("nvme_adminq_poll_period_us", DRIVE_IS_SPDKS),
    ("nvme_ioq_poll_period_us", DRIVE_IS_SPDKS),
    ("io_queue_requests", DRIVE_IS_SPDKS),
    ("delay_cmd_submit", DRIVE_IS_SPDKS),
    ("nvme_error_stat", DRIVE_IS_SPDKS),
    ("allow_accel_sequence", DRIVE_IS_SPDKS),
];

/// `bdev_nvme_set_hotplug`.
pub(crate) const HOTPLUG: KeyTable = &[
    ("enable", lost(OFF, "a drive that is plugged in later is not attached: add it and reload")),
    ("period_us", DRIVE_IS_SPDKS),
];

/// `bdev_raid_create`.
pub(crate) const RAID: KeyTable = &[
    ("name", TAKEN),
    ("strip_size", TAKEN),
    ("strip_size_kb", TAKEN),
    ("raid_level", TAKEN),
    ("base_bdevs", TAKEN),
    ("superblock", TAKEN),
    ("uuid", TAKEN),
];

/// `bdev_split_create`.
pub(crate) const SPLIT: KeyTable =
    &[("base_bdev", TAKEN), ("split_count", TAKEN), ("split_size_mb", TAKEN)];

/// `bdev_delay_create`.
pub(crate) const DELAY: KeyTable = &[
    ("name", TAKEN),
    ("base_bdev_name", TAKEN),
    ("avg_read_latency", TAKEN),
    ("p99_read_latency", TAKEN),
    ("avg_write_latency", TAKEN),
    ("p99_write_latency", TAKEN),
    ("uuid", TAKEN),
];

/// `bdev_passthru_create`.
pub(crate) const PASSTHROUGH: KeyTable =
    &[("name", TAKEN), ("passthru_bdev_name", TAKEN), ("base_bdev_name", TAKEN), ("uuid", TAKEN)];

/// `bdev_error_create`.
pub(crate) const ERROR: KeyTable = &[("base_name", TAKEN), ("uuid", TAKEN)];

/// `bdev_set_qos_limit`.
pub(crate) const LIMIT: KeyTable = &[
    ("name", TAKEN),
    ("rw_ios_per_sec", TAKEN),
    ("rw_mbytes_per_sec", TAKEN),
    ("r_mbytes_per_sec", TAKEN),
    ("w_mbytes_per_sec", TAKEN),
];

/// Calls that have no reader.
pub(crate) const CALLS: &[(&str, Treatment)] = &[
    ("bdev_set_options", unnoticed("limits.buffer-memory bounds the memory for commands")),
    ("bdev_examine", unnoticed("devices are named, not searched for")),
    ("bdev_wait_for_examine", unnoticed("devices are named, not searched for")),
    ("bdev_iscsi_set_options", unnoticed("concerns devices of iSCSI, and such a device is named")),
    ("bdev_raid_set_options", unnoticed("concerns the rebuild of other RAID levels")),
    ("bdev_virtio_blk_set_hotplug", unnoticed("concerns devices of virtio, which are named")),
    ("bdev_enable_histogram", unnoticed("latencies are always measured")),
    ("bdev_set_qd_sampling_period", unnoticed("queue depths are always measured")),
];

/// All tables by the calls that have them.
#[cfg(test)]
pub(crate) const ALL: &[(&str, KeyTable)] = &[
    ("bdev_malloc_create", MEMORY),
    ("bdev_null_create", MEMORY),
    ("bdev_aio_create", FILE),
    ("bdev_uring_create", FILE),
    ("bdev_nvme_attach_controller", DRIVE),
    ("bdev_nvme_set_options", DRIVES),
    ("bdev_nvme_set_hotplug", HOTPLUG),
    ("bdev_raid_create", RAID),
    ("bdev_split_create", SPLIT),
    ("bdev_delay_create", DELAY),
    ("bdev_passthru_create", PASSTHROUGH),
    ("bdev_error_create", ERROR),
    ("bdev_set_qos_limit", LIMIT),
];
