//! Converts the keys as written to a [`PointSetup`]: ranges, defaults, and combinations.

use std::ops::RangeInclusive;

use toml::Spanned;

use super::pacing;
use super::problem::{ProblemReport, Span};
use super::raw::{RawBlock, RawDevices, RawJob, RawKey, RawNumber, RawPlan, RawSelection, RawSize};
use super::units::{SIZE_FORM, TIME_FORM, size, time};
use crate::sweep::setup::{
    DeviceKind, Disturbance, DisturbanceKind, HostJob, Initiator, PointSetup, TargetDevices,
};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
/// Default measured time.
const TIME: u64 = SECOND;
const RAMP: u64 = SECOND / 2;
const DELAY: u64 = MILLISECOND;
/// Block sizes that NVMe-oF targets accept.
const BLOCKS: RangeInclusive<u64> = 512..=16 << 20;

/// Returns name, test and purpose of a plan.
pub(super) fn names(
    report: &mut ProblemReport<'_>,
    raw: &RawPlan,
) -> Option<(String, String, String)> {
    let word = |key: &RawKey<String>| key.as_ref().map(|word| word.get_ref().clone());
    let Some(name) = word(&raw.name).filter(|name| !name.is_empty()) else {
        report.error_in_file("name", "is missing", "a name for the results, as in \"test-03\"");
        return None;
    };
    let test = word(&raw.test).unwrap_or_else(|| name.clone());
    Some((name, test, word(&raw.about).unwrap_or_default()))
}

/// Returns the point, or `None` after reporting its errors.
pub(super) fn setup(report: &mut ProblemReport<'_>, raw: &RawPlan) -> Option<PointSetup> {
    let mut check = PlanChecker { report, failed: false };
    let setup = check.setup(raw);
    (!check.failed).then_some(setup).flatten()
}

/// Checks values, and records whether one was wrong.
pub(super) struct PlanChecker<'r, 'a> {
    pub(super) report: &'r mut ProblemReport<'a>,
    failed: bool,
}

impl PlanChecker<'_, '_> {
    fn setup(&mut self, raw: &RawPlan) -> Option<PointSetup> {
        let time = self.time("load.time", &raw.load.time, 10 * MILLISECOND..=60 * MINUTE);
        let ramp = self.time("load.ramp", &raw.load.ramp, 0..=60 * MINUTE);
        let (time, ramp) = (time.unwrap_or(TIME), ramp.unwrap_or(RAMP));
        let sample = self.time("load.sample", &raw.load.sample, MILLISECOND / 10..=60 * MINUTE);
        let devices = self.devices(&raw.target.devices)?;
        let (hosts, ssh) = self.hosts(raw)?;
        let jobs = self.jobs(raw, &devices, hosts.len(), ramp + time)?;
        let block = jobs.iter().flat_map(|job| &job.blocks).map(|(size, _)| *size).max()?;
        let cores = self.whole("target.cores", &raw.target.cores, 1..=1024).unwrap_or(4);
        let pacing = pacing::pacing(self, &raw.target.pacing, block)?;
        let repeat = self.whole("load.repeat", &raw.load.repeat, 1..=10_000).unwrap_or(1);
        let disturbances = self.disturbances(raw, ramp + time);
        let mut platform = std::collections::BTreeMap::new();
        for (key, value) in &raw.platform {
            let name = format!("platform.{}", key.get_ref());
            let number = value.get_ref().value();
            if !number.is_finite() || number < 0.0 {
                self.error(&value.span(), &name, &format!("{number} is no quantity"), "0 or more");
            }
            platform.insert(key.get_ref().clone(), number);
        }
        Some(PointSetup {
            cores,
            devices,
            pacing,
            jobs,
            hosts,
            ssh,
            config: raw.target.config.as_ref().map(|file| file.get_ref().into()),
            set: raw.target.set.clone().unwrap_or_default(),
            time,
            ramp,
            sample: sample.unwrap_or(0),
            repeat,
            disturbances,
            platform,
        })
    }

    fn devices(&mut self, raw: &RawDevices) -> Option<TargetDevices> {
        let at = |name: &str| format!("target.devices.{name}");
        let count = self.whole(&at("count"), &raw.count, 1..=4096).unwrap_or(16);
        let parts = self.whole(&at("parts"), &raw.parts, 2..=64);
        let word = raw.kind.as_ref().map_or("drive", |kind| kind.get_ref());
        let kind = match word {
            "null" => DeviceKind::Null,
            "drive" => DeviceKind::Drive,
            "part" => DeviceKind::Part(parts.unwrap_or(3)),
            _ => {
                let span = raw.kind.as_ref().map_or(0..0, Spanned::span);
                self.error(
                    &span,
                    &at("kind"),
                    &format!("`{word}` is no kind"),
                    "null, drive, part",
                );
                return None;
            }
        };
        if let (Some(parts), DeviceKind::Null | DeviceKind::Drive) = (&raw.parts, kind) {
            let what = format!("devices of kind `{word}` have no parts");
            self.error(&parts.span(), &at("parts"), &what, "only with kind = \"part\"");
        }
        let mut devices = TargetDevices { kind, count, delay: None };
        let all = devices.namespaces();
        let slow = self.whole(&at("slow"), &raw.slow, 0..=all.into());
        let delay = self.time(&at("delay"), &raw.delay, 1..=SECOND);
        if let (Some(slow), DeviceKind::Null) = (&raw.slow, kind) {
            self.error(&slow.span(), &at("slow"), "null devices have no delay", "drive, part");
        }
        if let (Some(delay), None) = (&raw.delay, &raw.slow) {
            let what = "no device is slow";
            self.error(
                &delay.span(),
                &at("delay"),
                what,
                "with `slow`, the number of slow devices",
            );
        }
        devices.delay = slow.map(|slow| (delay.unwrap_or(DELAY), slow));
        Some(devices)
    }

    /// Returns the program of each host, and its ssh destination.
    fn hosts(&mut self, raw: &RawPlan) -> Option<(Vec<Initiator>, Vec<Option<String>>)> {
        let (mut hosts, mut names) = (Vec::new(), Vec::new());
        for host in &raw.host {
            let word = host.get_ref().initiator.as_ref();
            let initiator = match word.map(|word| word.get_ref().as_str()) {
                Some("fio-kernel") => Initiator::FioKernel,
                Some("fio-spdk") => Initiator::FioSpdk,
                Some("nvmeof-perf") => Initiator::Perf,
                Some("local") => Initiator::Local,
                other => {
                    let span = word.map_or_else(|| host.span(), Spanned::span);
                    let what = other
                        .map_or_else(|| "is missing".into(), |word| format!("`{word}` is unknown"));
                    let allowed = "fio-spdk, fio-kernel, nvmeof-perf, local";
                    self.error(&span, "host.initiator", &what, allowed);
                    return None;
                }
            };
            let count = self.whole("host.count", &host.get_ref().count, 1..=64).unwrap_or(1);
            let ssh = host.get_ref().ssh.as_ref();
            if let (Some(ssh), 2..) = (ssh, count) {
                let what = format!("{count} hosts cannot be one machine");
                self.error(&ssh.span(), "host.ssh", &what, "a [[host]] for each machine");
            }
            let name = ssh.map(|name| name.get_ref().clone());
            hosts.extend((0..count).map(|_| initiator));
            names.extend((0..count).map(|_| name.clone()));
        }
        if hosts.is_empty() {
            let allowed = "at least one [[host]] with an initiator";
            self.error_in_file("host", "there is no host", allowed);
            return None;
        }
        Some((hosts, names))
    }

    fn jobs(
        &mut self,
        raw: &RawPlan,
        devices: &TargetDevices,
        hosts: usize,
        end: u64,
    ) -> Option<Vec<HostJob>> {
        if raw.job.is_empty() {
            self.error_in_file("job", "there is no job", "at least one [[job]] with a queue-depth");
        }
        let mut jobs: Vec<HostJob> = Vec::new();
        for (index, spanned) in raw.job.iter().enumerate() {
            let job = self.job(raw, spanned, index, devices, hosts, end)?;
            if jobs.iter().any(|other| other.name == job.name) {
                let what = format!("two jobs are called `{}`", job.name);
                self.error(&spanned.span(), "job.name", &what, "a name of its own for each");
            }
            jobs.push(job);
        }
        Some(jobs)
    }

    fn job(
        &mut self,
        plan: &RawPlan,
        spanned: &Spanned<RawJob>,
        index: usize,
        devices: &TargetDevices,
        hosts: usize,
        end: u64,
    ) -> Option<HostJob> {
        let raw = spanned.get_ref();
        if raw.queue_depth.is_none() {
            let allowed = "1 to 65535, here or in [vary]";
            self.error(&spanned.span(), "job.queue-depth", "is missing", allowed);
        }
        let queue_depth = self.whole("job.queue-depth", &raw.queue_depth, 1..=65_535)?;
        let own = raw.block_size.is_some() || raw.blocks.is_some();
        let blocks = match own {
            true => self.blocks("job", &raw.block_size, &raw.blocks)?,
            false => self.blocks("load", &plan.load.block_size, &plan.load.blocks)?,
        };
        let reads = raw.reads.as_ref().or(plan.load.reads.as_ref());
        let reads = reads.map_or(100.0, |reads| self.percent("reads", reads));
        let from = self.time("job.from", &raw.from, 0..=end).unwrap_or(0);
        let until = self.time("job.until", &raw.until, 1..=end);
        if let (Some(until), Some(raw)) = (until.filter(|until| *until <= from), &raw.until) {
            let what = format!("the job ends at {until} ns and starts at {from} ns");
            self.error(&raw.span(), "job.until", &what, "later than `from`");
        }
        let weight = self.whole("job.weight", &raw.weight, 1..=10_000).unwrap_or(1);
        let weight = u16::try_from(weight).unwrap_or(u16::MAX);
        let name = raw.name.as_ref().map(|name| name.get_ref().clone());
        let threads = self.whole("job.threads", &raw.threads, 1..=1024).unwrap_or(1);
        let shares_depth = raw.shared_depth.as_ref().is_some_and(|shares| *shares.get_ref());
        if let Some(depth) = raw.queue_depth.as_ref().filter(|_| shares_depth)
            && !queue_depth.is_multiple_of(threads)
        {
            let what = format!("{queue_depth} commands cannot be shared by {threads} threads");
            let allowed = "a multiple of job.threads, with shared-depth";
            self.error(&depth.span(), "job.queue-depth", &what, allowed);
            return None;
        }
        Some(HostJob {
            name: name.unwrap_or_else(|| format!("job {}", index + 1)),
            devices: self.selection(raw, devices)?,
            queue_depth: if shares_depth { queue_depth / threads } else { queue_depth },
            threads,
            shares_depth,
            weight,
            hosts: self.host_numbers(raw, hosts),
            blocks,
            reads: reads / 100.0,
            from,
            until,
        })
    }

    fn host_numbers(&mut self, raw: &RawJob, hosts: usize) -> Vec<u32> {
        let Some(numbers) = &raw.hosts else { return Vec::new() };
        if numbers.get_ref().is_empty() {
            let allowed = "numbers of hosts from 0; omit the key for all";
            self.error(&numbers.span(), "job.hosts", "is an empty list", allowed);
        }
        let last = i64::try_from(hosts).unwrap_or(i64::MAX) - 1;
        let mut found = Vec::new();
        for number in numbers.get_ref() {
            match self.number("job.hosts", &number.span(), *number.get_ref(), 0..=last) {
                Some(number) if found.contains(&number) => {
                    self.error(&numbers.span(), "job.hosts", "names a host twice", "each once");
                }
                number => found.extend(number),
            }
        }
        found
    }

    fn selection(&mut self, raw: &RawJob, devices: &TargetDevices) -> Option<Vec<u32>> {
        let all = devices.namespaces();
        let Some(selection) = &raw.devices else { return Some((0..all).collect()) };
        let parts = match devices.kind {
            DeviceKind::Part(parts) => parts,
            DeviceKind::Null | DeviceKind::Drive => 1,
        };
        let span = selection.span();
        let allowed = format!(
            "\"all\", \"part-1\" to \"part-{parts}\", or a list of positions from 0 to {}",
            all - 1
        );
        match selection.get_ref() {
            RawSelection::Word(word) if word == "all" => Some((0..all).collect()),
            RawSelection::Word(word) => {
                let part = word.strip_prefix("part-").and_then(|part| part.parse::<u32>().ok());
                let Some(part) = part.filter(|part| (1..=parts).contains(part)) else {
                    let what = format!("`{word}` is no selection of devices");
                    self.error(&span, "job.devices", &what, &allowed);
                    return None;
                };
                Some(((part - 1) * devices.count..part * devices.count).collect())
            }
            RawSelection::Positions(positions) => {
                let known = |at: &i64| u32::try_from(*at).ok().filter(|at| *at < all);
                let known: Option<Vec<u32>> = positions.iter().map(known).collect();
                let known = known.filter(|known| !known.is_empty());
                if known.is_none() {
                    self.error(&span, "job.devices", "names no device of the target", &allowed);
                }
                known
            }
        }
    }

    /// Returns sizes with their shares; by default 128 KiB alone.
    fn blocks(
        &mut self,
        table: &str,
        one: &RawKey<RawSize>,
        mix: &RawKey<Vec<Spanned<RawBlock>>>,
    ) -> Option<Vec<(u32, f64)>> {
        let key = format!("{table}.block-size");
        if let (Some(one), Some(_)) = (one, mix) {
            let what = "stands beside `blocks`";
            self.error(&one.span(), &key, what, "one size (block-size) or a mix (blocks)");
            return None;
        }
        let Some(mix) = mix else {
            let bytes = match one {
                None => 128 << 10,
                Some(_) => self.size(&key, one, BLOCKS)?,
            };
            return Some(vec![(self.block(&key, one, bytes)?, 1.0)]);
        };
        let key = format!("{table}.blocks");
        let mut blocks = Vec::new();
        for entry in mix.get_ref() {
            let raw = entry.get_ref();
            let (Some(_), Some(share)) = (&raw.size, &raw.share) else {
                let allowed = "{ size = \"128KiB\", share = 80 }";
                self.error(&entry.span(), &key, "has no size or no share", allowed);
                return None;
            };
            let bytes = self.size(&format!("{key}.size"), &raw.size, BLOCKS)?;
            let bytes = self.block(&format!("{key}.size"), &raw.size, bytes)?;
            let value = share.get_ref().value();
            if !(value.is_finite() && value > 0.0) {
                let what = format!("{value} is no share");
                self.error(&share.span(), &format!("{key}.share"), &what, "more than 0");
            }
            blocks.push((bytes, value));
        }
        if blocks.is_empty() {
            self.error(&mix.span(), &key, "is an empty list", "{ size = ..., share = ... }");
            return None;
        }
        Some(blocks)
    }

    /// Checks that a size is whole logical blocks.
    fn block(&mut self, key: &str, raw: &RawKey<RawSize>, bytes: u64) -> Option<u32> {
        if !bytes.is_multiple_of(512) {
            let span = raw.as_ref().map_or(0..0, Spanned::span);
            self.error(
                &span,
                key,
                &format!("{bytes} bytes are no whole blocks"),
                "multiples of 512",
            );
            return None;
        }
        u32::try_from(bytes).ok()
    }

    fn disturbances(&mut self, raw: &RawPlan, end: u64) -> Vec<Disturbance> {
        let mut found = Vec::new();
        for spanned in &raw.disturb {
            let entry = spanned.get_ref();
            let at = self.time("disturb.at", &entry.at, 0..=end);
            let lasts = self.time("disturb.lasts", &entry.lasts, 1..=end);
            let word = entry.what.as_ref().map_or("", |what| what.get_ref());
            let rate = entry.rate.as_ref().map(|rate| self.percent("disturb.rate", rate) / 100.0);
            let what = match (word, rate) {
                ("link", rate) => Some(DisturbanceKind::Link(rate.unwrap_or(0.0))),
                ("drives", None) => Some(DisturbanceKind::Drives),
                ("cores", None) => Some(DisturbanceKind::Cores),
                _ => None,
            };
            let (Some(at), Some(lasts), Some(what)) = (at, lasts, what) else {
                let span = entry.what.as_ref().map_or_else(|| spanned.span(), Spanned::span);
                let allowed = "at and lasts (times), what = \"link\" with a rate in percent, \
                               or what = \"drives\" or \"cores\" without";
                self.error(&span, "disturb", "is not complete", allowed);
                continue;
            };
            if at.saturating_add(lasts) > end {
                let what = "goes on after the end of the run";
                let allowed = "at + lasts at most ramp + time";
                self.error(&spanned.span(), "disturb.lasts", what, allowed);
            }
            found.push(Disturbance { at, lasts, what });
        }
        found
    }

    fn percent(&mut self, key: &str, value: &Spanned<RawNumber>) -> f64 {
        let number = value.get_ref().value();
        if !(0.0..=100.0).contains(&number) {
            self.error(&value.span(), key, &format!("{number} is no percentage"), "0 to 100");
        }
        number
    }

    /// Returns a whole number that is set and in range.
    pub(super) fn whole(
        &mut self,
        key: &str,
        value: &RawKey<i64>,
        range: RangeInclusive<i64>,
    ) -> Option<u32> {
        let value = value.as_ref()?;
        self.number(key, &value.span(), *value.get_ref(), range)
    }

    fn number(
        &mut self,
        key: &str,
        span: &Span,
        value: i64,
        range: RangeInclusive<i64>,
    ) -> Option<u32> {
        let number = u32::try_from(value).ok().filter(|_| range.contains(&value));
        if number.is_none() {
            let allowed = format!("{} to {}", range.start(), range.end());
            self.error(span, key, &format!("{value} is out of range"), &allowed);
        }
        number
    }

    /// Returns a size in bytes that is set and in range.
    pub(super) fn size(
        &mut self,
        key: &str,
        value: &RawKey<RawSize>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = value.as_ref()?;
        let bytes = match value.get_ref() {
            RawSize::Bytes(bytes) => Some(*bytes),
            RawSize::Text(text) => size(text),
        };
        let Some(bytes) = bytes else {
            self.error(&value.span(), key, "is no size", SIZE_FORM);
            return None;
        };
        if !range.contains(&bytes) {
            let allowed = format!("{} to {} bytes", range.start(), range.end());
            self.error(&value.span(), key, &format!("{bytes} bytes are out of range"), &allowed);
            return None;
        }
        Some(bytes)
    }

    /// Returns a time in nanoseconds that is set and in range.
    pub(super) fn time(
        &mut self,
        key: &str,
        value: &RawKey<String>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = value.as_ref()?;
        let Some(ns) = time(value.get_ref()) else {
            let what = format!("\"{}\" is no time", value.get_ref());
            self.error(&value.span(), key, &what, TIME_FORM);
            return None;
        };
        if !range.contains(&ns) {
            let what = format!("\"{}\" is out of range", value.get_ref());
            let allowed = format!("{}ns to {}ns", range.start(), range.end());
            self.error(&value.span(), key, &what, &allowed);
            return None;
        }
        Some(ns)
    }

    pub(super) fn error(&mut self, span: &Span, key: &str, what: &str, allowed: &str) {
        self.failed = true;
        self.report.error(span, key, what, allowed);
    }

    pub(super) fn error_in_file(&mut self, key: &str, what: &str, allowed: &str) {
        self.failed = true;
        self.report.error_in_file(key, what, allowed);
    }
}
