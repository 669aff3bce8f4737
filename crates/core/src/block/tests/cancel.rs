//! Cancelled operations in stacked devices.

use std::cell::Cell;
use std::time::Duration;

use super::super::fault::FaultControl;
use super::*;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1) };
}

const CANCELLED: Result<(), BlockError> = Err(BlockError::Cancelled);

/// Returns a memory device that holds all operations, and a view of the memory itself.
fn held() -> (Arc<dyn BlockDevice>, Arc<FaultControl>, Arc<dyn BlockDevice>) {
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDevice::new("ram0", MIB, 512).unwrap());
    let (fault, control) = FaultDevice::new(Arc::clone(&ram), FaultPlan::default());
    control.hold();
    (Arc::new(fault), control, ram)
}

fn is_zero(device: &dyn BlockDevice, pool: &CorePool) -> bool {
    let mut queue = device.open_queue(pool).unwrap();
    let len = usize::try_from(device.info().size).unwrap();
    let done = run(&mut *queue, BlockOp::read(1, 0, pool.lease(len).unwrap()));
    assert_eq!(done.result, Ok(()));
    done.buf.unwrap().as_slice().iter().all(|byte| *byte == 0)
}

fn poll(queue: &mut dyn BlockQueue) -> Vec<Completed> {
    let mut done = Vec::new();
    queue.poll(&mut done);
    done
}

#[test]
fn a_stalled_write_whose_requester_is_gone_never_reaches_the_medium() {
    type Wrap = fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;
    let wrap: [Wrap; 4] = [
        |base| base,
        |base| Arc::new(SplitDevice::new("part", base, 512, None).unwrap()),
        |base| Arc::new(StripeDevice::new("stripe", vec![base], 4096).unwrap()),
        |base| {
            let latency = Latency { write: Duration::from_secs(1), ..Latency::default() };
            Arc::new(DelayDevice::new("slow", base, latency, || NOW.get()))
        },
    ];
    for wrap in wrap {
        let (base, control, ram) = held();
        let device = wrap(base);
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        // Several operations of one request, and one of another.
        for at in [0, 64 << 10] {
            queue.submit(BlockOp::write(7, at, filled(&pool, 4096, 7), false)).unwrap();
        }
        queue.submit(BlockOp::flush(8)).unwrap();
        assert!(poll(&mut *queue).is_empty());
        assert_eq!(control.stalled(), 3, "{device:?}");
        queue.cancel(7);
        assert_eq!(control.stalled(), 1, "{device:?}");
        control.release();
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(&mut done);
            NOW.set(queue.next_due().unwrap_or(0).max(NOW.get()));
        }
        done.sort_by_key(|done| done.token);
        let results: Vec<_> = done.iter().map(|done| (done.token, done.result.clone())).collect();
        assert_eq!(results, [(7, CANCELLED), (7, CANCELLED), (8, Ok(()))], "{device:?}");
        assert!(done[0].buf.is_some() && done[1].buf.is_some());
        assert!(is_zero(&*ram, &pool), "{device:?}");
    }
}

#[test]
fn every_part_of_what_a_stripe_spread_is_cancelled() {
    let (one, first, ram) = held();
    let (two, second, other) = held();
    let stripe = StripeDevice::new("stripe", vec![one, two], 4096).unwrap();
    let pool = pool();
    let mut queue = stripe.open_queue(&pool).unwrap();
    queue.submit(BlockOp::write(7, 0, filled(&pool, 64 << 10, 7), false)).unwrap();
    assert_eq!((first.stalled(), second.stalled()), (8, 8));
    // One member is full: its part waits in the stripe.
    second.reject_next(1);
    queue.submit(BlockOp::write(8, 0, filled(&pool, 8192, 8), false)).unwrap();
    assert_eq!((first.stalled(), second.stalled()), (9, 8));
    queue.cancel(8);
    assert_eq!((first.stalled(), second.stalled()), (8, 8));
    let done = poll(&mut *queue);
    assert_eq!((done.len(), done[0].token, &done[0].result), (1, 8, &CANCELLED));
    assert_eq!(done[0].buf.as_ref().unwrap().len(), 8192, "made whole again");
    // A completed part does not complete the others.
    first.release();
    assert!(poll(&mut *queue).is_empty());
    queue.cancel(7);
    second.release();
    let done = finish(&mut *queue);
    assert_eq!((done.len(), done[0].token, &done[0].result), (1, 7, &CANCELLED));
    assert!(!is_zero(&*ram, &pool), "it was on the medium before");
    assert!(is_zero(&*other, &pool));
}

#[test]
fn a_token_that_looks_like_a_part_of_a_stripe_is_cancelled_too() {
    let (one, control, ram) = held();
    let inner = StripeDevice::new("inner", vec![one], 4096).unwrap();
    let outer = StripeDevice::new("outer", vec![Arc::new(inner)], 4096).unwrap();
    let pool = pool();
    let mut queue = outer.open_queue(&pool).unwrap();
    // Its parts carry the outer stripe's tokens, which the inner one replaces by its own.
    queue.submit(BlockOp::write(7, 0, filled(&pool, 16 << 10, 7), false)).unwrap();
    assert_eq!(control.stalled(), 4);
    queue.cancel(7);
    control.release();
    let done = finish(&mut *queue);
    assert_eq!((done.len(), done[0].token, &done[0].result), (1, 7, &CANCELLED));
    assert!(is_zero(&*ram, &pool));
}

#[test]
fn zeroing_of_memory_ends_with_the_step_that_was_made() {
    let device = RamDevice::new("ram0", 64 * MIB, 512).unwrap();
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let last = 64 * MIB - 512;
    for at in [0, last] {
        let write = BlockOp::write(1, at, filled(&pool, 512, 7), false);
        assert_eq!(run(&mut *queue, write).result, Ok(()));
    }
    queue.submit(BlockOp::deallocate(7, 0, 64 * MIB)).unwrap();
    queue.submit(BlockOp::write_zeroes(7, last, 512, true, false)).unwrap();
    queue.submit(BlockOp::write_zeroes(8, MIB, 512, true, false)).unwrap();
    assert!(poll(&mut *queue).is_empty());
    queue.cancel(7);
    let done = finish(&mut *queue);
    let results: Vec<_> = done.into_iter().map(|done| (done.token, done.result)).collect();
    assert_eq!(results, [(7, CANCELLED), (7, CANCELLED), (8, Ok(()))]);
    let mut byte = |at| {
        let done = run(&mut *queue, BlockOp::read(2, at, filled(&pool, 512, 9)));
        done.buf.unwrap().as_slice()[0]
    };
    assert_eq!((byte(0), byte(last)), (0, 7));
}

#[test]
fn how_long_the_end_of_what_was_cancelled_takes_is_the_sum_of_the_stack() {
    let ram = || -> Arc<dyn BlockDevice> { Arc::new(RamDevice::new("ram0", MIB, 512).unwrap()) };
    assert_eq!(ram().quiesce_bound(), Some(Duration::ZERO));
    let null = NullDevice::new("null0", MIB, 512).unwrap();
    assert_eq!(null.quiesce_bound(), Some(Duration::ZERO));
    let latency = |write, write_jitter| Latency {
        read: Duration::from_millis(30),
        write: Duration::from_millis(write),
        write_jitter: Duration::from_millis(write_jitter),
        ..Latency::default()
    };
    let slow = |base, latency| -> Arc<dyn BlockDevice> {
        Arc::new(DelayDevice::new("slow", base, latency, || NOW.get()))
    };
    let millis = |device: &dyn BlockDevice| device.quiesce_bound().map(|bound| bound.as_millis());
    assert_eq!(millis(&*slow(ram(), latency(20, 5))), Some(30));
    let one = slow(ram(), latency(20, 15));
    assert_eq!(millis(&*one), Some(35));
    let two = slow(slow(ram(), latency(0, 0)), latency(60, 0));
    assert_eq!(millis(&*two), Some(90));
    let (fault, _) = FaultDevice::new(Arc::clone(&one), FaultPlan::default());
    assert_eq!(millis(&fault), Some(35));
    assert_eq!(millis(&SplitDevice::new("part", Arc::clone(&one), 0, None).unwrap()), Some(35));
    let stripe = |members| StripeDevice::new("stripe", members, 4096).unwrap();
    assert_eq!(millis(&stripe(vec![Arc::clone(&one), two])), Some(90));
    let folder = tempfile::tempdir().unwrap();
    let config =
        FileConfig { size: Some(MIB), ..FileConfig::new("disk", folder.path().join("disk"), 512) };
    let file: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&config).unwrap());
    assert_eq!(file.quiesce_bound(), None, "the kernel says when");
    assert_eq!(millis(&stripe(vec![one, Arc::clone(&file)])), None);
    assert_eq!(millis(&*slow(file, latency(1, 1))), None);
}
