//! Tenants that have limits, with what waits for them.

use std::collections::BTreeMap;

use nvmeof_api::TenantSnapshot;

use super::tenants::TenantFigures;
use super::{FlowName, Labels, Sample, done};

/// Returns tenants that have a limit, with their completed and waiting commands.
///
/// The tenants with the most waiting commands come first.
pub(super) fn limited(sample: &Sample, labels: &Labels) -> Vec<TenantSnapshot> {
    let mut done_for = BTreeMap::<Key, (u64, u64)>::new();
    for (whose, counters) in done(&sample.reactors) {
        // Admin commands are never limited.
        for key in keys(&FlowName::known(&whose, labels)).filter(|_| whose.device.is_some()) {
            let (ops, bytes) = done_for.entry(key).or_default();
            *ops += counters.ops.iter().sum::<u64>();
            *bytes += counters.bytes.iter().sum::<u64>();
        }
    }
    let mut waiting = BTreeMap::<Key, u64>::new();
    for flow in sample.reactors.iter().flat_map(|report| &report.flows) {
        for key in keys(&FlowName::of(flow, labels)) {
            *waiting.entry(key).or_default() += u64::from(flow.figures.waiting);
        }
    }
    let tenants = sample.tenants.iter().map(TenantFigures::now).filter(TenantSnapshot::is_limited);
    let mut all: Vec<_> = tenants
        .map(|tenant| {
            let key = (tenant.host.clone(), tenant.subsystem.clone(), tenant.nsid);
            let (ops, bytes) = done_for.get(&key).copied().unwrap_or_default();
            let waiting = waiting.get(&key).copied().unwrap_or_default();
            TenantSnapshot { ops, bytes, waiting, ..tenant }
        })
        .collect();
    all.sort_by_key(|tenant| std::cmp::Reverse((tenant.waiting, tenant.throttled())));
    all
}

/// Host, subsystem and namespace number, as in [`TenantSnapshot`].
type Key = (String, String, Option<u32>);

/// Returns the tenants to which a flow belongs.
fn keys(flow: &FlowName) -> impl Iterator<Item = Key> + use<> {
    let host = (!flow.host.is_empty()).then(|| (flow.host.clone(), String::new(), None));
    let namespace = flow.nsid.map(|nsid| (String::new(), flow.subsystem.clone(), Some(nsid)));
    host.into_iter().chain(namespace)
}
