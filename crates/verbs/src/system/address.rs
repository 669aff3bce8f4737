//! Socket addresses in C's form.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Converts an address for C functions.
pub(super) fn to_c(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: the structure is plain numbers, for which zeroes are valid.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let place = (&raw mut storage).cast::<u8>();
    match address {
        SocketAddr::V4(v4) => {
            let c = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is C's union of all addresses, with the size and alignment
            // for each. Its fields in Rust do not show their form.
            unsafe { place.cast::<libc::sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// Converts an address from C functions; `0.0.0.0:0` for one that is neither IPv4 nor IPv6.
pub(super) fn from_c(storage: &libc::sockaddr_storage) -> SocketAddr {
    let place = (&raw const *storage).cast::<u8>();
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family determines the form of the address in C's union; any bytes are a
            // valid one.
            let c = unsafe { place.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into()
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let c = unsafe { place.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(c.sin6_addr.s6_addr);
            let port = u16::from_be(c.sin6_port);
            SocketAddrV6::new(ip, port, c.sin6_flowinfo, c.sin6_scope_id).into()
        }
        _ => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into(),
    }
}

/// Returns the GID of an address in RoCE (IPv4 as IPv4-mapped IPv6).
pub(super) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn family(number: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).expect("an address family")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in ["10.0.1.1:4420", "0.0.0.0:0", "[2001:db8::5]:65535", "[fe80::1%3]:1", "[::]:0"]
        {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_c(&to_c(address)), address, "{text}");
        }
    }

    #[test]
    fn bytes_are_in_network_order() {
        let c = to_c("1.2.3.4:258".parse().expect("an address"));
        let at = (&raw const c).cast::<[u8; 8]>();
        // SAFETY: the structure is longer than 8 bytes, all of them written.
        let bytes = unsafe { at.read() };
        assert_eq!(bytes[2..], [1, 2, 1, 2, 3, 4]);
    }

    #[test]
    fn gids_are_those_of_roce() {
        let v4 = gid_of("10.0.1.1".parse().expect("an address"));
        assert_eq!(v4, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 1, 1]);
    }
}
