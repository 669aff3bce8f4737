//! Valid plans with their points, and invalid plans with their messages.

use super::*;
use crate::sweep::setup::{DeviceKind, Initiator, PacingSetup, TargetDevices};

const BASE: &str = r#"name = "p"
test = "9"

[target]
cores = 4

[load]
time = "1s"

[[host]]
initiator = "fio-spdk"
count = 2

[[job]]
name = "one"
queue-depth = 32
"#;

fn plan(more: &str) -> SweepPlan {
    SweepPlan::parse("p.toml", &format!("{BASE}{more}")).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the messages about a plan, lines joined.
fn told(text: &str) -> String {
    SweepPlan::parse("p.toml", text).map(|plan| panic!("{plan:?}")).unwrap_err().to_string()
}

/// Returns the messages about the base with one line replaced.
fn told_with(line: &str, instead: &str) -> String {
    assert_eq!(BASE.matches(line).count(), 1, "{line}");
    told(&BASE.replace(line, instead))
}

fn values(plan: &SweepPlan) -> Vec<String> {
    let show = |point: &PlannedPoint| {
        point.varied.iter().map(|v| format!("{}={}", v.key, v.value)).collect::<Vec<_>>().join(" ")
    };
    plan.points.iter().map(show).collect()
}

#[test]
fn without_vary_there_is_one_point_with_what_the_plan_says() {
    let plan = plan("");
    assert_eq!((plan.name.as_str(), plan.test.as_str(), plan.points.len()), ("p", "9", 1));
    let point = &plan.points[0];
    assert!(point.varied.is_empty());
    let setup = &point.setup;
    assert_eq!(setup.cores, 4);
    assert_eq!((setup.time, setup.ramp, setup.repeat), (1_000_000_000, 500_000_000, 1));
    assert_eq!(setup.hosts, [Initiator::FioSpdk, Initiator::FioSpdk]);
    assert_eq!(setup.pacing, PacingSetup::Adaptive);
    assert_eq!(setup.devices, TargetDevices { kind: DeviceKind::Drive, count: 16, delay: None });
    let job = &setup.jobs[0];
    assert_eq!(job.devices, (0..16).collect::<Vec<_>>());
    assert_eq!((job.queue_depth, job.threads, job.weight), (32, 1, 1));
    assert_eq!((job.blocks.as_slice(), job.reads), ([(131_072, 1.0)].as_slice(), 1.0));
}

#[test]
fn vary_is_the_product_of_its_lists_the_first_varying_slowest() {
    let plan = plan("[vary]\ntarget.cores = [16, 4]\njob.queue-depth = [1, 2, 3]\n");
    assert_eq!(
        values(&plan),
        [
            "target.cores=16 job.queue-depth=1",
            "target.cores=16 job.queue-depth=2",
            "target.cores=16 job.queue-depth=3",
            "target.cores=4 job.queue-depth=1",
            "target.cores=4 job.queue-depth=2",
            "target.cores=4 job.queue-depth=3",
        ]
    );
    let depths: Vec<_> = plan.points.iter().map(|p| p.setup.jobs[0].queue_depth).collect();
    let cores: Vec<_> = plan.points.iter().map(|point| point.setup.cores).collect();
    assert_eq!(depths, [1, 2, 3, 1, 2, 3]);
    assert_eq!(cores, [16, 16, 16, 4, 4, 4]);
}

#[test]
fn zip_goes_through_its_tables_together() {
    let zip = "zip = [{ target.cores = 16, target.pacing.cache = 6 }, { target.cores = 8, target.pacing.cache = 12 }]";
    let pacing = "target.pacing.policy = [\"prototype\"]\ntarget.pacing.buffers = [96]";
    let plan = plan(&format!("[vary]\n{pacing}\n{zip}\njob.queue-depth = [1, 2]\n"));
    let pairs: Vec<_> =
        plan.points.iter().map(|point| (point.setup.cores, point.setup.pacing.cache())).collect();
    assert_eq!(pairs, [(16, Some(6)), (16, Some(6)), (8, Some(12)), (8, Some(12))]);
}

#[test]
fn groups_are_products_of_their_own_and_name_the_same_keys() {
    let plan = plan(
        "[[vary]]\njob.queue-depth = [1, 2, 3]\n\
         [[vary]]\nonly-platform = [\"B\"]\nonly-where = [\"sim\"]\ntarget.cores = [16]\n",
    );
    assert_eq!(
        values(&plan),
        [
            "job.queue-depth=1 target.cores=4",
            "job.queue-depth=2 target.cores=4",
            "job.queue-depth=3 target.cores=4",
            "job.queue-depth=32 target.cores=16",
        ]
    );
    let count = |platform, place| plan.points.iter().filter(|p| p.runs_on(platform, place)).count();
    assert_eq!((count("A", "sim"), count("B", "sim"), count("B", "local")), (3, 4, 3));
}

#[test]
fn a_key_means_all_jobs_or_the_one_of_a_name() {
    let two = "[[job]]\nname = \"two\"\nqueue-depth = 8\n";
    let depths = |plan: &SweepPlan| -> Vec<Vec<u32>> {
        let of =
            |point: &PlannedPoint| point.setup.jobs.iter().map(|job| job.queue_depth).collect();
        plan.points.iter().map(of).collect()
    };
    assert_eq!(depths(&plan(&format!("{two}[vary]\njob.queue-depth = [5]\n"))), [[5, 5]]);
    assert_eq!(depths(&plan(&format!("{two}[vary]\njob.two.queue-depth = [5]\n"))), [[32, 5]]);
    assert_eq!(depths(&plan(&format!("{two}[vary]\n\"job.two.queue-depth\" = [5]\n"))), [[32, 5]]);
}

#[test]
fn a_table_that_is_not_there_yet_can_be_varied() {
    let plan = plan("[vary]\nplatform.scale-cache = [0.5, 2]\ntarget.devices.count = [8]\n");
    let caches: Vec<_> = plan.points.iter().map(|p| p.setup.platform["scale-cache"]).collect();
    assert_eq!(caches, [0.5, 2.0]);
    assert_eq!(plan.points[0].setup.devices.count, 8);
}

#[test]
fn parts_are_selected_third_by_third() {
    let part = |part: &str| {
        let text = BASE
            .replace(
                "cores = 4",
                "cores = 4\ndevices = { kind = \"part\", count = 2, parts = 3, slow = 2 }",
            )
            .replace("queue-depth = 32", &format!("queue-depth = 32\ndevices = {part}"));
        SweepPlan::parse("p.toml", &text).unwrap().points.remove(0).setup
    };
    assert_eq!(part("\"part-1\"").jobs[0].devices, [0, 1]);
    assert_eq!(part("\"part-3\"").jobs[0].devices, [4, 5]);
    assert_eq!(part("\"all\"").jobs[0].devices, [0, 1, 2, 3, 4, 5]);
    assert_eq!(part("[5, 0]").jobs[0].devices, [5, 0]);
    assert_eq!(part("\"all\"").devices.name(Initiator::FioSpdk), "split3+delay");
    assert_eq!(part("\"all\"").devices.delay, Some((1_000_000, 2)));
}

#[test]
fn unknown_keys_are_refused_with_their_line_and_what_is_meant() {
    assert_eq!(
        told_with("cores = 4", "core = 4"),
        "p.toml:5:1: target.core: unknown key; allowed: cores, devices, pacing, config, set (did you mean `cores`?)"
    );
    let text = told_with("queue-depth = 32", "qd = 32");
    assert!(
        text.starts_with("p.toml:16:1: job.qd: unknown key; allowed: name, devices, queue-depth,"),
        "{text}"
    );
    let text = told(&format!("{BASE}[vary]\njob.quue-depth = [1]\n"));
    assert!(text.starts_with("p.toml:18:5: job.quue-depth: unknown key; "), "{text}");
    assert!(text.ends_with("(did you mean `queue-depth`?)"), "{text}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn values_are_refused_where_they_are_written() {
    for (line, instead, what) in [
        (
            "cores = 4",
            "cores = 0",
            "p.toml:5:9: target.cores: 0 is out of range; allowed: 1 to 1024",
        ),
        (
            "cores = 4",
            "cores = \"4\"",
            "p.toml:5:9: target.cores: invalid type: string \"4\"; allowed: i64",
        ),
        (
            "time = \"1s\"",
            "time = \"1\"",
            "p.toml:8:8: load.time: \"1\" is no time; allowed: a number and a unit of ns, us, ms, s, as in \"5600ns\"",
        ),
        (
            "time = \"1s\"",
            "time = \"1ns\"",
            "p.toml:8:8: load.time: \"1ns\" is out of range; allowed: 10000000ns to 3600000000000ns",
        ),
        (
            "time = \"1s\"",
            "block-size = \"1KB\"",
            "p.toml:8:14: load.block-size: is no size; allowed: a number of bytes, or a number and a unit of k, KiB, M, MiB, G, GiB (powers of 1024), as in \"128KiB\"",
        ),
        (
            "time = \"1s\"",
            "block-size = 700",
            "p.toml:8:14: load.block-size: 700 bytes are no whole blocks; allowed: multiples of 512",
        ),
        (
            "time = \"1s\"",
            "block-size = 64",
            "p.toml:8:14: load.block-size: 64 bytes are out of range; allowed: 512 to 16777216 bytes",
        ),
        (
            "time = \"1s\"",
            "reads = 101",
            "p.toml:8:9: reads: 101 is no percentage; allowed: 0 to 100",
        ),
        (
            "time = \"1s\"",
            "repeat = 0",
            "p.toml:8:10: load.repeat: 0 is out of range; allowed: 1 to 10000",
        ),
        (
            "time = \"1s\"",
            "blocks = []",
            "p.toml:8:10: load.blocks: is an empty list; allowed: { size = ..., share = ... }",
        ),
        (
            "time = \"1s\"",
            "blocks = [{ size = 4096, share = 0 }]",
            "p.toml:8:34: load.blocks.share: 0 is no share; allowed: more than 0",
        ),
        (
            "time = \"1s\"",
            "blocks = [{ size = 4096 }]",
            "p.toml:8:11: load.blocks: has no size or no share; allowed: { size = \"128KiB\", share = 80 }",
        ),
        (
            "initiator = \"fio-spdk\"",
            "initiator = \"fio\"",
            "p.toml:11:13: host.initiator: `fio` is unknown; allowed: fio-spdk, fio-kernel, nvmeof-perf, local",
        ),
        (
            "initiator = \"fio-spdk\"",
            "",
            "p.toml:10:1: host.initiator: is missing; allowed: fio-spdk, fio-kernel, nvmeof-perf, local",
        ),
        (
            "queue-depth = 32",
            "",
            "p.toml:14:1: job.queue-depth: is missing; allowed: 1 to 65535, here or in [vary]",
        ),
        (
            "queue-depth = 32",
            "queue-depth = 32\nweight = 0",
            "p.toml:17:10: job.weight: 0 is out of range; allowed: 1 to 10000",
        ),
        (
            "queue-depth = 32",
            "queue-depth = 32\ndevices = \"part-2\"",
            "p.toml:17:11: job.devices: `part-2` is no selection of devices; allowed: \"all\", \"part-1\" to \"part-1\", or a list of positions from 0 to 15",
        ),
        (
            "queue-depth = 32",
            "queue-depth = 32\ndevices = [16]",
            "p.toml:17:11: job.devices: names no device of the target; allowed: \"all\", \"part-1\" to \"part-1\", or a list of positions from 0 to 15",
        ),
        (
            "queue-depth = 32",
            "queue-depth = 32\nhosts = [2]",
            "p.toml:17:10: job.hosts: 2 is out of range; allowed: 0 to 1",
        ),
        (
            "queue-depth = 32",
            "queue-depth = 32\nhosts = [1, 1]",
            "p.toml:17:9: job.hosts: names a host twice; allowed: each once",
        ),
        (
            "queue-depth = 32",
            "queue-depth = 32\nfrom = \"1s\"\nuntil = \"1s\"",
            "p.toml:18:9: job.until: the job ends at 1000000000 ns and starts at 1000000000 ns; allowed: later than `from`",
        ),
        (
            "name = \"p\"",
            "",
            "p.toml: name: is missing; allowed: a name for the results, as in \"test-03\"",
        ),
    ] {
        assert_eq!(told_with(line, instead), what);
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (more, what) in [
        (
            "[[job]]\nname = \"one\"\nqueue-depth = 1\n",
            "p.toml:17:1: job.name: two jobs are called `one`; allowed: a name of its own for each",
        ),
        (
            "[[disturb]]\nwhat = \"drives\"\nrate = 5\nat = \"1s\"\nlasts = \"1ms\"\n",
            "p.toml:18:8: disturb: is not complete; allowed: at and lasts (times), what = \"link\" with a rate in percent, or what = \"drives\" or \"cores\" without",
        ),
        (
            "[[disturb]]\nwhat = \"link\"\nat = \"1s\"\nlasts = \"1s\"\n",
            "p.toml:17:1: disturb.lasts: goes on after the end of the run; allowed: at + lasts at most ramp + time",
        ),
        (
            "[platform]\nports = -1\n",
            "p.toml:18:9: platform.ports: -1 is no quantity; allowed: 0 or more",
        ),
    ] {
        assert_eq!(told(&format!("{BASE}{more}")), what);
    }
    for (devices, what) in [
        ("kind = \"disk\"", "target.devices.kind: `disk` is no kind; allowed: null, drive, part"),
        (
            "kind = \"null\", slow = 1",
            "target.devices.slow: null devices have no delay; allowed: drive, part",
        ),
        (
            "parts = 3",
            "target.devices.parts: devices of kind `drive` have no parts; allowed: only with kind = \"part\"",
        ),
        ("slow = 17", "target.devices.slow: 17 is out of range; allowed: 0 to 16"),
        (
            "delay = \"1ms\"",
            "target.devices.delay: no device is slow; allowed: with `slow`, the number of slow devices",
        ),
    ] {
        let text = told_with("cores = 4", &format!("devices = {{ {devices} }}"));
        assert!(text.starts_with("p.toml:5:") && text.ends_with(what), "{text}\n{what}");
    }
}

#[test]
fn each_policy_takes_its_own_parameters() {
    for (pacing, what) in [
        (
            "policy = \"adaptiv\"",
            "policy: `adaptiv` is no policy; allowed: adaptive, none, buffer-credit, token-bucket, prototype, endless-cache (did you mean `adaptive`?)",
        ),
        (
            "policy = \"adaptive\", budget = \"1MiB\"",
            "budget: is no parameter of the policy `adaptive`; allowed: none",
        ),
        (
            "policy = \"buffer-credit\", buffers = 96",
            "buffers: is no parameter of the policy `buffer-credit`; allowed: budget",
        ),
        ("policy = \"buffer-credit\"", "budget: is missing; allowed: a size"),
        (
            "policy = \"buffer-credit\", budget = \"64KiB\"",
            "budget: 65536 bytes are out of range; allowed: 131072 to 1099511627776 bytes",
        ),
        (
            "policy = \"token-bucket\"",
            "pacing: has neither rate nor period; allowed: rate (bytes a second) or period (a time)",
        ),
        (
            "policy = \"token-bucket\", rate = \"1GiB\", period = \"5us\"",
            "pacing: has a rate and a period; allowed: rate (bytes a second) or period (a time)",
        ),
        (
            "policy = \"token-bucket\", period = \"0ns\"",
            "period: \"0ns\" is out of range; allowed: 1ns to 1000000000ns",
        ),
        (
            "policy = \"token-bucket\", period = \"2s\"",
            "period: \"2s\" is out of range; allowed: 1ns to 1000000000ns",
        ),
        (
            "policy = \"prototype\"",
            "pacing: has neither a pool nor a pacer; allowed: buffers, period, or both; or policy = \"none\"",
        ),
        (
            "policy = \"prototype\", buffers = 0",
            "buffers: 0 is out of range; allowed: 1 to 16777216",
        ),
        (
            "policy = \"prototype\", buffers = 96, cache = 97",
            "cache: 97 is out of range; allowed: 0 to 96",
        ),
        (
            "policy = \"prototype\", period = \"5us\", cache = 6",
            "cache: means nothing alone; allowed: with buffers",
        ),
        (
            "policy = \"prototype\", buffers = 96, credit = \"128KiB\"",
            "credit: means nothing alone; allowed: with period",
        ),
        (
            "policy = \"prototype\", period = \"5us\", credit = \"64KiB\"",
            "credit: 65536 bytes are out of range; allowed: 131072 to 1073741824 bytes",
        ),
        (
            "policy = \"prototype\", period = \"5us\", tuner = \"best\"",
            "tuner: `best` is no tuner; allowed: bytes-in-flight, bandwidth",
        ),
        (
            "policy = \"prototype\", period = \"5us\", tuner = \"bytes-in-flight\"",
            "tuner-threshold: is missing; allowed: a size",
        ),
    ] {
        let text = told_with("cores = 4", &format!("pacing = {{ {pacing} }}"));
        assert!(text.starts_with("p.toml:5:") && text.ends_with(what), "{text}\n{what}");
    }
}

#[test]
fn vary_that_means_nothing_is_refused() {
    for (vary, what) in [
        (
            "[vary]\njob.queue-depth = 5\n",
            "p.toml:18:19: vary.job.queue-depth: is not a list; allowed: a list of values to take in turn",
        ),
        (
            "[vary]\njob.queue-depth = []\n",
            "p.toml:18:19: vary.job.queue-depth: is an empty list; allowed: a list of values to take in turn",
        ),
        (
            "[vary]\njob.queue-depth = [1, 0]\n",
            "p.toml:18:23: job.queue-depth: 0 is out of range; allowed: 1 to 65535",
        ),
        (
            "[vary]\njob.tow.queue-depth = [1]\n",
            "p.toml:18:9: vary.job.tow.queue-depth: no [[job]] has the name `tow`; allowed: job.KEY for all, or job.NAME.KEY with one of [\"one\"]",
        ),
        (
            "[vary]\ndisturb.at = [\"1s\"]\n",
            "p.toml:18:9: vary.disturb.at: there is no [[disturb]]",
        ),
        (
            "[vary]\nname.x = [1]\n",
            "p.toml:18:6: vary.name.x: `name` is not a table; allowed: a dotted key of the plan",
        ),
        (
            "[vary]\nzip = [1]\n",
            "p.toml:18:8: vary.zip: is not a table; allowed: a list of tables of key = value",
        ),
        (
            "[vary]\nzip = [{ target.cores = 1 }]\ntarget.cores = [2]\n",
            "p.toml:19:8: vary.target.cores: is varied twice in one product; allowed: once, or in groups of their own",
        ),
        (
            "[vary]\nonly-where = [\"here\"]\n",
            "p.toml:18:14: vary.only-where: names no place; allowed: sim, local, remote",
        ),
        (
            "[vary]\nonly-platform = \"A\"\n",
            "p.toml:18:17: vary.only-platform: is not a list of names; allowed: as in [\"A\"]",
        ),
        (
            "[vary]\ntarget.cores = [4, 4]\n",
            "p.toml: vary: the same point twice: target.cores = 4; allowed: load.repeat, to run a point several times",
        ),
    ] {
        assert_eq!(told(&format!("{BASE}{vary}")), what);
    }
    let text = told(&BASE.replacen("name", "vary = 5\nname", 1));
    assert_eq!(
        text,
        "p.toml:1:8: vary: is not a table; allowed: a table of lists ([vary]), or several ([[vary]])"
    );
    let long: Vec<_> = (1..=150).map(|n| n.to_string()).collect();
    let long = long.join(", ");
    let text =
        told(&format!("{BASE}[vary]\ntarget.cores = [{long}]\njob.queue-depth = [{long}]\n"));
    assert_eq!(
        text,
        "p.toml: vary: the product of all lists is 22500 points; allowed: at most 20000"
    );
}

#[test]
fn all_that_is_wrong_is_told_at_once_and_once() {
    let text = told(&format!(
        "{}[vary]\njob.threads = [1, 2, 3]\n",
        BASE.replace("cores = 4", "cores = 0").replace("queue-depth = 32", "queue-depth = 0")
    ));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{text}");
    let text =
        told(&BASE.replace("cores = 4", "cores = 0").replace("time = \"1s\"", "time = \"1\""));
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn text_that_is_no_toml_is_refused_with_its_line() {
    assert!(told("name = \n").starts_with("p.toml:1:"), "{}", told("name = \n"));
    assert!(told("").contains("host: there is no host"), "{}", told(""));
    let error = SweepPlan::load(Path::new("no/such/plan.toml")).unwrap_err().to_string();
    assert!(error.starts_with("no/such/plan.toml: cannot read the file: "), "{error}");
}

#[test]
fn a_plan_that_is_only_tried_is_short_unless_something_happens_at_a_set_time() {
    let mut short = plan("");
    short.points[0].setup.repeat = 5;
    short.shorten();
    let setup = &short.points[0].setup;
    assert_eq!((setup.time, setup.ramp, setup.repeat), (200_000_000, 100_000_000, 1));
    let mut timed = plan("[[disturb]]\nwhat = \"drives\"\nat = \"1s\"\nlasts = \"2ms\"\n");
    timed.shorten();
    assert_eq!(timed.points[0].setup.time, 1_000_000_000);
}

/// The base with these settings of the command line.
fn set(more: &str, settings: &[&str]) -> Result<SweepPlan, String> {
    let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let text = format!("{BASE}{more}");
    SweepPlan::parse_with("p.toml", &text, &settings).map_err(|error| error.to_string())
}

#[test]
fn a_setting_replaces_a_key_in_every_point() {
    let vary = "[vary]\ntarget.cores = [16, 4]\njob.queue-depth = [1, 2]\n";
    let plan = set(vary, &["load.block-size=64KiB", "load.time=10s", "job.queue-depth = 8"]);
    let plan = plan.unwrap();
    assert_eq!(values(&plan), ["target.cores=16", "target.cores=4"], "the depth does not vary");
    for point in &plan.points {
        let (setup, job) = (&point.setup, &point.setup.jobs[0]);
        assert_eq!((setup.time, job.queue_depth), (10_000_000_000, 8));
        assert_eq!(job.blocks, [(65_536, 1.0)]);
    }
    let zip = "[vary]\nzip = [{ target.cores = 16, job.one.queue-depth = 1 }, \
               { target.cores = 8, job.one.queue-depth = 2 }]\n";
    let plan = set(zip, &["job.queue-depth=3"]).unwrap();
    assert_eq!(values(&plan), ["target.cores=16", "target.cores=8"]);
    assert!(plan.points.iter().all(|point| point.setup.jobs[0].queue_depth == 3));
}

#[test]
fn points_that_a_setting_makes_the_same_run_once() {
    let groups = "[[vary]]\njob.queue-depth = [1, 2]\n[[vary]]\njob.queue-depth = [4]\n";
    let plan = set(groups, &["job.queue-depth=8"]).unwrap();
    assert_eq!((plan.points.len(), plan.points[0].setup.jobs[0].queue_depth), (1, 8));
}

#[test]
fn a_wrong_setting_is_told_with_its_text() {
    let error = set("", &["load.block-size"]).unwrap_err();
    assert!(error.starts_with("--set load.block-size: is no setting; write KEY=VALUE"), "{error}");
    let error = set("", &["load.tim=1s"]).unwrap_err();
    assert!(error.starts_with("--set load.tim = \"1s\": load.tim: unknown key"), "{error}");
    let error = set("", &["load.time=1s", "load.ramp=soon"]).unwrap_err();
    assert!(error.starts_with("--set load.ramp = \"soon\": load.ramp: "), "{error}");
    let error = set("", &["job.two.queue-depth=1"]).unwrap_err();
    assert!(error.contains("no [[job]] has the name `two`"), "{error}");
    let error = set("", &["vary.target.cores=[1]"]).unwrap_err();
    assert!(error.contains("vary.target.cores: cannot be set"), "{error}");
    let error = set("[vary]\ntarget.cors = [1]\n", &["load.time=1s"]).unwrap_err();
    assert!(error.starts_with("p.toml:"), "{error}");
}

#[test]
fn threads_can_share_a_queue_depth() {
    let shared =
        set("[vary]\njob.queue-depth = [64, 256]\n", &["job.threads=8", "job.shared-depth=true"]);
    let shared = shared.unwrap();
    let jobs = shared.points.iter().map(|point| &point.setup.jobs[0]);
    let depths: Vec<_> = jobs.map(|job| (job.queue_depth, job.planned_depth())).collect();
    assert_eq!(depths, [(8, (64, 1)), (32, (256, 1))]);
    let error = set("", &["job.threads=5", "job.shared-depth=true"]).unwrap_err();
    assert!(error.contains("32 commands cannot be shared by 5 threads"), "{error}");
}
