//! Connections: Unix sockets and TCP, one interface to listen, connect, read and write.
//!
//! Nothing here blocks. [`Stream`] is one end of a connection, encrypted or not; [`Outgoing`] holds
//! bytes to be written on it, sent with one system call for any number of pieces.

#[cfg(feature = "cluster")]
mod listener;
#[cfg(feature = "cluster")]
mod outgoing;
#[cfg(feature = "cluster")]
#[allow(unsafe_code, reason = "the kernel writes a descriptor and credentials to memory")]
pub mod peer_process;
#[cfg(feature = "cluster")]
mod peer_user;
#[cfg(feature = "cluster")]
mod way;

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
#[cfg(feature = "cluster")]
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

#[cfg(feature = "cluster")]
pub use listener::{BindError, Listener, ListenerAccess};
#[cfg(feature = "cluster")]
pub use outgoing::Outgoing;
#[cfg(feature = "cluster")]
pub use peer_user::user_of_peer;
#[cfg(feature = "cluster")]
use tidegate_model::Class;
use tidegate_model::Origin;
#[cfg(feature = "cluster")]
pub use way::Way;

use crate::socket::Socket;
pub use crate::socket::is_departure;
pub use crate::socket::{Address, AddressError};
#[cfg(feature = "cluster")]
use crate::tls::{Guard, TlsStream};

/// One end of a connection. It never blocks: a call that would wait fails with
/// [`io::ErrorKind::WouldBlock`].
#[derive(Debug)]
pub struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Plain(Socket),
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
        Socket::connect(address).map(Self::from)
    }

    /// Two streams that are connected with each other.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok((one.into(), other.into()))
    }

    /// The origin of the connection.
    ///
    /// # Errors
    /// If it is gone.
    pub fn origin(&self) -> io::Result<Origin> {
        match &self.0 {
            Kind::Plain(socket) => socket.origin(),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.socket().origin(),
        }
    }

    /// The address of the other end, for people; none for a Unix socket, or if it is gone.
    pub fn peer_address(&self) -> Option<String> {
        match &self.0 {
            Kind::Plain(socket) => socket.peer_address(),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.socket().peer_address(),
        }
    }

    /// Gives the packets of the connection the code point of a class ([`Class::dscp`]), from the
    /// next one on. A Unix socket has no packets. The mark is a request to the network, which may
    /// ignore it: where the kernel refuses it, the connection goes on without.
    #[cfg(feature = "cluster")]
    pub fn mark(&self, class: Class) {
        let socket = match &self.0 {
            Kind::Plain(socket) => socket,
            Kind::Tls(stream) => stream.socket(),
        };
        if let Err(error) = socket.mark(class) {
            tracing::debug!(%class, %error, "the packets of a connection have no mark");
        }
    }

    /// Encrypts an accepted connection.
    ///
    /// # Errors
    /// If the connection is gone; kind `Unsupported` if it is encrypted already.
    #[cfg(feature = "cluster")]
    pub fn accept_tls(self, guard: &Guard) -> io::Result<Self> {
        Ok(guard.accept(self.into_socket()?)?.into())
    }

    /// Encrypts a connection that was begun to a process of this name.
    ///
    /// # Errors
    /// If the name cannot be that of a certificate; kind `Unsupported` if it is encrypted already.
    #[cfg(feature = "cluster")]
    pub fn connect_tls(self, guard: &Guard, name: &str) -> io::Result<Self> {
        Ok(guard.connect(self.into_socket()?, name)?.into())
    }

    #[cfg(feature = "cluster")]
    fn into_socket(self) -> io::Result<Socket> {
        match self.0 {
            Kind::Plain(socket) => Ok(socket),
            Kind::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The TLS connection that it is, if it is one.
    #[cfg(feature = "cluster")]
    pub(crate) fn tls(&self) -> Option<&Arc<TlsStream>> {
        match &self.0 {
            Kind::Tls(stream) => Some(stream),
            Kind::Plain(_) => None,
        }
    }

    /// The names that the peer's certificate bears, none before it was verified; nothing at all if
    /// the connection is not encrypted.
    pub fn names(&self) -> Option<&[String]> {
        match &self.0 {
            Kind::Plain(_) => None,
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => Some(stream.names()),
        }
    }

    /// Whether a read gives bytes, or the end, that the kernel does not report. A reactor reports
    /// them itself.
    pub fn holds_input(&self) -> bool {
        match &self.0 {
            Kind::Plain(_) => false,
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.holds_input(),
        }
    }

    /// Whether the stream itself has something to write, so that a caller who reads has to wait
    /// until it can. A reactor waits for that itself.
    pub fn wants_write(&self) -> bool {
        match &self.0 {
            Kind::Plain(_) => false,
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.wants_write(),
        }
    }

    /// Writes the stream's own output. Reading and sending do so, too, and report its errors.
    pub fn flush(&self) {
        #[cfg(feature = "cluster")]
        if let Kind::Tls(stream) = &self.0 {
            stream.flush();
        }
    }

    /// Another handle of the socket.
    ///
    /// # Errors
    /// If there is no descriptor left; kind `Unsupported` for an encrypted stream.
    pub fn try_clone(&self) -> io::Result<Self> {
        match &self.0 {
            Kind::Plain(socket) => socket.try_clone().map(Self::from),
            #[cfg(feature = "cluster")]
            Kind::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes the error of the connection since the last call, if any.
    ///
    /// # Errors
    /// That error.
    pub fn error(&self) -> io::Result<()> {
        sockopt::socket_error(self)?.map_err(|error| match &self.0 {
            Kind::Plain(_) => error.into(),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.explain(error.into()),
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
            Kind::Plain(socket) => socket.finish(),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.finish(),
        }
    }

    /// Writes the pieces, one behind the other, as far as the kernel takes them now. A closed peer
    /// is an error and not a signal. After `WouldBlock` the same bytes have to be in front.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel takes nothing now; else the connection is gone.
    pub fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => socket.send(slices),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.send(slices),
        }
    }

    /// Reads into the pieces, one behind the other, what is there. Zero means that the peer has
    /// ended its side.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there now; else the connection is gone.
    pub fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => socket.receive(slices),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.receive(slices),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive(&mut [IoSliceMut::new(bytes)])
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Plain(socket) => socket.as_fd(),
            #[cfg(feature = "cluster")]
            Kind::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

impl From<Socket> for Stream {
    fn from(socket: Socket) -> Self {
        Self(Kind::Plain(socket))
    }
}

#[cfg(feature = "cluster")]
impl From<Arc<TlsStream>> for Stream {
    fn from(stream: Arc<TlsStream>) -> Self {
        Self(Kind::Tls(stream))
    }
}

impl From<UnixStream> for Stream {
    /// The stream should not block; one that does makes its worker wait.
    fn from(stream: UnixStream) -> Self {
        Socket::Unix(stream).into()
    }
}

impl TryFrom<TcpStream> for Stream {
    type Error = io::Error;

    fn try_from(stream: TcpStream) -> io::Result<Self> {
        Socket::from_tcp(stream).map(Self::from)
    }
}
