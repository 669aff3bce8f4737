//! Cost of parsing and encoding: `cargo bench -p nvmeof-benches --bench parse`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nvmeof_benches::{BLOCK, read};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::tcp::{C2HData, CapsuleCmd, CapsuleResp, Framing, Receiver, RxRules};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sgl, Sqe};

fn rules(framing: Framing) -> RxRules {
    RxRules { receiver: Receiver::Controller, framing, max_in_capsule: 8192, max_data: 128 << 10 }
}

/// Measures parsing of a submission queue entry to a read's arguments.
fn sqe(c: &mut Criterion) {
    let mut group = c.benchmark_group("sqe");
    group.throughput(Throughput::Elements(1));
    let bytes = read(7, 42).as_bytes().to_vec();
    group.bench_function("read", |bench| {
        bench.iter(|| {
            let sqe = Sqe::ref_from_bytes(black_box(&bytes)).expect("64 bytes");
            (sqe.io_opcode(), BlockIo::parse(sqe), sqe.psdt(), sqe.fuse())
        });
    });
    let sgls = [
        ("transport SGL", Sgl::Transport { length: BLOCK }),
        ("in-capsule SGL", Sgl::InCapsule { offset: 0, length: BLOCK }),
        ("keyed SGL", Sgl::Keyed { address: 1 << 40, length: BLOCK, key: 9, invalidate: true }),
    ];
    for (name, sgl) in sgls {
        let descriptor = sgl.encode();
        group.bench_function(name, |bench| bench.iter(|| black_box(&descriptor).parse()));
    }
    group.finish();
}

/// Measures the headers of NVMe/TCP, in and out.
fn tcp(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp");
    group.throughput(Throughput::Elements(1));
    for (name, framing) in [("plain", Framing::default()), ("digests", Framing::new(true, true, 0))]
    {
        let rules = rules(framing);
        let capsule = CapsuleCmd::new(framing, read(7, 42), 0);
        group.bench_function(format!("command header, {name}"), |bench| {
            bench.iter(|| {
                let bytes = black_box(capsule.as_bytes());
                let (capsule, _) = CapsuleCmd::ref_from_prefix(bytes).expect("72 bytes");
                rules.check(&capsule.ch).expect("it is right")
            });
        });
        group.bench_function(format!("data header, {name}"), |bench| {
            bench.iter(|| C2HData::new(framing, black_box(7), 0, black_box(BLOCK), true, true));
        });
        let cqe = Cqe::default();
        group.bench_function(format!("response, {name}"), |bench| {
            bench.iter(|| CapsuleResp::new(framing, black_box(cqe)));
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

criterion_group!(name = benches; config = quick(); targets = sqe, tcp);
criterion_main!(benches);
