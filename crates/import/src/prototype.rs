//! Buffer pool and pacer of a Mellanox SPDK io_pacing config, as a commented section.
//!
//! The import keeps the default policy: it needs no parameters. The section serves comparisons.

use crate::json::{ImportError, JsonObject};
use crate::note::Notes;

/// Maximum buffers of the policy, and commands in flight on a device.
const COUNT_MAX: u64 = 1 << 20;
/// Maximum period in ns.
const PERIOD_MAX: u64 = 1_000_000_000;
/// Default of `limits.max-transfer` in bytes.
const MAX_TRANSFER: u64 = 1 << 20;

/// Pool and pacer of a transport.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prototype {
    /// Buffers of the pool.
    buffers: Option<u64>,
    /// Buffers that each core keeps.
    cache: Option<u64>,
    /// Bytes of a buffer.
    unit: Option<u64>,
    /// Time between two grants on each core, in ns.
    period: Option<u64>,
    credit: Option<u64>,
    threshold: Option<u64>,
    disk_credit: Option<u64>,
    tuner: Tuner,
}

/// Changes of the period at run time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tuner {
    /// In us.
    period: Option<u64>,
    /// In ns.
    step: Option<u64>,
    /// In bytes.
    threshold: Option<u64>,
    factor: Option<u64>,
}

impl Prototype {
    /// Reads the keys of a transport.
    pub(crate) fn read(
        params: &mut JsonObject<'_>,
        notes: &mut Notes,
    ) -> Result<Option<Self>, ImportError> {
        let pool = params.get("num_shared_buffers");
        let pacer = params.get("io_pacer_period");
        let mut number = |key: &str| -> Result<Option<u64>, ImportError> {
            params.get(key).map(|node| node.number(0..=u64::MAX)).transpose()
        };
        let read = Self {
            buffers: number("num_shared_buffers")?,
            // SPDK writes the largest number for its own default.
            cache: number("buf_cache_size")?.filter(|cache| *cache < u32::MAX.into()),
            unit: number("io_unit_size")?,
            period: number("io_pacer_period")?.filter(|period| *period > 0),
            credit: number("io_pacer_credit")?.filter(|credit| *credit > 0),
            threshold: number("io_pacer_threshold")?.filter(|threshold| *threshold > 0),
            disk_credit: number("io_pacer_disk_credit")?.filter(|credit| *credit > 0),
            tuner: Tuner {
                period: number("io_pacer_tuner_period")?.filter(|period| *period > 0),
                step: number("io_pacer_tuner_step")?,
                threshold: number("io_pacer_tuner_threshold")?.filter(|bytes| *bytes > 0),
                factor: number("io_pacer_tuner_factor")?,
            },
        };
        for (node, what) in [
            (pool, "the policy \"adaptive\" takes the place of this pool"),
            (pacer.filter(|_| read.period.is_some()), "the policy \"adaptive\" takes its place"),
        ] {
            let Some(node) = node else { continue };
            let what = format!("{what}: the end of the file has it as a comment");
            notes.converted(node.path(), what);
        }
        Ok((read.buffers.is_some() || read.period.is_some()).then_some(read))
    }

    /// Returns the section as comments. `reactors` is their number, if the config states it;
    /// `largest` is the largest command in bytes.
    pub(crate) fn to_comment(&self, reactors: Option<u64>, largest: Option<u64>) -> String {
        let mut text = String::from(
            "\n# Pacing as the other target had it, to compare: without \"# \", these lines replace\n\
             # the default policy \"adaptive\" (docs/pacing.md).\n\
             # [pacing]\n# policy = \"prototype\"\n",
        );
        let mut key = |name: &str, value: String, why: &str| {
            let why = if why.is_empty() { String::new() } else { format!(" # {why}") };
            text.push_str(&format!("# {name} = {value}{why}\n"));
        };
        if let Some(buffers) = self.buffers {
            let buffers = buffers.clamp(1, COUNT_MAX);
            let why = match (self.unit, largest) {
                (Some(unit), Some(largest)) if unit < largest => format!(
                    "each had {unit} bytes, {} for the largest command; here one for a command",
                    largest.div_ceil(unit.max(1))
                ),
                _ => String::new(),
            };
            key("buffers", buffers.to_string(), &why);
            if let Some(cache) = self.cache {
                let most = reactors.map_or(buffers, |reactors| buffers / reactors.max(1));
                key("cache", cache.min(most).to_string(), "at most buffers / reactors");
            }
        }
        if let Some(period) = self.period {
            // A grant is at least twice the largest command here. The rate stays.
            let largest = largest.unwrap_or(MAX_TRANSFER);
            let credit = self.credit.unwrap_or(largest);
            let times = largest.saturating_mul(2).div_ceil(credit.max(1)).max(1);
            let cores = reactors.unwrap_or(1).max(1);
            let whole = (period.saturating_mul(times) / cores).clamp(1, PERIOD_MAX);
            let why = match reactors {
                Some(reactors) => format!("{times} x {period} ns of a core / {reactors} reactors"),
                None => {
                    format!("{times} x {period} ns of a core: divide by the number of reactors")
                }
            };
            key("period", format!("\"{whole}ns\""), &why);
            let why = format!("{times} x {credit}");
            key("credit", credit.saturating_mul(times).to_string(), &why);
            self.threshold.iter().for_each(|bytes| {
                // There a command of this size bypassed the pacer, too.
                key("bypass-below", bytes.saturating_add(1).to_string(), "");
            });
            let limit = self.disk_credit.map(|commands| commands.clamp(1, COUNT_MAX));
            limit.iter().for_each(|commands| key("drive-limit", commands.to_string(), ""));
            self.tuner.keys(&mut key);
        }
        text
    }
}

impl Tuner {
    /// Passes the keys of the tuner to `key`. It has two kinds: with a threshold of bytes in
    /// flight, and with a step of the period.
    fn keys(&self, key: &mut impl FnMut(&str, String, &str)) {
        let Some(period) = self.period else { return };
        let why = match self.factor {
            Some(factor) if factor != 1 => format!("its factor was {factor}, here 1"),
            _ => String::new(),
        };
        match (self.threshold, self.step) {
            (Some(threshold), _) => {
                key("tuner", "\"bytes-in-flight\"".into(), &why);
                key("tuner-threshold", threshold.to_string(), "");
            }
            (None, Some(step)) => {
                let interval = period.saturating_mul(1000).clamp(1, PERIOD_MAX);
                key("tuner", "\"bandwidth\"".into(), &why);
                key("tuner-interval", format!("\"{interval}ns\""), "");
                key("tuner-step", format!("\"{}ns\"", step.clamp(1, PERIOD_MAX)), "");
            }
            (None, None) => {}
        }
    }
}
