//! Rows of results with the columns of io_pacing's file, measured or simulated.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_report::{MeasuredRow, PointConfig};

/// File of the published rows, below the root.
pub(crate) const PUBLISHED: &str = "crates/sim/data/pacing_prototype.csv";
/// Source of the published rows, as every page names it.
pub(crate) const IO_PACING: &str = "Mellanox SPDK io_pacing";

/// A row: the conditions of a run and, except in the grid, its results.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub(crate) struct ResultRow {
    pub(crate) platform: String,
    pub(crate) test: String,
    pub(crate) devices: String,
    pub(crate) initiator: String,
    pub(crate) hosts: u32,
    pub(crate) jobs: u32,
    pub(crate) cores: Option<u32>,
    pub(crate) period_ns: Option<u64>,
    pub(crate) buf_cache: Option<u32>,
    pub(crate) job3_qd: Option<u32>,
    pub(crate) num_buffers: Option<u64>,
    pub(crate) num_delay: Option<u32>,
    pub(crate) run: u32,
    pub(crate) qd: u32,
    pub(crate) offered: u64,
    #[serde(default)]
    pub(crate) bw_gbps: Option<f64>,
    #[serde(default)]
    pub(crate) lat_us: Option<f64>,
    #[serde(default)]
    pub(crate) bw_stddev: Option<f64>,
    #[serde(default)]
    pub(crate) l3_hit_pct: Option<f64>,
    #[serde(default)]
    pub(crate) bufs_in_flight: Option<f64>,
    /// `sim`, `local`, `remote`; `None` for io_pacing's own rows.
    #[serde(default, rename = "where")]
    pub(crate) place: Option<String>,
}

impl ResultRow {
    /// Returns the source of the row.
    pub(crate) fn provenance(&self) -> &'static str {
        match self.place.as_deref() {
            None | Some("") => "measured with Mellanox SPDK io_pacing",
            Some("sim") => "simulated",
            Some(_) => "measured here",
        }
    }

    /// Returns whether the row has these conditions. The number of cores has to agree only if the
    /// row names it: the published rows of test 1 do not.
    pub(crate) fn has_conditions(&self, of: &PointConfig) -> bool {
        let own = self.setting();
        PointConfig { cores: own.cores.or(of.cores), ..own } == *of
    }

    /// Returns the conditions of the row.
    pub(crate) fn setting(&self) -> PointConfig {
        PointConfig {
            devices: self.devices.clone(),
            initiator: self.initiator.clone(),
            hosts: self.hosts,
            jobs: self.jobs,
            cores: self.cores,
            period_ns: self.period_ns,
            buf_cache: self.buf_cache,
            job3_qd: self.job3_qd,
            num_buffers: self.num_buffers,
            num_delay: self.num_delay,
            qd: self.qd,
            offered: self.offered,
        }
    }

    /// Returns the results, if there is a bandwidth.
    pub(crate) fn measured(&self) -> Option<MeasuredRow> {
        Some(MeasuredRow {
            source: IO_PACING.to_owned(),
            gbps: self.bw_gbps?,
            latency_us: self.lat_us,
            stddev_gbps: self.bw_stddev,
            hit_pct: self.l3_hit_pct,
            buffers: self.bufs_in_flight,
        })
    }
}

/// Reads all rows of a file; none if the file does not exist.
pub(crate) fn read(file: &Path) -> Result<Vec<ResultRow>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let shown = || file.display().to_string();
    parse(std::fs::File::open(file).with_context(shown)?).with_context(shown)
}

/// Parses all rows of a text with a header.
pub(crate) fn parse(text: impl Read) -> Result<Vec<ResultRow>> {
    Ok(csv::Reader::from_reader(text).deserialize().collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_and_without_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        let head = nvmeof_report::csv::HEADER;
        let row = "\"AMD, 2 CPUs\",3,nvme16,fio+SPDK,2,1,4,,,,,,1,32,64,184.8,196.3,90.5,.8,99,,,none,local,7\n";
        std::fs::write(&file, format!("{head}\n{row}")).unwrap();
        let rows = read(&file).unwrap();
        assert_eq!(
            (rows[0].platform.as_str(), rows[0].provenance()),
            ("AMD, 2 CPUs", "measured here")
        );
        assert_eq!((rows[0].qd, rows[0].bw_gbps, rows[0].num_buffers), (32, Some(184.8), None));
        let head = head.trim_end_matches(",policy,where,in_flight_mib");
        std::fs::write(&file, format!("{head}\n{}", row.replace(",none,local,7", ""))).unwrap();
        assert_eq!(read(&file).unwrap()[0].provenance(), "measured with Mellanox SPDK io_pacing");
        std::fs::write(&file, format!("{head}\nA,1\n")).unwrap();
        assert!(read(&file).is_err());
        assert!(read(Path::new("no/such")).unwrap().is_empty());
    }

    #[test]
    fn a_row_has_conditions_only_if_all_of_them_agree() {
        let text = "platform,test,devices,initiator,hosts,jobs,cores,period_ns,buf_cache,job3_qd,\
                    num_buffers,num_delay,run,qd,offered\nA,5,nvme16,fio+SPDK,2,1,4,,6,,96,,1,32,64\n";
        let mut row = parse(text.as_bytes()).unwrap().remove(0);
        assert_eq!(row.measured(), None, "a row of conditions alone has no results");
        let same = PointConfig {
            devices: "nvme16".into(),
            initiator: "fio+SPDK".into(),
            hosts: 2,
            jobs: 1,
            cores: Some(4),
            buf_cache: Some(6),
            num_buffers: Some(96),
            qd: 32,
            offered: 64,
            ..PointConfig::default()
        };
        assert!(row.has_conditions(&same));
        let others = [
            PointConfig { cores: Some(16), ..same.clone() },
            PointConfig { buf_cache: None, ..same.clone() },
            PointConfig { num_buffers: Some(64), ..same.clone() },
            PointConfig { period_ns: Some(0), ..same.clone() },
            PointConfig { num_delay: Some(0), ..same.clone() },
            PointConfig { devices: "null16".into(), ..same.clone() },
            PointConfig { qd: 64, offered: 128, ..same.clone() },
        ];
        assert!(others.iter().all(|other| !row.has_conditions(other)));
        row.cores = None;
        assert!(row.has_conditions(&PointConfig { cores: Some(16), ..same }));
    }
}
