//! The calls of each operation, with a medium that the test controls.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::super::backend::{FileBackend, FileCall, FileResult};
use super::super::queue::{FileQueue, Health, Mode};
use super::*;
use crate::block::{BlockError, DeviceInfo, Geometry};

type Calls = Rc<RefCell<Vec<(usize, FileCall, Option<Buffer>)>>>;

/// A medium that keeps calls until the test completes them.
#[derive(Debug, Default)]
struct Hand {
    calls: Calls,
    answers: Rc<RefCell<Vec<FileResult>>>,
}

impl FileBackend for Hand {
    fn issue(&mut self, slot: usize, call: FileCall, buf: Option<Buffer>) {
        self.calls.borrow_mut().push((slot, call, buf));
    }

    fn submit(&mut self) {}

    fn reap(&mut self, answers: &mut Vec<FileResult>) {
        answers.append(&mut self.answers.borrow_mut());
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Bench {
    queue: FileQueue<Hand>,
    calls: Calls,
    answers: Rc<RefCell<Vec<FileResult>>>,
    health: Arc<Health>,
    pool: CorePool,
}

impl Bench {
    fn new(direct: bool) -> Self {
        Self::with_health(direct, &Arc::default())
    }

    fn with_health(direct: bool, health: &Arc<Health>) -> Self {
        let info = DeviceInfo {
            name: "disk".into(),
            size: 1 << 30,
            block_size: 4096,
            read_only: false,
            volatile_cache: true,
            deallocate: true,
            deallocate_reads_zero: true,
            write_zeroes: true,
            geometry: Geometry::default(),
            medium: None,
        };
        let hand = Hand::default();
        let (calls, answers) = (Rc::clone(&hand.calls), Rc::clone(&hand.answers));
        let mode = Mode { direct, depth: 8, polled: false };
        let queue = FileQueue::new(hand, info, mode, Arc::clone(health));
        Self { queue, calls, answers, health: Arc::clone(health), pool: pool() }
    }

    fn write(&mut self, token: u64, fua: bool) {
        let buf = filled(&self.pool, 8192, 1);
        self.queue.submit(BlockOp::write(token, 8192 * token, buf, fua)).unwrap();
    }

    fn submit(&mut self, op: BlockOp) {
        self.queue.submit(op).unwrap();
    }

    fn calls(&self) -> Vec<FileCall> {
        self.calls.borrow().iter().map(|(_, call, _)| *call).collect()
    }

    /// Completes the oldest call; returns tokens and results of the operations that end.
    fn answer(&mut self, result: i32) -> Vec<(u64, Result<(), BlockError>)> {
        let (slot, _, buf) = self.calls.borrow_mut().remove(0);
        self.answers.borrow_mut().push(FileResult { slot, result, buf });
        let mut done = Vec::new();
        self.queue.poll(&mut done);
        done.into_iter().map(|completed| (completed.token, completed.result)).collect()
    }
}

const EIO: i32 = libc::EIO;

#[test]
fn fua_is_dsync_past_the_page_cache_and_a_sync_through_it() {
    let mut direct = Bench::new(true);
    direct.write(1, true);
    assert_eq!(direct.calls(), [FileCall::Write { offset: 8192, skip: 0, len: 8192, dsync: true }]);
    assert_eq!(direct.answer(8192), [(1, Ok(()))]);

    let mut cached = Bench::new(false);
    cached.write(1, true);
    assert_eq!(
        cached.calls(),
        [FileCall::Write { offset: 8192, skip: 0, len: 8192, dsync: false }]
    );
    assert_eq!(cached.answer(8192), []);
    assert_eq!(cached.calls(), [FileCall::Sync]);
    assert_eq!(cached.answer(0), [(1, Ok(()))]);
}

#[test]
fn short_transfers_go_on_from_a_block_border() {
    let mut bench = Bench::new(true);
    bench.write(1, true);
    assert_eq!(bench.answer(5000), []);
    let rest = FileCall::Write { offset: 8192 + 4096, skip: 4096, len: 4096, dsync: true };
    assert_eq!(bench.calls(), [rest]);
    assert_eq!(bench.answer(4096), [(1, Ok(()))]);
    bench.write(2, false);
    assert_eq!(bench.answer(100), [(2, Err(BlockError::NoSpace))]);
    let buf = bench.pool.lease(4096).unwrap();
    bench.submit(BlockOp::read(3, 0, buf));
    for result in [-libc::EINTR, -libc::EAGAIN] {
        assert_eq!(bench.answer(result), []);
        assert_eq!(bench.calls(), [FileCall::Read { offset: 0, skip: 0, len: 4096 }]);
    }
    assert_eq!(bench.answer(0), [(3, Err(BlockError::Media { errno: libc::ENODATA }))]);
    drop(bench.queue);
    assert_eq!(bench.pool.leased(), 0);
}

#[test]
fn a_file_that_knows_no_dsync_gets_a_sync_instead() {
    let mut bench = Bench::new(true);
    bench.write(1, true);
    assert_eq!(bench.answer(-libc::EOPNOTSUPP), []);
    assert_eq!(bench.calls(), [FileCall::Write { offset: 8192, skip: 0, len: 8192, dsync: false }]);
    assert_eq!(bench.answer(8192), []);
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    bench.write(2, true);
    assert!(matches!(bench.calls()[..], [FileCall::Write { dsync: false, .. }]));
}

#[test]
fn flushes_that_come_during_a_sync_share_the_next_one() {
    let mut bench = Bench::new(true);
    for token in 1..5 {
        bench.submit(BlockOp::flush(token));
    }
    assert_eq!(bench.calls(), [FileCall::Sync], "one at a time");
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    assert_eq!(bench.calls(), [FileCall::Sync]);
    bench.submit(BlockOp::flush(5));
    assert_eq!(bench.answer(-libc::EINTR), []);
    assert_eq!(bench.calls(), [FileCall::Sync]);
    let mut done = bench.answer(0);
    done.sort_by_key(|(token, _)| *token);
    assert_eq!(done, [2, 3, 4, 5].map(|token| (token, Ok(()))));
    assert_eq!((bench.calls().len(), bench.queue.in_flight()), (0, 0));
}

#[test]
fn a_failed_sync_is_reported_by_every_queue_once_to_all_that_waits() {
    let mut bench = Bench::new(true);
    let mut other = Bench::with_health(true, &bench.health);
    for token in [1, 2, 3] {
        bench.submit(BlockOp::flush(token));
    }
    let failed = Err(BlockError::Media { errno: EIO });
    let lost = || Err(BlockError::FlushLost);
    assert_eq!(bench.answer(-EIO), [(1, failed), (2, lost()), (3, lost())]);
    // The queue has reported it: syncs cover later completions.
    bench.submit(BlockOp::flush(4));
    assert_eq!(bench.answer(0), [(4, Ok(()))]);
    // Another queue has not reported it. A FUA write makes only its own data durable.
    other.write(5, false);
    assert_eq!(other.answer(8192), [(5, Ok(()))]);
    other.write(6, true);
    assert_eq!(other.answer(8192), [(6, Ok(()))]);
    other.submit(BlockOp::flush(7));
    other.submit(BlockOp::flush(8));
    assert_eq!(other.answer(0), [(7, lost()), (8, lost())]);
    other.submit(BlockOp::flush(9));
    assert_eq!(other.answer(0), [(9, Ok(()))]);
    // A queue that is opened later has nothing to report.
    let mut later = Bench::with_health(true, &bench.health);
    later.submit(BlockOp::flush(10));
    assert_eq!(later.answer(0), [(10, Ok(()))]);
}

#[test]
fn through_the_page_cache_a_fua_write_waits_for_a_sync_and_shares_its_end() {
    let mut bench = Bench::new(false);
    bench.submit(BlockOp::flush(1));
    bench.write(2, true);
    // The write completes while the sync runs: a failed sync may lose its data.
    let sync = bench.calls.borrow_mut().remove(0);
    assert_eq!(bench.answer(8192), []);
    bench.calls.borrow_mut().push(sync);
    let done = bench.answer(-EIO);
    let wanted = [(1, Err(BlockError::Media { errno: EIO })), (2, Err(BlockError::FlushLost))];
    assert_eq!(done, wanted);
    bench.write(3, true);
    assert_eq!(bench.answer(8192), []);
    assert_eq!(bench.answer(0), [(3, Ok(()))]);
}

#[test]
fn a_write_under_way_amid_a_loss_is_made_once_more() {
    // Part of it may have been written earlier, and lost. Another queue detected the loss.
    let mut other = Bench::new(false);
    for fua in [false, true] {
        let mut bench = Bench::with_health(false, &other.health);
        bench.write(1, fua);
        let whole = bench.calls();
        assert_eq!(bench.answer(4096), []);
        other.submit(BlockOp::flush(2));
        assert_eq!(other.answer(-EIO), [(2, Err(BlockError::Media { errno: EIO }))]);
        assert_eq!(bench.answer(4096), []);
        assert_eq!(bench.calls(), whole);
        if fua {
            assert_eq!(bench.answer(8192), []);
            assert_eq!(bench.calls(), [FileCall::Sync]);
            // The first flush of this queue since the loss.
            assert_eq!(bench.answer(0), [(1, Err(BlockError::FlushLost))]);
        } else {
            assert_eq!(bench.answer(8192), [(1, Ok(()))]);
        }
        bench.submit(BlockOp::write_zeroes(3, 0, 4096, false, false));
        other.submit(BlockOp::flush(2));
        assert_eq!(other.answer(-EIO).len(), 1);
        let zero = bench.calls();
        assert_eq!(bench.answer(0), []);
        assert_eq!(bench.calls(), zero);
        assert_eq!(bench.answer(0), [(3, Ok(()))]);
        // Reads, and writes that report their own loss, are not repeated.
        let buf = bench.pool.lease(4096).unwrap();
        bench.submit(BlockOp::read(4, 0, buf));
        other.submit(BlockOp::flush(2));
        assert_eq!(other.answer(-EIO).len(), 1);
        assert_eq!(bench.answer(4096), [(4, Ok(()))]);
    }
    let mut direct = Bench::with_health(true, &other.health);
    direct.write(5, true);
    other.submit(BlockOp::flush(2));
    assert_eq!(other.answer(-EIO).len(), 1);
    assert_eq!(direct.answer(8192), [(5, Ok(()))]);
}

#[test]
fn a_fua_write_to_a_bad_sector_fails_alone() {
    let mut bench = Bench::new(true);
    bench.write(1, true);
    let call = bench.calls();
    assert_eq!(bench.answer(-EIO), [], "once more: it may have been the sync in it");
    assert_eq!(bench.calls(), call);
    assert_eq!(bench.answer(-EIO), [(1, Err(BlockError::Media { errno: EIO }))]);
    bench.submit(BlockOp::flush(2));
    assert_eq!(bench.answer(0), [(2, Ok(()))]);
    // The same holds for a write without FUA, and for one that fails for another reason,
    // immediately.
    bench.write(3, false);
    assert_eq!(bench.answer(-EIO), [(3, Err(BlockError::Media { errno: EIO }))]);
    bench.write(4, true);
    assert_eq!(bench.answer(-libc::ENOSPC), [(4, Err(BlockError::NoSpace))]);
    bench.submit(BlockOp::flush(5));
    assert_eq!(bench.answer(0), [(5, Ok(()))]);
}

#[test]
fn a_fua_write_that_goes_the_second_time_leaves_others_in_doubt() {
    let mut bench = Bench::new(true);
    let mut other = Bench::with_health(true, &bench.health);
    bench.write(1, true);
    assert_eq!(bench.answer(-EIO), []);
    assert_eq!(bench.answer(8192), [(1, Ok(()))], "it is on the medium");
    for bench in [&mut bench, &mut other] {
        bench.submit(BlockOp::flush(2));
        assert_eq!(bench.answer(0), [(2, Err(BlockError::FlushLost))]);
        bench.submit(BlockOp::flush(3));
        assert_eq!(bench.answer(0), [(3, Ok(()))]);
    }
}

const CANCELLED: Result<(), BlockError> = Err(BlockError::Cancelled);

/// Returns tokens and results of operations that end without a result of a call.
fn poll(bench: &mut Bench) -> Vec<(u64, Result<(), BlockError>)> {
    let mut done = Vec::new();
    bench.queue.poll(&mut done);
    done.into_iter().map(|completed| (completed.token, completed.result)).collect()
}

#[test]
fn of_what_is_cancelled_no_further_call_is_made() {
    let mut bench = Bench::new(true);
    // A call in the kernel is awaited, and its result reported.
    bench.write(1, false);
    bench.queue.cancel(1);
    assert_eq!(poll(&mut bench), []);
    assert_eq!(bench.answer(8192), [(1, Ok(()))]);
    // It makes no further call: not for the rest of a short write, a retry, the next piece of a
    // long range, or a sync.
    for (fua, result) in [(false, 4096), (false, -libc::EAGAIN), (true, -EIO)] {
        bench.write(2, fua);
        bench.queue.cancel(2);
        assert_eq!(bench.answer(result), [(2, CANCELLED)]);
    }
    bench.submit(BlockOp::write_zeroes(3, 0, 1 << 30, true, true));
    assert_eq!(bench.answer(0), []);
    bench.queue.cancel(3);
    assert_eq!(bench.answer(0), [(3, CANCELLED)]);
    bench.submit(BlockOp::write_zeroes(4, 0, 4096, true, true));
    bench.queue.cancel(4);
    assert_eq!(bench.answer(0), [(4, CANCELLED)]);
    assert_eq!((bench.calls().len(), bench.queue.in_flight()), (0, 0));
}

#[test]
fn flushes_that_wait_are_cancelled_at_once() {
    let mut bench = Bench::new(false);
    for token in [1, 2, 3, 2] {
        bench.submit(BlockOp::flush(token));
    }
    bench.queue.cancel(2);
    bench.queue.cancel(1);
    assert_eq!(poll(&mut bench), [(2, CANCELLED), (2, CANCELLED)]);
    // The running sync is retried once, and then not.
    assert_eq!(bench.answer(-libc::EINTR), [(1, CANCELLED)]);
    assert_eq!(bench.answer(0), [(3, Ok(()))]);
    assert_eq!((bench.calls().len(), bench.queue.in_flight()), (0, 0));
}

#[test]
fn long_ranges_are_zeroed_in_calls_that_end_soon() {
    const STEP: u64 = backend::ZERO_CALL;
    let mut bench = Bench::new(true);
    let zero = |offset, len, free| FileCall::Zero { offset, len, free };
    // Split at possible hole boundaries, so that no block at a split stays allocated.
    bench.submit(BlockOp::deallocate(1, 4096, 2 * STEP));
    assert_eq!(bench.calls(), [zero(4096, STEP - 4096, true)]);
    assert_eq!(bench.answer(0), []);
    assert_eq!(bench.calls(), [zero(STEP, STEP, true)]);
    assert_eq!(bench.answer(0), []);
    assert_eq!(bench.calls(), [zero(2 * STEP, 4096, true)]);
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    bench.submit(BlockOp::write_zeroes(2, STEP, STEP + 4096, true, false));
    assert_eq!(bench.calls(), [zero(STEP, STEP, false)]);
    assert_eq!(bench.answer(0), []);
    assert_eq!(bench.answer(0), []);
    assert_eq!(bench.calls(), [FileCall::Sync], "with FUA, once all is zeroed");
    assert_eq!(bench.answer(0), [(2, Ok(()))]);
}

#[test]
fn zeroing_falls_back_to_what_the_file_knows() {
    let zero = |free| FileCall::Zero { offset: 4096, len: 1 << 20, free };
    let mut bench = Bench::new(true);
    let op = |fua, deallocate| BlockOp::write_zeroes(1, 4096, 1 << 20, fua, deallocate);
    bench.submit(op(false, false));
    assert_eq!(bench.calls(), [zero(false)]);
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    bench.submit(op(true, true));
    assert_eq!(bench.calls(), [zero(true)]);
    assert_eq!(bench.answer(-libc::EOPNOTSUPP), []);
    assert_eq!(bench.calls(), [zero(false)]);
    assert_eq!(bench.answer(-libc::EOPNOTSUPP), []);
    for at in 0..4 {
        let offset = 4096 + at * (256 << 10);
        assert_eq!(bench.calls(), [FileCall::WriteZeroes { offset, len: 256 << 10 }]);
        assert_eq!(bench.answer(256 << 10), []);
    }
    assert_eq!(bench.calls(), [FileCall::Sync], "with FUA");
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    // A method that the file does not support is not tried again.
    bench.submit(op(false, true));
    assert_eq!(bench.calls(), [FileCall::WriteZeroes { offset: 4096, len: 256 << 10 }]);
    assert_eq!(bench.answer(0), [(1, Err(BlockError::NoSpace))]);
    // A deallocation is advisory.
    bench.submit(BlockOp::deallocate(2, 4096, 1 << 20));
    assert_eq!(bench.calls(), [zero(true)]);
    assert_eq!(bench.answer(-libc::EOPNOTSUPP), [(2, Ok(()))]);
    bench.submit(BlockOp::deallocate(3, 4096, 1 << 20));
    assert_eq!(bench.answer(-EIO), [(3, Err(BlockError::Media { errno: EIO }))]);
}

#[test]
fn nothing_to_do_is_done() {
    let mut bench = Bench::new(true);
    bench.submit(BlockOp::write_zeroes(1, 0, 0, true, true));
    bench.submit(BlockOp::deallocate(2, 0, 0));
    assert_eq!((bench.calls().len(), bench.queue.in_flight()), (0, 2));
    let mut done = Vec::new();
    bench.queue.poll(&mut done);
    assert!(done.len() == 2 && done.iter().all(|completed| completed.result == Ok(())));
    assert_eq!(bench.queue.in_flight(), 0);
}

#[test]
fn system_errors_have_names() {
    let names = [
        (libc::ENOSPC, BlockError::NoSpace),
        (libc::EFBIG, BlockError::NoSpace),
        (libc::ENODEV, BlockError::Gone),
        (libc::EIO, BlockError::Media { errno: libc::EIO }),
        (libc::ENOMEM, BlockError::NoMemory),
        (libc::EOPNOTSUPP, BlockError::Unsupported),
        (libc::EROFS, BlockError::ReadOnly),
        (libc::EINVAL, BlockError::Io(libc::EINVAL)),
    ];
    for (errno, error) in names {
        assert_eq!(BlockError::from_errno(errno), error);
        let mut bench = Bench::new(true);
        bench.write(1, false);
        assert_eq!(bench.answer(-errno), [(1, Err(error))]);
    }
}

/// io_uring cancels a blocking call if it cannot start a thread for it: the call can be retried,
/// and nothing is lost.
#[test]
fn a_call_that_the_kernel_has_no_thread_for_can_be_tried_again() {
    let mut bench = Bench::new(true);
    bench.write(1, false);
    assert_eq!(bench.answer(-libc::ECANCELED), [(1, Err(BlockError::NoThread))]);
    bench.submit(BlockOp::flush(2));
    assert_eq!(bench.answer(-libc::ECANCELED), [(2, Err(BlockError::NoThread))]);
    bench.submit(BlockOp::flush(3));
    assert_eq!(bench.answer(0), [(3, Ok(()))]);
}
