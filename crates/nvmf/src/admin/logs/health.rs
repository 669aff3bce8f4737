//! SMART / Health Information, log page 02h (Base 5.16.1.3).

use nvmeof_wire::U128;
use nvmeof_wire::log::{SmartLog, critical_warning};

use crate::Nanos;
use crate::admin::features::{TEMPERATURE, temperature_warning};
use crate::controller::Controller;

/// Bytes of a data unit: 1000 units of 512 bytes.
const DATA_UNIT: u64 = 512_000;

const NANOS_PER_HOUR: u64 = 3_600_000_000_000;

/// Available Spare in percent, and the threshold of most drives.
const SPARE: u8 = 100;
const SPARE_THRESHOLD: u8 = 10;

/// The page of this controller.
///
/// Its I/O counts are those of the association. Its power-on time is that of the machine, whose
/// monotonic clock is `now`. There is no medium that wears.
pub(super) fn smart(controller: &Controller, now: Nanos) -> SmartLog {
    let totals = controller.io_totals();
    let count = |value: u64| U128::new(value.into());
    let admin = controller.admin();
    let warning =
        if temperature_warning(&admin.features) { critical_warning::TEMPERATURE } else { 0 };
    SmartLog {
        critical_warning: warning,
        temperature: TEMPERATURE.into(),
        available_spare: SPARE,
        spare_threshold: SPARE_THRESHOLD,
        data_units_read: count(totals.read_bytes.div_ceil(DATA_UNIT)),
        data_units_written: count(totals.written_bytes.div_ceil(DATA_UNIT)),
        host_reads: count(totals.reads),
        host_writes: count(totals.writes),
        power_cycles: count(1),
        power_on_hours: count(now / NANOS_PER_HOUR),
        media_errors: count(totals.media_errors),
        error_log_entries: count(admin.errors.count()),
        ..SmartLog::default()
    }
}
