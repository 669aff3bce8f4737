//! Token bucket: a fixed rate for the whole target, shared by the cores.
//!
//! The state is one word, the *level*: the time at which the bucket will be full, as in GCRA. An
//! I/O costs a time, its tokens over the rate. A core that starts an I/O adds that time to the
//! level in one step. This reserves its place in line and yields the exact start time:
//!
//! ```text
//!                 start of this I/O     its cost, at most the burst
//!                        |◀──────────────────▶|
//!   ─────────┬───────────┼────────────────────┼──────────────┬────────▶ time
//!           now                          level before    level after
//!                        |◀────────────── burst ────────────▶|
//! ```
//!
//! (An I/O that costs more than the burst starts when the bucket is full, and leaves a debt.) Until
//! then the core touches no shared memory. If it does not start the I/O after all, it subtracts the
//! time from the level.
//!
//! While the bucket has tokens, a core that starts several I/Os adds the time of several in one
//! step, up to the cost of one largest I/O. From this *lease* it starts the next ones without
//! touching shared memory. A lease contains only tokens that exist already, so no start time
//! depends on it.

use std::sync::Arc;

use super::{Admission, AdmissionPolicy, AdmissionRequest, CompletedCommand, Grant};
use crate::Nanos;
use crate::catalog::{ConfigError, PacedMachine};
use crate::permit::CommandOutcome;
use crate::sync::{AtomicU64, Ordering};

/// Parameters of [`PolicyConfig::TokenBucket`](crate::PolicyConfig::TokenBucket).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucketConfig {
    /// Rate of the tokens, for the whole target.
    pub pace: RateSpec,
    /// Bytes that may start back to back after a quiet time; for a period, the I/Os. `None`: one
    /// largest I/O per core, or one I/O per core.
    pub burst: Option<u64>,
    /// Bytes that may be in flight on all cores together. `None`: no bound. A rate without a bound
    /// lets data pile up after every stall.
    pub budget: Option<u64>,
}

/// Fill rate of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateSpec {
    /// Bytes per second.
    Rate(u64),
    /// Nanoseconds from one I/O to the next, whatever its size.
    Period(Nanos),
}

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Fastest rate in bytes per second: the cost of any I/O, in fractions of a ns, fits a word.
const FASTEST: u64 = 1_000_000_000_000_000;
/// Longest period: a day. A longer one is surely a mistake.
const LONGEST_PERIOD: Nanos = 86_400 * SECOND;
/// Longest time of a burst, about 36 years.
const LONGEST_BURST: Nanos = 1 << 60;
/// Largest age in ns of the time that a core acts on. A start time ahead of now by more than this
/// plus the whole line means that the clock jumped back.
const STALE: Nanos = SECOND / 10;

/// Bucket that the cores share. See [`TokenBucket`].
#[derive(Debug)]
pub struct SharedTokenBucket {
    arrival_time: ArrivalTime,
    token_cost: TokenCost,
    /// Size of the bucket as a time.
    burst: Nanos,
    /// Largest distance of a level ahead of now while the clock advances.
    furthest: Nanos,
    largest: u32,
    /// Largest value of a lease: the cost of one largest I/O.
    most_lease: Nanos,
}

/// Limit of a tenant, per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateLimit {
    Ios(u64),
    Bytes(u64),
}

impl RateLimit {
    /// Largest limit of I/Os.
    pub(crate) const MOST_IOS: u64 = SECOND;

    fn token_cost(self) -> Result<TokenCost, ConfigError> {
        let (what, value, most, unit) = match self {
            Self::Ios(rate) => {
                ("the limit of I/Os of a tenant", rate, Self::MOST_IOS, "I/Os a second")
            }
            Self::Bytes(rate) => {
                ("the limit of bandwidth of a tenant", rate, FASTEST, "bytes a second")
            }
        };
        if !(1..=most).contains(&value) {
            let advice = "omit the key for no limit";
            return Err(ConfigError::OutOfRange { what, value, least: 1, most, unit, advice });
        }
        Ok(match self {
            Self::Ios(rate) => TokenCost { per_io: SECOND, per_byte: 0, fraction: rate },
            Self::Bytes(rate) => TokenCost { per_io: 0, per_byte: SECOND, fraction: rate },
        })
    }
}

/// Alone on a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct ArrivalTime(AtomicU64);

/// Cost of an I/O, in nanoseconds times `fraction`.
#[derive(Debug, Clone, Copy)]
struct TokenCost {
    per_io: u64,
    per_byte: u64,
    fraction: u64,
}

impl TokenCost {
    fn unit_cost(self, bytes: u32) -> UnitCost {
        let total = self.per_io + self.per_byte * u64::from(bytes);
        UnitCost { bytes, whole: total / self.fraction, part: total % self.fraction, lease: 0 }
    }
}

/// Cost of one I/O size: whole nanoseconds and the fraction.
#[derive(Debug, Clone, Copy)]
struct UnitCost {
    bytes: u32,
    whole: Nanos,
    part: u64,
    /// Value of a lease for I/Os of this size: whole ones, up to the cost of one largest I/O.
    lease: Nanos,
}

impl SharedTokenBucket {
    /// Creates the bucket of `machine`.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] if the pace or the burst is invalid.
    pub(crate) fn new(
        config: &TokenBucketConfig,
        machine: PacedMachine,
    ) -> Result<Arc<Self>, ConfigError> {
        let token_cost = token_cost(config.pace)?;
        let cores = u64::try_from(machine.cores.max(1)).unwrap_or(u64::MAX);
        let largest = token_cost.unit_cost(machine.largest).whole;
        let longest = largest.saturating_add(1);
        let burst = match config.burst {
            Some(burst) => burst_time(config.pace, burst)?,
            None => {
                let each = if token_cost.per_byte == 0 { 1 } else { machine.largest.into() };
                burst_time(config.pace, cores.saturating_mul(each)).unwrap_or(LONGEST_BURST)
            }
        };
        // Every core has at most one I/O in line, and one may have left a debt.
        let line = longest.saturating_mul(cores.saturating_add(1));
        Ok(Arc::new(Self {
            arrival_time: ArrivalTime(AtomicU64::new(0)),
            token_cost,
            burst,
            furthest: burst.saturating_add(line).saturating_add(STALE),
            largest: machine.largest,
            most_lease: largest,
        }))
    }

    /// Creates the bucket of a tenant limit in I/Os or bytes per second. `burst` is a time; an I/O
    /// that costs more leaves a debt.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] if the limit is invalid.
    pub(crate) fn limit(
        limit: RateLimit,
        burst: Nanos,
        machine: PacedMachine,
    ) -> Result<Arc<Self>, ConfigError> {
        let token_cost = limit.token_cost()?;
        let cores = u64::try_from(machine.cores.max(1)).unwrap_or(u64::MAX);
        let largest = token_cost.unit_cost(machine.largest).whole;
        let line = largest.saturating_add(1).saturating_mul(cores.saturating_add(1));
        let burst = burst.clamp(1, LONGEST_BURST);
        Ok(Arc::new(Self {
            arrival_time: ArrivalTime(AtomicU64::new(0)),
            token_cost,
            burst,
            furthest: burst.saturating_add(line).saturating_add(STALE),
            largest: machine.largest,
            most_lease: largest,
        }))
    }

    /// Creates the policy of one core.
    #[must_use]
    pub fn core(self: &Arc<Self>) -> TokenBucket {
        TokenBucket {
            last_unit_cost: self.unit_cost(self.largest),
            shared: Arc::clone(self),
            carried: 0,
            leased: 0,
            in_a_row: false,
            reservation: None,
        }
    }

    /// Returns the time between two I/Os, if it does not depend on their sizes.
    pub(crate) fn period(&self) -> Option<Nanos> {
        (self.token_cost.per_byte == 0).then_some(self.token_cost.per_io)
    }

    fn unit_cost(&self, bytes: u32) -> UnitCost {
        let unit_cost = self.token_cost.unit_cost(bytes);
        let each = unit_cost.whole.saturating_add(u64::from(unit_cost.part > 0)).max(1);
        UnitCost { lease: self.most_lease / each * each, ..unit_cost }
    }

    /// Adds a cost to the level, and a lease if the bucket has enough tokens now; subtracts the
    /// lease that the core returns. Returns the start time of the I/O, and the lease.
    #[inline]
    fn reserve(&self, cost: Nanos, back: Nanos, lease: Nanos, now: Nanos) -> (Nanos, Nanos) {
        let arrival_time = &self.arrival_time.0;
        let mut before = arrival_time.load(Ordering::Relaxed);
        loop {
            let known = before.saturating_sub(back);
            // A level in the past is a full bucket. A level too far ahead is from before a clock
            // jumped back: the bucket is then empty.
            let from = match known.saturating_sub(now) {
                0 => now,
                ahead if ahead > self.furthest => now.saturating_add(self.burst),
                _ => known,
            };
            let mut after = from.saturating_add(cost);
            let mut leased = 0;
            if lease > 0 && (after - now).saturating_add(lease) <= self.burst {
                leased = lease;
                after = after.saturating_add(lease);
            }
            match arrival_time.compare_exchange_weak(
                before,
                after,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return (from.saturating_sub(self.burst - cost.min(self.burst)), leased),
                Err(other) => before = other,
            }
        }
    }

    /// Moves the level, later or earlier.
    fn adjust(&self, later: Nanos, earlier: Nanos) {
        let moved =
            |arrival_time: u64| Some(arrival_time.saturating_add(later).saturating_sub(earlier));
        let _ = self.arrival_time.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, moved);
    }
}

/// Starts I/Os at a rate: one core's policy over a [`SharedTokenBucket`].
///
/// *Rate.* In any time `t` all cores start I/Os worth at most `rate x t`, plus the burst and one
/// largest I/O per core. (That one starts later than its start time.) If some core always has a
/// command waiting, and asks again at its start time, they are worth at least `rate x t` minus one
/// largest I/O per core. Fractions of a nanosecond are carried from I/O to I/O, never rounded away.
///
/// *Fairness.* Cores are served in the order in which they ask, one I/O each. A core waits at most
/// for the debt of one I/O and for the one I/O that each other core has in line. In total that is
/// at most `cores x largest / rate`. A core never waits for a release of another one.
///
/// *Clock.* If the clock stops, only the burst starts until it continues. If it jumps ahead, the
/// bucket is full and no more. If it jumps back, the bucket is empty, and the I/Os in line start.
#[derive(Debug)]
pub struct TokenBucket {
    shared: Arc<SharedTokenBucket>,
    /// Fraction of a nanosecond that is charged but not in the level yet.
    carried: u64,
    /// Rest of the lease; none while an I/O is in line.
    leased: Nanos,
    /// An I/O started since the last rest: only then is a lease worthwhile.
    in_a_row: bool,
    /// Cost of the size last requested: sizes repeat, and computing a cost takes a division.
    last_unit_cost: UnitCost,
    /// Reservation of the I/O that this core has in line.
    reservation: Option<TokenReservation>,
}

/// Reservation of a start time.
#[derive(Debug, Clone, Copy)]
struct TokenReservation {
    start: Nanos,
    bytes: u32,
    /// Amount that it added to the level.
    cost: Nanos,
}

impl TokenBucket {
    #[inline]
    fn unit_cost(&mut self, bytes: u32) -> UnitCost {
        if self.last_unit_cost.bytes != bytes {
            self.last_unit_cost = self.shared.unit_cost(bytes);
        }
        self.last_unit_cost
    }

    /// Returns the cost of an I/O in whole nanoseconds, and carries the fraction.
    #[inline]
    fn charge(&mut self, bytes: u32) -> Nanos {
        let UnitCost { whole, part, .. } = self.unit_cost(bytes);
        self.carried += part;
        if self.carried < self.shared.token_cost.fraction {
            return whole;
        }
        self.carried -= self.shared.token_cost.fraction;
        whole + 1
    }

    /// Undoes a charge; returns the nanoseconds to subtract from the level.
    fn refund(&mut self, bytes: u32) -> Nanos {
        let UnitCost { whole, part, .. } = self.unit_cost(bytes);
        if self.carried >= part {
            self.carried -= part;
            return whole;
        }
        self.carried += self.shared.token_cost.fraction - part;
        whole + 1
    }

    /// Reserves a start time, because the lease does not cover the cost.
    #[inline(never)]
    fn reserve(&mut self, bytes: u32, cost: Nanos, now: Nanos) -> Admission {
        let lease = if self.in_a_row { self.last_unit_cost.lease } else { 0 };
        let back = std::mem::take(&mut self.leased);
        let (start, leased) = self.shared.reserve(cost, back, lease, now);
        self.leased = leased;
        self.check_reservation(TokenReservation { start, bytes, cost }, now)
    }

    /// Checks whether the start time of a reservation has come.
    fn check_reservation(&mut self, reservation: TokenReservation, now: Nanos) -> Admission {
        let wait = reservation.start.saturating_sub(now);
        if wait == 0 || wait > self.shared.furthest {
            self.in_a_row = true;
            return Admission::Granted(Grant::default());
        }
        self.reservation = Some(reservation);
        Admission::WaitUntil(reservation.start)
    }

    /// Checks an existing reservation again.
    #[inline(never)]
    fn recheck_reservation(
        &mut self,
        reservation: TokenReservation,
        bytes: u32,
        now: Nanos,
    ) -> Admission {
        self.reservation = None;
        let reservation = if reservation.bytes == bytes {
            reservation
        } else {
            self.exchange(reservation, bytes)
        };
        self.check_reservation(reservation, now)
    }

    /// Transfers the reservation to another I/O that is now first.
    #[cold]
    fn exchange(&mut self, reservation: TokenReservation, bytes: u32) -> TokenReservation {
        let burst = self.shared.burst;
        let back = self.refund(reservation.bytes);
        let cost = self.charge(bytes);
        self.shared.adjust(cost, back);
        let start = reservation.start.saturating_add(cost.min(burst));
        TokenReservation { start: start.saturating_sub(reservation.cost.min(burst)), bytes, cost }
    }

    #[cold]
    fn cancel_request(&mut self, bytes: u32) {
        let back = self.refund(bytes);
        self.shared.adjust(0, back);
    }

    /// Cancels the reservation, or returns the lease.
    #[cold]
    fn cancel_reservation(&mut self) {
        let mut back = std::mem::take(&mut self.leased);
        if let Some(reservation) = self.reservation.take() {
            back += self.refund(reservation.bytes);
        }
        self.shared.adjust(0, back);
    }
}

impl AdmissionPolicy for TokenBucket {
    fn needs_network_times(&self) -> bool {
        false
    }

    fn largest(&self) -> u32 {
        self.shared.largest
    }

    #[inline(always)]
    fn admit(&mut self, request: &AdmissionRequest, now: Nanos) -> Admission {
        let bytes = request.cost.bytes;
        if let Some(reservation) = self.reservation {
            return self.recheck_reservation(reservation, bytes, now);
        }
        let cost = self.charge(bytes);
        if cost <= self.leased {
            self.leased -= cost;
            return Admission::Granted(Grant::default());
        }
        self.reserve(bytes, cost, now)
    }

    #[inline(always)]
    fn release(&mut self, done: &CompletedCommand, _grant: Grant, _now: Nanos) {
        if done.outcome == CommandOutcome::Cancelled {
            self.cancel_request(done.cost.bytes);
        }
    }

    #[inline]
    fn return_unused(&mut self) {
        self.in_a_row = false;
        if self.reservation.is_some() || self.leased > 0 {
            self.cancel_reservation();
        }
    }
}

impl Drop for TokenBucket {
    fn drop(&mut self) {
        self.return_unused();
    }
}

fn token_cost(rate: RateSpec) -> Result<TokenCost, ConfigError> {
    let (what, value, most, unit, advice, token_cost) = match rate {
        RateSpec::Rate(rate) => (
            "the rate of the token bucket",
            rate,
            FASTEST,
            "bytes a second",
            "set what the network carries, or take the policy \"none\"",
            TokenCost { per_io: 0, per_byte: SECOND, fraction: rate },
        ),
        RateSpec::Period(period) => (
            "the period of the token bucket",
            period,
            LONGEST_PERIOD,
            "ns",
            "it is the time from one I/O to the next on the whole target; for none take the policy \
             \"none\"",
            TokenCost { per_io: period, per_byte: 0, fraction: 1 },
        ),
    };
    if (1..=most).contains(&value) {
        return Ok(token_cost);
    }
    Err(ConfigError::OutOfRange { what, value, least: 1, most, unit, advice })
}

/// Returns the time of a burst of bytes, or of I/Os.
fn burst_time(rate: RateSpec, burst: u64) -> Result<Nanos, ConfigError> {
    let (each, fraction, unit) = match rate {
        RateSpec::Rate(rate) => (SECOND, rate, "bytes"),
        RateSpec::Period(period) => (period, 1, "I/Os"),
    };
    let most = u128::from(LONGEST_BURST) * u128::from(fraction) / u128::from(each);
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    if (1..=most).contains(&burst) {
        let time = (u128::from(burst) * u128::from(each)).div_ceil(u128::from(fraction));
        return Ok(u64::try_from(time).unwrap_or(LONGEST_BURST));
    }
    Err(ConfigError::OutOfRange {
        what: "the burst of the token bucket",
        value: burst,
        least: 1,
        most,
        unit,
        advice: "omit the key for one largest I/O a core",
    })
}

#[cfg(all(loom, test))]
mod model;
#[cfg(test)]
mod tests;
