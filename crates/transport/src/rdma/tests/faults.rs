//! Faults at every possible point, one at a time, with all kinds of operations in flight.

use nvmeof_loopback_verbs::{Costs, Faults, Side};
use nvmeof_verbs::Endpoint;

use super::lists::{gathered, listed};
use super::memory::Memory;
use super::*;

const LENS: [u32; 4] = [700, 1500, 1, 3000];
const TOTAL: usize = 5201;
const MILLISECOND: u64 = 1_000_000;

/// Creates a world with short timeouts, where every transfer takes many work requests.
fn small() -> World {
    let limits = DeviceLimits {
        message: 1000,
        queue_depth: 40,
        reads_out: 2,
        ..DeviceOptions::default().limits
    };
    let params = RdmaParams {
        transfer_timeout: 300 * MILLISECOND,
        drain_timeout: 50 * MILLISECOND,
        ..RdmaParams::default()
    };
    Setup { limits, params, ..Setup::default() }.world()
}

/// Loads eight commands with lists: four writes in pulls and four reads in responses; no data has
/// moved.
fn load(world: &mut World, at: usize, host: &mut Host) -> Vec<Memory> {
    let mut memories = Vec::new();
    for cid in 0..8u16 {
        let memory = Memory::with(&host.device, &pattern(u32::from(cid), 6000));
        let (sgl, behind) = listed(&memory, &LENS, false);
        host.send(Sqe::new(1 + u8::from(cid > 3), cid, 1).with_sgl(sgl), &behind);
        memories.push(memory);
    }
    world.settle(&mut [host]);
    for (sqe, _) in std::mem::take(&mut world.queues[at].commands) {
        if world.queues[at].closed.is_some() {
            break;
        }
        if sqe.opcode == 1 {
            let buffer = world.pool.lease(TOTAL).unwrap();
            world.queues[at].pull(&sqe, buffer);
        } else {
            let data = world.buffer(&pattern(77, TOTAL));
            world.queues[at].answer(&sqe, Some(data));
        }
    }
    memories
}

/// Runs the load to its end, successful or not; time passes until all timeouts expire.
fn run(world: &mut World, host: &mut Host) {
    for _ in 0..6 {
        world.settle(&mut [host]);
        world.fabric.advance(100 * MILLISECOND);
    }
    world.settle(&mut [host]);
}

/// Injects one fault under load. Everything returns once, and successful data is correct.
fn under_load(what: &str, fault: impl Fn(&Faults, u32)) -> Option<CloseReason> {
    let mut world = small();
    let (at, mut host) = world.connect(8);
    let number = world.number();
    fault(&world.fabric.faults(), number);
    let memories = load(&mut world, at, &mut host);
    run(&mut world, &mut host);
    let connection = &world.queues[at];
    assert!(connection.held.is_empty(), "{what}: {:?} are kept", connection.held);
    assert_eq!((connection.pulled.len(), connection.sent.len()), (4, 4), "{what}");
    for (token, result, bytes) in &connection.pulled {
        let memory = &memories[usize::try_from(*token).unwrap() - 1];
        let expected = gathered(memory, &LENS);
        assert!(result.is_err() || *bytes == expected, "{what}: wrong bytes");
        if connection.closed.is_none() {
            assert_eq!(*result, Ok(()), "{what}");
        }
    }
    for (cid, _) in host.responses() {
        let memory = &memories[usize::from(cid)];
        assert_eq!(gathered(memory, &LENS), pattern(77, TOTAL), "{what}: answered without data");
    }
    let closed = connection.closed.clone();
    drop(memories);
    world.check_empty(vec![host]);
    closed
}

/// Work requests of the load: 28 READs, 28 WRITEs, 4 SENDs.
const WORK: u64 = 60;

#[test]
fn without_faults_all_is_well() {
    assert_eq!(under_load("none", |_, _| ()), None);
}

#[test]
fn the_queue_pair_breaks_anywhere() {
    for nth in 0..WORK {
        let what = format!("break at {nth}");
        let closed = under_load(&what, |faults, number| faults.break_at(number, nth));
        assert!(matches!(closed, Some(CloseReason::Lost(_))), "{what}: {closed:?}");
    }
}

#[test]
fn the_host_refuses_access_anywhere() {
    for nth in 0..WORK - 4 {
        let what = format!("remote access at {nth}");
        let closed = under_load(&what, |faults, number| faults.remote_access(number, nth));
        assert!(matches!(closed, Some(CloseReason::Protocol(_))), "{what}: {closed:?}");
    }
}

#[test]
fn the_host_falls_silent_anywhere() {
    for nth in 0..WORK {
        let what = format!("unreachable at {nth}");
        let closed = under_load(&what, |faults, number| faults.unreachable(number, nth));
        assert!(matches!(closed, Some(CloseReason::Lost(_))), "{what}: {closed:?}");
    }
}

#[test]
fn posting_is_refused_anywhere() {
    for nth in 0..12 {
        for taken in [0, 1, 2, 5, 20] {
            let what = format!("refused after {taken} of chain {nth}");
            under_load(&what, |faults, number| faults.refuse_send(number, nth, taken));
        }
    }
    let first = under_load("first", |faults, number| faults.refuse_send(number, 0, 1));
    assert!(matches!(first, Some(CloseReason::Lost(_))), "{first:?}");
}

#[test]
fn posting_a_receive_is_refused_anywhere() {
    for nth in 0..8 {
        let mut world = small();
        let (at, mut host) = world.connect(8);
        let number = world.number();
        world.fabric.faults().refuse_receive(number, nth);
        let memories = load(&mut world, at, &mut host);
        run(&mut world, &mut host);
        let closed = &world.queues[at].closed;
        assert!(matches!(closed, Some(CloseReason::Lost(_))), "receive {nth}: {closed:?}");
        drop(memories);
        world.check_empty(vec![host]);
    }
}

#[test]
fn completions_are_lost_anywhere() {
    for nth in 0..WORK {
        let what = format!("send completion {nth} lost");
        under_load(&what, |faults, number| faults.lose_completion(number, Side::Send, nth));
    }
    // No later work compensates for the last READ.
    let closed = under_load("the first", |faults, number| {
        (0..40).for_each(|nth| faults.lose_completion(number, Side::Send, nth));
    });
    assert_eq!(closed, Some(CloseReason::Timeout("the host neither gives nor takes data")));
}

#[test]
fn a_lost_flush_is_made_up_for_by_taking_the_queue_pair_away() {
    for side in [Side::Send, Side::Receive] {
        for nth in 0..6 {
            let mut world = small();
            let (at, mut host) = world.connect(8);
            let number = world.number();
            let memories = load(&mut world, at, &mut host);
            world.turn();
            world.fabric.faults().lose_completion(number, side, nth);
            world.queues[at].queue.as_mut().unwrap().close(CloseReason::Shutdown);
            run(&mut world, &mut host);
            assert_eq!(world.queues[at].closed, Some(CloseReason::Shutdown));
            drop(memories);
            world.check_empty(vec![host]);
        }
    }
}

#[test]
fn nothing_is_given_back_before_the_device_has() {
    // Without flushed sends, everything waits. Without flushed receives, only the operations that
    // the sends did not return wait.
    for (side, kept) in [(Side::Send, 8), (Side::Receive, 4)] {
        let mut world = small();
        let (at, mut host) = world.connect(8);
        let number = world.number();
        let memories = load(&mut world, at, &mut host);
        world.turn();
        (0..100).for_each(|nth| world.fabric.faults().lose_completion(number, side, nth));
        world.queues[at].queue.as_mut().unwrap().close(CloseReason::Shutdown);
        for _ in 0..3 {
            world.settle(&mut [&mut host]);
        }
        assert_eq!((world.queues[at].closed.clone(), world.queues[at].held.len()), (None, kept));
        assert_eq!(world.fabric.counters().endpoints, 2);
        // The queue pair is destroyed first.
        world.fabric.advance(50 * MILLISECOND);
        world.turn();
        assert_eq!((world.queues[at].closed.clone(), world.queues[at].held.len()), (None, kept));
        world.turn();
        assert_eq!(world.queues[at].closed, Some(CloseReason::Shutdown));
        drop(memories);
        world.check_empty(vec![host]);
    }
}

#[test]
fn a_host_without_receives_is_waited_for() {
    let closed = under_load("not ready", |faults, number| faults.not_ready(number, 1, 5));
    assert_eq!(closed, None);
}

/// Sends commands with immediate responses, until the target ends the queue or has taken `most`.
fn commands_taken(world: &mut World, at: usize, host: &mut Host, most: u16) -> u16 {
    for cid in 0..most {
        host.send(Sqe::new(0, cid % 7, 1), &[]);
        world.settle(&mut [host]);
        let commands = std::mem::take(&mut world.queues[at].commands);
        for (sqe, _) in &commands {
            world.queues[at].answer(sqe, None);
        }
        if world.queues[at].closed.is_some() {
            return cid;
        }
    }
    most
}

#[test]
fn a_host_without_receives_cannot_have_any_number_of_responses_wait() {
    let mut world = small();
    let (at, mut host) = world.connect(8);
    host.reposts = false;
    let places = 40;
    let taken = commands_taken(&mut world, at, &mut host, 1000);
    // As many as the send queue has slots, with or without a receive of the host, plus the queue's
    // depth.
    assert!(u32::from(taken) <= 2 * 8 + places + 8, "{taken} of them");
    let closed = world.queues[at].closed.clone();
    assert!(matches!(closed, Some(CloseReason::Protocol(_))), "{closed:?}");
    world.check_empty(vec![host]);
}

#[test]
fn the_completion_queue_breaks() {
    for steps in [0, 1, 5, 20, 60] {
        let mut world = small();
        let (at, mut host) = world.connect(8);
        let (other, mut second) = world.connect(8);
        let memories = load(&mut world, at, &mut host);
        world.turn();
        (0..steps).for_each(|_| {
            world.fabric.step();
        });
        let faults = world.fabric.faults();
        faults.break_completions(&world.source().completions());
        world.settle(&mut [&mut host, &mut second]);
        for at in [at, other] {
            let closed = &world.queues[at].closed;
            assert!(matches!(closed, Some(CloseReason::Lost(_))), "{closed:?}");
        }
        // A new connection gets a new completion queue.
        let (at, mut third) = world.connect(8);
        third.send(Sqe::new(0, 1, 1), &[]);
        world.settle(&mut [&mut third]);
        assert_eq!(world.queues[at].commands.len(), 1);
        drop(memories);
        world.check_empty(vec![host, second, third]);
    }
}

#[test]
fn the_device_is_removed() {
    for steps in [0, 1, 5, 20, 60] {
        let mut world = small();
        let (at, mut host) = world.connect(8);
        let memories = load(&mut world, at, &mut host);
        world.turn();
        (0..steps).for_each(|_| {
            world.fabric.step();
        });
        world.fabric.faults().remove_device(&world.target_device);
        run(&mut world, &mut host);
        let closed = &world.queues[at].closed;
        assert!(matches!(closed, Some(CloseReason::Lost(_))), "{closed:?}");
        drop(memories);
        world.check_empty(vec![host]);
    }
}

#[test]
fn the_connection_ends_by_event() {
    for steps in [0, 3, 30, 100] {
        type Ending = fn(&mut World, &mut Host, u32);
        let endings: [(Ending, bool); 3] = [
            (|world, _, number| world.fabric.faults().queue_pair_error(number), false),
            (|world, _, number| world.fabric.faults().address_changed(number), false),
            (|_, host, _| host.endpoint.disconnect(), true),
        ];
        for (ending, by_peer) in endings {
            let mut world = small();
            let (at, mut host) = world.connect(8);
            let number = world.number();
            let memories = load(&mut world, at, &mut host);
            world.turn();
            (0..steps).for_each(|_| {
                world.fabric.step();
            });
            ending(&mut world, &mut host, number);
            run(&mut world, &mut host);
            let closed = world.queues[at].closed.clone().unwrap();
            if by_peer && steps == 100 {
                assert_eq!(closed, CloseReason::PeerClosed);
            }
            drop(memories);
            world.check_empty(vec![host]);
        }
    }
}

#[test]
fn memory_that_the_host_took_back_ends_its_queue_only() {
    let mut world = small();
    let (at, mut host) = world.connect(8);
    let (other, mut bystander) = world.connect(8);
    let memory = Memory::new(&host.device, 4096);
    host.send(Sqe::new(1, 5, 1).with_sgl(memory.sgl(0, 4096, false)), &[]);
    world.settle(&mut [&mut host]);
    drop(memory);
    let (sqe, _) = world.queues[at].commands.pop().unwrap();
    let buffer = world.pool.lease(4096).unwrap();
    let token = world.queues[at].pull(&sqe, buffer);
    world.settle(&mut [&mut host, &mut bystander]);
    let [(got, Err(FabricError::Transfer), _)] = world.queues[at].pulled[..] else { panic!() };
    assert_eq!(got, token);
    assert!(matches!(world.queues[at].closed, Some(CloseReason::Protocol(_))));
    bystander.send(Sqe::new(0, 1, 1), &[]);
    world.settle(&mut [&mut bystander]);
    assert_eq!(world.queues[other].commands.len(), 1);
    world.check_empty(vec![host, bystander]);
}

#[test]
fn a_host_that_never_connects_is_not_waited_for() {
    for hears_us in [false, true] {
        let mut world = world();
        let mut host = world.ask(1, 8);
        let at = world.take().unwrap();
        for _ in 0..3 {
            world.fabric.settle();
            world.turn();
            if hears_us {
                host.turn();
            }
        }
        assert_eq!(world.queues[at].closed, None);
        let queue = world.queues[at].queue.as_ref().unwrap();
        let deadline = queue.deadline().unwrap();
        assert!(deadline <= world.fabric.now() + world.params.handshake_timeout);
        world.fabric.advance(world.params.handshake_timeout);
        world.settle(&mut [&mut host]);
        assert_eq!(world.queues[at].closed, Some(CloseReason::Timeout("no Connect")));
        world.check_empty(vec![host]);
    }
}

#[test]
fn a_reactor_that_goes_with_work_under_way_takes_the_queue_pair_first() {
    let mut world = small();
    let (at, mut host) = world.connect(8);
    let memories = load(&mut world, at, &mut host);
    world.turn();
    (0..10).for_each(|_| {
        world.fabric.step();
    });
    world.queues.remove(at);
    drop(memories);
    world.check_empty(vec![host]);
}

#[test]
fn an_end_is_noticed_while_completions_keep_coming() {
    let mut world = small();
    let (at, mut host) = world.connect(8);
    let number = world.number();
    let mut told = false;
    for cid in 0..200u16 {
        host.send(Sqe::new(0, cid, 1), &[]);
        world.fabric.settle();
        if cid == 20 {
            // The completions do not show this.
            world.fabric.faults().address_changed(number);
        }
        world.turn();
        if world.queues[at].closed.is_some() || world.queues[at].queue.is_none() {
            told = true;
            break;
        }
        for (sqe, _) in std::mem::take(&mut world.queues[at].commands) {
            let cqe = Cqe::success(sqe.cid.get(), 0);
            let sgl = Sgl::Transport { length: 0 };
            let op = FabricOp::Respond { token: 0, cqe, sgl, data: None, elidable: true };
            if world.queues[at].submit(op).is_err() {
                break;
            }
        }
        world.fabric.settle();
        host.turn();
    }
    run(&mut world, &mut host);
    assert!(told, "nothing was noticed in 180 rounds");
    assert!(matches!(world.queues[at].closed, Some(CloseReason::Lost(_))));
    world.check_empty(vec![host]);
}

/// Occasional completions are progress, but would keep buffers as long as more data follows.
#[test]
fn a_host_that_moves_hardly_anything_is_not_waited_for() {
    let mut world = small();
    let (at, mut host) = world.connect(8);
    let slow =
        Costs { answer: 250 * MILLISECOND, timeout: 60_000 * MILLISECOND, ..world.fabric.costs() };
    let memories = load(&mut world, at, &mut host);
    world.fabric.set_costs(slow);
    let began = world.fabric.now();
    while world.queues[at].closed.is_none() {
        world.fabric.advance(10 * MILLISECOND);
        world.settle(&mut [&mut host]);
        let waited = world.fabric.now() - began;
        assert!(waited <= 5 * world.params.transfer_timeout, "for ever");
    }
    let reason = CloseReason::Timeout("the host gives or takes hardly any data");
    assert_eq!(world.queues[at].closed, Some(reason));
    drop(memories);
    world.check_empty(vec![host]);
}
