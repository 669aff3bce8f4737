//! Default identifiers of namespaces and subsystems.
//!
//! They are derived, so that they stay the same after a restart and hosts find their disks again.
//! The identifiers of a namespace follow its data: the medium, or the place of the data.

use sha2::{Digest, Sha256};

/// Namespace of the daemon's version 5 UUIDs (RFC 9562, 5.5): an arbitrary fixed one.
const UUID_SPACE: uuid::Uuid = uuid::Uuid::from_u128(0x6d21_7f5e_9c3b_4a52_8f07_2e5d_41c6_b9a3);

/// Locally-administered bit in the first byte of an OUI (IEEE 802): the OUI has no assignee.
const LOCAL: u8 = 0x02;
/// Group bit in the first byte of an OUI.
const GROUP: u8 = 0x01;

/// Returns the UUID of a medium with its own identity: the same under every name and subsystem.
pub(crate) fn of_medium(medium: &str) -> [u8; 16] {
    uuid(&format!("medium\n{medium}"))
}

/// Returns the UUID of data without its own identity.
///
/// It depends on the place of the data and on the subsystem, because other targets have the same
/// place.
pub(crate) fn of_place(nqn: &str, place: &str) -> [u8; 16] {
    uuid(&format!("place\n{nqn}\n{place}"))
}

fn uuid(name: &str) -> [u8; 16] {
    *uuid::Uuid::new_v5(&UUID_SPACE, name.as_bytes()).as_bytes()
}

/// Derives the NGUID from a UUID.
pub(crate) fn nguid(uuid: &[u8; 16]) -> [u8; 16] {
    let mut nguid = [0; 16];
    nguid.copy_from_slice(&hash(uuid)[..16]);
    // The OUI is bytes 8 to 10 of an NGUID and 0 to 2 of an EUI-64 (Base 4.5.1 and 4.5.2).
    nguid[8] = nguid[8] & !GROUP | LOCAL;
    nguid
}

/// Derives the EUI-64 from a UUID.
pub(crate) fn eui64(uuid: &[u8; 16]) -> [u8; 8] {
    let mut eui64 = [0; 8];
    eui64.copy_from_slice(&hash(uuid)[16..24]);
    eui64[0] = eui64[0] & !GROUP | LOCAL;
    eui64
}

fn hash(uuid: &[u8; 16]) -> [u8; 32] {
    Sha256::new_with_prefix(b"namespace\n").chain_update(uuid).finalize().into()
}

/// Formats a UUID.
pub(crate) fn show(uuid: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*uuid).to_string()
}

/// Returns the serial number of subsystem `nqn`: 20 hexadecimal digits.
pub(crate) fn serial(nqn: &str) -> String {
    let hash = Sha256::new_with_prefix(b"serial\n").chain_update(nqn).finalize();
    hash[..10].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses `N` bytes of hexadecimal digits, with optional dashes or colons between them.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
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

    /// Hosts store these, so they must not change between versions.
    #[test]
    fn identifiers_stay_what_they_are() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let place = of_place("nqn.2026-11.io.nvmeof-tgt:demo", "ram:ram0");
        assert_eq!(uuid::Uuid::from_bytes(place).get_version_num(), 5);
        assert_eq!(show(&place), "c8f14c28-5288-55a0-9734-7c23fc76e43c");
        assert_eq!(
            show(&of_medium("eui.0025385b91b0f0e1")),
            "285dc979-0473-5274-8f57-c2288dc38d5c"
        );
        assert_eq!(hex(&nguid(&place)), "38408737047f1120e2eaa67f4d05e93b");
        assert_eq!(hex(&eui64(&place)), "56cf5d220d25ee51");
        assert_eq!(serial("nqn.2026-11.io.nvmeof-tgt:demo"), "6e788ba0241218d108ff");
    }

    #[test]
    fn each_name_counts() {
        let one = of_place("nqn.2026-11.org.example:a", "file:/a");
        for other in [
            of_place("nqn.2026-11.org.example:b", "file:/a"),
            of_place("nqn.2026-11.org.example:a", "file:/b"),
            of_medium("file:/a"),
        ] {
            assert!(one != other && nguid(&one) != nguid(&other) && eui64(&one) != eui64(&other));
        }
        assert_eq!(nguid(&one)[8] & 3, 2);
        assert_eq!(eui64(&one)[0] & 3, 2);
    }

    #[test]
    fn hexadecimal() {
        assert_eq!(parse_hex("00:1b-44FF"), Some([0x00, 0x1b, 0x44, 0xff]));
        assert_eq!(parse_hex::<4>("001b44f"), None);
        assert_eq!(parse_hex::<4>("001b44fg"), None);
        assert_eq!(parse_hex::<4>("001b44ff00"), None);
    }
}
