//! Comparisons of adaptive with the other policies.
//!
//! They are arithmetic over points, within each round, because the machine can differ in the next.

use std::fmt;

use nvmeof_report::Point;

use super::plan::{BenchDevice, BenchPolicy, POLICIES};
use super::result::{DEPTH, DEVICE, POLICY};
use crate::bench::load::Spread;
use crate::bench::median_interval::MedianInterval;

/// Minimum share of the best policy's bandwidth for a comparison of tails.
const NEAR: f64 = 0.98;
/// Share of deviation up to which a ratio counts as equal.
const SAME: f64 = 0.01;
/// Share of its bandwidth alone that the fast namespace must keep alongside a slow one.
const KEPT: f64 = 0.95;

/// A figure of a point.
pub(super) type PointFigure = fn(&Point) -> f64;

pub(super) const GBPS: PointFigure = |point| point.total.gbps;
pub(super) const P99: PointFigure = |point| point.total.latency_us.p99;
pub(super) const P99_9: PointFigure = |point| point.total.latency_us.p99_9;
/// Bandwidth of the first namespace.
pub(super) const FAST_GBPS: PointFigure =
    |point| point.flows.first().map_or(f64::NAN, |flow| flow.gbps);
/// Bandwidth of the second namespace.
pub(super) const SLOW_GBPS: PointFigure =
    |point| point.flows.get(1).map_or(f64::NAN, |flow| flow.gbps);

/// All measurements of one policy on one device at one depth, one point per round.
#[derive(Debug, Clone, Default)]
pub(super) struct PolicyPoints<'a>(Vec<&'a Point>);

impl<'a> PolicyPoints<'a> {
    pub(super) fn of(
        points: &'a [Point],
        policy: BenchPolicy,
        device: BenchDevice,
        depth: u32,
    ) -> Self {
        let names = [
            (POLICY, policy.to_string()),
            (DEVICE, device.to_string()),
            (DEPTH, depth.to_string()),
        ];
        let is_here = |point: &&Point| {
            names.iter().all(|(key, name)| point.value(key) == Some(name.as_str()))
        };
        Self(points.iter().filter(is_here).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn spread(&self, of: PointFigure) -> Spread {
        Spread::of(&self.0.iter().map(|point| of(point)).collect::<Vec<_>>())
    }

    /// Returns the median of the rounds in which the figure is known.
    pub(super) fn median_of(&self, of: fn(&Point) -> Option<f64>) -> Option<f64> {
        let known: Option<Vec<f64>> = self.0.iter().map(|point| of(point)).collect();
        known.filter(|known| !known.is_empty()).map(|known| Spread::of(&known).median)
    }

    /// Returns the ratio of a figure to the other cell's, within each round that both have.
    pub(super) fn over(
        &self,
        ours: PointFigure,
        other: &Self,
        theirs: PointFigure,
    ) -> MedianInterval {
        self.against(ours, |_| Some(other), theirs)
    }

    /// Returns the same ratio, where the other cell can differ in each round.
    fn against<'o>(
        &self,
        ours: PointFigure,
        other: impl Fn(u32) -> Option<&'o Self>,
        theirs: PointFigure,
    ) -> MedianInterval
    where
        'a: 'o,
    {
        MedianInterval::of(&self.ratios(ours, other, theirs))
    }

    fn ratios<'o>(
        &self,
        ours: PointFigure,
        other: impl Fn(u32) -> Option<&'o Self>,
        theirs: PointFigure,
    ) -> Vec<f64>
    where
        'a: 'o,
    {
        let ratio = |mine: &&Point| {
            let other = other(mine.repetition)?.in_round(mine.repetition)?;
            Some(ours(mine) / theirs(other))
        };
        self.0.iter().filter_map(ratio).collect()
    }

    fn in_round(&self, round: u32) -> Option<&Point> {
        self.0.iter().copied().find(|point| point.repetition == round)
    }

    /// Returns the median of all rounds except this one; of this one, if there is no other.
    fn median_beside(&self, of: PointFigure, round: u32) -> f64 {
        let others = |point: &&&Point| point.repetition != round || self.0.len() == 1;
        Spread::of(&self.0.iter().filter(others).map(|point| of(point)).collect::<Vec<_>>()).median
    }
}

/// Returns the policies with their cells.
pub(super) fn cells(
    points: &[Point],
    device: BenchDevice,
    depth: u32,
) -> Vec<(BenchPolicy, PolicyPoints<'_>)> {
    POLICIES
        .iter()
        .map(|&policy| (policy, PolicyPoints::of(points, policy, device, depth)))
        .filter(|(_, cell)| !cell.is_empty())
        .collect()
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ComparisonResult {
    /// Subject of the comparison.
    pub(super) what: String,
    /// Ratio of adaptive to its reference.
    pub(super) ratio: MedianInterval,
    /// The bound of `ratio`, and whether it is a minimum.
    bound: f64,
    is_least: bool,
    /// The figures as text.
    pub(super) figures: String,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComparisonOutcome {
    /// The median meets the bound, even if the rounds are too few for significance.
    Met,
    /// The median misses the bound, but its whole confidence interval is within [`SAME`] of it.
    Equal,
    /// The median misses the bound, but by less than these rounds can resolve.
    Inconclusive,
    Missed,
}

impl ComparisonResult {
    fn new(
        what: String,
        ratio: MedianInterval,
        (bound, is_least): (f64, bool),
        figures: String,
    ) -> Self {
        Self { what, ratio, bound, is_least, figures }
    }

    pub(super) fn outcome(&self) -> ComparisonOutcome {
        let Self { ratio, bound, .. } = *self;
        let keeps = |ratio: f64| if self.is_least { ratio >= bound } else { ratio <= bound };
        let is_same = |ratio: f64| (ratio / bound - 1.0).abs() <= SAME;
        if keeps(ratio.median) {
            ComparisonOutcome::Met
        } else if is_same(ratio.low) && is_same(ratio.high) {
            ComparisonOutcome::Equal
        } else if keeps(ratio.low) || keeps(ratio.high) {
            ComparisonOutcome::Inconclusive
        } else {
            ComparisonOutcome::Missed
        }
    }
}

impl fmt::Display for ComparisonResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, ratio, bound, figures, .. } = self;
        let word = match self.outcome() {
            ComparisonOutcome::Met => "met",
            ComparisonOutcome::Equal => "equal",
            ComparisonOutcome::Inconclusive => "inconclusive",
            ComparisonOutcome::Missed => "not met",
        };
        let side = if self.is_least { "at least" } else { "at most" };
        write!(f, "{word}: {what}: {figures}; ratio {ratio}, {side} {bound:.2} required")
    }
}

/// Compares adaptive with another policy at all depths together, which reveals differences too
/// small at one depth.
pub(super) fn at_all_depths(
    points: &[Point],
    device: BenchDevice,
    depths: &[u32],
    other: BenchPolicy,
    of: PointFigure,
) -> MedianInterval {
    let ratios = |&depth: &u32| {
        let cell = |policy| PolicyPoints::of(points, policy, device, depth);
        let theirs = cell(other);
        cell(BenchPolicy::Adaptive).ratios(of, |_| Some(&theirs), of)
    };
    MedianInterval::of(&depths.iter().flat_map(ratios).collect::<Vec<_>>())
}

/// Returns all comparisons of these points: bandwidth and tails with one namespace, and the fast
/// one's share with two.
pub(super) fn all(
    points: &[Point],
    devices: &[BenchDevice],
    depths: &[u32],
) -> Vec<ComparisonResult> {
    let mut comparisons = Vec::new();
    for &device in devices {
        for &depth in depths {
            if device == BenchDevice::Mix {
                comparisons.extend(kept(points, depth));
            } else {
                comparisons.extend(bandwidth(points, device, depth));
                comparisons.extend(tail(points, device, depth, "p99", P99));
                comparisons.extend(tail(points, device, depth, "p99.9", P99_9));
            }
        }
    }
    comparisons
}

/// Compares the bandwidth with that of the best other policy.
fn bandwidth(points: &[Point], device: BenchDevice, depth: u32) -> Option<ComparisonResult> {
    let cells = cells(points, device, depth);
    let (ours, others) = split(&cells)?;
    let gbps = |cell: &PolicyPoints<'_>| cell.spread(GBPS).median;
    let (name, best) = others.iter().max_by(|a, b| gbps(&a.1).total_cmp(&gbps(&b.1)))?;
    let figures = format!("{:.2} Gb/s, {name} {:.2}", gbps(ours), gbps(best));
    let what = format!("bandwidth, {device}, depth {depth}");
    Some(ComparisonResult::new(what, of_the_best(ours, &others), (1.0, true), figures))
}

/// Returns the ratio of adaptive's bandwidth to that of the best other policy, round by round.
///
/// The other rounds determine the best policy: if all are equal, the best of a round is only lucky
/// in it.
fn of_the_best(ours: &PolicyPoints<'_>, others: &[&NamedPoints<'_>]) -> MedianInterval {
    let best = |round: u32| {
        let gbps = |named: &&&NamedPoints<'_>| named.1.median_beside(GBPS, round);
        others.iter().max_by(|a, b| gbps(a).total_cmp(&gbps(b))).map(|named| &named.1)
    };
    ours.against(GBPS, best, GBPS)
}

/// Compares a tail among the policies near the best in bandwidth.
fn tail(
    points: &[Point],
    device: BenchDevice,
    depth: u32,
    name: &str,
    of: PointFigure,
) -> Option<ComparisonResult> {
    let cells = cells(points, device, depth);
    let (ours, others) = split(&cells)?;
    let gbps = |cell: &PolicyPoints<'_>| cell.spread(GBPS).median;
    let best = cells.iter().map(|(_, cell)| cell).max_by(|a, b| gbps(a).total_cmp(&gbps(b)))?;
    let what = format!("{name}, {device}, depth {depth}");
    let bandwidth = of_the_best(ours, &others);
    if bandwidth.median < NEAR {
        let figures = format!("not within 2 % of the best in bandwidth, {:.2} Gb/s", gbps(best));
        return Some(ComparisonResult::new(what, bandwidth, (NEAR, true), figures));
    }
    let median = |cell: &PolicyPoints<'_>| cell.spread(of).median;
    let is_near = |cell: &PolicyPoints<'_>| cell.over(GBPS, best, GBPS).median >= NEAR;
    let near: Vec<_> = others.into_iter().filter(|(_, cell)| is_near(cell)).collect();
    let Some((rival, theirs)) = near.iter().min_by(|a, b| median(&a.1).total_cmp(&median(&b.1)))
    else {
        let ratio = ours.over(of, ours, of);
        let figures = format!("{:.0} us, no other policy near in bandwidth", median(ours));
        return Some(ComparisonResult::new(what, ratio, (1.0, false), figures));
    };
    let shortest = |round: u32| {
        let tail = |named: &&&NamedPoints<'_>| named.1.median_beside(of, round);
        near.iter().min_by(|a, b| tail(a).total_cmp(&tail(b))).map(|named| &named.1)
    };
    let figures = format!("{:.0} us, {rival} {:.0}", median(ours), median(theirs));
    Some(ComparisonResult::new(what, ours.against(of, shortest, of), (1.0, false), figures))
}

/// Compares the fast namespace alongside a slow one with itself alone, at the same total depth.
pub(super) fn kept(points: &[Point], depth: u32) -> Option<ComparisonResult> {
    let cell = |device| PolicyPoints::of(points, BenchPolicy::Adaptive, device, depth);
    let (beside, alone) = (cell(BenchDevice::Mix), cell(BenchDevice::Ram));
    if beside.is_empty() || alone.is_empty() {
        return None;
    }
    let figures = format!(
        "{:.2} of {:.2} Gb/s alongside a slow one that gets {:.2}",
        beside.spread(FAST_GBPS).median,
        alone.spread(GBPS).median,
        beside.spread(SLOW_GBPS).median
    );
    let what = format!("fast namespace, mix, depth {depth}");
    Some(ComparisonResult::new(what, beside.over(FAST_GBPS, &alone, GBPS), (KEPT, true), figures))
}

type NamedPoints<'a> = (BenchPolicy, PolicyPoints<'a>);

/// Separates adaptive from the other policies.
fn split<'c, 'a>(
    cells: &'c [NamedPoints<'a>],
) -> Option<(&'c PolicyPoints<'a>, Vec<&'c NamedPoints<'a>>)> {
    let ours = cells.iter().find(|(policy, _)| *policy == BenchPolicy::Adaptive)?;
    let others: Vec<_> =
        cells.iter().filter(|(policy, _)| *policy != BenchPolicy::Adaptive).collect();
    (!others.is_empty()).then_some((&ours.1, others))
}

#[cfg(test)]
mod tests {
    use super::super::plan::MeasuredStep;
    use super::super::result::tests::made_up;
    use super::*;

    const CREDIT: BenchPolicy = BenchPolicy::BufferCredit(96);

    fn is_met(comparison: &ComparisonResult) -> bool {
        comparison.outcome() == ComparisonOutcome::Met
    }

    /// Returns one point per round, with these bandwidths and this tail.
    fn rounds(policy: BenchPolicy, device: BenchDevice, gbps: &[f64], p99: f64) -> Vec<Point> {
        rounds_of(MeasuredStep { policy, device, depth: 64 }, gbps, p99)
    }

    fn rounds_of(step: MeasuredStep, gbps: &[f64], p99: f64) -> Vec<Point> {
        (1..)
            .zip(gbps)
            .map(|(repetition, &gbps)| {
                let mut point = made_up(step, repetition);
                point.total.gbps = gbps;
                point.total.latency_us.p99 = p99;
                point.total.latency_us.p99_9 = 2.0 * p99;
                for (flow, share) in point.flows.iter_mut().zip([0.9, 0.1]) {
                    flow.gbps = share * gbps;
                }
                point
            })
            .collect()
    }

    fn ram(policies: &[(BenchPolicy, &[f64], f64)]) -> Vec<Point> {
        let rounds = |(policy, gbps, p99): &(BenchPolicy, &[f64], f64)| {
            rounds(*policy, BenchDevice::Ram, gbps, *p99)
        };
        policies.iter().flat_map(rounds).collect()
    }

    #[test]
    fn a_machine_that_changes_its_speed_between_rounds_changes_no_ratio() {
        let points = ram(&[
            (BenchPolicy::Adaptive, &[20.0, 40.0, 10.0, 20.0, 40.0, 10.0], 100.0),
            (CREDIT, &[19.0, 38.0, 9.5, 19.0, 38.0, 9.5], 90.0),
            (BenchPolicy::None, &[5.0; 6], 1.0),
        ]);
        let comparison = bandwidth(&points, BenchDevice::Ram, 64).expect("there are points");
        assert_eq!(comparison.outcome(), ComparisonOutcome::Met, "{comparison}");
        let ends = [comparison.ratio.low, comparison.ratio.median, comparison.ratio.high];
        assert!(ends.iter().all(|ratio| (ratio - 20.0 / 19.0).abs() < 1e-9), "{comparison}");
        assert!(comparison.figures.contains("buffer-credit 96 19.00"), "{comparison}");
    }

    #[test]
    fn less_than_the_best_is_missed_or_inconclusive() {
        let outcome = |ours: &[f64]| {
            let best = vec![10.0; ours.len()];
            let points = ram(&[(BenchPolicy::Adaptive, ours, 100.0), (CREDIT, &best, 100.0)]);
            let comparison = bandwidth(&points, BenchDevice::Ram, 64).expect("there are points");
            (comparison.outcome(), comparison.to_string())
        };
        let (missed, text) = outcome(&[9.8; 6]);
        assert_eq!(missed, ComparisonOutcome::Missed, "{text}");
        assert!(text.starts_with("not met: bandwidth, ram, depth 64"), "{text}");
        assert!(text.ends_with("ratio 0.980 (0.980 to 0.980), at least 1.00 required"), "{text}");
        // Short by 1 % at most, over the whole confidence interval.
        let (equal, text) = outcome(&[9.95, 9.95, 9.95, 9.95, 9.95, 9.91]);
        assert_eq!(equal, ComparisonOutcome::Equal, "{text}");
        assert!(text.starts_with("equal: bandwidth, ram, depth 64"), "{text}");
        assert_eq!(outcome(&[9.95, 9.95, 9.95, 9.95, 9.95, 9.85]).0, ComparisonOutcome::Missed);
        let (inconclusive, text) = outcome(&[9.9, 9.9, 9.9, 9.9, 9.9, 10.1]);
        assert_eq!(inconclusive, ComparisonOutcome::Inconclusive, "{text}");
        assert!(text.starts_with("inconclusive: "), "{text}");
        // These rounds are too few for significance, although all of them miss the bound.
        let (inconclusive, text) = outcome(&[9.9; 5]);
        assert_eq!(inconclusive, ComparisonOutcome::Inconclusive, "{text}");
        assert!(text.ends_with("ratio 0.990, at least 1.00 required"), "{text}");
    }

    /// If two policies are equal, the lucky one of a round is not the reference for that round.
    #[test]
    fn luck_of_a_round_is_no_rival() {
        let points = ram(&[
            (BenchPolicy::Adaptive, &[10.0, 10.0, 10.0], 100.0),
            (CREDIT, &[11.0, 10.0, 9.0], 100.0),
            (BenchPolicy::BufferCredit(16), &[9.0, 10.0, 11.0], 100.0),
        ]);
        let comparison = bandwidth(&points, BenchDevice::Ram, 64).expect("there are points");
        // The lucky policy of a round is not the best of the other rounds.
        assert_eq!(comparison.outcome(), ComparisonOutcome::Met, "{comparison}");
        // A policy that is better in all rounds is the reference in all of them.
        let points = ram(&[
            (BenchPolicy::Adaptive, &[10.0, 10.0, 10.0], 100.0),
            (CREDIT, &[11.0, 11.0, 11.0], 100.0),
            (BenchPolicy::BufferCredit(16), &[9.0, 10.0, 11.0], 100.0),
        ]);
        let comparison = bandwidth(&points, BenchDevice::Ram, 64).expect("there are points");
        assert!((comparison.ratio.median - 10.0 / 11.0).abs() < 1e-9, "{comparison}");
    }

    #[test]
    fn tails_are_compared_only_with_those_near_in_bandwidth() {
        let points = ram(&[
            (BenchPolicy::Adaptive, &[9.9], 100.0),
            (CREDIT, &[10.0], 120.0),
            // A short tail, because it carries little.
            (BenchPolicy::BufferCredit(16), &[9.7], 10.0),
        ]);
        let comparison = tail(&points, BenchDevice::Ram, 64, "p99", P99).expect("there are points");
        assert!(
            is_met(&comparison) && comparison.figures.contains("buffer-credit 96 120"),
            "{comparison}"
        );
        let points = ram(&[(BenchPolicy::Adaptive, &[9.9], 100.0), (CREDIT, &[10.0], 80.0)]);
        let comparison = tail(&points, BenchDevice::Ram, 64, "p99", P99).expect("there are points");
        assert!(
            !is_met(&comparison) && (comparison.ratio.median - 1.25).abs() < 1e-9,
            "{comparison}"
        );
    }

    #[test]
    fn a_short_tail_is_worth_nothing_without_bandwidth() {
        let points = ram(&[(BenchPolicy::Adaptive, &[9.0], 1.0), (CREDIT, &[10.0], 80.0)]);
        let comparison =
            tail(&points, BenchDevice::Ram, 64, "p99.9", P99_9).expect("there are points");
        assert!(
            !is_met(&comparison) && comparison.figures.contains("not within 2 %"),
            "{comparison}"
        );
        let points = ram(&[(BenchPolicy::Adaptive, &[10.0], 99.0), (CREDIT, &[9.0], 80.0)]);
        let comparison =
            tail(&points, BenchDevice::Ram, 64, "p99.9", P99_9).expect("there are points");
        assert!(
            is_met(&comparison) && comparison.figures.contains("no other policy"),
            "{comparison}"
        );
    }

    #[test]
    fn the_fast_one_is_held_against_itself_alone() {
        let mut points = rounds(BenchPolicy::Adaptive, BenchDevice::Ram, &[10.0, 20.0], 1.0);
        points.extend(rounds(BenchPolicy::Adaptive, BenchDevice::Mix, &[10.0, 20.0], 1.0));
        let comparison = kept(&points, 64).expect("there are points");
        assert!(
            !is_met(&comparison) && (comparison.ratio.median - 0.9).abs() < 1e-9,
            "{comparison}"
        );
        for point in &mut points {
            point.flows[0].gbps = 0.96 * point.total.gbps;
        }
        assert!(is_met(&kept(&points, 64).expect("there are points")));
    }

    #[test]
    fn all_depths_together_tell_more_than_one() {
        let mut points = Vec::new();
        for depth in [32, 64] {
            let step = |policy| MeasuredStep { policy, device: BenchDevice::Ram, depth };
            points.extend(rounds_of(step(BenchPolicy::Adaptive), &[11.0, 11.0, 12.0], 1.0));
            points.extend(rounds_of(step(CREDIT), &[10.0, 10.0, 10.0], 1.0));
        }
        let known = |depths: &[u32]| at_all_depths(&points, BenchDevice::Ram, depths, CREDIT, GBPS);
        assert!(!known(&[32]).low.is_finite());
        assert_eq!(known(&[32, 64]), MedianInterval { median: 1.1, low: 1.1, high: 1.2 });
        assert!(known(&[]).median.is_nan());
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        assert!(all(&[], &[BenchDevice::Ram, BenchDevice::Mix], &[64]).is_empty());
        let points = ram(&[(BenchPolicy::Adaptive, &[10.0], 1.0)]);
        assert!(all(&points, &[BenchDevice::Ram, BenchDevice::Mix], &[64]).is_empty());
        let points = ram(&[(BenchPolicy::Adaptive, &[10.0], 1.0), (CREDIT, &[10.0], 1.0)]);
        assert_eq!(all(&points, &[BenchDevice::Ram, BenchDevice::Mix], &[64, 32]).len(), 3);
    }
}
