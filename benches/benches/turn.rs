//! One command from its capsule to its response: `cargo bench -p nvmeof-benches --bench turn`.
//!
//! `nvmf` is the cost of the command's interpretation alone. `reactor` is a whole reactor: fabric,
//! nvmf, pacing, device and fabric again, without a socket. For each command the loopback fabric
//! takes a lock, copies the data for its host and rings an eventfd, which a socket does not. Its
//! figures are therefore comparable only with each other; `cargo xtask bench e2e` measures real
//! ones.

mod world;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nvmeof_benches::{BLOCK, BLOCKS, PORT, connect, enable, read, target, write};
use nvmeof_core::block::{BlockDevice, NullDevice, RamDevice};
use nvmeof_nvmf::{Disposition, Queue, Response, Target};
use nvmeof_pacing::PolicyConfig;
use nvmeof_wire::fabrics::CNTLID_DYNAMIC;
use world::{World, cntlid_of};

/// Returns an I/O queue whose controller is ready, and the admin queue that keeps it ready.
fn queues(target: &Arc<Target>) -> (Queue, Queue) {
    let mut admin = Queue::new(target, PORT, "here", 0);
    let cntlid = connected(&mut admin, 0, CNTLID_DYNAMIC);
    let enabled = admin.handle_command(&enable(), 0, 0);
    assert!(matches!(enabled, Disposition::Respond(_)), "{enabled:?}");
    let mut io = Queue::new(target, PORT, "here", 0);
    connected(&mut io, 1, cntlid);
    (admin, io)
}

fn connected(queue: &mut Queue, qid: u16, cntlid: u16) -> u16 {
    let (sqe, data) = connect(qid, cntlid);
    let asked = queue.handle_command(&sqe, 1024, 0);
    assert!(matches!(asked, Disposition::Receive { .. }), "{asked:?}");
    match queue.handle_data(&sqe, &data, 0) {
        Disposition::Respond(Response { cqe, .. }) if cqe.status().is_success() => {
            cntlid_of(cqe.dw0())
        }
        other => panic!("not connected: {other:?}"),
    }
}

/// Measures `Queue::handle_command`, then `Queue::complete`.
fn nvmf(c: &mut Criterion) {
    let mut group = c.benchmark_group("nvmf");
    group.throughput(Throughput::Elements(1));
    let target = target().expect("it serves that");
    let (_admin, mut queue) = queues(&target);
    for (name, sqe, in_capsule) in
        [("4 KiB read", read(7, 42), 0), ("4 KiB write", write(7, 42), BLOCK)]
    {
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let disposition = queue.handle_command(black_box(&sqe), in_capsule, 1);
                assert!(matches!(disposition, Disposition::Io(_)));
                (disposition, queue.complete(7, Ok(())))
            });
        });
    }
    group.finish();
}

fn reactor(c: &mut Criterion) {
    let size = BLOCKS * u64::from(BLOCK);
    let null = || -> Arc<dyn BlockDevice> {
        Arc::new(NullDevice::new("null0", size, BLOCK).expect("there is memory"))
    };
    let ram = || -> Arc<dyn BlockDevice> {
        Arc::new(RamDevice::new("ram0", size, BLOCK).expect("there is memory"))
    };
    let mut group = c.benchmark_group("reactor");
    for depth in [1, 32] {
        group.throughput(Throughput::Elements(u64::from(depth)));
        let reads: Vec<_> = (0..depth).map(|cid| read(cid, u64::from(cid) * 97)).collect();
        let writes: Vec<_> = (0..depth).map(|cid| write(cid, u64::from(cid) * 97)).collect();
        let data = vec![0xa5; BLOCK as usize];
        let credit = PolicyConfig::BufferCredit { budget: 128 << 20 };
        for (name, policy) in [
            ("no policy", PolicyConfig::None),
            ("buffer-credit", credit),
            ("adaptive", PolicyConfig::Adaptive),
        ] {
            group.bench_function(format!("null 4 KiB read, depth {depth}, {name}"), |bench| {
                let mut world = World::new(null(), &policy);
                bench.iter(|| world.round(&reads, &[]));
            });
        }
        group.bench_function(format!("RAM 4 KiB write, depth {depth}"), |bench| {
            let mut world = World::new(ram(), &PolicyConfig::None);
            bench.iter(|| world.round(&writes, &data));
        });
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20)
}

criterion_group!(name = benches; config = quick(); targets = nvmf, reactor);
criterion_main!(benches);
