//! Addresses of PCI functions and root complexes, as the system writes them.

use std::fmt;
use std::str::FromStr;

/// A PCI function: `0000:61:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// PCI domain; greater than 0xffff for domains that Linux assigns itself.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number on the bus, 0 to 31.
    pub device: u8,
    /// Function number of the device, 0 to 7.
    pub function: u8,
}

/// A root complex, identified by its host bridge: `0000:60` is domain 0, root bus 0x60.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootComplex {
    /// PCI domain.
    pub domain: u32,
    /// Root bus of the host bridge.
    pub bus: u8,
}

/// Error for a text that is no PCI function or no root complex.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no {what}, which looks like {example}")]
pub struct AddressError {
    text: String,
    what: &'static str,
    example: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses `DDDD:BB:DD.F`, or `BB:DD.F` of domain 0; all hexadecimal.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        address(text).ok_or_else(|| AddressError {
            text: text.to_owned(),
            what: "PCI address",
            example: "0000:61:00.0",
        })
    }
}

impl FromStr for RootComplex {
    type Err = AddressError;

    /// Parses `DDDD:BB`, hexadecimal.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        root_complex(text).ok_or_else(|| AddressError {
            text: text.to_owned(),
            what: "root complex",
            example: "0000:60",
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl fmt::Display for RootComplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}", self.domain, self.bus)
    }
}

fn address(text: &str) -> Option<Address> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = match rest.split_once(':') {
        Some((domain, bus)) => (self::domain(domain)?, bus),
        None => (0, rest),
    };
    let address = Address {
        domain,
        bus: hex_byte(bus, 2)?,
        device: hex_byte(device, 2)?,
        function: hex_byte(function, 1)?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

fn root_complex(text: &str) -> Option<RootComplex> {
    let (domain, bus) = text.split_once(':')?;
    Some(RootComplex { domain: self::domain(domain)?, bus: hex_byte(bus, 2)? })
}

fn domain(text: &str) -> Option<u32> {
    let digits = (4..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { u32::from_str_radix(text, 16).ok() } else { None }
}

fn hex_byte(text: &str, digits: usize) -> Option<u8> {
    let right = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    if right { u8::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["0000:61:00.0", "0000:ff:1f.7", "10000:e1:00.0"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let short: Address = "61:00.1".parse().unwrap();
        assert_eq!(short.to_string(), "0000:61:00.1");
        let root: RootComplex = "0000:60".parse().unwrap();
        assert_eq!(root, RootComplex { domain: 0, bus: 0x60 });
        assert_eq!(root.to_string(), "0000:60");
    }

    #[test]
    fn refuses_what_is_no_address() {
        let bad = [
            "",
            "S4",
            "0000:61:00",
            "0000:61:20.0",
            "0000:61:00.8",
            "0000:1:00.0",
            "000:61:00.0",
            "+000:61:00.0",
            "0000:61:00.00",
            "0000:0000:61:00.0",
            "é000:61:00.0",
        ];
        for text in bad {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in ["60", "0000:", "0000:6", "0000:60:00", "pci0000:60"] {
            assert!(text.parse::<RootComplex>().is_err(), "{text}");
        }
        let error = "x".parse::<Address>().unwrap_err().to_string();
        assert_eq!(error, "\"x\" is no PCI address, which looks like 0000:61:00.0");
    }
}
