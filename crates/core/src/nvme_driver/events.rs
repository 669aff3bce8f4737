//! What a controller tells of by itself, and asking it to tell of the next.

use std::collections::VecDeque;

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::GetLogPage;
use nvmeof_wire::sqe::NSID_ALL;

use super::admin::{AdminQueue, Owner};
use super::bring_up::{ask_for_event, has_log};

/// Events that are remembered.
const KEPT: usize = 64;
/// Events that are noted and asked for anew at once, in each so long a time; more wait for the next.
const MOST: u64 = 16;
/// Nanoseconds.
const OVER: u64 = 1_000_000_000;
/// Bytes read of an event's log page.
const PAGE: u64 = 512;

/// An event the controller told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveEvent {
    /// What it told.
    pub event: AsyncEvent,
    /// When, in nanoseconds of the controller's clock.
    pub at: u64,
}

/// The events of a controller.
#[derive(Debug, Default)]
pub(super) struct Events {
    last: VecDeque<DriveEvent>,
    /// To be asked for anew.
    owed: VecDeque<Owed>,
    rate: Rate,
}

/// An event that was told: its log page is to be read, if it is safe and of use, and another to be asked for.
#[derive(Debug, Clone, Copy)]
struct Owed {
    event: AsyncEvent,
    wants_log: bool,
}

/// How many events there were of late.
#[derive(Debug, Default)]
struct Rate {
    since: u64,
    count: u64,
}

impl Events {
    /// The last events, oldest first.
    pub(super) fn last(&self) -> Vec<DriveEvent> {
        self.last.iter().copied().collect()
    }

    /// The controller at `address` told of an event: notes it, and that its log page is to be read so that it can tell
    /// of the next.
    pub(super) fn happened(&mut self, event: AsyncEvent, now: u64, address: &str) {
        if let Some(silent) = self.rate.begins_anew(now) {
            tracing::warn!(drive = address, silent, "the drive told of more events");
        }
        self.rate.count += 1;
        if self.rate.count <= MOST {
            tracing::warn!(
                drive = address,
                kind = %event.event_type,
                info = event.info,
                log = %event.log,
                "the drive tells of an event"
            );
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(DriveEvent { event, at: now });
        self.owed.push_back(Owed { event, wants_log: has_log(event) });
    }

    /// Reads the log pages of events that were told, each until `deadline`, and asks to be told of the next ones: as
    /// soon as there is room among the admin commands, and no more of them in a time than [`MOST`].
    pub(super) fn ask(&mut self, admin: &mut AdminQueue, now: u64, deadline: u64) {
        while let Some(owed) = self.owed.front_mut() {
            if !self.rate.has_room(now) {
                return;
            }
            if owed.wants_log {
                let mut page = GetLogPage::new(owed.event.log, PAGE);
                page.retain_event = false;
                page.nsid = NSID_ALL;
                let owner = Owner::EventLog(owed.event);
                if admin.submit(page.encode(0), true, owner, Some(deadline)).is_err() {
                    return;
                }
                owed.wants_log = false;
            }
            if ask_for_event(admin).is_err() {
                return;
            }
            self.owed.pop_front();
        }
    }

    /// The controller starts anew, and is asked for all its events then.
    pub(super) fn forget_owed(&mut self) {
        self.owed.clear();
    }
}

impl Rate {
    /// Begins to count anew if it is time; events since that nothing was said of, if any.
    fn begins_anew(&mut self, now: u64) -> Option<u64> {
        if now.saturating_sub(self.since) < OVER {
            return None;
        }
        let silent = self.count.saturating_sub(MOST);
        *self = Self { since: now, count: 0 };
        (silent > 0).then_some(silent)
    }

    fn has_room(&self, now: u64) -> bool {
        self.count < MOST || now.saturating_sub(self.since) >= OVER
    }
}
