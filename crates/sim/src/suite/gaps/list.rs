//! The list, as `cargo run -p nvmeof-sim --example suite -- --quick --gaps FILE` writes it.

use super::Gap;
use crate::suite::Family;

pub(super) const LIST: &[Gap] = &[
    Gap {
        family: Family::Stall,
        case: "B half the link, qd 32",
        what: "up after ms",
        reached: 340.00,
        why: "",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 2000 us 16 drives 128K 100% qd 256",
        what: "% of reference",
        reached: 96.64,
        why: "the edge of the cache is met now and then to see whether it is still there",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 256",
        what: "small p99 us",
        reached: 602.11,
        why: "they wait at the drives and in the network behind large ones; 52 buffers held still come nearest",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 2048",
        what: "small p99 us",
        reached: 593.92,
        why: "they wait at the drives and in the network behind large ones; 52 buffers held still come nearest",
    },
];
