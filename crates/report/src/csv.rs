//! Results as CSV: one row per point and repetition, empty if a column does not apply.
//!
//! `pacer_period_us` is the period that the cores were seen to keep: the mean time from one I/O to
//! the next that a core started. `period_ns` is the configured one, for the whole target.

use std::fmt::Write as _;

use crate::values::trimmed;
use crate::{Point, RunOrigin};

/// The columns, in order.
pub const HEADER: &str = "platform,test,devices,initiator,hosts,jobs,cores,period_ns,buf_cache,\
    job3_qd,num_buffers,num_delay,run,qd,offered,bw_gbps,wire_gbps,lat_us,bw_stddev,l3_hit_pct,\
    bufs_in_flight,pacer_period_us,policy,where,in_flight_mib";

/// All points under the header.
#[must_use]
pub fn document(points: &[Point]) -> String {
    let mut text = format!("{HEADER}\n");
    for point in points {
        let _ = writeln!(text, "{}", row(point));
    }
    text
}

/// One point; no newline.
#[must_use]
pub fn row(point: &Point) -> String {
    let setting = &point.setting;
    [
        quoted(&point.platform),
        quoted(&point.test),
        quoted(&setting.devices),
        quoted(&setting.initiator),
        setting.hosts.to_string(),
        setting.jobs.to_string(),
        or_empty(setting.cores),
        or_empty(setting.period_ns),
        or_empty(setting.buf_cache),
        or_empty(setting.job3_qd),
        or_empty(setting.num_buffers),
        or_empty(setting.num_delay),
        point.repetition.to_string(),
        setting.qd.to_string(),
        setting.offered.to_string(),
        number(Some(point.total.gbps), 3),
        number(point.wire_gbps, 4),
        number(Some(point.total.latency_us.mean), 2),
        number(point.stddev_gbps, 3),
        number(point.hit_pct, 2),
        number(point.buffers_mean, 2),
        number(point.period_seen_us, 4),
        quoted(&point.policy),
        place(point.place).to_owned(),
        number(point.in_flight_mib, 3),
    ]
    .join(",")
}

/// Value as in `--where` of a sweep.
fn place(place: RunOrigin) -> &'static str {
    match place {
        RunOrigin::Simulated => "sim",
        RunOrigin::Local | RunOrigin::Remote => place.name(),
    }
}

fn or_empty<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Formats at most `decimals` digits after the point; nothing for what is no number.
fn number(value: Option<f64>, decimals: usize) -> String {
    let value = value.filter(|value| value.is_finite());
    value.map_or_else(String::new, |value| trimmed(value, decimals))
}

/// Quotes a field that contains a separator, as in RFC 4180 section 2.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::point;

    #[test]
    fn the_header_is_the_contract() {
        assert_eq!(
            HEADER,
            "platform,test,devices,initiator,hosts,jobs,cores,period_ns,buf_cache,job3_qd,num_buffers,num_delay,run,qd,offered,bw_gbps,wire_gbps,lat_us,bw_stddev,l3_hit_pct,bufs_in_flight,pacer_period_us,policy,where,in_flight_mib"
        );
    }

    #[test]
    fn a_row_has_a_cell_for_every_column_and_says_where_it_ran() {
        let text = document(&[point(64, "none")]);
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows[0], HEADER);
        assert_eq!(
            rows[1],
            "A,3,nvme16,fio+SPDK,2,1,4,,,,,,1,64,128,184.8,196.3297,362.5,0.1,99.1,59,,none,sim,7.375"
        );
        assert_eq!(rows[1].split(',').count(), HEADER.split(',').count());
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn settings_stand_in_their_columns() {
        let mut point = point(64, "prototype");
        point.setting.period_ns = Some(5600);
        point.setting.buf_cache = Some(6);
        point.setting.job3_qd = Some(1024);
        point.setting.num_buffers = Some(96);
        point.setting.num_delay = Some(16);
        (point.period_us, point.period_seen_us) = (Some(5.6), Some(22.4));
        let row = row(&point);
        assert_eq!(
            row,
            "A,3,nvme16,fio+SPDK,2,1,4,5600,6,1024,96,16,1,64,128,184.8,196.3297,362.5,0.1,99.1,59,22.4,prototype,sim,7.375"
        );
    }

    #[test]
    fn a_separator_in_a_name_does_not_shift_the_columns() {
        let mut point = point(64, "none");
        point.platform = "my \"big\", box".into();
        assert!(row(&point).starts_with("\"my \"\"big\"\", box\",3,"));
    }

    #[test]
    fn what_is_no_number_is_left_empty() {
        assert_eq!(number(Some(f64::NAN), 2), "");
        assert_eq!(number(Some(-0.001), 2), "0");
        assert_eq!(number(Some(1200.0), 0), "1200");
        assert_eq!(number(Some(1.5), 3), "1.5");
    }
}
