//! Names and keys of policies in a file, and the dependencies between keys.
//!
//! Every reader of these files uses this table. The reader defines the format and the range of
//! values, because both depend on its machine.

/// Name of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// [`PolicyConfig::Adaptive`](crate::PolicyConfig::Adaptive).
    Adaptive,
    /// [`PolicyConfig::None`](crate::PolicyConfig::None).
    None,
    /// [`PolicyConfig::BufferCredit`](crate::PolicyConfig::BufferCredit).
    BufferCredit,
    /// [`PolicyConfig::TokenBucket`](crate::PolicyConfig::TokenBucket).
    TokenBucket,
    /// [`PolicyConfig::Prototype`](crate::PolicyConfig::Prototype).
    Prototype,
}

impl PolicyName {
    /// All policies, the default first.
    pub const ALL: [Self; 5] =
        [Self::Adaptive, Self::None, Self::BufferCredit, Self::TokenBucket, Self::Prototype];

    /// Returns the name in a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::None => "none",
            Self::BufferCredit => "buffer-credit",
            Self::TokenBucket => "token-bucket",
            Self::Prototype => "prototype",
        }
    }

    /// Finds the policy with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Returns the keys of the policy.
    #[must_use]
    pub fn keys(self) -> &'static [Key] {
        match self {
            Self::Adaptive | Self::None => &[],
            Self::BufferCredit => &[Key::Budget],
            Self::TokenBucket => &[Key::Rate, Key::Period, Key::Burst, Key::Budget],
            Self::Prototype => &[
                Key::Buffers,
                Key::Cache,
                Key::Period,
                Key::Credit,
                Key::BypassBelow,
                Key::DriveLimit,
                Key::Tuner,
                Key::TunerThreshold,
                Key::TunerInterval,
                Key::TunerStep,
            ],
        }
    }
}

/// A key of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Bytes in flight on all cores together.
    Budget,
    /// Bytes per second.
    Rate,
    /// Time from one I/O to the next.
    Period,
    /// Bytes behind a rate, I/Os behind a period.
    Burst,
    /// Buffers in the pool of io_pacing.
    Buffers,
    /// Buffers that a core keeps for itself.
    Cache,
    /// Bytes that a tick grants.
    Credit,
    /// Bytes below which an I/O starts immediately.
    BypassBelow,
    /// I/Os in flight on one drive.
    DriveLimit,
    /// A [`TunerName`].
    Tuner,
    /// Bytes in flight from which the period grows.
    TunerThreshold,
    /// Time between two steps of the period.
    TunerInterval,
    /// Size of one step of the period.
    TunerStep,
}

impl Key {
    /// All keys.
    pub const ALL: [Self; 13] = [
        Self::Budget,
        Self::Rate,
        Self::Period,
        Self::Burst,
        Self::Buffers,
        Self::Cache,
        Self::Credit,
        Self::BypassBelow,
        Self::DriveLimit,
        Self::Tuner,
        Self::TunerThreshold,
        Self::TunerInterval,
        Self::TunerStep,
    ];

    /// Returns the name in a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Rate => "rate",
            Self::Period => "period",
            Self::Burst => "burst",
            Self::Buffers => "buffers",
            Self::Cache => "cache",
            Self::Credit => "credit",
            Self::BypassBelow => "bypass-below",
            Self::DriveLimit => "drive-limit",
            Self::Tuner => "tuner",
            Self::TunerThreshold => "tuner-threshold",
            Self::TunerInterval => "tuner-interval",
            Self::TunerStep => "tuner-step",
        }
    }

    /// Returns the key without which, under io_pacing, this one has no meaning.
    #[must_use]
    pub fn needs(self) -> Option<Self> {
        match self {
            Self::Cache => Some(Self::Buffers),
            Self::Credit | Self::BypassBelow | Self::DriveLimit | Self::Tuner => Some(Self::Period),
            Self::TunerThreshold | Self::TunerInterval | Self::TunerStep => Some(Self::Tuner),
            Self::Budget | Self::Rate | Self::Period | Self::Burst | Self::Buffers => None,
        }
    }
}

/// Name of an io_pacing tuner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunerName {
    /// [`PrototypeTuner::BytesInFlight`](crate::PrototypeTuner::BytesInFlight).
    BytesInFlight,
    /// [`PrototypeTuner::Bandwidth`](crate::PrototypeTuner::Bandwidth).
    Bandwidth,
}

impl TunerName {
    /// Every tuner with its name.
    pub const NAMES: [(&'static str, Self); 2] =
        [("bytes-in-flight", Self::BytesInFlight), ("bandwidth", Self::Bandwidth)];

    /// Finds the tuner with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, tuner)| tuner)
    }

    /// Returns the keys of the tuner.
    #[must_use]
    pub fn keys(self) -> &'static [Key] {
        match self {
            Self::BytesInFlight => &[Key::TunerThreshold],
            Self::Bandwidth => &[Key::TunerInterval, Key::TunerStep],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Key, PolicyName, TunerName};
    use crate::PolicyConfig;

    #[test]
    fn every_key_is_taken_by_a_policy_that_takes_what_it_needs() {
        for key in Key::ALL {
            let takes = |policy: &PolicyName| policy.keys().contains(&key);
            assert!(PolicyName::ALL.iter().any(takes), "{key:?}");
            if let Some(needed) = key.needs() {
                let all_have_it = |policy: PolicyName| policy.keys().contains(&needed);
                assert!(PolicyName::ALL.into_iter().filter(takes).all(all_have_it), "{key:?}");
            }
        }
        for (_, tuner) in TunerName::NAMES {
            assert!(tuner.keys().iter().all(|key| key.needs() == Some(Key::Tuner)));
        }
    }

    #[test]
    fn names_are_found_again_and_the_first_is_the_default() {
        for policy in PolicyName::ALL {
            assert_eq!(PolicyName::named(policy.name()), Some(policy));
        }
        assert_eq!(PolicyName::named("adaptiv"), None);
        assert_eq!(TunerName::named("bandwidth"), Some(TunerName::Bandwidth));
        assert_eq!(PolicyConfig::default(), PolicyConfig::Adaptive);
        assert_eq!(PolicyName::ALL[0], PolicyName::Adaptive);
    }
}
