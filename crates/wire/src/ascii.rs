//! ASCII string fields: left justified, padded with spaces (Base 1.4).

/// Fills `field` with `text` and spaces. Longer text is truncated; bytes that are not printable
/// ASCII (20h to 7Eh) become `?`.
pub fn fill(field: &mut [u8], text: &str) {
    let printable = text.bytes().map(|b| if matches!(b, 0x20..=0x7e) { b } else { b'?' });
    let padded = printable.chain(core::iter::repeat(b' '));
    for (to, byte) in field.iter_mut().zip(padded) {
        *to = byte;
    }
}

/// Returns an array of `text` and spaces, see [`fill`].
#[must_use]
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    fill(&mut field, text);
    field
}

/// Returns the text of `field` up to its padding, or `None` if it is not printable ASCII. The
/// padding is spaces; a NUL also ends the text, because some peers pad with NULs.
#[must_use]
pub fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let text = field[..end].trim_ascii_end();
    if text.iter().all(|b| matches!(b, 0x20..=0x7e)) {
        core::str::from_utf8(text).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_padded_and_cut() {
        assert_eq!(padded("ab"), *b"ab  ");
        assert_eq!(padded("abcdef"), *b"abcd");
        assert_eq!(padded("a\u{e9}\n"), *b"a???");
        assert_eq!(padded(""), [b' '; 3]);
    }

    #[test]
    fn text_is_what_is_in_front_of_the_padding() {
        assert_eq!(text(b"ab  "), Some("ab"));
        assert_eq!(text(b"  ab"), Some("  ab"));
        assert_eq!(text(b"4420\0\xff\xff"), Some("4420"));
        assert_eq!(text(b"    "), Some(""));
        assert_eq!(text(b""), Some(""));
        assert_eq!(text(b"a\xc3\xa9 "), None);
        assert_eq!(text(b"a\x1b[2J"), None);
    }
}
