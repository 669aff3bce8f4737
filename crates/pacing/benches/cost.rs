//! Cost of admission per command on an undisturbed core: the fastest of many short rounds.
//!
//! ```text
//! cargo bench -p nvmeof-pacing --bench cost
//! cargo bench -p nvmeof-pacing --bench cost -- adaptive 60000    # for callgrind
//! ```
//!
//! The means of `cargo bench` include the other load of the machine; the fastest round does not.
//! With a policy and a number of commands the program runs that many and prints nothing. The
//! instructions of two runs can then be subtracted.
//!
//! More arguments can follow. `limited` puts all flows under a host with limits that it never
//! reaches, and `spread` spreads them over 16 devices and 2 ports. A number sets the commands that
//! wait on each of the 64 flows.

mod load;

use std::time::{Duration, Instant};

use load::{IO, Load, many_ways, one_way, policies, shared};
use nvmeof_pacing::{FlowConfig, PolicyConfig};

const ROUNDS: u32 = 400;
const COMMANDS: u32 = 5000;
/// Commands per round: few enough that the fastest round is undisturbed.
const WAITED_FOR: u32 = 640;

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
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
    let turns = |load: &mut Load| {
        let start = Instant::now();
        (0..COMMANDS).for_each(|_| load.turn_over());
        each(start.elapsed(), COMMANDS)
    };
    let ways = [
        ("1 flow", one_way(1)),
        ("64 flows", one_way(64)),
        ("64 flows, 16 devices, 2 ports", many_ways(64)),
    ];
    println!("ns a command, fastest of {ROUNDS} rounds of {COMMANDS}");
    for (what, flows) in &ways {
        fastest(what, |policy| load(policy, flows), turns);
    }
    println!("the same of commands that start when they arrive, 32 in flight a flow");
    for (what, flows) in &ways {
        fastest(what, |policy| Load::without_queue(&shared(policy, 4), flows, 32), turns);
    }
    let flows = one_way(64);
    println!("the same of commands that wait already: release and next alone");
    fastest(
        "64 flows",
        |policy| load(policy, &flows),
        |load| each(load.time_of_waiting(WAITED_FOR.into()), WAITED_FOR),
    );
}

fn each(took: Duration, commands: u32) -> f64 {
    took.as_secs_f64() * 1e9 / f64::from(commands)
}

/// Prints the fastest round of each policy.
#[expect(clippy::print_stdout, reason = "a person reads it")]
fn fastest(what: &str, load: impl Fn(&PolicyConfig) -> Load, round: impl Fn(&mut Load) -> f64) {
    let policies = policies();
    let mut loads = policies.each_ref().map(|(_, policy)| (load(policy), f64::INFINITY));
    for _ in 0..ROUNDS {
        // In turns, so that the machine's load affects all alike.
        for (load, fastest) in &mut loads {
            *fastest = fastest.min(round(load));
        }
    }
    for ((name, _), (load, fastest)) in policies.iter().zip(loads) {
        println!("{what}, {name}: {fastest:.1}");
        load.finish();
    }
}
