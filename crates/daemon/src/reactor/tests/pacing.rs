//! Changes of the policy while commands wait and while they are in flight.
//!
//! No command is lost or waits forever. Every permit returns to the policy that granted it.

use nvmeof_pacing::{
    PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool, RateSpec, TokenBucketConfig,
};
use nvmeof_wire::Status;

use super::rig::{Host, Rig, pattern};

const KIB: u32 = 1024;
/// Bytes of each write, and blocks from one to the next.
const LEN: u32 = 64 * KIB;
const APART: u64 = 128;

/// Every policy, with limits so tight that commands wait.
fn policies() -> Vec<PolicyConfig> {
    let pool = Some(PrototypePool { buffers: 3, cache: 1 });
    let pacer = Some(PrototypePacer {
        period: 50_000,
        credit: 1 << 20,
        bypass_below: 8 * KIB,
        drive_limit: Some(2),
        tuner: None,
    });
    let bucket =
        |pace, burst, budget| PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst, budget });
    vec![
        PolicyConfig::None,
        PolicyConfig::BufferCredit { budget: 1 << 20 },
        bucket(RateSpec::Rate(500 << 20), Some(1 << 20), Some(1 << 20)),
        bucket(RateSpec::Period(200_000), Some(1), None),
        PolicyConfig::Adaptive,
        PolicyConfig::Prototype(PrototypeConfig { pool, pacer: None }),
        PolicyConfig::Prototype(PrototypeConfig { pool, pacer }),
    ]
}

/// Writes at the full depth of a queue while the policy changes.
fn write_and_read(rig: &mut Rig, host: &Host, seed: u64, to: &PolicyConfig) {
    rig.faults.hold();
    for cid in 0..31 {
        host.write_pulled(cid, u64::from(cid) * APART, &pattern(seed + u64::from(cid), LEN));
    }
    let turns = rig.random(4);
    rig.turns(turns);
    rig.set_policy(to);
    rig.turns(2);
    rig.faults.release();
    rig.settle();
    let statuses = host.statuses();
    assert_eq!(statuses.len(), 31, "to {to:?}");
    assert!(statuses.iter().all(|(_, status)| *status == Status::SUCCESS));
}

fn read_back(rig: &mut Rig, host: &Host, seed: u64, to: &PolicyConfig) {
    rig.faults.hold();
    for cid in 0..31 {
        host.read(cid, u64::from(cid) * APART, LEN);
    }
    let turns = rig.random(4);
    rig.turns(turns);
    rig.set_policy(to);
    rig.faults.release();
    rig.settle();
    let answers = host.take();
    assert_eq!(answers.len(), 31, "to {to:?}");
    for answer in answers {
        let wanted = pattern(seed + u64::from(answer.cqe.cid.get()), LEN);
        assert!(answer.data == wanted, "other data, to {to:?}");
    }
}

#[test]
fn the_policy_changes_from_each_to_each_under_load() {
    let policies = policies();
    for from in &policies {
        for to in &policies {
            let mut rig = Rig::new(None);
            rig.set_policy(from);
            let host = rig.connect_io();
            write_and_read(&mut rig, &host, 7, to);
            read_back(&mut rig, &host, 7, from);
            rig.finish([host]);
        }
    }
}

/// Policies change faster than commands end, so permits of many policies are in flight together.
#[test]
fn permits_of_many_policies_are_out_at_once() {
    let policies = policies();
    for seed in 1..=10 {
        let mut rig = Rig::seeded(seed);
        let host = rig.connect_io();
        for _ in 0..100 {
            match rig.random(6) {
                0 => rig.faults.hold(),
                1 => rig.faults.release(),
                2 | 3 => {
                    let next = rig.random(policies.len());
                    rig.set_policy(&policies[next]);
                }
                _ => {
                    let Some(cid) = host.free_cid() else { continue };
                    let lba = rig.random(64) as u64;
                    host.read(cid, lba, (1 + u32::from(cid)) * 4 * KIB);
                }
            }
            rig.turns(1);
            host.collect();
        }
        rig.faults.release();
        rig.settle();
        host.collect();
        assert_eq!(host.outstanding(), 0, "seed {seed}");
        rig.finish([host]);
    }
}
