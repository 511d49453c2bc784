//! The connection to a data node: it is said hello on, brings the memory, and is silent from then
//! on. That it ends means something.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::region::Region;
use tidegate_model::Span;
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::data_node::{Hello, ToClient, VERSION, Welcome};

use super::Error;

/// A connection that has brought memory.
#[derive(Debug)]
pub(super) struct Lifeline {
    stream: UnixStream,
    decoder: Decoder<ToClient>,
}

/// How things stand at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing was said.
    Silence,
    /// The node moves: what is begun now is not there later.
    Moving,
    /// The node is gone, or wants nothing to do with us.
    End,
}

impl Lifeline {
    /// Asks the data node at `path` for its memory, and waits for the answer. Brings back the
    /// memory of one that is gone, if there is some.
    ///
    /// # Errors
    /// If nobody answers, or refuses.
    pub(super) fn say(
        path: &Path,
        hello: &Hello,
        region: Option<&Region>,
        patience: Span,
    ) -> Result<(Self, Welcome, OwnedFd), Error> {
        let stream = UnixStream::connect(path).map_err(Error::Unreachable)?;
        let patience = Duration::from_nanos(patience.0.max(1));
        stream.set_read_timeout(Some(patience)).map_err(Error::Unreachable)?;
        let mut bytes = Vec::new();
        let encoded = encode(hello, &mut bytes).map_err(io::Error::other);
        encoded.and_then(|()| send(&stream, &bytes, region)).map_err(Error::Unreachable)?;
        let mut lifeline = Self { stream, decoder: Decoder::new() };
        let (mut file, mut piece) = (None, [0; 4096]);
        loop {
            let (count, came) = match handover::receive(&lifeline.stream, &mut piece) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Error::Unreachable(io::ErrorKind::TimedOut.into()));
                }
                received => received.map_err(Error::Unreachable)?,
            };
            if count == 0 {
                return Err(Error::Unreachable(io::ErrorKind::UnexpectedEof.into()));
            }
            file = file.or(came);
            lifeline.decoder.extend(&piece[..count]);
            let message = lifeline.decoder.next_message().map_err(io::Error::other);
            match (message.map_err(Error::Unreachable)?, file.take()) {
                (None, came) => file = came,
                (Some(ToClient::Welcome(welcome)), Some(file)) => {
                    return Ok((lifeline, welcome, file));
                }
                (Some(ToClient::Refused { version, reason }), _) => {
                    return Err(match version {
                        VERSION => Error::Refused(reason),
                        version => Error::Version { theirs: version },
                    });
                }
                (Some(_), _) => {
                    let error = io::Error::other("it sent no memory");
                    return Err(Error::Unreachable(error));
                }
            }
        }
    }

    /// What was said since this was asked last. Takes a system call.
    pub(super) fn hear(&mut self) -> Word {
        let mut piece = [0; 256];
        match rustix::io::retry_on_intr(|| recv(&self.stream, &mut piece, RecvFlags::DONTWAIT)) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Word::Silence,
            Ok((count, _)) if count > 0 => self.decoder.extend(&piece[..count]),
            _ => return Word::End,
        }
        match self.decoder.next_message() {
            Ok(None) => Word::Silence,
            Ok(Some(ToClient::Moving)) => Word::Moving,
            _ => Word::End,
        }
    }
}

/// Sends all of it, and with its first byte the descriptor, if there is one.
fn send(mut stream: &UnixStream, bytes: &[u8], region: Option<&Region>) -> io::Result<()> {
    let sent = region.map_or(Ok(0), |region| handover::send(stream, bytes, region.as_fd()))?;
    io::Write::write_all(&mut stream, &bytes[sent..])
}
