//! The list, as `cargo run -p nvmeof-lab -- suite --quick --gaps FILE` writes it.

use super::Gap;
use crate::suite::Family;

pub(super) const LIST: &[Gap] = &[
    Gap {
        family: Family::Depth,
        case: "B null16 qd 1024",
        what: "stddev",
        reached: 1.05,
        why: "a trial while it is measured",
    },
    Gap {
        family: Family::Slow,
        case: "A 16 slow before data, qd 64 64 1024",
        what: "least slow flow %",
        reached: 86.83,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Slow,
        case: "A 16 slow before data, 16 x qd 1 and 1024",
        what: "least slow flow %",
        reached: 81.89,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, 3 x qd 85",
        what: "% of reference",
        reached: 97.88,
        why: "the full charge is not always found before the end",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, 3 x qd 341",
        what: "% of reference",
        reached: 96.43,
        why: "the budget without a price for slow devices is nearly as good, and stays",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, qd 8 8 256",
        what: "% of reference",
        reached: 96.81,
        why: "the budget without a price for slow devices is nearly as good, and stays",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, qd 8 8 1024",
        what: "% of reference",
        reached: 97.31,
        why: "the budget without a price for slow devices is nearly as good, and stays",
    },
    Gap {
        family: Family::Slow,
        case: "B 32 slow, qd 64 64 1024",
        what: "% of reference",
        reached: 90.97,
        why: "the full charge is not always found before the end",
    },
    Gap {
        family: Family::Slow,
        case: "B 16 slow before data, qd 64 64 1024",
        what: "least slow flow %",
        reached: 87.86,
        why: "slow flows wait a turn of the flows of their core",
    },
    Gap {
        family: Family::Machines,
        case: "A x4 16 drives 128K 100% qd 256",
        what: "% of reference",
        reached: 91.66,
        why: "the gain over no bound is within the scatter of the rates",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 2000 us 16 drives 128K 100% qd 256",
        what: "% of reference",
        reached: 79.99,
        why: "the best budget is beside the edge of the cache, and a step of a probe floods it",
    },
    Gap {
        family: Family::Machines,
        case: "A x1 16 drives 1024K 100% qd 256 16 cores after 4000 ms",
        what: "% of reference",
        reached: 96.79,
        why: "the largest commands of 16 cores fill the cache already",
    },
    Gap {
        family: Family::Scale,
        case: "B literal, qd 256",
        what: "% range",
        reached: 31.79,
        why: "with half of the rates the trial ends after the warm-up",
    },
];
