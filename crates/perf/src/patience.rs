//! Repeated attempts, for obstacles that pass.

use std::time::{Duration, Instant};

/// Duration and interval of repeated attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Time after which an attempt is the last one.
    pub(crate) most: Duration,
    /// Pause between two attempts.
    pub(crate) pause: Duration,
}

/// Reason for which an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It may pass: the attempt is repeated.
    Transient(String),
    /// It stays.
    Final(String),
}

impl Patience {
    /// For programs that open a changed block device for a moment, as udev does.
    pub(crate) const FOR_UDEV: Self =
        Self { most: Duration::from_secs(10), pause: Duration::from_millis(100) };
    /// One attempt.
    pub(crate) const NONE: Self = Self { most: Duration::ZERO, pause: Duration::ZERO };

    /// Repeats an attempt until it succeeds.
    ///
    /// # Errors
    /// The first final reason, or the last transient one.
    pub(crate) fn retry<T>(
        self,
        mut attempt: impl FnMut() -> Result<T, Refusal>,
    ) -> Result<T, String> {
        let until = Instant::now() + self.most;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Refusal::Transient(_)) if Instant::now() < until => {
                    std::thread::sleep(self.pause);
                }
                Err(Refusal::Transient(why) | Refusal::Final(why)) => return Err(why),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Patience = Patience { most: Duration::from_secs(600), pause: Duration::ZERO };

    #[test]
    fn an_attempt_is_repeated_while_its_obstacle_may_pass() {
        let after = |count: u32, last: Result<u32, Refusal>| {
            let mut left = count;
            move || {
                if left == 0 {
                    return last.clone();
                }
                left -= 1;
                Err(Refusal::Transient("busy".to_owned()))
            }
        };
        assert_eq!(LONG.retry(after(3, Ok(7))), Ok(7));
        let never = Refusal::Final("never".to_owned());
        assert_eq!(LONG.retry(after(3, Err(never))), Err("never".to_owned()));
        assert_eq!(Patience::NONE.retry(after(1, Ok(7))), Err("busy".to_owned()));
    }
}
