//! Keys of nvmetcli's files: the attributes of Linux nvmet's configfs.

use crate::keys::{KeyTable, OFF, TAKEN, lost, unnoticed};

/// Consequence of a setting for protection information.
const PROTECTION: &str = "end-to-end data protection is not offered here";

/// Reason why a parameter of a key is not taken.
const KEY_ONLY: &str = "has an effect with a key only, and a host with a key is named";

/// The whole file.
pub(super) const ROOT: KeyTable =
    &[("hosts", TAKEN), ("ports", TAKEN), ("subsystems", TAKEN), ("discovery_nqn", TAKEN)];

/// A host.
pub(super) const HOST: KeyTable = &[("nqn", TAKEN), ("attr", TAKEN), ("dhchap", TAKEN)];

/// Authentication of a host.
pub(super) const HOST_ATTRIBUTES: KeyTable = &[
    ("dhchap_key", TAKEN),
    ("key", TAKEN),
    ("dhchap_ctrl_key", TAKEN),
    ("ctrl_key", TAKEN),
    ("dhchap_hash", unnoticed(KEY_ONLY)),
    ("hash", unnoticed(KEY_ONLY)),
    ("dhchap_dhgroup", unnoticed(KEY_ONLY)),
    ("dhgroup", unnoticed(KEY_ONLY)),
];

/// A port.
pub(super) const PORT: KeyTable = &[
    ("addr", TAKEN),
    ("param", TAKEN),
    ("referrals", TAKEN),
    ("ana_groups", TAKEN),
    ("subsystems", TAKEN),
    ("portid", unnoticed("hosts connect by address and port, not by this number")),
];

/// Address of a port.
pub(super) const ADDRESS: KeyTable = &[
    ("trtype", TAKEN),
    ("traddr", TAKEN),
    ("trsvcid", TAKEN),
    ("treq", TAKEN),
    ("tsas", TAKEN),
    ("adrfam", unnoticed("the address shows its family")),
];

/// Queue parameters of a port.
pub(super) const PARAMETERS: KeyTable = &[
    ("inline_data_size", TAKEN),
    ("max_queue_size", TAKEN),
    ("mdts", TAKEN),
    ("pi_enable", lost(OFF, PROTECTION)),
];

/// A referral.
pub(super) const REFERRAL: KeyTable = &[
    ("addr", TAKEN),
    ("enable", TAKEN),
    ("name", unnoticed("the name of a folder in configfs")),
    ("portid", unnoticed("hosts connect by address and port, not by this number")),
];

/// Address of a referral.
pub(super) const REFERRAL_ADDRESS: KeyTable = &[
    ("trtype", TAKEN),
    ("traddr", TAKEN),
    ("trsvcid", TAKEN),
    ("treq", TAKEN),
    ("tsas", TAKEN),
    ("adrfam", unnoticed("the address shows its family")),
    ("portid", unnoticed("hosts connect by address and port, not by this number")),
];

/// A group of namespaces of a port for asymmetric access.
pub(super) const GROUP: KeyTable = &[
    ("ana", TAKEN),
    ("grpid", unnoticed("all groups have the same state here, and another state is named")),
];

/// State of a group.
pub(super) const GROUP_STATE: KeyTable = &[("state", TAKEN)];

/// A subsystem.
pub(super) const SUBSYSTEM: KeyTable = &[
    ("nqn", TAKEN),
    ("attr", TAKEN),
    ("allowed_hosts", TAKEN),
    ("namespaces", TAKEN),
    ("passthru", TAKEN),
    ("device", TAKEN),
];

/// Attributes of a subsystem.
pub(super) const ATTRIBUTES: KeyTable = &[
    ("allow_any_host", TAKEN),
    ("serial", TAKEN),
    ("model", TAKEN),
    ("cntlid_min", TAKEN),
    ("cntlid_max", TAKEN),
    ("qid_max", TAKEN),
    ("version", lost(&["\"2.0\"", "\"2.0.0\""], "hosts see version 2.0 of NVMe here")),
    ("firmware", lost(&[], "hosts see the version of nvmeof-tgt as the firmware's")),
    ("ieee_oui", lost(&["\"0x000000\"", "\"0\"", "0"], "hosts see no OUI of the vendor here")),
    ("pi_enable", lost(OFF, PROTECTION)),
];

/// A controller whose commands a subsystem passes through.
pub(super) const PASSTHROUGH: KeyTable = &[
    ("device_path", TAKEN),
    ("path", TAKEN),
    ("enable", TAKEN),
    ("admin_timeout", unnoticed("concerns commands that are passed through, which is named")),
    ("io_timeout", unnoticed("concerns commands that are passed through, which is named")),
    ("clear_ids", unnoticed("concerns commands that are passed through, which is named")),
];

/// A namespace.
pub(super) const NAMESPACE: KeyTable = &[
    ("nsid", TAKEN),
    ("enable", TAKEN),
    ("device", TAKEN),
    ("buffered_io", TAKEN),
    ("ana_grpid", unnoticed("all groups have the same state here, and another state is named")),
    ("ana", unnoticed("all groups have the same state here, and another state is named")),
    ("resv_enable", lost(OFF, "hosts cannot reserve the namespace here")),
    ("p2pmem", lost(OFF, "data passes through this machine's memory")),
    ("revalidate_size", unnoticed("an action, not a setting")),
];

/// Device of a namespace.
pub(super) const DEVICE: KeyTable =
    &[("path", TAKEN), ("uuid", TAKEN), ("nguid", TAKEN), ("eui64", TAKEN), ("buffered_io", TAKEN)];

/// All tables, with the path of their objects in a file.
#[cfg(test)]
pub(crate) const ALL: &[(&str, KeyTable)] = &[
    ("", ROOT),
    ("/hosts/0", HOST),
    ("/hosts/1/attr", HOST_ATTRIBUTES),
    ("/ports/0", PORT),
    ("/ports/0/addr", ADDRESS),
    ("/ports/0/param", PARAMETERS),
    ("/ports/0/referrals/0", REFERRAL),
    ("/ports/0/referrals/0/addr", REFERRAL_ADDRESS),
    ("/ports/0/ana_groups/0", GROUP),
    ("/ports/0/ana_groups/0/ana", GROUP_STATE),
    ("/subsystems/0", SUBSYSTEM),
    ("/subsystems/0/attr", ATTRIBUTES),
    ("/subsystems/0/passthru", PASSTHROUGH),
    ("/subsystems/0/namespaces/0", NAMESPACE),
    ("/subsystems/0/namespaces/0/device", DEVICE),
];
