//! `nvmeofctl stats`.

use nvmeof_api::Stats;
use nvmeof_report::{Column, Table};
use serde_json::Value;

use crate::ApiClient;
use crate::output::{print, print_json};

/// Prints the counters.
pub(crate) fn run(client: &ApiClient, json: bool) -> anyhow::Result<()> {
    let stats: Stats = client.get("/v1/stats")?;
    if json {
        return print_json(&stats);
    }
    let mut table = Table::new(vec![
        Column::words("reactor"),
        Column::numbers("turns", ""),
        Column::numbers("started", ""),
        Column::numbers("in flight", ""),
        Column::numbers("in flight", "B"),
        Column::numbers("waiting", ""),
        Column::numbers("deferred", ""),
    ]);
    for line in &stats.lines {
        let pacer = |key: &str| shown(line.get("pacer").and_then(|pacer| pacer.get(key)));
        table.push(vec![
            line.get("reactor").map_or_else(|| "all".into(), |reactor| shown(Some(reactor))),
            shown(line.get("turns")),
            pacer("started"),
            pacer("in_flight"),
            pacer("bytes_in_flight"),
            pacer("waiting"),
            pacer("deferred"),
        ]);
    }
    print(&table.text())
}

fn shown(value: Option<&Value>) -> String {
    value.filter(|value| !value.is_null()).map_or_else(|| "-".into(), Value::to_string)
}
