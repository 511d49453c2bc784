//! One TLS connection: the state of its protocol over a socket that does not block.
//!
//! Reading takes ciphertext from the socket in pieces of at most [`CHUNK`] and decrypts it into the
//! caller's memory; the part that does not fit waits here, and the reactor reports the stream until
//! that is read ([`events`]). Writing encrypts at most [`CHUNK`] bytes. They count as sent
//! once the socket has taken all of their ciphertext: until then a caller is told to wait, and
//! calls again with the same bytes in front. So bytes that a caller has sent are the kernel's, as
//! with any socket, and a caller that closes the stream then loses none.
//!
//! Both calls also advance the handshake. Bytes that are sent before it is over wait in the stream,
//! up to [`CHUNK`].

pub(super) mod events;
pub(super) mod handshakes;

use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::epoll;
use rustls::Connection;

use events::Events;
use handshakes::Pending;

use super::words::{self, Break};
use crate::readiness::Interest;
use crate::socket::{Socket, is_departure};

/// Bytes read or encrypted at a time: four full records, or sixteen blocks. It is rustls' own bound
/// on bytes that wait.
const CHUNK: usize = 64 << 10;

/// The bytes that records may add to their content: one with a head and a tag adds 22.
const OVERHEAD: usize = 1 << 10;

/// Pieces read in a row: a peer may send records without content for ever.
const READS_MAX: usize = 8;

thread_local! {
    /// Memory for ciphertext between the socket and rustls.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: Socket,
    /// The names that the peer's certificate bears, once it is verified.
    names: OnceLock<Vec<String>>,
    /// When the handshake must be over.
    deadline: Instant,
    state: Mutex<TlsState>,
}

#[derive(Debug)]
struct TlsState {
    conn: Box<Connection>,
    /// Ciphertext that was read while the caller's buffer was full.
    incoming: Vec<u8>,
    /// Bytes that are encrypted, and not yet reported as sent to the caller.
    encrypted: usize,
    is_handshaking: bool,
    /// The peer has announced its end (`close_notify`).
    has_ended: bool,
    broken: Option<Break>,
    pending: Option<Pending>,
    registration: Option<Registration>,
}

/// The entry in a reactor.
#[derive(Debug)]
struct Registration {
    events: Arc<Events>,
    token: u64,
    /// The caller's interest, and the one that the socket is registered with.
    wanted: Interest,
    interest: Interest,
    is_listed: bool,
}

impl TlsStream {
    pub(super) fn new(conn: Connection, socket: Socket, deadline: Instant) -> Arc<Self> {
        let state = TlsState {
            conn: Box::new(conn),
            incoming: Vec::new(),
            encrypted: 0,
            is_handshaking: true,
            has_ended: false,
            broken: None,
            pending: None,
            registration: None,
        };
        Arc::new(Self { socket, names: OnceLock::new(), deadline, state: Mutex::new(state) })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn names(&self) -> &[String] {
        self.names.get().map_or(&[], Vec::as_slice)
    }

    /// As [`crate::stream::Stream::receive`]. With an empty buffer it only advances the handshake.
    pub(crate) fn receive(self: &Arc<Self>, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.with(|state| {
            state.receive(self, &mut ReadTarget { slices, index: 0, filled: 0, count: 0 })
        })
    }

    /// As [`crate::stream::Stream::send`].
    pub(crate) fn send(self: &Arc<Self>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.with(|state| state.send(self, slices))
    }

    /// Sends the protocol's own messages.
    pub(crate) fn flush(self: &Arc<Self>) {
        self.with(|state| drop(state.write(self)));
    }

    /// Announces that nothing more will be sent.
    pub(crate) fn finish(self: &Arc<Self>) -> io::Result<()> {
        self.with(|state| {
            state.conn.send_close_notify();
            state.write(self).map(|_| ())
        })
    }

    /// The reason of the end behind an error of the socket: a peer that refuses us sends the reason
    /// before it closes the connection.
    pub(crate) fn explain(self: &Arc<Self>, error: io::Error) -> io::Error {
        self.with(|state| state.explain(self, error))
    }

    /// Whether a read would give bytes that the socket does not report.
    pub(crate) fn holds_input(&self) -> bool {
        self.state().holds_input()
    }

    /// Whether ciphertext waits to be written.
    pub(crate) fn wants_write(&self) -> bool {
        let state = self.state();
        state.broken.is_none() && state.conn.wants_write()
    }

    /// Ends a handshake whose slot another one needs. The shutdown wakes the thread that waits for
    /// the socket.
    pub(super) fn evict(self: &Arc<Self>) {
        let reason = "too many connections are in their TLS handshake, most of them from the same \
                      address";
        if self.end_handshake(io::ErrorKind::PermissionDenied, reason) {
            let _ = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
        }
    }

    /// Ends a handshake that has taken too long.
    pub(super) fn expire(self: &Arc<Self>) {
        let reason = "the peer has not finished its TLS handshake in time";
        self.end_handshake(io::ErrorKind::TimedOut, reason);
    }

    /// Ends it, unless the handshake is over. Says whether it was not.
    fn end_handshake(self: &Arc<Self>, kind: io::ErrorKind, reason: &str) -> bool {
        self.with(|state| {
            if state.is_handshaking {
                state.end(self, Break(kind, reason.into()));
            }
            state.is_handshaking
        })
    }

    #[cfg(test)]
    pub(super) fn rekey(self: &Arc<Self>) {
        // It fails before the end of the handshake.
        self.with(|state| drop(state.conn.refresh_traffic_keys()));
    }

    pub(super) fn set_pending(&self, pending: Pending) {
        self.state().pending = Some(pending);
    }

    /// Has the events of the socket reported under `token`.
    pub(crate) fn register(
        self: &Arc<Self>,
        events: &Arc<Events>,
        token: u64,
        wanted: Interest,
    ) -> io::Result<()> {
        let flags = epoll::EventFlags::empty();
        epoll::add(&**events, &self.socket, epoll::EventData::new_u64(token), flags)?;
        events.set_used();
        self.with(|state| {
            if state.is_handshaking {
                events.expect(self.deadline, Arc::downgrade(self));
            }
            let (events, interest, is_listed) = (events.clone(), Interest::NONE, false);
            state.registration = Some(Registration { events, token, wanted, interest, is_listed });
        });
        Ok(())
    }

    /// Changes the events to wait for.
    pub(crate) fn change(self: &Arc<Self>, wanted: Interest) {
        self.with(|state| {
            if let Some(registration) = &mut state.registration {
                registration.wanted = wanted;
            }
        });
    }

    pub(crate) fn deregister(&self) {
        self.state().registration = None;
    }

    /// The token under which it is to be reported as readable; none if it is no more.
    pub(super) fn readable_as(&self) -> Option<u64> {
        let mut state = self.state();
        let holds_input = state.holds_input();
        let registration = state.registration.as_mut()?;
        registration.is_listed = registration.wanted.read && holds_input;
        registration.is_listed.then_some(registration.token)
    }

    /// Runs an action, and registers the events that the protocol waits for then.
    fn with<T>(self: &Arc<Self>, act: impl FnOnce(&mut TlsState) -> T) -> T {
        let mut state = self.state();
        let result = act(&mut state);
        state.watch(self);
        result
    }

    fn state(&self) -> MutexGuard<'_, TlsState> {
        // A panic in rustls leaves a state in which it gives errors.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TlsStream {
    /// Sends `close_notify` to the peer, as far as the socket takes it.
    fn drop(&mut self) {
        let mut state = self.state();
        if state.broken.is_none() && !state.is_handshaking {
            state.conn.send_close_notify();
        }
        state.close(self);
    }
}

impl TlsState {
    fn receive(
        &mut self,
        stream: &TlsStream,
        target: &mut ReadTarget<'_, '_>,
    ) -> io::Result<usize> {
        let _ = self.write(stream);
        let holds_input = self.holds_input();
        target.fill(&mut self.conn);
        if !self.incoming.is_empty() {
            let incoming = std::mem::take(&mut self.incoming);
            self.decrypt(stream, &incoming, target);
        }
        // A caller who reads as long as the stream holds something comes to an end.
        if !holds_input {
            self.read(stream, target);
        }
        // An answer to a message of the protocol.
        let _ = self.write(stream);
        match (target.count, &self.broken) {
            (0, Some(reason)) => Err(reason.into()),
            (0, None) if !self.has_ended && !target.is_full() => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            (count, _) => Ok(count),
        }
    }

    /// Reads from the socket what is there, or as much as there is room for.
    fn read(&mut self, stream: &TlsStream, target: &mut ReadTarget<'_, '_>) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(CHUNK, 0);
            for _ in 0..READS_MAX {
                let most = (target.left() + OVERHEAD).min(CHUNK);
                match stream.socket.receive(&mut [IoSliceMut::new(&mut scratch[..most])]) {
                    Ok(0) => self.end(stream, words::cut(self.is_handshaking)),
                    Ok(count) => {
                        self.decrypt(stream, &scratch[..count], target);
                        if count < most || target.count > 0 && target.is_full() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => self.end(stream, error.into()),
                }
                if self.holds_input() {
                    break;
                }
            }
        });
    }

    /// Takes ciphertext in, as far as there is room for its content.
    fn decrypt(&mut self, stream: &TlsStream, mut bytes: &[u8], target: &mut ReadTarget<'_, '_>) {
        while !bytes.is_empty() && !self.is_over() && !has_plaintext(&mut self.conn) {
            let processed = match self.conn.read_tls(&mut bytes) {
                Ok(_) => self.conn.process_new_packets().map_err(|error| words::of(&error)),
                Err(error) => Err(words::broken(&error)),
            };
            target.fill(&mut self.conn);
            match processed {
                Ok(processed) => self.has_ended = processed.peer_has_closed(),
                Err(error) => self.end(stream, error),
            }
            if self.is_handshaking && self.broken.is_none() && !self.conn.is_handshaking() {
                let _ = stream.names.set(super::identity::names(self.conn.peer_certificates()));
                self.is_handshaking = false;
                self.pending = None;
            }
        }
        if !self.is_over() {
            self.incoming.extend_from_slice(bytes);
        }
    }

    fn send(&mut self, stream: &TlsStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(reason) = &self.broken {
            return Err(reason.into());
        }
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        let is_flushed = self.write(stream).map_err(|error| self.explain(stream, error))?;
        if self.encrypted == 0 && length > 0 && (is_flushed || self.is_handshaking) {
            let count = self.conn.writer().write_vectored(slices)?;
            let is_flushed = self.write(stream).map_err(|error| self.explain(stream, error))?;
            if count > 0 && (is_flushed || self.is_handshaking) {
                return Ok(count);
            }
            self.encrypted = count;
        } else if is_flushed {
            // The caller has the same bytes in front as when they were encrypted, or some of them.
            let count = self.encrypted.min(length);
            self.encrypted -= count;
            return Ok(count);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Writes ciphertext. Returns whether that was all of it.
    fn write(&mut self, stream: &TlsStream) -> io::Result<bool> {
        while self.conn.wants_write() {
            match self.conn.write_tls(&mut Out(&stream.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    // A peer that has closed its end may have sent the reason before.
                    if !is_departure(&error) {
                        self.end(stream, Break(error.kind(), error.to_string()));
                    }
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// The error of the socket, or the reason of the end that the peer has given before it.
    fn explain(&mut self, stream: &TlsStream, error: io::Error) -> io::Error {
        if is_departure(&error) && self.broken.is_none() {
            let mut target = ReadTarget { slices: &mut [], index: 0, filled: 0, count: 0 };
            let mut chunk = vec![0; CHUNK];
            if let Ok(count) = stream.socket.receive(&mut [IoSliceMut::new(&mut chunk)]) {
                let mut incoming = std::mem::take(&mut self.incoming);
                incoming.extend_from_slice(&chunk[..count]);
                self.decrypt(stream, &incoming, &mut target);
            }
        }
        self.broken.as_ref().map_or(error, io::Error::from)
    }

    /// Ends it because of an error, which is sent to the peer if it is one of the protocol.
    fn end(&mut self, stream: &TlsStream, reason: Break) {
        if self.broken.is_none() {
            (self.broken, self.pending) = (Some(reason), None);
            self.close(stream);
        }
    }

    /// Writes the remaining output. Received bytes are read, or the kernel would answer them with a
    /// reset that overtakes our last messages.
    fn close(&mut self, stream: &TlsStream) {
        if matches!(self.write(stream), Ok(true)) && stream.socket.finish().is_ok() {
            let _ = stream.socket.receive(&mut [IoSliceMut::new(&mut vec![0; CHUNK])]);
        }
    }

    fn is_over(&self) -> bool {
        self.has_ended || self.broken.is_some()
    }

    fn holds_input(&mut self) -> bool {
        self.is_over() || !self.incoming.is_empty() || has_plaintext(&mut self.conn)
    }

    /// Registers the events that the state waits for.
    fn watch(&mut self, stream: &Arc<TlsStream>) {
        let (is_handshaking, is_broken) = (self.is_handshaking, self.broken.is_some());
        let (wants_write, holds_input) = (self.conn.wants_write(), self.holds_input());
        let Some(registration) = &mut self.registration else { return };
        let Registration { events, token, wanted, interest, is_listed } = registration;
        let write = wants_write || wanted.write && !is_handshaking;
        let needed = Interest { read: wanted.read, write: write && !is_broken };
        if needed != *interest {
            *interest = needed;
            let data = epoll::EventData::new_u64(*token);
            let changed = epoll::modify(&**events, &stream.socket, data, needed.flags());
            debug_assert!(changed.is_ok(), "the socket is registered: {changed:?}");
        }
        if wanted.read && holds_input && !std::mem::replace(is_listed, true) {
            events.list(Arc::downgrade(stream));
        }
    }
}

/// Whether decrypted bytes wait.
fn has_plaintext(conn: &mut Connection) -> bool {
    conn.reader().fill_buf().is_ok_and(|bytes| !bytes.is_empty())
}

/// The caller's memory for decrypted bytes.
struct ReadTarget<'a, 'b> {
    slices: &'a mut [IoSliceMut<'b>],
    /// The slice that is filled next, and how much of it is.
    index: usize,
    filled: usize,
    /// Bytes in all slices.
    count: usize,
}

impl ReadTarget<'_, '_> {
    /// Takes decrypted bytes, as far as they fit.
    fn fill(&mut self, conn: &mut Connection) {
        while let Some(slice) = self.slices.get_mut(self.index) {
            if self.filled == slice.len() {
                (self.index, self.filled) = (self.index + 1, 0);
                continue;
            }
            match conn.reader().read(&mut slice[self.filled..]) {
                Ok(count) if count > 0 => {
                    self.filled += count;
                    self.count += count;
                }
                _ => return,
            }
        }
    }

    fn left(&self) -> usize {
        let left = self.slices.iter().skip(self.index).map(|slice| slice.len()).sum::<usize>();
        left - self.filled
    }

    fn is_full(&self) -> bool {
        self.left() == 0
    }
}

/// The socket as a writer: a closed peer is an error there, and no signal.
struct Out<'a>(&'a Socket);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
