//! PCI Express links: speed, width and bandwidth.
//!
//! | generation | GT/s per lane | encoding | GB/s per lane |
//! |---|---|---|---|
//! | 1, 2 | 2.5, 5 | 8b/10b | 0.25, 0.5 |
//! | 3, 4, 5 | 8, 16, 32 | 128b/130b | 0.985, 1.969, 3.938 |
//! | 6 | 64 | 242 of 256 bytes of a flit | 7.563 |
//!
//! This is the bandwidth for packets in each direction. Headers, checksums, acknowledgements and
//! flow control use part of it. A packet with 256 bytes of data, the payload size of most systems,
//! carries 24 to 28 bytes in addition. [`PAYLOAD_SHARE`] is the assumed share of data. (PCI Express
//! Base 6.0, 4.2 and 2.2.)

use std::fmt;

/// Estimated share of data in a link's bandwidth, for packets with 256 bytes of data. With 128
/// bytes it is about 0.82, with 512 about 0.94.
pub const PAYLOAD_SHARE: f64 = 0.9;

/// Speed and width of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// Million transfers per second per lane: 16000 for PCIe 4.0.
    pub megatransfers: u32,
    /// Number of lanes.
    pub width: u8,
}

impl Link {
    /// Parses two sysfs attributes: `16.0 GT/s PCIe` and `4`. `None` if the link is down or unknown
    /// to the system.
    #[must_use]
    pub fn parse(speed: &str, width: &str) -> Option<Self> {
        let width: u8 = width.trim().parse().ok()?;
        let speed = speed.trim();
        let (number, _) = speed.split_once(" GT/s")?;
        let megatransfers = match number {
            "2.5" => 2500,
            "5.0" | "5" => 5000,
            "8.0" | "8" => 8000,
            "16.0" | "16" => 16000,
            "32.0" | "32" => 32000,
            "64.0" | "64" => 64000,
            _ => return None,
        };
        // 0 and 255 mean that the link is down or unknown.
        (1..=32).contains(&width).then_some(Self { megatransfers, width })
    }

    /// Returns the bandwidth in each direction after encoding, in GB/s (10^9 bytes).
    #[must_use]
    pub fn gb_per_s(self) -> f64 {
        let (bits, of) = match self.megatransfers {
            ..8000 => (8.0, 10.0),
            8000..64000 => (128.0, 130.0),
            64000.. => (242.0, 256.0),
        };
        f64::from(self.megatransfers) * f64::from(self.width) * bits / of / 8.0 / 1000.0
    }

    /// Returns the bandwidth available for data, in GB/s, by [`PAYLOAD_SHARE`].
    #[must_use]
    pub fn payload_gb_per_s(self) -> f64 {
        self.gb_per_s() * PAYLOAD_SHARE
    }

    /// Returns the best link that both ends support.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            megatransfers: self.megatransfers.min(other.megatransfers),
            width: self.width.min(other.width),
        }
    }
}

impl fmt::Display for Link {
    /// Formats the link as `16 GT/s x4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GT/s x{}", f64::from(self.megatransfers) / 1000.0, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        let cases = [
            ("2.5 GT/s PCIe", "1", "2.5 GT/s x1", 0.25),
            ("5 GT/s", "4", "5 GT/s x4", 2.0),
            ("8.0 GT/s PCIe", "4", "8 GT/s x4", 3.938),
            ("16.0 GT/s PCIe", "4", "16 GT/s x4", 7.877),
            ("32.0 GT/s PCIe", "16\n", "32 GT/s x16", 63.015),
            ("64.0 GT/s PCIe", "4", "64 GT/s x4", 30.25),
        ];
        for (speed, width, shown, gb_per_s) in cases {
            let link = Link::parse(speed, width).unwrap();
            assert_eq!(link.to_string(), shown);
            assert!((link.gb_per_s() - gb_per_s).abs() < 0.001, "{shown}: {}", link.gb_per_s());
        }
    }

    #[test]
    fn links_that_are_down_or_unknown() {
        let bad = [
            ("Unknown", "4"),
            ("16.0 GT/s PCIe", "0"),
            ("8.0 GT/s PCIe", "255"),
            ("", ""),
            ("3 GT/s", "4"),
        ];
        for (speed, width) in bad {
            assert_eq!(Link::parse(speed, width), None, "{speed} {width}");
        }
    }

    #[test]
    fn what_both_ends_can_do() {
        let drive = Link { megatransfers: 16000, width: 4 };
        let port = Link { megatransfers: 8000, width: 16 };
        assert_eq!(drive.common(port), Link { megatransfers: 8000, width: 4 });
    }
}
