//! What is in flight at each device and on each path, over all cores.
//!
//! ```text
//!   core:  own ─written at once─▶ its part      one core at a time, now and then: all parts
//!          others ◀──────────────────────────────────────── less its own, for each core
//! ```
//!
//! As long as all cores go to one device by one path there is nothing to compare, and nobody counts. After that each
//! part has one writer, so a command costs a few plain stores, and nothing that cores take from each other.
//! What others have in flight is known a part of a command's time late, or a microsecond.

use super::{Lane, NEVER};
use crate::Nanos;
use crate::due::is_due;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Devices told apart; numbers beyond share them.
const DEVICES: u8 = 64;
/// Paths told apart; numbers beyond share them.
pub(super) const PATHS: u8 = 8;
/// A place for each device, and then for each path.
const PLACES: usize = DEVICES as usize + PATHS as usize;
/// What others have in flight is looked at anew so many times in a command's time.
const LOOKS: u64 = 16;
/// But not more often than once in so many ns, where commands are so short that looking costs more than it tells.
const LEAST_PAUSE: Nanos = 1_000;
/// A clock that is so many commands' times behind the last sums went back.
const WENT_BACK: u64 = 1024;

/// A device and a path: where a command goes, and where its data drains to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Way {
    device: u8,
    path: u8,
}

impl Way {
    pub(super) fn new(device: u32, path: u16) -> Self {
        let [device, ..] = device.to_le_bytes();
        let [path, _] = path.to_le_bytes();
        Self { device: device % DEVICES, path: path % PATHS }
    }

    /// The place of the device. It is below [`DEVICES`], which is not checked for each command.
    #[inline(always)]
    fn device(self) -> usize {
        usize::from(self.device % DEVICES)
    }

    /// The number of the path; so is that.
    #[inline(always)]
    pub(super) fn path(self) -> usize {
        usize::from(self.path % PATHS)
    }
}

/// The place of a path.
#[inline(always)]
fn place_of_path(path: usize) -> usize {
    usize::from(DEVICES) + path % usize::from(PATHS)
}

/// Bytes at each device, and then on each path.
#[derive(Debug)]
#[repr(align(128))]
struct Sums([AtomicU64; PLACES]);

impl Default for Sums {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// What the cores tell each other.
#[derive(Debug)]
pub(super) struct Shared {
    /// What each has in flight, written by it alone.
    by_core: Box<[Sums]>,
    /// What all others than each have, as of `summed`, written by who has `summing`.
    others: Box<[Sums]>,
    summed: AtomicU64,
    summing: AtomicBool,
    /// Devices and paths that lanes use, a bit each.
    devices: AtomicU64,
    paths: AtomicU64,
    /// There is more than one of either.
    many_ways: AtomicBool,
}

impl Shared {
    pub(super) fn new(cores: usize) -> Self {
        let sums = || (0..cores).map(|_| Sums::default()).collect();
        Self {
            by_core: sums(),
            others: sums(),
            summed: AtomicU64::new(0),
            summing: AtomicBool::new(false),
            devices: AtomicU64::new(0),
            paths: AtomicU64::new(0),
            many_ways: AtomicBool::new(false),
        }
    }

    /// A lane goes these ways.
    fn open(&self, devices: u64, paths: u64) {
        let devices = devices | self.devices.fetch_or(devices, Ordering::Relaxed);
        let paths = paths | self.paths.fetch_or(paths, Ordering::Relaxed);
        if !(is_one(devices) && is_one(paths)) {
            self.many_ways.store(true, Ordering::Relaxed);
        }
    }

    /// The places in use.
    fn places(&self) -> impl Iterator<Item = usize> {
        let devices = bits(self.devices.load(Ordering::Relaxed));
        devices.chain(bits(self.paths.load(Ordering::Relaxed)).map(place_of_path))
    }

    /// Do all lanes of all cores go the same way? Then there is nothing to compare.
    #[inline(always)]
    fn is_one_way(&self) -> bool {
        !self.many_ways.load(Ordering::Relaxed)
    }

    /// Are the sums old, where commands take so long?
    #[inline(always)]
    fn is_due(&self, now: Nanos, time: u32) -> bool {
        let time = Nanos::from(time);
        let summed = self.summed.load(Ordering::Relaxed);
        is_due(now, summed, (time / LOOKS + 1).max(LEAST_PAUSE), WENT_BACK * time)
    }

    #[cold]
    fn sum(&self, now: Nanos, time: u32) {
        if self.summing.swap(true, Ordering::Acquire) {
            return;
        }
        // Another core may have done it meanwhile.
        if self.is_due(now, time) {
            for place in self.places() {
                let part = |sums: &Sums| sums.0[place].load(Ordering::Relaxed);
                let all = self.by_core.iter().map(part).fold(0, u64::wrapping_add);
                for (own, others) in self.by_core.iter().zip(&self.others) {
                    others.0[place].store(all.saturating_sub(part(own)), Ordering::Relaxed);
                }
            }
            self.summed.store(now, Ordering::Relaxed);
        }
        self.summing.store(false, Ordering::Release);
    }
}

/// What one core knows.
#[derive(Debug)]
pub(super) struct Loads {
    core: usize,
    own: [u64; PLACES],
    others: [u64; PLACES],
    /// Of when the sums are that `others` is taken from.
    seen: Nanos,
    /// Its devices and its paths, a bit each.
    devices: u64,
    paths: u64,
    is_one_way: bool,
    /// It counts what it has in flight: not as long as all cores go one way.
    counts: bool,
}

impl Loads {
    /// Of core number `core`, which has nothing in flight as far as this order is told.
    pub(super) fn new(core: usize, shared: &Shared) -> Self {
        shared.by_core[core].0.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        Self {
            core,
            own: [0; PLACES],
            others: [0; PLACES],
            seen: 0,
            devices: 0,
            paths: 0,
            is_one_way: true,
            counts: false,
        }
    }

    /// This core has a lane that goes this way.
    pub(super) fn open(&mut self, way: Way, shared: &Shared) {
        self.devices |= 1 << way.device();
        self.paths |= 1 << way.path();
        self.is_one_way = is_one(self.devices) && is_one(self.paths);
        shared.open(self.devices, self.paths);
    }

    /// Do all lanes of this core go the same way?
    #[inline(always)]
    pub(super) fn is_one_way(&self) -> bool {
        self.is_one_way
    }

    #[inline(always)]
    pub(super) fn started(&mut self, way: Way, bytes: u64, shared: &Shared) {
        self.change(way, shared, |own| own.wrapping_add(bytes));
    }

    #[inline(always)]
    pub(super) fn returned(&mut self, way: Way, bytes: u64, shared: &Shared) {
        self.change(way, shared, |own| own.wrapping_sub(bytes));
    }

    #[inline(always)]
    fn change(&mut self, way: Way, shared: &Shared, to: impl Fn(u64) -> u64) {
        if !self.counts {
            return;
        }
        let part = &shared.by_core[self.core].0;
        for place in [way.device(), place_of_path(way.path())] {
            self.own[place] = to(self.own[place]);
            part[place].store(self.own[place], Ordering::Relaxed);
        }
    }

    /// Takes in what others have in flight, if what is known of it is old for commands that take so long. The start of
    /// time is no time: it says that none went by.
    #[inline(always)]
    pub(super) fn look(&mut self, now: Nanos, time: u32, lanes: &[Lane], shared: &Shared) {
        if !self.counts {
            if shared.is_one_way() {
                return;
            }
            self.begin(lanes, shared);
        }
        if shared.by_core.len() > 1 {
            self.take_in(now, time, shared);
        }
    }

    /// There is something to compare from now on.
    #[cold]
    fn begin(&mut self, lanes: &[Lane], shared: &Shared) {
        self.counts = true;
        lanes.iter().for_each(|lane| self.started(lane.way, lane.in_flight, shared));
    }

    #[inline(never)]
    fn take_in(&mut self, now: Nanos, time: u32, shared: &Shared) {
        if time == NEVER || now == Nanos::MIN {
            return;
        }
        if shared.is_due(now, time) {
            shared.sum(now, time);
        }
        let summed = shared.summed.load(Ordering::Relaxed);
        if summed != self.seen {
            self.seen = summed;
            for place in shared.places() {
                self.others[place] = shared.others[self.core].0[place].load(Ordering::Relaxed);
            }
        }
    }

    /// Bytes in flight at the device and on the path together, if there is something to compare.
    #[inline(always)]
    pub(super) fn on(&self, way: Way) -> u64 {
        if !self.counts {
            return 0;
        }
        self.at_device(way).wrapping_add(self.on_path(way.path()))
    }

    /// Bytes in flight at the device.
    #[inline(always)]
    pub(super) fn at_device(&self, way: Way) -> u64 {
        self.at(way.device())
    }

    /// Bytes in flight on a path.
    #[inline(always)]
    pub(super) fn on_path(&self, path: usize) -> u64 {
        self.at(place_of_path(path))
    }

    #[inline(always)]
    fn at(&self, place: usize) -> u64 {
        self.own[place].wrapping_add(self.others[place])
    }
}

/// Is at most one bit set?
#[inline(always)]
fn is_one(bits: u64) -> bool {
    bits & bits.wrapping_sub(1) == 0
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit as usize)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// How long a command takes, in ns.
    const TIME: u32 = 16_000;

    fn ways() -> [Way; 2] {
        [Way::new(0, 0), Way::new(3, 1)]
    }

    /// Cores with lanes on both ways.
    fn cores<const N: usize>(shared: &Shared) -> [Loads; N] {
        std::array::from_fn(|core| {
            let mut loads = Loads::new(core, shared);
            ways().into_iter().for_each(|way| loads.open(way, shared));
            // There are two ways, so it counts.
            loads.look(Nanos::MIN, TIME, &[], shared);
            loads
        })
    }

    fn seen(loads: &Loads) -> [u64; 4] {
        let [one, other] = ways();
        [loads.at_device(one), loads.on_path(0), loads.at_device(other), loads.on_path(1)]
    }

    #[test]
    fn what_others_have_in_flight_is_known_a_part_of_a_commands_time_later() {
        let shared = Shared::new(2);
        let [mut a, mut b] = cores(&shared);
        let [one, other] = ways();
        a.started(one, 100, &shared);
        b.started(other, 7, &shared);
        assert_eq!([seen(&a), seen(&b)], [[100, 100, 0, 0], [0, 0, 7, 7]]);
        let mut now = u64::from(TIME);
        a.look(now, TIME, &[], &shared);
        b.look(now, TIME, &[], &shared);
        assert_eq!([seen(&a), seen(&b)], [[100, 100, 7, 7]; 2]);
        // What a core does itself it knows at once, and does not take for what others do.
        a.returned(one, 100, &shared);
        a.look(now, TIME, &[], &shared);
        b.look(now, TIME, &[], &shared);
        assert_eq!([seen(&a), seen(&b)], [[0, 0, 7, 7], [100, 100, 7, 7]]);
        now += u64::from(TIME) / LOOKS + 1;
        b.look(now, TIME, &[], &shared);
        a.started(one, 30, &shared);
        a.look(now, TIME, &[], &shared);
        assert_eq!([seen(&a), seen(&b)], [[30, 30, 7, 7], [0, 0, 7, 7]]);
    }

    /// A core is in a turn that began before another one summed up.
    #[test]
    fn a_clock_a_little_behind_is_no_reason_to_sum_up() {
        let shared = Shared::new(2);
        let [mut a, mut b] = cores(&shared);
        let now = u64::from(TIME);
        b.look(now, TIME, &[], &shared);
        for behind in [now - 1, now - 5000, 1, Nanos::MIN] {
            a.started(ways()[0], 100, &shared);
            a.look(behind, TIME, &[], &shared);
            assert_eq!(shared.summed.load(Ordering::Relaxed), now);
        }
    }

    #[test]
    fn who_comes_to_a_core_anew_has_nothing_in_flight() {
        let shared = Shared::new(2);
        let [mut a, mut b] = cores(&shared);
        a.started(ways()[0], 100, &shared);
        let _again = Loads::new(0, &shared);
        b.look(u64::from(TIME), TIME, &[], &shared);
        assert_eq!(seen(&b), [0; 4]);
    }

    #[test]
    fn what_was_started_before_there_was_a_choice_counts_when_there_is() {
        let shared = Shared::new(1);
        let [one, other] = ways();
        let mut loads = Loads::new(0, &shared);
        loads.open(one, &shared);
        let lanes = [Lane { way: one, in_flight: 100, ..Lane::default() }];
        loads.started(one, 100, &shared);
        loads.look(1, TIME, &lanes, &shared);
        assert_eq!(seen(&loads), [0; 4]);
        loads.open(other, &shared);
        loads.look(2, TIME, &lanes, &shared);
        assert_eq!(seen(&loads), [100, 100, 0, 0]);
        loads.returned(one, 100, &shared);
        assert_eq!(seen(&loads), [0; 4]);
    }

    #[test]
    fn a_clock_that_goes_back_is_no_reason_to_know_nothing() {
        let shared = Shared::new(2);
        let [mut a, mut b] = cores(&shared);
        b.look(1 << 40, TIME, &[], &shared);
        a.started(ways()[0], 100, &shared);
        b.look(5, TIME, &[], &shared);
        assert_eq!(seen(&b), [100, 100, 0, 0]);
    }

    #[test]
    fn numbers_beyond_those_told_apart_share_a_place() {
        assert_eq!(Way::new(64, 8), Way::new(0, 0));
        assert_eq!(Way::new(u32::MAX, u16::MAX), Way::new(63, 7));
    }

    #[test]
    fn a_core_with_one_device_and_one_path_has_nothing_to_choose() {
        let shared = Shared::new(1);
        let mut loads = Loads::new(0, &shared);
        assert!(loads.is_one_way());
        loads.open(Way::new(5, 1), &shared);
        loads.open(Way::new(5, 1), &shared);
        assert!(loads.is_one_way());
        for other in [Way::new(6, 1), Way::new(5, 0)] {
            let mut loads = Loads::new(0, &shared);
            [Way::new(5, 1), other].into_iter().for_each(|way| loads.open(way, &shared));
            assert!(!loads.is_one_way(), "{other:?}");
        }
    }
}
