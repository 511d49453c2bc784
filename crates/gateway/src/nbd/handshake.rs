//! The handshake: from a client's first byte to the export that it has chosen.

use core::mem;

use super::wire::{
    self, ALLOCATION, ALLOCATION_ID, NAME_MAX, OPTION_MAGIC, OPTION_MAX, OPTION_REPLY_MAGIC,
    REQUEST_MAX, answer, export, hello, info, option,
};

/// Options after which a client has had enough of them. A client that lists a thousand exports and
/// asks about each stays below.
const OPTIONS_MAX: u32 = 1024;

/// The size of requests that every export serves best, in bytes: whole pages need no copy anywhere.
const PREFERRED: u32 = 4096;

/// Zero bytes behind the reply to `EXPORT_NAME`, unless the client declines them.
const ZEROES: usize = 124;

/// The exports that clients can choose.
pub trait Exports {
    /// The export of this name; of the empty name, the default one.
    ///
    /// # Errors
    /// If there is none, or the client may not open it.
    fn find(&self, name: &str) -> Result<Export, NotOpened>;

    /// Calls `each` with every name that is worth listing, and what is there.
    fn list(&self, each: &mut dyn FnMut(&str, &str));
}

/// Why an export is not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// There is none of that name.
    Unknown,
    /// This client may not, for this reason.
    Denied(String),
}

/// Something to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its canonical name.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// Which of the gateway's volumes it is.
    pub volume: usize,
    /// The tenant that owns requests through it; empty if they are unattributed.
    pub tenant: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
}

impl Export {
    /// The transmission flags that clients are sent.
    pub fn flags(&self, structured: bool) -> u16 {
        let mut flags = export::HAS_FLAGS | export::FLUSH | export::FUA;
        flags |= export::MULTI_CONN | export::CACHE;
        flags |= match self.read_only {
            true => export::READ_ONLY,
            false => export::TRIM | export::WRITE_ZEROES,
        };
        if structured { flags | export::DF } else { flags }
    }
}

/// The state of TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// The gateway does not offer TLS.
    Absent,
    /// A client that asks for TLS continues with TLS.
    Offered,
    /// Without TLS, every option is refused but `STARTTLS` and `ABORT`.
    Required,
    /// TLS has begun.
    Begun,
}

/// The export and the features that a client has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Where its requests go.
    pub export: Export,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// Whether it may ask for block status.
    pub allocation: bool,
}

/// The state of a connection after a step of its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// More of the handshake has to arrive.
    More,
    /// The handshake is over and requests follow.
    Entered(Box<Entered>),
    /// Once all replies are sent, the connection continues with TLS, and a new handshake inside.
    Encrypt,
    /// The client has left in good order; replies that are queued may still be sent.
    Left,
}

/// Violations of the protocol: the connection ends without service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Its flags have a meaning that is not known.
    #[error("it sets handshake flags {0:#x}, of which only 1 and 2 were offered")]
    Flags(u32),
    /// Where an option should begin is something else.
    #[error("what it sends is no option: {0:#018x}")]
    Magic(u64),
    /// An option is longer than any sensible one.
    #[error("its option {option} has {length} bytes; at most {OPTION_MAX} are read")]
    TooLong {
        /// The option.
        option: u32,
        /// Its length in bytes.
        length: u32,
    },
    /// It does not come to an end.
    #[error("it has sent {OPTIONS_MAX} options and chosen no export")]
    TooMany,
    /// It does not speak the fixed newstyle, in which options are answered.
    #[error("it sends option {0} without speaking the fixed newstyle")]
    NotFixed(u32),
    /// It goes on in the clear after it has asked for encryption: an attacker may have injected
    /// that.
    #[error("it sends {0} bytes in the clear behind its request for encryption")]
    Clear(usize),
    /// It wants, in the old way that has no answer, to be served in the clear.
    #[error("it wants an export in the clear, and has to ask for encryption first")]
    NotEncrypted,
    /// It wants, in the old way that has no answer, what it may not have.
    #[error("it wants the export {name:?}, and {reason}")]
    Denied {
        /// The export.
        name: String,
        /// Why not.
        reason: String,
    },
    /// It wants, in the old way that has no answer, what there is not.
    #[error("it wants the export {0:?}, which there is not")]
    NoSuchExport(String),
}

/// One client's handshake.
///
/// ```
/// use tidegate_gateway::nbd::{Encryption, Export, Exports, Handshake, NotOpened, HandshakeStep};
/// struct Nothing;
/// impl Exports for Nothing {
///     fn find(&self, _: &str) -> Result<Export, NotOpened> { Err(NotOpened::Unknown) }
///     fn list(&self, _: &mut dyn FnMut(&str, &str)) {}
/// }
/// let mut output = Vec::new();
/// let mut handshake = Handshake::begin(Encryption::Absent, &mut output);
/// assert_eq!(output, *b"NBDMAGICIHAVEOPT\0\x03");
/// let mut input = &b"\0\0\0\x03IHAVEOPT\0\0\0\x02\0\0\0\0"[..];
/// assert_eq!(handshake.on_bytes(&mut input, &Nothing, &mut output), Ok(HandshakeStep::Left));
/// ```
#[derive(Debug)]
pub struct Handshake {
    awaited: Awaited,
    encryption: Encryption,
    /// Received bytes of the item that is awaited.
    held: Vec<u8>,
    fixed: bool,
    zeroes: bool,
    structured: bool,
    /// The export for which the client has chosen the metadata context.
    context: Option<String>,
    options: u32,
}

#[derive(Clone, Copy, Debug)]
enum Awaited {
    Flags,
    Head,
    Data { option: u32, length: u32 },
}

impl Handshake {
    /// A handshake that begins with the server's greeting, which is appended to `output`.
    pub fn begin(encryption: Encryption, output: &mut Vec<u8>) -> Self {
        output.extend(wire::MAGIC.to_be_bytes());
        output.extend(OPTION_MAGIC.to_be_bytes());
        output.extend((hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes());
        Self {
            awaited: Awaited::Flags,
            encryption,
            held: Vec::new(),
            fixed: false,
            zeroes: true,
            structured: false,
            context: None,
            options: 0,
        }
    }

    /// Takes the handshake's bytes from `bytes`, and appends the answers to `output`. The rest of
    /// `bytes` after [`HandshakeStep::Entered`] belongs to requests; after
    /// [`HandshakeStep::Encrypt`] there is no rest.
    ///
    /// # Errors
    /// If the client breaks the protocol; the connection is to be closed.
    pub fn on_bytes(
        &mut self,
        bytes: &mut &[u8],
        exports: &impl Exports,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        loop {
            let needed = match self.awaited {
                Awaited::Flags => 4,
                Awaited::Head => 16,
                Awaited::Data { length, .. } => length as usize,
            };
            let taken = bytes.len().min(needed - self.held.len());
            self.held.extend_from_slice(&bytes[..taken]);
            *bytes = &bytes[taken..];
            if self.held.len() < needed {
                return Ok(HandshakeStep::More);
            }
            let held = mem::take(&mut self.held);
            let mut fields = Fields(&held);
            match self.awaited {
                Awaited::Flags => self.on_flags(fields.word().unwrap_or(0))?,
                Awaited::Head => {
                    let magic = fields.long().unwrap_or(0);
                    let option = fields.word().unwrap_or(0);
                    self.on_head(magic, option, fields.word().unwrap_or(0))?;
                }
                Awaited::Data { option, .. } => {
                    self.awaited = Awaited::Head;
                    let step = self.on_option(option, &held, exports, output)?;
                    match step {
                        HandshakeStep::More => {}
                        HandshakeStep::Encrypt if !bytes.is_empty() => {
                            return Err(HandshakeError::Clear(bytes.len()));
                        }
                        step => return Ok(step),
                    }
                }
            }
        }
    }

    fn on_flags(&mut self, flags: u32) -> Result<(), HandshakeError> {
        if flags & !u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES) != 0 {
            return Err(HandshakeError::Flags(flags));
        }
        self.fixed = flags & u32::from(hello::FIXED_NEWSTYLE) != 0;
        self.zeroes = flags & u32::from(hello::NO_ZEROES) == 0;
        self.awaited = Awaited::Head;
        Ok(())
    }

    fn on_head(&mut self, magic: u64, option: u32, length: u32) -> Result<(), HandshakeError> {
        if magic != OPTION_MAGIC {
            return Err(HandshakeError::Magic(magic));
        }
        if length > OPTION_MAX {
            return Err(HandshakeError::TooLong { option, length });
        }
        if !self.fixed && option != option::EXPORT_NAME {
            return Err(HandshakeError::NotFixed(option));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(HandshakeError::TooMany);
        }
        self.awaited = Awaited::Data { option, length };
        Ok(())
    }

    fn on_option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &impl Exports,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        match option {
            option::ABORT => {
                reply(output, option, answer::ACK, &[]);
                return Ok(HandshakeStep::Left);
            }
            option::STARTTLS => return Ok(self.on_encrypt(data, output)),
            option::EXPORT_NAME if self.encryption == Encryption::Required => {
                return Err(HandshakeError::NotEncrypted);
            }
            _ if self.encryption == Encryption::Required => {
                reply(output, option, answer::TLS_REQUIRED, &[b"ask for encryption first"]);
            }
            option::EXPORT_NAME => return self.enter_old(data, exports, output),
            option::INFO | option::GO => return Ok(self.on_go(option, data, exports, output)),
            option::LIST if data.is_empty() => {
                exports.list(&mut |name, description| {
                    let length = (name.len() as u32).to_be_bytes();
                    let parts = [&length[..], name.as_bytes(), description.as_bytes()];
                    reply(output, option, answer::SERVER, &parts);
                });
                reply(output, option, answer::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply(output, option, answer::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                reply(output, option, answer::INVALID, &[b"this option has no data"]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.on_context(option, data, exports, output);
            }
            _ => reply(output, option, answer::UNSUPPORTED, &[b"this option is not known"]),
        }
        Ok(HandshakeStep::More)
    }

    /// `STARTTLS`. Options agreed in the clear are forgotten: an attacker may have sent them.
    fn on_encrypt(&mut self, data: &[u8], output: &mut Vec<u8>) -> HandshakeStep {
        let (kind, message) = match self.encryption {
            Encryption::Absent => (answer::UNSUPPORTED, "this port is not encrypted"),
            Encryption::Begun => (answer::INVALID, "the connection is encrypted"),
            _ if !data.is_empty() => (answer::INVALID, "this option has no data"),
            Encryption::Offered | Encryption::Required => {
                self.encryption = Encryption::Begun;
                (self.structured, self.context) = (false, None);
                reply(output, option::STARTTLS, answer::ACK, &[]);
                return HandshakeStep::Encrypt;
            }
        };
        reply(output, option::STARTTLS, kind, &[message.as_bytes()]);
        HandshakeStep::More
    }

    /// `EXPORT_NAME`: the answer has no place for an error.
    fn enter_old(
        &mut self,
        data: &[u8],
        exports: &impl Exports,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        let name = String::from_utf8_lossy(&data[..data.len().min(NAME_MAX as usize)]);
        let is_name = data.len() <= NAME_MAX as usize;
        let found = if is_name { exports.find(&name) } else { Err(NotOpened::Unknown) };
        let export = found.map_err(|refused| {
            let name = name.chars().take(SHOWN).collect();
            match refused {
                NotOpened::Unknown => HandshakeError::NoSuchExport(name),
                NotOpened::Denied(reason) => HandshakeError::Denied { name, reason },
            }
        })?;
        output.extend(export.size.to_be_bytes());
        output.extend(export.flags(self.structured).to_be_bytes());
        if self.zeroes {
            output.resize(output.len() + ZEROES, 0);
        }
        Ok(self.enter(&name, export))
    }

    fn enter(&mut self, name: &str, export: Export) -> HandshakeStep {
        // A context chosen for one export says nothing about another.
        let allocation = self.context.as_deref() == Some(name);
        HandshakeStep::Entered(Box::new(Entered {
            export,
            structured: self.structured,
            allocation,
        }))
    }

    fn on_go(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &impl Exports,
        output: &mut Vec<u8>,
    ) -> HandshakeStep {
        let mut fields = Fields(data);
        let name_field = fields.text().and_then(|name| {
            let count = usize::from(fields.half()?);
            (fields.0.len() == count * 2).then_some((name, fields.0))
        });
        let (name, wanted) = match name_field.ok_or(Malformed) {
            Ok((Name::Text(name), wanted)) => (name, wanted),
            Ok((Name::TooLong, _)) => {
                reply(output, option, answer::TOO_BIG, &[b"the name is too long"]);
                return HandshakeStep::More;
            }
            Err(Malformed) => {
                reply(output, option, answer::INVALID, &[b"this is no name and list of numbers"]);
                return HandshakeStep::More;
            }
        };
        let export = match exports.find(name) {
            Ok(export) => export,
            Err(refused) => {
                not_opened(output, option, name, &refused);
                return HandshakeStep::More;
            }
        };
        let wants = |fact: u16| wanted.chunks_exact(2).any(|two| two == fact.to_be_bytes());
        if wants(info::NAME) {
            let parts = [&info::NAME.to_be_bytes()[..], export.name.as_bytes()];
            reply(output, option, answer::INFO, &parts);
        }
        if wants(info::DESCRIPTION) && !export.description.is_empty() {
            let parts = [&info::DESCRIPTION.to_be_bytes()[..], export.description.as_bytes()];
            reply(output, option, answer::INFO, &parts);
        }
        if wants(info::BLOCK_SIZE) {
            let sizes = [1, PREFERRED, REQUEST_MAX].map(u32::to_be_bytes);
            let parts = [&info::BLOCK_SIZE.to_be_bytes()[..], sizes.as_flattened()];
            reply(output, option, answer::INFO, &parts);
        }
        let kind = info::EXPORT.to_be_bytes();
        let (size, flags) = (export.size.to_be_bytes(), export.flags(self.structured));
        reply(output, option, answer::INFO, &[&kind, &size, &flags.to_be_bytes()]);
        reply(output, option, answer::ACK, &[]);
        match option {
            option::GO => self.enter(name, export),
            _ => HandshakeStep::More,
        }
    }

    fn on_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &impl Exports,
        output: &mut Vec<u8>,
    ) {
        let choose = option == option::SET_META_CONTEXT;
        if choose {
            self.context = None;
        }
        if !self.structured {
            reply(output, option, answer::INVALID, &[b"this needs structured replies"]);
            return;
        }
        let Some((name, queries)) = contexts(data) else {
            reply(output, option, answer::INVALID, &[b"this is no name and list of contexts"]);
            return;
        };
        if let Err(refused) = exports.find(name) {
            return not_opened(output, option, name, &refused);
        }
        let chosen = queries.iter().any(|query| match choose {
            true => *query == ALLOCATION,
            false => ALLOCATION == *query || *query == "base:",
        });
        if chosen || (!choose && queries.is_empty()) {
            let number = if choose { ALLOCATION_ID } else { 0 };
            let parts = [&number.to_be_bytes()[..], ALLOCATION.as_bytes()];
            reply(output, option, answer::META_CONTEXT, &parts);
        }
        if chosen && choose {
            self.context = Some(name.to_owned());
        }
        reply(output, option, answer::ACK, &[]);
    }
}

/// The export's name and the queries of a request for metadata contexts.
fn contexts(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut fields = Fields(data);
    let Name::Text(name) = fields.text()? else { return None };
    let count = fields.word()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        match fields.text()? {
            Name::Text(query) if query.contains(':') => queries.push(query),
            _ => return None,
        }
    }
    fields.0.is_empty().then_some((name, queries))
}

/// How much of an export's name is repeated, in characters: it may be as long as a client likes.
const SHOWN: usize = 64;

fn not_opened(output: &mut Vec<u8>, option: u32, name: &str, refused: &NotOpened) {
    match refused {
        NotOpened::Unknown => {
            let shown: String = name.chars().take(SHOWN).collect();
            let message = format!("there is no export {shown:?}");
            reply(output, option, answer::UNKNOWN, &[message.as_bytes()]);
        }
        NotOpened::Denied(reason) => reply(output, option, answer::POLICY, &[reason.as_bytes()]),
    }
}

/// Appends an answer to an option.
fn reply(output: &mut Vec<u8>, option: u32, answer: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    output.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    output.extend(option.to_be_bytes());
    output.extend(answer.to_be_bytes());
    output.extend((length as u32).to_be_bytes());
    parts.iter().for_each(|part| output.extend_from_slice(part));
}

struct Malformed;

enum Name<'a> {
    Text(&'a str),
    TooLong,
}

/// Reads numbers and names from the front of an option's data; none where it is too short.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn half(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A name behind its length.
    fn text(&mut self) -> Option<Name<'a>> {
        let length = self.word()?;
        let (text, rest) = self.0.split_at_checked(length as usize)?;
        self.0 = rest;
        if length > NAME_MAX {
            return Some(Name::TooLong);
        }
        str::from_utf8(text).ok().map(Name::Text)
    }
}
