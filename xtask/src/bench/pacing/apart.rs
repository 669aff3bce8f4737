//! Which runs are left out.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::plan::Policy;
use super::yardstick::Yardstick;
use crate::interrupt;

/// Runs that may be left out for each that is wanted.
const MOST_LEFT_OUT: usize = 3;

/// Leaves out what was measured while the machine below this one had the CPUs far apart, whatever came of it.
#[derive(Debug)]
pub(super) struct Apart {
    yardstick: Yardstick,
    /// The end of a run that is measured.
    time: Duration,
    /// Runs that may still be left out: it must come to an end.
    left: usize,
    /// Runs left out, by policy, and runs that were kept all the same.
    out: BTreeMap<String, u32>,
    kept: u32,
}

impl Apart {
    /// For so many runs, of which the last `time` is measured, on these CPUs.
    pub(super) fn new(cpus: [usize; 2], time: Duration, wanted: usize) -> Result<Self> {
        let yardstick = Yardstick::new(cpus)?;
        let left = wanted.saturating_mul(MOST_LEFT_OUT);
        Ok(Self { yardstick, time, left, out: BTreeMap::new(), kept: 0 })
    }

    /// Measures until the CPUs were together meanwhile, or no more may be left out. Errors are not measured again.
    pub(super) fn leave_out<T>(
        &mut self,
        policy: Policy,
        mut measure: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            if self.left > 0 {
                self.yardstick.wait()?;
            }
            let (measured, were_apart) = self.yardstick.watch(self.time, &mut measure)?;
            if !were_apart || measured.is_err() || interrupt::is_noted() {
                return measured;
            }
            if self.left == 0 {
                self.kept += 1;
                return measured;
            }
            self.left -= 1;
            *self.out.entry(policy.to_string()).or_default() += 1;
        }
    }
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(trip) = self.yardstick.trip() else {
            return f.write_str("how far the CPUs are apart was not seen");
        };
        let out: Vec<_> =
            self.out.iter().map(|(policy, count)| format!("{policy} {count}")).collect();
        write!(
            f,
            "a round trip between the CPUs takes {trip:?}; runs left out as it took half as much again: {}; \
             kept all the same: {}",
            if out.is_empty() { "none".to_owned() } else { out.join(", ") },
            self.kept
        )
    }
}
