//! The wrapper and its random generator.

use std::os::fd::BorrowedFd;

use nvmeof_core::dma::ZeroCopyData;

use super::{Fault, FaultPlan, ParkedFaulty};
use crate::queue::{
    CloseReason, Connected, DetachedQueue, Event, FabricError, FabricOp, HostQueue, Nanos,
    Progress, Rejected,
};

/// Selects faults and their points.
#[derive(Debug)]
pub(super) struct FaultInjector {
    plan: FaultPlan,
    state: u64,
    point: u64,
}

/// A point where a fault can occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InjectionPoint {
    Command,
    Pulled,
    Other,
    Response,
}

impl Fault {
    fn fits(self, point: InjectionPoint) -> bool {
        match self {
            Self::DropCommand | Self::FailCommand => point == InjectionPoint::Command,
            Self::FailPull => point == InjectionPoint::Pulled,
            Self::DropResponse => point == InjectionPoint::Response,
            Self::Delay(_) => point != InjectionPoint::Response,
            Self::Close => true,
        }
    }
}

impl FaultInjector {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self { state: plan.seed, plan, point: 0 }
    }

    /// Returns the fault of the next point, which is of kind `at`.
    fn roll(&mut self, at: InjectionPoint) -> Option<Fault> {
        let point = self.point;
        self.point += 1;
        let due =
            self.plan.points.iter().position(|(when, fault)| *when <= point && fault.fits(at));
        if let Some(due) = due {
            return Some(self.plan.points.remove(due).1);
        }
        // One number per chance, whether it applies or not: the faults at one point do not depend
        // on the possible faults at another.
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

    /// Returns the next number of a pseudo-random sequence (SplitMix64).
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
pub(super) struct FaultyQueue {
    inner: Box<dyn HostQueue>,
    dice: FaultInjector,
    /// Delayed events, with their times.
    late: Vec<(Nanos, Event)>,
    /// Data of dropped responses.
    dropped: Vec<Event>,
    /// Events of the inner queue in this call.
    fresh: Vec<Event>,
}

impl FaultyQueue {
    pub(super) fn new(inner: Box<dyn HostQueue>, dice: FaultInjector) -> Self {
        Self { inner, dice, late: Vec::new(), dropped: Vec::new(), fresh: Vec::new() }
    }

    /// Passes on the events of the inner queue, with faults applied.
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
                Event::Command { .. } => InjectionPoint::Command,
                Event::HostDataArrived { .. } => InjectionPoint::Pulled,
                _ => InjectionPoint::Other,
            };
            match (self.dice.roll(point), event) {
                (Some(Fault::DropCommand), _) => {}
                (Some(Fault::FailCommand), Event::Command { sqe, .. }) => {
                    events.push(Event::CommandFailed { sqe, error: FabricError::DataDigest });
                }
                (Some(Fault::FailPull), Event::HostDataArrived { token, buf, .. }) => {
                    let result = Err(FabricError::DataDigest);
                    events.push(Event::HostDataArrived { token, buf, result });
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

impl HostQueue for FaultyQueue {
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
        match self.dice.roll(InjectionPoint::Response) {
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

    fn next_tx_poll(&self) -> Option<Nanos> {
        self.inner.next_tx_poll()
    }

    fn poll_tx_done(&mut self, now: Nanos, events: &mut Vec<Event>) {
        self.inner.poll_tx_done(now, &mut self.fresh);
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

    fn detach(self: Box<Self>) -> Result<Box<dyn DetachedQueue>, Box<dyn HostQueue>> {
        if !self.late.is_empty() || !self.dropped.is_empty() {
            return Err(self);
        }
        let Self { inner, dice, .. } = *self;
        match inner.detach() {
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

    fn is_event_driven(&self) -> bool {
        self.inner.is_event_driven()
    }

    fn is_movable(&self) -> bool {
        self.inner.is_movable()
    }

    fn supports_zero_copy(&self, lent: &ZeroCopyData) -> bool {
        self.inner.supports_zero_copy(lent)
    }
}
