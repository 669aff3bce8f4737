//! `[limits]`: validates each key; `crate::limits` checks them in combination.

use std::time::Duration;

use nvmeof_api::units::show_size;

use super::super::Machine;
use super::super::raw::RawLimits;
use crate::config::LimitSettings;
use crate::config::report::{Report, Span};
use crate::config::values::{duration, integer, size_within};
use crate::limits::{self, LimitInputs, Limits};

/// Validates the limits and derives the others.
pub(super) fn limits(
    report: &mut Report<'_>,
    raw: &RawLimits,
    needs: &LimitInputs,
    machine: &Machine,
) -> Limits {
    let settings = settings(report, raw);
    let (limits, problems) = Limits::derive(settings, needs, machine.open_files);
    for problem in problems {
        let name = format!("limits.{}", problem.key);
        match span_of(raw, problem.key) {
            Some(span) => report.error(&span, &name, problem.what, problem.allowed),
            None => report.error_in_file(&name, problem.what, &problem.allowed),
        }
    }
    if limits.memory_cap() > machine.memory
        && let Some(span) = span_of(raw, "buffer-memory").or_else(|| span_of(raw, "connections"))
    {
        let what = format!(
            "buffers may grow to {}, more than this machine's memory of {}",
            show_size(limits.memory_cap()),
            show_size(machine.memory)
        );
        report.warning(&span, "limits", what, "lower buffer-memory, connections or queue-depth");
    }
    limits
}

/// Validates each key alone.
fn settings(report: &mut Report<'_>, raw: &RawLimits) -> LimitSettings {
    let default = LimitSettings::default();
    let ms = Duration::from_millis;
    LimitSettings {
        connections: integer(
            report,
            "limits.connections",
            &raw.connections,
            default.connections,
            1..=limits::CONNECTIONS_MAX,
        ),
        io_queues: integer(
            report,
            "limits.io-queues",
            &raw.io_queues,
            default.io_queues,
            1..=limits::IO_QUEUES_MAX,
        ),
        queue_depth: integer(
            report,
            "limits.queue-depth",
            &raw.queue_depth,
            default.queue_depth,
            limits::QUEUE_DEPTH_MIN..=limits::QUEUE_DEPTH_MAX,
        ),
        max_transfer: bytes(size_within(
            report,
            "limits.max-transfer",
            &raw.max_transfer,
            default.max_transfer.into(),
            limits::MAX_TRANSFER_MIN.into()..=limits::MAX_TRANSFER_MAX.into(),
        )),
        in_capsule: bytes(size_within(
            report,
            "limits.in-capsule",
            &raw.in_capsule,
            default.in_capsule.into(),
            0..=limits::IN_CAPSULE_MAX.into(),
        )),
        buffer_memory: size_within(
            report,
            "limits.buffer-memory",
            &raw.buffer_memory,
            default.buffer_memory,
            limits::BUFFER_MEMORY_MIN..=limits::BUFFER_MEMORY_MAX,
        ),
        keep_alive_min: duration(
            report,
            "limits.keep-alive-min",
            &raw.keep_alive_min,
            default.keep_alive_min,
            ms(100)..=ms(3_600_000),
        ),
        connect_timeout: duration(
            report,
            "limits.connect-timeout",
            &raw.connect_timeout,
            default.connect_timeout,
            ms(100)..=ms(600_000),
        ),
        pdu_timeout: duration(
            report,
            "limits.pdu-timeout",
            &raw.pdu_timeout,
            default.pdu_timeout,
            ms(100)..=ms(600_000),
        ),
    }
}

/// Converts a size that is bounded well below 4 GiB.
fn bytes(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn span_of(raw: &RawLimits, key: &str) -> Option<Span> {
    match key {
        "connections" => raw.connections.as_ref().map(|value| value.span()),
        "max-transfer" => raw.max_transfer.as_ref().map(|value| value.span()),
        "in-capsule" => raw.in_capsule.as_ref().map(|value| value.span()),
        "buffer-memory" => raw.buffer_memory.as_ref().map(|value| value.span()),
        "keep-alive-min" => raw.keep_alive_min.as_ref().map(|value| value.span()),
        _ => None,
    }
}
