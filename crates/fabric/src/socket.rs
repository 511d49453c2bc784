//! Plain sockets, Unix or TCP, without TLS: all connections get the same socket options, and the
//! code point of their class on request.

mod address;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with, sockopt,
};
#[cfg(feature = "cluster")]
use tidegate_model::Class;
use tidegate_model::Origin;

pub use address::{Address, AddressError};

use crate::peer_credentials;

/// How long a TCP peer may be silent before the first keep-alive probe, and between probes.
const PROBE: Duration = Duration::from_secs(3);

/// Keep-alive probes without an answer after which it counts as dead.
const PROBES: u32 = 3;

/// Whether an error says that the peer has closed the connection.
pub fn is_departure(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// One end of a connection in the clear. [`crate::stream::Stream`] has the contract of its methods.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub(crate) fn connect(address: &Address) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match address {
            Address::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                Ok(Self::Unix(socket.into()))
            }
            Address::Tcp(address) => {
                let family = match address.is_ipv4() {
                    true => AddressFamily::INET,
                    false => AddressFamily::INET6,
                };
                let socket = socket_with(family, SocketType::STREAM, flags, None)?;
                match connect(&socket, address) {
                    Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
                    Err(error) => return Err(error.into()),
                }
                Self::from_tcp(socket.into())
            }
        }
    }

    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        // A reply is written as a whole; holding it back for a fuller packet only adds latency.
        stream.set_nodelay(true)?;
        // A machine without power sends nothing. Keep-alive probes detect it.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, PROBE.as_millis() as u32 * PROBES)?;
        Ok(Self::Tcp(stream))
    }

    pub(crate) fn origin(&self) -> io::Result<Origin> {
        match self {
            Self::Unix(stream) => Ok(Origin::User(peer_credentials::of(stream)?.uid)),
            Self::Tcp(stream) => Ok(Origin::of_address(stream.peer_addr()?.ip())),
        }
    }

    pub(crate) fn peer_address(&self) -> Option<String> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(stream) => Some(stream.peer_addr().ok()?.to_string()),
        }
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn mark(&self, class: Class) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        // The lower two bits are for congestion notification; the kernel keeps its own there.
        let bits = class.dscp() << 2;
        let address = stream.local_addr()?.ip();
        if address.is_ipv6() {
            sockopt::set_ipv6_tclass(stream, bits.into())?;
        }
        if address.to_canonical().is_ipv4() {
            sockopt::set_ip_tos(stream, bits)?;
        }
        Ok(())
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => Ok(Self::Unix(stream.try_clone()?)),
            Self::Tcp(stream) => Ok(Self::Tcp(stream.try_clone()?)),
        }
    }

    pub(crate) fn finish(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    pub(crate) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        let send = || sendmsg(self, slices, &mut nothing, SendFlags::NOSIGNAL);
        Ok(rustix::io::retry_on_intr(send)?)
    }

    pub(crate) fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::readv(self, slices))?)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}
