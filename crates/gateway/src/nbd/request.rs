//! From bytes to requests.

use tidegate_fabric::buffer::Buffer;

use super::wire::{REQUEST_LENGTH, REQUEST_MAGIC, REQUEST_MAX, command};

/// The memory that a write gets at first, in bytes, and how many times that it gets when this is
/// full. So a head alone takes up a mebibyte and not 32, few writes are copied, and none often.
const FIRST: usize = 1 << 20;
const GROWTH: usize = 4;

/// The request of a client.
#[derive(Debug)]
pub struct Request {
    /// The client's number for it.
    pub cookie: u64,
    /// One of [`command`], unless the client made it up.
    pub command: u16,
    /// Some of [`super::wire::flag`].
    pub flags: u16,
    /// Where in the export, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
    /// The data of a write; empty for every other command.
    pub payload: Buffer,
}

impl Request {
    /// The bytes of memory that it needs: those that it reads or writes. A read of more than is
    /// allowed is refused, and needs none.
    pub fn weight(&self) -> usize {
        match self.command {
            command::WRITE => self.length as usize,
            command::READ if self.length <= REQUEST_MAX => self.length as usize,
            _ => 0,
        }
    }
}

/// After which nothing that arrives can be understood any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Where a request should begin is something else.
    #[error("what it sends is no request: {0:#010x}")]
    Magic(u32),
    /// More data would follow than is accepted.
    #[error("it writes {0} bytes at once; at most {REQUEST_MAX} are accepted, as it was told")]
    TooLong(u32),
}

/// Cuts a stream into requests, wherever the pieces end in which it arrives.
///
/// A write's data is taken from the pieces, or read to where it belongs without going through one:
/// see [`Self::vacancy`].
#[derive(Debug, Default)]
pub struct Receiver {
    head: [u8; REQUEST_LENGTH],
    /// How much of the head has arrived.
    held: usize,
    /// A write and how much of its data has arrived.
    write: Option<(Request, usize)>,
    /// A request that is to be admitted before memory is allocated for it.
    pending: Option<Request>,
}

impl Receiver {
    /// Takes the next request from the front of `bytes`; none if it has not arrived completely, and
    /// then `bytes` is empty.
    ///
    /// # Errors
    /// If the client breaks the protocol; the connection is to be closed.
    pub fn next_request(&mut self, bytes: &mut &[u8]) -> Result<Option<Request>, RequestError> {
        self.next_admitted(bytes, |_| true)
    }

    /// The same, if `admits` says yes to the bytes of memory that the request needs, for what it
    /// writes or reads; it is asked once the head has arrived and before memory is allocated. If it
    /// says no, there is no request either, [`Self::is_pending`] says so, and `bytes` keeps what is
    /// behind the head; the next call asks again.
    ///
    /// # Errors
    /// If the client breaks the protocol; the connection is to be closed.
    pub fn next_admitted(
        &mut self,
        bytes: &mut &[u8],
        admits: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Request>, RequestError> {
        if self.write.is_none() {
            let request = match self.pending.take() {
                Some(request) => request,
                None => {
                    let Some(head) = self.next_head(bytes) else { return Ok(None) };
                    parse(&head)?
                }
            };
            if !admits(request.weight()) {
                self.pending = Some(request);
                return Ok(None);
            }
            if request.command != command::WRITE {
                return Ok(Some(request));
            }
            let payload = Buffer::with_length((request.length as usize).min(FIRST));
            self.write = Some((Request { payload, ..request }, 0));
        }
        loop {
            let vacancy = self.vacancy();
            let count = vacancy.len().min(bytes.len());
            vacancy[..count].copy_from_slice(&bytes[..count]);
            *bytes = &bytes[count..];
            self.on_filled(count);
            if bytes.is_empty() || self.vacancy().is_empty() {
                break;
            }
        }
        let is_whole =
            |(request, filled): &mut (Request, usize)| *filled == request.length as usize;
        Ok(self.write.take_if(is_whole).map(|(request, _)| request))
    }

    /// Whether a request has arrived that was not admitted.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The bytes of memory that a write was admitted with of which not all has arrived.
    pub fn reserved(&self) -> usize {
        self.write.as_ref().map_or(0, |(request, _)| request.weight())
    }

    /// The next head, if all of it has arrived.
    fn next_head(&mut self, bytes: &mut &[u8]) -> Option<[u8; REQUEST_LENGTH]> {
        if self.held == 0
            && let Some((head, rest)) = bytes.split_first_chunk()
        {
            *bytes = rest;
            return Some(*head);
        }
        let count = bytes.len().min(REQUEST_LENGTH - self.held);
        self.head[self.held..][..count].copy_from_slice(&bytes[..count]);
        self.held += count;
        *bytes = &bytes[count..];
        if self.held < REQUEST_LENGTH {
            return None;
        }
        self.held = 0;
        Some(self.head)
    }

    /// The memory for the next bytes of the stream, as far as they are a write's data. A caller
    /// that reads bytes into it calls [`Self::on_filled`], and then asks for the next request.
    pub fn vacancy(&mut self) -> &mut [u8] {
        match &mut self.write {
            Some((request, filled)) => &mut request.payload[*filled..],
            None => &mut [],
        }
    }

    /// The first `count` bytes of the vacancy have been filled.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn on_filled(&mut self, count: usize) {
        let Some((Request { length, payload, .. }, filled)) = &mut self.write else { return };
        *filled += count;
        assert!(*filled <= payload.len(), "more was filled than was vacant");
        let length = *length as usize;
        if *filled == payload.len() && *filled != length {
            let mut larger = Buffer::with_length(length.min(*filled * GROWTH));
            larger[..*filled].copy_from_slice(payload);
            *payload = larger;
        }
    }
}

fn parse(head: &[u8; REQUEST_LENGTH]) -> Result<Request, RequestError> {
    let [m0, m1, m2, m3, f0, f1, c0, c1, rest @ ..] = *head;
    let magic = u32::from_be_bytes([m0, m1, m2, m3]);
    if magic != REQUEST_MAGIC {
        return Err(RequestError::Magic(magic));
    }
    let (numbers, _) = rest.as_chunks::<4>();
    let [k0, k1, o0, o1, length] = [0, 1, 2, 3, 4].map(|at| u32::from_be_bytes(numbers[at]));
    let command = u16::from_be_bytes([c0, c1]);
    if command == command::WRITE && length > REQUEST_MAX {
        return Err(RequestError::TooLong(length));
    }
    Ok(Request {
        cookie: u64::from(k0) << 32 | u64::from(k1),
        command,
        flags: u16::from_be_bytes([f0, f1]),
        offset: u64::from(o0) << 32 | u64::from(o1),
        length,
        payload: Buffer::empty(),
    })
}
