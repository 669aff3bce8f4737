//! Get Features and Set Features (Base 5.15 and 5.27, NVM 4.1.4).
//!
//! No value is saveable, so a saved value equals the default.

use std::collections::BTreeMap;

use nvmeof_wire::Sqe;
use nvmeof_wire::features::{
    Arbitration, CommandSetProfile, ErrorRecovery, Fid, GetFeatures, HostBehavior, HostIdentifier,
    NumberOfQueues, PowerManagement, Select, SetFeatures, TemperatureThreshold, Timestamp,
    VolatileWriteCache, WriteAtomicity,
};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};

use crate::Nanos;
use crate::admin::effects::Feature;
use crate::controller::{AdminState, Controller, Event, FeatureStore, HostClock};
use crate::failure::Failure;
use crate::namespace::Lookup;

/// The composite temperature in kelvins: room temperature (25 °C), because there is no sensor.
pub(crate) const TEMPERATURE: u16 = 298;

/// WCTEMP and the default over temperature threshold in kelvins, as Base 5.17.2.1 recommends.
pub(crate) const WARNING_TEMPERATURE: u16 = 0x157;

/// CCTEMP in kelvins: 100 °C.
pub(crate) const CRITICAL_TEMPERATURE: u16 = 373;

/// Keep-alive timeout in milliseconds if no host has set one (Base 5.27.1.12: two minutes).
const DEFAULT_KEEP_ALIVE_MS: u32 = 120_000;

/// Response of Get Features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeatureReply {
    /// Completion DW0.
    pub(crate) dw0: u32,
    /// Data, empty for most features.
    pub(crate) data: Vec<u8>,
}

impl From<u32> for FeatureReply {
    fn from(dw0: u32) -> Self {
        Self { dw0, data: Vec::new() }
    }
}

/// Bytes of data of this Set Features, which the queue fetches first.
///
/// # Errors
/// Those of [`set_feature`] that do not depend on the data.
pub(crate) fn set_feature_data_len(controller: &Controller, sqe: &Sqe) -> Result<u32, Failure> {
    let command = SetFeatures::parse(sqe);
    settable(controller, &command)?;
    let len = match command.fid {
        Fid::TIMESTAMP => size_of::<Timestamp>(),
        Fid::HOST_BEHAVIOR => size_of::<HostBehavior>(),
        _ => 0,
    };
    u32::try_from(len).map_err(|_| Failure::Internal)
}

/// Turns the volatile write cache on or off.
pub(crate) fn set_write_cache(controller: &Controller, enabled: bool) {
    controller.admin().features.write_cache = enabled;
    controller.set_write_cache(enabled);
}

/// Executes Set Features; returns DW0 of the completion.
///
/// # Errors
/// [`Failure::InvalidField`] for a feature that this controller does not have, or an unsupported
/// value. The other errors depend on NSID, SV and the feature.
pub(crate) fn set_feature(
    controller: &Controller,
    sqe: &Sqe,
    data: &[u8],
    now: Nanos,
) -> Result<u32, Failure> {
    let command = SetFeatures::parse(sqe);
    let scope = settable(controller, &command)?;
    let value = command.cdw11;
    match command.fid {
        Fid::KEEP_ALIVE_TIMER => set_keep_alive(controller, value)?,
        Fid::VOLATILE_WRITE_CACHE => {
            let enabled = VolatileWriteCache::from_bits(value).enabled();
            set_write_cache(controller, enabled);
        }
        Fid::ASYNC_EVENTS => {
            if value & !controller.abilities().async_event_mask() != 0 {
                return Err(Failure::InvalidField);
            }
            controller.admin().features.async_event_config = value;
            warn_of_temperature(controller);
        }
        Fid::TIMESTAMP => {
            let bytes = data.first_chunk().ok_or(Failure::DataTransfer)?;
            let timestamp = Timestamp::from_bits(u64::from_le_bytes(*bytes));
            controller.admin().features.clock = HostClock::set(timestamp, now);
        }
        Fid::HOST_BEHAVIOR => {
            controller.admin().features.host_behavior = host_behavior(data)?;
        }
        // The only combination has the NVM command set (Identify CNS 1Ch).
        Fid::COMMAND_SET_PROFILE if CommandSetProfile::from_bits(value).index() != 0 => {
            return Err(Failure::CommandSetCombination);
        }
        Fid::COMMAND_SET_PROFILE => {}
        Fid::NUMBER_OF_QUEUES => return set_number_of_queues(controller, value),
        Fid::TEMPERATURE_THRESHOLD => {
            set_value(&mut controller.admin(), command.fid, scope, value)?;
            warn_of_temperature(controller);
        }
        _ => set_value(&mut controller.admin(), command.fid, scope, value)?,
    }
    Ok(0)
}

/// Executes Get Features.
///
/// # Errors
/// [`Failure::InvalidField`] for a feature this controller does not have or a reserved selector,
/// [`Failure::InvalidNamespace`] for an NSID that can name no namespace.
pub(crate) fn get_feature(
    controller: &Controller,
    sqe: &Sqe,
    now: Nanos,
) -> Result<FeatureReply, Failure> {
    let command = GetFeatures::parse(sqe);
    let feature = find(controller, command.fid)?;
    let scope = if feature.per_namespace {
        Scope::of(controller, command.nsid)?
    } else {
        Scope::Controller
    };
    let wanted = FeatureQuery { fid: command.fid, cdw11: command.cdw11, scope, now };
    match command.select {
        Select::CURRENT => {
            let admin = controller.admin();
            wanted.value(&admin.features, controller.kato_ms(), &controller.host_id)
        }
        Select::DEFAULT | Select::SAVED => {
            let mut defaults = FeatureStore::new(&controller.limits);
            defaults.clock = HostClock::cleared(now);
            wanted.value(&defaults, DEFAULT_KEEP_ALIVE_MS, &[0; 16])
        }
        Select::SUPPORTED_CAPABILITIES => Ok(feature.capabilities().into_bits().into()),
        _ => Err(Failure::InvalidField),
    }
}

fn find(controller: &Controller, fid: Fid) -> Result<&'static Feature, Failure> {
    controller.abilities().feature(fid).ok_or(Failure::InvalidField)
}

/// The scope of the feature to set, if it can be set.
fn settable(controller: &Controller, command: &SetFeatures) -> Result<Scope, Failure> {
    let feature = find(controller, command.fid)?;
    if command.save {
        return Err(Failure::FeatureNotSaveable);
    }
    if feature.fid == Fid::HOST_IDENTIFIER {
        // Connect set it; over fabrics it never changes (Base 5.27.1.25).
        return Err(Failure::CommandSequence);
    }
    if !feature.changeable {
        return Err(Failure::FeatureNotChangeable);
    }
    let scope = Scope::of(controller, command.nsid)?;
    if scope != Scope::Controller && !feature.per_namespace {
        return Err(Failure::FeatureNotNamespaceSpecific);
    }
    Ok(scope)
}

/// Scope of a feature value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The controller; for a namespace feature, all its namespaces.
    ///
    /// Hosts older than namespace specific features send NSID 0 and mean the same.
    Controller,
    /// One active namespace.
    Namespace(u32),
}

impl Scope {
    fn of(controller: &Controller, nsid: u32) -> Result<Self, Failure> {
        if nsid == 0 || nsid == NSID_ALL {
            return Ok(Self::Controller);
        }
        match controller.namespaces().lookup(nsid) {
            Lookup::Active(_) => Ok(Self::Namespace(nsid)),
            Lookup::Inactive => Err(Failure::InvalidField),
            Lookup::Invalid => Err(Failure::InvalidNamespace),
        }
    }
}

/// A value to get.
#[derive(Debug)]
struct FeatureQuery {
    fid: Fid,
    /// Selectors, for features that have selectors.
    cdw11: u32,
    scope: Scope,
    now: Nanos,
}

impl FeatureQuery {
    fn value(
        &self,
        features: &FeatureStore,
        kato_ms: u32,
        host_id: &[u8; 16],
    ) -> Result<FeatureReply, Failure> {
        let value = match self.fid {
            Fid::ARBITRATION => features.arbitration,
            Fid::POWER_MANAGEMENT => features.power_management,
            Fid::TEMPERATURE_THRESHOLD => self.threshold(features)?.into(),
            Fid::ERROR_RECOVERY => features.error_recovery.get(self.scope),
            Fid::VOLATILE_WRITE_CACHE => features.write_cache.into(),
            Fid::NUMBER_OF_QUEUES => queue_counts(features.io_queues),
            Fid::WRITE_ATOMICITY => features.write_atomicity,
            Fid::ASYNC_EVENTS => features.async_event_config,
            Fid::KEEP_ALIVE_TIMER => kato_ms,
            Fid::COMMAND_SET_PROFILE => CommandSetProfile::new().into_bits(),
            Fid::HOST_IDENTIFIER if HostIdentifier::from_bits(self.cdw11).extended() => {
                return Ok(FeatureReply { dw0: 0, data: host_id.to_vec() });
            }
            Fid::TIMESTAMP => {
                let timestamp = features.clock.read(self.now).into_bits();
                return Ok(FeatureReply { dw0: 0, data: timestamp.to_le_bytes().to_vec() });
            }
            Fid::HOST_BEHAVIOR => {
                let data = features.host_behavior.as_bytes().to_vec();
                return Ok(FeatureReply { dw0: 0, data });
            }
            // The 64-bit identifier does not exist over fabrics.
            _ => return Err(Failure::InvalidField),
        };
        Ok(value.into())
    }

    fn threshold(&self, features: &FeatureStore) -> Result<u16, Failure> {
        let asked = TemperatureThreshold::from_bits(self.cdw11);
        if asked.sensor() != COMPOSITE {
            return Err(Failure::InvalidField);
        }
        match asked.threshold_type() {
            OVER => Ok(features.temperature_over),
            UNDER => Ok(features.temperature_under),
            _ => Err(Failure::InvalidField),
        }
    }
}

/// TMPSEL: the composite temperature, and all sensors (Set Features only).
const COMPOSITE: u8 = 0x0;
const EVERY_SENSOR: u8 = 0xf;
/// THSEL.
const OVER: u8 = 0;
const UNDER: u8 = 1;

/// Sets a value of the store.
fn set_value(admin: &mut AdminState, fid: Fid, scope: Scope, value: u32) -> Result<(), Failure> {
    let features = &mut admin.features;
    match fid {
        Fid::ARBITRATION => {
            let asked = Arbitration::from_bits(value);
            features.arbitration = Arbitration::new()
                .with_burst(asked.burst())
                .with_low_weight(asked.low_weight())
                .with_medium_weight(asked.medium_weight())
                .with_high_weight(asked.high_weight())
                .into_bits();
        }
        Fid::POWER_MANAGEMENT => {
            let asked = PowerManagement::from_bits(value);
            // NPSS: there is one power state.
            if asked.power_state() != 0 {
                return Err(Failure::InvalidField);
            }
            features.power_management =
                PowerManagement::new().with_workload_hint(asked.workload_hint()).into_bits();
        }
        Fid::TEMPERATURE_THRESHOLD => {
            let asked = TemperatureThreshold::from_bits(value);
            if !matches!(asked.sensor(), COMPOSITE | EVERY_SENSOR) {
                return Err(Failure::InvalidField);
            }
            match asked.threshold_type() {
                OVER => features.temperature_over = asked.threshold(),
                UNDER => features.temperature_under = asked.threshold(),
                _ => return Err(Failure::InvalidField),
            }
        }
        Fid::ERROR_RECOVERY => {
            let asked = ErrorRecovery::from_bits(value);
            // NSFEAT: no namespace reports deallocated blocks as errors.
            if asked.deallocated_error() {
                return Err(Failure::InvalidField);
            }
            let value = ErrorRecovery::new().with_time_limit(asked.time_limit());
            features.error_recovery.set(scope, value.into_bits());
        }
        Fid::WRITE_ATOMICITY => {
            let disable_normal = WriteAtomicity::from_bits(value).disable_normal();
            features.write_atomicity =
                WriteAtomicity::new().with_disable_normal(disable_normal).into_bits();
        }
        _ => return Err(Failure::InvalidField),
    }
    Ok(())
}

/// Number of Queues (Base 5.27.1.5).
///
/// The host may set it only before the first I/O queue. The target grants at most its limit and the
/// host's remaining queues, but at least one. Over fabrics, every submission queue has its own
/// completion queue.
fn set_number_of_queues(controller: &Controller, value: u32) -> Result<u32, Failure> {
    let asked = NumberOfQueues::from_bits(value);
    let submission = asked.submission().checked_add(1).ok_or(Failure::InvalidField)?;
    let completion = asked.completion().checked_add(1).ok_or(Failure::InvalidField)?;
    let mut admin = controller.admin();
    if !admin.io_queues.is_empty() {
        return Err(Failure::CommandSequence);
    }
    let left = controller.hosts.io_queues_left(&controller.host_nqn);
    let left = u16::try_from(left).unwrap_or(u16::MAX).max(1);
    let granted = submission.min(completion).min(controller.limits.io_queues.max(1)).min(left);
    admin.features.io_queues = granted;
    Ok(queue_counts(granted))
}

fn queue_counts(queues: u16) -> u32 {
    let count = queues.saturating_sub(1);
    NumberOfQueues::new().with_submission(count).with_completion(count).into_bits()
}

/// Keep Alive Timer (Base 5.27.1.12). Fabrics require it, except for discovery controllers.
fn set_keep_alive(controller: &Controller, kato_ms: u32) -> Result<(), Failure> {
    if kato_ms == 0 && !controller.is_discovery() {
        return Err(Failure::KeepAliveInvalid);
    }
    controller.set_kato_ms(kato_ms);
    Ok(())
}

/// Host Behavior Support (Base 5.27.1.18), without its reserved bytes.
///
/// This target gives no retry delays (CRDT1 to CRDT3 are 0) and has one LBA format and no
/// telemetry, so the values have no effect. Hosts read back what they set.
fn host_behavior(data: &[u8]) -> Result<HostBehavior, Failure> {
    let (asked, _) = HostBehavior::read_from_prefix(data).map_err(|_| Failure::DataTransfer)?;
    let fields = [asked.retry_delays, asked.telemetry_area4, asked.extended_formats];
    if fields.iter().any(|value| *value > 1) {
        return Err(Failure::InvalidField);
    }
    Ok(HostBehavior { reserved3: HostBehavior::default().reserved3, ..asked })
}

/// Error Recovery of every namespace (NVM 4.1.4.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorRecoveries {
    /// Value of the namespaces without their own value.
    rest: u32,
    own: BTreeMap<u32, u32>,
}

impl ErrorRecoveries {
    fn get(&self, scope: Scope) -> u32 {
        match scope {
            Scope::Controller => self.rest,
            Scope::Namespace(nsid) => self.own.get(&nsid).copied().unwrap_or(self.rest),
        }
    }

    fn set(&mut self, scope: Scope, value: u32) {
        match scope {
            Scope::Controller => *self = Self { rest: value, own: BTreeMap::new() },
            Scope::Namespace(nsid) => {
                self.own.insert(nsid, value);
            }
        }
    }
}

/// Posts the temperature warning if a threshold is passed.
///
/// The temperature is constant, so only a change of the threshold or of the event's configuration
/// can cause a warning.
fn warn_of_temperature(controller: &Controller) {
    let warning = temperature_warning(&controller.admin().features);
    if warning {
        controller.post_event(Event::Temperature);
    }
}

/// Returns true if the composite temperature passes a threshold.
///
/// See Base 5.27.1.3, SMART critical warning.
pub(crate) fn temperature_warning(features: &FeatureStore) -> bool {
    TEMPERATURE >= features.temperature_over || TEMPERATURE <= features.temperature_under
}

#[cfg(test)]
mod tests;
