//! Columns of rows as axes, names of lines and cells of tables.

use nvmeof_report::{Axis, Column};

use crate::rows::ResultRow;

use RowColumn::{Buffers, Cache, Cores, Depth, Devices, FastDepth, Initiator, Period, Run, Slow};

/// Column of a row, for the x axis or to distinguish lines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum RowColumn {
    Depth,
    Devices,
    Initiator,
    Cores,
    Cache,
    Buffers,
    Slow,
    Run,
    Period,
    FastDepth,
}

impl RowColumn {
    pub(super) fn value(self, row: &ResultRow) -> Option<u64> {
        match self {
            Depth => Some(row.qd.into()),
            Cores => row.cores.map(u64::from),
            Cache => row.buf_cache.map(u64::from),
            Buffers => row.num_buffers,
            Slow => row.num_delay.map(u64::from),
            Run => Some(row.run.into()),
            Period => row.period_ns,
            FastDepth => row.job3_qd.map(u64::from),
            Devices | Initiator => None,
        }
    }

    /// Returns the value in the words of the legend.
    pub(super) fn words(self, row: &ResultRow) -> Option<String> {
        let number = self.value(row);
        match self {
            Devices => Some(row.devices.clone()),
            Initiator if row.jobs > 1 && !row.initiator.ends_with("jobs") => {
                Some(format!("{} {} jobs", row.initiator, row.jobs))
            }
            Initiator => Some(row.initiator.clone()),
            Depth => number.map(|n| format!("depth {n}")),
            Cores => number.map(|n| format!("{n} cores")),
            Cache => number.map(|n| format!("{n} kept")),
            Buffers => number.map(|n| format!("{n} buffers")),
            Slow => number.map(|n| format!("{n} slow")),
            Run => number.map(|n| format!("run {n}")),
            Period => number.map(|n| format!("an I/O every {n} ns")),
            FastDepth => number.map(|n| format!("depth {n} to the fast")),
        }
    }

    pub(super) fn axis(self) -> Axis {
        match self {
            Depth => Axis::new("queue depth per host and job", "").log2(),
            Devices => Axis::new("devices", ""),
            Initiator => Axis::new("initiator", ""),
            Cores => Axis::new("cores of the target", "").log2(),
            Cache => Axis::new("buffers that a core keeps", ""),
            Buffers => Axis::new("buffers", ""),
            Slow => Axis::new("devices that answer 1 ms later", ""),
            Run => Axis::new("run", ""),
            Period => Axis::new("from one I/O to the next", "ns"),
            FastDepth => Axis::new("queue depth to the fast devices", "").log2(),
        }
    }

    /// Returns the column of a table.
    pub(super) fn column(self) -> Column {
        let axis = self.axis();
        match self {
            Devices | Initiator => Column::words(&axis.title),
            _ => Column::numbers(&axis.title, &axis.unit),
        }
    }

    /// Returns the cell of a table.
    pub(super) fn cell(self, row: &ResultRow) -> String {
        match self.value(row) {
            Some(number) => number.to_string(),
            None if matches!(self, Devices | Initiator) => self.words(row).unwrap_or_default(),
            None => String::new(),
        }
    }
}
