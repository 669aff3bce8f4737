//! Models of a few cores on one bucket, checked by loom over every interleaving: `RUSTFLAGS="--cfg
//! loom" cargo test -p nvmeof-pacing --release loom_`.

use loom::thread;

use super::*;
use crate::Cost;

/// Nanoseconds from one I/O to the next.
const PERIOD: Nanos = 10;

fn bucket(burst: u64, cores: usize) -> Arc<SharedTokenBucket> {
    let rate = RateSpec::Period(PERIOD);
    let config = TokenBucketConfig { pace: rate, burst: Some(burst), budget: None };
    SharedTokenBucket::new(&config, PacedMachine { cores, largest: 4096 }).unwrap()
}

fn request() -> AdmissionRequest {
    AdmissionRequest { cost: Cost::data(4096), device: 0, urgency: 0, load: 0, small: false }
}

fn arrival_time(shared: &SharedTokenBucket) -> Nanos {
    shared.arrival_time.0.load(Ordering::Relaxed)
}

/// Returns the start time of a core's next I/O.
fn start(core: &mut TokenBucket, now: Nanos) -> Nanos {
    match core.admit(&request(), now) {
        Admission::Granted(_) => now,
        Admission::WaitUntil(when) => when,
        other => panic!("{other:?}"),
    }
}

/// Two cores ask for the only available I/O at the same time: one starts, and the other one period
/// later. No core is charged for the other.
#[test]
fn loom_two_that_ask_do_not_both_get_the_last_token() {
    loom::model(|| {
        let shared = bucket(1, 2);
        let (mut one, mut two) = (shared.core(), shared.core());
        let asking = thread::spawn(move || (start(&mut one, 100), one));
        let second = start(&mut two, 100);
        let (first, one) = asking.join().unwrap();
        assert_eq!((first.min(second), first.max(second)), (100, 100 + PERIOD));
        assert_eq!(arrival_time(&shared), 100 + 2 * PERIOD);
        drop((one, two));
    });
}

/// A core leaves the line while another joins it. The charge of the first is subtracted once, and
/// the second has a reservation in any case.
#[test]
fn loom_a_place_given_up_goes_back_once() {
    loom::model(|| {
        let shared = bucket(1, 2);
        let (mut one, mut two) = (shared.core(), shared.core());
        assert_eq!(start(&mut one, 100), 100);
        assert_eq!(start(&mut one, 100), 100 + PERIOD);
        let leaving = thread::spawn(move || {
            one.return_unused();
            one
        });
        let second = start(&mut two, 100);
        let one = leaving.join().unwrap();
        assert!(second == 100 + PERIOD || second == 100 + 2 * PERIOD, "{second}");
        assert_eq!(arrival_time(&shared), 100 + 2 * PERIOD);
        two.return_unused();
        assert_eq!(arrival_time(&shared), 100 + PERIOD);
        drop((one, two));
    });
}

/// A core leases, and returns the unused part, while another asks: each I/O that starts is paid for
/// once.
#[test]
fn loom_a_lease_given_back_is_neither_lost_nor_there_twice() {
    loom::model(|| {
        let shared = bucket(4, 2);
        let (mut one, mut two) = (shared.core(), shared.core());
        let leasing = thread::spawn(move || {
            // The second leases for a third, if that is available.
            let both = [start(&mut one, 100), start(&mut one, 100)];
            one.return_unused();
            (both, one)
        });
        let second = start(&mut two, 100);
        let (both, one) = leasing.join().unwrap();
        assert_eq!((both, second), ([100; 2], 100), "there are four");
        assert_eq!(arrival_time(&shared), 100 + 3 * PERIOD);
        assert_eq!(start(&mut two, 100), 100);
        two.return_unused();
        assert_eq!(arrival_time(&shared), 100 + 4 * PERIOD);
        drop((one, two));
    });
}

/// A grant is withdrawn while another core asks.
#[test]
fn loom_a_grant_withdrawn_goes_back_once() {
    loom::model(|| {
        let shared = bucket(2, 2);
        let (mut one, mut two) = (shared.core(), shared.core());
        assert_eq!(start(&mut one, 100), 100);
        let outcome = CommandOutcome::Cancelled;
        let done =
            CompletedCommand { cost: request().cost, device: 0, outcome, started: 100, network: 0 };
        let leaving = thread::spawn(move || {
            one.release(&done, Grant::default(), 100);
            one
        });
        let both = [start(&mut two, 100), start(&mut two, 100)];
        let one = leaving.join().unwrap();
        assert!(both == [100, 100] || both == [100, 100 + PERIOD], "{both:?}");
        two.return_unused();
        let started = both.iter().filter(|start| **start == 100).count() as u64;
        assert_eq!(arrival_time(&shared), 100 + started * PERIOD);
        drop((one, two));
    });
}

/// The clock jumped back by more than the longest line, and two cores notice concurrently. The
/// bucket is emptied once, and they are served one after the other.
#[test]
fn loom_a_clock_that_went_back_is_seen_once() {
    loom::model(|| {
        let shared = bucket(1, 2);
        let (mut one, mut two) = (shared.core(), shared.core());
        assert_eq!(start(&mut one, 10 * SECOND), 10 * SECOND);
        let asking = thread::spawn(move || (start(&mut one, 100), one));
        let second = start(&mut two, 100);
        let (first, one) = asking.join().unwrap();
        let served = (first.min(second), first.max(second));
        assert_eq!(served, (100 + PERIOD, 100 + 2 * PERIOD));
        drop((one, two));
    });
}
