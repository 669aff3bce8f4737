//! Get Log Page (Base 5.16).

mod health;
mod support;

use nvmeof_wire::Sqe;
use nvmeof_wire::identify::Csi;
use nvmeof_wire::log::{ErrorInformation, FirmwareSlotLog, GetLogPage, Lid, TransportType};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{U16, U32, U64, ascii};

use crate::Nanos;
use crate::admin::identify::FIRMWARE;
use crate::controller::{AdminState, Controller, Event};
use crate::discovery;
use crate::failure::Failure;
use crate::limits::ERROR_LOG_ENTRIES;
use crate::namespace::Lookup;
use crate::spec::TransportKind;
use crate::target::Target;

/// Bytes of the Changed Namespace List.
const CHANGED_SIZE: usize = size_of::<nvmeof_wire::log::ChangedNamespaces>();

/// Bytes of the NVMe-MI Commands Supported and Effects page: no such command is.
const MI_EFFECTS_SIZE: usize = 4096;

/// Parameter Error Location that says: of no parameter in particular.
const NO_PARAMETER: u16 = 0xffff;

/// The part of the log page asked for: exactly the number of dwords, zeroes past the page's end. Never
/// more than MDTS allows.
///
/// # Errors
/// [`Failure::InvalidLogPage`] for a page this controller does not have, [`Failure::InvalidField`] for an
/// offset beyond the page, a length beyond MDTS or an index offset, [`Failure::InvalidNamespace`] for an
/// NSID that can name no namespace.
pub(crate) fn get_log_page(
    target: &Target,
    controller: &Controller,
    sqe: &Sqe,
    now: Nanos,
) -> Result<Vec<u8>, Failure> {
    let command = GetLogPage::parse(sqe);
    let window = check(controller, &command)?;
    if command.lid == Lid::DISCOVERY {
        return discovery_log(target, controller, &command, window);
    }
    let page = match command.lid {
        Lid::SUPPORTED_LOG_PAGES => support::log_pages(controller),
        Lid::ERROR_INFORMATION => errors(controller),
        Lid::SMART => {
            only_controller(controller, command.nsid)?;
            health::smart(controller, now)
        }
        Lid::FIRMWARE_SLOT => firmware(),
        Lid::CHANGED_NAMESPACES => return changed_namespaces(controller, &command, window),
        Lid::COMMAND_EFFECTS if command.csi == Csi::NVM => support::commands(controller),
        Lid::FEATURE_EFFECTS => support::features(controller),
        Lid::MI_EFFECTS => vec![0; MI_EFFECTS_SIZE],
        _ => return Err(Failure::InvalidLogPage),
    };
    let part = window.of(&page)?;
    if command.lid == Lid::SMART && !command.retain_event {
        controller.clear_event(Event::Temperature);
    }
    Ok(part)
}

/// The part of a page a host wants.
#[derive(Clone, Copy, Debug)]
struct Window {
    offset: u64,
    /// At most MDTS.
    len: usize,
}

impl Window {
    /// Beyond the end of the page there are zeroes; a start beyond it is refused (Base 5.16).
    fn of(self, page: &[u8]) -> Result<Vec<u8>, Failure> {
        let offset = usize::try_from(self.offset).map_err(|_| Failure::InvalidField)?;
        let there = page.get(offset..).ok_or(Failure::InvalidField)?;
        let mut part = there[..there.len().min(self.len)].to_vec();
        part.resize(self.len, 0);
        Ok(part)
    }
}

/// What is checked whatever the page.
fn check(controller: &Controller, command: &GetLogPage) -> Result<Window, Failure> {
    if !controller.abilities().has_log_page(command.lid) {
        return Err(Failure::InvalidLogPage);
    }
    // No page supports index offsets, and byte offsets are of dwords.
    if command.index_offset || !command.offset.is_multiple_of(4) {
        return Err(Failure::InvalidField);
    }
    if command.length > u64::from(controller.limits.max_transfer()) {
        return Err(Failure::InvalidField);
    }
    let len = usize::try_from(command.length).map_err(|_| Failure::InvalidField)?;
    Ok(Window { offset: command.offset, len })
}

/// A page that could be of one namespace, and is kept of the controller alone (LPA bit 0).
fn only_controller(controller: &Controller, nsid: u32) -> Result<(), Failure> {
    if nsid == 0 || nsid == NSID_ALL {
        return Ok(());
    }
    match controller.namespaces().lookup(nsid) {
        Lookup::Active(_) | Lookup::Inactive => Err(Failure::InvalidField),
        Lookup::Invalid => Err(Failure::InvalidNamespace),
    }
}

/// Error Information (Base 5.16.1.2): the newest first, all entries there may be.
fn errors(controller: &Controller) -> Vec<u8> {
    let trtype = match controller.transport {
        TransportKind::Tcp => TransportType::TCP,
        TransportKind::Rdma => TransportType::RDMA,
        TransportKind::Loop => TransportType::INTRA_HOST,
    };
    let mut page = Vec::with_capacity(ERROR_LOG_ENTRIES * size_of::<ErrorInformation>());
    for record in controller.admin().errors.iter().take(ERROR_LOG_ENTRIES) {
        let entry = ErrorInformation {
            error_count: U64::new(record.count),
            sqid: U16::new(record.sqid),
            cid: U16::new(record.cid),
            status: U16::new(record.status.to_field(false)),
            parameter_location: U16::new(NO_PARAMETER),
            lba: U64::new(record.lba),
            nsid: U32::new(record.nsid),
            trtype,
            ..ErrorInformation::default()
        };
        page.extend_from_slice(entry.as_bytes());
    }
    page.resize(ERROR_LOG_ENTRIES * size_of::<ErrorInformation>(), 0);
    page
}

/// Firmware Slot Information (Base 5.16.1.4): slot 1 is what runs, and there is no other.
fn firmware() -> Vec<u8> {
    let mut page = FirmwareSlotLog { afi: 1, ..FirmwareSlotLog::default() };
    ascii::fill(&mut page.frs[0], FIRMWARE);
    page.as_bytes().to_vec()
}

/// Changed Namespace List (Base 5.16.1.5): read with RAE clear, it starts anew.
fn changed_namespaces(
    controller: &Controller,
    command: &GetLogPage,
    window: Window,
) -> Result<Vec<u8>, Failure> {
    // One lock for list and event: a change comes before both or after both.
    let mut admin = controller.admin();
    let AdminState { changed, events, .. } = &mut *admin;
    let mut page = Vec::with_capacity(CHANGED_SIZE);
    for nsid in changed.list() {
        page.extend_from_slice(&nsid.to_le_bytes());
    }
    page.resize(CHANGED_SIZE, 0);
    let part = window.of(&page)?;
    if !command.retain_event {
        changed.clear();
        events.clear(Event::NamespaceChanged);
    }
    Ok(part)
}

/// Discovery (Base 5.16.1.23). The event is cleared before the log is taken, so a change between the two
/// is in the log or tells of itself.
fn discovery_log(
    target: &Target,
    controller: &Controller,
    command: &GetLogPage,
    window: Window,
) -> Result<Vec<u8>, Failure> {
    // A refused command clears nothing.
    let part = window.of(&discovery::log_page(target, controller))?;
    if command.retain_event {
        return Ok(part);
    }
    controller.clear_event(Event::DiscoveryChanged);
    window.of(&discovery::log_page(target, controller))
}

#[cfg(test)]
mod tests;
