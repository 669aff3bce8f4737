//! Published rows for simulated points: the conditions of both must be the same.

use std::path::Path;

use anyhow::{Context, Result};
use nvmeof_report::MeasuredRow;
use nvmeof_sim::calibration::ROWS;
use nvmeof_workspace::checkout::Workspace;

use super::backend::sim::setting;
use super::setup::{DeviceKind, PacingSetup, PointSetup};
use crate::rows::{self, ResultRow};

/// Block size of every published row.
const BLOCK: u32 = 128 << 10;
/// Delay of slow devices in every published row, in nanoseconds.
const DELAY: u64 = 1_000_000;
/// Drives of both machines.
const DRIVES: u32 = 16;

/// Rows of one machine.
#[derive(Debug, Default)]
pub(super) struct PublishedRows(Vec<ResultRow>);

impl PublishedRows {
    /// Returns the rows of a platform, if its file is the shipped model of a measured machine.
    pub(super) fn of(name: &str, file: &Path) -> Result<Self> {
        let shipped = Workspace::find()?.root().join(format!("configs/platforms/{name}.toml"));
        if !shipped.is_file() || shipped.canonicalize()? != file.canonicalize()? {
            return Ok(Self::default());
        }
        let mut rows = rows::parse(ROWS.as_bytes()).context("the published rows")?;
        rows.retain(|row| row.platform == name);
        Ok(Self(rows))
    }

    /// Returns the rows of a test that have the conditions of a point.
    pub(super) fn like(&self, test: &str, setup: &PointSetup) -> Vec<MeasuredRow> {
        if !is_published_load(setup) {
            return Vec::new();
        }
        let setting = setting(setup);
        let same = self.0.iter().filter(|row| row.test == test && row.has_conditions(&setting));
        same.filter_map(ResultRow::measured).collect()
    }
}

/// Returns whether a point is like the published rows in everything that their columns do not say:
/// random reads of 128 KiB on all devices, and an unchanged machine.
pub(super) fn is_published_load(setup: &PointSetup) -> bool {
    let devices = &setup.devices;
    let is_pacing = match setup.pacing {
        PacingSetup::None => true,
        PacingSetup::Prototype { pacer, .. } => pacer.is_none_or(|pacer| {
            let is_plain = pacer.drive_limit.is_none() && pacer.tuner.is_none();
            pacer.credit == BLOCK && pacer.bypass_below == 0 && is_plain
        }),
        _ => false,
    };
    let is_split = matches!(devices.kind, DeviceKind::Part(_));
    let mut loaded: Vec<u32> = setup.jobs.iter().flat_map(|job| &job.devices).copied().collect();
    loaded.sort_unstable();
    is_pacing
        && (!is_split || devices.count == DRIVES)
        && devices.delay.is_none_or(|(delay, _)| delay == DELAY)
        && loaded == (0..devices.namespaces()).collect::<Vec<_>>()
        && setup.jobs.iter().all(|job| {
            let is_whole = job.from == 0 && job.until.is_none() && job.hosts.is_empty();
            job.blocks.iter().all(|(size, _)| *size == BLOCK) && job.reads >= 1.0 && is_whole
        })
        && setup.hosts.iter().all(|host| *host == setup.hosts[0])
        && setup.disturbances.is_empty()
        && setup.platform.is_empty()
        && setup.set.is_empty()
        && setup.config.is_none()
}
