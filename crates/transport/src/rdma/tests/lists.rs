//! Commands with several descriptors, and faults in them.

use std::rc::Rc;

use super::memory::Memory;
use super::*;

/// Returns a command with a list of descriptors of `lens` bytes in one memory, with gaps between
/// them.
pub(super) fn listed(memory: &Memory, lens: &[u32], invalidate: bool) -> (Sgl, Vec<u8>) {
    let mut behind = Vec::new();
    let mut at = 0;
    for len in lens {
        behind.extend(memory.sgl(at, *len, invalidate).encode().as_bytes());
        at += len + 100;
    }
    let length = u32::try_from(behind.len()).unwrap();
    (Sgl::LastSegment { address: 0, length, offset: true }, behind)
}

/// Returns the content of the runs of [`listed`].
pub(super) fn gathered(memory: &Memory, lens: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    for len in lens {
        bytes.extend(memory.read(at, *len as usize));
        at += *len as usize + 100;
    }
    bytes
}

const LENS: [u32; 16] = [512, 1, 4096, 0, 7, 3000, 512, 512, 100, 1, 1, 1, 9000, 20, 2, 4000];

#[test]
fn sixteen_descriptors_are_written_and_read() {
    // With messages of any length, and with short ones, on small send queues.
    for (message, depth) in [(1 << 20, 4096), (1000, 4096), (333, 5), (64, 2)] {
        let limits =
            DeviceLimits { message, queue_depth: depth.max(5), ..DeviceOptions::default().limits };
        let mut world = Setup { limits, ..Setup::default() }.world();
        let (at, mut host) = world.connect(4);
        let memory = Memory::new(&host.device, 64_000);
        let total: u32 = LENS.iter().sum();
        let (sgl, behind) = listed(&memory, &LENS, true);
        host.send(Sqe::new(2, 1, 1).with_sgl(sgl), &behind);
        world.settle(&mut [&mut host]);
        let (sqe, data) = world.queues[at].commands.pop().unwrap();
        assert!(data.is_none());
        assert_eq!(sqe.dptr.parse(), Sgl::Transport { length: total });
        let bytes = pattern(3, total as usize);
        let data = world.buffer(&bytes);
        let token = world.queues[at].answer(&sqe, Some(data));
        for _ in 0..40 {
            world.settle(&mut [&mut host]);
        }
        assert_eq!(host.responses(), [(1, Some(memory.rkey()))]);
        assert_eq!(gathered(&memory, &LENS), bytes);
        assert_eq!(world.queues[at].sent, [token]);

        drop(memory);
        let memory = Memory::with(&host.device, &pattern(9, 64_000));
        let (sgl, behind) = listed(&memory, &LENS, false);
        host.send(Sqe::new(1, 2, 1).with_sgl(sgl), &behind);
        world.settle(&mut [&mut host]);
        let (sqe, _) = world.queues[at].commands.pop().unwrap();
        let buffer = world.pool.lease(total as usize).unwrap();
        let token = world.queues[at].pull(&sqe, buffer);
        for _ in 0..40 {
            world.settle(&mut [&mut host]);
        }
        assert_eq!(world.queues[at].pulled, [(token, Ok(()), gathered(&memory, &LENS))]);
        world.queues[at].answer(&sqe, None);
        world.settle(&mut [&mut host]);
        assert_eq!(host.responses(), [(2, None)]);
        drop(memory);
        world.check_empty(vec![host]);
    }
}

#[test]
fn zeroes_of_a_zero_copy_read_are_written_from_one_window_and_come_back() {
    // Runs that begin and end anywhere in the window, and messages longer and shorter than it.
    let lens = [1_u32, 70_000, 65_536, 3, 131_072, 4096];
    let total: u32 = lens.iter().sum();
    for (message, depth) in [(1 << 20, 4096), (100_000, 5), (4000, 64)] {
        let limits =
            DeviceLimits { message, queue_depth: depth, ..DeviceOptions::default().limits };
        let mut world = Setup { limits, ..Setup::default() }.world();
        let (at, mut host) = world.connect(4);
        let memory = Memory::with(&host.device, &pattern(5, 300_000));
        let (sgl, behind) = listed(&memory, &lens, true);
        host.send(Sqe::new(2, 1, 1).with_sgl(sgl), &behind);
        world.settle(&mut [&mut host]);
        let (sqe, _) = world.queues[at].commands.pop().unwrap();
        let source = ZeroCopySource::new(&ZeroCopyRegion::zeroes().unwrap());
        let data = source.data(total as usize).unwrap();
        assert!(world.queues[at].queue.as_ref().unwrap().supports_zero_copy(&data));
        let token = world.queues[at].answer_with(&sqe, Some(Payload::ZeroCopy(data)));
        assert_eq!(Rc::strong_count(&source), 2);
        for _ in 0..40 {
            world.settle(&mut [&mut host]);
        }
        assert_eq!(host.responses(), [(1, Some(memory.rkey()))]);
        assert_eq!(gathered(&memory, &lens), vec![0; total as usize]);
        assert_eq!((&world.queues[at].sent[..], Rc::strong_count(&source)), (&[token][..], 1));
        drop(memory);
        world.check_empty(vec![host]);
    }
}

#[test]
fn a_bad_list_fails_its_command_and_nothing_else() {
    let mut world = world();
    let (at, mut host) = world.connect(8);
    let memory = Memory::new(&host.device, 4096);
    let one = memory.sgl(0, 512, false).encode();
    let last = |address, length| Sgl::LastSegment { address, length, offset: true };
    let cases = [
        (last(0, 32), FabricError::SglOffset),
        (last(8, 16), FabricError::SglOffset),
        (last(0, 15), FabricError::SglCount),
        (Sgl::Transport { length: 512 }, FabricError::SglType),
        (Sgl::Segment { address: 0, length: 16, offset: false }, FabricError::SglType),
    ];
    for (cid, (sgl, error)) in (0..).zip(cases) {
        host.send(Sqe::new(2, cid, 1).with_sgl(sgl), one.as_bytes());
        world.settle(&mut [&mut host]);
        let (sqe, got) = world.queues[at].failed.pop().unwrap();
        assert_eq!((sqe.cid.get(), got), (cid, error));
        assert_eq!(sqe.dptr.parse(), Sgl::Transport { length: u32::MAX });
        world.queues[at].answer(&sqe, None);
        world.settle(&mut [&mut host]);
        assert_eq!(host.responses(), [(cid, None)]);
    }
    assert_eq!(world.queues[at].closed, None);
    drop(memory);
    world.check_empty(vec![host]);
}

#[test]
fn capsules_of_a_wrong_length_end_the_queue() {
    for (qid, len) in [(1, 0), (1, 1), (1, 63), (0, 63), (0, 8257)] {
        let mut world = world();
        let mut host = world.ask(qid, 4);
        let at = world.take().unwrap();
        let (other, mut bystander) = world.connect(4);
        world.settle(&mut [&mut host, &mut bystander]);
        host.send_bytes(&vec![0; len]);
        world.settle(&mut [&mut host, &mut bystander]);
        let closed = &world.queues[at].closed;
        assert!(matches!(closed, Some(CloseReason::Protocol(_))), "{len}: {closed:?}");
        bystander.send(Sqe::new(0, 1, 1), &[]);
        world.settle(&mut [&mut bystander]);
        assert_eq!(world.queues[other].commands.len(), 1);
        world.check_empty(vec![host, bystander]);
    }
}

#[test]
fn more_commands_than_entries_end_the_queue() {
    let mut world = world();
    let (at, mut host) = world.connect(4);
    (0..5).for_each(|cid| assert!(host.send(Sqe::new(0, cid, 1), &[])));
    world.settle(&mut [&mut host]);
    assert_eq!(world.queues[at].commands.len(), 4);
    assert!(matches!(world.queues[at].closed, Some(CloseReason::Protocol(_))));
    world.check_empty(vec![host]);
}
