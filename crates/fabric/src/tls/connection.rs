//! One TLS connection, without the thread that drives it.
//!
//! Bytes move in steps. A step *inward* reads one piece of what came from outside, takes out of it
//! what it holds, and writes that to the inner side; what the inner side does not take waits, and
//! nothing more is read from outside until it has. A step *outward* reads one piece from the inner
//! side, encrypts it and writes it out; likewise. So each side's own socket holds the other back.
//!
//! The state after the steps decides which events to wait for ([`TlsConnection::wanted`]), never
//! the events of the steps: nothing can be forgotten inside while the kernel reports that all is
//! quiet.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use rustls::Connection;

use super::words;
use crate::reactor::{Interest, Ready};
use crate::stream::{Stream, TlsPeer};

/// Bytes read at a time: four full records, or sixteen blocks.
const CHUNK: usize = 64 << 10;

/// Steps in a row before other connections are served. A connection that is stopped by it is
/// named again at once, for it was not stopped by a lack of bytes to move.
const STEPS_MAX: usize = 8;

/// Memory for what is under way within one step.
#[derive(Debug)]
pub(super) struct Scratch {
    chunk: Box<[u8]>,
    plain: Vec<u8>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { chunk: vec![0; CHUNK].into(), plain: Vec::new() }
    }
}

/// How a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Both sides have said all that they had to say.
    Orderly,
    /// Otherwise, with the reason.
    Broken(io::ErrorKind, String),
}

/// The state of the byte stream from one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// More bytes may come.
    Open,
    /// The last byte has come, and the other side does not know yet.
    Ending,
    /// The other side knows.
    Over,
}

/// One TLS connection.
#[derive(Debug)]
pub(super) struct TlsConnection {
    conn: Connection,
    outer: Stream,
    inner: Stream,
    tls_peer: Arc<TlsPeer>,
    inward: Flow,
    outward: Flow,
    /// Decrypted, and not taken by the inner side yet; and how much of it was.
    waiting: Vec<u8>,
    taken: usize,
    is_shaking: bool,
    /// The peer can receive nothing any more. The data that it has sent is still taken.
    is_gone: bool,
    /// The owner of the inner side has closed its end, and can receive nothing any more. The data
    /// that it has sent is still sent on.
    has_left: bool,
}

impl TlsConnection {
    pub(super) fn new(
        mut conn: Connection,
        outer: Stream,
        inner: Stream,
        tls_peer: Arc<TlsPeer>,
    ) -> Self {
        // The bound is our own: one piece is read, and nothing more until that is sent.
        conn.set_buffer_limit(None);
        Self {
            conn,
            outer,
            inner,
            tls_peer,
            inward: Flow::Open,
            outward: Flow::Open,
            waiting: Vec::new(),
            taken: 0,
            is_shaking: true,
            is_gone: false,
            has_left: false,
        }
    }

    pub(super) fn outer(&self) -> &Stream {
        &self.outer
    }

    pub(super) fn inner(&self) -> &Stream {
        &self.inner
    }

    /// Whether it came from outside.
    pub(super) fn is_inbound(&self) -> bool {
        matches!(self.conn, Connection::Server(_))
    }

    /// Whether it is not through its handshake.
    pub(super) fn is_shaking(&self) -> bool {
        self.is_shaking
    }

    /// Whether the owner of the inner side has closed its end.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// The events to wait for outside and inside; none for a side whose end is known and which has
    /// nothing more to say for now, since the kernel would report that end again and again.
    pub(super) fn wanted(&self) -> [Option<Interest>; 2] {
        let is_taken = self.waiting.is_empty();
        let is_sent = !self.conn.wants_write();
        let outer = Interest {
            read: is_taken && self.inward == Flow::Open && !self.has_left,
            write: !is_sent || self.has_left,
        };
        let inner = Interest {
            read: is_sent && self.outward == Flow::Open && !self.is_shaking,
            write: !is_taken,
        };
        let is_mute = self.is_gone && !outer.read;
        [(!is_mute).then_some(outer), (!self.has_left).then_some(inner)]
    }

    /// Moves what can be moved, after the kernel has said what that is: outside or inside. A side
    /// that it says nothing about is not read: it will be named when there is something.
    ///
    /// # Errors
    /// When it is over. The inner side was told the reason then.
    pub(super) fn advance(
        &mut self,
        outside: Option<Ready>,
        inside: Option<Ready>,
        scratch: &mut Scratch,
    ) -> Result<(), Over> {
        self.is_gone |= outside.is_some_and(|ready| ready.gone);
        self.has_left |= inside.is_some_and(|ready| ready.gone);
        let is_readable = |side: Option<Ready>| side.is_some_and(|ready| ready.read);
        let turned =
            self.steps(scratch, is_readable(outside), is_readable(inside) || self.has_left);
        turned.map_err(|over| self.end(over, scratch))
    }

    /// Ends it, and tells both sides why.
    pub(super) fn end(&mut self, over: Over, scratch: &mut Scratch) -> Over {
        if let Over::Broken(kind, reason) = &over {
            self.tls_peer.set_end(*kind, reason.clone());
        }
        // An alert gives the reason. Bytes that are there already are read, or the kernel would
        // answer them with a reset that overtakes the alert.
        if self.send().is_ok() && self.outer.finish().is_ok() {
            let _ = self.outer.read(&mut scratch.chunk);
        }
        over
    }

    fn steps(
        &mut self,
        scratch: &mut Scratch,
        mut outside: bool,
        mut inside: bool,
    ) -> Result<(), Over> {
        for _ in 0..STEPS_MAX {
            let inward = self.step_inward(scratch, &mut outside)?;
            let has_moved = inward | self.step_outward(scratch, &mut inside)?;
            let is_unheard = self.has_left || self.inward == Flow::Over;
            let is_sent = self.outward == Flow::Over && !self.conn.wants_write();
            let is_vain = self.has_left && (self.is_shaking || self.is_gone);
            if is_unheard && is_sent || is_vain {
                return Err(Over::Orderly);
            }
            if !has_moved {
                break;
            }
        }
        Ok(())
    }

    /// One step inward. Says whether anything moved, and in `readable` whether there may be more
    /// outside.
    fn step_inward(&mut self, scratch: &mut Scratch, readable: &mut bool) -> Result<bool, Over> {
        if self.has_left {
            return Ok(false);
        }
        let mut has_moved = false;
        if !self.waiting.is_empty() {
            self.taken += self.give(&self.waiting[self.taken..])?;
            if self.taken < self.waiting.len() {
                return Ok(false);
            }
            // Few bytes have to wait, and the connection keeps no memory for them.
            (self.waiting, self.taken) = (Vec::new(), 0);
            has_moved = true;
        } else if self.inward == Flow::Open && *readable {
            let count = match self.outer.read(&mut scratch.chunk) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    *readable = false;
                    return Ok(false);
                }
                Err(error) => return Err(words::gone(&error)),
            };
            // Most of the time that was all, and asking again would cost as much as this did.
            *readable = count == CHUNK;
            has_moved = true;
            let has_ended = self.decrypt(&scratch.chunk[..count], &mut scratch.plain);
            let given = self.give(&scratch.plain)?;
            self.waiting.extend_from_slice(&scratch.plain[given..]);
            if has_ended? {
                self.inward = Flow::Ending;
            }
        }
        if self.inward == Flow::Ending && self.waiting.is_empty() {
            self.inward = Flow::Over;
            // An inner side whose owner has left needs no end.
            let _ = self.inner.finish();
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Takes in a piece from outside, of length zero for the end of the connection, and puts what
    /// it held into `plain`. Says whether the peer has said that nothing more comes.
    fn decrypt(&mut self, mut chunk: &[u8], plain: &mut Vec<u8>) -> Result<bool, Over> {
        plain.clear();
        let is_end = chunk.is_empty();
        loop {
            self.conn.read_tls(&mut chunk).map_err(|error| words::broken(&error))?;
            let state = self.conn.process_new_packets().map_err(|error| words::of(&error))?;
            let (start, more) = (plain.len(), state.plaintext_bytes_to_read());
            plain.resize(start + more, 0);
            let read = self.conn.reader().read_exact(&mut plain[start..]);
            read.map_err(|error| words::broken(&error))?;
            if self.is_shaking && !self.conn.is_handshaking() {
                self.is_shaking = false;
                self.tls_peer.set_names(super::identity::names(self.conn.peer_certificates()));
            }
            if state.peer_has_closed() || chunk.is_empty() && !is_end {
                return Ok(state.peer_has_closed());
            }
            if is_end {
                return Err(words::cut(self.is_shaking));
            }
        }
    }

    /// Writes to the inner side what it takes, and returns how much that is. A side whose owner has
    /// left takes everything.
    fn give(&self, bytes: &[u8]) -> Result<usize, Over> {
        let mut given = 0;
        while given < bytes.len() {
            match self.inner.send(&[IoSlice::new(&bytes[given..])]) {
                Ok(count) => given += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Ok(bytes.len()),
            }
        }
        Ok(given)
    }

    /// One step outward. Says whether anything moved, and in `readable` whether there may be more
    /// inside.
    fn step_outward(&mut self, scratch: &mut Scratch, readable: &mut bool) -> Result<bool, Over> {
        let is_free = !self.is_shaking && !self.conn.wants_write();
        let mut has_moved = false;
        if self.outward == Flow::Open && is_free && *readable {
            has_moved = true;
            match self.inner.read(&mut scratch.chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    (*readable, has_moved) = (false, false);
                }
                // One that closed its end before it had read everything is reset.
                Ok(0) | Err(_) => {
                    self.outward = Flow::Over;
                    self.conn.send_close_notify();
                }
                Ok(count) => {
                    // Where the owner has left, there is an end to be read in any case.
                    *readable = count == CHUNK || self.has_left;
                    let written = self.conn.writer().write_all(&scratch.chunk[..count]);
                    written.map_err(|error| words::broken(&error))?;
                }
            }
        }
        Ok(has_moved | self.send()?)
    }

    /// Writes out what is encrypted, as far as the kernel takes it. Says whether it took anything.
    fn send(&mut self) -> Result<bool, Over> {
        let mut has_moved = false;
        while self.conn.wants_write() {
            match self.conn.write_tls(&mut Out(&self.outer)) {
                Ok(_) => has_moved = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(words::gone(&error)),
            }
        }
        Ok(has_moved)
    }
}

/// The way out: a peer that left is an error there, and no signal.
struct Out<'a>(&'a Stream);

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
