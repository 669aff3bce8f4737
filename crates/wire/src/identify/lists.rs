//! Namespace lists: CNS 02h and 07h, log page 04h (Base 5.17.2.2, 5.17.2.7, 5.16.1.5).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::open::zero_default;

/// Maximum namespace IDs of a list.
pub const NSIDS_PER_LIST: usize = 1024;

/// A Namespace List: NSIDs in ascending order; unused entries at the end are 0; 4096 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NsidList {
    /// Identifiers.
    pub nsids: [U32; NSIDS_PER_LIST],
}
const _: () = assert!(size_of::<NsidList>() == 4096);

impl NsidList {
    /// Creates a list of the first 1024 of `nsids`, which are ascending and not 0.
    #[must_use]
    pub fn new(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::default();
        for (slot, nsid) in list.nsids.iter_mut().zip(nsids) {
            slot.set(nsid);
        }
        list
    }

    /// Iterates over the identifiers up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|&nsid| nsid != 0)
    }
}

zero_default!(NsidList);
