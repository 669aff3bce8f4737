//! Sections and keys of SPDK's legacy config, from version 17.07 to 20.04.

use crate::keys::{KeyTable, TAKEN, Treatment, lost, unnoticed};

/// Form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Text or a number.
    Text,
    /// All values of the line.
    List,
    /// `Yes`, `No`, `True` or `False`.
    Flag,
    /// Seconds, which become microseconds.
    Seconds,
}

/// A key and its parameter in the JSON config.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) key: &'static str,
    pub(crate) param: &'static str,
    pub(crate) form: Form,
}

const fn text(key: &'static str, param: &'static str) -> Rule {
    Rule { key, param, form: Form::Text }
}

const fn flag(key: &'static str, param: &'static str) -> Rule {
    Rule { key, param, form: Form::Flag }
}

/// `[Global]`.
pub(crate) const GLOBAL: &[Rule] = &[text("ReactorMask", "poll_groups_mask")];
pub(crate) const GLOBAL_REST: KeyTable = &[
    ("Comment", unnoticed("a comment")),
    ("LogFacility", unnoticed("the log goes to standard error")),
    ("TpointGroupMask", unnoticed("nvmeofctl trace shows slow commands")),
    ("TpointGroup", unnoticed("nvmeofctl trace shows slow commands")),
    ("SharedMemoryID", unnoticed("there is no shared memory")),
    ("InstanceID", unnoticed("there is no shared memory")),
    ("NoPci", unnoticed("drives are named, not searched for")),
    ("PciBlacklist", unnoticed("drives are named, not searched for")),
    ("PciWhitelist", unnoticed("drives are named, not searched for")),
];

/// `[Nvmf]`.
pub(crate) const NVMF: &[Rule] = &[
    text("MaxQueueDepth", "max_queue_depth"),
    text("MaxQueuesPerSession", "max_qpairs_per_ctrlr"),
    text("InCapsuleDataSize", "in_capsule_data_size"),
    text("MaxIOSize", "max_io_size"),
    text("IOUnitSize", "io_unit_size"),
];
pub(crate) const NVMF_REST: KeyTable = &[
    ("MaxSubsystems", unnoticed("bounds later additions, and there is no such bound here")),
    ("AcceptorPollRate", unnoticed("connections are accepted when they arrive")),
    ("AcceptorCore", unnoticed("connections are accepted when they arrive")),
    ("ConnectionScheduler", unnoticed("the target chooses the reactor of a connection")),
];

/// `[Transport]`.
pub(crate) const TRANSPORT: &[Rule] = &[
    text("Type", "trtype"),
    text("MaxQueueDepth", "max_queue_depth"),
    text("MaxQueuesPerSession", "max_qpairs_per_ctrlr"),
    text("InCapsuleDataSize", "in_capsule_data_size"),
    text("MaxIOSize", "max_io_size"),
    text("IOUnitSize", "io_unit_size"),
    text("MaxAQDepth", "max_aq_depth"),
    text("NumSharedBuffers", "num_shared_buffers"),
    text("BufCacheSize", "buf_cache_size"),
    text("MaxSRQDepth", "max_srq_depth"),
    flag("NoSRQ", "no_srq"),
    flag("C2HSuccess", "c2h_success"),
    flag("DifInsertOrStrip", "dif_insert_or_strip"),
    text("SockPriority", "sock_priority"),
    // The Mellanox SPDK io_pacing prototype.
    text("IOPacerPeriod", "io_pacer_period"),
];

/// `[Nvme]`, without its drives.
pub(crate) const NVME: &[Rule] = &[
    text("RetryCount", "retry_count"),
    text("NvmeRetryCount", "retry_count"),
    text("TimeoutUsec", "timeout_us"),
    Rule { key: "Timeout", param: "timeout_us", form: Form::Seconds },
    Rule { key: "NvmeTimeoutValue", param: "timeout_us", form: Form::Seconds },
    text("ActionOnTimeout", "action_on_timeout"),
    flag("ResetControllerOnTimeout", "reset"),
    text("AdminPollRate", "nvme_adminq_poll_period_us"),
    text("IOPollRate", "nvme_ioq_poll_period_us"),
    flag("DelayCmdSubmit", "delay_cmd_submit"),
    flag("HotplugEnable", "enable"),
    text("HotplugPollRate", "period_us"),
];
pub(crate) const HOST_NQN: (&str, Treatment) =
    ("HostNQN", unnoticed("concerns controllers over fabrics, and one as a device is named"));

/// `[Malloc]`.
pub(crate) const MALLOC: &[Rule] =
    &[text("NumberOfLuns", "count"), text("LunSizeInMB", "size"), text("BlockSize", "block_size")];
/// Maximum devices of `[Malloc]`.
pub(crate) const MALLOC_MAX: u64 = 4096;

/// `[RAID1]`.
pub(crate) const RAID: &[Rule] = &[
    text("Name", "name"),
    text("RaidLevel", "raid_level"),
    text("StripSize", "strip_size"),
    Rule { key: "Devices", param: "base_bdevs", form: Form::List },
];
pub(crate) const COUNTED: Treatment = unnoticed("Devices has all");

/// `[Subsystem1]`, without its namespaces, listeners and hosts.
pub(crate) const SUBSYSTEM: &[Rule] = &[
    text("NQN", "nqn"),
    text("SN", "serial_number"),
    text("MN", "model_number"),
    text("MaxNamespaces", "max_namespaces"),
    flag("AllowAnyHost", "allow_any_host"),
    text("Core", "core"),
    text("Mode", "mode"),
];
pub(crate) const SUBSYSTEM_REST: KeyTable =
    &[("Namespace", TAKEN), ("Listen", TAKEN), ("Host", TAKEN)];

/// A section with one device a line.
#[derive(Debug)]
pub(crate) struct LineList {
    pub(crate) section: &'static str,
    /// Minimum values of a line.
    pub(crate) least: usize,
    /// Keys, their calls, and the parameters of their values.
    pub(crate) keys: &'static [(&'static str, &'static str, &'static [&'static str])],
}

/// Sections with one device a line.
pub(crate) const LISTS: &[LineList] = &[
    LineList {
        section: "AIO",
        least: 2,
        keys: &[("AIO", "bdev_aio_create", &["filename", "name", "block_size"])],
    },
    LineList {
        section: "URING",
        least: 2,
        keys: &[("URING", "bdev_uring_create", &["filename", "name", "block_size"])],
    },
    LineList {
        section: "Null",
        least: 2,
        keys: &[(
            "Dev",
            "bdev_null_create",
            &["name", "num_blocks", "block_size", "md_size", "dif_type"],
        )],
    },
    LineList {
        section: "Split",
        least: 2,
        keys: &[("Split", "bdev_split_create", &["base_bdev", "split_count", "split_size_mb"])],
    },
    LineList {
        section: "Passthru",
        least: 2,
        keys: &[("PT", "bdev_passthru_create", &["base_bdev_name", "name"])],
    },
    LineList {
        section: "BdevError",
        least: 1,
        keys: &[("BdevError", "bdev_error_create", &["base_name"])],
    },
    LineList {
        section: "QoS",
        least: 2,
        keys: &[
            ("Limit_IOPS", "bdev_set_qos_limit", &["name", "rw_ios_per_sec"]),
            ("Limit_BPS", "bdev_set_qos_limit", &["name", "rw_mbytes_per_sec"]),
            ("Limit_BWPS", "bdev_set_qos_limit", &["name", "rw_mbytes_per_sec"]),
            ("Limit_Read_BPS", "bdev_set_qos_limit", &["name", "r_mbytes_per_sec"]),
            ("Limit_Write_BPS", "bdev_set_qos_limit", &["name", "w_mbytes_per_sec"]),
        ],
    },
];

const NO_DEVICE: Treatment = lost(&[], "there is no such device here");
const NOT_SERVED: Treatment = lost(&[], "this is not served here");

/// Sections that have no reader.
pub(crate) const SECTIONS: KeyTable = &[
    ("Bdev", unnoticed("limits.buffer-memory bounds the memory for commands")),
    ("Blobfs", unnoticed("concerns file systems of SPDK")),
    ("Gpt", unnoticed("a namespace on a partition is named")),
    ("Interface", unnoticed("network interfaces are the system's")),
    ("Ioat", unnoticed("copies have one implementation here")),
    ("Rpc", unnoticed("[api] and [rpc] say where the daemon is controlled")),
    ("Vmd", lost(&[], "drives behind a VMD are not found here: turn it off in the firmware")),
    ("Ceph", NO_DEVICE),
    ("Ftl", NO_DEVICE),
    ("OCF", NO_DEVICE),
    ("Pmem", NO_DEVICE),
    ("VirtioBlk", NO_DEVICE),
    ("VirtioPci", NO_DEVICE),
    ("VirtioUser", NO_DEVICE),
    ("compress", NO_DEVICE),
    ("crypto", NO_DEVICE),
    ("iSCSI_Initiator", NO_DEVICE),
    ("AuthGroup", NOT_SERVED),
    ("InitiatorGroup", NOT_SERVED),
    ("Nbd", NOT_SERVED),
    ("PortalGroup", NOT_SERVED),
    ("TargetNode", NOT_SERVED),
    ("VhostBlk", NOT_SERVED),
    ("VhostNvme", NOT_SERVED),
    ("VhostScsi", NOT_SERVED),
    ("iSCSI", NOT_SERVED),
];
