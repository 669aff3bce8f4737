//! What the best measurement of late says of the next: news, a flood, a collapse, another load.

use super::super::Move;
use super::super::ceiling::Ceiling;
use super::super::measured::{Measured, NOISY};
use super::{Controller, HELD_BACK, Phase};

/// A rate below this part of the best of late, with so much more in flight than the best had, is a
/// collapse: the budget goes back to where the best was.
pub(super) const COLLAPSE: f64 = 0.9;
const COLLAPSE_EXCESS: f64 = 1.15;
/// Below this part of it, what is reserved for while cores are away is too much, if it is at least that part of what
/// else is in flight: a rate that is less far down may be due to an absence.
const OVERRUN: f64 = 0.8;
const RESERVED: f64 = 0.05;
/// It is a flood with so many times of what the network had then. So many that follow each other are another machine.
const FLOOD: f64 = 1.5;
const FLOODED: u32 = 2;
/// And where a budget of one command a core or less bounds nothing, so that what waits gets away by chance alone.
const FLOODED_AT_FLOOR: u32 = 8;
/// A rate so many times the best of late is that of another machine: what did harm before need do none now, and what
/// was enough before is not.
const NEWS: f64 = 1.2;
/// Unless the best had so many times as much in flight, or as much budget: then less of it may be what brought it.
const MUCH_LESS: f64 = 1.25;
/// What is left of the best rate from one measurement to the next.
const FADE: f64 = 0.97;
/// The best rate of late over one that is that of another load, where the budget is far below what should be enough.
const ANOTHER_LOAD: f64 = 4.0;

impl Controller {
    /// A rate that was not to be had of late: where harm was is forgotten, unless it was found at such a rate, since then
    /// it is that machine again; and if what should be enough is more than there is, the budget goes there at once.
    pub(super) fn is_news(&mut self, measured: &Measured) -> bool {
        let is_news = self.best.is_some_and(|best| {
            measured.rate > NEWS * best.rate
                && MUCH_LESS * measured.in_flight.min(measured.budget)
                    > best.in_flight.max(best.budget)
        });
        if !is_news {
            return false;
        }
        if !self.ceiling.is_of(measured.rate) {
            self.ceiling = Ceiling::none();
        }
        let enough = self.enough(measured).min(self.ceiling.base(self.swing));
        if enough <= self.base {
            return false;
        }
        self.best = Some(*measured);
        self.go_to(enough, Move::Gained);
        true
    }

    /// Much less goes through than lately though as much is in flight, because it waits for the network: the cache
    /// ran over, or the link became slower. What keeps a cache run over is what waits, so there it stays whatever the
    /// budget does around where it is, until all that waits is gone: that is drained, and the base goes to what did
    /// no harm. If that does not end it, it is another machine. With a command on each core, which a budget of that or less
    /// does not bound, nothing is drained: there it ends by chance, while no more is in flight. What is reserved for while
    /// cores are away goes first, by halves, and the base is left alone meanwhile.
    pub(super) fn is_flooded(&mut self, measured: &Measured) -> bool {
        let Some(best) = self.best else { return false };
        let noise = NOISY * self.search.noise();
        let is_flood = (measured.rate / best.rate).ln() < COLLAPSE.ln().min(-noise)
            && measured.network > FLOOD * best.network;
        self.flooded = if is_flood { self.flooded + 1 } else { 0 };
        let drained = measured.in_flight - measured.network + best.network;
        let is_at_floor = measured.in_flight > measured.budget && drained < self.floor();
        let is_again = self.flooded >= if is_at_floor { FLOODED_AT_FLOOR } else { FLOODED };
        if !is_again && (!is_flood || self.search.is_blind()) {
            return false;
        }
        let base = if self.gives_up_reserve(measured, &best) {
            self.base
        } else if is_again {
            self.flooded = 0;
            // Once: whatever it is after this, it is another machine.
            self.best = Some(*measured);
            self.enough(measured).min(measured.in_flight)
        } else {
            let below_floor = if is_at_floor { self.floor() - self.command } else { f64::INFINITY };
            let harmless = best.in_flight.min(measured.budget).min(below_floor);
            self.ceiling.set(harmless, measured.budget, true, best.rate);
            self.base.min(harmless).min(self.ceiling.base(self.swing))
        };
        self.upwards = false;
        self.go_to(base, Move::Wasted);
        self.phase = Phase::Drain(drained.min(self.base));
        true
    }

    /// Was so much reserved that it may be what lost so much? Then it is taken back.
    fn gives_up_reserve(&mut self, measured: &Measured, best: &Measured) -> bool {
        let is_too_much = measured.reserved > RESERVED * measured.in_flight
            && measured.rate < OVERRUN * best.rate;
        if is_too_much {
            self.reserve.did_harm(measured.reserved / self.command);
        }
        is_too_much
    }

    /// Takes the budget back to where the best rate of late was, if more in flight lost much of it.
    pub(super) fn has_collapsed(&mut self, measured: &Measured) -> bool {
        let best = self.remember_best(measured);
        if measured.rate >= COLLAPSE * best.rate
            || measured.in_flight <= COLLAPSE_EXCESS * best.in_flight
        {
            return false;
        }
        self.gives_up_reserve(measured, &best);
        self.ceiling.set(measured.budget, measured.budget, true, best.rate);
        self.go_to(best.in_flight, Move::Wasted);
        true
    }

    /// The best of late, which fades.
    pub(super) fn remember_best(&mut self, measured: &Measured) -> Measured {
        let best = match self.best {
            Some(best) if FADE * best.rate > measured.rate => {
                Measured { rate: FADE * best.rate, ..best }
            }
            _ => *measured,
        };
        *self.best.insert(best)
    }

    /// More in flight gained much, and more is in flight than where the best was: that was the best of another load.
    pub(super) fn forget_another_best(&mut self, measured: &Measured) {
        if self.best.is_some_and(|best| measured.in_flight > COLLAPSE_EXCESS * best.in_flight) {
            self.best = Some(*measured);
        }
    }

    /// With a small budget next to nothing goes through of what did of late, though commands wait: they are of a device
    /// that takes far longer. What is to be seen of a swing there takes as many turnovers as it needs commands.
    pub(super) fn is_another_load(&self, measured: &Measured) -> bool {
        !self.starting
            && measured.refused >= HELD_BACK
            && self.best.is_some_and(|best| ANOTHER_LOAD * measured.rate < best.rate)
            && self.is_far_below(measured)
    }
}
