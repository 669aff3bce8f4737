//! Asynchronous events of a controller (Base 5.2).

use std::collections::BTreeSet;

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::critical_warning;

/// Maximum number of NSIDs in the Changed Namespace List (Base 5.16.1.5).
const CHANGED_MAX: usize = 1024;

/// Event that a host can enable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Event {
    /// Notice 00h, Namespace Attribute Changed; log page 04h.
    NamespaceChanged,
    /// Notice F0h, Discovery Log Page Change; log page 70h.
    DiscoveryChanged,
    /// SMART / health status 01h, temperature threshold; log page 02h.
    Temperature,
}

impl Event {
    const ALL: [Self; 3] = [Self::NamespaceChanged, Self::DiscoveryChanged, Self::Temperature];

    /// Bit of the event in Asynchronous Event Configuration, feature 0Bh (Base 5.27.1.8).
    pub(crate) const fn config_bit(self) -> u32 {
        match self {
            Self::NamespaceChanged => 1 << 8,
            Self::DiscoveryChanged => 1 << 31,
            // The bits of SMART warnings are those of Critical Warning.
            Self::Temperature => critical_warning::TEMPERATURE as u32,
        }
    }

    /// DW0 of the completion.
    pub(crate) const fn dw0(self) -> u32 {
        let event = match self {
            Self::NamespaceChanged => AsyncEvent::NAMESPACE_CHANGED,
            Self::DiscoveryChanged => AsyncEvent::DISCOVERY_CHANGED,
            Self::Temperature => AsyncEvent::TEMPERATURE,
        };
        event.encode()
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Events that wait to be reported, and reported ones with an unread log page.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pending: u8,
    masked: u8,
}

impl Events {
    /// Records an event if the host has enabled it. Returns true if it can be reported now.
    pub(crate) fn post(&mut self, event: Event, enabled: u32) -> bool {
        if enabled & event.config_bit() != 0 {
            self.pending |= event.bit();
        }
        self.any_ready()
    }

    /// Returns true if any event can be reported.
    pub(crate) fn any_ready(&self) -> bool {
        self.pending & !self.masked != 0
    }

    /// Takes an event to report, and masks it until [`Self::clear`].
    pub(crate) fn take(&mut self) -> Option<Event> {
        let ready = self.pending & !self.masked;
        let event = Event::ALL.into_iter().find(|event| ready & event.bit() != 0)?;
        self.pending &= !event.bit();
        self.masked |= event.bit();
        Some(event)
    }

    /// Clears the event after the host has read its log page.
    pub(crate) fn clear(&mut self, event: Event) {
        self.pending &= !event.bit();
        self.masked &= !event.bit();
    }
}

/// NSIDs that changed since the host last read the list.
#[derive(Debug, Default)]
pub(crate) struct ChangedNamespaces {
    nsids: BTreeSet<u32>,
    overflowed: bool,
}

impl ChangedNamespaces {
    /// Adds an NSID.
    pub(crate) fn push(&mut self, nsid: u32) {
        if self.overflowed {
            return;
        }
        self.nsids.insert(nsid);
        if self.nsids.len() > CHANGED_MAX {
            self.nsids.clear();
            self.overflowed = true;
        }
    }

    /// The list as in log page 04h, without the padding.
    ///
    /// It holds ascending NSIDs, or only FFFFFFFFh if there were too many.
    pub(crate) fn list(&self) -> Vec<u32> {
        if self.overflowed { vec![u32::MAX] } else { self.nsids.iter().copied().collect() }
    }

    /// Clears the list after the host has read it.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
