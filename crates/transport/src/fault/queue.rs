//! The wrapper and its dice.

use std::os::fd::BorrowedFd;

use nvmeof_core::dma::Lent;

use super::{Fault, FaultPlan, ParkedFaulty};
use crate::queue::{
    CloseReason, Connected, Event, FabricError, FabricOp, HostQueue, Nanos, ParkedQueue, Progress,
    Rejected,
};

/// Decides what goes wrong where.
#[derive(Debug)]
pub(super) struct Dice {
    plan: FaultPlan,
    state: u64,
    point: u64,
}

/// A point where something can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Command,
    Pulled,
    Other,
    Response,
}

impl Fault {
    fn fits(self, point: Point) -> bool {
        match self {
            Self::DropCommand | Self::FailCommand => point == Point::Command,
            Self::FailPull => point == Point::Pulled,
            Self::DropResponse => point == Point::Response,
            Self::Delay(_) => point != Point::Response,
            Self::Close => true,
        }
    }
}

impl Dice {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self { state: plan.seed, plan, point: 0 }
    }

    /// What goes wrong at the next point, which is of this kind.
    fn roll(&mut self, at: Point) -> Option<Fault> {
        let point = self.point;
        self.point += 1;
        let due =
            self.plan.points.iter().position(|(when, fault)| *when <= point && fault.fits(at));
        if let Some(due) = due {
            return Some(self.plan.points.remove(due).1);
        }
        // One number a chance, whether it fits or not: what happens at one point does not depend on
        // what could have happened at another.
        let mut hit = None;
        for index in 0..self.plan.chances.len() {
            let number = self.number() % 1_000_000;
            let (fault, chance) = self.plan.chances[index];
            if hit.is_none() && number < u64::from(chance) && fault.fits(at) {
                hit = Some(fault);
            }
        }
        hit
    }

    /// The next of a sequence that looks random (SplitMix64).
    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A queue with faults.
#[derive(Debug)]
pub(super) struct Faulty {
    inner: Box<dyn HostQueue>,
    dice: Dice,
    /// Events that are late, and when they come.
    late: Vec<(Nanos, Event)>,
    /// Data of responses that were dropped.
    dropped: Vec<Event>,
    /// What the inner queue said this call.
    fresh: Vec<Event>,
}

impl Faulty {
    pub(super) fn new(inner: Box<dyn HostQueue>, dice: Dice) -> Self {
        Self { inner, dice, late: Vec::new(), dropped: Vec::new(), fresh: Vec::new() }
    }

    /// Hands on what the inner queue said, less what goes wrong.
    fn pass(&mut self, now: Nanos, events: &mut Vec<Event>) {
        let mut fresh = std::mem::take(&mut self.fresh);
        events.append(&mut self.dropped);
        for event in fresh.drain(..) {
            if matches!(event, Event::Closed { .. }) {
                events.extend(self.late.drain(..).map(|(_, event)| event));
                events.push(event);
                continue;
            }
            let point = match &event {
                Event::Command { .. } => Point::Command,
                Event::Pulled { .. } => Point::Pulled,
                _ => Point::Other,
            };
            match (self.dice.roll(point), event) {
                (Some(Fault::DropCommand), _) => {}
                (Some(Fault::FailCommand), Event::Command { sqe, .. }) => {
                    events.push(Event::CommandFailed { sqe, error: FabricError::DataDigest });
                }
                (Some(Fault::FailPull), Event::Pulled { token, buf, .. }) => {
                    let result = Err(FabricError::DataDigest);
                    events.push(Event::Pulled { token, buf, result });
                }
                (Some(Fault::Delay(by)), event) => {
                    self.late.push((now.saturating_add(by), event));
                }
                (Some(Fault::Close), event) => {
                    events.push(event);
                    self.inner.close(CloseReason::Lost("injected fault".to_owned()));
                }
                (_, event) => events.push(event),
            }
        }
        self.fresh = fresh;
        self.late.sort_by_key(|(when, _)| *when);
        let due = self.late.partition_point(|(when, _)| *when <= now);
        events.extend(self.late.drain(..due).map(|(_, event)| event));
    }
}

impl HostQueue for Faulty {
    fn has_greeted(&self) -> bool {
        self.inner.has_greeted()
    }

    fn set_memory_short(&mut self, is_short: bool, now: Nanos) {
        self.inner.set_memory_short(is_short, now);
    }

    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        let progress = self.inner.receive(now, &mut self.fresh);
        self.pass(now, events);
        progress
    }

    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected> {
        let FabricOp::Respond { .. } = &op else {
            return self.inner.submit(op);
        };
        match self.dice.roll(Point::Response) {
            Some(Fault::DropResponse) => {
                if let FabricOp::Respond { token, data: Some(data), .. } = op {
                    self.dropped.push(Event::Sent { token, data: Some(data) });
                }
                Ok(())
            }
            Some(Fault::Close) => {
                self.inner.submit(op)?;
                self.inner.close(CloseReason::Lost("injected fault".to_owned()));
                Ok(())
            }
            _ => self.inner.submit(op),
        }
    }

    fn flush(&mut self, room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress {
        let progress = self.inner.flush(room, now, &mut self.fresh);
        self.pass(now, events);
        progress
    }

    fn departing(&self) -> Option<Nanos> {
        self.inner.departing()
    }

    fn depart(&mut self, now: Nanos, events: &mut Vec<Event>) {
        self.inner.depart(now, &mut self.fresh);
        self.pass(now, events);
    }

    fn close(&mut self, why: CloseReason) {
        self.inner.close(why);
    }

    fn connected(&mut self, info: Connected) {
        self.inner.connected(info);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn deadline(&self) -> Option<Nanos> {
        let late = self.late.first().map(|(when, _)| *when);
        self.inner.deadline().into_iter().chain(late).min()
    }

    fn park(self: Box<Self>) -> Result<Box<dyn ParkedQueue>, Box<dyn HostQueue>> {
        if !self.late.is_empty() || !self.dropped.is_empty() {
            return Err(self);
        }
        let Self { inner, dice, .. } = *self;
        match inner.park() {
            Ok(inner) => Ok(Box::new(ParkedFaulty { inner, dice })),
            Err(inner) => Err(Box::new(Self::new(inner, dice))),
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.inner.set_paused(paused);
    }

    fn set_token(&mut self, token: u64) {
        self.inner.set_token(token);
    }

    fn is_told(&self) -> bool {
        self.inner.is_told()
    }

    fn is_movable(&self) -> bool {
        self.inner.is_movable()
    }

    fn takes_lent(&self, lent: &Lent) -> bool {
        self.inner.takes_lent(lent)
    }
}
