//! The order in which stripes and benchmarks take drives.

use std::collections::BTreeMap;

use super::function::PciFunction;

/// Functions in the order in which to take them: round-robin over root complexes, and within each over its
/// [adapters](super::Adapter), so that any first few of them are spread as far as they can be. By address where
/// nothing else decides.
///
/// Why it matters: of thirty drives of 6.64 GiB/s over four root complexes, eight in the order of their names read
/// 35.0 to 39.7 GiB/s, and eight taken this way 53.5 (see docs/drives.md).
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

/// The first of each group, then the second of each that has one, and so on.
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
