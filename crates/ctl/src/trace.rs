//! `nvmeofctl trace`: slow commands, each traced from capsule to completion.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use nvmeof_api::{TRACE_SECONDS_MAX, TraceLine, TraceOp, TraceRequest, TracedCommand};

use crate::ApiClient;
use crate::output::print_next;
use crate::top::time;

/// Width of the longest bar in columns.
const BAR: u64 = 40;

/// Trace slow commands, each from its capsule to its completion
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  nvmeofctl trace --slower-than 1000\n  \
    nvmeofctl trace --seconds 30 --slower-than 500 --op read --nsid 1\n  nvmeofctl --json trace --seconds 5")]
pub(crate) struct TraceArgs {
    /// Duration: 1 to 60
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(TRACE_SECONDS_MAX)))]
    seconds: u32,
    /// Minimum time of a command in microseconds, from its capsule to its end
    #[arg(long, default_value_t = 1000, value_name = "MICROSECONDS")]
    slower_than: u64,
    /// Only commands of this host
    #[arg(long, value_name = "NQN")]
    host: Option<String>,
    /// Only commands of this subsystem
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
    /// Only commands of this namespace
    #[arg(long)]
    nsid: Option<u32>,
    /// Only commands of this kind
    #[arg(long, value_enum)]
    op: Option<Op>,
}

/// Command kinds.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Op {
    Read,
    Write,
    Flush,
    Compare,
    WriteZeroes,
    Deallocate,
    Verify,
}

/// Runs a trace and prints it; with `json`, it prints the daemon's lines unchanged.
pub(crate) fn run(client: &ApiClient, json: bool, trace: &TraceArgs) -> anyhow::Result<()> {
    let wanted = TraceRequest {
        seconds: trace.seconds,
        slower_than_us: trace.slower_than,
        host: trace.host.clone(),
        subsystem: trace.subsystem.clone(),
        nsid: trace.nsid,
        op: trace.op.map(TraceOp::from),
    };
    let limit = Duration::from_secs(trace.seconds.into());
    client.lines("/v1/trace", &wanted, limit, |line| {
        if json {
            return print_next(&String::from_utf8_lossy(line));
        }
        match serde_json::from_slice(line)? {
            TraceLine::Command(command) => print_next(&timeline(&command)),
            TraceLine::End { commands, dropped } => {
                print_next(&end(commands, dropped, trace.seconds))
            }
        }
    })
}

/// Formats a command, one line per state: its start, its duration, and the duration as a bar.
fn timeline(command: &TracedCommand) -> String {
    let TracedCommand { duration_ns, reactor, nsid, cid, bytes, .. } = command;
    let (seconds, micros) = (command.unix_us / 1_000_000, command.unix_us % 1_000_000);
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        text,
        "{seconds}.{micros:06}  {} {bytes} B at {}, nsid {nsid} ({}): {} in {}",
        name(command.op),
        command.offset,
        clean(&command.device),
        command.status.as_deref().map_or("nobody left to answer".into(), clean),
        time(*duration_ns),
    );
    let qid = command.qid.map_or_else(|| "-".to_owned(), |qid| qid.to_string());
    let host = clean(&command.host);
    let _ = writeln!(text, "  host {host}, queue {qid}, command {cid}, reactor {reactor}");
    if command.truncated {
        text.push_str("  ... the states before are lost: more was going on than is remembered\n");
    }
    let ends = command.states.iter().skip(1).map(|next| Some(next.at_ns));
    for (state, end) in command.states.iter().zip(ends.chain([None])) {
        let lasted = end.map(|end| end.saturating_sub(state.at_ns));
        let shown = lasted.map_or_else(String::new, time);
        let columns = lasted.map_or(0, |lasted| share(lasted, *duration_ns));
        let bar = "#".repeat(columns);
        let line =
            format!("  {:<12} +{:<9} {shown:>9}  {bar}", clean(&state.state), time(state.at_ns));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Returns the columns for a part of the whole; at least one unless the part is 0.
fn share(part: u64, whole: u64) -> usize {
    let columns = u128::from(part) * u128::from(BAR) / u128::from(whole.max(1));
    usize::try_from(columns).unwrap_or(0).max(usize::from(part > 0))
}

fn end(commands: u64, dropped: u64, seconds: u32) -> String {
    let more = if dropped > 0 {
        format!("; {dropped} more were as slow: a higher --slower-than leaves room for the slowest")
    } else {
        String::new()
    };
    format!("{commands} commands in {seconds} s{more}\n")
}

/// Removes control characters from names that hosts choose, so that they do not reach the terminal.
fn clean(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn name(op: TraceOp) -> &'static str {
    match op {
        TraceOp::Flush => "flush",
        TraceOp::Write => "write",
        TraceOp::Read => "read",
        TraceOp::Compare => "compare",
        TraceOp::WriteZeroes => "write zeroes",
        TraceOp::Deallocate => "deallocate",
        TraceOp::Verify => "verify",
    }
}

impl From<Op> for TraceOp {
    fn from(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Flush => Self::Flush,
            Op::Compare => Self::Compare,
            Op::WriteZeroes => Self::WriteZeroes,
            Op::Deallocate => Self::Deallocate,
            Op::Verify => Self::Verify,
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_api::TracedState;

    use super::*;

    fn command() -> TracedCommand {
        let state = |state: &str, at_ns| TracedState { state: state.into(), at_ns };
        TracedCommand {
            unix_us: 1_790_000_000_000_042,
            duration_ns: 4_000_000,
            reactor: 1,
            subsystem: "nqn.2026-11.org.example:a".into(),
            host: "evil\u{1b}[2J".into(),
            qid: Some(3),
            cid: 7,
            nsid: 1,
            device: "ram0".into(),
            op: TraceOp::Read,
            offset: 8192,
            bytes: 4096,
            status: Some("Successful".into()),
            states: vec![
                state("capsule", 0),
                state("waiting", 1000),
                state("device", 1_001_000),
                state("done", 4_000_000),
            ],
            truncated: false,
        }
    }

    #[test]
    fn a_timeline_tells_where_the_time_went() {
        let text = timeline(&command());
        assert!(!text.contains('\u{1b}'), "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("1790000000.000042  read 4096 B at 8192, nsid 1 (ram0)"));
        assert!(lines[0].ends_with("Successful in 4 ms"), "{text}");
        let bar = |state: &str| {
            let line = lines.iter().find(|line| line.trim_start().starts_with(state)).unwrap();
            line.matches('#').count()
        };
        assert_eq!(["capsule", "waiting", "device", "done"].map(bar), [1, 10, 29, 0], "{text}");
    }

    #[test]
    fn what_is_lost_is_said() {
        let text = timeline(&TracedCommand { truncated: true, status: None, ..command() });
        assert!(text.contains("are lost") && text.contains("nobody left to answer"), "{text}");
        assert!(end(3, 2, 10).contains("2 more") && !end(3, 0, 10).contains("more"));
    }
}
