//! Connections on the data path: Unix sockets and TCP, one way to listen, connect, read and write.
//!
//! Nothing here blocks, and nothing here is shared between threads. [`Stream`] is one end of a
//! connection; [`Outgoing`] is what waits to be written on it, sent with one system call however
//! many pieces it has.

mod address;
mod listener;
mod outgoing;

use std::io::{self, IoSlice, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with, sockopt,
};

pub use address::{Address, AddressError};
pub use listener::{BindError, Door, Listener};
pub use outgoing::Outgoing;

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
}

impl Stream {
    /// Begins to connect. The connection is there once the stream can be written to and
    /// [`Self::error`] has nothing to say.
    ///
    /// # Errors
    /// If nobody listens there, or whatever else the kernel knows at once.
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

    /// What went wrong with the connection since this was last asked.
    ///
    /// # Errors
    /// That.
    pub fn error(&self) -> io::Result<()> {
        sockopt::socket_error(self)??;
        Ok(())
    }

    /// Writes the pieces, one behind the other, as far as the kernel takes them now. A peer that
    /// left is an error and not a signal.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel takes nothing now; else the connection is gone.
    pub fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(rustix::io::retry_on_intr(|| sendmsg(self, pieces, &mut nothing, SendFlags::NOSIGNAL))?)
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Socket::Unix(stream) => stream.read(bytes),
            Socket::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Socket::Unix(stream) => stream.as_fd(),
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
