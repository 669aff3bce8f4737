//! Linux AIO: on a file, and on a kernel that takes calls in parts or refuses them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use vmm_sys_util::aio::{IoControlBlock, IoEvent};

use super::super::aio::{Aio, AioCalls};
use super::super::backend::{FileBackend, FileCall, FileResult};
use super::*;

/// A kernel whose replies to submissions follow a script.
#[derive(Debug, Default, Clone)]
struct Script(Rc<RefCell<ScriptState>>);

#[derive(Debug, Default)]
struct ScriptState {
    /// Blocks that each submission takes, or its error; afterwards all are taken.
    replies: VecDeque<Result<usize, i32>>,
    /// Tokens of taken calls without an event.
    taken: Vec<u64>,
    /// Events to reap: tokens.
    events: VecDeque<u64>,
    submissions: usize,
}

impl Script {
    fn reply(&self, replies: &[Result<usize, i32>]) {
        self.0.borrow_mut().replies.extend(replies);
    }

    /// Completes all taken calls.
    fn complete(&self) {
        let mut state = self.0.borrow_mut();
        let taken = std::mem::take(&mut state.taken);
        state.events.extend(taken);
    }
}

impl AioCalls for Script {
    fn submit(&self, blocks: &[&mut IoControlBlock]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        state.submissions += 1;
        let reply = state.replies.pop_front().unwrap_or(Ok(blocks.len()));
        let count = reply.map_err(io::Error::from_raw_os_error)?.min(blocks.len());
        state.taken.extend(blocks[..count].iter().map(|block| block.aio_data));
        Ok(count)
    }

    fn events(&self, least: usize, events: &mut [IoEvent]) -> io::Result<usize> {
        if least > 0 {
            self.complete();
        }
        let mut state = self.0.borrow_mut();
        let count = state.events.len().min(events.len());
        for event in &mut events[..count] {
            *event = IoEvent { data: state.events.pop_front().unwrap(), res: 512, ..*event };
        }
        Ok(count)
    }
}

fn scripted(slots: usize) -> (Script, Aio<Script>, CorePool) {
    let script = Script::default();
    let file = std::fs::File::open("/dev/null").unwrap();
    let aio = Aio::with(script.clone(), file.into(), slots).unwrap();
    (script, aio, pool())
}

fn read(aio: &mut Aio<Script>, pool: &CorePool, slots: std::ops::Range<usize>) {
    for slot in slots {
        let call = FileCall::Read { offset: 0, skip: 0, len: 512 };
        aio.issue(slot, call, Some(pool.lease(512).unwrap()));
    }
}

/// Reaps once; returns slots and results in order of slots.
fn reaped(aio: &mut Aio<Script>) -> Vec<(usize, i32)> {
    let mut answers: Vec<FileResult> = Vec::new();
    aio.reap(&mut answers);
    assert!(answers.iter().all(|answer| answer.buf.is_some()));
    let mut all: Vec<_> = answers.iter().map(|answer| (answer.slot, answer.result)).collect();
    all.sort_unstable();
    all
}

fn is_readable(aio: &Aio<Script>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&aio.event_fd().unwrap(), PollFlags::IN)], Some(&now)).unwrap() == 1
}

#[test]
fn a_submission_that_is_taken_in_parts_loses_and_doubles_nothing() {
    let (script, mut aio, pool) = scripted(8);
    script.reply(&[Ok(3), Ok(1)]);
    read(&mut aio, &pool, 0..8);
    aio.submit();
    assert_eq!(script.0.borrow().taken, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(script.0.borrow().submissions, 3);
    assert_eq!(reaped(&mut aio), []);
    script.complete();
    assert_eq!(reaped(&mut aio), (0..8).map(|slot| (slot, 512)).collect::<Vec<_>>());
    assert_eq!(reaped(&mut aio), []);
}

#[test]
fn a_full_kernel_gets_the_rest_after_events_were_reaped() {
    let (script, mut aio, pool) = scripted(4);
    script.reply(&[Ok(2), Err(libc::EAGAIN)]);
    read(&mut aio, &pool, 0..4);
    aio.submit();
    assert_eq!(script.0.borrow().taken, [0, 1]);
    assert!(!is_readable(&aio), "an event of the kernel wakes the caller");
    script.complete();
    assert_eq!(reaped(&mut aio), [(0, 512), (1, 512)]);
    assert!(is_readable(&aio), "no event of the kernel can wake the caller");
    aio.submit();
    assert_eq!(script.0.borrow().taken, [2, 3]);
    script.complete();
    assert_eq!(reaped(&mut aio), [(2, 512), (3, 512)]);
}

#[test]
fn a_kernel_that_takes_nothing_does_not_let_the_caller_sleep() {
    let (script, mut aio, pool) = scripted(2);
    script.reply(&[Err(libc::EAGAIN)]);
    read(&mut aio, &pool, 0..1);
    aio.submit();
    assert!(is_readable(&aio));
}

#[test]
fn a_refused_call_fails_alone() {
    let (script, mut aio, pool) = scripted(3);
    script.reply(&[Ok(1), Err(libc::EINVAL)]);
    read(&mut aio, &pool, 0..3);
    aio.submit();
    assert_eq!(script.0.borrow().taken, [0, 2]);
    assert_eq!(reaped(&mut aio), [(1, -libc::EINVAL)]);
    script.complete();
    assert_eq!(reaped(&mut aio), [(0, 512), (2, 512)]);
}

#[test]
fn more_events_than_one_call_takes_are_reaped_together() {
    let (script, mut aio, pool) = scripted(600);
    read(&mut aio, &pool, 0..600);
    aio.submit();
    script.complete();
    assert_eq!(reaped(&mut aio).len(), 600);
}

#[test]
fn dropping_a_context_awaits_its_calls() {
    let (script, mut aio, pool) = scripted(4);
    script.reply(&[Ok(2), Err(libc::EAGAIN)]);
    read(&mut aio, &pool, 0..4);
    aio.submit();
    drop(aio);
    assert!(script.0.borrow().taken.is_empty() && script.0.borrow().events.is_empty());
    assert_eq!(pool.leased(), 0);
}

#[test]
fn a_file_is_read_by_the_kernel_and_never_written() {
    for folder in folders() {
        let path = folder.path().join("disk");
        let blocks: Vec<u8> = (0..64u8).flat_map(|block| [block; 4096]).collect();
        std::fs::write(&path, &blocks).unwrap();
        let config = FileConfig { queue_depth: 16, ..FileConfig::new("disk", &path, 4096) };
        let device = FileDevice::open_aio(&config).unwrap();
        let pool = pool();
        let mut queue = device.open_queue(&pool).unwrap();
        for round in 0..8u64 {
            for at in 0..16 {
                let block = (round * 16 + at * 5) % 64;
                let op = BlockOp::read(block, block * 4096, pool.lease(4096).unwrap());
                queue.submit(op).unwrap();
            }
            let done = finish(&mut *queue);
            assert_eq!(done.len(), 16);
            for completed in done {
                assert_eq!(completed.result, Ok(()));
                let data = completed.buf.unwrap();
                assert!(data.as_slice().iter().all(|byte| u64::from(*byte) == completed.token));
            }
        }
        let write = BlockOp::write(1, 0, filled(&pool, 4096, 0xaa), false);
        assert_eq!(run(&mut *queue, write).result, Err(BlockError::ReadOnly));
        assert_eq!(run(&mut *queue, BlockOp::flush(2)).result, Ok(()));
        // The file ends before the read: the rest is an error.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let beyond = BlockOp::read(3, 8192, pool.lease(4096).unwrap());
        assert!(matches!(run(&mut *queue, beyond).result, Err(BlockError::Media { .. })));
    }
}
