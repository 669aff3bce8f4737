//! Selects how large zero-copy data leaves: by a copy, or from its file.
//!
//! `sendfile` saves the sender's copy, but has a cost per page. The cheaper method depends on the
//! distance between the cores of sender and receiver. It changes on the same machine from one
//! minute to the next, by a factor of two in both directions. The threshold is therefore not a
//! constant: both methods are measured while in use.

/// Minimum length of zero-copy data that can leave from its file.
pub(super) const LARGE: usize = 32 << 10;

/// Flushes between two probes of the more expensive method.
const PROBE_EVERY: u32 = 32;
/// Flushes between two probes if the other method costs at least twice as much.
const PROBE_SELDOM: u32 = 256;
/// Weight of the newest measurement is 1/`SMOOTH`.
const SMOOTH: u64 = 8;

/// A send method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SendMethod {
    /// `sendmsg` over the memory.
    #[default]
    Copy,
    /// `sendfile` from the file that backs the memory.
    File,
}

/// Selects the method of the next flush by the cost of the last ones.
#[derive(Debug, Default)]
pub(super) struct SendMethodSelector {
    way: SendMethod,
    /// Nanoseconds per MiB, smoothed; 0 while unknown.
    copy: u64,
    file: u64,
    /// Flushes with large data since the last probe of the more expensive method.
    since_probe: u32,
}

impl SendMethodSelector {
    /// Returns the method of the next flush, or of the current one.
    pub(super) fn way(&self) -> SendMethod {
        self.way
    }

    /// Records a flush with large zero-copy data: `bytes` took `nanos`.
    pub(super) fn record(&mut self, bytes: usize, nanos: u64) {
        if bytes < LARGE {
            return;
        }
        let cost = (nanos << 20) / bytes as u64;
        let average = match self.way {
            SendMethod::Copy => &mut self.copy,
            SendMethod::File => &mut self.file,
        };
        *average = match *average {
            0 => cost.max(1),
            old => (old - old / SMOOTH + cost / SMOOTH).max(1),
        };
        self.since_probe += 1;
        self.way = self.next();
    }

    fn next(&mut self) -> SendMethod {
        let (cheap, dear, ratio) = match (self.copy, self.file) {
            (0, _) => return SendMethod::Copy,
            (_, 0) => return SendMethod::File,
            (copy, file) if copy <= file => (SendMethod::Copy, SendMethod::File, file / copy),
            (copy, file) => (SendMethod::File, SendMethod::Copy, copy / file),
        };
        let every = if ratio >= 2 { PROBE_SELDOM } else { PROBE_EVERY };
        if self.since_probe >= every {
            self.since_probe = 0;
            return dear;
        }
        cheap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs flushes of 128 KiB at these costs; returns the count per method.
    fn run(chooser: &mut SendMethodSelector, flushes: u32, copy: u64, file: u64) -> (u32, u32) {
        let mut went = (0, 0);
        for _ in 0..flushes {
            match chooser.way() {
                SendMethod::Copy => {
                    went.0 += 1;
                    chooser.record(128 << 10, copy);
                }
                SendMethod::File => {
                    went.1 += 1;
                    chooser.record(128 << 10, file);
                }
            }
        }
        went
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_looked_at_now_and_then() {
        let mut chooser = SendMethodSelector::default();
        let (copy, file) = run(&mut chooser, 3200, 20_000, 30_000);
        assert_eq!(copy + file, 3200);
        assert!((90..=110).contains(&file), "{file}");
        let (_, file) = run(&mut SendMethodSelector::default(), 3200, 10_000, 90_000);
        assert!((1..=20).contains(&file), "{file}");
    }

    #[test]
    fn a_machine_that_changes_its_mind_is_followed() {
        let mut chooser = SendMethodSelector::default();
        run(&mut chooser, 1000, 20_000, 30_000);
        let (copy, file) = run(&mut chooser, 4000, 70_000, 35_000);
        assert!(file > 10 * copy, "{copy} {file}");
        let (copy, file) = run(&mut chooser, 4000, 20_000, 30_000);
        assert!(copy > 2 * file, "{copy} {file}");
    }

    #[test]
    fn small_sends_say_nothing() {
        let mut chooser = SendMethodSelector::default();
        chooser.record(4096, 1);
        assert_eq!((chooser.copy, chooser.way()), (0, SendMethod::Copy));
    }
}
