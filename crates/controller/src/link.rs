//! One peer's connection to the controller, from its hello to its end, and the queue of messages to
//! the peer.
//!
//! The machine's task writes straight to the socket, because the socket almost always has space and
//! a thousand wake-ups per cycle would cost more than the writes. The rest of a message stays in
//! the link's queue, and the link's own task writes it once the socket can take it. The queue is
//! bounded: a peer that stops reading is dropped, and other peers do not notice. The switchboard
//! reads a peer's messages, for the same reason; so a link's task sleeps while the peer reads.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::stream::Stream;
use tidegate_proto::codec::{Decoder, TooLarge, encode, encode_pages};
use tidegate_proto::controller::{ConnectionId, Peer, Refusal, ToPeer};
use tidegate_proto::message::{Hello, Reply, VERSION};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::identity::PeerIdentity;
use crate::machine::Input;
use crate::operator;
use crate::permits::ConnectionPermits;
use crate::register::Register;
use crate::switchboard::{PeerDecoder, ReadError, Switchboard};
use crate::users::Users;

/// Bytes that may wait for a peer before more is added, besides its longest message twice: a node
/// is sent the plan and its counts at once. A stage is sent some twenty bytes per cycle, so this is
/// the amount of ten minutes.
const BACKLOG_MAX: usize = 256 << 10;

/// How long a closing link may take for its queued bytes: a reason for a refusal, usually taken at
/// once.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes read at a time of a hello, which has a few hundred.
const READ_CHUNK: usize = 4 << 10;

/// A connection of a stage, a node, a gateway or a data node.
#[derive(Debug)]
pub(crate) struct PeerLink {
    pub(crate) id: ConnectionId,
    /// Not the runtime's: it would wake us whenever the peer has read something.
    pub(crate) stream: Stream,
    queue: Mutex<Queue>,
    /// Wakes the link's task when the queue needs it.
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
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
    /// switchboard ends the link once it has read them.
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
        *queue = Queue { is_closing: true, ..Queue::default() };
        self.wake.notify_one();
    }

    /// Whether bytes are queued, and whether the link has to be closed.
    fn state(&self) -> (bool, bool) {
        let queue = self.queue();
        (queue.sent < queue.bytes.len(), queue.is_closing)
    }

    /// A panic with the queue locked leaves at worst half a frame, which the peer refuses.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Context of every new connection.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) register: Arc<Register>,
    pub(crate) switchboard: Arc<Switchboard>,
    pub(crate) hello_max: Duration,
    pub(crate) next_connection: AtomicU64,
    pub(crate) users: Users,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) clock: Clock,
    /// The names of the cluster's gateways.
    pub(crate) gateways: Vec<String>,
    /// The log lines about peers that are refused before the machine knows them.
    pub(crate) refusals: Mutex<LogLimiter>,
}

impl ConnectionContext {
    /// Logs that a peer is refused or failed, if a line is due: any user of this machine can
    /// connect.
    pub(crate) fn warn(&self, refusal: impl fmt::Display) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unlogged) = refusals.admit(self.clock.now()) {
            tracing::warn!(unlogged, "{refusal}");
        }
    }
}

/// Serves one connection, from its hello to its end.
pub(crate) async fn attend(
    stream: Stream,
    mut identity: PeerIdentity,
    context: Arc<ConnectionContext>,
) {
    // A peer without a permit gets no reason: only its hello would identify its protocol.
    let Some(_permit) = context.permits.take(identity.kind(), context.clock.now()) else { return };
    let (hello, rest) = match timeout(context.hello_max, read_hello(&stream)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => {
            return context.warn(format_args!("{identity} is refused before its hello: {error}"));
        }
        Err(_) => {
            let within = context.hello_max;
            return context.warn(format_args!("{identity} is refused: no hello within {within:?}"));
        }
    };
    if let PeerIdentity::Remote(names) = &mut identity {
        names.extend_from_slice(stream.names().unwrap_or_default());
    }
    if let Err(reason) = identity.may_be(&hello, &context.gateways) {
        refuse(&stream, &hello, &reason);
        return context.warn(format_args!("{identity} is refused: {reason}"));
    }
    match (hello, &identity) {
        (Hello::Operator { version }, _) => {
            let is_allowed = identity.may_operate();
            let ended =
                operator::attend(&stream, version, is_allowed, rest, &context.register).await;
            if let Err(error) = ended {
                context.warn(format_args!(
                    "the connection of {identity}, an operator, failed: {error}"
                ));
            }
        }
        (Hello::Stage { .. }, PeerIdentity::Remote(_)) => {}
        (hello @ Hello::Stage { .. }, PeerIdentity::Local { uid, pid }) => {
            let user = context.users.name(*uid).await;
            let peer = Peer { uid: *uid, pid: *pid, user, ..Peer::default() };
            serve(stream, &context, (peer, hello), &rest).await;
        }
        (hello, PeerIdentity::Local { uid, pid }) => {
            let peer = Peer { uid: *uid, pid: *pid, ..Peer::default() };
            serve(stream, &context, (peer, hello), &rest).await;
        }
        (hello, PeerIdentity::Remote(_)) => {
            let address = stream.peer_address().unwrap_or_default();
            let peer = Peer { address, ..Peer::default() };
            serve(stream, &context, (peer, hello), &rest).await;
        }
    }
}

/// Sends the reason of a refusal in the protocol of the hello. The reason has a few bytes: a peer
/// that does not take them at once will not read them either.
fn refuse(stream: &Stream, hello: &Hello, reason: &str) {
    let reason = reason.to_owned();
    let mut bytes = Vec::new();
    let refusal = Refusal { reason: reason.clone(), retry: false };
    let encoded = match ToPeer::refusal(hello, refusal) {
        Some(message) => encode(&message, &mut bytes),
        None => encode(&Reply::Refused { version: VERSION, reason }, &mut bytes),
    };
    if encoded.is_ok() {
        let _ = stream.send(&[IoSlice::new(&bytes)]);
    }
}

/// Serves a connection that is not an operator's, from behind its hello to its end.
async fn serve(
    stream: Stream,
    context: &ConnectionContext,
    (peer, hello): (Peer, Hello),
    rest: &[u8],
) {
    let id = ConnectionId(context.next_connection.fetch_add(1, Ordering::Relaxed));
    let (queue, wake) = (Mutex::default(), Notify::new());
    let link = Arc::new(PeerLink { id, stream, queue, wake });
    let Some(decoder) = PeerDecoder::of(&hello) else { return };
    let joined = Input::Joined { link: link.clone(), peer, hello };
    if context.inputs.send(joined).await.is_ok() {
        context.switchboard.connect(&link, decoder, rest).await;
        attend_link(&link, &context.inputs).await;
        context.switchboard.disconnect(&link);
    }
}

async fn read_hello(stream: &Stream) -> Result<(Hello, Vec<u8>), ReadError> {
    let mut decoder = Decoder::<Hello>::new();
    loop {
        if let Some(hello) = decoder.next_message()? {
            return Ok((hello, decoder.into_rest()));
        }
        match read(stream, &mut [0; READ_CHUNK], &mut decoder).await? {
            0 => return Err(ReadError::Closed),
            _ => continue,
        }
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

/// Writes the bytes that the machine could not, until the link has to be closed. A failure to do so
/// is reported to the machine.
async fn attend_link(link: &PeerLink, inputs: &mpsc::Sender<Input>) {
    if let Err(error) = relay(link).await {
        let input = Input::Closed { connection: link.id, reason: error.to_string() };
        let _ = inputs.send(input).await;
    }
}

async fn relay(link: &PeerLink) -> io::Result<()> {
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
        let (queue, wake) = (Mutex::default(), Notify::new());
        let stream = stream.into();
        (PeerLink { id: ConnectionId(1), stream, queue, wake }, peer)
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
