//! Asynchronous events, as a host requests them.

use nvmeof_wire::Sqe;
use nvmeof_wire::Status;
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{Fid, SetFeatures};
use nvmeof_wire::log::{GetLogPage, Lid};
use nvmeof_wire::opcode::AdminOpcode;

use crate::Raw;

/// Enables every event and sends an Asynchronous Event Request.
pub fn ask_for_events(admin: &mut Raw) {
    let set = SetFeatures {
        fid: Fid::ASYNC_EVENTS,
        save: false,
        nsid: 0,
        cdw11: 1 << 8 | 1 << 31,
        cdw12: 0,
        uuid_index: 0,
    };
    // Each kind of controller has its events and rejects those of the other.
    let both = admin.command(set.encode(0));
    if !both.status().is_success() {
        for bit in [8, 31] {
            admin.command(SetFeatures { cdw11: 1 << bit, ..set }.encode(0));
        }
    }
    request_event(admin);
}

/// Sends an Asynchronous Event Request.
pub fn request_event(admin: &mut Raw) {
    let sqe = admin.numbered(Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0));
    let capsule = admin.capsule(sqe, &[]);
    admin.send(&capsule);
}

/// Receives this event and no other.
///
/// # Panics
/// If another arrives.
pub fn assert_event(admin: &mut Raw, event: AsyncEvent) {
    let cqe = admin.response();
    assert_eq!((cqe.status(), AsyncEvent::parse(cqe.dw0())), (Status::SUCCESS, event));
}

/// Returns the namespaces that changed; reading them rearms the event.
///
/// # Panics
/// If the log cannot be read.
#[must_use]
pub fn changed_namespaces(admin: &mut Raw) -> Vec<u32> {
    let page = GetLogPage { retain_event: false, ..GetLogPage::new(Lid::CHANGED_NAMESPACES, 4096) };
    let data = admin.read(page.encode(0), 4096);
    let nsids = data.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
    nsids.take_while(|&nsid| nsid != 0).collect()
}
