//! Tests of the bucket alone: rate, turns and clocks.
#![cfg(not(loom))]

use super::*;
use crate::{Cost, PolicyConfig, SharedPolicy};
use proptest::prelude::*;

const LARGEST: u32 = 1 << 20;
const HOUR: Nanos = 3600 * SECOND;

fn bucket(rate: RateSpec, burst: Option<u64>, cores: usize) -> Vec<TokenBucket> {
    let config = TokenBucketConfig { pace: rate, burst, budget: None };
    let shared = SharedTokenBucket::new(&config, PacedMachine { cores, largest: LARGEST }).unwrap();
    (0..cores).map(|_| shared.core()).collect()
}

fn ask(bytes: u32) -> AdmissionRequest {
    AdmissionRequest { cost: Cost::data(bytes), device: 0, urgency: 0, load: 0, small: false }
}

fn withdrawn(bytes: u32) -> CompletedCommand {
    let outcome = CommandOutcome::Cancelled;
    CompletedCommand { cost: Cost::data(bytes), device: 0, outcome, started: 0, network: 0 }
}

fn starts(core: &mut TokenBucket, bytes: u32, now: Nanos) -> bool {
    matches!(core.admit(&ask(bytes), now), Admission::Granted(_))
}

/// Any rate from 1 B/s to 100 GB/s, round or not.
fn a_rate() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0u32..=11).prop_map(|power| 10u64.pow(power)),
        (0u32..37, any::<u64>()).prop_map(|(bits, low)| (1 << bits) + low % (1 << bits)),
        Just(99_999_999_977),
    ]
    .prop_map(|rate| rate.min(100_000_000_000))
}

fn a_pace() -> impl Strategy<Value = RateSpec> {
    prop_oneof![3 => a_rate().prop_map(RateSpec::Rate), 1 => (1u64..100_000).prop_map(RateSpec::Period)]
}

/// Returns the cost of an I/O in fractions of a ns, by plain arithmetic.
fn worth(rate: RateSpec, bytes: u32) -> u128 {
    match rate {
        RateSpec::Rate(_) => u128::from(bytes) * u128::from(SECOND),
        RateSpec::Period(period) => period.into(),
    }
}

fn fraction(rate: RateSpec) -> u128 {
    match rate {
        RateSpec::Rate(rate) => rate.into(),
        RateSpec::Period(_) => 1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cores that always have commands waiting, and ask again at their start times, start exactly
    /// at the rate. From the first I/O to the last the deviation never exceeds the stated bound, up
    /// or down, however long it runs. No core waits longer than stated.
    #[test]
    fn the_long_run_rate_is_exact_and_nobody_waits_longer_than_stated(
        rate in a_pace(),
        burst in prop::option::of(1u64..1 << 30),
        cores in 1usize..7,
        sizes in prop::collection::vec(1..=LARGEST, 1..40),
        since in 0..u64::MAX / 4,
        count in 100usize..3000,
    ) {
        // The longest possible burst is worth decades.
        let burst = burst.filter(|burst| burst_time(rate, *burst).is_ok());
        let mut bucket = bucket(rate, burst, cores);
        let shared = Arc::clone(&bucket[0].shared);
        let parts = fraction(rate);
        let line = worth(rate, LARGEST) * bucket.len() as u128;
        let longest_wait = u64::try_from(line / parts).unwrap_or(u64::MAX).saturating_add(8);
        let mut sized = sizes.iter().cycle();
        // Per core: time of the next request, start of its wait, and bytes requested.
        let mut cores: Vec<_> = (0..cores).map(|_| (since, since, *sized.next().unwrap())).collect();
        let mut started = 0u128;
        for _ in 0..count {
            let at = (0..cores.len()).min_by_key(|core| cores[*core].0).unwrap();
            let (now, asked, bytes) = cores[at];
            match bucket[at].admit(&ask(bytes), now) {
                Admission::Granted(_) => {
                    started += worth(rate, bytes);
                    prop_assert!(now - asked <= longest_wait, "{} ns", now - asked);
                    cores[at] = (now, now, *sized.next().unwrap());
                }
                Admission::WaitUntil(when) => {
                    prop_assert!(when > now);
                    cores[at].0 = when;
                }
                other => prop_assert!(false, "{other:?}"),
            }
            let earned = u128::from(now - since) * parts;
            let full = u128::from(shared.burst) * parts;
            prop_assert!(started <= earned + full + line, "too fast");
            prop_assert!(started + line + parts * 8 >= earned, "too slow");
        }
    }

    /// As above, with cores that ask late, change their request and get their I/O withdrawn. The
    /// bound holds, and returned tokens are neither lost nor duplicated.
    #[test]
    fn what_is_not_used_goes_back(
        rate in a_pace(),
        cores in 1usize..5,
        steps in prop::collection::vec((0usize..8, 0u8..10, 1..=LARGEST), 1..400),
        since in 0..u64::MAX / 4,
    ) {
        let mut bucket = bucket(rate, None, cores);
        let shared = Arc::clone(&bucket[0].shared);
        let parts = fraction(rate);
        let line = worth(rate, LARGEST) * cores as u128;
        let longest = shared.token_cost.unit_cost(LARGEST).whole;
        let (mut now, mut started) = (since, 0u128);
        for (core, what, bytes) in steps {
            let core = &mut bucket[core % cores];
            match what {
                0 => core.return_unused(),
                1 => now += longest / 3,
                2 if starts(core, bytes, now) => {
                    let before = shared.arrival_time.0.load(Ordering::Relaxed);
                    core.release(&withdrawn(bytes), Grant::default(), now);
                    let back = before - shared.arrival_time.0.load(Ordering::Relaxed);
                    let unit_cost = shared.token_cost.unit_cost(bytes);
                    prop_assert!((unit_cost.whole..=unit_cost.whole + 1).contains(&back));
                }
                2 => {}
                _ if starts(core, bytes, now) => started += worth(rate, bytes),
                _ => {}
            }
            let earned = u128::from(now - since) * parts;
            prop_assert!(started <= earned + u128::from(shared.burst) * parts + line);
        }
        for core in &mut bucket {
            core.return_unused();
        }
        // All tokens but those of started I/Os are back. The level is ahead of a full bucket by
        // those at most, and the burst is available after a quiet time.
        let arrival_time = shared.arrival_time.0.load(Ordering::Relaxed);
        let ahead = u128::from(arrival_time.saturating_sub(since));
        let whole_of_each = cores as u128;
        prop_assert!(ahead <= u128::from(now - since) + started / parts + whole_of_each);
        now = now.max(arrival_time);
        let mut at_once = 0u128;
        while starts(&mut bucket[0], LARGEST, now) {
            at_once += worth(rate, LARGEST);
            prop_assert!(at_once <= line);
        }
        prop_assert_eq!(at_once, line);
    }

    /// Whatever the clock does, an I/O starts once the clock has advanced by the line. No jump is
    /// worth more than the burst and one I/O per core.
    #[test]
    fn clocks_may_stand_still_and_jump(
        rate in a_pace(),
        cores in 1usize..5,
        jumps in prop::collection::vec(prop_oneof![Just(0i64), -3600i64..3600, -10i64..10], 1..20),
    ) {
        let mut bucket = bucket(rate, None, cores);
        let shared = Arc::clone(&bucket[0].shared);
        let mut now = 1000 * HOUR;
        for seconds in jumps {
            now = now.saturating_add_signed(seconds * 1_000_000_000);
            // The clock stops: each core starts what it may, and that ends.
            let mut started = 0;
            for core in &mut bucket {
                while starts(core, LARGEST, now) {
                    started += 1;
                    prop_assert!(started <= 2 * cores + 1, "a flood");
                }
            }
            // The clock continues: every core has its turn within the longest line.
            let later = now.saturating_add(shared.furthest);
            for core in &mut bucket {
                if let Admission::WaitUntil(when) = core.admit(&ask(LARGEST), now) {
                    prop_assert!(when > now && when <= later);
                    prop_assert!(starts(core, LARGEST, when));
                    now = when;
                }
            }
        }
    }
}

#[test]
fn the_burst_starts_at_once_and_not_one_more() {
    // One largest I/O per core by default.
    for (burst, at_once) in [(None, 4), (Some(7 * u64::from(LARGEST)), 7)] {
        let mut bucket = bucket(RateSpec::Rate(1 << 30), burst, 4);
        for now in [0, HOUR] {
            let started = (0..20).filter(|_| starts(&mut bucket[0], LARGEST, now)).count();
            assert_eq!(started, at_once);
            bucket[0].return_unused();
        }
    }
    let mut bucket = bucket(RateSpec::Period(6000), Some(1), 4);
    assert!(starts(&mut bucket[0], 4096, 0));
    assert_eq!(bucket[0].admit(&ask(4096), 0), Admission::WaitUntil(6000));
    assert!(starts(&mut bucket[0], 4096, 6000));
}

/// A core that starts several I/Os leases available tokens, up to one largest I/O, and returns the
/// unused part when it rests.
#[test]
fn a_lease_is_of_what_is_there_and_goes_back() {
    const IO: u32 = LARGEST / 8;
    // 1 ns per byte.
    let mut bucket = bucket(RateSpec::Rate(SECOND), Some(4 * u64::from(LARGEST)), 2);
    let [one, two] = &mut bucket[..] else { unreachable!() };
    let taken = |core: &TokenBucket| {
        let arrival_time = core.shared.arrival_time.0.load(Ordering::Relaxed);
        (arrival_time - HOUR) / u64::from(IO)
    };
    assert!(starts(one, IO, HOUR));
    assert_eq!(taken(one), 1, "the first is paid for alone");
    for _ in 0..6 {
        assert!(starts(one, IO, HOUR));
        assert_eq!(taken(one), 2 + 8, "the second leases for the next");
    }
    one.return_unused();
    assert_eq!(taken(one), 7);
    // With another size the rest of a lease is not lost.
    assert!(starts(one, IO, HOUR) && starts(one, IO, HOUR) && starts(one, 3 * IO, HOUR));
    one.return_unused();
    assert_eq!(taken(one), 12);
    // Only available tokens are leased: 32 in total.
    let started = (0..40).filter(|_| starts(two, IO, HOUR)).count();
    assert_eq!(started, 20);
    two.return_unused();
    assert_eq!(taken(one), 32);
}

/// An I/O larger than the burst waits for a full bucket, starts, and leaves a debt.
#[test]
fn an_io_larger_than_the_burst_starts_and_is_paid_for() {
    let mut bucket = bucket(RateSpec::Rate(1_000_000_000), Some(1000), 1);
    let core = &mut bucket[0];
    assert!(starts(core, 10_000, HOUR));
    // 9000 bytes of debt, then a full bucket again.
    assert_eq!(core.admit(&ask(10_000), HOUR), Admission::WaitUntil(HOUR + 10_000));
    assert!(starts(core, 10_000, HOUR + 10_000));
    assert_eq!(core.admit(&ask(500), HOUR + 10_000), Admission::WaitUntil(HOUR + 19_500));
    assert_eq!(core.largest(), LARGEST);
}

/// Cores take turns by I/O, even if one of them always asks first and for more.
#[test]
fn cores_are_served_in_the_order_in_which_they_ask() {
    let mut bucket = bucket(RateSpec::Rate(1_000_000_000), Some(1), 3);
    let sizes = [LARGEST, 4096, 512];
    let mut started = [0; 3];
    let mut now = 0;
    for _ in 0..300 {
        let mut next = u64::MAX;
        for core in 0..3 {
            loop {
                match bucket[core].admit(&ask(sizes[core]), now) {
                    Admission::Granted(_) => started[core] += 1,
                    Admission::WaitUntil(when) => break next = next.min(when),
                    other => panic!("{other:?}"),
                }
            }
        }
        now = next;
    }
    // The first I/O finds no core in line.
    assert!(started.iter().max().unwrap() - started.iter().min().unwrap() <= 2, "{started:?}");
}

/// Another command takes over a reservation: it keeps the place and pays its own cost.
#[test]
fn a_place_in_line_can_change_its_io() {
    let mut bucket = bucket(RateSpec::Rate(1_000_000_000), Some(100), 2);
    let [one, two] = &mut bucket[..] else { unreachable!() };
    assert!(starts(one, 100, 0));
    assert_eq!(one.admit(&ask(100), 0), Admission::WaitUntil(100));
    assert_eq!(two.admit(&ask(100), 0), Admission::WaitUntil(200));
    assert_eq!(one.admit(&ask(60), 0), Admission::WaitUntil(60));
    assert_eq!(one.admit(&ask(100), 0), Admission::WaitUntil(100));
    assert_eq!(one.admit(&ask(5000), 0), Admission::WaitUntil(100));
    assert_eq!(two.admit(&ask(100), 0), Admission::WaitUntil(200));
    one.return_unused();
    assert_eq!(one.shared.arrival_time.0.load(Ordering::Relaxed), 200);
    drop(bucket);
}

#[test]
fn a_core_that_goes_away_leaves_the_line() {
    let mut bucket = bucket(RateSpec::Period(1000), Some(1), 2);
    assert!(starts(&mut bucket[0], 1, 0));
    assert_eq!(bucket[1].admit(&ask(1), 0), Admission::WaitUntil(1000));
    drop(bucket.pop());
    assert_eq!(bucket[0].admit(&ask(1), 0), Admission::WaitUntil(1000));
}

#[test]
fn what_means_nothing_is_refused() {
    let machine = PacedMachine { cores: 4, largest: LARGEST };
    let new = |rate, burst, budget| {
        SharedPolicy::new(
            &PolicyConfig::TokenBucket(TokenBucketConfig { pace: rate, burst, budget }),
            machine,
        )
    };
    let refused = [
        (RateSpec::Rate(0), None, None, "rate of the token bucket is 0 bytes a second"),
        (RateSpec::Rate(u64::MAX), None, None, "allowed are 1 to 1000000000000000 bytes a second"),
        (RateSpec::Period(0), None, None, "period of the token bucket is 0 ns"),
        (RateSpec::Period(u64::MAX), None, None, "allowed are 1 to 86400000000000 ns"),
        (RateSpec::Rate(1 << 30), Some(0), None, "burst of the token bucket is 0 bytes"),
        (RateSpec::Rate(1), Some(u64::MAX), None, "omit the key"),
        (RateSpec::Period(6000), Some(u64::MAX), None, "I/Os"),
        (RateSpec::Rate(1), None, Some(u64::from(LARGEST) - 1), "raise the budget"),
    ];
    for (rate, burst, budget, words) in refused {
        let text = new(rate, burst, budget).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
    // The ends of the allowed range.
    for rate in [
        RateSpec::Rate(1),
        RateSpec::Rate(FASTEST),
        RateSpec::Period(1),
        RateSpec::Period(LONGEST_PERIOD),
    ] {
        new(rate, None, None).unwrap();
        new(rate, Some(1), Some(LARGEST.into())).unwrap();
    }
    let shared = new(RateSpec::Period(6000), None, Some(1 << 30)).unwrap();
    assert_eq!(shared.status().period, Some(6000));
    assert_eq!(shared.status().budget, Some(1 << 30));
}
