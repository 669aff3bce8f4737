//! How a policy is written in a file: its name, the keys it takes, and what each of them needs.
//!
//! One table for whoever reads such a file. What a value looks like and what it may be is the
//! reader's, since that follows from its machine.

/// A policy by its name.
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
    /// Every one, the default first.
    pub const ALL: [Self; 5] =
        [Self::Adaptive, Self::None, Self::BufferCredit, Self::TokenBucket, Self::Prototype];

    /// As a file has it.
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

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// The keys it takes.
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
    /// Bytes a second.
    Rate,
    /// Time from one I/O to the next.
    Period,
    /// Bytes behind a rate, I/Os behind a period.
    Burst,
    /// Buffers in the prototype's pool.
    Buffers,
    /// Buffers that a core keeps for itself.
    Cache,
    /// Bytes that a tick grants.
    Credit,
    /// Bytes below which an I/O starts at once.
    BypassBelow,
    /// I/Os in flight on one drive.
    DriveLimit,
    /// A [`TunerName`].
    Tuner,
    /// Bytes in flight from which the period grows.
    TunerThreshold,
    /// Time between two steps of the period.
    TunerInterval,
    /// Time that a step is worth.
    TunerStep,
}

impl Key {
    /// Every one.
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

    /// As a file has it.
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

    /// The key without which, under the prototype, this one means nothing.
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

/// The prototype's tuner by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunerName {
    /// [`PrototypeTuner::BytesInFlight`](crate::PrototypeTuner::BytesInFlight).
    BytesInFlight,
    /// [`PrototypeTuner::Bandwidth`](crate::PrototypeTuner::Bandwidth).
    Bandwidth,
}

impl TunerName {
    /// Each with its name.
    pub const NAMES: [(&'static str, Self); 2] =
        [("bytes-in-flight", Self::BytesInFlight), ("bandwidth", Self::Bandwidth)];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, tuner)| tuner)
    }

    /// The keys it takes.
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
