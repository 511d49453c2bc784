//! The user whose process holds the other end of a TCP connection of this machine.
//!
//! A Unix socket reports the user of its peer, a TCP socket does not. But where both ends are on
//! this machine the kernel has the other end, too: a request for that one socket over netlink
//! (`sock_diag(7)`) returns its user, and costs a few microseconds with any number of sockets.
//!
//! The answer is good for counting connections by user. It is no proof of identity: a process may
//! have passed the socket to a process of another user.

use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`, of a request and of its answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// The length of `nlmsghdr` and `inet_diag_req_v2`.
const QUESTION_LENGTH: usize = 16 + 56;
/// Where `idiag_uid` stands, behind `nlmsghdr`, four bytes, `inet_diag_sockid` and three counts.
const USER_AT: usize = 16 + 4 + 48 + 12;

/// The user, by number, of the process at the `peer` end of a TCP connection to `local`. None if
/// the peer is on another machine or closed, or if the kernel does not report it.
pub fn user_of_peer(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    if !peer.ip().is_loopback() && peer.ip() != local.ip() {
        return None;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kernel =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()?;
    send(&kernel, &question(peer, local), SendFlags::empty()).ok()?;
    // The kernel has answered by the time it has taken the question.
    let mut answer = [0; 512];
    let (_, length) = recv(&kernel, &mut answer, RecvFlags::empty()).ok()?;
    let answer = &answer[..length];
    let kind = answer.get(4..6)?.first_chunk::<2>()?;
    let user = answer.get(USER_AT..)?.first_chunk::<4>()?;
    (u16::from_ne_bytes(*kind) == BY_FAMILY).then_some(u32::from_ne_bytes(*user))
}

/// Asks for the one TCP socket with these two ends, of which the first is its own.
fn question(own: SocketAddr, other: SocketAddr) -> [u8; QUESTION_LENGTH] {
    const TCP: u8 = 6;
    let mut bytes = [0; QUESTION_LENGTH];
    bytes[0..4].copy_from_slice(&(QUESTION_LENGTH as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    (bytes[16], bytes[17]) = (family.as_raw() as u8, TCP);
    // Sockets in every state.
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes[24..26].copy_from_slice(&own.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&other.port().to_be_bytes());
    for (at, ip) in [(28, own.ip()), (44, other.ip())] {
        match ip {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    // On any interface; and whatever its cookie is.
    bytes[64..72].fill(0xff);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_connection_of_this_machine_is_known() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has no such connection to ask about.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, peer) = listener.accept().unwrap();
            let local = stream.local_addr().unwrap();
            let us = rustix::process::geteuid().as_raw();
            assert_eq!(user_of_peer(local, peer), Some(us), "{address}");
            let unknown_port = SocketAddr::new(peer.ip(), 1);
            assert_eq!(user_of_peer(local, unknown_port), None, "no such connection");
        }
        let far = "192.0.2.1:5".parse().unwrap();
        assert_eq!(user_of_peer("192.0.2.2:6".parse().unwrap(), far), None);
    }
}
