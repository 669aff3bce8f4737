//! Which calls an operation makes, with a medium that is played by hand.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::super::medium::{Answer, Call, Medium};
use super::super::queue::{FileQueue, Health, Mode};
use super::*;
use crate::block::{BlockError, DeviceInfo};

type Calls = Rc<RefCell<Vec<(usize, Call, Option<Buffer>)>>>;

/// Calls lie here until the test answers them.
#[derive(Debug, Default)]
struct Hand {
    calls: Calls,
    answers: Rc<RefCell<Vec<Answer>>>,
}

impl Medium for Hand {
    fn issue(&mut self, slot: usize, call: Call, buf: Option<Buffer>) {
        self.calls.borrow_mut().push((slot, call, buf));
    }

    fn submit(&mut self) {}

    fn reap(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.answers.borrow_mut());
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Bench {
    queue: FileQueue<Hand>,
    calls: Calls,
    answers: Rc<RefCell<Vec<Answer>>>,
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

    fn calls(&self) -> Vec<Call> {
        self.calls.borrow().iter().map(|(_, call, _)| *call).collect()
    }

    /// Answers the oldest call; tokens and results of what that completes.
    fn answer(&mut self, result: i32) -> Vec<(u64, Result<(), BlockError>)> {
        let (slot, _, buf) = self.calls.borrow_mut().remove(0);
        self.answers.borrow_mut().push(Answer { slot, result, buf });
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
    assert_eq!(direct.calls(), [Call::Write { offset: 8192, skip: 0, len: 8192, dsync: true }]);
    assert_eq!(direct.answer(8192), [(1, Ok(()))]);

    let mut cached = Bench::new(false);
    cached.write(1, true);
    assert_eq!(cached.calls(), [Call::Write { offset: 8192, skip: 0, len: 8192, dsync: false }]);
    assert_eq!(cached.answer(8192), []);
    assert_eq!(cached.calls(), [Call::Sync]);
    assert_eq!(cached.answer(0), [(1, Ok(()))]);
}

#[test]
fn short_transfers_go_on_from_a_block_border() {
    let mut bench = Bench::new(true);
    bench.write(1, true);
    assert_eq!(bench.answer(5000), []);
    let rest = Call::Write { offset: 8192 + 4096, skip: 4096, len: 4096, dsync: true };
    assert_eq!(bench.calls(), [rest]);
    assert_eq!(bench.answer(4096), [(1, Ok(()))]);
    bench.write(2, false);
    assert_eq!(bench.answer(100), [(2, Err(BlockError::NoSpace))]);
    let buf = bench.pool.lease(4096).unwrap();
    bench.submit(BlockOp::read(3, 0, buf));
    for result in [-libc::EINTR, -libc::EAGAIN] {
        assert_eq!(bench.answer(result), []);
        assert_eq!(bench.calls(), [Call::Read { offset: 0, skip: 0, len: 4096 }]);
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
    assert_eq!(bench.calls(), [Call::Write { offset: 8192, skip: 0, len: 8192, dsync: false }]);
    assert_eq!(bench.answer(8192), []);
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    bench.write(2, true);
    assert!(matches!(bench.calls()[..], [Call::Write { dsync: false, .. }]));
}

#[test]
fn flushes_that_come_during_a_sync_share_the_next_one() {
    let mut bench = Bench::new(true);
    for token in 1..5 {
        bench.submit(BlockOp::flush(token));
    }
    assert_eq!(bench.calls(), [Call::Sync], "one at a time");
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    assert_eq!(bench.calls(), [Call::Sync]);
    bench.submit(BlockOp::flush(5));
    assert_eq!(bench.answer(-libc::EINTR), []);
    assert_eq!(bench.calls(), [Call::Sync]);
    let mut done = bench.answer(0);
    done.sort_by_key(|(token, _)| *token);
    assert_eq!(done, [2, 3, 4, 5].map(|token| (token, Ok(()))));
    assert_eq!((bench.calls().len(), bench.queue.in_flight()), (0, 0));
}

#[test]
fn a_lost_sync_fails_every_later_flush_of_every_queue() {
    let mut bench = Bench::new(true);
    bench.submit(BlockOp::flush(1));
    bench.submit(BlockOp::flush(2));
    assert_eq!(bench.answer(-EIO), [(1, Err(BlockError::Media { errno: EIO }))]);
    assert_eq!(bench.answer(0), [(2, Err(BlockError::FlushLost))]);
    let mut other = Bench::with_health(true, &bench.health);
    other.submit(BlockOp::flush(3));
    assert_eq!(other.answer(0), [(3, Err(BlockError::FlushLost))]);
    other.write(4, true);
    assert_eq!(other.answer(8192), [(4, Err(BlockError::FlushLost))]);
    other.write(5, false);
    assert_eq!(other.answer(8192), [(5, Ok(()))], "a plain write promises nothing");
}

#[test]
fn a_media_error_of_a_dsync_write_counts_as_a_lost_sync() {
    let mut bench = Bench::new(true);
    bench.write(1, true);
    bench.submit(BlockOp::flush(2));
    assert_eq!(bench.answer(-EIO), [(1, Err(BlockError::Media { errno: EIO }))]);
    assert_eq!(bench.answer(0), [(2, Err(BlockError::FlushLost))]);
    let mut full = Bench::new(true);
    full.write(1, true);
    full.write(2, false);
    assert_eq!(full.answer(-libc::ENOSPC), [(1, Err(BlockError::NoSpace))]);
    assert_eq!(full.answer(-EIO), [(2, Err(BlockError::Media { errno: EIO }))]);
    full.submit(BlockOp::flush(3));
    assert_eq!(full.answer(0), [(3, Ok(()))]);
}

#[test]
fn zeroing_falls_back_to_what_the_file_knows() {
    let zero = |free| Call::Zero { offset: 4096, len: 1 << 20, free };
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
        assert_eq!(bench.calls(), [Call::WriteZeroes { offset, len: 256 << 10 }]);
        assert_eq!(bench.answer(256 << 10), []);
    }
    assert_eq!(bench.calls(), [Call::Sync], "with FUA");
    assert_eq!(bench.answer(0), [(1, Ok(()))]);
    // What the file does not know is not tried again.
    bench.submit(op(false, true));
    assert_eq!(bench.calls(), [Call::WriteZeroes { offset: 4096, len: 256 << 10 }]);
    assert_eq!(bench.answer(0), [(1, Err(BlockError::NoSpace))]);
    // A deallocation is a wish.
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
        (libc::ENODEV, BlockError::Gone),
        (libc::EIO, BlockError::Media { errno: libc::EIO }),
        (libc::ENOMEM, BlockError::NoMemory),
        (libc::EOPNOTSUPP, BlockError::Unsupported),
        (libc::EROFS, BlockError::ReadOnly),
        (libc::ECANCELED, BlockError::Cancelled),
        (libc::EINVAL, BlockError::Io(libc::EINVAL)),
    ];
    for (errno, error) in names {
        assert_eq!(BlockError::from_errno(errno), error);
        let mut bench = Bench::new(true);
        bench.write(1, false);
        assert_eq!(bench.answer(-errno), [(1, Err(error))]);
    }
}
