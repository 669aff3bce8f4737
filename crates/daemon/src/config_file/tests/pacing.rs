//! Tests of `[pacing]`: every policy with all of its keys, and invalid ones.

use nvmeof_pacing::{
    PolicyConfig, PrototypeConfig, PrototypePacer, PrototypePool, PrototypeTuner, RateSpec,
    TokenBucketConfig,
};

use super::{LEAST, parse};

const MIB: u32 = 1 << 20;

fn pacing(keys: &str) -> PolicyConfig {
    let config = parse(&format!("{LEAST}[pacing]\n{keys}"));
    config.unwrap_or_else(|error| panic!("{keys}: {error}")).pacing
}

#[test]
fn each_policy_takes_its_keys() {
    let bucket =
        |pace, burst, budget| PolicyConfig::TokenBucket(TokenBucketConfig { pace, burst, budget });
    for (keys, policy) in [
        ("", PolicyConfig::Adaptive),
        ("policy = \"adaptive\"", PolicyConfig::Adaptive),
        ("policy = \"none\"", PolicyConfig::None),
        ("policy = \"buffer-credit\"", PolicyConfig::BufferCredit { budget: 128 << 20 }),
        (
            "policy = \"buffer-credit\"\nbudget = \"2MiB\"",
            PolicyConfig::BufferCredit { budget: 2 << 20 },
        ),
        (
            "policy = \"token-bucket\"\nrate = \"180Gb/s\"",
            bucket(RateSpec::Rate(22_500_000_000), Some(45_000_000), None),
        ),
        (
            "policy = \"token-bucket\"\nperiod = \"50us\"",
            bucket(RateSpec::Period(50_000), Some(40), None),
        ),
        (
            "policy = \"token-bucket\"\nrate = \"17Mb/s\"\nburst = \"6MiB\"\nbudget = \"12MiB\"",
            bucket(RateSpec::Rate(2_125_000), Some(6 << 20), Some(12 << 20)),
        ),
        (
            "policy = \"token-bucket\"\nperiod = \"5.7us\"\nburst = 3",
            bucket(RateSpec::Period(5700), Some(3), None),
        ),
    ] {
        assert_eq!(pacing(keys), policy, "{keys}");
    }
}

#[test]
fn the_prototype_takes_its_knobs() {
    let prototype = |pool, pacer| PolicyConfig::Prototype(PrototypeConfig { pool, pacer });
    let pacer = |period, credit, bypass_below, drive_limit, tuner| {
        Some(PrototypePacer { period, credit, bypass_below, drive_limit, tuner })
    };
    let two = 2 * MIB;
    let by_bytes = Some(PrototypeTuner::BytesInFlight { threshold: 12 << 20 });
    let by_gain = Some(PrototypeTuner::Bandwidth { interval: 10_000_000, step: 50 });
    for (keys, policy) in [
        ("buffers = 96", prototype(Some(PrototypePool { buffers: 96, cache: 32 }), None)),
        ("buffers = 97\ncache = 0", prototype(Some(PrototypePool { buffers: 97, cache: 0 }), None)),
        ("period = \"0ns\"", prototype(None, pacer(0, two, 0, None, None))),
        (
            "period = \"5700ns\"\ncredit = \"3MiB\"\nbypass-below = \"4KiB\"\ndrive-limit = 8\n\
             tuner = \"bytes-in-flight\"\ntuner-threshold = \"12MiB\"",
            prototype(None, pacer(5700, 3 * MIB, 4096, Some(8), by_bytes)),
        ),
        (
            "buffers = 1\nperiod = \"6us\"\ntuner = \"bandwidth\"\n\
             tuner-interval = \"10ms\"\ntuner-step = \"50ns\"",
            prototype(
                Some(PrototypePool { buffers: 1, cache: 0 }),
                pacer(6000, two, 0, None, by_gain),
            ),
        ),
    ] {
        assert_eq!(pacing(&format!("policy = \"prototype\"\n{keys}")), policy, "{keys}");
    }
}

/// Keys after `[pacing]` on line 5, the place of the first problem, and parts of the message.
const BAD: &[(&str, &str, &[&str])] = &[
    (
        "policy = \"buffer-credits\"",
        "5:10: pacing.policy",
        &["there is no policy", "\"adaptive\", \"none\"", "did you mean \"buffer-credit\"?"],
    ),
    (
        "policy = \"none\"\nbudget = 1",
        "6:10: pacing.budget",
        &["policy \"none\" has no budget", "set policy = \"buffer-credit\" or \"token-bucket\""],
    ),
    (
        "budget = 1",
        "5:10: pacing.budget",
        &["\"adaptive\" (the default) has no budget", "omit the key, or set policy"],
    ),
    (
        "policy = \"buffer-credit\"\nrate = \"1Gb/s\"",
        "6:8: pacing.rate",
        &["policy \"buffer-credit\" has no rate", "set policy = \"token-bucket\""],
    ),
    (
        "policy = \"prototype\"\nperiod = \"0ns\"\ntuner = \"bytes-in-flight\"\n\
         tuner-threshold = \"12MiB\"",
        "6:10: pacing.period",
        &["0ns", "1ns to 1s"],
    ),
    (
        "policy = \"token-bucket\"\nrate = \"1Gb/s\"\nbuffers = 96",
        "7:11: pacing.buffers",
        &["has no buffers", "set policy = \"prototype\""],
    ),
    (
        "policy = \"buffer-credit\"\nbudget = \"512k\"",
        "6:10: pacing.budget",
        &["2MiB (twice max-transfer) to 256MiB (buffer-memory)"],
    ),
    ("policy = \"buffer-credit\"\nbudget = 0", "6:10: pacing.budget", &["0 bytes is out of range"]),
    (
        "policy = \"token-bucket\"",
        "5:10: pacing.policy",
        &["requires a rate", "add rate = \"180Gb/s\"", "or period = \"5700ns\""],
    ),
    (
        "policy = \"token-bucket\"\nrate = \"1Gb/s\"\nperiod = \"1us\"",
        "7:10: pacing.period",
        &["there is a rate, too", "leave out one"],
    ),
    (
        "policy = \"token-bucket\"\nrate = \"0Gb/s\"",
        "6:8: pacing.rate",
        &["0b/s is out of range", "16.777Mb/s (the largest command in a second) to 10Tb/s"],
    ),
    ("policy = \"token-bucket\"\nrate = \"11Tb/s\"", "6:8: pacing.rate", &["out of range"]),
    ("policy = \"token-bucket\"\nrate = \"180\"", "6:8: pacing.rate", &["no unit of rate", "Gb/s"]),
    ("policy = \"token-bucket\"\nrate = 180", "6:8: pacing.rate", &["allowed: a string"]),
    (
        "policy = \"token-bucket\"\nperiod = \"0ns\"",
        "6:10: pacing.period",
        &["0ns is out of range; allowed: 1ns to 1s"],
    ),
    ("policy = \"token-bucket\"\nperiod = \"1min\"", "6:10: pacing.period", &["no unit of time"]),
    ("policy = \"token-bucket\"\nperiod = \"2s\"", "6:10: pacing.period", &["1ns to 1s"]),
    (
        "policy = \"token-bucket\"\nrate = \"1Gb/s\"\nburst = \"4MiB\"",
        "7:9: pacing.burst",
        &["4MiB is out of range; allowed: 6MiB to 256MiB"],
    ),
    (
        "policy = \"token-bucket\"\nperiod = \"1us\"\nburst = 2",
        "7:9: pacing.burst",
        &["2 is out of range; allowed: 3 (one a reactor) to 1048576"],
    ),
    (
        "policy = \"token-bucket\"\nperiod = \"1us\"\nburst = \"6MiB\"",
        "7:9: pacing.burst",
        &["a number of commands, not \"6MiB\""],
    ),
    (
        "policy = \"prototype\"",
        "5:10: pacing.policy",
        &["needs a pool or a pacer", "add buffers = 96"],
    ),
    ("policy = \"prototype\"\nbuffers = 0", "6:11: pacing.buffers", &["1 to 1048576"]),
    (
        "policy = \"prototype\"\nbuffers = 96\ncache = 33",
        "7:9: pacing.cache",
        &["3 reactors have 96 buffers", "up to 32"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ncache = 1",
        "7:9: pacing.cache",
        &["no effect without buffers", "add buffers"],
    ),
    (
        "policy = \"prototype\"\nbuffers = 1\ncredit = \"2MiB\"",
        "7:10: pacing.credit",
        &["no effect without period"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ncredit = \"1MiB\"",
        "7:10: pacing.credit",
        &["1MiB is out of range; allowed: 2MiB to 256MiB"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ndrive-limit = 0",
        "7:15: pacing.drive-limit",
        &["0 is out of range"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ntuner = \"bandwith\"",
        "7:9: pacing.tuner",
        &["did you mean \"bandwidth\"?"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ntuner = \"bandwidth\"\ntuner-step = \"1ns\"",
        "7:9: pacing.tuner-interval",
        &["requires the key"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ntuner = \"bytes-in-flight\"",
        "7:9: pacing.tuner-threshold",
        &["requires the key", "12MiB"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ntuner = \"bytes-in-flight\"\n\
         tuner-threshold = 0",
        "8:19: pacing.tuner-threshold",
        &["out of range"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ntuner = \"bytes-in-flight\"\n\
         tuner-threshold = \"1MiB\"\ntuner-step = \"1ns\"",
        "9:14: pacing.tuner-step",
        &["has none"],
    ),
    (
        "policy = \"prototype\"\nperiod = \"1us\"\ntuner-step = \"1ns\"",
        "7:14: pacing.tuner-step",
        &["no effect without tuner"],
    ),
];

#[test]
fn what_cannot_work_is_refused_with_its_line_and_what_to_do() {
    for (keys, place, parts) in BAD {
        let error = parse(&format!("{LEAST}[pacing]\n{keys}\n")).unwrap_err();
        let text = error.problems[0].to_string();
        assert!(text.starts_with(&format!("t.toml:{place}: ")), "{keys}\n{text}");
        for part in *parts {
            assert!(text.contains(part), "{keys}\n{text}\nlacks {part:?}");
        }
        assert!(text.contains("; "), "{keys}\n{text}\nsays not what to do");
    }
}

#[test]
fn weights_are_from_1_to_1000() {
    let namespace = |weight: &str| {
        parse(&format!(
            "{LEAST}[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 512\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
             [[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\nweight = {weight}\n"
        ))
    };
    assert_eq!(namespace("1000").unwrap().subsystems[0].namespaces[0].weight, 1000);
    for weight in ["0", "-1", "1001"] {
        let error = namespace(weight).unwrap_err().to_string();
        let wanted = format!("namespace.weight: {weight} is out of range; allowed: 1 to 1000");
        assert!(error.contains(&wanted), "{error}");
    }
}

#[test]
fn a_policy_has_the_name_it_is_set_by() {
    for name in ["adaptive", "none", "buffer-credit"] {
        assert_eq!(pacing(&format!("policy = \"{name}\"")).name(), name);
    }
}
