//! Parsers of sizes, durations, rates and workload mixes.

use std::time::Duration;

/// Parses a size in bytes: `4096`, `4k`, `128KiB`, `1m`, `2GiB`. Suffixes are powers of two.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    scaled(text, &BINARY).ok_or_else(|| {
        format!(
            "`{text}` is not a size: write bytes, or a number with k, m, g or t (4k, 128KiB, 1g)"
        )
    })
}

/// Parses a length of time: `10s`, `500ms`, `2m`, `1h`, or a plain number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" | "s" | "sec" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    number
        .parse::<f64>()
        .ok()
        .map(|value| value * factor)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("`{text}` is not a time: write 10s, 500ms, 2m or 1h"))
}

/// A maximum rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RateLimit {
    /// I/Os a second.
    Iops(f64),
    /// Bytes a second.
    Bytes(f64),
}

impl RateLimit {
    /// An equal part of the rate, one of `by`.
    pub(crate) fn divided(self, by: f64) -> Self {
        match self {
            Self::Iops(rate) => Self::Iops(rate / by),
            Self::Bytes(rate) => Self::Bytes(rate / by),
        }
    }

    /// The limit in I/Os a second for I/Os of `block` bytes.
    pub(crate) fn iops(self, block: u64) -> f64 {
        match self {
            Self::Iops(iops) => iops,
            #[expect(clippy::cast_precision_loss, reason = "a rate, not a count")]
            Self::Bytes(bytes) => bytes / block as f64,
        }
    }
}

/// Parses a rate: `50k` I/Os a second (suffixes are powers of ten), `500MiB/s`, or `10gbit/s`.
pub(crate) fn rate(text: &str) -> Result<RateLimit, String> {
    let lower = text.trim().to_ascii_lowercase();
    let parsed = if let Some(bits) = lower.strip_suffix("bit/s") {
        scaled_f64(bits, &DECIMAL).map(|bits| RateLimit::Bytes(bits / 8.0))
    } else if let Some(bytes) = lower.strip_suffix("/s") {
        scaled_f64(bytes, &BINARY).map(RateLimit::Bytes)
    } else {
        scaled_f64(lower.strip_suffix("iops").unwrap_or(&lower), &DECIMAL).map(RateLimit::Iops)
    };
    parsed
        .filter(
            |rate| matches!(rate, RateLimit::Iops(value) | RateLimit::Bytes(value) if *value > 0.0),
        )
        .ok_or_else(|| {
            format!(
                "`{text}` is not a rate: write I/Os a second (50k), bytes a second (500MiB/s) \
                 or bits a second (10gbit/s)"
            )
        })
}

/// Kinds of I/Os, and the order in which they visit blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoMix {
    /// Random addresses instead of sequential ones.
    pub(crate) random: bool,
    /// Share of reads in percent, 0 to 100; unused with trims.
    pub(crate) read_percent: u8,
    pub(crate) trim: TrimUse,
}

/// Use of trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrimUse {
    /// No trims: the I/Os are reads and writes.
    None,
    /// All I/Os are trims.
    Only,
    /// Every block is trimmed and then written.
    ThenWrite,
}

impl IoMix {
    /// A mix with `read_percent` of reads among writes, at random or sequential addresses.
    pub(crate) const fn reads(random: bool, read_percent: u8) -> Self {
        Self { random, read_percent, trim: TrimUse::None }
    }

    /// Returns true if it contains reads.
    pub(crate) fn has_reads(self) -> bool {
        self.trim == TrimUse::None && self.read_percent > 0
    }

    /// Returns true if it contains writes.
    pub(crate) fn writes(self) -> bool {
        match self.trim {
            TrimUse::None => self.read_percent < 100,
            TrimUse::Only => false,
            TrimUse::ThenWrite => true,
        }
    }

    /// Returns true if it destroys earlier data.
    pub(crate) fn destroys(self) -> bool {
        self.writes() || self.trim != TrimUse::None
    }
}

impl std::fmt::Display for IoMix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.random { "rand" } else { "" })?;
        match (self.trim, self.read_percent) {
            (TrimUse::Only, _) => f.write_str("trim"),
            (TrimUse::ThenWrite, _) => f.write_str("trimwrite"),
            (TrimUse::None, 100..) => f.write_str("read"),
            (TrimUse::None, 0) => f.write_str("write"),
            (TrimUse::None, percent) => write!(f, "rw:{percent}"),
        }
    }
}

/// Parses `read`, `write`, `trim` and `trimwrite`, with or without `rand`, and `rw:PCT`,
/// `randrw:PCT`.
///
/// PCT is the share of reads.
pub(crate) fn mix(text: &str) -> Result<IoMix, String> {
    let (random, kind) = match text.strip_prefix("rand") {
        Some(kind) => (true, kind),
        None => (false, text),
    };
    let trim = |trim| Ok(IoMix { trim, ..IoMix::reads(random, 0) });
    match kind {
        "read" => return Ok(IoMix::reads(random, 100)),
        "write" => return Ok(IoMix::reads(random, 0)),
        "trim" => return trim(TrimUse::Only),
        "trimwrite" => return trim(TrimUse::ThenWrite),
        _ => {}
    }
    if let Some(("rw", percent)) = kind.split_once(':')
        && let Ok(read_percent @ 0..=100) = percent.parse::<u8>()
    {
        return Ok(IoMix::reads(random, read_percent));
    }
    Err(format!(
        "`{text}` is not a workload: use read, write, randread, randwrite, rw:PCT or randrw:PCT, \
         where PCT is the share of reads from 0 to 100 (randrw:70), or trim, randtrim, trimwrite, randtrimwrite"
    ))
}

/// Percentiles to report, in percent, in the order written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Percentiles(pub(crate) Vec<f64>);

/// Maximum number of percentiles.
const MAX_PERCENTILES: usize = 32;

/// Parses a list of percentiles: `50,99,99.99`; fio's colons are accepted, too.
pub(crate) fn percentiles(text: &str) -> Result<Percentiles, String> {
    let parse = |part: &str| {
        let number: f64 = part.trim().parse().ok()?;
        (number > 0.0 && number <= 100.0).then_some(number)
    };
    let all: Option<Vec<f64>> = text.split([',', ':']).map(parse).collect();
    all.filter(|all| all.len() <= MAX_PERCENTILES).map(Percentiles).ok_or_else(|| {
        format!(
            "`{text}` is not a list of percentiles: write up to {MAX_PERCENTILES} numbers above 0, and 100 at \
             most (50,99,99.99)"
        )
    })
}

/// Parses rates separated by commas, all of which apply: `50k,500MiB/s`.
pub(crate) fn rates(text: &str) -> Result<RateLimits, String> {
    text.split(',').map(rate).collect::<Result<_, _>>().map(RateLimits)
}

/// Rates that all apply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RateLimits(pub(crate) Vec<RateLimit>);

/// A CPU list as `0-3,8`: the CPUs in the order written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<usize>);

/// Highest CPU number accepted; the limit of the kernel's static CPU sets.
const MAX_CPU: usize = 1023;

/// Parses a CPU list: `1`, `0-3`, `0-1,4`.
pub(crate) fn cpus(text: &str) -> Result<CpuList, String> {
    let parse = || -> Option<Vec<usize>> {
        let mut list = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().ok()?;
            let last: usize = last.trim().parse().ok()?;
            if first > last || last > MAX_CPU {
                return None;
            }
            list.extend(first..=last);
        }
        Some(list)
    };
    parse().map(CpuList).ok_or_else(|| {
        format!("`{text}` is not a CPU list: write numbers and ranges from 0 to {MAX_CPU} (0-3,8)")
    })
}

/// Namespace identifiers as `1-3,8`, each once, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceList(pub(crate) Vec<u32>);

/// Maximum namespaces of a list; without a list, a load uses all.
const MAX_NAMESPACES: u32 = 4096;

/// Parses a list of namespaces: `1`, `1-3`, `1,4-6`.
pub(crate) fn namespaces(text: &str) -> Result<NamespaceList, String> {
    let parse = || -> Option<Vec<u32>> {
        let mut list = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first == 0 || first > last || last - first >= MAX_NAMESPACES {
                return None;
            }
            list.extend(first..=last);
        }
        list.sort_unstable();
        list.dedup();
        Some(list)
    };
    parse().map(NamespaceList).ok_or_else(|| {
        format!("`{text}` is not a list of namespaces: write numbers and ranges from 1 on (1-3,8)")
    })
}

const BINARY: [f64; 4] = [1024.0, 1048576.0, 1073741824.0, 1099511627776.0];
const DECIMAL: [f64; 4] = [1e3, 1e6, 1e9, 1e12];

/// Splits a number from the unit that follows it.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn factor(unit: &str, scale: &[f64; 4]) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let unit = unit.strip_suffix('i').unwrap_or(unit);
    match unit {
        "" => Some(1.0),
        "k" => Some(scale[0]),
        "m" => Some(scale[1]),
        "g" => Some(scale[2]),
        "t" => Some(scale[3]),
        _ => None,
    }
}

fn scaled_f64(text: &str, scale: &[f64; 4]) -> Option<f64> {
    let (number, unit) = split(text);
    Some(number.parse::<f64>().ok()? * factor(unit, scale)?)
}

fn scaled(text: &str, scale: &[f64; 4]) -> Option<u64> {
    let (number, unit) = split(text);
    let factor = factor(unit, scale)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the factors are whole powers of two below 2^41"
    )]
    let factor = factor as u64;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("4K"), Ok(4096));
        assert_eq!(size("128KiB"), Ok(131_072));
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("2 GiB"), Ok(2 << 30));
        assert_eq!(size("1TB"), Ok(1 << 40));
        assert_eq!(size("512b"), Ok(512));
        for bad in ["", "k", "4q", "-1", "4.5k", "99999999999t", "4kk"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5400)));
        for bad in ["", "s", "10x", "-1s", "1e400s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(rate("50k"), Ok(RateLimit::Iops(50_000.0)));
        assert_eq!(rate("50kiops"), Ok(RateLimit::Iops(50_000.0)));
        assert_eq!(rate("500MiB/s"), Ok(RateLimit::Bytes(524_288_000.0)));
        assert_eq!(rate("8gbit/s"), Ok(RateLimit::Bytes(1e9)));
        assert!((RateLimit::Bytes(409_600.0).iops(4096) - 100.0).abs() < 1e-9);
        for bad in ["", "0", "fast", "-5k", "10q/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_of_rates_and_percentiles() {
        assert_eq!(
            super::rates("1k,4k/s").unwrap().0,
            [RateLimit::Iops(1000.0), RateLimit::Bytes(4096.0)]
        );
        assert!(super::rates("1k,").is_err());
        assert_eq!(percentiles("50,99:99.99").unwrap().0, [50.0, 99.0, 99.99]);
        for bad in ["", "0", "101", "x", "50,"] {
            assert!(percentiles(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mixes() {
        assert_eq!(mix("read"), Ok(IoMix::reads(false, 100)));
        assert_eq!(mix("randwrite"), Ok(IoMix::reads(true, 0)));
        assert_eq!(mix("rw:30"), Ok(IoMix::reads(false, 30)));
        assert_eq!(mix("randrw:100"), Ok(IoMix::reads(true, 100)));
        for text in
            ["read", "randwrite", "randrw:70", "trim", "randtrim", "trimwrite", "randtrimwrite"]
        {
            assert_eq!(mix(text).unwrap().to_string(), text);
        }
        let of =
            |text| mix(text).map(|mix| (mix.has_reads(), mix.writes(), mix.destroys())).unwrap();
        assert_eq!((of("read"), of("rw:50")), ((true, false, false), (true, true, true)));
        assert_eq!((of("trim"), of("trimwrite")), ((false, false, true), (false, true, true)));
        for bad in ["", "rw", "rw:101", "randrw:x", "readwrite", "read:50", "rand", "randrandread"]
        {
            assert!(mix(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpus("1").unwrap().0, [1]);
        assert_eq!(cpus("0-2,5").unwrap().0, [0, 1, 2, 5]);
        for bad in ["", "a", "3-1", "0-99999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn namespace_lists() {
        assert_eq!(namespaces("3").unwrap().0, [3]);
        assert_eq!(namespaces("5,1-3,2").unwrap().0, [1, 2, 3, 5]);
        for bad in ["", "0", "a", "3-1", "1-99999999", "1,"] {
            assert!(namespaces(bad).is_err(), "{bad}");
        }
    }
}
