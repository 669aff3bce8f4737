//! Hits in the last-level cache of the target's machine, counted by `perf stat`.
//!
//! The requested value is the share of the NIC's reads that hit. Intel's uncore counts these reads.
//! On other machines the closest event is counted. Every result names the counted events, or the
//! reason why there are none.

use std::time::Duration;

use anyhow::Result;

use super::machine::{RemoteMachine, quoted};
use super::process::{FinishedProcess, RunningProcess};

/// Interval between lines of counts, in milliseconds.
const INTERVAL: u32 = 100;
/// Marker before each try.
const MARK: &str = "== ";

/// Two events from which a share of hits follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventPair {
    /// Description of the counted events.
    what: &'static str,
    events: [PerfEvent; 2],
    share: HitFormula,
}

/// An event as an argument of perf, and as named in perf's output.
#[derive(Debug, PartialEq, Eq)]
struct PerfEvent {
    ask: &'static str,
    name: &'static str,
}

/// Formula for hits from the two counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HitFormula {
    HitsAndMisses,
    MissesOfAll,
}

const fn event(name: &'static str) -> PerfEvent {
    PerfEvent { ask: name, name }
}

/// Event pairs, the best first.
const PAIRS: &[EventPair] = &[
    // Ice Lake servers and later.
    EventPair {
        what: "reads of I/O devices",
        events: [
            event("unc_cha_tor_inserts.io_hit_pcirdcur"),
            event("unc_cha_tor_inserts.io_miss_pcirdcur"),
        ],
        share: HitFormula::HitsAndMisses,
    },
    // Haswell and Broadwell servers: PCIRdCur by opcode, the same for both events, as they share a
    // filter.
    EventPair {
        what: "reads of I/O devices",
        events: [event("llc_misses.pcie_read"), event("llc_references.pcie_read")],
        share: HitFormula::MissesOfAll,
    },
    // Skylake and Cascade Lake servers distinguish reads and writes for misses alone.
    EventPair {
        what: "reads and writes of I/O devices",
        events: [event("unc_cha_tor_inserts.io_hit"), event("unc_cha_tor_inserts.io_miss")],
        share: HitFormula::HitsAndMisses,
    },
    EventPair {
        what: "reads of all agents, mostly cores",
        events: [event("unc_cha_llc_lookup.read_miss"), event("unc_cha_llc_lookup.read")],
        share: HitFormula::MissesOfAll,
    },
    EventPair {
        what: "data reads of all agents, mostly cores",
        events: [event("unc_cha_llc_lookup.data_read_miss"), event("unc_cha_llc_lookup.data_read")],
        share: HitFormula::MissesOfAll,
    },
    // Zen: each core complex has its own L3; a device's reads do not look it up first.
    EventPair {
        what: "lookups of cores (AMD's L3 does not see the network card)",
        events: [
            PerfEvent { ask: "amd_l3/event=0x04,umask=0x01,name=l3_misses/", name: "l3_misses" },
            PerfEvent { ask: "amd_l3/event=0x04,umask=0xff,name=l3_lookups/", name: "l3_lookups" },
        ],
        share: HitFormula::MissesOfAll,
    },
    EventPair {
        what: "loads of cores, for want of uncore counters",
        events: [event("LLC-load-misses"), event("LLC-loads")],
        share: HitFormula::MissesOfAll,
    },
];

/// Cache counters of a machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CacheCounters {
    Counted {
        /// Path of perf on that machine.
        perf: String,
        pair: &'static EventPair,
    },
    /// Reason why nothing is counted.
    Unknown(String),
}

/// Counted hits.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct CacheHits {
    /// Percent over the whole run.
    pub(super) pct: Option<f64>,
    /// Percent in each interval of 100 ms.
    pub(super) series: Vec<Option<f64>>,
}

impl CacheCounters {
    /// Tries which counters exist.
    pub(super) fn probe(machine: &RemoteMachine, perf: &str) -> Self {
        let perf = quoted(perf);
        let mut script = format!("command -v {perf} >/dev/null || exit 0; export LC_ALL=C\n");
        for (at, pair) in PAIRS.iter().enumerate() {
            let events = quoted(&pair.asked());
            script += &format!(
                "echo '{MARK}{at}'; {perf} stat -a -x, -e {events} -- sleep 0.02 2>&1 </dev/null\n"
            );
        }
        script += "true";
        match machine.query(&script) {
            Err(error) => Self::Unknown(format!("{error:#}")),
            Ok(text) if text.is_empty() => {
                Self::Unknown(format!("no perf on {machine}; apt-get install linux-perf there"))
            }
            Ok(text) => Self::of(&text, perf, &machine.to_string()),
        }
    }

    fn of(text: &str, perf: String, machine: &str) -> Self {
        let mut why = "its counters never move";
        for part in text.split(MARK).skip(1) {
            let (number, output) = part.split_once('\n').unwrap_or((part, ""));
            let Some(pair) = number.parse().ok().and_then(|at: usize| PAIRS.get(at)) else {
                continue;
            };
            // A counter that never moves is useless; an idle machine still loads something.
            if pair.hits(output).pct.is_some() {
                return Self::Counted { perf, pair };
            }
            why = reason(output).unwrap_or(why);
        }
        Self::Unknown(format!("perf on {machine} has no counter for it: {why}"))
    }

    /// Returns a description: the counted events, or the reason why there are none.
    pub(super) fn about(&self) -> String {
        match self {
            Self::Counted { pair, .. } => {
                let [first, second] = &pair.events;
                format!("{} (perf stat: {}, {})", pair.what, first.name, second.name)
            }
            Self::Unknown(why) => format!("not counted: {why}"),
        }
    }

    /// Counts for `time` from now, if there are counters.
    pub(super) fn start(
        &self,
        machine: &RemoteMachine,
        time: Duration,
    ) -> Result<Option<RunningProcess>> {
        let Self::Counted { perf, pair } = self else { return Ok(None) };
        // The guard's program is this shell, which perf replaces: perf ends with the guard.
        let script = format!(
            "export LC_ALL=C; exec {perf} stat -a -x, -I {INTERVAL} -e {} -- sleep {}",
            quoted(&pair.asked()),
            time.as_secs_f64()
        );
        machine.start("sh", &["-c".to_owned(), script]).map(Some)
    }

    /// Returns the hits; for a failed count, none and the reason.
    pub(super) fn read(&self, counted: Option<Result<FinishedProcess>>) -> (CacheHits, String) {
        let (Self::Counted { pair, .. }, Some(counted)) = (self, counted) else {
            return (CacheHits::default(), self.about());
        };
        let read = match counted {
            // The rest of the message quotes what the program wrote.
            Err(error) => Err(error.to_string().split(": ").next().unwrap_or_default().to_owned()),
            Ok(finished) => {
                let hits = pair.hits(&finished.stderr);
                let why = reason(&finished.stderr).unwrap_or("perf counted nothing");
                if hits.pct.is_some() { Ok(hits) } else { Err(why.to_owned()) }
            }
        };
        match read {
            Ok(hits) => (hits, self.about()),
            Err(why) => (CacheHits::default(), format!("not counted in this run: {why}")),
        }
    }
}

/// Reasons why perf counts nothing, each with marks of it in perf's output in lower case.
const REASONS: [(&[&str], &str); 4] = [
    (
        &["perf_event_paranoid", "access to performance", "permission"],
        "perf may not count there: use a root login, or lower kernel.perf_event_paranoid",
    ),
    (&["event syntax error"], "the processor or its kernel does not have the events"),
    (&["<not supported>"], "the processor does not count, or not in a virtual machine"),
    (&["<not counted>"], "other programs use the counters"),
];

/// Returns the reason why perf counts nothing, from its output, which no report shows.
fn reason(output: &str) -> Option<&'static str> {
    let output = output.to_lowercase();
    let is_it = |marks: &[&str]| marks.iter().any(|mark| output.contains(mark));
    REASONS.iter().find(|(marks, _)| is_it(marks)).map(|(_, reason)| *reason)
}

impl EventPair {
    fn asked(&self) -> String {
        self.events.each_ref().map(|event| event.ask).join(",")
    }

    /// Parses lines `[seconds,]count,unit,event,...`, one per event, or with a time one per
    /// interval and event.
    ///
    /// If perf counts uncore boxes separately, their counts are added. A value that is not a number
    /// was not counted.
    fn hits(&self, text: &str) -> CacheHits {
        let mut moments: Vec<(String, [Option<f64>; 2])> = Vec::new();
        for line in text.lines() {
            let fields: Vec<_> = line.split(',').map(str::trim).collect();
            let Some((at, which)) = self.find(&fields) else { continue };
            let moment = at.checked_sub(3).map_or("", |time| fields[time]).to_owned();
            let count = at.checked_sub(2).and_then(|count| fields[count].parse::<f64>().ok());
            if moments.last().is_none_or(|(last, _)| *last != moment) {
                moments.push((moment, [None, None]));
            }
            let (Some((_, counts)), Some(count)) = (moments.last_mut(), count) else { continue };
            counts[which] = Some(counts[which].unwrap_or(0.0) + count);
        }
        let whole = moments.iter().filter_map(|(_, [first, second])| first.zip(*second));
        let (first, second) =
            whole.fold((0.0, 0.0), |sum, (first, second)| (sum.0 + first, sum.1 + second));
        let series = moments.iter().map(|(_, [first, second])| {
            first.zip(*second).and_then(|(first, second)| self.share.percent(first, second))
        });
        CacheHits { pct: self.share.percent(first, second), series: series.collect() }
    }

    /// Finds one of the two events in a line: its position, and which event.
    fn find(&self, fields: &[&str]) -> Option<(usize, usize)> {
        fields.iter().enumerate().find_map(|(at, field)| {
            let same = |event: &PerfEvent| event.name.eq_ignore_ascii_case(field);
            Some((at, self.events.iter().position(same)?))
        })
    }
}

impl HitFormula {
    /// Returns the share in percent; `None` without lookups.
    fn percent(self, first: f64, second: f64) -> Option<f64> {
        let (hits, all) = match self {
            Self::HitsAndMisses => (first, first + second),
            Self::MissesOfAll => ((second - first).max(0.0), second),
        };
        (all > 0.0).then(|| hits / all * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    fn pair(event: &str) -> &'static EventPair {
        PAIRS.iter().find(|pair| pair.events.iter().any(|own| own.name == event)).unwrap()
    }

    #[test]
    fn what_perf_writes_is_understood() {
        // perf-stat(1), CSV format: count, unit, event, time counted, percent of the time,
        // variance, metric, its unit.
        let whole = "9900,,unc_cha_tor_inserts.io_hit_pcirdcur,100200300,100.00,,\n\
                     100,,unc_cha_tor_inserts.io_miss_pcirdcur,100200300,100.00,,\n";
        let hits = pair("unc_cha_tor_inserts.io_hit_pcirdcur").hits(whole);
        assert_eq!(hits, CacheHits { pct: Some(99.0), series: vec![Some(99.0)] });
        // Output of perf 6.1 on a virtual machine.
        let none =
            "<not supported>,,LLC-load-misses,0,100.00,,\n<not supported>,,LLC-loads,0,100.00,,\n";
        assert_eq!(pair("LLC-loads").hits(none).pct, None);
        let half = "10,,LLC-load-misses,5,100.00,12.5,of all LL-cache accesses\n<not counted>,,LLC-loads,0,0.00,,\n";
        assert_eq!(pair("LLC-loads").hits(half).pct, None);
        assert_eq!(pair("LLC-loads").hits("").pct, None);
        // Separate uncore boxes, in capitals.
        let boxes = "1,,L3_MISSES,5,100.00,,\n2,,L3_MISSES,5,100.00,,\n12,,l3_lookups,5,100.00,,\n";
        assert_eq!(pair("l3_misses").hits(boxes).pct, Some(75.0));
    }

    #[test]
    fn intervals_make_a_series_and_a_sum() {
        let text = "pid 77\n\
                    \x20    0.100100,90,,unc_cha_tor_inserts.io_hit,99,100.00,,\n\
                    \x20    0.100100,10,,unc_cha_tor_inserts.io_miss,99,100.00,,\n\
                    \x20    0.200200,<not counted>,,unc_cha_tor_inserts.io_hit,0,0.00,,\n\
                    \x20    0.200200,10,,unc_cha_tor_inserts.io_miss,99,100.00,,\n\
                    \x20    0.300300,10,,unc_cha_tor_inserts.io_hit,99,50.00,,\n\
                    \x20    0.300300,90,,unc_cha_tor_inserts.io_miss,99,50.00,,\n";
        let hits = pair("unc_cha_tor_inserts.io_hit").hits(text);
        assert_eq!(hits, CacheHits { pct: Some(50.0), series: vec![Some(90.0), None, Some(10.0)] });
    }

    /// Writes a fake perf that supports one pair of events and rejects the rest in perf's words.
    fn perf(folder: &std::path::Path, known: &str) -> String {
        let file = folder.join("perf");
        let script = format!(
            "#!/bin/sh\n\
             for word; do case \"$word\" in *{known}*) yes=1;; -I) intervals=1;; esac; done\n\
             if [ -z \"$yes\" ]; then echo \"event syntax error: '$6'\" >&2; exit 129; fi\n\
             t= ; [ -z \"$intervals\" ] || t='     0.100,'\n\
             echo \"${{t}}25,,LLC-load-misses,9,100.00,,\" >&2; echo \"${{t}}100,,LLC-loads,9,100.00,,\" >&2\n\
             while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"\n"
        );
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file.display().to_string()
    }

    #[test]
    fn the_best_pair_that_counts_is_taken_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheCounters::probe(&RemoteMachine::Local, &perf(folder.path(), "LLC-loads"));
        assert_eq!(
            cache.about(),
            "loads of cores, for want of uncore counters (perf stat: LLC-load-misses, LLC-loads)"
        );
        let time = Duration::from_millis(10);
        let mut running = cache.start(&RemoteMachine::Local, time).unwrap().expect("it counts");
        let finished = running.finish(Instant::now() + Duration::from_secs(60));
        let (hits, about) = cache.read(Some(finished));
        assert_eq!((hits.pct, hits.series, about), (Some(75.0), vec![Some(75.0)], cache.about()));
    }

    /// The output of perf is for a terminal: it has lines of advice, and numbers without units.
    #[test]
    fn what_perf_writes_reaches_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheCounters::probe(&RemoteMachine::Local, &perf(folder.path(), "LLC-loads"));
        for (output, why) in [
            ("Error:\nAccess to performance monitoring is limited.\n", "perf may not count there"),
            ("<not counted>,,LLC-loads,0,100.00,,\n", "other programs use the counters"),
            ("99,,cycles,1,100.00,,\n", "perf counted nothing"),
        ] {
            let script = format!("printf '%s' '{output}' >&2");
            let mut running = RemoteMachine::Local.start("sh", &["-c".to_owned(), script]).unwrap();
            let finished = running.finish(Instant::now() + Duration::from_secs(60));
            let (hits, about) = cache.read(Some(finished));
            assert_eq!(hits, CacheHits::default());
            let told = format!("not counted in this run: {why}");
            assert!(about.starts_with(&told), "{about}");
            let raw = output.lines().next().unwrap();
            assert!(!about.contains(raw), "{about}");
        }
    }

    #[test]
    fn without_counters_it_is_told_why() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = CacheCounters::probe(&RemoteMachine::Local, "no-such-perf");
        assert!(nothing.about().contains("no perf on this machine"), "{}", nothing.about());
        let cache = CacheCounters::probe(
            &RemoteMachine::Local,
            &perf(folder.path(), "cycles-that-nobody-asks"),
        );
        let why = "perf on this machine has no counter for it: the processor or its kernel does not \
                   have the events";
        assert_eq!(cache.about(), format!("not counted: {why}"));
        assert!(cache.start(&RemoteMachine::Local, Duration::ZERO).unwrap().is_none());
        assert_eq!(cache.read(None).0, CacheHits::default());
        let counted = CacheCounters::Counted { perf: String::new(), pair: &PAIRS[0] };
        let (hits, about) = counted.read(Some(Err(anyhow::anyhow!("the machine is gone"))));
        assert_eq!(
            (hits.pct, about.as_str()),
            (None, "not counted in this run: the machine is gone")
        );
    }
}
