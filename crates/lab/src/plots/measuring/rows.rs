//! Rows of results with the columns of io_pacing's file, measured or simulated.

use std::path::Path;

use anyhow::{Context, Result};

/// The columns of a row that pictures show.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub(super) struct ResultRow {
    pub(super) platform: String,
    pub(super) test: String,
    pub(super) devices: String,
    pub(super) initiator: String,
    pub(super) jobs: u32,
    pub(super) cores: Option<u32>,
    pub(super) period_ns: Option<u64>,
    pub(super) buf_cache: Option<u32>,
    pub(super) job3_qd: Option<u32>,
    pub(super) num_buffers: Option<u32>,
    pub(super) num_delay: Option<u32>,
    pub(super) run: u32,
    pub(super) qd: u32,
    pub(super) bw_gbps: Option<f64>,
    pub(super) lat_us: Option<f64>,
    /// `sim`, `local`, `remote`; `None` for io_pacing's own rows.
    #[serde(default, rename = "where")]
    pub(super) place: Option<String>,
}

impl ResultRow {
    /// Returns the source of the row.
    pub(super) fn provenance(&self) -> &'static str {
        match self.place.as_deref() {
            None | Some("") => "measured with io_pacing",
            Some("sim") => "simulated",
            Some(_) => "measured here",
        }
    }
}

/// Reads all rows of a file; none if the file does not exist.
pub(super) fn read(file: &Path) -> Result<Vec<ResultRow>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let shown = || file.display().to_string();
    let mut reader = csv::Reader::from_path(file).with_context(shown)?;
    reader.deserialize().collect::<Result<_, _>>().with_context(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_and_without_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        let head = nvmeof_report::csv::HEADER;
        let row = "\"AMD, 2 CPUs\",3,nvme16,fio+SPDK,2,1,4,,,,,,1,32,64,184.8,196.3,90.5,.8,99,,,none,local\n";
        std::fs::write(&file, format!("{head}\n{row}")).unwrap();
        let rows = read(&file).unwrap();
        assert_eq!(
            (rows[0].platform.as_str(), rows[0].provenance()),
            ("AMD, 2 CPUs", "measured here")
        );
        assert_eq!((rows[0].qd, rows[0].bw_gbps, rows[0].num_buffers), (32, Some(184.8), None));
        let head = head.trim_end_matches(",policy,where");
        std::fs::write(&file, format!("{head}\n{}", row.replace(",none,local", ""))).unwrap();
        assert_eq!(read(&file).unwrap()[0].provenance(), "measured with io_pacing");
        std::fs::write(&file, format!("{head}\nA,1\n")).unwrap();
        assert!(read(&file).is_err());
        assert!(read(Path::new("no/such")).unwrap().is_empty());
    }
}
