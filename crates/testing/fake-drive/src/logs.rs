//! Log pages and asynchronous events (Base 5.2, 5.16).

use std::collections::{BTreeSet, VecDeque};

use nvmeof_wire::aer::{AsyncEvent, EventType};
use nvmeof_wire::log::{
    ChangedNamespaces, ErrorInformation, FirmwareSlotLog, GetLogPage, Lid, SmartLog,
};
use nvmeof_wire::sanitize::{SANITIZE_TIME_UNKNOWN, SanitizeLog, SanitizeState, SanitizeStatus};
use nvmeof_wire::{Sqe, Status, U16, U32, U64, U128};
use zerocopy::IntoBytes;

use crate::controller::FakeController;
use crate::work::Outcome;

/// State of the log pages, and outstanding event requests.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) smart: SmartLog,
    /// Newest first.
    errors: VecDeque<ErrorInformation>,
    error_count: u64,
    pub(crate) changed: BTreeSet<u32>,
    pub(crate) sanitize: Sanitizing,
    /// Identifiers of Asynchronous Event Requests.
    requests: VecDeque<u16>,
    events: VecDeque<AsyncEvent>,
    /// Event types not sent again until their log page is read.
    masked: BTreeSet<u8>,
}

/// The most recent sanitize operation.
#[derive(Debug, Default)]
pub(crate) struct Sanitizing {
    /// Remaining reads of the log page until the operation ends.
    pub(crate) left: Option<u32>,
    of: u32,
    state: u8,
    cdw10: u32,
}

impl Logs {
    pub(crate) fn forget_requests(&mut self) {
        self.requests.clear();
        self.events.clear();
        self.masked.clear();
    }

    /// Removes the request with this identifier; returns true if there was one.
    pub(crate) fn take_request(&mut self, cid: u16) -> bool {
        let found = self.requests.iter().position(|&request| request == cid);
        found.map(|index| self.requests.remove(index)).is_some()
    }

    pub(crate) fn note_error(&mut self, qid: u16, sqe: &Sqe, status: Status, most: u8) {
        self.error_count += 1;
        self.errors.push_front(ErrorInformation {
            error_count: U64::new(self.error_count),
            sqid: U16::new(qid),
            cid: sqe.cid,
            status: U16::new(status.to_field(false)),
            parameter_location: U16::new(0xffff),
            lba: U64::new(if qid == 0 { 0 } else { sqe.cdw10_11() }),
            nsid: sqe.nsid,
            ..ErrorInformation::default()
        });
        self.errors.truncate(usize::from(most) + 1);
    }
}

impl FakeController {
    pub(crate) fn async_event_request(&mut self, sqe: &Sqe) -> Outcome {
        if self.logs.requests.len() > usize::from(self.config.identify.aerl) {
            self.broke(0, sqe, "more Asynchronous Event Requests than AERL allows");
            return Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr().into();
        }
        self.logs.requests.push_back(sqe.cid.get());
        Outcome::Waits
    }

    /// Sends an event now, or once there is a request and its type is not masked.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        self.logs.events.push_back(event);
        self.send_events();
    }

    /// Records a changed namespace, and reports it if the host enabled that event.
    pub(crate) fn namespace_changed(&mut self, nsid: u32) {
        self.logs.changed.insert(nsid);
        if self.features.events.namespace_attribute() {
            self.raise(AsyncEvent::NAMESPACE_CHANGED);
        }
    }

    pub(crate) fn send_events(&mut self) {
        while self.is_running() && !self.logs.requests.is_empty() {
            let masked = &self.logs.masked;
            let open = |event: &AsyncEvent| !masked.contains(&event.event_type.0);
            let Some(index) = self.logs.events.iter().position(open) else { break };
            let Some(event) = self.logs.events.remove(index) else { break };
            let Some(cid) = self.logs.requests.pop_front() else { break };
            // Immediate events have no log page to rearm them.
            if event.event_type != EventType::IMMEDIATE {
                self.logs.masked.insert(event.event_type.0);
            }
            self.complete(0, cid, Status::SUCCESS, event.encode().into());
        }
    }

    pub(crate) fn get_log_page(&mut self, sqe: &Sqe) -> Outcome {
        let get = GetLogPage::parse(sqe);
        let page = match get.lid {
            Lid::ERROR_INFORMATION => self.error_page(),
            Lid::SMART => self.smart_page(),
            Lid::FIRMWARE_SLOT => FirmwareSlotLog::default().as_bytes().to_vec(),
            Lid::CHANGED_NAMESPACES => {
                ChangedNamespaces::new(self.logs.changed.iter().copied()).as_bytes().to_vec()
            }
            Lid::SANITIZE_STATUS if self.config.identify.sanicap.get() != 0 => {
                self.advance_sanitize();
                self.sanitize_page()
            }
            _ => return Status::INVALID_LOG_PAGE.with_dnr().into(),
        };
        let offset = usize::try_from(get.offset).unwrap_or(usize::MAX);
        if offset > page.len() || !get.offset.is_multiple_of(4) {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        if self.is_beyond_mdts(get.length) {
            self.broke(0, sqe, "a log page of more than MDTS");
            return Status::INVALID_FIELD.with_dnr().into();
        }
        let mut data = page[offset..].to_vec();
        data.resize(usize::try_from(get.length).unwrap_or(0), 0);
        if let Err(status) = self.return_data(0, sqe, &data) {
            return status.into();
        }
        if get.lid == Lid::CHANGED_NAMESPACES {
            self.logs.changed.clear();
        }
        if !get.retain_event {
            self.unmask(get.lid);
        }
        Outcome::success(0)
    }

    fn unmask(&mut self, lid: Lid) {
        let types: &[EventType] = match lid {
            Lid::ERROR_INFORMATION => &[EventType::ERROR],
            Lid::SMART => &[EventType::SMART],
            Lid::CHANGED_NAMESPACES | Lid::FIRMWARE_SLOT => &[EventType::NOTICE],
            Lid::SANITIZE_STATUS => &[EventType::COMMAND_SET],
            _ => &[],
        };
        for event_type in types {
            self.logs.masked.remove(&event_type.0);
        }
    }

    fn error_page(&self) -> Vec<u8> {
        let entries = usize::from(self.config.identify.elpe) + 1;
        let mut page: Vec<u8> =
            self.logs.errors.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        page.resize(entries * size_of::<ErrorInformation>(), 0);
        page
    }

    fn smart_page(&self) -> Vec<u8> {
        let mut smart = self.logs.smart;
        smart.error_log_entries = U128::new(self.logs.error_count.into());
        smart.as_bytes().to_vec()
    }

    pub(crate) fn start_sanitize(&mut self, cdw10: u32) {
        let reads = self.config.sanitize_reads;
        let state = SanitizeState::IN_PROGRESS.0;
        self.logs.sanitize = Sanitizing { left: Some(reads), of: reads, state, cdw10 };
    }

    /// Leaves failure mode.
    pub(crate) fn forget_sanitize(&mut self) {
        self.logs.sanitize = Sanitizing::default();
    }

    pub(crate) fn sanitize_failed(&self) -> bool {
        self.logs.sanitize.state == SanitizeState::FAILED.0
    }

    fn advance_sanitize(&mut self) {
        match &mut self.logs.sanitize.left {
            Some(0) => self.finish_sanitize(),
            Some(left) => *left -= 1,
            None => (),
        }
    }

    fn finish_sanitize(&mut self) {
        self.logs.sanitize.left = None;
        if self.config.sanitize_fails {
            self.logs.sanitize.state = SanitizeState::FAILED.0;
        } else {
            self.logs.sanitize.state = SanitizeState::SUCCEEDED.0;
            self.media.iter_mut().for_each(crate::media::Media::erase);
        }
        self.raise(AsyncEvent::SANITIZE_COMPLETED);
    }

    fn sanitize_page(&self) -> Vec<u8> {
        let sanitizing = &self.logs.sanitize;
        let unknown = U32::new(SANITIZE_TIME_UNKNOWN);
        let progress = sanitizing.left.map_or(0xffff, |left| {
            let done = u64::from(sanitizing.of - left) * 0xffff;
            u16::try_from(done / (u64::from(sanitizing.of) + 1)).unwrap_or(0)
        });
        let log = SanitizeLog {
            progress: U16::new(progress),
            status: U16::new(SanitizeStatus::new().with_state(sanitizing.state).into_bits()),
            cdw10: U32::new(sanitizing.cdw10),
            overwrite_seconds: unknown,
            block_erase_seconds: unknown,
            crypto_erase_seconds: unknown,
            overwrite_no_deallocate_seconds: unknown,
            block_erase_no_deallocate_seconds: unknown,
            crypto_erase_no_deallocate_seconds: unknown,
            ..SanitizeLog::default()
        };
        log.as_bytes().to_vec()
    }
}
