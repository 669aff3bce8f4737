//! Asynchronous events (Base 5.2): the result of a completed Asynchronous Event Request.

use crate::log::Lid;
use crate::open::open_enum;

open_enum! {
    /// Asynchronous Event Type (Base 5.2.1).
    pub struct EventType(pub u8) {
        ERROR = 0x00 => "error status",
        SMART = 0x01 => "SMART / health status",
        NOTICE = 0x02 => "notice",
        IMMEDIATE = 0x03 => "immediate",
        COMMAND_SET = 0x06 => "I/O command specific status",
        VENDOR = 0x07 => "vendor specific",
    }
}

/// An asynchronous event: dword 0, and dword 1 where the event uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// Type, 3 bits.
    pub event_type: EventType,
    /// Information: the event within its type.
    pub info: u8,
    /// Log page with details. Reading it (without Retain Asynchronous Event) rearms the event.
    pub log: Lid,
}

impl AsyncEvent {
    /// Namespace Attribute Changed: log page 04h.
    pub const NAMESPACE_CHANGED: Self =
        Self { event_type: EventType::NOTICE, info: 0x00, log: Lid::CHANGED_NAMESPACES };
    /// Firmware Activation Starting: log page 03h.
    pub const FIRMWARE_ACTIVATION: Self =
        Self { event_type: EventType::NOTICE, info: 0x01, log: Lid::FIRMWARE_SLOT };
    /// Discovery Log Page Change: log page 70h.
    pub const DISCOVERY_CHANGED: Self =
        Self { event_type: EventType::NOTICE, info: 0xf0, log: Lid::DISCOVERY };
    /// Persistent Internal Error: log page 01h.
    pub const PERSISTENT_INTERNAL_ERROR: Self =
        Self { event_type: EventType::ERROR, info: 0x03, log: Lid::ERROR_INFORMATION };
    /// Transient Internal Error: log page 01h.
    pub const TRANSIENT_INTERNAL_ERROR: Self =
        Self { event_type: EventType::ERROR, info: 0x04, log: Lid::ERROR_INFORMATION };
    /// NVM subsystem reliability: log page 02h.
    pub const RELIABILITY: Self =
        Self { event_type: EventType::SMART, info: 0x00, log: Lid::SMART };
    /// Temperature threshold: log page 02h.
    pub const TEMPERATURE: Self =
        Self { event_type: EventType::SMART, info: 0x01, log: Lid::SMART };
    /// Spare below threshold: log page 02h.
    pub const SPARE: Self = Self { event_type: EventType::SMART, info: 0x02, log: Lid::SMART };

    /// A write to the doorbell of a queue that does not exist: log page 01h.
    pub const INVALID_DOORBELL: Self =
        Self { event_type: EventType::ERROR, info: 0x00, log: Lid::ERROR_INFORMATION };
    /// An invalid doorbell value: log page 01h.
    pub const INVALID_DOORBELL_VALUE: Self =
        Self { event_type: EventType::ERROR, info: 0x01, log: Lid::ERROR_INFORMATION };
    /// Sanitize Operation Completed: log page 81h.
    pub const SANITIZE_COMPLETED: Self =
        Self { event_type: EventType::COMMAND_SET, info: 0x01, log: Lid::SANITIZE_STATUS };

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn encode(self) -> u32 {
        (self.event_type.0 & 7) as u32 | (self.info as u32) << 8 | (self.log.0 as u32) << 16
    }

    /// Parses dword 0 of the completion.
    #[must_use]
    pub const fn parse(dw0: u32) -> Self {
        let [event_type, info, log, _] = dw0.to_le_bytes();
        Self { event_type: EventType(event_type & 7), info, log: Lid(log) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dwords_as_the_specification_has_them() {
        // Base 5.2.1: type in bits 2:0, information in 15:8, log page in 23:16.
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.encode(), 0x0004_0002);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.encode(), 0x0070_f002);
        assert_eq!(AsyncEvent::FIRMWARE_ACTIVATION.encode(), 0x0003_0102);
        assert_eq!(AsyncEvent::PERSISTENT_INTERNAL_ERROR.encode(), 0x0001_0300);
        assert_eq!(AsyncEvent::TRANSIENT_INTERNAL_ERROR.encode(), 0x0001_0400);
        assert_eq!(AsyncEvent::RELIABILITY.encode(), 0x0002_0001);
        assert_eq!(AsyncEvent::TEMPERATURE.encode(), 0x0002_0101);
        assert_eq!(AsyncEvent::SPARE.encode(), 0x0002_0201);
        assert_eq!(AsyncEvent::INVALID_DOORBELL.encode(), 0x0001_0000);
        assert_eq!(AsyncEvent::INVALID_DOORBELL_VALUE.encode(), 0x0001_0100);
        assert_eq!(AsyncEvent::SANITIZE_COMPLETED.encode(), 0x0081_0106);
        assert_eq!(AsyncEvent::parse(0x0070_f002), AsyncEvent::DISCOVERY_CHANGED);
        // Reserved bits have no effect.
        assert_eq!(AsyncEvent::parse(0xff04_00fa), AsyncEvent::NAMESPACE_CHANGED);
    }
}
