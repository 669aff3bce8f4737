//! Submission queue entries, and their data, into the queues of a target.
//!
//! A handful of connections to a target with several subsystems: any command on any of them, in any
//! state, with data that comes or does not, completions in any order, time, disconnects, and changes of
//! the configuration in between. Always: each command has one disposition and each identifier one
//! completion, an I/O command lies within its namespace and its data within what the host gave, and when
//! all is dropped the target is empty.

mod command;
mod request;
mod spec;
mod wire;
mod world;

use crate::input::Input;
use world::World;

/// Steps of one run at most.
const STEPS: usize = 64;

/// One run.
///
/// # Panics
/// If the target does what it must not.
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
