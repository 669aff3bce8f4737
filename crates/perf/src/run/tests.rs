//! Whole runs against the test target: they report what happened, above all failures.

use std::sync::atomic::AtomicBool;

use clap::Parser;
use nvmeof_fake_target::{ActionScript, FakeAction, FakeTarget, FakeTargetOptions};
use nvmeof_wire::Status;
use nvmeof_wire::opcode::IoOpcode;
use serde_json::Value;

use super::*;
use crate::args::{Cli, Command};

/// Runs the tool with these arguments in addition to `run --connect` and the common ones; returns
/// its report.
///
/// Runs end by the number of I/Os, so a busy machine changes nothing.
fn try_run(target: &FakeTarget, arguments: &str) -> Result<Value> {
    let connect = format!("--connect={}", target.url());
    let fixed = [
        "nvmeof-perf",
        "run",
        &connect,
        "--hostnqn",
        "nqn.2026-11.io.x:h",
        "--bs=4k",
        "--time=600s",
    ];
    let arguments = fixed.into_iter().chain(arguments.split_whitespace());
    let Command::Run(args) = Cli::try_parse_from(arguments)?.command else { panic!("not a run") };
    let report = execute_run(&args, &Arc::new(AtomicBool::new(false)))?;
    Ok(serde_json::to_value(&report)?)
}

/// The same with a state file from a run against another target.
fn try_run_at(target: &FakeTarget, arguments: &str, state: &Path) -> Result<Value> {
    let mut kept: Value = serde_json::from_slice(&std::fs::read(state)?)?;
    kept["parameters"]["connect"] = serde_json::json!([target.url()]);
    std::fs::write(state, serde_json::to_vec(&kept)?)?;
    try_run(target, arguments)
}

fn run(target: &FakeTarget, arguments: &str) -> Value {
    try_run(target, arguments).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn small() -> FakeTargetOptions {
    // 64 units of 4 KiB: even a short run visits every unit many times.
    FakeTargetOptions {
        namespaces: [(1, (512, 9)), (2, (64, 12))].into(),
        ..FakeTargetOptions::default()
    }
}

#[test]
fn a_run_reports_what_it_did() {
    let target = FakeTarget::start(small());
    for workload in ["read", "write", "randread", "randwrite", "rw:50", "randrw:30"] {
        let report = run(&target, &format!("--rw {workload} --qd 4 --jobs 2 --ios 400"));
        assert_eq!((number(&report["errors"]), number(&report["verify_errors"])), (0, 0));
        assert!(report["iops"].as_f64().unwrap() > 0.0, "{report}");
        let (reads, writes) = (number(&report["read"]["ios"]), number(&report["write"]["ios"]));
        assert_eq!(reads + writes, number(&report["ios"]));
        assert_eq!(reads > 0, !workload.ends_with("write"), "{workload}");
        assert_eq!(writes > 0, !workload.ends_with("read"), "{workload}");
        let flows = report["flows"].as_array().unwrap();
        assert_eq!(flows.len(), 2);
        assert_eq!(flows.iter().map(|flow| number(&flow["ios"])).sum::<u64>(), reads + writes);
        assert!(reads + writes >= 400 && report["interrupted"] == false, "{report}");
        assert_eq!(report["targets"][0]["queues"], 2);
    }
    assert_eq!(target.shutdowns(), 6);
}

#[test]
fn namespaces_that_share_a_queue_depth_take_turns() {
    let target = FakeTarget::start(FakeTargetOptions {
        namespaces: (1..=5).map(|nsid| (nsid, (64, 12))).collect(),
        ..FakeTargetOptions::default()
    });
    let report = run(&target, "--rw randrw:50 --shared-qd 3 --nsid 2-4 --ios 300 --verify");
    let flows = report["flows"].as_array().unwrap();
    let nsids: Vec<_> = flows.iter().map(|flow| number(&flow["nsid"])).collect();
    assert_eq!(nsids, [2, 3, 4]);
    let ios: Vec<_> = flows.iter().map(|flow| number(&flow["ios"])).collect();
    let (least, most) = (ios.iter().min().unwrap(), ios.iter().max().unwrap());
    assert!(most - least <= 3 && *least >= 99, "{ios:?}");
    assert_eq!((number(&report["errors"]), number(&report["verify_errors"])), (0, 0));
    // All I/Os of a job fit in the one queue that it requested.
    assert_eq!(
        (&report["targets"][0]["queues"], &report["targets"][0]["queue_depth"]),
        (&1.into(), &3.into())
    );
    let error = try_run(&target, "--rw read --nsid 4-6").unwrap_err().to_string();
    assert!(error.contains("no namespace 6") && error.contains("1, 2, 3, 4, 5"), "{error}");
}

#[test]
fn verified_runs_pass_on_an_honest_target() {
    let target = FakeTarget::start(small());
    for arguments in [
        "--rw write --qd 4",
        "--rw randwrite --qd 16 --jobs 2",
        "--rw randrw:50 --qd 16 --ddgst --hdgst",
        "--rw rw:70 --qd 64 --nsid 1",
    ] {
        let report = run(&target, &format!("{arguments} --ios 500 --verify"));
        assert_eq!(
            (number(&report["errors"]), number(&report["verify_errors"])),
            (0, 0),
            "{report}"
        );
        assert_eq!(report["verify"]["read_back"], true);
        assert!(number(&report["verify"]["blocks_good"]) > 0);
    }
    // Everything is written by now, and a later run finds it.
    let report = run(&target, "--rw read --ios 300 --verify");
    assert!(number(&report["verify"]["blocks_good"]) > 0);
    assert_eq!(number(&report["verify"]["blocks_unwritten"]), 0);
    assert_eq!(number(&report["verify_errors"]), 0);
    // With another seed it finds none of its blocks, which is no error.
    let report = run(&target, "--rw read --ios 300 --verify --seed 2");
    assert_eq!(number(&report["verify"]["blocks_good"]), 0);
    assert!(number(&report["verify"]["blocks_unwritten"]) > 0);
    assert_eq!(number(&report["verify_errors"]), 0);
}

/// The report of a verified run in which every tenth I/O of a kind gets this action.
fn lie(action: FakeAction, of: IoOpcode, arguments: &str) -> Value {
    let script: ActionScript = Box::new(move |number, opcode| {
        // The first I/Os stay untouched: a block can only be stale if it was written before.
        if opcode == of && number >= 200 && number % 10 == 0 {
            return action;
        }
        FakeAction::Serve
    });
    let target = FakeTarget::scripted(small(), script);
    run(&target, &format!("{arguments} --ios 600 --verify --nsid 1"))
}

#[test]
fn every_lie_is_found_out() {
    let both = "--rw randrw:50 --qd 8";
    for (action, of, arguments, says) in [
        (FakeAction::FlipBit, IoOpcode::READ, both, "checksum"),
        (FakeAction::Shift(8), IoOpcode::READ, both, "data of LBA"),
        (FakeAction::Drop, IoOpcode::WRITE, both, "lost write"),
        (FakeAction::Tear, IoOpcode::WRITE, both, "lost write"),
        // Without a read in the workload, the read-back finds it.
        (FakeAction::Drop, IoOpcode::WRITE, "--rw randwrite --qd 8", "lost write"),
        (FakeAction::Tear, IoOpcode::WRITE, "--rw write --qd 1", "lost write"),
    ] {
        let report = lie(action, of, arguments);
        assert!(number(&report["verify_errors"]) > 0, "{action:?}: {report}");
        assert_eq!(number(&report["errors"]), 0, "{action:?}");
        let messages = report["messages"].to_string();
        assert!(messages.contains(says), "{action:?}: {messages}");
    }
}

#[test]
fn damage_between_runs_is_found() {
    let target = FakeTarget::start(small());
    run(&target, "--rw write --ios 100 --verify --nsid 1 --qd 1");
    target.tamper(1, |disk| disk[5 * 512 + 100] ^= 1);
    let report = run(&target, "--rw read --ios 100 --verify --nsid 1 --qd 1");
    assert!(number(&report["verify_errors"]) > 0);
    assert!(report["messages"].to_string().contains("LBA 5 "), "{report}");
    // A block of another namespace is not accepted as one of this namespace.
    let target = FakeTarget::start(FakeTargetOptions {
        namespaces: [(1, (512, 9)), (2, (512, 9))].into(),
        ..FakeTargetOptions::default()
    });
    run(&target, "--rw write --ios 100 --verify --qd 1");
    let mut other = Vec::new();
    target.tamper(2, |disk| other = disk.to_vec());
    target.tamper(1, |disk| disk.copy_from_slice(&other));
    let report = run(&target, "--rw read --ios 100 --verify --nsid 1");
    assert!(report["messages"].to_string().contains("another namespace"), "{report}");
}

#[test]
fn failed_ios_are_counted_and_the_run_goes_on() {
    let failing = Status::UNRECOVERED_READ_ERROR;
    let script: ActionScript = Box::new(move |number, _| match number {
        10..20 => FakeAction::Fail(failing),
        _ => FakeAction::Serve,
    });
    let target = FakeTarget::scripted(small(), script);
    let report = run(&target, "--rw randread --ios 300");
    assert_eq!(number(&report["errors"]), 10);
    assert!(number(&report["ios"]) >= 290);
    assert!(report["messages"].to_string().contains("Unrecovered"), "{report}");
}

#[test]
fn a_lost_connection_ends_the_run_with_a_report() {
    for action in [FakeAction::HangUp, FakeAction::Terminate] {
        let script: ActionScript =
            Box::new(move |number, _| if number == 300 { action } else { FakeAction::Serve });
        let target = FakeTarget::scripted(small(), script);
        let report = run(&target, "--rw randread --jobs 2");
        assert!(number(&report["errors"]) > 0);
        assert_eq!(report["interrupted"], true);
        assert!(report["messages"].to_string().contains("queue "), "{report}");
    }
}

#[test]
fn a_target_that_fails_everything_is_given_up() {
    let script: ActionScript = Box::new(|_, _| FakeAction::Fail(Status::INTERNAL_ERROR));
    let target = FakeTarget::scripted(small(), script);
    let report = run(&target, "--rw randread");
    assert!(report["messages"].to_string().contains("giving up"), "{report}");
}

#[test]
fn a_rate_is_kept() {
    let target = FakeTarget::start(small());
    let report = run(&target, "--rw randread --ios 300 --rate 1000 --qd 4");
    // A slow machine may fall behind, but nothing may be faster. 300 I/Os take 300 ms minus a burst
    // of 8.
    assert!(report["elapsed_s"].as_f64().unwrap() > 0.28, "{report}");
    assert!(number(&report["ios"]) >= 300);
}

/// Reads reach their rate immediately, and writes continue.
#[test]
fn reads_have_a_rate_of_their_own() {
    let target = FakeTarget::start(small());
    let report = run(&target, "--nsid 1 --rw randrw:50 --rate-read 1 --qd 2 --jobs 1 --ios 400");
    let [reads, writes] = ["read", "write"].map(|kind| number(&report[kind]["ios"]));
    assert!(reads > 0 && reads < 100 && writes > 300, "{reads} reads, {writes} writes");
    for arguments in [
        "--rw randread --rate-write 1k",
        "--rw write --rate-read 1k",
        "--rw randtrim --rate-write 1k",
    ] {
        let error = try_run(&target, arguments).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("use --rate"), "{error}");
    }
}

#[test]
fn more_outstanding_than_a_queue_holds_takes_more_queues() {
    let target_options = FakeTargetOptions { entries: 8, ..small() };
    let target = FakeTarget::start(target_options.clone());
    let report = run(&target, "--rw randread --ios 200 --qd 32 --nsid 1 --jobs 2");
    assert_eq!(report["targets"][0]["queues"], 8);
    assert_eq!(report["targets"][0]["queue_depth"], 7);
    assert_eq!(number(&report["errors"]), 0);
    let error = try_run(&target, "--rw randread --ios 200 --qd 32 --nsid 1 --jobs 8").unwrap_err();
    assert!(error.to_string().contains("grants 16 I/O queues of 7 commands"), "{error}");
}

#[test]
fn several_subsystems_share_a_run() {
    let (one, two) = (FakeTarget::start(small()), FakeTarget::start(small()));
    let second = format!("--connect {}", two.url());
    let report = run(&one, &format!("{second} --rw randread --ios 400 --qd 2"));
    assert_eq!(report["flows"].as_array().unwrap().len(), 4);
    assert_eq!(report["targets"].as_array().unwrap().len(), 2);
    assert!(report["flows"].as_array().unwrap().iter().all(|flow| number(&flow["ios"]) > 0));
    // Both have the same name, so they may be two paths to the same blocks.
    let error = try_run(&one, &format!("{second} --rw randwrite --ios 400 --verify")).unwrap_err();
    assert!(error.to_string().contains("connected twice"), "{error}");
}

#[test]
fn a_run_can_be_stopped_and_still_reports() {
    let target = FakeTarget::start(small());
    let connect = format!("--connect={}", target.url());
    let line = ["nvmeof-perf", "run", &connect, "--rw=read", "--time=600s"];
    let Command::Run(args) = Cli::try_parse_from(line).unwrap().command else {
        panic!("not a run")
    };
    let stop = Arc::new(AtomicBool::new(true));
    let report = serde_json::to_value(execute_run(&args, &stop).unwrap()).unwrap();
    assert_eq!((&report["interrupted"], number(&report["errors"])), (&Value::Bool(true), 0));
}

#[test]
fn what_does_not_fit_the_target_is_said() {
    let target = FakeTarget::start(small());
    for (arguments, says) in [
        ("--nsid 9", "no namespace 9 for this host; it has 1, 2"),
        ("--bs 1000", "multiple of the block size of namespace 1"),
        ("--bs 256k", "from MDTS); use --bs 131072 or less"),
        ("--offset 100", "--offset 100 is no multiple"),
        ("--size 1m", "reach beyond namespace 1"),
        ("--offset 256k", "no I/O of 4 KiB fits"),
        ("--verify --jobs 65", "each job its own part"),
    ] {
        let arguments = format!("--rw randread --ios 200 {arguments}");
        let error = try_run(&target, &arguments).unwrap_err();
        assert!(error.is::<UsageError>(), "{arguments}: {error}");
        assert!(error.to_string().contains(says), "{arguments}: {error}");
    }
}

#[test]
fn blocks_of_several_sizes_are_asked_for_by_their_shares() {
    let target = FakeTarget::start(small());
    let report =
        run(&target, "--rw randrw:50 --bssplit 4k/75:16k/25,8k --ios 2000 --qd 4 --nsid 1");
    let mean = |of: &str| number(&report[of]["bytes"]) / number(&report[of]["ios"]);
    // The mean size of reads is 7 KiB.
    assert!((6500..7900).contains(&mean("read")), "{report}");
    assert_eq!((mean("write"), number(&report["errors"])), (8192, 0));
    let error = try_run(&target, "--rw randread --bssplit 4k/50:256k/50").unwrap_err();
    assert!(error.to_string().contains("--bssplit 256 KiB is more than"), "{error}");
}

#[test]
fn a_hot_part_is_asked_for_more_often() {
    let script: ActionScript = Box::new(|_, _| FakeAction::Serve);
    let target = FakeTarget::scripted(small(), script);
    // Written data is random, the rest stays zero. 10 % of 512 blocks, in units of 4 KiB, receive
    // all writes.
    run(&target, "--rw randwrite --random-distribution zoned:100/10:0/90 --ios 600 --nsid 1");
    target.tamper(1, |disk| {
        let hot = disk.len() / 4096 / 10 * 4096;
        assert!(disk[..hot].chunks(4096).all(|unit| unit.iter().any(|&byte| byte != 0)));
        assert!(disk[hot..].iter().all(|&byte| byte == 0));
    });
    let error = try_run(&target, "--rw read --random-distribution zipf:1.1").unwrap_err();
    assert!(error.is::<UsageError>() && error.to_string().contains("--rw randread"), "{error}");
}

#[test]
fn what_is_trimmed_is_gone_and_what_is_trimmed_and_written_is_there() {
    let target = FakeTarget::start(small());
    run(&target, "--rw write --loops 1 --nsid 1");
    let report = run(&target, "--rw trim --loops 1 --nsid 1 --jobs 2 --qd 3");
    let trims = &report["trim"];
    assert_eq!((number(&trims["ios"]), number(&trims["bytes"])), (64, 64 * 4096));
    assert_eq!((number(&report["ios"]), number(&report["errors"])), (64, 0));
    target.tamper(1, |disk| assert!(disk.iter().all(|&byte| byte == 0)));
    let report = run(&target, "--rw randtrimwrite --ios 400 --qd 4 --nsid 1");
    let (trims, writes) = (number(&report["trim"]["ios"]), number(&report["write"]["ios"]));
    assert!(trims > 190 && writes > 190 && trims.abs_diff(writes) <= 4, "{report}");
    target.tamper(1, |disk| {
        let written = disk.chunks(4096).filter(|unit| unit.iter().any(|&byte| byte != 0)).count();
        assert!(written > 50, "{written}");
    });
    // Trims have no size limit.
    let report = run(&target, "--rw trim --loops 1 --nsid 1 --bssplit 128k");
    assert_eq!(number(&report["trim"]["ios"]), 2);
    let old = FakeTarget::start(FakeTargetOptions { deallocate: false, ..small() });
    let error = try_run(&old, "--rw randtrim").unwrap_err();
    assert!(error.is::<UsageError>() && error.to_string().contains("cannot be trimmed"), "{error}");
}

#[test]
fn a_run_ends_when_all_is_done() {
    let target = FakeTarget::start(small());
    for (arguments, bytes) in [
        ("--rw write --loops 3 --qd 8 --jobs 3", 3 * (512 * 512 + 64 * 4096)),
        ("--rw randread --io-size 200k --jobs 2", 208 << 10),
        ("--rw read --loops 1 --offset 64k --size 64k --shared-qd 3", 2 * 65536),
        ("--rw read --io-size 1m --nsid 1", 1 << 20),
    ] {
        let report = run(&target, arguments);
        assert_eq!(number(&report["bytes"]), bytes, "{arguments}");
        assert_eq!((number(&report["errors"]), &report["interrupted"]), (0, &false.into()));
    }
}

#[test]
fn jobs_together_go_through_everything_as_often_as_asked() {
    let visits = Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new()));
    let target = FakeTarget::start(small());
    // One of the jobs writes every block: none of the earlier data remains.
    target.tamper(1, |disk| disk.fill(7));
    run(&target, "--rw write --loops 1 --qd 4 --jobs 3 --nsid 1");
    target.tamper(1, |disk| {
        let mut visits = visits.lock().unwrap();
        for (unit, bytes) in disk.chunks(4096).enumerate() {
            visits.insert(unit, bytes.iter().any(|&byte| byte != 7));
        }
    });
    assert!(visits.lock().unwrap().values().all(|&visited| visited));
}

#[test]
fn jobs_think() {
    let target = FakeTarget::start(small());
    let report = run(
        &target,
        "--rw randread --ios 40 --thinktime 20ms --thinktime-blocks 10 --qd 4 --nsid 1",
    );
    // Three pauses between four times ten I/Os; nothing may be faster.
    assert!(report["elapsed_s"].as_f64().unwrap() > 0.06, "{report}");
    assert!((40..44).contains(&number(&report["ios"])), "{report}");
}

#[test]
fn writes_have_contents_of_their_own_if_asked_to() {
    let target = FakeTarget::start(small());
    let distinct = |arguments: &str| {
        run(&target, &format!("--rw write --loops 1 --qd 1 --nsid 1 {arguments}"));
        let mut units = std::collections::HashSet::new();
        target.tamper(1, |disk| units.extend(disk.chunks(4096).map(<[u8]>::to_vec)));
        units.len()
    };
    assert_eq!(distinct(""), 1);
    assert_eq!(distinct("--refill-buffers"), 64);
}

#[test]
fn a_run_that_was_interrupted_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    let arguments =
        format!("--rw write --loops 2 --nsid 1 --qd 4 --jobs 2 --resume {}", state.display());
    // The connection fails during the run.
    let script: ActionScript =
        Box::new(|number, _| if number == 80 { FakeAction::HangUp } else { FakeAction::Serve });
    let target = FakeTarget::scripted(small(), script);
    let report = run(&target, &arguments);
    assert_eq!((&report["interrupted"], &report["resumed_bytes"]), (&true.into(), &0.into()));
    let first = number(&report["bytes"]);
    assert!(state.exists() && first < 2 * 512 * 512, "{report}");
    // Other arguments make it another run.
    let other = try_run(&target, &arguments.replace("--qd 4", "--qd 5")).unwrap_err();
    assert!(other.is::<UsageError>() && other.to_string().contains("qd: 4, and now 5"), "{other}");
    let target = FakeTarget::start(small());
    target.tamper(1, |disk| disk.fill(7));
    let report = try_run_at(&target, &arguments, &state).unwrap();
    let (before, now) = (number(&report["resumed_bytes"]), number(&report["bytes"]));
    // No block is skipped. When the connection failed, 8 I/Os were in flight. Those of the other
    // job can complete after the run: its report does not contain them, and they are not repeated.
    assert!(before > 0 && before <= first + 8 * 4096, "{before} {first}");
    assert_eq!(before + now, 2 * 512 * 512, "{report}");
    assert_eq!((&report["interrupted"], state.exists()), (&false.into(), false));
    let error = try_run(&target, &arguments.replace("--loops 2", "--ios 9")).unwrap_err();
    assert!(error.to_string().contains("--io-size or --loops"), "{error}");
    std::fs::write(&state, "{}").unwrap();
    let error = format!("{:#}", try_run(&target, &arguments).unwrap_err());
    assert!(error.contains("not what a run has left"), "{error}");
}

#[test]
fn devices_of_this_machine_are_loaded_like_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let file = path.to_str().unwrap();
    let local = |arguments: &str| {
        let line = format!("nvmeof-perf run --time 600s {arguments}");
        let Command::Run(args) = Cli::try_parse_from(line.split(' '))?.command else {
            panic!("not a run")
        };
        let report = execute_run(&args, &Arc::new(AtomicBool::new(false)))?;
        anyhow::Ok(serde_json::to_value(&report)?)
    };
    let report =
        local(&format!("--device {file} --rw randread --ios 200 --qd 8 --jobs 2")).unwrap();
    assert_eq!((number(&report["errors"]), &report["targets"][0]["kind"]), (0, &"file".into()));
    // An empty file may be written to, and then it is not empty any more.
    let write = format!("--device {file} --rw randrw:50 --ios 900 --qd 8 --verify");
    assert_eq!(number(&local(&write).unwrap()["verify_errors"]), 0);
    let error = local(&write).unwrap_err();
    assert!(error.is::<UsageError>() && error.to_string().contains("not empty"), "{error}");
    let error = local(&format!("{write} --destroy-data ./disk")).unwrap_err();
    assert!(error.to_string().contains("./disk is not a tested device"), "{error}");
    let error = local("--device /nowhere/disk --rw write").unwrap_err();
    assert!(error.to_string().contains("file or device does not exist"), "{error}");
    let report = local(&format!("{write} --destroy-data {file}")).unwrap();
    assert_eq!((number(&report["errors"]), number(&report["verify_errors"])), (0, 0), "{report}");
    assert_eq!(report["verify"]["read_back"], true);
    // An I/O larger than a lease of memory, on a stripe of RAM devices. Then a RAM device together
    // with namespaces.
    let stripe = "--device ram:16m --device ram:16m --stripe 64k --rw randrw:50 --bs 5m --qd 3 --ios 40 --verify";
    let report = local(stripe).unwrap();
    assert_eq!((number(&report["errors"]), number(&report["verify_errors"])), (0, 0), "{report}");
    let target = FakeTarget::start(small());
    let both =
        format!("--device ram:1m --connect {} --rw randtrimwrite --loops 2 --qd 2", target.url());
    let report = local(&both).unwrap();
    assert_eq!(report["flows"].as_array().unwrap().len(), 3);
    assert_eq!(number(&report["write"]["bytes"]), 2 * ((1 << 20) + 512 * 512 + 64 * 4096));
    assert_eq!(number(&report["errors"]), 0, "{report}");
}

mod intervals {
    use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::plan::UsageError;

    /// The process that controls the intervals.
    struct Caller {
        lines: PipeWriter,
        results: BufReader<PipeReader>,
    }

    impl Caller {
        fn say(&mut self, line: &str) {
            writeln!(self.lines, "{line}").unwrap();
        }

        /// Runs a short interval and returns its result.
        fn interval(&mut self, line: &str) -> Value {
            self.say(line);
            std::thread::sleep(Duration::from_millis(1));
            self.say("-");
            self.result().unwrap()
        }

        fn result(&mut self) -> Option<Value> {
            let mut line = String::new();
            self.results.read_line(&mut line).unwrap();
            (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
        }

        /// Runs intervals until the result of one fulfills the condition.
        fn until(&mut self, line: &str, is_so: impl Fn(&Value) -> bool) -> (Value, u64) {
            let mut ios = 0;
            for _ in 0..10_000 {
                let result = self.interval(line);
                ios += number(&result["ios"]);
                if is_so(&result) {
                    return (result, ios);
                }
            }
            panic!("ten thousand intervals, and never so");
        }
    }

    /// Runs a load in intervals that `call` controls; returns the report, and the result of `call`.
    fn in_intervals<T: Send>(
        target: &FakeTarget,
        arguments: &str,
        call: impl FnOnce(Caller) -> T + Send,
    ) -> (Value, T) {
        let connect = format!("--connect={}", target.url());
        let fixed = ["nvmeof-perf", "run", &connect, "--rw=randread", "--intervals"];
        let arguments = fixed.into_iter().chain(arguments.split_whitespace());
        let Command::Run(args) = Cli::try_parse_from(arguments).unwrap().command else {
            panic!("not a run")
        };
        let ((lines, to_lines), (from_results, results)) = (pipe().unwrap(), pipe().unwrap());
        let ends = Mutex::new(Some((lines, results)));
        let console = IntervalConsole(Arc::new(move || {
            let (lines, results) = ends.lock().unwrap().take().unwrap();
            (Box::new(BufReader::new(lines)), Box::new(results))
        }));
        let caller = Caller { lines: to_lines, results: BufReader::new(from_results) };
        std::thread::scope(|scope| {
            let called = scope.spawn(|| call(caller));
            let mut spec = LoadSpec { intervals: Some(console), ..load(&args).unwrap() };
            let needs =
                TargetNeeds { jobs: spec.jobs, depth: spec.qd, shared: false, writes: false };
            let mut opened = Target::open(&args.target, &needs).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let report = load_target(&args, &mut spec, &mut opened, &stop).unwrap();
            opened.close();
            (serde_json::to_value(&report).unwrap(), called.join().unwrap())
        })
    }

    fn ios(result: &Value) -> [u64; 2] {
        [0, 1].map(|flow| number(&result["flows"][flow]["ios"]))
    }

    #[test]
    fn what_is_counted_and_what_is_loaded_goes_by_the_lines() {
        let target = FakeTarget::start(small());
        let (report, counted) = in_intervals(&target, "--qd 4 --jobs 2", |mut caller| {
            let (first, mut counted) =
                caller.until("both", |interval| ios(interval).iter().all(|n| *n > 0));
            assert_eq!((&first["turn"], &first["flows"][1]["nsid"]), (&"both".into(), &2.into()));
            assert!(first["latency_us"]["p99"].as_f64().unwrap() > 0.0, "{first}");
            caller.say("- 2=0");
            // I/Os in flight at the change complete at some time.
            let only_one = |interval: &Value| ios(interval)[0] > 0 && ios(interval)[1] == 0;
            counted += caller.until("one", only_one).1;
            counted += caller
                .until("other 1=0 2=1", |interval| ios(interval)[0] == 0 && ios(interval)[1] > 0)
                .1;
            // The last interval ends with the lines.
            caller.say("last 1=4");
            let Caller { lines, results } = caller;
            drop(lines);
            let last: Value = serde_json::from_reader(results).unwrap();
            assert_eq!(last["turn"], "last");
            counted + number(&last["ios"])
        });
        assert_eq!(
            number(&report["ios"]),
            counted,
            "the report has all intervals, and nothing else"
        );
        assert_eq!((&report["errors"], &report["interrupted"]), (&0.into(), &false.into()));
        assert_eq!(target.shutdowns(), 1);
    }

    #[test]
    fn what_fails_is_told_in_the_turn_in_which_it_does() {
        let left = Arc::new(AtomicU64::new(0));
        let to_fail = Arc::clone(&left);
        let script: ActionScript = Box::new(move |_, _| {
            let fail = |left: u64| left.checked_sub(1);
            match to_fail.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fail) {
                Ok(_) => FakeAction::Fail(Status::UNRECOVERED_READ_ERROR),
                Err(_) => FakeAction::Serve,
            }
        });
        let target = FakeTarget::scripted(small(), script);
        let (report, _) = in_intervals(&target, "--qd 4", |mut caller| {
            caller.say("first");
            caller.say("second");
            assert_eq!(caller.result().unwrap()["errors"], 0);
            left.store(3, Ordering::Relaxed);
            let mut failed = 0;
            for _ in 0..10_000 {
                // Intervals follow one another without a gap.
                caller.say("next");
                let interval = caller.result().unwrap();
                failed += number(&interval["errors"]);
                if failed == 3 {
                    // The result of the last interval can still be read.
                    return caller.results;
                }
            }
            panic!("only {failed} have failed");
        });
        assert_eq!(report["errors"], 3);
    }

    #[test]
    fn a_line_that_cannot_be_followed_ends_the_run_and_is_told() {
        let target = FakeTarget::start(small());
        for (line, says) in [
            ("1=2", "line 2 of standard input: an interval begins with its name"),
            ("", "line 2 of standard input: an interval begins with its name"),
            ("x 1:2", "`1:2` is not NSID=DEPTH"),
            ("x 1=-1", "`1=-1` is not NSID=DEPTH"),
            ("x 3=1", "namespace 3 is not loaded; these are: 1, 2"),
            ("x 1=5", "1=5 is deeper than --qd 4"),
        ] {
            let (report, ()) = in_intervals(&target, "--qd 4", |mut caller| {
                caller.say("-");
                caller.say(line);
                assert_eq!(caller.result(), None);
            });
            let message = report["messages"][0].as_str().unwrap();
            assert!(message.contains(says), "{line}: {message}");
            assert!(number(&report["errors"]) > 0, "{line}");
        }
    }

    #[test]
    fn results_that_nobody_takes_end_the_run() {
        let target = FakeTarget::start(small());
        let (report, ()) = in_intervals(&target, "--qd 1", |Caller { mut lines, results }| {
            drop(results);
            lines.write_all(b"a\n-\n").unwrap();
        });
        let message = report["messages"][0].as_str().unwrap();
        assert!(message.starts_with("cannot write the result of interval a"), "{message}");
    }

    #[test]
    fn a_load_that_ends_before_its_lines_waits_for_none() {
        let script: ActionScript = Box::new(|_, _| FakeAction::HangUp);
        let target = FakeTarget::scripted(small(), script);
        // The lines never arrive: the pipe stays open until the run has ended.
        let (report, caller) = in_intervals(&target, "--qd 1", |mut caller| {
            caller.say("- 1=0");
            caller
        });
        assert!(number(&report["errors"]) > 0, "{report}");
        drop(caller);
    }

    #[test]
    fn results_have_standard_output_to_themselves() {
        let line = "nvmeof-perf run --device null --rw read --intervals --json -".split(' ');
        let Command::Run(args) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        assert!(load(&args).unwrap_err().is::<UsageError>());
        for other in ["--time=9s", "--ramp=1s", "--verify", "--ios=3", "--loops=1", "--shared-qd=3"]
        {
            let line = ["nvmeof-perf", "run", "--device=null", "--rw=read", "--intervals", other];
            assert!(Cli::try_parse_from(line).is_err(), "{other}");
        }
    }
}
