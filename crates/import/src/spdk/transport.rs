//! Reader of SPDK's transports and of its limits for all hosts.

use super::RpcCall;
use super::keys::nvmf as keys;
use crate::config_builder::ConfigBuilder;
use crate::json::{ImportError, JsonObject};
use crate::note::Notes;
use crate::prototype::Prototype;
use crate::queues::QueueLimit;

/// Default of `limits.queue-depth`.
const QUEUE_DEPTH: u64 = 128;
/// Range of `limits.keep-alive-min` in ms, and its step.
const KEEP_ALIVE: std::ops::RangeInclusive<u64> = 100..=3_600_000;
const KEEP_ALIVE_STEP: u64 = 100;

/// Settings of transports that apply once all are known.
#[derive(Debug, Default)]
pub(super) struct Transports {
    /// I/O queues of a host.
    pub(super) queues: Vec<QueueLimit>,
    /// The TCP transport sends a response to each command.
    pub(super) sends_responses: bool,
}

impl Transports {
    /// Reads a transport. Here all listeners have the same limits, so the largest value applies.
    pub(super) fn transport(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::TRANSPORT)?;
        let kind = params.need("trtype")?.text()?;
        if !["tcp", "rdma"].contains(&kind.to_ascii_lowercase().as_str()) {
            notes.unsupported(
                &call.path,
                format!("transport \"{kind}\": there are only TCP and RDMA here"),
            );
            return Ok(());
        }
        self.limits(builder, &mut params, notes)?;
        if let Some(node) = params.get("max_io_qpairs_per_ctrlr") {
            let queues = node.number(0..=u32::MAX.into())?;
            self.queues.push(QueueLimit { path: node.path().to_owned(), queues });
        }
        if let Some(node) = params.get("max_aq_depth") {
            let entries = node.number(0..=u32::MAX.into())?;
            let most = builder.limits.queue_depth.unwrap_or(QUEUE_DEPTH);
            if entries > most {
                let what = format!("admin queues have {most} entries at most (queue-depth)");
                notes.converted(node.path(), what);
            }
        }
        if let Some(node) = params.get("min_kato") {
            let wanted = node.number(0..=u32::MAX.into())?;
            let steps = wanted.div_ceil(KEEP_ALIVE_STEP) * KEEP_ALIVE_STEP;
            let fits = steps.clamp(*KEEP_ALIVE.start(), *KEEP_ALIVE.end());
            if fits != wanted {
                notes.converted(node.path(), format!("{wanted} ms become {fits} ms"));
            }
            builder.limits.raise_keep_alive_min(fits);
        }
        if let Some(node) = params.get("c2h_success")
            && !node.flag()?
            && kind.eq_ignore_ascii_case("tcp")
        {
            let what = "a host that disables SQ flow control gets no response to a read";
            notes.converted(node.path(), what);
            self.sends_responses = true;
        }
        if let Some(prototype) = Prototype::read(&mut params, notes)? {
            builder.prototype.get_or_insert(prototype);
        }
        params.finish(notes);
        Ok(())
    }

    /// Reads the limits of all transports from SPDK before 19.04.
    pub(super) fn options(
        &mut self,
        builder: &mut ConfigBuilder,
        call: &RpcCall<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let mut params = call.params(keys::OPTIONS)?;
        self.limits(builder, &mut params, notes)?;
        params.finish(notes);
        Ok(())
    }

    fn limits(
        &mut self,
        builder: &mut ConfigBuilder,
        params: &mut JsonObject<'_>,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        type Fit = fn(u64) -> u64;
        let limits = &mut builder.limits;
        let bounds: [(&str, Fit, &mut Option<u64>); 3] = [
            ("max_queue_depth", |n| n.clamp(32, 4096), &mut limits.queue_depth),
            ("in_capsule_data_size", |n| n.min(64 << 10) / 512 * 512, &mut limits.in_capsule),
            ("max_io_size", |n| 1 << n.clamp(8192, 2 << 20).ilog2(), &mut limits.max_transfer),
        ];
        for (key, fit, limit) in bounds {
            let Some(node) = params.get(key) else { continue };
            let wanted = node.number(0..=u32::MAX.into())?;
            let fits = fit(wanted);
            if fits != wanted {
                notes.converted(node.path(), format!("{wanted} becomes {fits}"));
            }
            *limit = Some(limit.map_or(fits, |other| other.max(fits)));
        }
        if let Some(node) = params.get("max_qpairs_per_ctrlr") {
            // It counts the admin queue, too.
            let queues = node.number(0..=u32::MAX.into())?.saturating_sub(1);
            self.queues.push(QueueLimit { path: node.path().to_owned(), queues });
        }
        Ok(())
    }
}
