use super::*;

fn row(engine: &str, outcome: RowOutcome) -> EngineRow {
    EngineRow {
        lba_bytes: 512,
        layout: ReadLayout::Individual,
        drives: vec!["/dev/nvme0n1".into(), "/dev/nvme1n1".into()],
        engine: engine.into(),
        concurrency: 512,
        outcome,
        note: None,
    }
}

fn engines() -> EngineComparison {
    let figures = EngineFigures {
        threads: 512,
        depth: 1,
        kiops: 123.4,
        mean_us: 88.0,
        p99_us: 120.5,
        cpu_us: 3.25,
        errors: 2,
        partial: true,
    };
    EngineComparison {
        version: VERSION,
        machine: MachineInfo {
            host: "here".into(),
            kernel: "6.1".into(),
            cpus: 2,
            cpu_model: "Example CPU".into(),
        },
        command: "nvmeof-perf engines --device <x>".into(),
        drives: vec![DriveInfo {
            name: "/dev/nvme0n1".into(),
            lba_bytes: 512,
            ..DriveInfo::default()
        }],
        block_bytes: 4096,
        seconds: 1.0,
        partial: true,
        rows: vec![
            row("psync", RowOutcome::Measured(figures)),
            row("vfio", RowOutcome::Unable("it is the kernel's".into())),
        ],
    }
}

#[test]
fn the_reference_is_whole() {
    let rows = reference();
    assert_eq!(rows.len(), REFERENCE.lines().count() - 1);
    // Two formats, two layouts, three concurrencies, five engines.
    assert_eq!(rows.len(), 2 * 2 * 3 * 5);
    assert!(rows.iter().all(|row| row.kiops > 1000.0));
}

#[test]
fn the_paragraph_says_when_polling_loses_and_when_it_wins() {
    let text = about_polling(&reference()).join("\n");
    for part in [
        "it stays at 1.7 million reads a second",
        "go from 3.5 to 6.6 with more jobs",
        "with 4096-byte blocks and 512 jobs, 9.5 against 6.6 million",
        "(9.3 against 9.3 million)",
        "MD RAID-0) it makes no difference: 4.4 against 4.4 million",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The figures in the text follow from the rows.
#[test]
fn other_rows_say_other_things() {
    let mut rows = reference();
    rows.iter_mut().filter(|row| row.engine == "pvsync2-hipri").for_each(|row| row.kiops = 8000.0);
    let text = about_polling(&rows).join("\n");
    assert!(text.contains("it stays at 8.0 million"), "{text}");
}

#[test]
fn what_an_engine_cannot_do_is_a_row_that_says_why() {
    let text = table(&engines()).markdown();
    let rows: Vec<&str> = text.lines().skip(2).collect();
    assert!(rows[0].contains("123.4") && rows[0].contains("3.25"), "{text}");
    assert!(rows[0].contains("partial: ended before its time; 2 reads failed"), "{text}");
    assert!(rows[1].contains("| vfio ") && rows[1].contains("it is the kernel's"), "{text}");
}

#[test]
fn a_plot_has_a_bar_for_each_figure_and_none_for_what_is_not_there() {
    let plots = plots(&engines());
    let [(name, plot)] = &plots[..] else { panic!("{plots:?}") };
    assert_eq!(name, "512-individual");
    let svg = plot.svg();
    assert_eq!(svg.matches("class=\"mark s0 ").count(), 1);
    assert_eq!(svg.matches("class=\"mark ").count(), 1);
    assert!(svg.contains("measured on here, Linux 6.1, 2 CPUs of Example CPU"), "{svg}");
    let plots = reference_plots(&reference());
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["512-individual", "512-raid0", "4096-individual", "4096-raid0"]);
    for (_, plot) in &plots {
        let svg = plot.svg();
        // Five engines at each of three concurrencies.
        for series in 0..3 {
            assert_eq!(svg.matches(&format!("class=\"mark s{series} ")).count(), 5, "{series}");
        }
        assert!(svg.contains("the comparison of synchronous engines on 16 drives"));
    }
    // Plots of one format can be compared by eye.
    assert_eq!(plots[0].1.y, plots[1].1.y);
    assert_ne!(plots[0].1.y, plots[2].1.y);
}

#[test]
fn the_paragraph_on_arrays_has_the_figures_of_the_reference() {
    let text = about_md(&reference()).join("\n");
    for part in [
        "reads 1.5 to 1.9 million times a second from the array of drives with 512-byte blocks",
        "pvsync2 read 3.1 to 4.2 million",
        "with 4096-byte blocks 1.6 against 4.2 to 4.4",
        "blkdev_llseek",
        "at most 4.4 million reads a second against 9.5",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The paragraph on arrays says so: with 512-byte blocks, polling alone reads more from the array.
#[test]
fn all_engines_but_one_read_less_from_the_array() {
    let rows = reference();
    let others = rows.iter().filter(|row| row.layout == "raid0").map(|array| {
        let is_same = |row: &&ReferenceRow| {
            row.layout == "individual"
                && (row.lba_bytes, row.concurrency, &row.engine)
                    == (array.lba_bytes, array.concurrency, &array.engine)
        };
        (array, rows.iter().find(is_same).unwrap())
    });
    for (array, drives) in others {
        let is_exception = array.lba_bytes == 512 && array.engine == "pvsync2-hipri";
        assert_eq!(array.kiops < drives.kiops, !is_exception, "{array:?} {drives:?}");
    }
}

#[test]
fn results_without_a_cpu_model_are_read() {
    let text = r#"{"host":"h","kernel":"6.1","cpus":4}"#;
    let machine: MachineInfo = serde_json::from_str(text).unwrap();
    assert_eq!(machine.line(), "h, Linux 6.1, 4 CPUs");
}

#[test]
fn the_page_has_both_and_says_which_is_which() {
    let html = page(Some(&engines()), &reference()).document();
    for part in [
        "reference: the comparison of synchronous engines on 16 drives (sync_engines.csv)",
        "Why engines differ on MD RAID-0",
        "2 CPUs of Example CPU",
        "Partial: it was ended",
        "nvmeof-perf engines --device &lt;x&gt;",
        "What high-priority polling is",
        "it is the kernel's",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<svg").count(), 5);
    let alone = page(None, &reference()).document();
    assert_eq!(alone.matches("<svg").count(), 4);
}

#[test]
fn results_are_read_as_they_are_written() {
    let text = serde_json::to_string(&engines()).unwrap();
    assert_eq!(serde_json::from_str::<EngineComparison>(&text).unwrap(), engines());
    assert!(text.contains("\"outcome\":{\"unable\":\"it is the kernel's\"}"), "{text}");
}
