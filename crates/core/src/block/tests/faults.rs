//! Delayed operations and removal in a device with faults.

use std::cell::Cell;
use std::time::Duration;

use super::*;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1) };
}

fn faulty(plan: FaultPlan) -> (FaultDevice, Arc<fault::FaultControl>) {
    let base = Arc::new(RamDevice::new("ram0", MIB, 512).unwrap());
    FaultDevice::with_clock("bad0", base, plan, || NOW.get())
}

fn poll(queue: &mut dyn BlockQueue) -> Vec<Completed> {
    let mut done = Vec::new();
    queue.poll(&mut done);
    done
}

#[test]
fn a_share_of_operations_stalls_for_its_time() {
    let stall = Duration::from_millis(3);
    let plan = FaultPlan { seed: 5, stalls: 300_000, stall, ..FaultPlan::default() };
    let (device, control) = faulty(plan);
    assert_eq!(device.info().name, "bad0");
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    for token in 0..1000 {
        queue.submit(BlockOp::read(token, 0, pool.lease(512).unwrap())).unwrap();
    }
    let at_once = poll(&mut *queue).len();
    let stalled = control.stalled();
    assert!((250..350).contains(&stalled) && at_once + stalled == 1000, "{stalled} of 1000");
    assert_eq!((queue.in_flight(), queue.next_due()), (stalled, Some(3_000_001)));
    NOW.set(3_000_000);
    assert!(poll(&mut *queue).is_empty());
    NOW.set(3_000_001);
    assert_eq!(poll(&mut *queue).len(), stalled);
    assert_eq!((queue.in_flight(), queue.next_due(), control.stalled()), (0, None, 0));
}

#[test]
fn a_device_that_is_gone_fails_all_it_has_and_comes_back_with_its_data() {
    let plan = FaultPlan { stalls: 1_000_000, stall: Duration::MAX, ..FaultPlan::default() };
    let (device, control) = faulty(FaultPlan::default());
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let write = BlockOp::write(0, 512, filled(&pool, 512, 7), false);
    assert_eq!(run(&mut *queue, write).result, Ok(()));
    // One is held, one stalls, one is completed but not returned yet.
    control.hold();
    queue.submit(BlockOp::read(1, 0, pool.lease(512).unwrap())).unwrap();
    control.set_plan(plan);
    queue.submit(BlockOp::flush(2)).unwrap();
    control.set_plan(FaultPlan::default());
    assert_eq!(control.stalled(), 2);
    assert!(poll(&mut *queue).is_empty());
    assert!(!device.is_gone() && !is_readable(queue.event_fd().unwrap()));
    control.remove();
    assert!(device.is_gone() && is_readable(queue.event_fd().unwrap()));
    queue.submit(BlockOp::deallocate(3, 0, 512)).unwrap();
    assert!(queue.zero_copy_read(0, 512).is_none());
    let done = finish(&mut *queue);
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|completed| completed.result == Err(BlockError::Gone)));
    assert_eq!((control.stalled(), device.open_queue(&pool).unwrap_err()), (0, BlockError::Gone));
    assert!(!is_readable(queue.event_fd().unwrap()));
    control.restore();
    control.release();
    assert!(!device.is_gone());
    for queue in [&mut queue, &mut device.open_queue(&pool).unwrap()] {
        let done = run(&mut **queue, BlockOp::read(4, 512, filled(&pool, 512, 0)));
        assert_eq!(done.result, Ok(()));
        assert!(done.buf.unwrap().as_slice().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn whoever_sleeps_on_a_rejection_is_woken() {
    let (device, control) = faulty(FaultPlan::default());
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    control.reject_next(2);
    let mut op = BlockOp::flush(1);
    for _ in 0..2 {
        op = queue.submit(op).unwrap_err().op;
        assert!(is_readable(queue.event_fd().unwrap()), "it is empty, and still full");
        assert!(poll(&mut *queue).is_empty());
        assert!(!is_readable(queue.event_fd().unwrap()));
    }
    assert_eq!(run(&mut *queue, op).result, Ok(()));
}
