//! The list, as `cargo run -p nvmeof-sim --example suite -- --quick --gaps FILE` writes it.

use super::Gap;
use crate::suite::Family;

pub(super) const LIST: &[Gap] = &[
    Gap {
        family: Family::Slow,
        case: "B 32 slow, 3 x qd 85",
        what: "% of reference",
        reached: 97.08,
        why: "72 to 76 buffers held still reach it, and the swing is beside them on either side",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, 3 x qd 341",
        what: "% of reference",
        reached: 97.47,
        why: "slow flows hold what the others need, and the cache has no room for more",
    },
    Gap {
        family: Family::Stall,
        case: "B half the link, kernel qd 4",
        what: "up after ms",
        reached: 410.00,
        why: "what rises as the link comes back is taken for the lower side's doing, and the way up starts late",
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
        reached: 95.47,
        why: "so few commands that one more or less is a step, and the swing is as wide",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 20 us 64 drives 4K 70% qd 256",
        what: "% of reference",
        reached: 94.93,
        why: "more gains where the guess does not see it, and scatter hides it from swings",
    },
    Gap {
        family: Family::Small,
        case: "A 2 hosts, qd 256",
        what: "% of reference",
        reached: 98.28,
        why: "the lower side of the swing has too few in flight, and more would be late for the small ones",
    },
    Gap {
        family: Family::Small,
        case: "A 2 hosts, qd 256",
        what: "small p99 us",
        reached: 561.15,
        why: "a stretch with far more in flight than at other depths; why is not known",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 256",
        what: "small p99 us",
        reached: 651.26,
        why: "they wait at the drives and in the network behind large ones; 52 buffers held still come nearest",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 2048",
        what: "small p99 us",
        reached: 634.88,
        why: "they wait at the drives and in the network behind large ones; 52 buffers held still come nearest",
    },
];
