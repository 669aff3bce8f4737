use super::*;

fn step(drive: &str, root: &str, shares: &[f64]) -> ScaleStep {
    ScaleStep {
        drive: drive.into(),
        root_complex: root.into(),
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
fn the_table_has_shares_and_utilisation() {
    let mut scaling = full();
    let text = table(&scaling, &scaling.runs[0]).markdown();
    let last = text.lines().last().unwrap();
    let cells: Vec<&str> = last.split('|').map(str::trim).collect();
    let expected = ["3", "c", "0000:00", "2", "12.00", "+0.00", "4.00", "4.00", "67", "8.00", ""];
    assert_eq!(cells[1..12], expected, "{text}");
    scaling.runs[0].steps[0] = step("a", "", &[0.0]);
    let text = table(&scaling, &scaling.runs[0]).markdown();
    let first: Vec<&str> = text.lines().nth(2).unwrap().split('|').map(str::trim).collect();
    assert_eq!(first[3..11], ["?", "?", "0.00", "+0.00", "0.00", "0.00", "?", "?"], "{text}");
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
    assert!(svg.contains("simulated"), "{svg}");
    let html = page(&scaling).document();
    assert!(html.contains("class=\"mark-where\">simulated<"), "{html}");
}

#[test]
fn results_are_read_as_they_are_written() {
    let text = serde_json::to_string(&full()).unwrap();
    assert_eq!(serde_json::from_str::<DriveScaling>(&text).unwrap(), full());
    assert!(text.contains("\"where\":\"local\""), "{text}");
}
