//! Seeds of a test run, as the environment sets them.

use std::ops::Range;

/// Seeds to run: `count` of them from 1, unless `TORTURE_SEED` sets the first and `TORTURE_SEEDS` the number.
///
/// # Panics
/// A variable is not a number.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    let first = number("TORTURE_SEED", 1);
    first..first + number("TORTURE_SEEDS", count)
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
        Err(_) => default,
    }
}
