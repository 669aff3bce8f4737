//! The values that measurements need from the daemon's `--stats` output (docs/stats.md).

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const MIB: f64 = 1_048_576.0;

/// One `total` line.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct StatsSample {
    /// Seconds since the daemon began to record.
    pub(crate) t: f64,
    /// Turns of the loop per second, in thousands, since the previous line.
    pub(crate) kpolls: f64,
    /// Commands started since the previous line.
    pub(crate) ios: f64,
    /// Microseconds from one command to the next since the previous line; `None` without commands.
    pub(crate) period_us: Option<f64>,
    /// `None` if the policy has none.
    pub(crate) budget_mib: Option<f64>,
    /// The policy's own period per I/O in us, if it has one.
    pub(crate) policy_period_us: Option<f64>,
    pub(crate) in_flight: f64,
    pub(crate) in_flight_mib: f64,
    pub(crate) waiting: f64,
}

/// Parses the lines; drops a truncated last line.
pub(crate) fn parse(text: &str) -> Result<Vec<StatsSample>> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut moments = Vec::new();
    for line in whole.lines() {
        let line: Value = serde_json::from_str(line).context("not a line of statistics")?;
        if line["kind"] == "total" {
            moments.push(moment(&line)?);
        }
    }
    Ok(moments)
}

fn moment(line: &Value) -> Result<StatsSample> {
    let maybe = |pointer: &str| line.pointer(pointer).and_then(Value::as_f64);
    let number =
        |pointer: &str| maybe(pointer).with_context(|| format!("the statistics have no {pointer}"));
    let elapsed = number("/interval/ns")?;
    let a_second = if elapsed > 0.0 { 1e9 / elapsed } else { 0.0 };
    Ok(StatsSample {
        t: number("/t")?,
        kpolls: number("/interval/turns")? * a_second / 1e3,
        ios: number("/interval/ios")?,
        period_us: maybe("/interval/io_period_ns").map(|ns| ns / 1e3),
        budget_mib: maybe("/policy/budget_bytes").map(|bytes| bytes / MIB),
        policy_period_us: maybe("/policy/period_ns").map(|ns| ns / 1e3),
        in_flight: number("/pacer/in_flight")?,
        in_flight_mib: number("/pacer/bytes_in_flight")? / MIB,
        waiting: number("/pacer/waiting")?,
    })
}

/// Returns the moments in which commands started, within the last `seconds` of them.
pub(crate) fn last(moments: &[StatsSample], seconds: f64) -> &[StatsSample] {
    let end = moments.iter().rposition(|moment| moment.ios > 0.0).map_or(0, |last| last + 1);
    let busy = &moments[..end];
    let from = busy.last().map_or(0.0, |last| last.t - seconds);
    &busy[busy.partition_point(|moment| moment.t <= from)..]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const LINES: &str = concat!(
        "{\"kind\":\"start\",\"schema\":1}\n",
        "{\"kind\":\"reactor\",\"t\":0.1}\n",
        "{\"kind\":\"total\",\"t\":0.1,\"interval\":{\"ns\":100000000,\"turns\":500,\"ios\":200,",
        "\"io_period_ns\":5000},\"policy\":{\"budget_bytes\":2097152},",
        "\"pacer\":{\"in_flight\":16,\"bytes_in_flight\":1048576,\"waiting\":48}}\n",
        "{\"kind\":\"total\",\"t\":0.2,\"interval\":{\"ns\":0,\"turns\":0,\"ios\":0,",
        "\"io_period_ns\":null},\"policy\":{\"budget_bytes\":null},",
        "\"pacer\":{\"in_flight\":0,\"bytes_in_flight\":0,\"waiting\":0}}\n",
        "{\"kind\":\"tot",
    );

    #[test]
    fn total_lines_are_read_and_a_cut_one_is_not() {
        let moments = parse(LINES).expect("good lines");
        let busy = StatsSample {
            t: 0.1,
            kpolls: 5.0,
            ios: 200.0,
            period_us: Some(5.0),
            budget_mib: Some(2.0),
            policy_period_us: None,
            in_flight: 16.0,
            in_flight_mib: 1.0,
            waiting: 48.0,
        };
        assert_eq!(moments, [busy, StatsSample { t: 0.2, ..StatsSample::default() }]);
        assert!(parse("{\"kind\":\"total\"}\n").is_err());
        assert!(parse("").expect("nothing").is_empty());
    }

    #[test]
    fn only_the_end_of_what_was_busy_counts() {
        let at = |tenths: f64, ios| StatsSample { t: tenths / 10.0, ios, ..StatsSample::default() };
        let moments = [at(1.0, 9.0), at(2.0, 9.0), at(3.0, 9.0), at(4.0, 9.0), at(5.0, 0.0)];
        assert_eq!(last(&moments, 0.15), &moments[2..4]);
        assert_eq!(last(&moments, 9.0), &moments[..4]);
        assert!(last(&moments[4..], 9.0).is_empty());
    }
}
