//! Bytes in flight by device and port, over all cores.
//!
//! ```text
//!   core:  own ─written immediately─▶ its part      one core at a time, periodically: all parts
//!          others ◀────────────────────────────────────────── less its own, for each core
//! ```
//!
//! While all cores use one device by one port there is nothing to compare, and no core counts.
//! After that each part has one writer, so a command costs a few plain stores, and cores do not
//! contend for cache lines. A core sees the bytes of other cores with a delay of a part of a
//! command's time, or 1 µs.

use super::{FlowState, NEVER};
use crate::Nanos;
use crate::due::is_due;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Devices that are distinguished; higher numbers share them.
const DEVICES: u8 = 64;
/// Paths that are distinguished; higher numbers share them.
pub(super) const NETWORK_PORTS: u8 = 8;
/// One place per device, followed by one per port.
const COUNTERS: usize = DEVICES as usize + NETWORK_PORTS as usize;
/// Refreshes of the other cores' bytes per command time.
const LOOKS: u64 = 16;
/// Least interval of refreshes in ns, for commands so short that a refresh costs more than it
/// gains.
const LEAST_PAUSE: Nanos = 1_000;
/// A clock that is this many command times behind the last sums has jumped back.
const WENT_BACK: u64 = 1024;

/// Device and port: the destination of a command, and the network port of its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DevicePort {
    device: u8,
    network_port: u8,
}

impl DevicePort {
    pub(super) fn new(device: u32, network_port: u16) -> Self {
        let [device, ..] = device.to_le_bytes();
        let [network_port, _] = network_port.to_le_bytes();
        Self { device: device % DEVICES, network_port: network_port % NETWORK_PORTS }
    }

    /// Returns the place of the device. It is below [`DEVICES`], which is not checked for each
    /// command.
    #[inline(always)]
    fn device(self) -> usize {
        usize::from(self.device % DEVICES)
    }

    /// Returns the number of the port, which is below [`NETWORK_PORTS`] in the same way.
    #[inline(always)]
    pub(super) fn network_port(self) -> usize {
        usize::from(self.network_port % NETWORK_PORTS)
    }
}

/// Returns the place of a port.
#[inline(always)]
fn counter_of_port(network_port: usize) -> usize {
    usize::from(DEVICES) + network_port % usize::from(NETWORK_PORTS)
}

/// Bytes per device, followed by bytes per port.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedCounters([AtomicU64; COUNTERS]);

impl Default for PaddedCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Counters that the cores share.
#[derive(Debug)]
pub(super) struct SharedInFlight {
    /// Bytes in flight of each core. Only that core writes them.
    by_core: Box<[PaddedCounters]>,
    /// Bytes in flight of all other cores, for each core, as of `summed`. The core that holds
    /// `summing` writes them.
    others: Box<[PaddedCounters]>,
    summed: AtomicU64,
    summing: AtomicBool,
    /// Devices and ports that flows use, one bit each.
    devices: AtomicU64,
    port_queues: AtomicU64,
    /// There is more than one device or port.
    many_ways: AtomicBool,
}

impl SharedInFlight {
    pub(super) fn new(cores: usize) -> Self {
        let counters = || (0..cores).map(|_| PaddedCounters::default()).collect();
        Self {
            by_core: counters(),
            others: counters(),
            summed: AtomicU64::new(0),
            summing: AtomicBool::new(false),
            devices: AtomicU64::new(0),
            port_queues: AtomicU64::new(0),
            many_ways: AtomicBool::new(false),
        }
    }

    /// Forgets the bytes in flight of a core.
    fn clear(&self, core: usize) {
        self.by_core[core].0.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }

    /// Records the devices and ports of a flow.
    fn open(&self, devices: u64, port_queues: u64) {
        let devices = devices | self.devices.fetch_or(devices, Ordering::Relaxed);
        let port_queues = port_queues | self.port_queues.fetch_or(port_queues, Ordering::Relaxed);
        if !(is_one(devices) && is_one(port_queues)) {
            self.many_ways.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the places in use.
    fn counters_in_use(&self) -> impl Iterator<Item = usize> {
        let devices = bits(self.devices.load(Ordering::Relaxed));
        devices.chain(bits(self.port_queues.load(Ordering::Relaxed)).map(counter_of_port))
    }

    /// Returns whether all flows of all cores use one device and one port. Then there is nothing to
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
            for place in self.counters_in_use() {
                let part = |counters: &PaddedCounters| counters.0[place].load(Ordering::Relaxed);
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
pub(super) struct InFlightView {
    core: usize,
    own: [u64; COUNTERS],
    others: [u64; COUNTERS],
    /// Time of the sums in `others`.
    seen: Nanos,
    /// Devices and ports of this core, one bit each.
    devices: u64,
    port_queues: u64,
    is_one_way: bool,
    /// It counts its bytes in flight: not while all cores use one device and one port.
    counts: bool,
}

impl InFlightView {
    /// Creates the view of core number `core`, without anything in flight.
    pub(super) fn new(core: usize, shared: &SharedInFlight) -> Self {
        shared.clear(core);
        Self {
            core,
            own: [0; COUNTERS],
            others: [0; COUNTERS],
            seen: 0,
            devices: 0,
            port_queues: 0,
            is_one_way: true,
            counts: false,
        }
    }

    /// Counts nothing until there is something to compare again.
    pub(super) fn clear(&mut self, shared: &SharedInFlight) {
        (self.counts, self.own) = (false, [0; COUNTERS]);
        shared.clear(self.core);
    }

    /// Records that this core has a flow with this device and port.
    pub(super) fn open(&mut self, device_port: DevicePort, shared: &SharedInFlight) {
        self.devices |= 1 << device_port.device();
        self.port_queues |= 1 << device_port.network_port();
        self.is_one_way = is_one(self.devices) && is_one(self.port_queues);
        shared.open(self.devices, self.port_queues);
    }

    /// Returns whether all flows of this core use one device and one port.
    #[inline(always)]
    pub(super) fn is_one_way(&self) -> bool {
        self.is_one_way
    }

    #[inline(always)]
    pub(super) fn on_dispatch(
        &mut self,
        device_port: DevicePort,
        bytes: u64,
        shared: &SharedInFlight,
    ) {
        self.change(device_port, shared, |own| own.wrapping_add(bytes));
    }

    #[inline(always)]
    pub(super) fn on_complete(
        &mut self,
        device_port: DevicePort,
        bytes: u64,
        shared: &SharedInFlight,
    ) {
        self.change(device_port, shared, |own| own.wrapping_sub(bytes));
    }

    #[inline(always)]
    fn change(
        &mut self,
        device_port: DevicePort,
        shared: &SharedInFlight,
        to: impl Fn(u64) -> u64,
    ) {
        if !self.counts {
            return;
        }
        let part = &shared.by_core[self.core].0;
        for place in [device_port.device(), counter_of_port(device_port.network_port())] {
            self.own[place] = to(self.own[place]);
            part[place].store(self.own[place], Ordering::Relaxed);
        }
    }

    /// Refreshes the bytes of other cores if they are old, relative to the command time.
    /// `Nanos::MIN` is no time: it means that no time has passed.
    #[inline(always)]
    pub(super) fn look(
        &mut self,
        now: Nanos,
        time: u32,
        flows: &[FlowState],
        shared: &SharedInFlight,
    ) {
        if !self.counts {
            if shared.is_one_way() {
                return;
            }
            self.begin(flows, shared);
        }
        if shared.by_core.len() > 1 {
            self.take_in(now, time, shared);
        }
    }

    /// Starts counting, because there is something to compare now.
    #[cold]
    fn begin(&mut self, flows: &[FlowState], shared: &SharedInFlight) {
        self.counts = true;
        flows.iter().for_each(|flow| self.on_dispatch(flow.device_port, flow.in_flight, shared));
    }

    #[inline(never)]
    fn take_in(&mut self, now: Nanos, time: u32, shared: &SharedInFlight) {
        if time == NEVER || now == Nanos::MIN {
            return;
        }
        if shared.is_due(now, time) {
            shared.sum(now, time);
        }
        let summed = shared.summed.load(Ordering::Relaxed);
        if summed != self.seen {
            self.seen = summed;
            for place in shared.counters_in_use() {
                self.others[place] = shared.others[self.core].0[place].load(Ordering::Relaxed);
            }
        }
    }

    /// Returns the bytes in flight at the device plus those on the port, if there is something to
    /// compare.
    #[inline(always)]
    pub(super) fn on(&self, device_port: DevicePort) -> u64 {
        if !self.counts {
            return 0;
        }
        self.at_device(device_port).wrapping_add(self.on_network_port(device_port.network_port()))
    }

    /// Returns the bytes in flight at the device.
    #[inline(always)]
    pub(super) fn at_device(&self, device_port: DevicePort) -> u64 {
        self.at(device_port.device())
    }

    /// Returns the bytes in flight on a port.
    #[inline(always)]
    pub(super) fn on_network_port(&self, network_port: usize) -> u64 {
        self.at(counter_of_port(network_port))
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

    fn device_ports() -> [DevicePort; 2] {
        [DevicePort::new(0, 0), DevicePort::new(3, 1)]
    }

    /// Makes cores with flows on both ways.
    fn cores<const N: usize>(shared: &SharedInFlight) -> [InFlightView; N] {
        std::array::from_fn(|core| {
            let mut in_flight_view = InFlightView::new(core, shared);
            device_ports()
                .into_iter()
                .for_each(|device_port| in_flight_view.open(device_port, shared));
            // There are two ways, so it counts.
            in_flight_view.look(Nanos::MIN, TIME, &[], shared);
            in_flight_view
        })
    }

    fn seen(in_flight_view: &InFlightView) -> [u64; 4] {
        let [one, other] = device_ports();
        [
            in_flight_view.at_device(one),
            in_flight_view.on_network_port(0),
            in_flight_view.at_device(other),
            in_flight_view.on_network_port(1),
        ]
    }

    #[test]
    fn what_others_have_in_flight_is_known_a_part_of_a_commands_time_later() {
        let shared = SharedInFlight::new(2);
        let [mut a, mut b] = cores(&shared);
        let [one, other] = device_ports();
        a.on_dispatch(one, 100, &shared);
        b.on_dispatch(other, 7, &shared);
        assert_eq!([seen(&a), seen(&b)], [[100, 100, 0, 0], [0, 0, 7, 7]]);
        let mut now = u64::from(TIME);
        a.look(now, TIME, &[], &shared);
        b.look(now, TIME, &[], &shared);
        assert_eq!([seen(&a), seen(&b)], [[100, 100, 7, 7]; 2]);
        // A core sees its own changes immediately, and does not take them for those of others.
        a.on_complete(one, 100, &shared);
        a.look(now, TIME, &[], &shared);
        b.look(now, TIME, &[], &shared);
        assert_eq!([seen(&a), seen(&b)], [[0, 0, 7, 7], [100, 100, 7, 7]]);
        now += u64::from(TIME) / LOOKS + 1;
        b.look(now, TIME, &[], &shared);
        a.on_dispatch(one, 30, &shared);
        a.look(now, TIME, &[], &shared);
        assert_eq!([seen(&a), seen(&b)], [[30, 30, 7, 7], [0, 0, 7, 7]]);
    }

    /// A core is in a turn that began before another core summed.
    #[test]
    fn a_clock_a_little_behind_is_no_reason_to_sum_up() {
        let shared = SharedInFlight::new(2);
        let [mut a, mut b] = cores(&shared);
        let now = u64::from(TIME);
        b.look(now, TIME, &[], &shared);
        for behind in [now - 1, now - 5000, 1, Nanos::MIN] {
            a.on_dispatch(device_ports()[0], 100, &shared);
            a.look(behind, TIME, &[], &shared);
            assert_eq!(shared.summed.load(Ordering::Relaxed), now);
        }
    }

    #[test]
    fn who_comes_to_a_core_anew_has_nothing_in_flight() {
        let shared = SharedInFlight::new(2);
        let [mut a, mut b] = cores(&shared);
        a.on_dispatch(device_ports()[0], 100, &shared);
        let _again = InFlightView::new(0, &shared);
        b.look(u64::from(TIME), TIME, &[], &shared);
        assert_eq!(seen(&b), [0; 4]);
    }

    #[test]
    fn what_was_started_before_there_was_a_choice_counts_when_there_is() {
        let shared = SharedInFlight::new(1);
        let [one, other] = device_ports();
        let mut in_flight_view = InFlightView::new(0, &shared);
        in_flight_view.open(one, &shared);
        let flows = [FlowState { device_port: one, in_flight: 100, ..FlowState::default() }];
        in_flight_view.on_dispatch(one, 100, &shared);
        in_flight_view.look(1, TIME, &flows, &shared);
        assert_eq!(seen(&in_flight_view), [0; 4]);
        in_flight_view.open(other, &shared);
        in_flight_view.look(2, TIME, &flows, &shared);
        assert_eq!(seen(&in_flight_view), [100, 100, 0, 0]);
        in_flight_view.on_complete(one, 100, &shared);
        assert_eq!(seen(&in_flight_view), [0; 4]);
    }

    #[test]
    fn a_clock_that_goes_back_is_no_reason_to_know_nothing() {
        let shared = SharedInFlight::new(2);
        let [mut a, mut b] = cores(&shared);
        b.look(1 << 40, TIME, &[], &shared);
        a.on_dispatch(device_ports()[0], 100, &shared);
        b.look(5, TIME, &[], &shared);
        assert_eq!(seen(&b), [100, 100, 0, 0]);
    }

    #[test]
    fn numbers_beyond_those_told_apart_share_a_place() {
        assert_eq!(DevicePort::new(64, 8), DevicePort::new(0, 0));
        assert_eq!(DevicePort::new(u32::MAX, u16::MAX), DevicePort::new(63, 7));
    }

    #[test]
    fn a_core_with_one_device_and_one_path_has_nothing_to_choose() {
        let shared = SharedInFlight::new(1);
        let mut in_flight_view = InFlightView::new(0, &shared);
        assert!(in_flight_view.is_one_way());
        in_flight_view.open(DevicePort::new(5, 1), &shared);
        in_flight_view.open(DevicePort::new(5, 1), &shared);
        assert!(in_flight_view.is_one_way());
        for other in [DevicePort::new(6, 1), DevicePort::new(5, 0)] {
            let mut in_flight_view = InFlightView::new(0, &shared);
            [DevicePort::new(5, 1), other]
                .into_iter()
                .for_each(|device_port| in_flight_view.open(device_port, &shared));
            assert!(!in_flight_view.is_one_way(), "{other:?}");
        }
    }
}
