//! Get Log Page (Base 5.16).

mod health;
mod support;

use nvmeof_wire::Sqe;
use nvmeof_wire::log::{ErrorInformation, FirmwareSlotLog, GetLogPage, Lid, TransportType};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{U16, U32, U64, ascii};

use crate::Nanos;
use crate::admin::identify::FIRMWARE;
use crate::admin::page::PageWriter;
use crate::controller::{AdminState, Controller, Event};
use crate::discovery;
use crate::failure::Failure;
use crate::limits::ERROR_LOG_ENTRIES;
use crate::namespace::Lookup;
use crate::spec::TransportKind;
use crate::target::Target;

/// Entries of the Changed Namespace List.
const CHANGED_ENTRIES: usize = size_of::<nvmeof_wire::log::ChangedNamespaces>() / size_of::<u32>();

/// Bytes of the NVMe-MI Commands Supported and Effects page; no MI command is supported.
const MI_EFFECTS_SIZE: usize = 4096;

/// Parameter Error Location for no specific parameter.
const NO_PARAMETER: u16 = 0xffff;

/// Checks a Get Log Page command and returns its transfer length in bytes. Clears nothing.
///
/// # Errors
/// [`Failure::InvalidLogPage`] for a page that this controller does not have.
/// [`Failure::InvalidField`] for an offset beyond the page, a length beyond MDTS or an index
/// offset. [`Failure::InvalidNamespace`] for an NSID that cannot identify a namespace.
pub(crate) fn check_log_page(
    target: &Target,
    controller: &Controller,
    sqe: &Sqe,
    now: Nanos,
) -> Result<u32, Failure> {
    let command = GetLogPage::parse(sqe);
    let length = check(controller, &command)?;
    let mut page = PageWriter::measure(command.offset);
    let keep = GetLogPage { retain_event: true, ..command };
    put_log_page(target, controller, &keep, now, &mut page)?;
    page.finish()?;
    Ok(length)
}

/// Reads the part of a log page that fills `out`, with zeroes past the page's end.
///
/// The page is current as of this call, and an event that the host does not retain is cleared now.
///
/// # Errors
/// As [`check_log_page`], because the state can have changed since the command arrived.
pub(crate) fn read_log_page(
    target: &Target,
    controller: &Controller,
    sqe: &Sqe,
    now: Nanos,
    out: &mut [u8],
) -> Result<(), Failure> {
    // A failed command clears nothing.
    check_log_page(target, controller, sqe, now)?;
    let command = GetLogPage::parse(sqe);
    let mut page = PageWriter::new(command.offset, out);
    put_log_page(target, controller, &command, now, &mut page)?;
    page.finish()
}

/// Writes the page, and clears its event unless the host retains it.
fn put_log_page(
    target: &Target,
    controller: &Controller,
    command: &GetLogPage,
    now: Nanos,
    page: &mut PageWriter<'_>,
) -> Result<(), Failure> {
    match command.lid {
        Lid::DISCOVERY => discovery_log(target, controller, command, page),
        Lid::SUPPORTED_LOG_PAGES => page.put(support::log_pages(controller).as_bytes()),
        Lid::ERROR_INFORMATION => errors(controller, page),
        Lid::SMART => {
            only_controller(controller, command.nsid)?;
            page.put(health::smart(controller, now).as_bytes());
            if !command.retain_event {
                controller.clear_event(Event::Temperature);
            }
        }
        Lid::FIRMWARE_SLOT => page.put(firmware().as_bytes()),
        Lid::CHANGED_NAMESPACES => changed_namespaces(controller, command, page),
        // nvme-cli reads it for all command sets.
        Lid::COMMAND_EFFECTS => page.put(support::commands(controller, command.csi).as_bytes()),
        Lid::FEATURE_EFFECTS => page.put(support::features(controller).as_bytes()),
        Lid::MI_EFFECTS => page.put(&[0; MI_EFFECTS_SIZE]),
        _ => return Err(Failure::InvalidLogPage),
    }
    Ok(())
}

/// Checks that apply to every page; returns the length.
fn check(controller: &Controller, command: &GetLogPage) -> Result<u32, Failure> {
    if !controller.abilities().has_log_page(command.lid) {
        return Err(Failure::InvalidLogPage);
    }
    // No page supports index offsets, and byte offsets are multiples of a dword.
    if command.index_offset || !command.offset.is_multiple_of(4) {
        return Err(Failure::InvalidField);
    }
    match u32::try_from(command.length) {
        Ok(length) if length <= controller.limits.max_transfer() => Ok(length),
        _ => Err(Failure::InvalidField),
    }
}

/// Checks the NSID of a page that is kept only per controller (LPA bit 0).
fn only_controller(controller: &Controller, nsid: u32) -> Result<(), Failure> {
    if nsid == 0 || nsid == NSID_ALL {
        return Ok(());
    }
    match controller.namespaces().lookup(nsid) {
        Lookup::Active(_) | Lookup::Inactive => Err(Failure::InvalidField),
        Lookup::Invalid => Err(Failure::InvalidNamespace),
    }
}

/// Error Information (Base 5.16.1.2): all entries, newest first.
fn errors(controller: &Controller, page: &mut PageWriter<'_>) {
    let trtype = match controller.transport {
        TransportKind::Tcp => TransportType::TCP,
        TransportKind::Rdma => TransportType::RDMA,
        TransportKind::Loop => TransportType::INTRA_HOST,
    };
    let admin = controller.admin();
    let records = admin.errors.iter().map(|record| ErrorInformation {
        error_count: U64::new(record.count),
        sqid: U16::new(record.sqid),
        cid: U16::new(record.cid),
        status: U16::new(record.status.to_field(false)),
        parameter_location: U16::new(NO_PARAMETER),
        lba: U64::new(record.lba),
        nsid: U32::new(record.nsid),
        trtype,
        ..ErrorInformation::default()
    });
    let none = std::iter::repeat_with(ErrorInformation::default);
    for entry in records.chain(none).take(ERROR_LOG_ENTRIES) {
        page.put(entry.as_bytes());
    }
}

/// Firmware Slot Information (Base 5.16.1.4): slot 1 is the running firmware and the only slot.
fn firmware() -> FirmwareSlotLog {
    let mut page = FirmwareSlotLog { afi: 1, ..FirmwareSlotLog::default() };
    ascii::fill(&mut page.frs[0], FIRMWARE);
    page
}

/// Changed Namespace List (Base 5.16.1.5): a read with RAE clear empties it.
fn changed_namespaces(controller: &Controller, command: &GetLogPage, page: &mut PageWriter<'_>) {
    // One lock for list and event: a change comes before both or after both.
    let mut admin = controller.admin();
    let AdminState { changed, events, .. } = &mut *admin;
    let zeroes = std::iter::repeat(0);
    for nsid in changed.list().into_iter().chain(zeroes).take(CHANGED_ENTRIES) {
        page.put(&nsid.to_le_bytes());
    }
    if !command.retain_event {
        changed.clear();
        events.clear(Event::NamespaceChanged);
    }
}

/// Discovery (Base 5.16.1.23).
///
/// The event is cleared before the log is generated, so a change in between is in the log or posts
/// another event.
fn discovery_log(
    target: &Target,
    controller: &Controller,
    command: &GetLogPage,
    page: &mut PageWriter<'_>,
) {
    if !command.retain_event {
        controller.clear_event(Event::DiscoveryChanged);
    }
    discovery::put_log_page(target, controller, page);
}

#[cfg(test)]
pub(crate) mod tests;
