//! Identifiers of namespaces and subsystems that nobody configured: derived, so that they are the same after a restart
//! and hosts find their disks again. A namespace's follow its bytes: the medium, or the place where they are.

use sha2::{Digest, Sha256};

/// Namespace of our version 5 UUIDs (RFC 9562, 5.5): any fixed one of our own.
const UUID_SPACE: uuid::Uuid = uuid::Uuid::from_u128(0x6d21_7f5e_9c3b_4a52_8f07_2e5d_41c6_b9a3);

/// The locally-administered bit of an OUI's first byte (IEEE 802): these are not assigned to anybody.
const LOCAL: u8 = 0x02;
/// The group bit of it.
const GROUP: u8 = 0x01;

/// The UUID of a medium that has an identity of its own: the same under every name, in whatever subsystem.
pub(crate) fn of_medium(medium: &str) -> [u8; 16] {
    uuid(&format!("medium\n{medium}"))
}

/// The UUID of what has no identity of its own: by the place of its bytes, and the subsystem, as other targets have
/// such a place, too.
pub(crate) fn of_place(nqn: &str, place: &str) -> [u8; 16] {
    uuid(&format!("place\n{nqn}\n{place}"))
}

fn uuid(name: &str) -> [u8; 16] {
    *uuid::Uuid::new_v5(&UUID_SPACE, name.as_bytes()).as_bytes()
}

/// The NGUID that goes with a UUID.
pub(crate) fn nguid(uuid: &[u8; 16]) -> [u8; 16] {
    let mut nguid = [0; 16];
    nguid.copy_from_slice(&hash(uuid)[..16]);
    // The OUI is bytes 8 to 10 of an NGUID and 0 to 2 of an EUI-64 (Base 4.5.1 and 4.5.2).
    nguid[8] = nguid[8] & !GROUP | LOCAL;
    nguid
}

/// The EUI64 that goes with a UUID.
pub(crate) fn eui64(uuid: &[u8; 16]) -> [u8; 8] {
    let mut eui64 = [0; 8];
    eui64.copy_from_slice(&hash(uuid)[16..24]);
    eui64[0] = eui64[0] & !GROUP | LOCAL;
    eui64
}

fn hash(uuid: &[u8; 16]) -> [u8; 32] {
    Sha256::new_with_prefix(b"namespace\n").chain_update(uuid).finalize().into()
}

/// A UUID as it is written.
pub(crate) fn show(uuid: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*uuid).to_string()
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
