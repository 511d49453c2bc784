//! A connection of the load generator, and the bytes of its requests and replies.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::pace::{Direction, Ending};
use super::schedule::Dice;
use super::target::Address;
use tidegate_console::failure::{Code, Failure};
use tidegate_fabric::reactor::EventSource;

/// How long a server may take for anything that is not under load yet.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects; reading and writing block, but not for good.
    pub(crate) fn connect(address: &Address) -> Result<Self, Failure> {
        let connected = match address {
            Address::Tcp(address) => tcp(address).map(Self::Tcp),
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        };
        let ready = connected.and_then(|stream| {
            match &stream {
                Self::Tcp(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                }
                Self::Unix(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                }
            }
            Ok(stream)
        });
        ready.map_err(|error| {
            Failure::new(Code::Unreachable, format!("no server answers at {address}")).cause(error)
        })
    }

    /// From now on nothing blocks.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

fn tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl EventSource for Stream {}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A protocol on one connection.
pub(crate) trait Dialect: Send {
    /// Appends a request to `out`. Its answer will name `slot`.
    fn encode(&mut self, slot: u32, kind: Direction, dice: &mut Dice, out: &mut Vec<u8>);

    /// Parses the part of the input that is not consumed yet.
    ///
    /// # Errors
    /// In words for people, if the input is malformed.
    fn decode(&mut self, input: &[u8]) -> Result<Decoded, String>;
}

/// The result of parsing a server's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// The input is too short to be parsed.
    Nothing,
    /// So many bytes that are no answer yet.
    Some(usize),
    /// An answer, which ends after so many bytes.
    Answer { length: usize, slot: u32, ending: Ending },
}
