//! Identifiers of namespaces and subsystems that nobody configured: derived from names, so that
//! they are the same after a restart and hosts find their disks again.

use sha2::{Digest, Sha256};

/// Namespace of our version 5 UUIDs (RFC 9562, 5.5): any fixed one of our own.
const UUID_SPACE: uuid::Uuid = uuid::Uuid::from_u128(0x6d21_7f5e_9c3b_4a52_8f07_2e5d_41c6_b9a3);

/// The locally-administered bit of an OUI's first byte (IEEE 802): these are not assigned to anybody.
const LOCAL: u8 = 0x02;
/// The group bit of it.
const GROUP: u8 = 0x01;

/// What identifies one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uuid: [u8; 16],
    pub(super) nguid: [u8; 16],
    pub(super) eui64: [u8; 8],
}

/// The identifiers of namespace `nsid` of subsystem `nqn` over the device called `device`.
pub(super) fn of_namespace(nqn: &str, nsid: u32, device: &str) -> Identity {
    let name = format!("{nqn}\n{nsid}\n{device}");
    let uuid = *uuid::Uuid::new_v5(&UUID_SPACE, name.as_bytes()).as_bytes();
    let hash = Sha256::new_with_prefix(b"namespace\n").chain_update(&name).finalize();
    let (mut nguid, mut eui64) = ([0; 16], [0; 8]);
    nguid.copy_from_slice(&hash[..16]);
    eui64.copy_from_slice(&hash[16..24]);
    // The OUI is bytes 8 to 10 of an NGUID and 0 to 2 of an EUI-64 (Base 4.5.1 and 4.5.2).
    nguid[8] = nguid[8] & !GROUP | LOCAL;
    eui64[0] = eui64[0] & !GROUP | LOCAL;
    Identity { uuid, nguid, eui64 }
}

/// The serial number of subsystem `nqn`: 20 hexadecimal digits.
pub(super) fn serial(nqn: &str) -> String {
    let hash = Sha256::new_with_prefix(b"serial\n").chain_update(nqn).finalize();
    hash[..10].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads `N` bytes of hexadecimal digits, with dashes or colons between them if one likes.
pub(super) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !matches!(c, '-' | ':'))
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts remember these: they must not change from one version to the next.
    #[test]
    fn identifiers_stay_what_they_are() {
        let identity = of_namespace("nqn.2026-11.io.nvmeof-tgt:demo", 1, "ram0");
        let uuid = uuid::Uuid::from_bytes(identity.uuid);
        assert_eq!(uuid.get_version_num(), 5);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(uuid.to_string(), "b3781f7c-6d9d-5abf-b9b5-f29aeea87bfa");
        assert_eq!(hex(&identity.nguid), "88885874c756b656fe35de722299e0ee");
        assert_eq!(hex(&identity.eui64), "aebc91b2889ec78e");
        assert_eq!(serial("nqn.2026-11.io.nvmeof-tgt:demo"), "6e788ba0241218d108ff");
    }

    #[test]
    fn each_name_counts() {
        let one = of_namespace("nqn.2026-11.org.example:a", 1, "ram0");
        for other in [
            of_namespace("nqn.2026-11.org.example:b", 1, "ram0"),
            of_namespace("nqn.2026-11.org.example:a", 2, "ram0"),
            of_namespace("nqn.2026-11.org.example:a", 1, "ram1"),
        ] {
            assert!(one.uuid != other.uuid && one.nguid != other.nguid && one.eui64 != other.eui64);
        }
        assert_eq!(one.nguid[8] & 3, 2);
        assert_eq!(one.eui64[0] & 3, 2);
    }

    #[test]
    fn hexadecimal() {
        assert_eq!(parse_hex("00:1b-44FF"), Some([0x00, 0x1b, 0x44, 0xff]));
        assert_eq!(parse_hex::<4>("001b44f"), None);
        assert_eq!(parse_hex::<4>("001b44fg"), None);
        assert_eq!(parse_hex::<4>("001b44ff00"), None);
    }
}
