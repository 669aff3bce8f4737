//! Helvetica, plain and bold: character widths and text encoding.
//!
//! The encoding is WinAnsiEncoding (ISO 32000-1 annex D).

/// One of the two fonts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Font {
    Plain,
    Bold,
}

/// Widths in thousandths of the size, from the space (32) to the tilde (126).
const PLAIN: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
const BOLD: [u16; 95] = [
    278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611, 975, 722, 722, 722, 722, 667,
    611, 778, 722, 278, 556, 722, 611, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667,
    667, 611, 333, 278, 333, 584, 556, 333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556,
    278, 889, 611, 611, 611, 611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584,
];
/// Approximate width of other characters.
const OTHER: u16 = 584;

impl Font {
    /// Width of text of this size, in the same unit.
    pub(super) fn width(self, text: &str, size: f32) -> f32 {
        let widths = match self {
            Self::Plain => &PLAIN,
            Self::Bold => &BOLD,
        };
        let of = |byte: u8| {
            let index = byte.checked_sub(32).map(usize::from);
            f32::from(index.and_then(|index| widths.get(index)).copied().unwrap_or(OTHER))
        };
        encode(text).into_iter().map(of).sum::<f32>() * size / 1000.0
    }

    /// Breaks text into lines of at most this width; a single word that is wider is cut.
    pub(super) fn wrap(self, text: &str, size: f32, width: f32) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = String::new();
        for word in text.split_whitespace() {
            let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
            if self.width(&longer, size) <= width {
                line = longer;
                continue;
            }
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            for character in word.chars() {
                line.push(character);
                if line.chars().count() > 1 && self.width(&line, size) > width {
                    line.pop();
                    lines.push(std::mem::replace(&mut line, character.to_string()));
                }
            }
        }
        if !line.is_empty() || lines.is_empty() {
            lines.push(line);
        }
        lines
    }
}

/// Encodes text in WinAnsiEncoding; other characters become question marks.
pub(super) fn encode(text: &str) -> Vec<u8> {
    let byte = |character: char| match character {
        ' '..='~' => u8::try_from(character).unwrap_or(b'?'),
        '\u{a0}'..='\u{ff}' => u8::try_from(u32::from(character)).unwrap_or(b'?'),
        '\u{20ac}' => 0x80,
        '\u{2026}' => 0x85,
        '\u{2018}' => 0x91,
        '\u{2019}' => 0x92,
        '\u{201c}' => 0x93,
        '\u{201d}' => 0x94,
        '\u{2022}' => 0x95,
        '\u{2013}' => 0x96,
        '\u{2014}' => 0x97,
        character if character.is_whitespace() => b' ',
        _ => b'?',
    };
    text.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_wide_as_its_characters() {
        assert!(
            (Font::Plain.width("IOPS", 10.0) - (0.278 + 0.778 + 0.667 + 0.667) * 10.0).abs() < 1e-4
        );
        assert!(Font::Bold.width("a b", 10.0) > Font::Plain.width("a b", 10.0));
    }

    #[test]
    fn lines_are_not_wider_than_asked_and_lose_nothing() {
        let text = "a steady state is five rounds --destroy-data /dev/disk/by-id/nvme-eui.0123456789abcdef0123456789";
        for width in [30.0, 60.0, 200.0] {
            let lines = Font::Plain.wrap(text, 8.0, width);
            assert!(lines.iter().all(|line| Font::Plain.width(line, 8.0) <= width), "{lines:?}");
            let joined: String = lines.concat();
            assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
        }
        assert_eq!(Font::Plain.wrap("", 8.0, 10.0), [""]);
    }

    #[test]
    fn what_the_encoding_lacks_is_a_question_mark() {
        assert_eq!(encode("4 × µs – \u{4e2d}\n"), b"4 \xd7 \xb5s \x96 ? ");
    }
}
