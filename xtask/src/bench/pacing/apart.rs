//! Which turns are left out.

use std::fmt;

use anyhow::Result;

use super::yardstick::Yardstick;
use crate::interrupt;

/// Comparisons that may be left out for each that is wanted.
const MOST_LEFT_OUT: usize = 3;

/// Leaves out what was measured while the machine below this one had the CPUs far apart, whatever came of it.
#[derive(Debug)]
pub(super) struct Apart {
    yardstick: Yardstick,
    /// Comparisons that may still be left out: it must come to an end.
    left: usize,
    /// Comparisons left out, and those that were kept all the same.
    out: u32,
    kept: u32,
}

impl Apart {
    /// For so many comparisons on these CPUs.
    pub(super) fn new(cpus: [usize; 2], wanted: usize) -> Result<Self> {
        let yardstick = Yardstick::new(cpus)?;
        let left = wanted.saturating_mul(MOST_LEFT_OUT);
        Ok(Self { yardstick, left, out: 0, kept: 0 })
    }

    /// Measures until the CPUs were together meanwhile, or no more may be left out. Errors are not measured again.
    pub(super) fn leave_out<T>(&mut self, mut measure: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            if self.left > 0 {
                self.yardstick.wait()?;
            }
            let (measured, were_apart) = self.yardstick.watch(&mut measure)?;
            if !were_apart || measured.is_err() || interrupt::is_noted() {
                return measured;
            }
            if self.left == 0 {
                self.kept += 1;
                return measured;
            }
            self.left -= 1;
            self.out += 1;
        }
    }
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(trip) = self.yardstick.trip() else {
            return f.write_str("how far the CPUs are apart was not seen");
        };
        let Self { out, kept, .. } = self;
        write!(
            f,
            "a round trip between the CPUs takes {trip:?}; comparisons left out as it took half as much again: {out}; \
             kept all the same: {kept}"
        )
    }
}
