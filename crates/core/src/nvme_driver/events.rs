//! Asynchronous events of a controller, and the requests for the next ones.

use std::collections::VecDeque;

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::log::GetLogPage;
use nvmeof_wire::sqe::NSID_ALL;

use super::admin::{AdminQueue, Owner};
use super::bring_up::{ask_for_event, has_log};

/// Number of events remembered.
const KEPT: usize = 64;
/// Maximum events logged and requested again per period; more wait for the next period.
const MOST: u64 = 16;
/// Period in nanoseconds.
const OVER: u64 = 1_000_000_000;
/// Bytes read of an event's log page.
const PAGE: u64 = 512;

/// An event that the controller reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveEvent {
    /// The event.
    pub event: AsyncEvent,
    /// Time in nanoseconds of the controller's clock.
    pub at: u64,
}

/// The events of a controller.
#[derive(Debug, Default)]
pub(super) struct Events {
    last: VecDeque<DriveEvent>,
    /// Events whose request must be submitted again.
    owed: VecDeque<PendingEvent>,
    rate: Rate,
}

/// A reported event: its log page is to be read, if safe and useful, and another event to be
/// requested.
#[derive(Debug, Clone, Copy)]
struct PendingEvent {
    event: AsyncEvent,
    wants_log: bool,
}

/// Number of events in the current period.
#[derive(Debug, Default)]
struct Rate {
    since: u64,
    count: u64,
}

impl Events {
    /// Returns the last events, oldest first.
    pub(super) fn last(&self) -> Vec<DriveEvent> {
        self.last.iter().copied().collect()
    }

    /// Records an event of the controller at `address`. Its log page must be read before the
    /// controller can report the next.
    pub(super) fn happened(&mut self, event: AsyncEvent, now: u64, address: &str) {
        if let Some(silent) = self.rate.begins_anew(now) {
            tracing::warn!(drive = address, silent, "drive reported more events than are logged");
        }
        self.rate.count += 1;
        if self.rate.count <= MOST {
            tracing::warn!(
                drive = address,
                kind = %event.event_type,
                info = event.info,
                log = %event.log,
                "drive reported an event"
            );
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(DriveEvent { event, at: now });
        self.owed.push_back(PendingEvent { event, wants_log: has_log(event) });
    }

    /// Reads the log pages of reported events, each until `deadline`, and requests further events.
    ///
    /// It continues when an admin slot is free, with at most [`MOST`] events per period.
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

    /// Drops pending requests, because the controller restarts and gets all requests again.
    pub(super) fn forget_owed(&mut self) {
        self.owed.clear();
    }
}

impl Rate {
    /// Starts a new period if it is time; returns the number of events of the last one that were
    /// not logged, if any.
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
