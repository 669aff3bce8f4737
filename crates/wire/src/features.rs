//! Get Features and Set Features (Base 5.15, 5.27): the commands and the features' dwords.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::AdminOpcode;
use crate::open::{open_enum, zero_default};
use crate::sqe::Sqe;

open_enum! {
    /// Feature Identifier (Base 5.27.1, Figure 316; NVM 4.1).
    pub struct Fid(pub u8) {
        ARBITRATION = 0x01 => "Arbitration",
        POWER_MANAGEMENT = 0x02 => "Power Management",
        LBA_RANGE_TYPE = 0x03 => "LBA Range Type",
        TEMPERATURE_THRESHOLD = 0x04 => "Temperature Threshold",
        ERROR_RECOVERY = 0x05 => "Error Recovery",
        VOLATILE_WRITE_CACHE = 0x06 => "Volatile Write Cache",
        NUMBER_OF_QUEUES = 0x07 => "Number of Queues",
        INTERRUPT_COALESCING = 0x08 => "Interrupt Coalescing",
        INTERRUPT_VECTOR = 0x09 => "Interrupt Vector Configuration",
        WRITE_ATOMICITY = 0x0a => "Write Atomicity Normal",
        ASYNC_EVENTS = 0x0b => "Asynchronous Event Configuration",
        AUTONOMOUS_POWER = 0x0c => "Autonomous Power State Transition",
        HOST_MEMORY_BUFFER = 0x0d => "Host Memory Buffer",
        TIMESTAMP = 0x0e => "Timestamp",
        KEEP_ALIVE_TIMER = 0x0f => "Keep Alive Timer",
        THERMAL_MANAGEMENT = 0x10 => "Host Controlled Thermal Management",
        NON_OPERATIONAL_POWER = 0x11 => "Non-Operational Power State Config",
        READ_RECOVERY_LEVEL = 0x12 => "Read Recovery Level Config",
        PREDICTABLE_LATENCY_CONFIG = 0x13 => "Predictable Latency Mode Config",
        PREDICTABLE_LATENCY_WINDOW = 0x14 => "Predictable Latency Mode Window",
        LBA_STATUS_REPORT = 0x15 => "LBA Status Information Report Interval",
        HOST_BEHAVIOR = 0x16 => "Host Behavior Support",
        SANITIZE_CONFIG = 0x17 => "Sanitize Config",
        ENDURANCE_GROUP_EVENTS = 0x18 => "Endurance Group Event Configuration",
        COMMAND_SET_PROFILE = 0x19 => "I/O Command Set Profile",
        SPINUP_CONTROL = 0x1a => "Spinup Control",
        SOFTWARE_PROGRESS = 0x80 => "Software Progress Marker",
        HOST_IDENTIFIER = 0x81 => "Host Identifier",
        RESERVATION_NOTIFICATION = 0x82 => "Reservation Notification Mask",
        RESERVATION_PERSISTENCE = 0x83 => "Reservation Persistence",
        WRITE_PROTECTION = 0x84 => "Namespace Write Protection Config",
    }
}

open_enum! {
    /// Select: the value of a feature that Get Features returns (Base 5.15).
    pub struct Select(pub u8) {
        CURRENT = 0x0 => "current",
        DEFAULT = 0x1 => "default",
        SAVED = 0x2 => "saved",
        SUPPORTED_CAPABILITIES = 0x3 => "supported capabilities",
    }
}

/// Result of Get Features with [`Select::SUPPORTED_CAPABILITIES`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FeatureCapabilities {
    /// The feature can be saved.
    pub saveable: bool,
    /// The feature is per namespace.
    pub namespace_specific: bool,
    /// The feature can be changed.
    pub changeable: bool,
    #[bits(29)]
    __: u32,
}

/// Get Features (Base 5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature.
    pub fid: Fid,
    /// Selected value.
    pub select: Select,
    /// Namespace, for a feature that is per namespace.
    pub nsid: u32,
    /// Command dword 11: a parameter of some features (Temperature Threshold, Host Identifier).
    pub cdw11: u32,
    /// UUID Index.
    pub uuid_index: u8,
}

impl GetFeatures {
    /// Parses the fields of `sqe`, which is a Get Features.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [fid, select, ..] = sqe.cdw10.get().to_le_bytes();
        Self {
            fid: Fid(fid),
            select: Select(select & 7),
            nsid: sqe.nsid.get(),
            cdw11: sqe.cdw11.get(),
            uuid_index: sqe.cdw14.get().to_le_bytes()[0] & 0x7f,
        }
    }

    /// Returns the command, without a data pointer.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::admin(AdminOpcode::GET_FEATURES, cid, self.nsid).with_cdw10([
            u32::from(self.fid.0) | u32::from(self.select.0 & 7) << 8,
            self.cdw11,
            0,
            0,
            u32::from(self.uuid_index & 0x7f),
        ])
    }
}

/// Set Features (Base 5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature.
    pub fid: Fid,
    /// Save: the value persists over resets and power cycles (CDW10 bit 31).
    pub save: bool,
    /// Namespace, for a feature that is per namespace.
    pub nsid: u32,
    /// Command dword 11: the value.
    pub cdw11: u32,
    /// Command dword 12: the second part of the value, for few features.
    pub cdw12: u32,
    /// UUID Index.
    pub uuid_index: u8,
}

impl SetFeatures {
    /// Parses the fields of `sqe`, which is a Set Features.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            fid: Fid(cdw10.to_le_bytes()[0]),
            save: cdw10 >> 31 != 0,
            nsid: sqe.nsid.get(),
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            uuid_index: sqe.cdw14.get().to_le_bytes()[0] & 0x7f,
        }
    }

    /// Returns the command, without a data pointer.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::admin(AdminOpcode::SET_FEATURES, cid, self.nsid).with_cdw10([
            u32::from(self.fid.0) | u32::from(self.save) << 31,
            self.cdw11,
            self.cdw12,
            0,
            u32::from(self.uuid_index & 0x7f),
        ])
    }
}

/// Arbitration, 01h (Base 5.27.1.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Arbitration {
    /// Arbitration Burst, as a power of two; 7 is no limit.
    #[bits(3)]
    pub burst: u8,
    #[bits(5)]
    __: u8,
    /// Low Priority Weight, 0's based.
    pub low_weight: u8,
    /// Medium Priority Weight, 0's based.
    pub medium_weight: u8,
    /// High Priority Weight, 0's based.
    pub high_weight: u8,
}

/// Power Management, 02h (Base 5.27.1.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PowerManagement {
    /// Power State.
    #[bits(5)]
    pub power_state: u8,
    /// Workload Hint.
    #[bits(3)]
    pub workload_hint: u8,
    #[bits(24)]
    __: u32,
}

/// Temperature Threshold, 04h (Base 5.27.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// Temperature Threshold (TMPTH) in kelvins.
    pub threshold: u16,
    /// Threshold Temperature Select (TMPSEL): 0 composite, 1 to 8 a sensor, 15 all (Set only).
    #[bits(4)]
    pub sensor: u8,
    /// Threshold Type Select (THSEL): 0 over, 1 under.
    #[bits(2)]
    pub threshold_type: u8,
    #[bits(10)]
    __: u16,
}

/// Error Recovery, 05h (NVM 4.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// Time Limited Error Recovery (TLER) in 100 ms; 0 is no limit.
    pub time_limit: u16,
    /// Deallocated or Unwritten Logical Block Error Enable (DULBE).
    pub deallocated_error: bool,
    #[bits(15)]
    __: u16,
}

/// Volatile Write Cache, 06h (Base 5.27.1.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct VolatileWriteCache {
    /// Volatile Write Cache Enable (WCE).
    pub enabled: bool,
    #[bits(31)]
    __: u32,
}

/// Number of Queues, 07h (Base 5.27.1.5): requested in the command, allocated in the completion.
/// Both are 0's based.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Submission queues (NSQR, NSQA), 0's based; 65535 is not allowed.
    pub submission: u16,
    /// Completion queues (NCQR, NCQA), 0's based; 65535 is not allowed.
    pub completion: u16,
}

impl NumberOfQueues {
    /// Converts from counts, each clamped to 1 to 65535 (65536 is not allowed).
    #[must_use]
    pub const fn from_counts(submission: u16, completion: u16) -> Self {
        Self::new()
            .with_submission(submission.saturating_sub(1))
            .with_completion(completion.saturating_sub(1))
    }

    /// Submission and completion queues as counts, 1 to 65536.
    #[must_use]
    pub const fn counts(self) -> (u32, u32) {
        (self.submission() as u32 + 1, self.completion() as u32 + 1)
    }
}

/// Interrupt Coalescing, 08h (Base 5.27.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// Aggregation Threshold in completions, 0's based.
    pub threshold: u8,
    /// Aggregation Time in 100 us; 0 is none.
    pub time: u8,
    __: u16,
}

/// Interrupt Vector Configuration, 09h (Base 5.27.1.7).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptVector {
    /// Interrupt Vector.
    pub vector: u16,
    /// Coalescing Disable.
    pub coalescing_disabled: bool,
    #[bits(15)]
    __: u16,
}

/// Timestamp, 0Eh (Base 5.27.1.11): the feature's 8 bytes of data.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Timestamp {
    /// Milliseconds since 1 January 1970, UTC, or since the last reset.
    #[bits(48)]
    pub milliseconds: u64,
    /// The controller stopped counting for some time (Get only).
    pub stopped: bool,
    /// Timestamp Origin (Get only): 0 since a reset, 1 set by a host.
    #[bits(3)]
    pub origin: u8,
    #[bits(12)]
    __: u16,
}

/// Host Behavior Support, 16h (Base 5.27.1.18): the feature's 512 bytes of data.
///
/// A field is 0 or 1; other values are reserved.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct HostBehavior {
    /// Byte 0, Advanced Command Retry Enable: the host uses the delays CRDT1 to CRDT3.
    pub retry_delays: u8,
    /// Byte 1, Extended Telemetry Data Area 4 Supported.
    pub telemetry_area4: u8,
    /// Byte 2, LBA Format Extension Enable: the host uses formats 16 to 63.
    pub extended_formats: u8,
    /// Bytes 3-511, reserved.
    pub reserved3: [u8; 509],
}
const _: () = assert!(size_of::<HostBehavior>() == 512);

zero_default!(HostBehavior);

/// I/O Command Set Profile, 19h (Base 5.27.1.21).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CommandSetProfile {
    /// I/O Command Set Combination Index: a vector of Identify CNS 1Ch.
    #[bits(9)]
    pub index: u16,
    #[bits(23)]
    __: u32,
}

/// Write Atomicity Normal, 0Ah (NVM 4.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WriteAtomicity {
    /// Disable Normal (DN): the host does not need AWUN and NAWUN.
    pub disable_normal: bool,
    #[bits(31)]
    __: u32,
}

/// Asynchronous Event Configuration, 0Bh (Base 5.27.1.8): events that the controller sends.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfig {
    /// SMART / Health Critical Warnings, by bit of [`crate::log::SmartLog::critical_warning`].
    pub smart: u8,
    /// Namespace Attribute Notices.
    pub namespace_attribute: bool,
    /// Firmware Activation Notices.
    pub firmware_activation: bool,
    /// Telemetry Log Notices.
    pub telemetry: bool,
    /// Asymmetric Namespace Access Change Notices.
    pub ana_change: bool,
    /// Predictable Latency Event Aggregate Log Change Notices.
    pub predictable_latency: bool,
    /// LBA Status Information Notices.
    pub lba_status: bool,
    /// Endurance Group Event Aggregate Log Change Notices.
    pub endurance_group: bool,
    /// Normal NVM Subsystem Shutdown.
    pub normal_shutdown: bool,
    #[bits(11)]
    __: u16,
    /// Zone Descriptor Changed Notices.
    pub zone_descriptor: bool,
    #[bits(3)]
    __: u8,
    /// Discovery Log Page Change Notification; discovery controllers only.
    pub discovery_log: bool,
}

/// Host Identifier, 81h (Base 5.27.1.25): dword 11. The identifier is in the data.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostIdentifier {
    /// Enable Extended Host Identifier: 16 bytes, not 8. Always 1 over fabrics.
    pub extended: bool,
    #[bits(31)]
    __: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::golden;

    #[test]
    fn get_features_bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x0a, 0x40, 1, 0, 2]),
            (40, &[0x0b, 0x03]), // FID, SEL
            (44, &[4, 0, 0, 0xa4]),
            (56, &[0x05]), // UUID index
        ]);
        let get = GetFeatures {
            fid: Fid::ASYNC_EVENTS,
            select: Select::SUPPORTED_CAPABILITIES,
            nsid: 2,
            cdw11: 0xa400_0004,
            uuid_index: 5,
        };
        assert_eq!(get.encode(1).as_bytes(), bytes);
        assert_eq!(GetFeatures::parse(&Sqe::read_from_bytes(&bytes).unwrap()), get);
    }

    #[test]
    fn queues_interrupts_and_timestamp() {
        let queues = NumberOfQueues::from_counts(4, 8);
        assert_eq!((queues.into_bits(), queues.counts()), (0x0007_0003, (4, 8)));
        assert_eq!(NumberOfQueues::from_bits(u32::MAX).counts(), (1 << 16, 1 << 16));
        let coalescing = InterruptCoalescing::new().with_threshold(3).with_time(2);
        assert_eq!(coalescing.into_bits(), 0x0203);
        let vector = InterruptVector::new().with_vector(0xabcd).with_coalescing_disabled(true);
        assert_eq!(vector.into_bits(), 0x0001_abcd);
        let timestamp = Timestamp::new().with_milliseconds((1 << 48) - 1).with_origin(1);
        let bytes = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0b0010, 0];
        assert_eq!(timestamp.into_bits().to_le_bytes(), bytes);
        assert_eq!(Timestamp::new().with_stopped(true).into_bits(), 1 << 48);
    }

    #[test]
    fn host_behavior_bytes() {
        let bytes: [u8; 512] = golden::bytes(&[(0, &[1]), (2, &[1])]);
        let behavior =
            HostBehavior { retry_delays: 1, extended_formats: 1, ..HostBehavior::default() };
        assert_eq!(behavior.as_bytes(), bytes);
        assert_eq!(HostBehavior::read_from_bytes(&bytes).unwrap(), behavior);
    }

    #[test]
    fn set_features_bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x09, 0x40, 1, 0, 2]),
            (40, &[0x07, 0, 0, 0x80]), // FID, SV
            (44, &[4, 0, 0, 0xa4]),
            (48, &[5, 0, 0, 0xa5]),
            (56, &[0x06]),
        ]);
        let set = SetFeatures {
            fid: Fid::NUMBER_OF_QUEUES,
            save: true,
            nsid: 2,
            cdw11: 0xa400_0004,
            cdw12: 0xa500_0005,
            uuid_index: 6,
        };
        assert_eq!(set.encode(1).as_bytes(), bytes);
        assert_eq!(SetFeatures::parse(&Sqe::read_from_bytes(&bytes).unwrap()), set);
    }

    #[test]
    fn dword_bits() {
        // Base 5.27.1.1 to 5.27.1.8 and 5.27.1.25; NVM 4.1 for 05h and 0Ah.
        let arbitration = Arbitration::from_bits(0x0403_0207);
        assert_eq!((arbitration.burst(), arbitration.low_weight()), (7, 2));
        assert_eq!((arbitration.medium_weight(), arbitration.high_weight()), (3, 4));
        assert_eq!(
            PowerManagement::new().with_power_state(31).with_workload_hint(1).into_bits(),
            0x3f
        );
        let threshold = TemperatureThreshold::from_bits(0x001f_0157);
        assert_eq!((threshold.threshold(), threshold.sensor()), (343, 15));
        assert_eq!(threshold.threshold_type(), 1);
        let recovery = ErrorRecovery::from_bits(0x0001_1234);
        assert_eq!((recovery.time_limit(), recovery.deallocated_error()), (0x1234, true));
        assert!(VolatileWriteCache::from_bits(1).enabled());
        let queues = NumberOfQueues::from_bits(0x0002_0001);
        assert_eq!((queues.submission(), queues.completion()), (1, 2));
        assert!(WriteAtomicity::from_bits(1).disable_normal());
        assert!(HostIdentifier::from_bits(1).extended());
        assert_eq!(CommandSetProfile::from_bits(0xffff_ff03).index(), 0x103);
    }

    #[test]
    fn async_event_bits() {
        let bit = |config: AsyncEventConfig| config.into_bits();
        assert_eq!(bit(AsyncEventConfig::new().with_smart(0xff)), 0xff);
        assert_eq!(bit(AsyncEventConfig::new().with_namespace_attribute(true)), 1 << 8);
        assert_eq!(bit(AsyncEventConfig::new().with_firmware_activation(true)), 1 << 9);
        assert_eq!(bit(AsyncEventConfig::new().with_telemetry(true)), 1 << 10);
        assert_eq!(bit(AsyncEventConfig::new().with_ana_change(true)), 1 << 11);
        assert_eq!(bit(AsyncEventConfig::new().with_predictable_latency(true)), 1 << 12);
        assert_eq!(bit(AsyncEventConfig::new().with_lba_status(true)), 1 << 13);
        assert_eq!(bit(AsyncEventConfig::new().with_endurance_group(true)), 1 << 14);
        assert_eq!(bit(AsyncEventConfig::new().with_normal_shutdown(true)), 1 << 15);
        assert_eq!(bit(AsyncEventConfig::new().with_zone_descriptor(true)), 1 << 27);
        assert_eq!(bit(AsyncEventConfig::new().with_discovery_log(true)), 1 << 31);
    }

    #[test]
    fn capability_bits() {
        let bits = |c: FeatureCapabilities| c.into_bits();
        assert_eq!(bits(FeatureCapabilities::new().with_saveable(true)), 1);
        assert_eq!(bits(FeatureCapabilities::new().with_namespace_specific(true)), 2);
        assert_eq!(bits(FeatureCapabilities::new().with_changeable(true)), 4);
    }

    proptest! {
        #[test]
        fn round_trips(fid: u8, select in 0u8..8, save: bool, nsid: u32, cdw11: u32, cdw12: u32) {
            let get = GetFeatures {
                fid: Fid(fid), select: Select(select), nsid, cdw11, uuid_index: select,
            };
            prop_assert_eq!(GetFeatures::parse(&get.encode(1)), get);
            let set = SetFeatures { fid: Fid(fid), save, nsid, cdw11, cdw12, uuid_index: select };
            prop_assert_eq!(SetFeatures::parse(&set.encode(1)), set);
        }
    }
}
