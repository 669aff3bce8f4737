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
/// The form of Base 4.5 is not required: the target only compares names, and names of other forms
/// are common. Only [`Nqn::anonymous`] is empty.
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
}

impl Nqn {
    /// The well-known name of the discovery subsystem.
    #[must_use]
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.into())
    }

    /// The empty name of a host that sends none, as SPDK's load generator does.
    #[must_use]
    pub fn anonymous() -> Self {
        Self("".into())
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

    /// Creates a name of 1 to 223 bytes without control characters.
    ///
    /// # Errors
    /// [`NqnError::Empty`], [`NqnError::TooLong`] or [`NqnError::ControlCharacter`].
    pub fn new(name: &str) -> Result<Self, NqnError> {
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
    /// If there is no NUL, or the bytes before it are no name that [`Nqn::new`] accepts.
    pub fn from_field(field: &[u8; NQN_FIELD]) -> Result<Self, NqnError> {
        let end = field.iter().position(|&b| b == 0).ok_or(NqnError::NotTerminated)?;
        let name = core::str::from_utf8(&field[..end])
            .map_err(|e| NqnError::NotUtf8 { at: e.valid_up_to() })?;
        Self::new(name)
    }

    /// Parses the field of a host's name, which may be empty.
    ///
    /// # Errors
    /// As of [`Self::from_field`], except [`NqnError::Empty`].
    pub fn from_host_field(field: &[u8; NQN_FIELD]) -> Result<Self, NqnError> {
        match Self::from_field(field) {
            Err(NqnError::Empty) => Ok(Self::anonymous()),
            other => other,
        }
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
        Self::new(name)
    }
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
    fn names_of_the_specification_and_of_the_field() {
        for name in [
            DISCOVERY_NQN,
            "nqn.2026-11.io.nvmeof-tgt:demo",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2019-08.org.qemu:\u{e9}t\u{e9}",
            "nqn.2014-08.org.nvmexpress:NVMf:uuid:f81d4fae7dec11d0a76500a0c91e6bf6",
            "nqn.storage-1-6f5902ac-2372-73ba-9cdc-88e3a8a1c2b4",
            "2b1a44e0-2f44-4f7e-b0a5-1f9f3c1d7a10",
            "host17",
        ] {
            let nqn: Nqn = name.parse().unwrap();
            assert_eq!(nqn.as_str(), name);
            assert_eq!(nqn.to_string(), name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
    }

    #[test]
    fn what_is_no_name() {
        let long = format!("nqn.2026-11.io.example:{}", "x".repeat(201));
        assert_eq!(long.len(), 224);
        for (name, error) in [
            ("", NqnError::Empty),
            (long.as_str(), NqnError::TooLong { length: 224 }),
            ("nqn.2026-11.io\n", NqnError::ControlCharacter { at: 14 }),
            ("a\u{7}b", NqnError::ControlCharacter { at: 1 }),
        ] {
            assert_eq!(name.parse::<Nqn>(), Err(error), "{name}");
        }
        assert!(long[..223].parse::<Nqn>().is_ok());
        let mut field = [0u8; NQN_FIELD];
        field[..3].copy_from_slice(b"ab\xff");
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotUtf8 { at: 2 }));
        // Bytes after the NUL are not part of the name.
        field[2] = 0;
        field[3..].fill(0xff);
        assert_eq!(Nqn::from_field(&field).unwrap().as_str(), "ab");
    }

    #[test]
    fn only_a_host_may_send_no_name() {
        let field = Nqn::anonymous().to_field();
        assert_eq!(field, [0; NQN_FIELD]);
        assert_eq!(Nqn::from_field(&field), Err(NqnError::Empty));
        assert_eq!(Nqn::from_host_field(&field), Ok(Nqn::anonymous()));
        assert_eq!(Nqn::from_host_field(&[b'x'; NQN_FIELD]), Err(NqnError::NotTerminated));
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
        fn any_text_is_judged(text in "\\PC{0,300}") {
            if let Ok(nqn) = text.parse::<Nqn>() {
                prop_assert_eq!(nqn.as_str(), text);
            }
        }
    }
}
