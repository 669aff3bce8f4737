//! Submission queue entries, and their data, into the queues of a target.
//!
//! A run has a few connections to a target with several subsystems. Any command arrives on any of
//! them, in any state, with or without its data. Completions come in any order; time, disconnects
//! and configuration changes come in between.
//!
//! Invariants: each command has one disposition and each identifier one completion. An I/O command
//! lies within its namespace, and its data within the host's buffers. When all is dropped the
//! target is empty.

mod command;
mod request;
mod spec;
mod wire;
mod world;

use crate::input::Input;
use world::World;

/// Maximum number of steps of one run.
const STEPS: usize = 64;

/// Runs one input.
///
/// # Panics
/// If the target violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    let setup = input.byte();
    if setup & 1 == 0 {
        world.connect_admin(setup & 2 != 0);
        if setup & 4 == 0 {
            world.enable(0);
            if setup & 32 != 0 {
                world.arm_events(setup & 2 != 0);
            }
            if setup & 8 == 0 {
                world.connect_io(setup & 16 != 0);
            }
        }
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..=7 => world.command(&mut input),
            8..=11 => world.complete(&mut input),
            12 => world.host(&mut input),
            13 => world.time(&mut input),
            14 => world.reconfigure(&mut input),
            _ => world.raw_command(&mut input),
        }
        world.check();
    }
    world.finish();
}
