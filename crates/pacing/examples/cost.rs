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
//! limits that it never reaches, `spread` has them go to 16 devices and 2 ports, and a number is how many commands wait
//! on each of the 64 flows.

#[path = "../benches/load/mod.rs"]
mod load;

use std::time::Instant;

use load::{IO, Load, many_ways, one_way, policies, shared};
use nvmeof_pacing::{FlowConfig, PolicyConfig};

const ROUNDS: u32 = 400;
const COMMANDS: u32 = 5000;
/// Commands that wait on each of 64 flows before a round without those that hosts send, and that start in it.
const WAITING: u32 = 20;
const STARTED: u32 = 640;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let load = |policy: &PolicyConfig, flows: &[FlowConfig]| {
        Load::new(&shared(policy, 4), 0, flows, 32, IO)
    };
    if let (Some(name), Some(commands)) = (arguments.next(), arguments.next()) {
        let commands: u64 = commands.parse().expect("a number of commands");
        let policies = policies();
        let policy = policies.iter().find(|(known, _)| *known == name);
        let policy = &policy.expect("none, buffer-credit, token-bucket or adaptive").1;
        let arguments: Vec<String> = arguments.collect();
        let is_spread = arguments.iter().any(|argument| argument == "spread");
        let mut load = load(policy, &if is_spread { many_ways(64) } else { one_way(64) });
        for argument in &arguments {
            match argument.as_str() {
                "spread" => {}
                "limited" => load.limit(4),
                waiting => {
                    load.wait(waiting.parse().expect("`spread`, `limited` or how many wait"));
                }
            }
        }
        (0..commands).for_each(|_| load.turn_over());
        return load.finish();
    }
    println!("release and next alone, ns a command, fastest of {ROUNDS} rounds of {STARTED}");
    let policies_ = policies();
    let mut loads =
        policies_.each_ref().map(|(_, policy)| (load(policy, &one_way(64)), f64::INFINITY));
    for _ in 0..ROUNDS {
        for (load, fastest) in &mut loads {
            load.wait(WAITING);
            let start = Instant::now();
            (0..STARTED).for_each(|_| load.release_and_admit());
            let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(STARTED);
            *fastest = fastest.min(each);
        }
    }
    for ((name, _), (load, fastest)) in policies_.iter().zip(loads) {
        println!("64 flows, {name}: {fastest:.1}");
        load.finish();
    }
    println!("ns a command, fastest of {ROUNDS} rounds of {COMMANDS}");
    let one_device = ["1 flow", "64 flows"].into_iter().zip([one_way(1), one_way(64)]);
    for (what, flows) in one_device.chain([("64 flows, 16 devices, 2 ports", many_ways(64))]) {
        let policies = policies();
        let mut loads =
            policies.each_ref().map(|(_, policy)| (load(policy, &flows), f64::INFINITY));
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
            println!("{what}, {name}: {fastest:.1}");
            load.finish();
        }
    }
}
