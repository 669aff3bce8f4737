//! Parameters of SPDK's calls, from version 17.10 to 26.05.

pub(crate) mod bdev;
pub(crate) mod nvmf;

use crate::keys::{KeyTable, TAKEN, Treatment, lost, unnoticed};

/// The whole file.
pub(super) const ROOT: KeyTable = &[("subsystems", TAKEN)];

/// A part of SPDK.
pub(super) const PART: KeyTable = &[("subsystem", TAKEN), ("config", TAKEN)];

/// A call of a part.
pub(super) const CALL: KeyTable = &[("method", TAKEN), ("params", TAKEN)];

/// `sock_set_default_impl`.
pub(super) const SOCKETS: KeyTable = &[("impl_name", TAKEN)];

/// Parts of SPDK that have no reader.
pub(crate) const PARTS: &[(&str, Treatment)] = &[
    ("accel", unnoticed("copies and checksums have one implementation here")),
    ("copy", unnoticed("copies have one implementation here")),
    ("fsdev", unnoticed("no file systems are served to hosts of NVMe-oF")),
    ("interface", unnoticed("network interfaces are the system's")),
    ("iobuf", unnoticed("limits.buffer-memory bounds the buffers")),
    ("net_framework", unnoticed("network interfaces are the system's")),
    ("notify", unnoticed("nvmeofctl shows events")),
    ("nvmf_tgt", unnoticed("part \"nvmf\" has the settings")),
    ("sock", unnoticed("sockets are the system's, and a listener with TLS is named")),
    ("scheduler", unnoticed("reactors sleep when they have no work, and keep their CPUs")),
    ("keyring", lost(&[], "keys are not read: a host or listener that needs one is named")),
    ("vmd", lost(&[], "drives behind a VMD are not found here: turn it off in the firmware")),
    ("iscsi", lost(&[], "iSCSI is not served here")),
    ("nbd", lost(&[], "NBD is not served here")),
    ("ublk", lost(&[], "ublk is not served here")),
    ("vhost", lost(&[], "vhost is not served here")),
    ("vhost_blk", lost(&[], "vhost is not served here")),
    ("vhost_scsi", lost(&[], "vhost is not served here")),
    ("vfio_user", lost(&[], "vfio-user is not served here")),
];

/// Old names of calls that SPDK reads as the new ones. SPDK 20.01 renamed most.
pub(super) const OLD_NAMES: &[(&str, &str)] = &[
    ("construct_aio_bdev", "bdev_aio_create"),
    ("construct_delay_bdev", "bdev_delay_create"),
    ("construct_error_bdev", "bdev_error_create"),
    ("construct_malloc_bdev", "bdev_malloc_create"),
    ("construct_null_bdev", "bdev_null_create"),
    ("construct_nvme_bdev", "bdev_nvme_attach_controller"),
    ("construct_passthru_bdev", "bdev_passthru_create"),
    ("construct_raid_bdev", "bdev_raid_create"),
    ("construct_split_vbdev", "bdev_split_create"),
    ("enable_bdev_histogram", "bdev_enable_histogram"),
    ("set_bdev_nvme_hotplug", "bdev_nvme_set_hotplug"),
    ("set_bdev_nvme_options", "bdev_nvme_set_options"),
    ("set_bdev_options", "bdev_set_options"),
    ("set_bdev_qd_sampling_period", "bdev_set_qd_sampling_period"),
    ("set_bdev_qos_limit", "bdev_set_qos_limit"),
    ("nvmf_subsystem_create", "nvmf_create_subsystem"),
    ("construct_nvmf_subsystem", "nvmf_create_subsystem"),
    ("delete_nvmf_subsystem", "nvmf_delete_subsystem"),
    ("set_nvmf_target_config", "nvmf_set_config"),
    ("set_nvmf_target_max_subsystems", "nvmf_set_max_subsystems"),
    ("set_nvmf_target_options", "nvmf_set_options"),
];
