//! What admission costs a command on a core that nothing disturbs: the fastest of many short rounds.
//!
//! ```text
//! cargo run --release -p nvmeof-pacing --example cost
//! cargo run --release -p nvmeof-pacing --example cost -- adaptive 60000    # for callgrind
//! ```
//!
//! The means of `cargo bench` hold whatever else the machine does; the fastest round does not. With a
//! policy and a number of commands it does that many and prints nothing, so that the instructions
//! of two runs can be taken from each other. Behind that, `limited` puts all flows under a host with
//! limits that it never reaches, and a number is how many commands wait on each of the 64 flows.

#[path = "../benches/load/mod.rs"]
mod load;

use std::time::Instant;

use load::{IO, Load, policies, shared};
use nvmeof_pacing::PolicyConfig;

const ROUNDS: u32 = 400;
const COMMANDS: u32 = 5000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let load = |policy: &PolicyConfig, flows| Load::new(&shared(policy, 4), 0, flows, 32, IO);
    if let (Some(name), Some(commands)) = (arguments.next(), arguments.next()) {
        let commands: u64 = commands.parse().expect("a number of commands");
        let policies = policies();
        let policy = policies.iter().find(|(known, _)| *known == name);
        let mut load = load(&policy.expect("none, buffer-credit, token-bucket or adaptive").1, 64);
        for argument in arguments {
            match argument.as_str() {
                "limited" => load.limit(4),
                waiting => load.wait(waiting.parse().expect("`limited` or how many wait")),
            }
        }
        (0..commands).for_each(|_| load.turn_over());
        return load.finish();
    }
    println!("ns a command, fastest of {ROUNDS} rounds of {COMMANDS}");
    for flows in [1, 64] {
        let policies = policies();
        let mut loads = policies.each_ref().map(|(_, policy)| (load(policy, flows), f64::INFINITY));
        for _ in 0..ROUNDS {
            // In turns, so that all meet the same machine.
            for (load, fastest) in &mut loads {
                let start = Instant::now();
                (0..COMMANDS).for_each(|_| load.turn_over());
                let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(COMMANDS);
                *fastest = fastest.min(each);
            }
        }
        for ((name, _), (load, fastest)) in policies.iter().zip(loads) {
            println!("{flows} flows, {name}: {fastest:.1}");
            load.finish();
        }
    }
}
