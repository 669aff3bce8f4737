//! The list, as `cargo run -p nvmeof-lab -- suite --quick --gaps FILE` writes it.

use super::Gap;
use crate::suite::Family;

pub(super) const LIST: &[Gap] = &[
    Gap {
        family: Family::Depth,
        case: "B null16 qd 2048",
        what: "stddev",
        reached: 1.12,
        why: "a trial while it is measured",
    },
    Gap {
        family: Family::Slow,
        case: "A 16 slow before data, qd 64 64 1024",
        what: "least slow flow %",
        reached: 85.81,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Slow,
        case: "A 16 slow before data, 16 x qd 1 and 1024",
        what: "least slow flow %",
        reached: 82.54,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Slow,
        case: "A 32 slow before data, qd 64 64 1024",
        what: "least slow flow %",
        reached: 89.41,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, 3 x qd 341",
        what: "% of reference",
        reached: 96.99,
        why: "the budget without a price for slow devices is nearly as good, and stays",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, qd 8 8 256",
        what: "% of reference",
        reached: 96.26,
        why: "the budget without a price for slow devices is nearly as good, and stays",
    },
    Gap {
        family: Family::Slow,
        case: "B 16 slow before data, qd 64 64 1024",
        what: "least slow flow %",
        reached: 86.02,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow before data, qd 64 64 1024",
        what: "least slow flow %",
        reached: 88.60,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Stall,
        case: "B one drive, 16 x qd 32",
        what: "% of reference",
        reached: 95.58,
        why: "the budget is found again late",
    },
    Gap {
        family: Family::Machines,
        case: "A x4 16 drives 128K 100% qd 256",
        what: "% of reference",
        reached: 92.01,
        why: "the gain over no bound is within the scatter of the rates",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 2000 us 16 drives 128K 100% qd 256",
        what: "% of reference",
        reached: 87.75,
        why: "the best budget is beside the edge of the cache, and a step of a probe floods it",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 2000 us 16 drives 128K 100% qd 256",
        what: "least sample %",
        reached: 75.84,
        why: "a probe above the edge of the cache",
    },
    Gap {
        family: Family::Machines,
        case: "A x0.5 16 drives 512K 100% qd 256 16 cores after 4000 ms",
        what: "% of reference",
        reached: 96.21,
        why: "the largest commands of 16 cores fill the cache already",
    },
    Gap {
        family: Family::Small,
        case: "B 2 hosts, qd 256",
        what: "small p99 us",
        reached: 634.88,
        why: "small commands wait behind those that the budget lets out at the same time",
    },
    Gap {
        family: Family::Scale,
        case: "B literal, qd 256",
        what: "% range",
        reached: 29.33,
        why: "with half of the rates the trial ends after the warm-up",
    },
];
