//! io_uring with stuck calls: a read from an empty pipe never completes.

use std::io::Write;
use std::os::fd::AsFd;

use super::super::backend::{FileBackend, FileCall, FileResult};
use super::super::start_kernel_worker;
use super::*;

fn stuck_read(pool: &CorePool, ring: &mut Ring, slot: usize) -> *const u8 {
    let buf = filled(pool, 4096, 0x55);
    let at = buf.as_ptr();
    ring.issue(slot, FileCall::Read { offset: 0, skip: 0, len: 4096 }, Some(buf));
    at
}

#[test]
fn dropping_a_ring_ends_its_calls_before_the_buffers_go_back() {
    let pool = pool();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut ring = Ring::new(reader.try_clone().unwrap().into(), 4, false).unwrap();
    let stuck = [stuck_read(&pool, &mut ring, 0), stuck_read(&pool, &mut ring, 3)];
    ring.submit();
    // This call never reaches the kernel.
    stuck_read(&pool, &mut ring, 1);
    let mut answers = Vec::new();
    ring.reap(&mut answers);
    assert!(answers.is_empty());
    assert_eq!(pool.leased(), 3);
    drop(ring);
    assert_eq!(pool.leased(), 0);
    // The kernel no longer has the memory: data from the pipe goes elsewhere.
    let (mut writer, mut reader) = (writer, reader);
    writer.write_all(&[0xaa; 4096]).unwrap();
    let again: Vec<_> = (0..3).map(|_| pool.lease(4096).unwrap()).collect();
    for buf in &again {
        assert!(buf.as_slice().iter().all(|byte| *byte == 0x55));
    }
    assert!(again.iter().filter(|buf| stuck.contains(&buf.as_ptr())).count() == 2);
    std::io::Read::read_exact(&mut reader, &mut [0; 4096]).unwrap();
}

/// Returns every mapping of this process.
fn mapped() -> Vec<std::ops::Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let ranges = maps.lines().map(|line| line.split(' ').next().unwrap().split_once('-').unwrap());
    ranges.map(|(from, to)| hex(from)..hex(to)).collect()
}

#[test]
fn memory_that_the_kernel_does_not_give_back_is_given_up_for_good() {
    let pool = pool();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut ring = Ring::new(reader.try_clone().unwrap().into(), 4, false).unwrap();
    let stuck = stuck_read(&pool, &mut ring, 0);
    // The read end of a pipe accepts no writes, but this allocates the zeroes.
    ring.issue(1, FileCall::WriteZeroes { offset: 0, len: 4096 }, None);
    ring.submit();
    let mut answers = Vec::new();
    while answers.is_empty() {
        ring.reap(&mut answers);
    }
    assert_eq!((answers[0].slot, answers[0].result), (1, -libc::EBADF));
    let zeroes = ring.zeroes().unwrap();
    ring.sever();
    drop(ring);
    assert_eq!(pool.leased(), 1, "the kernel may still write to it");
    let again: Vec<_> = (0..64).map(|_| pool.lease(4096).unwrap()).collect();
    writer.write_all(&[0xaa; 4096]).unwrap();
    assert!(again.iter().all(|buf| buf.as_ptr() != stuck));
    let is_mapped = mapped().iter().any(|one| one.start <= zeroes.start && zeroes.end <= one.end);
    assert!(is_mapped, "the kernel may still write them to the file");
}

#[test]
fn calls_that_the_kernel_never_takes_are_answered_and_those_it_has_are_awaited() {
    let pool = pool();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut ring = Ring::new(reader.into(), 4, false).unwrap();
    stuck_read(&pool, &mut ring, 0);
    ring.submit();
    ring.sever();
    for slot in [2, 1] {
        stuck_read(&pool, &mut ring, slot);
    }
    ring.submit();
    // From now on every call fails.
    stuck_read(&pool, &mut ring, 3);
    let mut answers: Vec<FileResult> = Vec::new();
    ring.reap(&mut answers);
    let mut told: Vec<_> = answers.iter().map(|answer| (answer.slot, answer.result)).collect();
    told.sort_unstable();
    assert_eq!(told, [(1, -libc::EIO), (2, -libc::EIO), (3, -libc::EIO)]);
    assert!(answers.drain(..).all(|answer| answer.buf.is_some()));
    assert_eq!(pool.leased(), 1);
    writer.write_all(&[0xaa; 100]).unwrap();
    while answers.is_empty() {
        std::thread::yield_now();
        ring.reap(&mut answers);
    }
    assert_eq!((answers[0].slot, answers[0].result), (0, 100));
    answers.clear();
    drop(ring);
    assert_eq!(pool.leased(), 0);
}

#[test]
fn a_panic_ends_calls_before_the_buffers_go_back() {
    let pool = pool();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let mut ring = Ring::new(reader.try_clone().unwrap().into(), 4, false).unwrap();
    let stuck = stuck_read(&pool, &mut ring, 0);
    ring.submit();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut ring = ring;
        let buf = pool.lease(4096).unwrap();
        ring.issue(1, FileCall::Read { offset: 0, skip: 4096, len: 1 }, Some(buf));
    }));
    assert!(unwound.is_err());
    assert_eq!(pool.leased(), 0);
    writer.write_all(&[0xaa; 4096]).unwrap();
    let again: Vec<_> = (0..2).map(|_| pool.lease(4096).unwrap()).collect();
    let same = again.iter().find(|buf| buf.as_ptr() == stuck).unwrap();
    assert!(same.as_slice().iter().all(|byte| *byte == 0x55));
    std::io::Read::read_exact(&mut reader, &mut [0; 4096]).unwrap();
}

#[test]
fn a_sleeper_is_woken_by_a_completion() {
    let pool = pool();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut ring = Ring::new(reader.into(), 4, false).unwrap();
    stuck_read(&pool, &mut ring, 2);
    ring.submit();
    let writing = std::thread::spawn(move || writer.write_all(&[0xaa; 100]).map(|()| writer));
    let mut answers: Vec<FileResult> = Vec::new();
    while answers.is_empty() {
        wait_readable(ring.event_fd().unwrap());
        // Like a poll: entering the kernel writes a completion that is pending for this thread.
        ring.submit();
        ring.reap(&mut answers);
    }
    assert_eq!((answers[0].slot, answers[0].result), (2, 100));
    let buf = answers[0].buf.as_ref().unwrap();
    assert_eq!((buf.as_slice()[99], buf.as_slice()[100]), (0xaa, 0x55));
    drop(writing.join().unwrap().unwrap());
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = ring.event_fd().unwrap();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let readable = poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&now)).unwrap();
    assert_eq!(readable, 0, "nothing more to reap");
}

#[test]
#[should_panic(expected = "past its buffer")]
fn a_call_never_runs_past_its_buffer() {
    let pool = pool();
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut ring = Ring::new(reader.into(), 1, false).unwrap();
    let call = FileCall::Read { offset: 0, skip: 4096, len: 1 };
    ring.issue(0, call, Some(pool.lease(4096).unwrap()));
}

/// Without a worker the kernel cancels blocking calls, and hosts lose writes.
#[test]
fn a_kernel_worker_is_there_before_it_is_needed() {
    let has_one = std::thread::spawn(|| {
        start_kernel_worker().unwrap();
        let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut names = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
        names.any(|found| found.trim() == name)
    });
    assert!(has_one.join().unwrap());
}
