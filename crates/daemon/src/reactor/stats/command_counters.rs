//! Counters of commands by class, host, subsystem and device.

use nvmeof_nvmf::{DeviceId, IoKind, QueueInfo};
use nvmeof_wire::status::StatusType;
use nvmeof_wire::{Nqn, Status};

use super::histogram::Histogram;

/// Class of a command in the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Read,
    Write,
    /// Flush, compare, verify, write zeroes, deallocate, and every admin command.
    Other,
}

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    #[inline]
    pub(crate) fn of(kind: IoKind) -> Self {
        match kind {
            IoKind::Read => Self::Read,
            IoKind::Write => Self::Write,
            _ => Self::Other,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// Class of an error in the statistics: its status code type (Base 3.3.3.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    Generic,
    Command,
    Media,
    Path,
    Other,
}

impl ErrorClass {
    pub(crate) const ALL: [Self; 5] =
        [Self::Generic, Self::Command, Self::Media, Self::Path, Self::Other];

    fn of(status: Status) -> Self {
        match status.status_type() {
            StatusType::Generic => Self::Generic,
            StatusType::CommandSpecific => Self::Command,
            StatusType::MediaAndDataIntegrity => Self::Media,
            StatusType::PathRelated => Self::Path,
            StatusType::VendorSpecific | StatusType::Reserved(_) => Self::Other,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Command => "command",
            Self::Media => "media",
            Self::Path => "path",
            Self::Other => "other",
        }
    }
}

/// Counters of commands that were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CommandCounters {
    /// Commands, failed ones included, in the order of [`Class::ALL`].
    pub(crate) ops: [u64; 3],
    /// Bytes that successful commands moved between host and target, in the same order.
    pub(crate) bytes: [u64; 3],
    /// Failed commands, in the order of [`ErrorClass::ALL`].
    pub(crate) errors: [u64; 5],
}

impl CommandCounters {
    #[inline]
    pub(crate) fn count(&mut self, class: Class, bytes: u32, status: Status) {
        self.ops[class as usize] += 1;
        if status.is_success() {
            self.bytes[class as usize] += u64::from(bytes);
        } else {
            self.errors[ErrorClass::of(status) as usize] += 1;
        }
    }

    pub(crate) fn add(&mut self, more: &Self) {
        let pairs = self.ops.iter_mut().zip(&more.ops);
        let pairs = pairs.chain(self.bytes.iter_mut().zip(&more.bytes));
        for (into, from) in pairs.chain(self.errors.iter_mut().zip(&more.errors)) {
            *into += from;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops == [0; 3]
    }
}

/// Key of a [`CommandCounters`]. The default is the shared entry for all further names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct CounterKey {
    /// Subsystem and host, or `None` before the first Connect.
    pub(crate) names: Option<(Nqn, Nqn)>,
    /// Device, or `None` for admin commands and for commands refused before it was determined.
    pub(crate) device: Option<u32>,
}

impl CounterKey {
    pub(crate) fn of(queue: Option<&QueueInfo>, device: Option<DeviceId>) -> Self {
        let names = queue.map(|queue| (queue.subnqn.clone(), queue.hostnqn.clone()));
        Self { names, device: device.map(|device| device.0) }
    }
}

/// Latencies of commands by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Latencies([Histogram; 3]);

impl Latencies {
    #[inline]
    pub(crate) fn record(&mut self, class: Class, nanos: u64) {
        self.0[class as usize].record(nanos);
    }

    pub(crate) fn of(&self, class: Class) -> &Histogram {
        &self.0[class as usize]
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.0.iter_mut().zip(&more.0).for_each(|(into, from)| into.add(from));
    }

    /// Returns the latencies since `before`, an earlier state of the same.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        since.0.iter_mut().zip(&before.0).for_each(|(one, before)| *one = one.since(before));
        since
    }
}
