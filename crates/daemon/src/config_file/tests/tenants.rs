//! Tests of the limits of namespaces and hosts: valid values, defaults, and invalid values.

use nvmeof_pacing::TenantLimits;

use super::{LEAST, parse};
use crate::config::Config;

const NAMESPACE: &str = "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = \"1MiB\"\n\
    [[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
    [[subsystem.namespace]]\nnsid = 1\ndevice = \"a\"\n";
const HOST: &str = "[[host]]\nnqn = \"nqn.2026-11.org.example:h\"\n";

fn with(text: &str) -> Config {
    let text = format!("{LEAST}{text}");
    parse(&text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

#[test]
fn a_namespace_has_rates_inline_or_as_a_table() {
    let wanted = TenantLimits {
        iops: Some(5000),
        bandwidth: Some(1_250_000_000),
        burst: 20_000_000,
        in_flight: None,
    };
    for limit in [
        "limit = { iops = 5000, bandwidth = \"10Gb/s\", burst = \"20ms\" }\n",
        "[subsystem.namespace.limit]\niops = 5000\nbandwidth = \"1.25GB/s\"\nburst = \"20ms\"\n",
    ] {
        let config = with(&format!("{NAMESPACE}{limit}"));
        assert_eq!(config.subsystems[0].namespaces[0].limits, wanted);
    }
    assert!(!with(NAMESPACE).subsystems[0].namespaces[0].limits.is_any());
    let config = with(&format!("{NAMESPACE}limit = {{ iops = 1 }}\n"));
    assert_eq!(config.subsystems[0].namespaces[0].limits.burst, 10_000_000);
}

#[test]
fn a_host_has_what_all_have_but_for_what_it_says() {
    let defaults = "[host-defaults]\nlimit = { iops = 1000, bandwidth = \"1Gb/s\" }\nweight = 2\n\
                    max-connections = 10\nmax-queues = 5\nmax-in-flight = \"8MiB\"\n";
    let config = with(&format!("{defaults}{HOST}"));
    assert_eq!(config.hosts[0].share, config.host_defaults);
    assert_eq!(config.host_defaults.limits.in_flight, Some(8 << 20));
    let said = "limit = { iops = 7 }\nweight = 3\nmax-connections = 0\nmax-queues = 6\n\
                max-in-flight = 0\n";
    let share = with(&format!("{defaults}{HOST}{said}")).hosts[0].share.clone();
    assert_eq!((share.limits.iops, share.limits.bandwidth), (Some(7), None), "as a whole");
    assert_eq!((share.limits.in_flight, share.weight), (None, 3));
    assert_eq!((share.max_connections, share.max_queues), (None, Some(6)));
    // An empty table removes the limit.
    let share = with(&format!("{defaults}{HOST}limit = {{}}\n")).hosts[0].share.clone();
    assert_eq!((share.limits.iops, share.limits.in_flight), (None, Some(8 << 20)));
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    for (text, parts) in [
        ("[host-defaults]\nnqn = \"x\"\n", &["5:1: host-defaults.nqn", "unknown key"][..]),
        ("[[host]]\nweight = 2\n", &["4:1: host.nqn: missing", "hostnqn"]),
        ("[[host]]\nnqn = \"\"\n", &["5:7: host.nqn", "the NQN is empty"]),
        ("[host-defaults]\nweight = 65\n", &["host-defaults.weight: 65", "1 to 64"]),
        (
            "[host-defaults]\nmax-connections = 1\n",
            &["host-defaults.max-connections: 1 is out", "needs one for a controller", "or 0"],
        ),
        ("[host-defaults]\nmax-queues = -1\n", &["host-defaults.max-queues: -1", "or 0 for any"]),
        (
            "[host-defaults]\nmax-in-flight = \"1MiB\"\n",
            &["max-in-flight: 1MiB", "2MiB (twice max-transfer) to 256MiB (buffer-memory)"],
        ),
        (
            "[host-defaults]\nlimit = { iops = 0 }\n",
            &["host-defaults.limit.iops: 0 is out of range", "1 to 1000000000"],
        ),
        (
            "[host-defaults]\nlimit = { bandwidth = \"1Mb/s\" }\n",
            &["host-defaults.limit.bandwidth: 1Mb/s", "the largest command in a second"],
        ),
        ("[host-defaults]\nlimit = { bandwidth = \"fast\" }\n", &["bandwidth", "Gb/s"]),
        (
            "[host-defaults]\nlimit = { iops = 1, burst = \"61s\" }\n",
            &["limit.burst: 61s is out of range", "0ns to 60s"],
        ),
        (
            "[host-defaults]\nlimit = { burst = \"1s\" }\n",
            &["limit.burst: no rate is set for the burst", "add iops"],
        ),
        ("[host-defaults]\nlimit = { iop = 1 }\n", &["unknown key", "did you mean `iops`?"]),
        ("[host-defaults]\nlimit = 5\n", &["host-defaults.limit", "integer"]),
    ] {
        let error = parse(&format!("{LEAST}{text}")).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{text}\n{error}\nlacks {part:?}");
        }
    }
    let error = parse(&format!("{LEAST}{HOST}{HOST}")).unwrap_err().to_string();
    assert!(error.contains("7:7: host.nqn: the host of line 5 is this one already"), "{error}");
}
