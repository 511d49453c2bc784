//! Parser of requests ("Request message").

use core::ops::DerefMut;

use super::constants::{PAYLOAD_MAX, REQUEST_HEADER_LENGTH, REQUEST_MAGIC, command};

/// The memory that a write's payload gets at first, in bytes, and the factor by which it grows when
/// it is full. So a header alone takes up a mebibyte and not 32, few payloads are copied, and none
/// often.
const PAYLOAD_FIRST: usize = 1 << 20;
const PAYLOAD_GROWTH: usize = 4;

/// A client's request, with its payload in memory of type `B`.
#[derive(Debug)]
pub struct Request<B> {
    /// The client's identifier of the request, which the reply repeats.
    pub cookie: u64,
    /// One of [`command`], or a number that the protocol does not define.
    pub command: u16,
    /// The bits of [`super::constants::command_flag`].
    pub flags: u16,
    /// Where the range begins in the export, in bytes.
    pub offset: u64,
    /// The length of the range, in bytes.
    pub length: u32,
    /// The data of a write; empty for every other command.
    pub payload: B,
}

impl<B> Request<B> {
    /// The bytes that the request reads or writes. A read of more than [`PAYLOAD_MAX`] is refused,
    /// and needs no memory.
    pub fn data_length(&self) -> usize {
        match self.command {
            command::WRITE => self.length as usize,
            command::READ if self.length <= PAYLOAD_MAX => self.length as usize,
            _ => 0,
        }
    }
}

/// Violations of the protocol after which the connection's bytes cannot be parsed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A request does not begin with the magic number.
    #[error("malformed request: it begins with {0:#010x}")]
    Magic(u32),
    /// A write is longer than [`PAYLOAD_MAX`].
    #[error("a write of {0} bytes; the limit is {PAYLOAD_MAX}")]
    TooLong(u32),
}

/// Parses the requests of one connection from bytes that arrive in pieces of any length.
///
/// The payload of a write is copied from these bytes, or received directly into its own memory
/// ([`Self::unfilled`]), which the caller allocates.
///
/// ```
/// use tidegate_wire::nbd::RequestParser;
/// let mut parser = RequestParser::new(|length| vec![0; length]);
/// let mut bytes = &b"\x25\x60\x95\x13\0\0\0\x01COOKIE\0\x07\0\0\0\0\0\0\x10\0\0\0\0\x05hel"[..];
/// assert!(parser.next_admitted(&mut bytes, |_| true)?.is_none());
/// parser.unfilled()[..2].copy_from_slice(b"lo");
/// parser.advance(2);
/// let write = parser.next_admitted(&mut bytes, |_| true)?.expect("all of it has arrived");
/// assert_eq!((write.command, write.offset, &write.payload[..]), (1, 4096, &b"hello"[..]));
/// # Ok::<_, tidegate_wire::nbd::RequestError>(())
/// ```
#[derive(Debug)]
pub struct RequestParser<B> {
    /// Allocates memory of a length in bytes, whatever its content.
    allocate: fn(usize) -> B,
    header: [u8; REQUEST_HEADER_LENGTH],
    /// How many bytes of the header have arrived.
    held: usize,
    /// A write, and how many bytes of its payload have arrived.
    write: Option<(Request<B>, usize)>,
    /// A request that waits for memory.
    pending: Option<Request<B>>,
}

impl<B: Default + DerefMut<Target = [u8]>> RequestParser<B> {
    /// A parser at the beginning of the transmission phase. `allocate` returns memory of a length
    /// in bytes for the payload of a write.
    pub fn new(allocate: fn(usize) -> B) -> Self {
        let header = [0; REQUEST_HEADER_LENGTH];
        Self { allocate, header, held: 0, write: None, pending: None }
    }

    /// Takes the next request from the front of `bytes` if `admits` accepts its
    /// [`Request::data_length`]. `admits` is called once the header has arrived and before memory
    /// is allocated. If it returns false, the request [is pending](Self::is_pending), `bytes` keeps
    /// all bytes behind the header, and the next call asks again. Returns none also if the request
    /// is incomplete; `bytes` is empty then.
    ///
    /// # Errors
    /// If the client violates the protocol: close the connection.
    pub fn next_admitted(
        &mut self,
        bytes: &mut &[u8],
        admits: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Request<B>>, RequestError> {
        if self.write.is_none() {
            let request = match self.pending.take() {
                Some(request) => request,
                None => {
                    let Some(header) = self.next_header(bytes) else { return Ok(None) };
                    parse(&header)?
                }
            };
            if !admits(request.data_length()) {
                self.pending = Some(request);
                return Ok(None);
            }
            if request.command != command::WRITE {
                return Ok(Some(request));
            }
            let payload = (self.allocate)((request.length as usize).min(PAYLOAD_FIRST));
            self.write = Some((Request { payload, ..request }, 0));
        }
        loop {
            let unfilled = self.unfilled();
            let count = unfilled.len().min(bytes.len());
            unfilled[..count].copy_from_slice(&bytes[..count]);
            *bytes = &bytes[count..];
            self.advance(count);
            if bytes.is_empty() || self.unfilled().is_empty() {
                break;
            }
        }
        let is_whole =
            |(request, filled): &mut (Request<B>, usize)| *filled == request.length as usize;
        Ok(self.write.take_if(is_whole).map(|(request, _)| request))
    }

    /// Whether a request has arrived that was not admitted.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The data length of a write that was admitted and whose payload has not arrived completely.
    pub fn reserved(&self) -> usize {
        self.write.as_ref().map_or(0, |(request, _)| request.data_length())
    }

    /// The next header, if all of it has arrived.
    fn next_header(&mut self, bytes: &mut &[u8]) -> Option<[u8; REQUEST_HEADER_LENGTH]> {
        if self.held == 0
            && let Some((header, rest)) = bytes.split_first_chunk()
        {
            *bytes = rest;
            return Some(*header);
        }
        let count = bytes.len().min(REQUEST_HEADER_LENGTH - self.held);
        self.header[self.held..][..count].copy_from_slice(&bytes[..count]);
        self.held += count;
        *bytes = &bytes[count..];
        if self.held < REQUEST_HEADER_LENGTH {
            return None;
        }
        self.held = 0;
        Some(self.header)
    }

    /// The memory for the next bytes of the stream, as far as they are a write's payload. After a
    /// read into this memory, call [`Self::advance`], then take the next request.
    pub fn unfilled(&mut self) -> &mut [u8] {
        match &mut self.write {
            Some((request, filled)) => &mut request.payload[*filled..],
            None => &mut [],
        }
    }

    /// The first `count` bytes of [`Self::unfilled`] have been filled.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn advance(&mut self, count: usize) {
        let Some((Request { length, payload, .. }, filled)) = &mut self.write else { return };
        *filled += count;
        assert!(*filled <= payload.len(), "more bytes were filled than were unfilled");
        let length = *length as usize;
        if *filled == payload.len() && *filled != length {
            let mut larger = (self.allocate)(length.min(*filled * PAYLOAD_GROWTH));
            larger[..*filled].copy_from_slice(payload);
            *payload = larger;
        }
    }
}

fn parse<B: Default>(header: &[u8; REQUEST_HEADER_LENGTH]) -> Result<Request<B>, RequestError> {
    let [m0, m1, m2, m3, f0, f1, c0, c1, rest @ ..] = *header;
    let magic = u32::from_be_bytes([m0, m1, m2, m3]);
    if magic != REQUEST_MAGIC {
        return Err(RequestError::Magic(magic));
    }
    let (numbers, _) = rest.as_chunks::<4>();
    let [k0, k1, o0, o1, length] = [0, 1, 2, 3, 4].map(|at| u32::from_be_bytes(numbers[at]));
    let command = u16::from_be_bytes([c0, c1]);
    if command == command::WRITE && length > PAYLOAD_MAX {
        return Err(RequestError::TooLong(length));
    }
    Ok(Request {
        cookie: u64::from(k0) << 32 | u64::from(k1),
        command,
        flags: u16::from_be_bytes([f0, f1]),
        offset: u64::from(o0) << 32 | u64::from(o1),
        length,
        payload: B::default(),
    })
}
