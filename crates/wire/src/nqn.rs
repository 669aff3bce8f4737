//! NVMe Qualified Names (Base 4.5).

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

/// Maximum bytes of an NQN, without a terminating NUL (Base 4.5).
pub const NQN_MAX: usize = 223;

/// Size of the field that carries an NQN in structures (Base 6.3).
pub const NQN_FIELD: usize = 256;

/// The well-known discovery subsystem NQN (Base 3.1.2.3 and 4.5.1).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// An NVMe Qualified Name: 1 to 223 bytes of UTF-8 without control characters; cheap to clone.
///
/// [`FromStr`] also requires the form of Base 4.5 and is for names that people write.
/// [`Nqn::from_field`] and [`Nqn::relaxed`] do not: hosts send names of any form, and the target
/// only compares them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Arc<str>);

/// Error of a name that is not an NQN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// The name has no bytes.
    #[error("the NQN is empty; write one such as nqn.2026-11.org.example:disks")]
    Empty,
    /// Longer than [`NQN_MAX`].
    #[error("the NQN has {length} bytes; at most {NQN_MAX} are allowed")]
    TooLong {
        /// Length of the name.
        length: usize,
    },
    /// The 256-byte field has no NUL.
    #[error("the NQN field of {NQN_FIELD} bytes has no terminating NUL")]
    NotTerminated,
    /// Not UTF-8.
    #[error("the NQN is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// A control character.
    #[error("the NQN has a control character at byte {at}")]
    ControlCharacter {
        /// Offset of the character.
        at: usize,
    },
    /// Does not start with `nqn.`.
    #[error("the NQN does not start with \"nqn.\"; the form is nqn.YYYY-MM.REVERSED-DOMAIN:NAME")]
    NoPrefix,
    /// No `YYYY-MM.` after the prefix.
    #[error(
        "the NQN has no date YYYY-MM. after \"nqn.\" (the form is nqn.YYYY-MM.REVERSED-DOMAIN:NAME)"
    )]
    BadDate,
    /// No domain after the date.
    #[error("the NQN has no domain after the date (the form is nqn.YYYY-MM.REVERSED-DOMAIN:NAME)")]
    NoDomain,
    /// `nqn.2014-08.org.nvmexpress:uuid:` is not followed by a UUID.
    #[error(
        "the NQN ends in no UUID; after {UUID_PREFIX} comes xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
    )]
    BadUuid,
}

impl Nqn {
    /// The well-known name of the discovery subsystem.
    #[must_use]
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.into())
    }

    /// Returns `nqn.2014-08.org.nvmexpress:uuid:` and the UUID in lower case.
    #[must_use]
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        use fmt::Write;
        let mut name = String::with_capacity(UUID_PREFIX.len() + 36);
        name.push_str(UUID_PREFIX);
        for (i, byte) in uuid.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                name.push('-');
            }
            // Writing to a String does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        Self(name.into())
    }

    /// Accepts any name of 1 to 223 bytes without control characters, of any form.
    ///
    /// # Errors
    /// [`NqnError::Empty`], [`NqnError::TooLong`] or [`NqnError::ControlCharacter`].
    pub fn relaxed(name: &str) -> Result<Self, NqnError> {
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        if name.len() > NQN_MAX {
            return Err(NqnError::TooLong { length: name.len() });
        }
        if let Some(at) = name.find(|c: char| c.is_control()) {
            return Err(NqnError::ControlCharacter { at });
        }
        Ok(Self(name.into()))
    }

    /// Parses a NUL-terminated field of a structure. Bytes after the NUL are ignored.
    ///
    /// # Errors
    /// If there is no NUL, or the bytes before it are not a [`Nqn::relaxed`] name.
    pub fn from_field(field: &[u8; NQN_FIELD]) -> Result<Self, NqnError> {
        let end = field.iter().position(|&b| b == 0).ok_or(NqnError::NotTerminated)?;
        let name = core::str::from_utf8(&field[..end])
            .map_err(|e| NqnError::NotUtf8 { at: e.valid_up_to() })?;
        Self::relaxed(name)
    }

    /// Returns the name as a NUL-padded field of a structure.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD] {
        let mut field = [0; NQN_FIELD];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for the well-known name of the discovery subsystem.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY_NQN
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        let nqn = Self::relaxed(name)?;
        let rest = name.strip_prefix("nqn.").ok_or(NqnError::NoPrefix)?;
        let domain = after_date(rest.as_bytes()).ok_or(NqnError::BadDate)?;
        if !domain.first().is_some_and(u8::is_ascii_alphanumeric) {
            return Err(NqnError::NoDomain);
        }
        match name.strip_prefix(UUID_PREFIX) {
            Some(uuid) if !is_uuid(uuid.as_bytes()) => Err(NqnError::BadUuid),
            _ => Ok(nqn),
        }
    }
}

/// Returns the text after `YYYY-MM.`, if `text` starts with a date.
fn after_date(text: &[u8]) -> Option<&[u8]> {
    let (date, rest) = text.split_at_checked(8)?;
    let digits = |range: core::ops::Range<usize>| date[range].iter().all(u8::is_ascii_digit);
    let month = matches!(&date[5..7], [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2']);
    (digits(0..4) && date[4] == b'-' && month && date[7] == b'.').then_some(rest)
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl core::borrow::Borrow<str> for Nqn {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_the_right_form() {
        for name in [
            DISCOVERY_NQN,
            "nqn.2026-11.io.nvmeof-tgt:demo",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2019-08.org.qemu:\u{e9}t\u{e9}",
        ] {
            let nqn: Nqn = name.parse().unwrap();
            assert_eq!(nqn.as_str(), name);
            assert_eq!(nqn.to_string(), name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
    }

    #[test]
    fn names_of_the_wrong_form() {
        let long = format!("nqn.2026-11.io.example:{}", "x".repeat(201));
        assert_eq!(long.len(), 224);
        for (name, error) in [
            ("", NqnError::Empty),
            (long.as_str(), NqnError::TooLong { length: 224 }),
            ("iqn.2026-11.io.example:a", NqnError::NoPrefix),
            ("nqn.2026-13.io.example:a", NqnError::BadDate),
            ("nqn.2026-00.io.example:a", NqnError::BadDate),
            ("nqn.26-11.io.example:a", NqnError::BadDate),
            ("nqn.2026-11", NqnError::BadDate),
            ("nqn.2026-11.", NqnError::NoDomain),
            ("nqn.2026-11.:a", NqnError::NoDomain),
            ("nqn.2026-11.io\n", NqnError::ControlCharacter { at: 14 }),
            ("nqn.2014-08.org.nvmexpress:uuid:nonsense", NqnError::BadUuid),
        ] {
            assert_eq!(name.parse::<Nqn>(), Err(error), "{name}");
        }
        assert!(long[..223].parse::<Nqn>().is_ok());
    }

    #[test]
    fn names_hosts_send_may_have_any_form() {
        assert!(Nqn::relaxed("host17").is_ok());
        assert_eq!(Nqn::relaxed("a\u{7}b"), Err(NqnError::ControlCharacter { at: 1 }));
        let mut field = [0u8; NQN_FIELD];
        field[..3].copy_from_slice(b"ab\xff");
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotUtf8 { at: 2 }));
        // Bytes after the NUL are not part of the name.
        field[2] = 0;
        field[3..].fill(0xff);
        assert_eq!(Nqn::from_field(&field).unwrap().as_str(), "ab");
    }

    #[test]
    fn uuid_names() {
        let nqn = Nqn::from_uuid(&[
            0xf8, 0x1d, 0x4f, 0xae, 0x7d, 0xec, 0x11, 0xd0, 0xa7, 0x65, 0x00, 0xa0, 0xc9, 0x1e,
            0x6b, 0xf6,
        ]);
        let text = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
        assert_eq!(nqn.as_str(), text);
        assert_eq!(text.parse(), Ok(nqn));
        assert!(Nqn::discovery().is_discovery());
    }

    proptest! {
        #[test]
        fn any_field_is_judged(
            text in "\\PC{0,80}",
            ends in any::<bool>(),
            noise in proptest::collection::vec(any::<u8>(), NQN_FIELD),
            intact in 0usize..=NQN_FIELD,
        ) {
            // A name with or without its NUL, in front of random bytes that can also overwrite the
            // name.
            let mut field: [u8; NQN_FIELD] = noise.try_into().unwrap();
            let len = text.len().min(intact).min(NQN_FIELD - 1);
            field[..len].copy_from_slice(&text.as_bytes()[..len]);
            if ends {
                field[len] = 0;
            }
            if let Ok(nqn) = Nqn::from_field(&field) {
                prop_assert!(!nqn.as_str().is_empty() && nqn.as_str().len() <= NQN_MAX);
                prop_assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
            }
        }

        #[test]
        fn any_text_is_judged(text in "(nqn\\.)?([0-9]{4}-[0-9]{2}\\.)?\\PC{0,300}") {
            if let Ok(nqn) = text.parse::<Nqn>() {
                prop_assert_eq!(nqn.as_str(), text);
            }
        }
    }
}
