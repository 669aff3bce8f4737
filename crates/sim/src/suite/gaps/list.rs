//! The list, as `cargo run -p nvmeof-sim --example suite -- --quick --gaps FILE` writes it.

use super::Gap;
use crate::suite::Family;

pub(super) const LIST: &[Gap] = &[
    Gap {
        family: Family::Slow,
        case: "A 32 slow, 3 x qd 341",
        what: "% of reference",
        reached: 97.99,
        why: "a loss by chance early on is taken for an edge, below what is enough, and that rises slowly",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, 3 x qd 85",
        what: "% of reference",
        reached: 96.68,
        why: "no number held still reaches it with every seed; lanes on two cores do not know what they have at one drive",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 2000 us 16 drives 128K 100% qd 256",
        what: "% of reference",
        reached: 96.67,
        why: "the edge of the cache is met now and then to see whether it is still there",
    },
    Gap {
        family: Family::Machines,
        case: "A x4 2000 us 64 drives 1024K 70% qd 256",
        what: "% of reference",
        reached: 87.87,
        why: "so few commands that one more or less is a step, and the swing is as wide",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 256",
        what: "small p99 us",
        reached: 724.99,
        why: "they wait at the drives and in the network behind large ones; 52 buffers held still come nearest",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 2048",
        what: "small p99 us",
        reached: 602.11,
        why: "they wait at the drives and in the network behind large ones; 52 buffers held still come nearest",
    },
];
