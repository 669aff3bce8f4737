//! The order in which stripes and benchmarks select drives.

use std::collections::BTreeMap;

use super::function::PciFunction;

/// Orders functions round-robin over root complexes, and within each over its
/// [adapters](super::Adapter).
///
/// So the first drives of any number are spread as widely as possible. Ties are broken by address.
///
/// Of 30 drives of 6.64 GiB/s over four root complexes, 8 in the order of their names read 35.0 to
/// 39.7 GiB/s, and 8 in this order 53.5 (see docs/drives.md).
#[must_use]
pub fn order(functions: &[PciFunction]) -> Vec<&PciFunction> {
    let mut sorted: Vec<&PciFunction> = functions.iter().collect();
    sorted.sort_by_key(|function| function.address);
    let by_root = grouped(sorted, |function| function.place.root_complex);
    let by_root =
        by_root.map(|group| interleave(grouped(group, |function| function.place.adapter())));
    interleave(by_root.collect::<Vec<_>>().into_iter())
}

fn grouped<K: Ord>(
    functions: Vec<&PciFunction>,
    key: impl Fn(&PciFunction) -> K,
) -> impl Iterator<Item = Vec<&PciFunction>> {
    let mut groups: BTreeMap<K, Vec<&PciFunction>> = BTreeMap::new();
    for function in functions {
        groups.entry(key(function)).or_default().push(function);
    }
    groups.into_values()
}

/// Returns the first of each group, then the second of each that has one, and so on.
fn interleave<'a>(groups: impl Iterator<Item = Vec<&'a PciFunction>>) -> Vec<&'a PciFunction> {
    let mut groups: Vec<_> = groups.map(Vec::into_iter).collect();
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(groups.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}
