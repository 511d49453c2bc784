//! Connections: Unix sockets and TCP, one interface to listen, connect, read and write.
//!
//! Nothing here blocks. [`Stream`] is one end of a connection, encrypted or not; [`Outgoing`] holds
//! bytes to be written on it, sent with one system call for any number of pieces.

mod address;
#[cfg(feature = "cluster")]
mod listener;
#[cfg(feature = "cluster")]
mod outgoing;
#[cfg(feature = "cluster")]
mod peer_user;

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
#[cfg(feature = "cluster")]
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

#[cfg(feature = "cluster")]
use crate::tls::stream::TlsStream;

/// How long a TCP peer may be silent before the first keep-alive probe, and between probes.
const PROBE: Duration = Duration::from_secs(3);

/// Keep-alive probes without an answer after which it counts as dead.
const PROBES: u32 = 3;

/// One end of a connection. It never blocks: a call that would wait fails with
/// [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct Stream(Socket);

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    #[cfg(feature = "cluster")]
    Tls(Arc<TlsStream>),
}

impl Stream {
    /// Begins to connect. The connection is made once the stream is writable and [`Self::error`]
    /// reports none.
    ///
    /// # Errors
    /// If no process listens there, or for other reasons that the kernel reports at once.
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
        // A machine without power sends nothing. Keep-alive probes detect it.
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

    /// The origin of the connection.
    ///
    /// # Errors
    /// If it is gone.
    pub fn origin(&self) -> io::Result<Origin> {
        match &self.0 {
            Socket::Unix(stream) => {
                Ok(Origin::User(sockopt::socket_peercred(stream)?.uid.as_raw()))
            }
            Socket::Tcp(stream) => Ok(Origin::of_address(stream.peer_addr()?.ip())),
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.socket().origin(),
        }
    }

    /// The address of the other end, for people; none for a Unix socket, or if it is gone.
    pub fn peer_address(&self) -> Option<String> {
        match &self.0 {
            Socket::Unix(_) => None,
            Socket::Tcp(stream) => Some(stream.peer_addr().ok()?.to_string()),
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.socket().peer_address(),
        }
    }

    /// The TLS connection that it is, if it is one.
    #[cfg(feature = "cluster")]
    pub(crate) fn tls(&self) -> Option<&Arc<TlsStream>> {
        match &self.0 {
            Socket::Tls(stream) => Some(stream),
            Socket::Unix(_) | Socket::Tcp(_) => None,
        }
    }

    /// The names that the peer's certificate bears, none before it was verified; nothing at all if
    /// the connection is not encrypted.
    pub fn names(&self) -> Option<&[String]> {
        match &self.0 {
            Socket::Unix(_) | Socket::Tcp(_) => None,
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => Some(stream.names()),
        }
    }

    /// Whether a read gives bytes, or the end, that the kernel does not report. A reactor reports
    /// them itself.
    pub fn holds_input(&self) -> bool {
        match &self.0 {
            Socket::Unix(_) | Socket::Tcp(_) => false,
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.holds_input(),
        }
    }

    /// Whether the stream itself has something to write, so that a caller who reads has to wait
    /// until it can. A reactor waits for that itself.
    pub fn wants_write(&self) -> bool {
        match &self.0 {
            Socket::Unix(_) | Socket::Tcp(_) => false,
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.wants_write(),
        }
    }

    /// Writes the stream's own output. Reading and sending do so, too, and report its errors.
    pub fn flush(&self) {
        #[cfg(feature = "cluster")]
        if let Socket::Tls(stream) = &self.0 {
            stream.flush();
        }
    }

    /// Another handle of the socket.
    ///
    /// # Errors
    /// If there is no descriptor left; kind `Unsupported` for an encrypted stream.
    pub fn try_clone(&self) -> io::Result<Self> {
        match &self.0 {
            Socket::Unix(stream) => Ok(Self(Socket::Unix(stream.try_clone()?))),
            Socket::Tcp(stream) => Ok(Self(Socket::Tcp(stream.try_clone()?))),
            #[cfg(feature = "cluster")]
            Socket::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes the error of the connection since the last call, if any.
    ///
    /// # Errors
    /// That error.
    pub fn error(&self) -> io::Result<()> {
        sockopt::socket_error(self)?.map_err(|error| match &self.0 {
            Socket::Unix(_) | Socket::Tcp(_) => error.into(),
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.explain(error.into()),
        })
    }

    /// Whether the kernel reports that the peer has ended the connection: nothing arrives any more
    /// besides the bytes that can be read now.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut socket = [PollFd::new(self, PollFlags::RDHUP)];
        poll(&mut socket, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Ends this side of the connection. Data that arrives can still be read.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn finish(&self) -> io::Result<()> {
        match &self.0 {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.finish(),
        }
    }

    /// Writes the pieces, one behind the other, as far as the kernel takes them now. A closed peer
    /// is an error and not a signal. After `WouldBlock` the same bytes have to be in front.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel takes nothing now; else the connection is gone.
    pub fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        #[cfg(feature = "cluster")]
        if let Socket::Tls(stream) = &self.0 {
            return stream.send(slices);
        }
        let mut nothing = SendAncillaryBuffer::default();
        let send = || sendmsg(self, slices, &mut nothing, SendFlags::NOSIGNAL);
        Ok(rustix::io::retry_on_intr(send)?)
    }

    /// Reads into the pieces, one behind the other, what is there. Zero means that the peer has
    /// ended its side.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there now; else the connection is gone.
    pub fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        #[cfg(feature = "cluster")]
        if let Socket::Tls(stream) = &self.0 {
            return stream.receive(slices);
        }
        Ok(rustix::io::retry_on_intr(|| rustix::io::readv(self, slices))?)
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Socket::Unix(stream) => stream.read(bytes),
            Socket::Tcp(stream) => stream.read(bytes),
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.receive(&mut [IoSliceMut::new(bytes)]),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
            #[cfg(feature = "cluster")]
            Socket::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

#[cfg(feature = "cluster")]
impl From<Arc<TlsStream>> for Stream {
    fn from(stream: Arc<TlsStream>) -> Self {
        Self(Socket::Tls(stream))
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

    fn try_from(stream: TcpStream) -> io::Result<Self> {
        Self::from_tcp(stream)
    }
}
