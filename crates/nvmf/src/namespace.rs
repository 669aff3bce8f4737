//! Namespaces of a subsystem, as an immutable snapshot that queues keep.

use std::collections::BTreeSet;

use crate::limits::MAX_NSID;
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
    /// Ascending NSIDs.
    entries: Box<[Namespace]>,
    /// Position + 1 in `entries`, by NSID; 0: none.
    index: Box<[u16]>,
}

impl NamespaceTable {
    /// Creates the table from checked specs: the NSIDs are unique and within 1 to [`MAX_NSID`].
    pub(crate) fn new(mut specs: Vec<NamespaceSpec>) -> Self {
        specs.sort_by_key(|spec| spec.nsid);
        let slots = specs.last().map_or(0, |last| last.nsid.min(MAX_NSID) + 1);
        let mut index = vec![0; slots as usize].into_boxed_slice();
        for (place, spec) in (1..).zip(&specs) {
            if let Some(slot) = index.get_mut(spec.nsid as usize) {
                *slot = place;
            }
        }
        Self { entries: specs.into_iter().map(Namespace::new).collect(), index }
    }

    /// The active namespace of this NSID.
    #[inline]
    pub(crate) fn get(&self, nsid: u32) -> Option<&Namespace> {
        let place = *self.index.get(nsid as usize)?;
        self.entries.get(usize::from(place).checked_sub(1)?)
    }

    /// The meaning of this NSID.
    #[inline]
    pub(crate) fn lookup(&self, nsid: u32) -> Lookup<'_> {
        match self.get(nsid) {
            Some(namespace) => Lookup::Active(namespace),
            None if (1..=MAX_NSID).contains(&nsid) => Lookup::Inactive,
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
