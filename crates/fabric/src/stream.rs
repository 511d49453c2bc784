//! Connections: Unix sockets and TCP, one way to listen, connect, read and write.
//!
//! Nothing here blocks, and nothing here is shared between threads. [`Stream`] is one end of a
//! connection; [`Outgoing`] is what waits to be written on it, sent with one system call however
//! many pieces it has.

mod address;
#[cfg(feature = "cluster")]
mod listener;
#[cfg(feature = "cluster")]
mod outgoing;
#[cfg(feature = "cluster")]
mod peer_user;
mod tls_peer;

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with, sockopt,
};

pub use address::{Address, AddressError};
#[cfg(feature = "cluster")]
pub use listener::{BindError, Listener, ListenerAccess};
#[cfg(feature = "cluster")]
pub use outgoing::Outgoing;
#[cfg(feature = "cluster")]
pub use peer_user::user_of_peer;
use tidegate_model::Origin;
pub use tls_peer::TlsPeer;

/// How long a TCP peer may be silent before it is asked whether it is there, and between questions.
const PROBE: Duration = Duration::from_secs(3);

/// Questions without an answer after which it counts as gone.
const PROBES: u32 = 3;

/// One end of a connection. It never blocks: what cannot be done now is
/// [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct Stream(Socket);

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    /// The inner side of a TLS connection (`tls`).
    Tls(UnixStream, Arc<TlsPeer>),
}

impl Stream {
    /// Begins to connect. The connection is there once the stream can be written to and
    /// [`Self::error`] has nothing to say.
    ///
    /// # Errors
    /// If no process listens there, or for other reasons that the kernel knows at once.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match address {
            Address::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                Ok(Self(Socket::Unix(socket.into())))
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

    fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        // A reply is written as a whole; holding it back for a fuller packet only adds latency.
        stream.set_nodelay(true)?;
        // A machine that lost its power says nothing. It is asked, and given up after a while.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, PROBE.as_millis() as u32 * PROBES)?;
        Ok(Self(Socket::Tcp(stream)))
    }

    /// Two streams that are connected with each other.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok((Self(Socket::Unix(one)), Self(Socket::Unix(other))))
    }

    /// The same connection, with `tls_peer` for its peer's names and the reason of its end. One
    /// over TCP is never the inner side of TLS, and stays as it is.
    #[must_use]
    pub fn with_tls_peer(self, tls_peer: Arc<TlsPeer>) -> Self {
        match self.0 {
            Socket::Unix(stream) => Self(Socket::Tls(stream, tls_peer)),
            _ => self,
        }
    }

    /// The origin of the connection, if it does not go through TLS.
    ///
    /// # Errors
    /// If it is gone; kind `Unsupported` for one that goes through TLS, whose inner side does not
    /// see the other end.
    pub fn origin(&self) -> io::Result<Origin> {
        match &self.0 {
            Socket::Unix(stream) => {
                Ok(Origin::User(sockopt::socket_peercred(stream)?.uid.as_raw()))
            }
            Socket::Tcp(stream) => Ok(Origin::of_address(stream.peer_addr()?.ip())),
            Socket::Tls(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The identity of the peer and the end of the connection, if it goes through TLS.
    pub fn tls_peer(&self) -> Option<&Arc<TlsPeer>> {
        match &self.0 {
            Socket::Tls(_, tls_peer) => Some(tls_peer),
            Socket::Unix(_) | Socket::Tcp(_) => None,
        }
    }

    /// The Unix socket that it is, for callers with other means to read it.
    ///
    /// # Errors
    /// Kind `Unsupported` if it is a TCP connection, which is closed.
    pub fn into_unix(self) -> io::Result<UnixStream> {
        match self.0 {
            Socket::Unix(stream) | Socket::Tls(stream, _) => Ok(stream),
            Socket::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes the error of the connection since the last call, if any.
    ///
    /// # Errors
    /// That error.
    pub fn error(&self) -> io::Result<()> {
        sockopt::socket_error(self)?.map_err(|error| self.tls_error(error.into()))
    }

    /// Whether the peer has ended the connection, as far as the kernel knows: nothing arrives any
    /// more besides what can be read now. A peer that is reached through a lock has ended it when
    /// the lock has.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut socket = [PollFd::new(self, PollFlags::RDHUP)];
        poll(&mut socket, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Says that nothing more will be sent. Data that arrives can still be read.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn finish(&self) -> io::Result<()> {
        match &self.0 {
            Socket::Unix(stream) | Socket::Tls(stream, _) => stream.shutdown(Shutdown::Write),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Writes the pieces, one behind the other, as far as the kernel takes them now. A peer that
    /// left is an error and not a signal.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel takes nothing now; else the connection is gone.
    pub fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        let send = || sendmsg(self, slices, &mut nothing, SendFlags::NOSIGNAL);
        rustix::io::retry_on_intr(send).map_err(|error| self.tls_error(error.into()))
    }

    /// Reads into the pieces, one behind the other, what is there. Zero means that the peer has
    /// said that nothing more will come.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there now; else the connection is gone.
    pub fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match rustix::io::retry_on_intr(|| rustix::io::readv(self, slices)) {
            Ok(0) => self.tls_peer().and_then(|tls_peer| tls_peer.end()).map_or(Ok(0), Err),
            Ok(count) => Ok(count),
            Err(error) => Err(self.tls_error(error.into())),
        }
    }

    /// The error, or the reason for it that is known of a connection through a lock.
    fn tls_error(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.tls_peer().and_then(|tls_peer| tls_peer.end()).unwrap_or(error)
            }
            _ => error,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Socket::Unix(stream) => stream.read(bytes),
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Tls(..) => self.receive(&mut [IoSliceMut::new(bytes)]),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Socket::Unix(stream) | Socket::Tls(stream, _) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl From<UnixStream> for Stream {
    /// The stream should not block; one that does makes its worker wait.
    fn from(stream: UnixStream) -> Self {
        Self(Socket::Unix(stream))
    }
}

impl TryFrom<TcpStream> for Stream {
    type Error = io::Error;

    /// Likewise.
    fn try_from(stream: TcpStream) -> io::Result<Self> {
        Self::from_tcp(stream)
    }
}
