//! The queue of messages to one peer, and its socket.
//!
//! The machine's task writes straight to the socket, because the socket almost always has space and
//! a thousand wake-ups per cycle would cost more than the writes. The rest of a message stays in
//! the link's queue, and the link's own task writes it once the socket can take it. The queue is
//! bounded: a peer that stops reading is dropped, and other peers do not notice. The receiver
//! reads a peer's messages, for the same reason; so a link's task sleeps while the peer reads.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_fabric::stream::Stream;
use tidegate_proto::codec::{Decoder, TooLarge, encode_pages};
use tidegate_proto::controller::ConnectionId;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Bytes that may wait for a peer before more is added, besides its longest message twice: a node
/// is sent the plan and its counts at once. A stage is sent some twenty bytes per cycle, so this is
/// the amount of ten minutes.
const BACKLOG_MAX: usize = 256 << 10;

/// How long a closing link may take for its queued bytes: a reason for a refusal, usually taken at
/// once.
const LINGER: Duration = Duration::from_secs(1);

/// A connection of a stage, a node, a gateway or a data node.
#[derive(Debug)]
pub(crate) struct PeerLink {
    pub(crate) id: ConnectionId,
    /// Not the runtime's: it would wake us whenever the peer has read something.
    pub(crate) stream: Stream,
    queue: Mutex<OutputQueue>,
    /// Wakes the link's task when the queue needs it.
    wake: Notify,
}

#[derive(Debug, Default)]
struct OutputQueue {
    bytes: Vec<u8>,
    /// Bytes at the front that the socket has taken.
    sent: usize,
    /// The length of the longest message so far.
    longest: usize,
    is_closing: bool,
}

/// Why nothing can be sent on a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("it does not read its messages")]
    Backlog,
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl PeerLink {
    pub(crate) fn new(id: ConnectionId, stream: Stream) -> Self {
        Self { id, stream, queue: Mutex::default(), wake: Notify::new() }
    }

    /// Queues a message. The caller flushes after its last message.
    pub(crate) fn push(&self, message: &impl Serialize) -> Result<(), SendError> {
        let mut queue = self.queue();
        let before = queue.bytes.len();
        if before - queue.sent > BACKLOG_MAX + 2 * queue.longest {
            return Err(SendError::Backlog);
        }
        encode_pages(message, &mut queue.bytes)?;
        queue.longest = queue.longest.max(queue.bytes.len() - before);
        Ok(())
    }

    /// Writes as much as the socket takes; the link's task writes the rest.
    ///
    /// If the peer has closed the connection, the queue is dropped and nothing else happens: a
    /// stage's last messages, its final report above all, may still wait to be read, and the
    /// receiver ends the link once it has read them.
    pub(crate) fn flush(&self) -> Result<(), SendError> {
        let mut queue = self.queue();
        while queue.sent < queue.bytes.len() {
            match self.stream.send(&[IoSlice::new(&queue.bytes[queue.sent..])]) {
                Ok(count) => queue.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wake.notify_one();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error.into()),
            }
        }
        queue.bytes.clear();
        queue.sent = 0;
        Ok(())
    }

    /// Closes the link once the queue is empty, or after [`LINGER`].
    pub(crate) fn close(&self) {
        self.queue().is_closing = true;
        self.wake.notify_one();
    }

    /// Closes the link now.
    pub(crate) fn abort(&self) {
        let mut queue = self.queue();
        *queue = OutputQueue { is_closing: true, ..OutputQueue::default() };
        self.wake.notify_one();
    }

    /// Whether bytes are queued, and whether the link has to be closed.
    fn state(&self) -> (bool, bool) {
        let queue = self.queue();
        (queue.sent < queue.bytes.len(), queue.is_closing)
    }

    /// A panic with the queue locked leaves at worst half a frame, which the peer refuses.
    fn queue(&self) -> MutexGuard<'_, OutputQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads once, when bytes have arrived.
pub(crate) async fn read<T: DeserializeOwned>(
    stream: &Stream,
    chunk: &mut [u8],
    decoder: &mut Decoder<T>,
) -> io::Result<usize> {
    loop {
        match stream.receive(&mut [IoSliceMut::new(chunk)]) {
            Ok(count) => {
                decoder.extend(&chunk[..count]);
                return Ok(count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let write = stream.wants_write().then_some(Interest::WRITABLE);
                let interest = Interest::READABLE;
                ready(stream, write.map_or(interest, |write| interest | write)).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits for an event of the socket. It is registered with the runtime only for that long.
pub(crate) async fn ready(stream: &Stream, interest: Interest) -> io::Result<()> {
    #[allow(deprecated, reason = "what is borrowed stays open, and its successor is unsafe")]
    let socket = AsyncFd::with_interest(stream.as_fd(), interest)?;
    drop(socket.ready(interest).await?);
    Ok(())
}

/// Writes queued bytes that [`PeerLink::flush`] could not, until the link has to be closed.
pub(crate) async fn relay(link: &PeerLink) -> io::Result<()> {
    loop {
        match link.state() {
            (_, true) => {
                let _ = timeout(LINGER, drain(link)).await;
                return Ok(());
            }
            (true, false) => {
                tokio::select! {
                    drained = drain(link) => drained?,
                    // A closing link has a second and not for ever.
                    () = link.wake.notified() => {}
                }
            }
            (false, false) => link.wake.notified().await,
        }
    }
}

/// Waits until all queued bytes are written.
async fn drain(link: &PeerLink) -> io::Result<()> {
    while link.state().0 {
        ready(&link.stream, Interest::WRITABLE).await?;
        if let Err(SendError::Io(error)) = link.flush() {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test may panic")]

    use std::io::Write;
    use std::os::unix::net::UnixStream as Socket;

    use super::*;

    /// A link to a peer, and the peer's end.
    fn link() -> (PeerLink, Socket) {
        let (stream, peer) = Socket::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        (PeerLink::new(ConnectionId(1), stream.into()), peer)
    }

    fn last_words(link: &PeerLink) -> Vec<u8> {
        let mut words = vec![0; 100];
        let count = link.stream.receive(&mut [IoSliceMut::new(&mut words)]).unwrap();
        words.truncate(count);
        words
    }

    #[test]
    fn messages_of_a_closed_peer_are_still_read() {
        let (link, mut peer) = link();
        peer.write_all(b"my last report").unwrap();
        drop(peer);
        for _ in 0..2 {
            link.push(&7_u64).unwrap();
            link.flush().unwrap();
        }
        assert_eq!(link.state(), (false, false));
        assert_eq!(last_words(&link), b"my last report");
    }

    #[test]
    fn messages_of_a_peer_that_left_without_reading_are_still_read() {
        let (link, mut peer) = link();
        link.push(&7_u64).unwrap();
        link.flush().unwrap();
        peer.write_all(b"my last report").unwrap();
        drop(peer);
        link.push(&8_u64).unwrap();
        link.flush().unwrap();
        assert_eq!(last_words(&link), b"my last report");
    }
}
