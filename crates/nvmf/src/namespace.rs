//! Namespaces of a subsystem, as an immutable snapshot that queues keep.

use std::collections::BTreeSet;

use crate::limits::MAX_NAMESPACES;
use crate::spec::NamespaceSpec;

/// An active namespace.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    /// As configured.
    pub(crate) spec: NamespaceSpec,
    /// Base-2 logarithm of the block size (LBADS).
    pub(crate) block_shift: u8,
}

impl Namespace {
    /// Creates a namespace from a checked spec: its block size is a power of two.
    pub(crate) fn new(spec: NamespaceSpec) -> Self {
        let block_shift = u8::try_from(spec.block_size.trailing_zeros()).unwrap_or(0);
        Self { spec, block_shift }
    }

    pub(crate) fn nsid(&self) -> u32 {
        self.spec.nsid
    }
}

/// Meaning of an NSID to a controller (Base 3.2.1.3 and 3.2.1.4).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup<'a> {
    /// An active namespace has it.
    Active(&'a Namespace),
    /// Valid, but no namespace has it.
    Inactive,
    /// Zero or above NN.
    ///
    /// Also [`NSID_ALL`](nvmeof_wire::sqe::NSID_ALL), unless the command accepts it.
    Invalid,
}

/// Every namespace of a subsystem at one point in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceTable {
    /// Ascending; dense, so that a search touches few cache lines.
    nsids: Box<[u32]>,
    /// The namespace of each entry of `nsids`.
    entries: Box<[Namespace]>,
}

impl NamespaceTable {
    /// Creates the table from checked specs: the NSIDs are unique and valid.
    pub(crate) fn new(mut specs: Vec<NamespaceSpec>) -> Self {
        specs.sort_by_key(|spec| spec.nsid);
        Self {
            nsids: specs.iter().map(|spec| spec.nsid).collect(),
            entries: specs.into_iter().map(Namespace::new).collect(),
        }
    }

    /// The active namespace of this NSID.
    #[inline]
    pub(crate) fn get(&self, nsid: u32) -> Option<&Namespace> {
        self.entries.get(self.nsids.binary_search(&nsid).ok()?)
    }

    /// NN of Identify Controller: every NSID from 1 to this is valid.
    ///
    /// MNAN must not exceed it.
    pub(crate) fn highest_valid_nsid(&self) -> u32 {
        self.nsids.last().map_or(MAX_NAMESPACES, |highest| MAX_NAMESPACES.max(*highest))
    }

    /// The meaning of this NSID.
    #[inline]
    pub(crate) fn lookup(&self, nsid: u32) -> Lookup<'_> {
        match self.get(nsid) {
            Some(namespace) => Lookup::Active(namespace),
            None if (1..=self.highest_valid_nsid()).contains(&nsid) => Lookup::Inactive,
            None => Lookup::Invalid,
        }
    }

    /// All namespaces, in ascending order of NSID.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Namespace> {
        self.entries.iter()
    }

    /// NSIDs that differ between this table and another, ascending.
    pub(crate) fn changed_since(&self, other: &Self) -> Vec<u32> {
        let differs = |nsid: &u32| {
            self.get(*nsid).map(|namespace| &namespace.spec)
                != other.get(*nsid).map(|namespace| &namespace.spec)
        };
        let nsids: BTreeSet<u32> = self.iter().chain(other.iter()).map(Namespace::nsid).collect();
        nsids.into_iter().filter(differs).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admin::fixture::namespace;
    use crate::limits::MAX_NSID;

    proptest! {
        #[test]
        fn finds_each_namespace_and_no_other(nsids: BTreeSet<u32>, other: u32) {
            let valid = nsids.into_iter().map(|nsid| nsid.clamp(1, MAX_NSID));
            let nsids: BTreeSet<u32> = valid.collect();
            let table = NamespaceTable::new(nsids.iter().rev().copied().map(namespace).collect());
            for nsid in &nsids {
                prop_assert_eq!(table.get(*nsid).map(Namespace::nsid), Some(*nsid));
            }
            prop_assert_eq!(table.get(other).is_some(), nsids.contains(&other));
            let highest = nsids.last().copied().unwrap_or(0).max(1024);
            prop_assert!(matches!(table.lookup(highest.saturating_add(1)), Lookup::Invalid));
            prop_assert!(!matches!(table.lookup(highest), Lookup::Invalid));
            prop_assert!(matches!(table.lookup(0), Lookup::Invalid));
        }
    }
}
