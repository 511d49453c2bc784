//! The control connection to a data node. It carries the hello, brings the memory or the route to
//! it, and is silent from then on. Its end tells each side that the other is gone.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::region::Region;
#[cfg(feature = "verbs")]
use tidegate_fabric::stream::Address;
use tidegate_fabric::stream::Stream;
#[cfg(feature = "verbs")]
use tidegate_fabric::stream::Way;
use tidegate_model::{Span, Time};
#[cfg(feature = "verbs")]
use tidegate_onesided::data_node::rnic::{Answer, ConnectRequest};
use tidegate_onesided::data_node::{Hello, ToClient, VERSION, Welcome};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::session::version::VersionMismatch;

use super::Error;
use crate::clock::kernel_time;

/// Where a data node listens.
#[derive(Clone, Debug)]
pub(super) enum Entrance {
    /// On this machine.
    Socket(PathBuf),
    /// There or elsewhere.
    #[cfg(feature = "verbs")]
    Way(Way),
}

impl Entrance {
    fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            #[cfg(feature = "verbs")]
            Self::Way(Way { address: Address::Tcp(_), tls: None }) => {
                Err(io::Error::other("a TCP connection needs a client certificate"))
            }
            #[cfg(feature = "verbs")]
            Self::Way(way) => way.connect(),
        }
    }
}

/// A connection that has brought memory.
#[derive(Debug)]
pub(super) struct Lifeline {
    stream: Stream,
    decoder: Decoder<ToClient>,
}

/// The state of its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifelineState {
    /// Nothing was received.
    Silence,
    /// The node moves: what is begun now is not there later.
    Moving,
    /// The node is gone, or wants nothing to do with us.
    End,
}

impl Lifeline {
    /// Requests the data node's memory, and waits for the answer, with which a descriptor
    /// comes unless an RNIC reaches the memory. Brings back the memory of one that is gone, if
    /// there is some.
    pub(super) fn open(
        entrance: &Entrance,
        hello: &Hello,
        region: Option<&Region>,
        patience: Span,
    ) -> Result<(Self, Welcome, Option<OwnedFd>), Error> {
        let stream = entrance.connect().map_err(Error::Unreachable)?;
        let mut bytes = Vec::new();
        let encoded = encode(hello, &mut bytes).map_err(io::Error::other);
        encoded.and_then(|()| send(&stream, &bytes, region)).map_err(Error::Unreachable)?;
        let mut lifeline = Self { stream, decoder: Decoder::new() };
        match lifeline.answer(patience)? {
            (ToClient::Welcome(welcome), file) => Ok((lifeline, welcome, file)),
            (ToClient::Refused { version, reason }, _) => {
                VersionMismatch::check(("data node", version), ("client", VERSION))
                    .map_err(Error::Version)?;
                Err(Error::Refused(reason))
            }
            _ => Err(Error::Unreachable(io::Error::other("it sent no memory"))),
        }
    }

    /// Requests the way of our RNIC to the memory.
    #[cfg(feature = "verbs")]
    pub(super) fn request_path(
        &mut self,
        request: &ConnectRequest,
        patience: Span,
    ) -> Result<Answer, Error> {
        let mut bytes = Vec::new();
        let encoded = encode(request, &mut bytes).map_err(io::Error::other);
        encoded.and_then(|()| send(&self.stream, &bytes, None)).map_err(Error::Unreachable)?;
        match self.answer(patience)? {
            (ToClient::Rnic(answer), _) => Ok(answer),
            (ToClient::Refused { reason, .. }, _) => Err(Error::Refused(reason)),
            _ => Err(Error::Unreachable(io::Error::other("it did not answer with its RNIC"))),
        }
    }

    /// The next message, and the descriptor that came before its end.
    fn answer(&mut self, patience: Span) -> Result<(ToClient, Option<OwnedFd>), Error> {
        let until = kernel_time().after(patience);
        let (mut file, mut buffer) = (None, [0; 4096]);
        loop {
            let message = self.decoder.next_message().map_err(io::Error::other);
            if let Some(message) = message.map_err(Error::Unreachable)? {
                return Ok((message, file));
            }
            match handover::receive_on(&self.stream, &mut buffer) {
                Ok((count, came)) if count > 0 => {
                    file = file.or(came);
                    self.decoder.extend(&buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.stream, until).map_err(Error::Unreachable)?;
                }
                Ok(_) => return Err(Error::Unreachable(io::ErrorKind::UnexpectedEof.into())),
                Err(error) => return Err(Error::Unreachable(error)),
            }
        }
    }

    /// Returns the news since the last call: silence, a move of the node, or the end. Takes a
    /// system call.
    pub(super) fn receive(&mut self) -> LifelineState {
        let mut buffer = [0; 256];
        match io::Read::read(&mut self.stream, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return LifelineState::Silence;
            }
            Ok(count) if count > 0 => self.decoder.extend(&buffer[..count]),
            _ => return LifelineState::End,
        }
        match self.decoder.next_message() {
            Ok(None) => LifelineState::Silence,
            Ok(Some(ToClient::Moving)) => LifelineState::Moving,
            _ => LifelineState::End,
        }
    }
}

/// Waits until there is something to be read.
fn wait(stream: &Stream, until: Time) -> io::Result<()> {
    let left = until.since(kernel_time());
    if left == Span::ZERO {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (seconds, nanoseconds) = (left.0 / Span::SECOND.0, left.0 % Span::SECOND.0);
    let left = Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as i64 };
    let mut events = PollFlags::IN;
    events.set(PollFlags::OUT, stream.wants_write());
    match poll(&mut [PollFd::new(stream, events)], Some(&left)) {
        // A thread that a signal woke checks again.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends all of it, and with its first byte the descriptor, if there is one. Nothing else waits on
/// the connection, so it fits.
fn send(stream: &Stream, bytes: &[u8], region: Option<&Region>) -> io::Result<()> {
    let mut sent =
        region.map_or(Ok(0), |region| handover::send_on(stream, bytes, region.as_fd()))?;
    while sent < bytes.len() {
        sent += stream.send(&[IoSlice::new(&bytes[sent..])])?;
    }
    Ok(())
}
