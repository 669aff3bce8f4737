//! Distribution of random I/Os over the places of a space.
//!
//! * `zipf`: the place of rank k is visited in proportion to k^-θ. Drawn by rejection-inversion (W.
//!   Hörmann, G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
//!   distributions", ACM TOMACS 6, 1996): it requires no table for any number of places.
//! * `pareto`: the self-similar distribution of J. Gray and others ("Quickly generating
//!   billion-record synthetic databases", SIGMOD 1994, section 4): a share h of the places has a
//!   share 1 - h of the visits, recursively.
//! * `zoned`: each of several adjacent zones has a share of the visits, uniform inside the zone.
//!
//! Zones are adjacent, in the order written; the popular places of the others are scattered over
//! the space.

use nvmeof_random::SplitMix64;

use super::scatter::Scatter;
use crate::units;

/// A distribution as requested.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Distribution {
    /// Uniform over all places.
    #[default]
    Uniform,
    /// Zipf with this exponent θ, more than 0.
    Zipf(f64),
    /// A share h of the places, between 0 and 1, has a share 1 - h of the visits.
    Pareto(f64),
    /// Zones, from the first place on.
    Zoned(Vec<Zone>),
}

/// A part of a space, and its share of the visits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zone {
    /// Percent of the visits.
    pub(crate) visits: f64,
    pub(crate) extent: ZoneSize,
}

/// Size of a zone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ZoneSize {
    /// Percent of the space.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
}

/// Accepted forms of a distribution.
const FORMS: &str = "random (or uniform), zipf:THETA (zipf:1.1), pareto:SHARE (pareto:0.2), hot:VISITS/SPACE in \
                     percent (hot:90/10), zoned:VISITS/SPACE:... in percent (zoned:60/10:30/20:8/30:2/40), or \
                     zoned_abs:VISITS/SIZE:... (zoned_abs:80/20g:20/80g)";

/// Parses a distribution in the syntax of `--random-distribution`.
pub(crate) fn distribution(text: &str) -> Result<Distribution, String> {
    let wrong = |why: &str| format!("`{text}` is not a distribution: {why}; allowed: {FORMS}");
    let (name, value) = match text.split_once(':') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let number = |default: Option<f64>| match value {
        None => default.ok_or_else(|| wrong("a number is missing")),
        Some(value) => value.parse().map_err(|_| wrong("that is no number")),
    };
    match name {
        "random" | "uniform" if value.is_none() => Ok(Distribution::Uniform),
        "zipf" => match number(Some(1.1))? {
            theta if theta > 0.0 && theta <= 100.0 => Ok(Distribution::Zipf(theta)),
            _ => Err(wrong("the exponent has to be more than 0, and 100 at most")),
        },
        "pareto" => match number(Some(0.2))? {
            share if share > 0.0 && share < 1.0 => Ok(Distribution::Pareto(share)),
            _ => Err(wrong("the share has to be between 0 and 1")),
        },
        "hot" => {
            let all = zones(value.unwrap_or(""), false).map_err(|why| wrong(&why))?;
            match all[..] {
                [Zone { visits, extent: ZoneSize::Percent(space) }] if space < 100.0 => {
                    let extent = ZoneSize::Percent(100.0 - space);
                    let cold = Zone { visits: 100.0 - visits, extent };
                    Ok(Distribution::Zoned(vec![all[0], cold]))
                }
                _ => Err(wrong("the hot part is one pair, of less than the whole space")),
            }
        }
        "zoned" | "zoned_abs" => {
            let is_absolute = name == "zoned_abs";
            let all = zones(value.unwrap_or(""), is_absolute).map_err(|why| wrong(&why))?;
            check(&all).map_err(|why| wrong(&why))?;
            Ok(Distribution::Zoned(all))
        }
        _ => Err(wrong("unknown distribution")),
    }
}

/// Pairs of a share of the visits and an extent.
fn zones(text: &str, is_absolute: bool) -> Result<Vec<Zone>, String> {
    if text.contains(',') {
        return Err("reads and writes have the same distribution here; remove the comma".into());
    }
    let percent = |text: &str| {
        let number: Option<f64> = text.parse().ok();
        let number = number.filter(|number| (0.0..=100.0).contains(number));
        number.ok_or_else(|| format!("`{text}` is no share of 0 to 100 percent"))
    };
    let zone = |pair: &str| {
        let (visits, extent) =
            pair.split_once('/').ok_or_else(|| format!("`{pair}` is no pair with a slash"))?;
        let extent = match is_absolute {
            true => ZoneSize::Bytes(units::size(extent)?),
            false => ZoneSize::Percent(percent(extent)?),
        };
        Ok(Zone { visits: percent(visits)?, extent })
    };
    text.split(':').map(zone).collect()
}

/// Checks that the shares are complete and do not exceed the whole.
fn check(zones: &[Zone]) -> Result<(), String> {
    let visits: f64 = zones.iter().map(|zone| zone.visits).sum();
    if (visits - 100.0).abs() > 1e-6 {
        return Err(format!("the zones have {visits} % of the visits in total, and not 100"));
    }
    let space = zones.iter().map(|zone| match zone.extent {
        ZoneSize::Percent(percent) => percent,
        ZoneSize::Bytes(_) => 0.0,
    });
    let space: f64 = space.sum();
    if space > 100.0 + 1e-6 {
        return Err(format!("the zones have {space} % of the space in total"));
    }
    Ok(())
}

impl std::fmt::Display for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uniform => f.write_str("random"),
            Self::Zipf(theta) => write!(f, "zipf:{theta}"),
            Self::Pareto(share) => write!(f, "pareto:{share}"),
            Self::Zoned(zones) => {
                let is_absolute =
                    zones.iter().any(|zone| matches!(zone.extent, ZoneSize::Bytes(_)));
                f.write_str(if is_absolute { "zoned_abs" } else { "zoned" })?;
                for zone in zones {
                    match zone.extent {
                        ZoneSize::Percent(percent) => write!(f, ":{}/{percent}", zone.visits)?,
                        ZoneSize::Bytes(bytes) => write!(f, ":{}/{bytes}", zone.visits)?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// Draws places of a space.
#[derive(Debug, Clone)]
pub(crate) enum PlaceChooser {
    Uniform { places: u64 },
    Zipf { zipf: Zipf, scatter: Scatter },
    Pareto { power: f64, places: u64, scatter: Scatter },
    Zoned(Vec<ZoneSpan>),
}

/// A zone in places, and the share of the visits up to its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZoneSpan {
    until: f64,
    first: u64,
    places: u64,
}

impl PlaceChooser {
    /// A chooser for `places` of `bytes` each; `seed` determines the popular places.
    pub(crate) fn new(distribution: &Distribution, places: u64, bytes: u64, seed: u64) -> Self {
        let scatter = Scatter::new(places, seed);
        match distribution {
            Distribution::Uniform => Self::Uniform { places },
            Distribution::Zipf(theta) => Self::Zipf { zipf: Zipf::new(places, *theta), scatter },
            Distribution::Pareto(share) => {
                Self::Pareto { power: share.ln() / (1.0 - share).ln(), places, scatter }
            }
            Distribution::Zoned(zones) => Self::Zoned(spans(zones, places, bytes)),
        }
    }

    /// Returns the number of the next place, below the number of places.
    #[inline]
    pub(crate) fn choose(&self, rng: &mut SplitMix64) -> u64 {
        match self {
            Self::Uniform { places } => rng.below(*places),
            Self::Zipf { zipf, scatter } => scatter.place(zipf.rank(rng)),
            Self::Pareto { power, places, scatter } => {
                scatter.place(part(*places, rng.unit().powf(*power)))
            }
            Self::Zoned(spans) => {
                let share = rng.unit();
                let span = spans.iter().find(|span| share < span.until).or(spans.last());
                span.map_or(0, |span| span.first + rng.below(span.places))
            }
        }
    }
}

/// The zones that have places, in places; remaining places belong to none.
fn spans(zones: &[Zone], places: u64, bytes: u64) -> Vec<ZoneSpan> {
    let (mut first, mut until, mut percent) = (0, 0.0, 0.0);
    let mut spans: Vec<ZoneSpan> = Vec::new();
    for zone in zones {
        let end = match zone.extent {
            ZoneSize::Percent(share) => {
                percent += share;
                part(places + 1, percent / 100.0).min(places)
            }
            ZoneSize::Bytes(size) => (first + size / bytes.max(1)).min(places),
        };
        until += zone.visits / 100.0;
        match spans.last_mut() {
            // Too small for a place: its visits go to its neighbor.
            Some(last) if end == first => last.until = until,
            _ if end == first => {}
            _ => spans.push(ZoneSpan { until, first, places: end - first }),
        }
        first = end;
    }
    if spans.is_empty() {
        spans.push(ZoneSpan { until: 1.0, first: 0, places });
    }
    spans
}

/// A share of a whole, rounded down and below the whole.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place by a random fraction; the share is not negative"
)]
fn part(whole: u64, share: f64) -> u64 {
    ((whole as f64 * share) as u64).min(whole.saturating_sub(1))
}

/// Ranks from 0 on; rank k - 1 is drawn in proportion to k^-θ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zipf {
    theta: f64,
    count: f64,
    /// Integral of the hat from 1/2 (with the peak of rank 1) to the last rank's end.
    low: f64,
    high: f64,
    /// A draw closer than this to its rank is accepted without a further check.
    squeeze: f64,
}

impl Zipf {
    #[expect(clippy::cast_precision_loss, reason = "a number of places, of at most 53 bits")]
    fn new(count: u64, theta: f64) -> Self {
        let hat = Hat(theta);
        let count = count.max(1) as f64;
        let squeeze = 2.0 - hat.inverse(hat.integral(2.5) - hat.height(2.0));
        let (low, high) = (hat.integral(1.5) - 1.0, hat.integral(count + 0.5));
        Self { theta, count, low, high, squeeze }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank, from 1 to a number of places"
    )]
    #[inline]
    fn rank(&self, rng: &mut SplitMix64) -> u64 {
        let hat = Hat(self.theta);
        loop {
            let area = self.high + rng.unit() * (self.low - self.high);
            let at = hat.inverse(area);
            let rank = at.round().clamp(1.0, self.count);
            if rank - at <= self.squeeze || area >= hat.integral(rank + 0.5) - hat.height(rank) {
                return rank as u64 - 1;
            }
        }
    }
}

/// The curve x^-θ above the ranks.
struct Hat(f64);

impl Hat {
    fn height(&self, at: f64) -> f64 {
        (-self.0 * at.ln()).exp()
    }

    /// Integral from 1 on: (x^(1-θ) - 1) / (1-θ), or ln x if θ is 1.
    fn integral(&self, at: f64) -> f64 {
        let log = at.ln();
        let power = (1.0 - self.0) * log;
        if power.abs() < 1e-8 { log * (1.0 + power / 2.0) } else { log * power.exp_m1() / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        // Rounding must not move it below the start of the curve.
        let scaled = (area * (1.0 - self.0)).max(-1.0);
        let log = if scaled.abs() < 1e-8 {
            area * (1.0 - scaled / 2.0)
        } else {
            area * scaled.ln_1p() / scaled
        };
        log.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 20;

    /// Visits of each place after `draws` draws.
    fn visits(text: &str, places: usize, draws: usize) -> Vec<u64> {
        let chosen = distribution(text).unwrap();
        let chooser = PlaceChooser::new(&chosen, places as u64, 4096, 3);
        let mut rng = SplitMix64::stream(SEED, 0);
        let mut visits = vec![0; places];
        for _ in 0..draws {
            visits[usize::try_from(chooser.choose(&mut rng)).unwrap()] += 1;
        }
        visits
    }

    /// Pearson's statistic over its degrees of freedom: about 1 if `visits` follow `shares`.
    fn chi_square(visits: &[u64], shares: &[f64]) -> f64 {
        let draws: u64 = visits.iter().sum();
        let total: f64 = shares.iter().sum();
        let terms = visits.iter().zip(shares).map(|(&seen, share)| {
            let wanted = share / total * draws as f64;
            (seen as f64 - wanted).powi(2) / wanted
        });
        terms.sum::<f64>() / (visits.len() - 1) as f64
    }

    #[test]
    fn ranks_are_visited_by_zipfs_law() {
        // Below, at and above the exponent at which the integral changes its form.
        for theta in [0.2, 0.99, 1.0, 1.2, 2.5] {
            let places = 50;
            let mut seen = visits(&format!("zipf:{theta}"), places, 200_000);
            seen.sort_unstable_by(|a, b| b.cmp(a));
            let shares: Vec<_> = (1..=places).map(|k| (k as f64).powf(-theta)).collect();
            // The tail of a steep distribution has too few visits: places with less than five
            // expected are skipped.
            let total: f64 = shares.iter().sum();
            let often = shares.iter().filter(|share| **share / total * 200_000.0 >= 5.0).count();
            let fit = chi_square(&seen[..often], &shares[..often]);
            // 50 places sorted by their visits: sorting moves the statistic below 1 rather than
            // above.
            assert!(fit < 1.8, "seed {SEED}, theta {theta}: {fit}");
            // Another exponent does not fit.
            let other: Vec<_> = (1..=often).map(|k| (k as f64).powf(-theta - 0.1)).collect();
            assert!(chi_square(&seen[..often], &other) > 5.0, "seed {SEED}, theta {theta}");
        }
    }

    #[test]
    fn a_zipf_of_very_many_places_stays_inside_and_has_its_head() {
        let count = 1 << 44;
        for theta in [0.5, 1.0, 1.1, 30.0] {
            let zipf = Zipf::new(count, theta);
            let mut rng = SplitMix64::stream(SEED, 1);
            let ranks: Vec<_> = (0..20_000).map(|_| zipf.rank(&mut rng)).collect();
            assert!(ranks.iter().all(|&rank| rank < count), "theta {theta}");
            if theta > 1.0 {
                // The zeta function at 1.1 is 10.58: of infinitely many ranks, the first has a
                // share of 9.4 %.
                let first = ranks.iter().filter(|&&rank| rank == 0).count();
                assert!(first > 1800, "seed {SEED}, theta {theta}: {first}");
            }
        }
    }

    #[test]
    fn pareto_gives_a_share_of_the_visits_to_a_share_of_the_places() {
        for share in [0.1, 0.2, 0.4] {
            let mut seen = visits(&format!("pareto:{share}"), 1000, 400_000);
            seen.sort_unstable_by(|a, b| b.cmp(a));
            let part = |share: f64| {
                let places =
                    (1..=1000).filter(|&place| f64::from(place) <= 1000.0 * share + 0.5).count();
                seen[..places].iter().sum::<u64>() as f64 / 400_000.0
            };
            let (once, twice) = (part(share), part(share * share));
            assert!((once - (1.0 - share)).abs() < 0.02, "seed {SEED}: {share} has {once}");
            // The same holds inside the popular part.
            let inside = (1.0 - share) * (1.0 - share);
            assert!((twice - inside).abs() < 0.02, "seed {SEED}: {share} twice has {twice}");
        }
    }

    #[test]
    fn popular_places_are_all_over_the_space() {
        for text in ["zipf:1.2", "pareto:0.2"] {
            let seen = visits(text, 1000, 100_000);
            let mut order: Vec<_> = (0..1000).collect();
            order.sort_unstable_by_key(|&place: &usize| std::cmp::Reverse(seen[place]));
            let low = order[..100].iter().filter(|&&place| place < 500).count();
            assert!((30..=70).contains(&low), "{text}: {low} of the 100 most popular in one half");
        }
    }

    #[test]
    fn zones_have_their_visits_and_their_space() {
        let seen = visits("zoned:60/10:30/20:8/30:2/40", 1000, 200_000);
        let shares: Vec<_> = (0..1000)
            .map(|place| match place {
                0..100 => 60.0 / 100.0,
                100..300 => 30.0 / 200.0,
                300..600 => 8.0 / 300.0,
                _ => 2.0 / 400.0,
            })
            .collect();
        let fit = chi_square(&seen, &shares);
        assert!(fit < 1.2, "seed {SEED}: {fit}");
        let hot = visits("hot:90/10", 1000, 100_000);
        let inside = hot[..100].iter().sum::<u64>();
        assert!((89_000..91_000).contains(&inside), "seed {SEED}: {inside}");
        // 4 KiB a place: 40 places, then 60, and none beyond.
        let sized = visits("zoned_abs:75/160k:25/240k", 1000, 10_000);
        assert_eq!(sized[100..].iter().sum::<u64>(), 0);
        let first = sized[..40].iter().sum::<u64>();
        assert!((7300..7700).contains(&first), "seed {SEED}: {first}");
    }

    #[test]
    fn uniform_is_uniform() {
        let fit = chi_square(&visits("random", 500, 200_000), &[1.0; 500]);
        assert!((0.8..1.2).contains(&fit), "seed {SEED}: {fit}");
    }

    #[test]
    fn zones_that_are_too_small_give_their_visits_on() {
        let seen = visits("zoned:50/50:25/1:25/49", 4, 40_000);
        assert_eq!(seen.iter().sum::<u64>(), 40_000);
        assert!(seen.iter().all(|&visits| visits > 4000), "{seen:?}");
        assert_eq!(visits("zoned:100/1", 3, 300).iter().sum::<u64>(), 300);
    }

    #[test]
    fn what_is_a_distribution_and_what_is_none() {
        for text in ["random", "zipf:1.1", "pareto:0.2", "zoned:60/10:40/90", "zoned_abs:100/4096"]
        {
            assert_eq!(distribution(text).unwrap().to_string(), text);
        }
        assert_eq!(distribution("uniform"), Ok(Distribution::Uniform));
        assert_eq!(distribution("zipf"), Ok(Distribution::Zipf(1.1)));
        assert_eq!(distribution("hot:90/10"), distribution("zoned:90/10:10/90"));
        for (text, says) in [
            ("gauss", "unknown distribution"),
            ("zipf:0", "more than 0"),
            ("zipf:x", "no number"),
            ("pareto:1", "between 0 and 1"),
            ("hot:90/100", "less than the whole"),
            ("hot:90", "no pair"),
            ("zoned:60/10:30/20", "90 % of the visits"),
            ("zoned:50/60:50/60", "120 % of the space"),
            ("zoned:50/50:50/50,100/1", "remove the comma"),
            ("zoned_abs:100/4q", "not a size"),
        ] {
            let error = distribution(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
