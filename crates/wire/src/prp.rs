//! Physical Region Pages: a command's references to pages of host memory (Base 4.1.1).
//!
//! PRP1 can start within a page; every further entry is the start of a page. If PRP1 and PRP2 do
//! not suffice, PRP2 refers to a list, which can itself start within a page. The last entry of a
//! page of the list refers to the next page of it, if the list continues.

use thiserror::Error;

/// Bytes of a PRP entry.
pub const PRP_SIZE: u64 = 8;

/// Meaning of PRP2 of a command (Base 4.1.1, 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prp2 {
    /// The data ends in PRP1's page: reserved.
    Unused,
    /// The data ends in the second page, which is PRP2.
    Page,
    /// PRP2 refers to a list with this number of data entries, not counting the entries that lead
    /// to further pages of it.
    List(u64),
}

/// Returns the number of pages of `len` bytes from `address` on, which is the number of their PRP
/// entries.
#[inline]
#[must_use]
pub const fn pages(address: u64, len: u64, page_size: u64) -> u64 {
    let offset = address & (page_size - 1);
    // Not `(offset + len).div_ceil()`, which could wrap.
    len / page_size + ((len % page_size) + offset).div_ceil(page_size)
}

/// Returns the meaning of PRP2 for a command with `len` data bytes from `prp1` on.
#[inline]
#[must_use]
pub const fn second(prp1: u64, len: u64, page_size: u64) -> Prp2 {
    match pages(prp1, len, page_size) {
        0 | 1 => Prp2::Unused,
        2 => Prp2::Page,
        pages => Prp2::List(pages - 1),
    }
}

/// Returns the number of entries from `address` to the end of its page of a PRP list.
#[inline]
#[must_use]
pub const fn list_room(address: u64, page_size: u64) -> u64 {
    (page_size - (address & (page_size - 1))) / PRP_SIZE
}

/// Returns true if the list entry at `address` leads to the next page of the list. It does if it is
/// the last of its page and `left`, the number of remaining data entries, is more than one.
#[inline]
#[must_use]
pub const fn is_chain(address: u64, left: u64, page_size: u64) -> bool {
    list_room(address, page_size) == 1 && left > 1
}

/// Error of an invalid PRP entry (Base 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum PrpError {
    /// Bits 1:0 of an entry are not 0.
    #[error("PRP {0:#x} is not dword aligned")]
    Dword(u64),
    /// An entry that is not the first has an offset into its page.
    #[error("PRP {0:#x} has an offset and is not the first")]
    Offset(u64),
    /// The address of a list is not a multiple of 8.
    #[error("PRP list at {0:#x} is not qword aligned")]
    List(u64),
}

/// Checks PRP1 of a command: it can have an offset, in dwords.
///
/// # Errors
/// If it is not aligned.
#[inline]
pub const fn check_first(prp: u64) -> Result<(), PrpError> {
    if prp & 3 == 0 { Ok(()) } else { Err(PrpError::Dword(prp)) }
}

/// Checks an entry that is not the first: it has no offset.
///
/// # Errors
/// If it has one.
#[inline]
pub const fn check_next(prp: u64, page_size: u64) -> Result<(), PrpError> {
    if prp & (page_size - 1) == 0 { Ok(()) } else { Err(PrpError::Offset(prp)) }
}

/// Checks PRP2 of a command that refers to a list: the list can start within a page, in qwords.
///
/// # Errors
/// If it is not aligned.
#[inline]
pub const fn check_list(prp: u64) -> Result<(), PrpError> {
    if prp & 7 == 0 { Ok(()) } else { Err(PrpError::List(prp)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prp2_by_how_much_is_left() {
        // Base 3.3.3.1: reserved, second page, or list.
        let page = 4096;
        assert_eq!(second(0x1000, 4096, page), Prp2::Unused);
        assert_eq!(second(0x1ffc, 4, page), Prp2::Unused);
        assert_eq!(second(0x1ffc, 8, page), Prp2::Page);
        assert_eq!(second(0x1000, 4097, page), Prp2::Page);
        assert_eq!(second(0x1200, 8192, page), Prp2::List(2));
        assert_eq!(second(0x1000, 8192, page), Prp2::Page);
        assert_eq!(second(0x1000, 8193, page), Prp2::List(2));
        assert_eq!(second(0x1000, 8193, 1 << 16), Prp2::Unused);
    }

    #[test]
    fn the_last_entry_of_a_list_page_leads_on_only_if_there_is_more() {
        assert_eq!(list_room(0x1000, 4096), 512);
        assert_eq!(list_room(0x1ff0, 4096), 2);
        assert!(!is_chain(0x1ff0, 9, 4096));
        assert!(is_chain(0x1ff8, 2, 4096));
        assert!(!is_chain(0x1ff8, 1, 4096));
    }

    #[test]
    fn alignment() {
        assert_eq!(check_first(0x1004), Ok(()));
        assert_eq!(check_first(0x1002), Err(PrpError::Dword(0x1002)));
        assert_eq!(check_next(0x3000, 4096), Ok(()));
        assert_eq!(check_next(0x3004, 4096), Err(PrpError::Offset(0x3004)));
        assert_eq!(check_list(0x3008), Ok(()));
        assert_eq!(check_list(0x3004), Err(PrpError::List(0x3004)));
    }

    proptest! {
        #[test]
        fn pages_are_those_from_the_first_byte_to_the_last(
            address in 0u64..1 << 40, len in 1u64..1 << 30, shift in 12u32..20,
        ) {
            let page = 1u64 << shift;
            let by_hand = (address + len - 1) / page - address / page + 1;
            prop_assert_eq!(pages(address, len, page), by_hand);
        }
    }
}
