//! Models of a few cores on one shared budget, checked by loom over every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test -p nvmeof-pacing --release loom_`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool as Flag;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::{
    AdmissionPolicy, AdmissionRequest, BufferCredit, CompletedCommand, CreditConfig, Grant,
    SharedCredit,
};
use crate::Cost;
use crate::permit::CommandOutcome;

/// One I/O, the whole budget of most models here: a quantum has the same size.
const IO: u32 = 4096;
/// Bytes that a core starts by the minimum grant before it waits for credit. They are covered
/// first, so the core waits for an I/O minus this.
const MINIMUM_GRANT: u32 = 1;

struct CoreHandle {
    credit: BufferCredit,
    woken: Arc<Flag>,
}

impl CoreHandle {
    fn new(shared: &Arc<SharedCredit>, core: usize) -> Self {
        let woken = Arc::new(Flag::new(false));
        let flag = Arc::clone(&woken);
        // Not loom's flag: it is read only after the threads are joined.
        let credit = shared.core(core, Arc::new(move || flag.store(true, Relaxed)));
        Self { credit, woken }
    }

    fn admit(&mut self) -> Option<Grant> {
        self.admit_bytes(IO)
    }

    /// Starts a command by the minimum grant.
    fn minimum_grant(&mut self) -> Grant {
        self.admit_bytes(MINIMUM_GRANT).expect("a core that holds nothing starts one")
    }

    /// Starts an I/O in addition to the minimum grant.
    fn admit_beside(&mut self) -> Option<Grant> {
        self.admit_bytes(IO - MINIMUM_GRANT)
    }

    fn release_beside(&mut self, grant: Grant) {
        self.release_bytes(IO - MINIMUM_GRANT, grant);
    }

    fn release_floor(&mut self, grant: Grant) {
        self.release_bytes(MINIMUM_GRANT, grant);
    }

    fn admit_bytes(&mut self, bytes: u32) -> Option<Grant> {
        self.credit.admit(&request(bytes), 0).grant()
    }

    fn release(&mut self, grant: Grant) {
        self.release_bytes(IO, grant);
    }

    fn release_bytes(&mut self, bytes: u32, grant: Grant) {
        self.credit.release(&done(bytes), grant, 0);
    }
}

fn request(bytes: u32) -> AdmissionRequest {
    AdmissionRequest { cost: Cost::data(bytes), device: 0, urgency: 0, load: 0, small: false }
}

fn done(bytes: u32) -> CompletedCommand {
    let outcome = CommandOutcome::Completed;
    CompletedCommand { cost: Cost::data(bytes), device: 0, outcome, started: 0, network: 0 }
}

fn shared(budget: u32, cores: usize) -> Arc<SharedCredit> {
    let config = CreditConfig { budget: budget.into(), largest: budget, cores };
    BufferCredit::shared(config).unwrap()
}

/// Checks every interleaving with up to three preemptions: enough for any lost update between two
/// threads, and seconds instead of minutes.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// One core offers open credit while another starts to wait for it. Either the waiter gets it
/// immediately, or it is woken and gets it then. This is the wake-up that must not be lost.
#[test]
fn loom_credit_that_is_laid_open_reaches_a_core_that_starts_to_wait() {
    bounded(|| {
        let shared = shared(IO, 2);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let lease = giver.admit().unwrap();
        let minimum_grant = waiter.minimum_grant();
        let giving = thread::spawn(move || {
            giver.release(lease);
            giver.credit.return_unused();
            giver
        });
        let at_once = waiter.admit_beside();
        let mut giver = giving.join().unwrap();
        let grant = at_once.or_else(|| {
            assert!(waiter.woken.load(Relaxed), "credit is there and nobody woke the waiter");
            waiter.admit_beside()
        });
        waiter.release_beside(grant.expect("the credit was given back"));
        waiter.release_floor(minimum_grant);
        waiter.credit.return_unused();
        giver.credit.return_unused();
        assert_eq!(shared.unused(), shared.budget());
    });
}

/// As above, with a recall flag from before. Its owner clears it, and offers credit without it,
/// while another core starts to wait for more than that.
#[test]
fn loom_a_recall_flag_is_not_taken_down_while_a_core_starts_to_wait() {
    bounded(|| {
        let shared = shared(2 * IO, 2);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let [first, second] = [giver.admit().unwrap(), giver.admit().unwrap()];
        let minimum_grant = waiter.minimum_grant();
        // Waits, which sets the flag of the giver, and then stops waiting.
        assert!(waiter.admit_bytes(2 * IO - MINIMUM_GRANT).is_none());
        waiter.credit.return_unused();
        let giving = thread::spawn(move || {
            // The flag is seen and cleared here, and the rest is offered without it.
            giver.release(first);
            giver.release(second);
            giver.credit.return_unused();
            giver
        });
        let at_once = waiter.admit_bytes(2 * IO - MINIMUM_GRANT);
        let mut giver = giving.join().unwrap();
        let grant = at_once.or_else(|| {
            assert!(waiter.woken.load(Relaxed), "credit is there and nobody woke the waiter");
            waiter.admit_bytes(2 * IO - MINIMUM_GRANT)
        });
        waiter.release_bytes(2 * IO - MINIMUM_GRANT, grant.expect("the credit was given back"));
        waiter.release_floor(minimum_grant);
        waiter.credit.return_unused();
        giver.credit.return_unused();
        assert_eq!(shared.unused(), shared.budget());
    });
}

/// A core stops waiting while it is granted credit: the credit is not lost, and passes to the next
/// in line.
#[test]
fn loom_a_grant_to_a_core_that_stops_waiting_goes_on() {
    loom::model(|| {
        let shared = shared(IO, 3);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut fickle = CoreHandle::new(&shared, 1);
        let mut next = CoreHandle::new(&shared, 2);
        let lease = giver.admit().unwrap();
        let floors = [fickle.minimum_grant(), next.minimum_grant()];
        assert!(fickle.admit_beside().is_none() && next.admit_beside().is_none());
        let giving = thread::spawn(move || {
            giver.release(lease);
            giver.credit.return_unused();
            giver
        });
        // Its command was cancelled, and its turn ends.
        fickle.credit.return_unused();
        let mut giver = giving.join().unwrap();
        assert!(next.woken.load(Relaxed), "nobody woke the next in line");
        let grant = next.admit_beside().expect("the credit was given back");
        let [fickle_floor, next_floor] = floors;
        fickle.release_floor(fickle_floor);
        next.release_beside(grant);
        next.release_floor(next_floor);
        for core in [&mut giver, &mut fickle, &mut next] {
            core.credit.return_unused();
        }
        assert_eq!(shared.unused(), shared.budget());
    });
}

/// Two cores give credit concurrently to two that wait: both are served, whichever core hands out,
/// and none twice.
#[test]
fn loom_two_that_give_serve_two_that_wait() {
    bounded(|| {
        let shared = shared(2 * IO, 4);
        let mut givers = [CoreHandle::new(&shared, 0), CoreHandle::new(&shared, 1)];
        let mut waiters = [CoreHandle::new(&shared, 2), CoreHandle::new(&shared, 3)];
        let leases = givers.each_mut().map(|core| core.admit().unwrap());
        let floors = waiters.each_mut().map(CoreHandle::minimum_grant);
        for core in &mut waiters {
            assert!(core.admit_beside().is_none());
        }
        let [mut first, mut second] = givers;
        let [first_lease, second_lease] = leases;
        let giving = thread::spawn(move || {
            first.release(first_lease);
            first.credit.return_unused();
            first
        });
        second.release(second_lease);
        second.credit.return_unused();
        let mut first = giving.join().unwrap();
        for (core, minimum_grant) in waiters.iter_mut().zip(floors) {
            assert!(core.woken.load(Relaxed), "a core was forgotten");
            let grant = core.admit_beside().expect("there is credit for both");
            core.release_beside(grant);
            core.release_floor(minimum_grant);
            core.credit.return_unused();
        }
        first.credit.return_unused();
        second.credit.return_unused();
        assert_eq!(shared.unused(), shared.budget());
    });
}

/// The minimum grant of a core is released while the core is granted credit for it.
#[test]
fn loom_what_is_beside_the_budget_comes_back_while_it_is_covered() {
    loom::model(|| {
        let shared = shared(IO, 2);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let lease = giver.admit().unwrap();
        let minimum_grant = waiter.admit().expect("a core that holds nothing starts one");
        assert!(waiter.admit().is_none());
        let giving = thread::spawn(move || {
            giver.release(lease);
            giver.credit.return_unused();
            giver
        });
        assert!(waiter.admit().is_none(), "there is one, and that is for what is in flight");
        waiter.release(minimum_grant);
        let second = waiter.admit().expect("a core that holds nothing starts one");
        let mut giver = giving.join().unwrap();
        waiter.release(second);
        assert_whole(&shared, IO, &mut [&mut giver, &mut waiter]);
    });
}

/// Credit is released twice while a core has uncovered bytes in flight: the first covers those, and
/// with the second it starts another I/O.
#[test]
fn loom_a_core_waits_for_what_is_beside_the_budget_and_then_for_more() {
    bounded(|| {
        let shared = resizable(2 * IO, 2);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let leases = [giver.admit().unwrap(), giver.admit().unwrap()];
        let minimum_grant = waiter.admit().expect("a core that holds nothing starts one");
        assert!(waiter.admit().is_none());
        let giving = thread::spawn(move || {
            for lease in leases {
                giver.release(lease);
            }
            giver.credit.return_unused();
            giver
        });
        let at_once = waiter.admit();
        let mut giver = giving.join().unwrap();
        let grant = at_once.or_else(|| {
            assert!(waiter.woken.load(Relaxed), "credit is there and nobody woke the waiter");
            waiter.admit()
        });
        waiter.release(grant.expect("there is credit for both"));
        waiter.release(minimum_grant);
        assert_whole(&shared, 2 * IO, &mut [&mut giver, &mut waiter]);
    });
}

/// Two cores request the last I/O of credit at the same time: one gets it under the lease, the
/// other by the minimum grant. The budget is complete in the end.
#[test]
fn loom_two_that_take_do_not_both_get_the_last_credit() {
    loom::model(|| {
        let shared = shared(IO, 2);
        let mut one = CoreHandle::new(&shared, 0);
        let mut two = CoreHandle::new(&shared, 1);
        let taking = thread::spawn(move || {
            let grant = one.admit().expect("a core that holds nothing starts one");
            (one, grant)
        });
        let second = two.admit().expect("a core that holds nothing starts one");
        let (mut one, first) = taking.join().unwrap();
        assert_ne!(first, second, "one is leased, the other is the floor");
        assert_eq!(shared.unused(), 0);
        one.release(first);
        two.release(second);
        one.credit.return_unused();
        two.credit.return_unused();
        assert_eq!(shared.unused(), shared.budget());
    });
}

/// Open credit of one core is taken by it and by another at the same time.
#[test]
fn loom_open_credit_is_taken_once() {
    loom::model(|| {
        let shared = shared(IO, 2);
        let mut owner = CoreHandle::new(&shared, 0);
        let mut other = CoreHandle::new(&shared, 1);
        let lease = owner.admit().unwrap();
        let minimum_grant = other.minimum_grant();
        owner.release(lease);
        owner.credit.return_unused();
        let taking = thread::spawn(move || {
            let grant = owner.admit().expect("a core that holds nothing starts one");
            (owner, grant)
        });
        let grant = other.admit_beside();
        let (mut owner, owners) = taking.join().unwrap();
        owner.release(owners);
        owner.credit.return_unused();
        let grant = grant.or_else(|| other.admit_beside()).expect("the credit is free again");
        other.release_beside(grant);
        other.release_floor(minimum_grant);
        other.credit.return_unused();
        owner.credit.return_unused();
        assert_eq!(shared.unused(), shared.budget());
    });
}

/// A budget that may shrink to one I/O.
fn resizable(budget: u32, cores: usize) -> Arc<SharedCredit> {
    let config = CreditConfig { budget: budget.into(), largest: IO, cores };
    BufferCredit::shared(config).unwrap()
}

fn assert_whole(shared: &SharedCredit, budget: u32, cores: &mut [&mut CoreHandle]) {
    for core in cores {
        core.credit.return_unused();
    }
    assert_eq!(shared.budget(), budget.into());
    assert_eq!(shared.unused(), shared.budget(), "credit was lost or made");
}

/// The budget shrinks by the credit that another core releases at the same time: the debt is paid
/// once.
#[test]
fn loom_a_budget_that_shrinks_is_paid_by_what_comes_back() {
    bounded(|| {
        let shared = resizable(2 * IO, 2);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut resizer = CoreHandle::new(&shared, 1);
        let leases = [giver.admit().unwrap(), giver.admit().unwrap()];
        let giving = thread::spawn(move || {
            for lease in leases {
                giver.release(lease);
            }
            giver.credit.return_unused();
            giver
        });
        shared.resize(IO.into(), 1);
        let mut giver = giving.join().unwrap();
        assert_whole(&shared, IO, &mut [&mut giver, &mut resizer]);
    });
}

/// The budget shrinks while another core takes credit from it, offers it and reclaims it.
#[test]
fn loom_a_budget_that_shrinks_beside_a_core_that_takes() {
    bounded(|| {
        let shared = resizable(2 * IO, 2);
        let mut taker = CoreHandle::new(&shared, 0);
        let mut resizer = CoreHandle::new(&shared, 1);
        let taking = thread::spawn(move || {
            for _ in 0..2 {
                let grant = taker.admit().expect("a core that holds nothing starts one");
                taker.release(grant);
                taker.credit.return_unused();
            }
            taker
        });
        shared.resize(IO.into(), 1);
        let mut taker = taking.join().unwrap();
        assert_whole(&shared, IO, &mut [&mut taker, &mut resizer]);
        // The rest is exactly the new budget.
        let lease = taker.admit().unwrap();
        let minimum_grant = taker.admit();
        assert!(minimum_grant.is_none(), "the budget is out");
        taker.release(lease);
        assert_whole(&shared, IO, &mut [&mut taker, &mut resizer]);
    });
}

/// The budget grows while a core starts to wait for it: it gets the new credit immediately, or is
/// woken for it.
#[test]
fn loom_a_budget_that_grows_reaches_a_core_that_starts_to_wait() {
    bounded(|| {
        let shared = resizable(IO, 2);
        let mut resizer = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let lease = resizer.admit().unwrap();
        let minimum_grant = waiter.minimum_grant();
        let growing = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.resize((2 * IO).into(), 0))
        };
        let at_once = waiter.admit_beside();
        growing.join().unwrap();
        let grant = at_once.or_else(|| {
            assert!(waiter.woken.load(Relaxed), "credit is there and nobody woke the waiter");
            waiter.admit_beside()
        });
        waiter.release_beside(grant.expect("the budget grew"));
        waiter.release_floor(minimum_grant);
        resizer.release(lease);
        assert_whole(&shared, 2 * IO, &mut [&mut resizer, &mut waiter]);
    });
}

/// The budget shrinks and grows while credit is released and another core waits for it.
#[test]
fn loom_a_budget_that_goes_down_and_up_loses_nothing() {
    bounded(|| {
        let shared = resizable(2 * IO, 3);
        let mut giver = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let mut resizer = CoreHandle::new(&shared, 2);
        let leases = [giver.admit().unwrap(), giver.admit().unwrap()];
        let minimum_grant = waiter.minimum_grant();
        assert!(waiter.admit_beside().is_none());
        let [first, second] = leases;
        let giving = thread::spawn(move || {
            giver.release(first);
            giver.credit.return_unused();
            giver
        });
        shared.resize(IO.into(), 2);
        shared.resize((2 * IO).into(), 2);
        let mut giver = giving.join().unwrap();
        assert!(waiter.woken.load(Relaxed), "credit is there and nobody woke the waiter");
        let grant = waiter.admit_beside().expect("one of two is free");
        waiter.release_beside(grant);
        waiter.release_floor(minimum_grant);
        giver.release(second);
        assert_whole(&shared, 2 * IO, &mut [&mut giver, &mut waiter, &mut resizer]);
    });
}

/// A strict budget grants nothing outside itself: a core with nothing in flight waits, too. It gets
/// the credit of another core that leaves permanently. That core may come again.
#[test]
fn loom_a_strict_budget_goes_from_a_core_that_leaves_to_one_that_waits() {
    bounded(|| {
        let config = CreditConfig { budget: IO.into(), largest: IO, cores: 2 };
        let shared = SharedCredit::strict(config).unwrap();
        let mut giver = CoreHandle::new(&shared, 0);
        let mut waiter = CoreHandle::new(&shared, 1);
        let lease = giver.admit().unwrap();
        let giving = thread::spawn(move || {
            giver.release(lease);
            drop(giver);
        });
        let at_once = waiter.admit();
        giving.join().unwrap();
        let grant = at_once.or_else(|| {
            assert!(waiter.woken.load(Relaxed), "credit is there and nobody woke the waiter");
            waiter.admit()
        });
        let mut again = CoreHandle::new(&shared, 0);
        assert!(again.admit().is_none(), "beside the budget");
        again.credit.return_unused();
        waiter.release(grant.expect("the credit was given back"));
        waiter.credit.return_unused();
        assert_eq!(shared.unused(), shared.budget());
    });
}
