//! Seeds of a test run, from the environment.

use std::ops::Range;

/// Returns the seeds to run: `count` of them from 1.
///
/// `TORTURE_SEED` overrides the first, `TORTURE_SEEDS` the number.
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
