//! Bytes in flight by device and path, over all cores.
//!
//! ```text
//!   core:  own ─written immediately─▶ its part      one core at a time, periodically: all parts
//!          others ◀────────────────────────────────────────── less its own, for each core
//! ```
//!
//! While all cores use one device by one path there is nothing to compare, and no core counts.
//! After that each part has one writer, so a command costs a few plain stores, and cores do not
//! contend for cache lines. A core sees the bytes of other cores with a delay of a part of a
//! command's time, or 1 µs.

use super::{Lane, NEVER};
use crate::Nanos;
use crate::due::is_due;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Devices that are distinguished; higher numbers share them.
const DEVICES: u8 = 64;
/// Paths that are distinguished; higher numbers share them.
pub(super) const PATHS: u8 = 8;
/// One place per device, followed by one per path.
const PLACES: usize = DEVICES as usize + PATHS as usize;
/// Refreshes of the other cores' bytes per command time.
const LOOKS: u64 = 16;
/// Least interval of refreshes in ns, for commands so short that a refresh costs more than it
/// gains.
const LEAST_PAUSE: Nanos = 1_000;
/// A clock that is this many command times behind the last sums has jumped back.
const WENT_BACK: u64 = 1024;

/// Device and path: the destination of a command, and the network port of its data.
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

    /// Returns the place of the device. It is below [`DEVICES`], which is not checked for each
    /// command.
    #[inline(always)]
    fn device(self) -> usize {
        usize::from(self.device % DEVICES)
    }

    /// Returns the number of the path, which is below [`PATHS`] in the same way.
    #[inline(always)]
    pub(super) fn path(self) -> usize {
        usize::from(self.path % PATHS)
    }
}

/// Returns the place of a path.
#[inline(always)]
fn place_of_path(path: usize) -> usize {
    usize::from(DEVICES) + path % usize::from(PATHS)
}

/// Bytes per device, followed by bytes per path.
#[derive(Debug)]
#[repr(align(128))]
struct Sums([AtomicU64; PLACES]);

impl Default for Sums {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Counters that the cores share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Bytes in flight of each core. Only that core writes them.
    by_core: Box<[Sums]>,
    /// Bytes in flight of all other cores, for each core, as of `summed`. The core that holds
    /// `summing` writes them.
    others: Box<[Sums]>,
    summed: AtomicU64,
    summing: AtomicBool,
    /// Devices and paths that lanes use, one bit each.
    devices: AtomicU64,
    paths: AtomicU64,
    /// There is more than one device or path.
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

    /// Records the devices and paths of a lane.
    fn open(&self, devices: u64, paths: u64) {
        let devices = devices | self.devices.fetch_or(devices, Ordering::Relaxed);
        let paths = paths | self.paths.fetch_or(paths, Ordering::Relaxed);
        if !(is_one(devices) && is_one(paths)) {
            self.many_ways.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the places in use.
    fn places(&self) -> impl Iterator<Item = usize> {
        let devices = bits(self.devices.load(Ordering::Relaxed));
        devices.chain(bits(self.paths.load(Ordering::Relaxed)).map(place_of_path))
    }

    /// Returns whether all lanes of all cores use one device and one path. Then there is nothing to
    /// compare.
    #[inline(always)]
    fn is_one_way(&self) -> bool {
        !self.many_ways.load(Ordering::Relaxed)
    }

    /// Returns whether the sums are too old for this command time.
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
        // Another core may have summed since the check.
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

/// View of one core.
#[derive(Debug)]
pub(super) struct Loads {
    core: usize,
    own: [u64; PLACES],
    others: [u64; PLACES],
    /// Time of the sums in `others`.
    seen: Nanos,
    /// Devices and paths of this core, one bit each.
    devices: u64,
    paths: u64,
    is_one_way: bool,
    /// It counts its bytes in flight: not while all cores use one device and one path.
    counts: bool,
}

impl Loads {
    /// Creates the view of core number `core`, without anything in flight.
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

    /// Records that this core has a lane with this device and path.
    pub(super) fn open(&mut self, way: Way, shared: &Shared) {
        self.devices |= 1 << way.device();
        self.paths |= 1 << way.path();
        self.is_one_way = is_one(self.devices) && is_one(self.paths);
        shared.open(self.devices, self.paths);
    }

    /// Returns whether all lanes of this core use one device and one path.
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

    /// Refreshes the bytes of other cores if they are old, relative to the command time.
    /// `Nanos::MIN` is no time: it means that no time has passed.
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

    /// Starts counting, because there is something to compare now.
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

    /// Returns the bytes in flight at the device plus those on the path, if there is something to
    /// compare.
    #[inline(always)]
    pub(super) fn on(&self, way: Way) -> u64 {
        if !self.counts {
            return 0;
        }
        self.at_device(way).wrapping_add(self.on_path(way.path()))
    }

    /// Returns the bytes in flight at the device.
    #[inline(always)]
    pub(super) fn at_device(&self, way: Way) -> u64 {
        self.at(way.device())
    }

    /// Returns the bytes in flight on a path.
    #[inline(always)]
    pub(super) fn on_path(&self, path: usize) -> u64 {
        self.at(place_of_path(path))
    }

    #[inline(always)]
    fn at(&self, place: usize) -> u64 {
        self.own[place].wrapping_add(self.others[place])
    }
}

/// Returns whether at most one bit is set.
#[inline(always)]
fn is_one(bits: u64) -> bool {
    bits & bits.wrapping_sub(1) == 0
}

/// Returns the numbers of the bits that are set.
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

    /// Time of a command, in ns.
    const TIME: u32 = 16_000;

    fn ways() -> [Way; 2] {
        [Way::new(0, 0), Way::new(3, 1)]
    }

    /// Makes cores with lanes on both ways.
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
        // A core sees its own changes immediately, and does not take them for those of others.
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

    /// A core is in a turn that began before another core summed.
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
