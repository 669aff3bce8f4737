//! Namespace Identification Descriptor list, CNS 03h (Base 5.17.2.3).

use super::Csi;
use crate::open::open_enum;

/// Bytes of the list.
pub const DESCRIPTORS_SIZE: usize = 4096;

/// Bytes of a descriptor in front of the identifier: NIDT, NIDL, two reserved.
const HEADER: usize = 4;

open_enum! {
    /// Namespace Identifier Type (NIDT).
    pub struct IdentifierType(pub u8) {
        EUI64 = 0x01 => "EUI64",
        NGUID = 0x02 => "NGUID",
        UUID = 0x03 => "UUID",
        CSI = 0x04 => "Command Set Identifier",
    }
}

/// One descriptor. Identifiers have their most significant byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceId {
    /// IEEE Extended Unique Identifier.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// Namespace UUID.
    Uuid([u8; 16]),
    /// The namespace's command set.
    Csi(Csi),
    /// An unknown type, or a wrong length.
    Unknown(IdentifierType),
}

impl NamespaceId {
    /// Returns type and identifier as on the wire; an unknown one is empty, which would end the
    /// list.
    fn parts(&self) -> (IdentifierType, &[u8]) {
        match self {
            Self::Eui64(id) => (IdentifierType::EUI64, id),
            Self::Nguid(id) => (IdentifierType::NGUID, id),
            Self::Uuid(id) => (IdentifierType::UUID, id),
            Self::Csi(csi) => (IdentifierType::CSI, core::slice::from_ref(&csi.0)),
            Self::Unknown(nidt) => (*nidt, &[]),
        }
    }

    fn from_parts(nidt: IdentifierType, id: &[u8]) -> Self {
        let known = match nidt {
            IdentifierType::EUI64 => id.try_into().ok().map(Self::Eui64),
            IdentifierType::NGUID => id.try_into().ok().map(Self::Nguid),
            IdentifierType::UUID => id.try_into().ok().map(Self::Uuid),
            IdentifierType::CSI => <[u8; 1]>::try_from(id).ok().map(|[csi]| Self::Csi(Csi(csi))),
            _ => None,
        };
        known.unwrap_or(Self::Unknown(nidt))
    }
}

/// Iterator over the descriptors of a list.
///
/// It ends at a descriptor without length, at the end of the bytes, or at a descriptor that exceeds
/// them.
#[derive(Clone, Debug)]
pub struct NamespaceIds<'a> {
    rest: &'a [u8],
}

impl<'a> NamespaceIds<'a> {
    /// Reads `list`, of any length.
    #[must_use]
    pub const fn new(list: &'a [u8]) -> Self {
        Self { rest: list }
    }
}

impl NamespaceIds<'_> {
    /// Returns the list of `ids`, in their order. It skips unknown ones, and drops those that do
    /// not fit.
    #[must_use]
    pub fn encode(ids: &[NamespaceId]) -> [u8; DESCRIPTORS_SIZE] {
        let mut list = [0; DESCRIPTORS_SIZE];
        let mut rest = list.as_mut_slice();
        for (nidt, id) in ids.iter().map(NamespaceId::parts).filter(|(_, id)| !id.is_empty()) {
            let Some((slot, behind)) = rest.split_at_mut_checked(HEADER + id.len()) else { break };
            slot[0] = nidt.0;
            // An identifier has at most 16 bytes.
            slot[1] = u8::try_from(id.len()).unwrap_or(0);
            slot[HEADER..].copy_from_slice(id);
            rest = behind;
        }
        list
    }
}

impl Iterator for NamespaceIds<'_> {
    type Item = NamespaceId;

    fn next(&mut self) -> Option<NamespaceId> {
        let (header, behind) = self.rest.split_first_chunk::<HEADER>()?;
        let [nidt, nidl, ..] = *header;
        if nidl == 0 {
            return None;
        }
        let (id, behind) = behind.split_at_checked(nidl.into())?;
        self.rest = behind;
        Some(NamespaceId::from_parts(IdentifierType(nidt), id))
    }
}
