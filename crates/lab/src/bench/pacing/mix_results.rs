//! Results of the mixes: adaptive over no pacing, in pairs of adjacent turns.

use nvmeof_report::{Column, HtmlPage, Point, Table};

use super::comparison::GBPS;
use super::mix_plan::{MIXES, Mix};
use super::plan::BenchPolicy;
use super::result::{MIX, POLICY};
use super::show::json_list;
use crate::bench::load::Spread;
use crate::bench::median_interval::MedianInterval;

/// Minimum share of its bandwidth without pacing that the slow namespace keeps.
const SLOW_LEAST: f64 = 0.9;
/// The same of both namespaces together.
const TOTAL_LEAST: f64 = 0.97;

/// Outcome of a mix.
struct MixResult<'a> {
    mix: &'a Mix,
    /// Pairs of turns: without pacing, and with adaptive.
    pairs: Vec<[&'a Point; 2]>,
    /// Ratios of bandwidth, adaptive over none.
    slow: MedianInterval,
    total: MedianInterval,
}

impl<'a> MixResult<'a> {
    /// Returns the outcome of a mix, if it was measured.
    fn of(mix: &'a Mix, points: &'a [Point]) -> Option<Self> {
        let name = mix.to_string();
        let turns = |policy: BenchPolicy| {
            let policy = policy.to_string();
            let is_one = move |point: &&Point| point.value(POLICY) == Some(policy.as_str());
            let of_mix = points.iter().filter(|point| point.value(MIX) == Some(name.as_str()));
            of_mix.filter(is_one).collect::<Vec<_>>()
        };
        let (without, adaptive) = (turns(BenchPolicy::None), turns(BenchPolicy::Adaptive));
        let pairs: Vec<_> = without
            .iter()
            .filter_map(|&none| {
                let is_next = |point: &&&Point| point.repetition == none.repetition;
                Some([none, *adaptive.iter().find(is_next)?])
            })
            .collect();
        if pairs.is_empty() {
            return None;
        }
        let slow = ratio(&pairs, |point| gbps_of(point, mix.slow.nsid()));
        let total = ratio(&pairs, GBPS);
        Some(Self { mix, pairs, slow, total })
    }

    /// Returns whether both lower ends keep their bounds.
    fn is_met(&self) -> bool {
        self.slow.low >= SLOW_LEAST && self.total.low >= TOTAL_LEAST
    }

    /// Returns whether a whole interval is below its bound.
    fn is_missed(&self) -> bool {
        self.slow.high < SLOW_LEAST || self.total.high < TOTAL_LEAST
    }

    /// Returns the bounds that are not met, in words.
    fn verdict(&self) -> String {
        let word = |name: &str, ratio: MedianInterval, least: f64| {
            let outcome = if ratio.high < least { "missed" } else { "inconclusive" };
            (ratio.low < least).then(|| format!("{name} {outcome}"))
        };
        let words = [word("slow", self.slow, SLOW_LEAST), word("total", self.total, TOTAL_LEAST)];
        let words: Vec<_> = words.into_iter().flatten().collect();
        if words.is_empty() { "met".to_owned() } else { words.join(", ") }
    }

    fn row(&self) -> Vec<String> {
        let Self { mix, pairs, slow, total, .. } = self;
        let nsids = mix.nsids();
        let without = |of: &dyn Fn(&Point) -> f64| {
            Spread::of(&pairs.iter().map(|[none, _]| of(none)).collect::<Vec<_>>()).median
        };
        let tail = |nsid: u32| format!("{:.2}", ratio(pairs, |point| p99_of(point, nsid)).median);
        let bounded = pairs.iter().filter(|[_, adaptive]| adaptive.budget_bytes.is_some()).count();
        vec![
            mix.to_string(),
            format!("{:.3}", without(&|point| gbps_of(point, mix.slow.nsid()))),
            format!("{:.2}", without(&GBPS)),
            slow.to_string(),
            total.to_string(),
            tail(nsids[1]),
            tail(nsids[0]),
            format!("{bounded}/{}", pairs.len()),
            self.verdict(),
        ]
    }
}

/// Returns the ratio of a figure, adaptive over none, in all pairs.
fn ratio(pairs: &[[&Point; 2]], of: impl Fn(&Point) -> f64) -> MedianInterval {
    let ratios = pairs.iter().map(|[none, adaptive]| of(adaptive) / of(none));
    MedianInterval::of(&ratios.filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
}

/// Returns the bandwidth of a namespace, over all hosts.
fn gbps_of(point: &Point, nsid: u32) -> f64 {
    point.flows.iter().filter(|flow| flow.device + 1 == nsid).map(|flow| flow.gbps).sum()
}

/// Returns the p99 of a namespace, at the host where it is longest.
fn p99_of(point: &Point, nsid: u32) -> f64 {
    let flows = point.flows.iter().filter(|flow| flow.device + 1 == nsid);
    flows.map(|flow| flow.p99_us).fold(0.0, f64::max)
}

fn results(points: &[Point]) -> Vec<MixResult<'_>> {
    MIXES.iter().filter_map(|mix| MixResult::of(mix, points)).collect()
}

/// Returns the result of a mix in a line, while others are measured.
pub(super) fn line(mix: &Mix, points: &[Point]) -> String {
    let result = MixResult::of(mix, points).map(|result| {
        format!(": slow {}, total {}, {}", result.slow, result.total, result.verdict())
    });
    format!("{mix}{}", result.unwrap_or_default())
}

/// Returns a row for each mix.
fn table(results: &[MixResult<'_>]) -> Table {
    let mut table = Table::new(vec![
        Column::words("mix"),
        Column::numbers("slow without pacing", "Gb/s"),
        Column::numbers("total without pacing", "Gb/s"),
        Column::numbers("slow", "ratio"),
        Column::numbers("total", "ratio"),
        Column::numbers("p99 of slow", "ratio"),
        Column::numbers("p99 of fast", "ratio"),
        Column::numbers("turns with a budget", ""),
        Column::words("verdict"),
    ]);
    results.iter().for_each(|result| table.push(result.row()));
    table
}

/// Returns the number of mixes that keep both bounds.
fn summary(results: &[MixResult<'_>]) -> String {
    let met = results.iter().filter(|result| result.is_met()).count();
    let missed = results.iter().filter(|result| result.is_missed()).count();
    format!(
        "{met} of {} mixes: slow at least {SLOW_LEAST} and total at least {TOTAL_LEAST} of none, \
         by the lower ends; {missed} below by the whole interval",
        results.len()
    )
}

const ABOUT: &str = "Ratios are adaptive over none, in pairs of adjacent turns: the median, with \
    its 95 % confidence interval.";

/// Returns the results as Markdown that is readable in a terminal too.
pub(super) fn markdown(points: &[Point], about: &str) -> String {
    let results = results(points);
    let (table, summary) = (table(&results).markdown(), summary(&results));
    format!("measured locally: {about}\n\n{ABOUT}\n\n{table}\n{summary}\n")
}

/// Returns the results as a page that opens from disk.
pub(super) fn page(points: &[Point], about: &str) -> anyhow::Result<String> {
    let results = results(points);
    let mut page = HtmlPage::new("Mixes under adaptive and none", "measured locally");
    page.paragraph(about);
    page.paragraph(ABOUT);
    page.table(&table(&results));
    page.paragraph(&summary(&results));
    page.data("results", &json_list(points)?);
    Ok(page.document())
}

#[cfg(test)]
mod tests {
    use super::super::mix_turns::tests::made_up;
    use super::*;

    /// Returns pairs of a mix in which adaptive has these ratios of the fast and the slow one.
    fn pairs(mix: &Mix, ratios: &[[f64; 2]]) -> Vec<Point> {
        let mut points = Vec::new();
        for (repetition, ratio) in (1..).zip(ratios) {
            // The speed of the machine differs from pair to pair.
            let speed = f64::from(repetition);
            let of = |by: [f64; 2]| [9.0 * speed * by[0], speed * by[1]];
            points.push(made_up(mix, BenchPolicy::None, repetition, of([1.0, 1.0])));
            points.push(made_up(mix, BenchPolicy::Adaptive, repetition, of(*ratio)));
        }
        points
    }

    fn verdict(ratios: &[[f64; 2]]) -> String {
        let points = pairs(&MIXES[0], ratios);
        MixResult::of(&MIXES[0], &points).expect("it was measured").verdict()
    }

    #[test]
    fn the_lower_ends_decide() {
        assert_eq!(verdict(&[[1.0, 0.95]; 6]), "met");
        assert_eq!(verdict(&[[1.0, 0.85]; 6]), "slow missed");
        assert_eq!(verdict(&[[0.9, 1.0]; 6]), "total missed");
        assert_eq!(verdict(&[[0.9, 0.5]; 6]), "slow missed, total missed");
        let mut one_less = [[1.0, 1.0]; 6];
        one_less[2] = [1.0, 0.8];
        assert_eq!(verdict(&one_less), "slow inconclusive");
        assert_eq!(verdict(&[[1.0, 1.0]; 5]), "slow inconclusive, total inconclusive", "too few");
    }

    #[test]
    fn every_measured_mix_is_a_row_and_the_page_has_the_points() {
        let good = [[1.0, 1.0]; 6];
        let bad = [[1.0, 0.1]; 6];
        let points: Vec<_> =
            [(&MIXES[0], good), (&MIXES[5], bad)].iter().flat_map(|(m, r)| pairs(m, r)).collect();
        let line = line(&MIXES[0], &points);
        assert!(line.ends_with("total 1.000 (1.000 to 1.000), met"), "{line}");
        let text = markdown(&points, "a machine");
        assert!(text.contains("| 1.000 (1.000 to 1.000) |"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("| ram")).count(), 2, "{text}");
        let end = "1 of 2 mixes: slow at least 0.9 and total at least 0.97 of none, by the lower \
                   ends; 1 below by the whole interval\n";
        assert!(text.ends_with(end), "{text}");
        let page = page(&points, "a machine").expect("points are JSON");
        assert_eq!(page.matches("bench-pacing").count(), points.len());
        // A turn without its partner is no pair.
        assert!(results(&points[..1]).is_empty());
    }
}
