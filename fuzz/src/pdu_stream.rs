//! A host's byte stream into the target's side of NVMe/TCP.
//!
//! The queue is the daemon's own, over a pair of Unix sockets; both ends take turns in one thread.
//! While the host keeps to the protocol it is *sound*. Every capsule must then arrive unchanged,
//! every pull must return its bytes, and nothing is allowed to end the connection.
//!
//! Invariants: operations end exactly once, and `Closed` is the last event. The target's PDUs are
//! well formed and in order, and no buffer is missing at the end.

pub(crate) mod host;
mod world;

use std::rc::Rc;
use std::sync::Arc;

use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig, ZeroCopyRegion, ZeroCopySource};
use nvmeof_transport::tcp::TcpParams;

use crate::input::Input;
use world::World;

/// Maximum number of steps of one run.
const STEPS: usize = 96;

thread_local! {
    static SHARED: (CorePool, Rc<ZeroCopySource>) = {
        let config = PoolConfig {
            cap: 64 << 20,
            reserve: 16 << 20,
            huge_pages: false,
            ..PoolConfig::default()
        };
        // Rust's `main` ignores SIGPIPE, but libFuzzer's replaces it: `sendfile` does not support
        // MSG_NOSIGNAL.
        signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::default()).expect("a signal");
        let shared = ChunkPool::new(config).expect("a pool");
        let zeroes = ZeroCopyRegion::zeroes().expect("zeroes");
        (CorePool::new(&shared), ZeroCopySource::new(&zeroes))
    };
}

/// Runs one input.
///
/// # Panics
/// If the target violates an invariant.
pub fn run(bytes: &[u8]) {
    SHARED.with(|(pool, source)| {
        let mut input = Input::new(bytes);
        let mode = input.byte();
        let mut world = World::new(pool, source, params(&mut input), input.one_in(4));
        if mode & 1 == 0 {
            program(&mut world, &mut input);
        } else {
            if mode & 2 != 0 {
                world.greet(&mut input);
            }
            raw(&mut world, &mut input);
        }
        world.finish(&mut input);
        drop(world);
        assert_eq!(pool.leased(), 0, "buffers are missing");
    });
}

fn params(input: &mut Input<'_>) -> TcpParams {
    let bits = input.byte();
    TcpParams {
        in_capsule: [8192, 4096, 512, 0][usize::from(bits & 3)],
        max_transfer: if bits & 4 == 0 { 1 << 20 } else { 4096 },
        header_digest: bits & 8 == 0,
        data_digest: bits & 16 == 0,
        ..TcpParams::default()
    }
}

/// Sends the bytes as the host's stream, in pieces.
fn raw(world: &mut World, input: &mut Input<'_>) {
    while !input.is_empty() && !world.is_closed() {
        let len = input.below(256) + 1;
        world.send_raw(input.bytes(len));
        world.turn();
        if input.one_in(4) {
            world.target_step(input);
        }
    }
}

/// Runs the bytes as steps of host and target.
fn program(world: &mut World, input: &mut Input<'_>) {
    for _ in 0..STEPS {
        if input.is_empty() || world.is_closed() {
            return;
        }
        match input.byte() % 16 {
            0..=3 => world.capsule(input),
            4..=6 => world.data(input),
            7 => world.host_oddity(input),
            8 | 9 => world.turn(),
            10 => world.target_oddity(input),
            _ => world.target_step(input),
        }
    }
}
