//! Test helper: bytes as in a table of a specification.

/// Returns `N` zero bytes, overwritten with `fields` (offset, bytes). Fields must not overlap.
pub(crate) fn bytes<const N: usize>(fields: &[(usize, &[u8])]) -> [u8; N] {
    let mut all = [0u8; N];
    let mut used = [false; N];
    for (offset, field) in fields {
        let range = *offset..offset + field.len();
        assert!(!used[range.clone()].contains(&true), "fields overlap at {offset}");
        used[range.clone()].fill(true);
        all[range].copy_from_slice(field);
    }
    all
}
