#![allow(unsafe_code)]
//! Socket addresses between std's form and the kernel's.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Memory for one address of any family, and its length, as `accept(2)` and `connect(2)`
/// want them. It lives in a block until the operation's last completion (H02).
#[repr(C)]
pub(crate) struct Address {
    pub(crate) storage: MaybeUninit<libc::sockaddr_storage>,
    pub(crate) len: libc::socklen_t,
}

impl Address {
    /// Room for an address the kernel will write.
    pub(crate) fn empty() -> Self {
        Address {
            storage: MaybeUninit::zeroed(),
            len: size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        }
    }

    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut this = Address::empty();
        match address {
            SocketAddr::V4(address) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                this.len = size_of_val(&raw) as libc::socklen_t;
                // SAFETY: `sockaddr_storage` is larger than and aligned for every family.
                unsafe {
                    this.storage
                        .as_mut_ptr()
                        .cast::<libc::sockaddr_in>()
                        .write(raw)
                };
            }
            SocketAddr::V6(address) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                this.len = size_of_val(&raw) as libc::socklen_t;
                // SAFETY: as above.
                unsafe {
                    this.storage
                        .as_mut_ptr()
                        .cast::<libc::sockaddr_in6>()
                        .write(raw)
                };
            }
        }
        this
    }

    /// The address, if it is an internet address.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        at(self.storage.as_ptr(), self.len)
    }
}

/// The internet address in the first `len` bytes at `storage`.
///
/// Crate-private callers pass memory that is valid and initialised for a whole
/// `sockaddr_storage`: an [`Address`].
pub(crate) fn at(
    storage: *const libc::sockaddr_storage,
    len: libc::socklen_t,
) -> Option<SocketAddr> {
    let len = len as usize;
    if storage.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: every sockaddr begins with its family; an `Address` is zeroed when made, so
    // all of it is initialised.
    let family = i32::from(unsafe { (*storage).ss_family });
    if family == libc::AF_INET && len >= size_of::<libc::sockaddr_in>() {
        // SAFETY: the family says that the bytes are a `sockaddr_in`.
        let raw = unsafe { storage.cast::<libc::sockaddr_in>().read() };
        let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
        return Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into());
    }
    if family == libc::AF_INET6 && len >= size_of::<libc::sockaddr_in6>() {
        // SAFETY: the family says that the bytes are a `sockaddr_in6`.
        let raw = unsafe { storage.cast::<libc::sockaddr_in6>().read() };
        let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
        let port = u16::from_be(raw.sin6_port);
        return Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both families survive the way to the kernel's form and back (H02, H28).
    #[test]
    fn addresses_round_trip() {
        for text in [
            "127.0.0.1:80",
            "255.1.2.3:65535",
            "[::1]:1",
            "[fe80::1:2%7]:443",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::new(address).get(), Some(address), "{text}");
        }
        assert_eq!(Address::empty().get(), None);
    }
}
