use super::*;

fn step(drive: &str, root: &str, shares: &[f64]) -> ScaleStep {
    ScaleStep {
        drive: drive.into(),
        root_complex: root.into(),
        adapter: String::new(),
        latencies: Vec::new(),
        cpus: None,
        gib_per_s: shares.iter().sum(),
        shares: shares.to_vec(),
        full: Vec::new(),
        problem: None,
        partial: false,
    }
}

fn scaling(steps: Vec<ScaleStep>) -> DriveScaling {
    DriveScaling {
        version: VERSION,
        place: RunOrigin::Local,
        machine: MachineInfo {
            host: "here".into(),
            kernel: "6.1".into(),
            cpus: 2,
            cpu_model: "Example CPU".into(),
        },
        command: "nvmeof-perf scale".into(),
        load: ScaleLoad { block_bytes: 4 << 20, jobs: 4, depth: 32, striped: true, seconds: 1.0 },
        partial: false,
        runs: vec![ScaleRun { order: "in order".into(), steps }],
        reference: Vec::new(),
        tree: Vec::new(),
        findings: Vec::new(),
    }
}

/// Three drives, two of them on a root complex that carries one and a half.
fn full() -> DriveScaling {
    scaling(vec![
        step("a", "0000:00", &[6.0]),
        step("b", "0000:40", &[6.0, 6.0]),
        step("c", "0000:00", &[4.0, 4.0, 4.0]),
    ])
}

#[test]
fn a_root_complex_that_is_full_is_named() {
    let [text] = &findings(&full())[..] else { panic!("{:?}", findings(&full())) };
    assert_eq!(
        text,
        "in order: root complex 0000:00 is full at 3 drives: the 2 drives on it read 8.0 GiB/s together, and the last \
         one added 0.0 of 6.0 GiB/s"
    );
}

#[test]
fn what_says_itself_that_it_is_full_is_told_once_and_dips_are_told() {
    let mut scaling = full();
    let steps = &mut scaling.runs[0].steps;
    steps[2].full = vec!["root complex 0000:00".into()];
    steps.push(step("d", "0000:00", &[2.5; 4]));
    steps[3].full = steps[2].full.clone();
    let findings = findings(&scaling);
    assert_eq!(
        findings,
        [
            "in order: root complex 0000:00 is full at 3 drives: 2 drives on it, 8.0 GiB/s",
            "in order: with 4 drives (3 drives on root complex 0000:00) all together read less than with 3: 10.0 after \
             12.0 GiB/s",
        ]
    );
}

#[test]
fn where_nothing_is_full_that_is_said_and_partial_steps_say_nothing() {
    let mut scaling = full();
    scaling.runs[0].steps[2].partial = true;
    assert_eq!(findings(&scaling), ["in order: nothing is full up to 3 drives (12.0 GiB/s)"]);
    scaling.runs[0].steps.clear();
    assert!(findings(&scaling).is_empty());
}

#[test]
fn the_summary_is_first_and_says_what_is_best_and_full() {
    let mut scaling = full();
    assert_eq!(
        summary(&scaling),
        [
            "in order: best with 2 drives, 12.0 GiB/s (12.9 GB/s); root complex 0000:00 is full from the 3rd drive"
        ]
    );
    scaling.place = RunOrigin::Simulated;
    scaling.runs[0].steps[2].full = vec!["adapter 0000:00:03".into()];
    let [line] = &summary(&scaling)[..] else { panic!() };
    assert!(line.starts_with("simulated, in order: best with"), "{line}");
    assert!(line.ends_with("adapter 0000:00:03 is full from the 3rd drive"), "{line}");
    scaling.runs[0].steps.truncate(2);
    assert!(summary(&scaling)[0].ends_with("nothing is full"));
    let html = page(&scaling).document();
    let (first, command) = (html.find("best with").unwrap(), html.find("Command: ").unwrap());
    assert!(first < command);
}

/// Three drives on two adapters of a root complex, with a queue each.
#[test]
fn an_adapter_that_is_full_is_named_if_its_neighbors_are_not() {
    let mut scaling = scaling(vec![
        step("a", "0000:00", &[6.0]),
        step("b", "0000:00", &[6.0, 6.0]),
        step("c", "0000:00", &[6.0, 4.0, 4.0]),
    ]);
    for (step, adapter) in scaling.runs[0].steps.iter_mut().zip(["01", "03", "03"]) {
        step.adapter = format!("0000:00:{adapter}");
    }
    let [text] = &findings(&scaling)[..] else { panic!("{:?}", findings(&scaling)) };
    let says =
        "in order: adapter 0000:00:03 is full at 3 drives: the 2 drives on it read 8.0 GiB/s";
    assert!(text.starts_with(says), "{text}");
    scaling.runs[0].steps[2].shares[0] = 4.0;
    assert!(findings(&scaling)[0].contains("root complex 0000:00 is full"));
}

#[test]
fn a_drive_that_is_slower_than_its_peers_is_named() {
    let steps = |shares: &[f64]| {
        let names = ["a", "b", "c", "d"];
        (1..=4).map(|n| step(names[n - 1], "0000:00", &shares[..n])).collect::<Vec<_>>()
    };
    let mut own = scaling(steps(&[6.0, 6.1, 3.0, 5.9]));
    own.load.striped = false;
    let text = findings(&own).join("\n");
    assert!(text.contains("c is slower than its peers: 3.00 GiB/s, its 3 peers 6.00"), "{text}");
    assert_eq!(text.matches("slower").count(), 1, "{text}");
    // In turn, all have the rate of the slowest; its latency shows it.
    let mut striped = scaling(steps(&[3.0; 4]));
    let latencies = [500.0, 520.0, 2400.0, 480.0];
    striped.runs[0].steps[3].latencies =
        latencies.map(|p50| ReadLatency { p50, ..ReadLatency::default() }).to_vec();
    let text = findings(&striped).join("\n");
    assert!(text.contains("c is slower than its peers: half of its reads take more than 2400"));
    assert_eq!(text.matches("slower").count(), 1, "{text}");
}

/// Six drives with a queue each on three adapters of two root complexes, at last with `shares`.
fn on_adapters(shares: [f64; 6]) -> DriveScaling {
    let places =
        [("0", "0:1"), ("0", "0:1"), ("0", "0:2"), ("0", "0:2"), ("0", "0:2"), ("4", "4:1")];
    let at = |(n, (root, adapter)): (usize, &(&str, &str))| {
        let names = ["a", "b", "c", "d", "e", "f"];
        let shares = if n == 5 { shares.to_vec() } else { vec![6.0; n + 1] };
        ScaleStep { adapter: (*adapter).into(), ..step(names[n], root, &shares) }
    };
    let mut scaling = scaling(places.iter().enumerate().map(at).collect());
    scaling.load.striped = false;
    scaling
}

#[test]
fn drives_that_are_slow_together_are_not_named() {
    let slower = |scaling: &DriveScaling| -> Vec<String> {
        findings(scaling).into_iter().filter(|text| text.contains("slower")).collect()
    };
    let shared = on_adapters([4.0, 4.0, 6.0, 6.0, 6.0, 6.0]);
    let says = "in order: all 2 drives on adapter 0:1 are slower than their peers: what they share \
                limits them";
    assert_eq!(slower(&shared), [says]);
    // A single drive of an adapter is slow, and so is one that shares nothing.
    let one = slower(&on_adapters([4.0, 6.0, 6.0, 6.0, 6.0, 6.0])).join("\n");
    assert!(one.starts_with("in order: a is slower than its peers: 4.00 GiB/s"), "{one}");
    let lone = slower(&on_adapters([6.0, 6.0, 6.0, 6.0, 6.0, 3.0])).join("\n");
    assert!(lone.starts_with("in order: f is slower than its peers: 3.00 GiB/s"), "{lone}");
    // A part that is full has been named already.
    let mut full = shared;
    full.runs[0].steps[5].full = vec!["adapter 0:1".into()];
    assert!(slower(&full).is_empty(), "{:?}", findings(&full));
}

/// Two drives of a root complex are compared with those of the others.
#[test]
fn a_root_complex_that_limits_both_of_its_drives_is_named() {
    let steps = [("a", "0"), ("b", "0"), ("c", "4"), ("d", "4"), ("e", "8"), ("f", "8")];
    let shares = [6.0, 6.0, 6.0, 6.0, 4.0, 4.0];
    let step_of = |(n, (drive, root)): (usize, &(&str, &str))| step(drive, root, &shares[..=n]);
    let mut scaling = scaling(steps.iter().enumerate().map(step_of).collect());
    scaling.load.striped = false;
    let text = findings(&scaling).join("\n");
    assert!(text.contains("all 2 drives on root complex 8 are slower than their peers"), "{text}");
    assert_eq!(text.matches("slower").count(), 1, "{text}");
}

#[test]
fn each_drive_has_its_latencies_and_a_step_its_cpus() {
    let mut scaling = full();
    assert!(drive_table(&scaling.runs[0]).is_none());
    let latency = ReadLatency { p50: 500.0, p99: 900.0, min: 90.0, max: 1200.0, deviation: 75.5 };
    let step = &mut scaling.runs[0].steps[2];
    (step.latencies, step.cpus) = (vec![latency; 3], Some(1.25));
    let text = drive_table(&scaling.runs[0]).unwrap().markdown();
    assert_eq!(text.lines().count(), 2 + 3, "{text}");
    for part in [" 4.29 |", "500.0", "900.0", "90.0", "1200.0", "75.5"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = table(&scaling, &scaling.runs[0]).markdown();
    assert!(text.lines().last().unwrap().contains(" 1.25 |"), "{text}");
    scaling.tree = vec!["-[0000:00]-<x>".into()];
    assert!(page(&scaling).document().contains("<pre>-[0000:00]-&lt;x&gt;</pre>"));
}

#[test]
fn the_table_has_shares_and_utilisation() {
    let mut scaling = full();
    let text = table(&scaling, &scaling.runs[0]).markdown();
    let last = text.lines().last().unwrap();
    let cells: Vec<&str> = last.split('|').map(str::trim).collect();
    let expected =
        ["3", "c", "0000:00", "2", "12.00", "12.88", "+0.00", "4.00", "4.00", "67", "8.00", ""];
    assert_eq!(cells[1..13], expected, "{text}");
    scaling.runs[0].steps[0] = step("a", "", &[0.0]);
    let text = table(&scaling, &scaling.runs[0]).markdown();
    let first: Vec<&str> = text.lines().nth(2).unwrap().split('|').map(str::trim).collect();
    let expected = ["?", "?", "0.00", "0.00", "+0.00", "0.00", "0.00", "?", "?"];
    assert_eq!(first[3..12], expected, "{text}");
    let mut scaling = full();
    scaling.reference = vec![(3, 10.0)];
    let text = table(&scaling, &scaling.runs[0]).markdown();
    assert!(text.lines().last().unwrap().contains("| +20.0 |"), "{text}");
}

#[test]
fn the_plot_has_a_line_an_order_and_says_where_it_is_from() {
    let mut scaling = full();
    scaling.reference = vec![(1, 6.0), (2, 12.0)];
    scaling.place = RunOrigin::Simulated;
    let svg = plot(&scaling).svg();
    assert_eq!(svg.matches("class=\"mark s0 ").count(), 2);
    assert_eq!(svg.matches("class=\"mark s1 ").count(), 3);
    for series in ["simulated, in order", "simulated, each as alone", "measured: all_ssd_read"] {
        assert!(svg.contains(series), "{series}: {svg}");
    }
    let html = page(&scaling).document();
    assert!(html.contains("class=\"mark-where\">simulated<"), "{html}");
}

#[test]
fn results_are_read_as_they_are_written() {
    let text = serde_json::to_string(&full()).unwrap();
    assert_eq!(serde_json::from_str::<DriveScaling>(&text).unwrap(), full());
    assert!(text.contains("\"where\":\"local\""), "{text}");
}
