//! A client of Network Block Device servers, as small as a load needs it: simple replies, reads and
//! writes of one size at random offsets.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::pace::{Direction, Ending};
use super::schedule::Dice;
use super::wire::{Decoded, Dialect, Stream};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::on_one_line;
use tidegate_wire::nbd::client;
use tidegate_wire::nbd::constants::{
    MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, command, handshake_flag, info,
    option, option_reply, transmission_flag,
};

/// Handshake flags that are used if the server offers them.
const FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
/// Option replies with this bit are errors.
const REFUSED: u32 = 1 << 31;

/// No reply to an option is longer than this, in bytes.
const OPTION_REPLY_MAX: u32 = 16 << 10;

/// The properties of an export, as its server reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// Its length, in bytes.
    pub(crate) length: u64,
    pub(crate) is_read_only: bool,
}

/// One connection to an export.
#[derive(Debug)]
pub(crate) struct Nbd {
    size: u32,
    /// How many pieces of `size` the export has.
    block_count: u64,
    payload: Arc<[u8]>,
    /// The bytes that are still to come of the read reply in `begun`.
    rest: usize,
    begun: Option<(u32, Ending)>,
}

/// Agrees with the server on the export `name`.
///
/// # Errors
/// If the server refuses, in its own words, or is no NBD server.
pub(crate) fn shake_hands(stream: &mut Stream, name: &str) -> Result<Export, Failure> {
    negotiate(stream, name).map_err(|error| match error {
        HandshakeError::Io(error) => {
            Failure::new(Code::Unreachable, "the server does not speak NBD").cause(error)
        }
        HandshakeError::Refused { number, reason } => {
            let reason = on_one_line(&String::from_utf8_lossy(&reason));
            let reason = if reason.is_empty() { format!("error {number}") } else { reason };
            let message = format!("the server refuses the export {name:?}: {reason}");
            Failure::new(Code::Failure, message).help("nbdinfo --list shows what there is")
        }
    })
}

enum HandshakeError {
    Io(io::Error),
    Refused { number: u32, reason: Vec<u8> },
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn negotiate(stream: &mut (impl Read + Write), name: &str) -> Result<Export, HandshakeError> {
    let strange = |what| HandshakeError::Io(io::Error::new(io::ErrorKind::InvalidData, what));
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if greeting[..8] != MAGIC.to_be_bytes() || greeting[8..16] != OPTION_MAGIC.to_be_bytes() {
        return Err(strange("its greeting is not that of a server with options"));
    }
    if greeting[17] & 1 == 0 {
        return Err(strange("it knows no fixed newstyle negotiation"));
    }
    let agreed = u16::from_be_bytes([greeting[16], greeting[17]]) & FLAGS;
    let go = client::export_data(name, &[]);
    stream.write_all(&client::options(agreed.into(), &[(option::GO, &go)]))?;
    let mut export = None;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (kind, length) = (word(12), word(16));
        if head[..8] != OPTION_REPLY_MAGIC.to_be_bytes() || length > OPTION_REPLY_MAX {
            return Err(strange("its reply to an option is none"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            option_reply::ACK => {
                return export.ok_or(strange("it does not say how large the export is"));
            }
            option_reply::INFO => export = described(&data).or(export),
            kind if kind & REFUSED != 0 => {
                return Err(HandshakeError::Refused { number: kind & !REFUSED, reason: data });
            }
            _ => return Err(strange("its reply to an option is unknown")),
        }
    }
}

fn described(info: &[u8]) -> Option<Export> {
    let (kind, rest) = info.split_first_chunk()?;
    let (length, flags) = rest.split_first_chunk()?;
    let flags = u16::from_be_bytes(flags.try_into().ok()?);
    (u16::from_be_bytes(*kind) == info::EXPORT).then_some(Export {
        length: u64::from_be_bytes(*length),
        is_read_only: flags & transmission_flag::READ_ONLY != 0,
    })
}

impl Nbd {
    /// Requests of the payload's size anywhere in an export of `length` bytes, of which there is
    /// room for at least one.
    pub(crate) fn new(length: u64, payload: Arc<[u8]>) -> Self {
        // A request has at most 32 MiB, so this fits.
        let size = payload.len() as u32;
        let block_count = (length / u64::from(size)).max(1);
        Self { size, block_count, payload, rest: 0, begun: None }
    }
}

impl Dialect for Nbd {
    fn encode(&mut self, slot: u32, kind: Direction, dice: &mut Dice, out: &mut Vec<u8>) {
        let request_type = match kind {
            Direction::Read => command::READ,
            Direction::Write => command::WRITE,
        };
        let offset = dice.below(self.block_count) * u64::from(self.size);
        // The cookie says what the answer to it looks like.
        let cookie = u64::from(request_type) << 32 | u64::from(slot);
        out.extend_from_slice(&client::request(request_type, 0, cookie, offset, self.size));
        if kind == Direction::Write {
            out.extend_from_slice(&self.payload);
        }
    }

    fn decode(&mut self, input: &[u8]) -> Result<Decoded, String> {
        if let Some((slot, ending)) = self.begun {
            let length = self.rest.min(input.len());
            self.rest -= length;
            if self.rest == 0 {
                self.begun = None;
                return Ok(Decoded::Answer { length, slot, ending });
            }
            return Ok(if length == 0 { Decoded::Nothing } else { Decoded::Some(length) });
        }
        let Some((head, _)) = input.split_first_chunk::<16>() else { return Ok(Decoded::Nothing) };
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != SIMPLE_REPLY_MAGIC {
            return Err("the server's reply is not one of NBD".into());
        }
        let (error, request_type, slot) = (word(4), word(8), word(12));
        let ending = if error == 0 { Ending::Done } else { Ending::Failed };
        if error == 0 && request_type == u32::from(command::READ) {
            self.begun = Some((slot, ending));
            self.rest = self.size as usize;
            return Ok(Decoded::Some(16));
        }
        Ok(Decoded::Answer { length: 16, slot, ending })
    }
}
