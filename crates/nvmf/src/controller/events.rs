//! Asynchronous events of a controller (Base 5.2).

use std::collections::BTreeSet;

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::critical_warning;

/// Most NSIDs of the Changed Namespace List (Base 5.16.1.5).
const CHANGED_MAX: usize = 1024;

/// Something a host can ask to be told of.
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

    /// Its bit of Asynchronous Event Configuration, feature 0Bh (Base 5.27.1.8).
    pub(crate) const fn config_bit(self) -> u32 {
        match self {
            Self::NamespaceChanged => 1 << 8,
            Self::DiscoveryChanged => 1 << 31,
            // Those of the SMART warnings are the bits of Critical Warning.
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

/// What waits to be reported, and what was and awaits its log page to be read.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pending: u8,
    masked: u8,
}

impl Events {
    /// Notes an event if the host has enabled it. True if it can be reported now.
    pub(crate) fn post(&mut self, event: Event, enabled: u32) -> bool {
        if enabled & event.config_bit() != 0 {
            self.pending |= event.bit();
        }
        self.any_ready()
    }

    /// Can any be reported?
    pub(crate) fn any_ready(&self) -> bool {
        self.pending & !self.masked != 0
    }

    /// Takes one to report; it is masked until [`Self::clear`].
    pub(crate) fn take(&mut self) -> Option<Event> {
        let ready = self.pending & !self.masked;
        let event = Event::ALL.into_iter().find(|event| ready & event.bit() != 0)?;
        self.pending &= !event.bit();
        self.masked |= event.bit();
        Some(event)
    }

    /// The host has read the event's log page.
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

    /// The list as log page 04h has it, without the padding: ascending NSIDs, or FFFFFFFFh alone if there
    /// were too many.
    pub(crate) fn list(&self) -> Vec<u32> {
        if self.overflowed { vec![u32::MAX] } else { self.nsids.iter().copied().collect() }
    }

    /// The host has read it.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
