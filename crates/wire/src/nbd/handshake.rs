//! The handshake ("Handshake", "Fixed newstyle negotiation"): from the server's greeting to the
//! export that the client selects.

use alloc::borrow::{Cow, ToOwned};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;

use super::constants::{
    self, BASE_ALLOCATION, BASE_ALLOCATION_ID, NAME_MAX, OPTION_MAGIC, OPTION_MAX,
    OPTION_REPLY_MAGIC, PAYLOAD_MAX, handshake_flag, info, option, option_reply, transmission_flag,
};

/// The maximum number of options of one client. A client that lists a thousand exports and asks for
/// information on each stays below.
const OPTIONS_MAX: u32 = 1024;

/// Bytes of replies after which the next option is not read: the caller sends them first.
const OUTPUT_MAX: usize = 64 << 10;

/// The preferred block size of every export, in bytes: whole pages need no copy anywhere.
const BLOCK_SIZE_PREFERRED: u32 = 4096;

/// Zero bytes behind the reply to `EXPORT_NAME`, unless the client declines them.
const ZEROES: usize = 124;

/// The exports that a client can select.
pub trait Exports {
    /// The server's own data on an export, which the handshake returns as it is.
    type Target;

    /// The export of this name; of the empty name, the default export.
    ///
    /// # Errors
    /// If there is none, or the client may not open it.
    fn find(&self, name: &str) -> Result<Export<Self::Target>, ExportError>;

    /// Calls `each` with the name and the description of every export that is listed.
    fn list(&self, each: &mut dyn FnMut(&str, &str));
}

/// Why an export is not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// There is no export of that name.
    Unknown,
    /// The client may not open the export, for this reason.
    Denied(String),
}

/// An export, as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export<T> {
    /// Its canonical name.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The server's own data on the export.
    pub target: T,
}

impl<T> Export<T> {
    /// The transmission flags that the client is sent.
    pub fn flags(&self, structured: bool) -> u16 {
        let mut flags =
            transmission_flag::HAS_FLAGS | transmission_flag::FLUSH | transmission_flag::FUA;
        flags |= transmission_flag::MULTI_CONN | transmission_flag::CACHE;
        flags |= match self.read_only {
            true => transmission_flag::READ_ONLY,
            false => transmission_flag::TRIM | transmission_flag::WRITE_ZEROES,
        };
        if structured { flags | transmission_flag::DF } else { flags }
    }
}

/// The state of TLS on a connection ("TLS support").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// `NOTLS` mode: the server refuses TLS.
    Off,
    /// `SELECTIVETLS` mode: the client may begin TLS.
    Selective,
    /// `FORCEDTLS` mode: before TLS, every option is refused but `STARTTLS` and `ABORT`.
    Forced,
    /// TLS has begun.
    Begun,
}

/// The result of a handshake: the export and the features that were negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated<T> {
    /// The selected export.
    pub export: Export<T>,
    /// Whether structured replies were negotiated.
    pub structured: bool,
    /// Whether the metadata context `base:allocation` was selected, which `BLOCK_STATUS` needs.
    pub base_allocation: bool,
}

/// The state of a connection after a step of its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeStep<T> {
    /// The handshake needs more bytes.
    More,
    /// The handshake is over: requests follow.
    Negotiated(Box<Negotiated<T>>),
    /// Once all replies are sent, the connection continues with TLS. The handshake goes on inside.
    StartTls,
    /// The client has ended the negotiation; replies that are queued may still be sent.
    Aborted,
}

/// Violations of the protocol: the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The client sets flags that were not offered.
    #[error("handshake flags {0:#x}, of which only 1 and 2 were offered")]
    Flags(u32),
    /// An option does not begin with the magic number.
    #[error("malformed option: it begins with {0:#018x}")]
    Magic(u64),
    /// An option's data is longer than [`OPTION_MAX`].
    #[error("option {option} has {length} bytes; the limit is {OPTION_MAX}")]
    TooLong {
        /// The option.
        option: u32,
        /// The length of its data, in bytes.
        length: u32,
    },
    /// The client has sent the maximum number of options without an end of the negotiation.
    #[error("{OPTIONS_MAX} options, and no export is selected")]
    TooMany,
    /// The client does not support fixed newstyle, in which options have replies.
    #[error("option {0} without fixed newstyle negotiation")]
    NotFixedNewstyle(u32),
    /// The client sends bytes without TLS behind `STARTTLS`; an attacker may have injected them.
    #[error("{0} bytes without TLS behind STARTTLS")]
    Plaintext(usize),
    /// `EXPORT_NAME`, which has no error reply, without the TLS that the server requires.
    #[error("EXPORT_NAME without TLS, which this port requires")]
    TlsRequired,
    /// `EXPORT_NAME`, which has no error reply, for an export that the client may not open.
    #[error("export {name:?}: {reason}")]
    Denied {
        /// The export.
        name: String,
        /// Why the client may not open it.
        reason: String,
    },
    /// `EXPORT_NAME`, which has no error reply, for an export that does not exist.
    #[error("there is no export {0:?}")]
    NoSuchExport(String),
}

/// The handshake of one client.
///
/// ```
/// use tidegate_wire::nbd::{Export, ExportError, Exports, Handshake, HandshakeStep, Tls};
/// struct NoExports;
/// impl Exports for NoExports {
///     type Target = ();
///     fn find(&self, _: &str) -> Result<Export<()>, ExportError> { Err(ExportError::Unknown) }
///     fn list(&self, _: &mut dyn FnMut(&str, &str)) {}
/// }
/// let mut output = Vec::new();
/// let mut handshake = Handshake::begin(Tls::Off, &mut output);
/// assert_eq!(output, *b"NBDMAGICIHAVEOPT\0\x03");
/// let mut input = &b"\0\0\0\x03IHAVEOPT\0\0\0\x02\0\0\0\0"[..];
/// let step = handshake.on_bytes(&mut input, &NoExports, &mut output);
/// assert_eq!(step, Ok(HandshakeStep::Aborted));
/// ```
#[derive(Debug)]
pub struct Handshake {
    awaited: Awaited,
    tls: Tls,
    /// Received bytes of the awaited item.
    held: Vec<u8>,
    fixed_newstyle: bool,
    zeroes: bool,
    structured: bool,
    /// The name of the export for which the client has selected the metadata context.
    context: Option<String>,
    /// How many options the client has sent.
    options: u32,
}

#[derive(Clone, Copy, Debug)]
enum Awaited {
    Flags,
    OptionHeader,
    OptionData { option: u32, length: u32 },
}

impl Handshake {
    /// Begins a handshake: appends the server's greeting to `output`.
    pub fn begin(tls: Tls, output: &mut Vec<u8>) -> Self {
        output.extend(constants::MAGIC.to_be_bytes());
        output.extend(OPTION_MAGIC.to_be_bytes());
        output.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        Self {
            awaited: Awaited::Flags,
            tls,
            held: Vec::new(),
            fixed_newstyle: false,
            zeroes: true,
            structured: false,
            context: None,
            options: 0,
        }
    }

    /// Takes the handshake's bytes from the front of `bytes`, and appends replies to `output`. The
    /// rest of `bytes` after [`HandshakeStep::Negotiated`] belongs to requests; after
    /// [`HandshakeStep::StartTls`] there is no rest. After [`HandshakeStep::More`] there is one if
    /// the replies are long: it is to be passed again once they are sent.
    ///
    /// # Errors
    /// If the client violates the protocol: close the connection.
    pub fn on_bytes<E: Exports>(
        &mut self,
        bytes: &mut &[u8],
        exports: &E,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep<E::Target>, HandshakeError> {
        loop {
            if output.len() > OUTPUT_MAX {
                return Ok(HandshakeStep::More);
            }
            let needed = match self.awaited {
                Awaited::Flags => 4,
                Awaited::OptionHeader => 16,
                Awaited::OptionData { length, .. } => length as usize,
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
                Awaited::Flags => self.on_flags(fields.u32().unwrap_or(0))?,
                Awaited::OptionHeader => {
                    let magic = fields.array().map_or(0, u64::from_be_bytes);
                    let [option, length] = [(); 2].map(|()| fields.u32().unwrap_or(0));
                    self.on_option_header(magic, option, length)?;
                }
                Awaited::OptionData { option, .. } => {
                    self.awaited = Awaited::OptionHeader;
                    let step = self.on_option(option, &held, exports, output)?;
                    match step {
                        HandshakeStep::More => {}
                        HandshakeStep::StartTls if !bytes.is_empty() => {
                            return Err(HandshakeError::Plaintext(bytes.len()));
                        }
                        step => return Ok(step),
                    }
                }
            }
        }
    }

    fn on_flags(&mut self, flags: u32) -> Result<(), HandshakeError> {
        if flags & !u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES) != 0 {
            return Err(HandshakeError::Flags(flags));
        }
        self.fixed_newstyle = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        self.zeroes = flags & u32::from(handshake_flag::NO_ZEROES) == 0;
        self.awaited = Awaited::OptionHeader;
        Ok(())
    }

    fn on_option_header(
        &mut self,
        magic: u64,
        option: u32,
        length: u32,
    ) -> Result<(), HandshakeError> {
        if magic != OPTION_MAGIC {
            return Err(HandshakeError::Magic(magic));
        }
        if length > OPTION_MAX {
            return Err(HandshakeError::TooLong { option, length });
        }
        if !self.fixed_newstyle && option != option::EXPORT_NAME {
            return Err(HandshakeError::NotFixedNewstyle(option));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(HandshakeError::TooMany);
        }
        self.awaited = Awaited::OptionData { option, length };
        Ok(())
    }

    /// Takes an option. Every option but `EXPORT_NAME` has an acknowledgement or an error as its
    /// last reply.
    fn on_option<E: Exports>(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &E,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep<E::Target>, HandshakeError> {
        let is_forced = self.tls == Tls::Forced;
        let result = match option {
            option::EXPORT_NAME if is_forced => return Err(HandshakeError::TlsRequired),
            option::EXPORT_NAME => return self.on_export_name(data, exports, output),
            option::ABORT => Ok(HandshakeStep::Aborted),
            option::STARTTLS => self.on_start_tls(data),
            _ if is_forced => refuse(option_reply::TLS_REQUIRED, "ask for encryption first"),
            option::INFO | option::GO => self.on_go(option, data, exports, output),
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                refuse(option_reply::INVALID, "this option has no data")
            }
            option::LIST => {
                exports.list(&mut |name, description| {
                    let length = (name.len() as u32).to_be_bytes();
                    let parts = [&length[..], name.as_bytes(), description.as_bytes()];
                    reply(output, option, option_reply::SERVER, &parts);
                });
                Ok(HandshakeStep::More)
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                Ok(HandshakeStep::More)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.on_context(option, data, exports, output)
            }
            _ => refuse(option_reply::UNSUPPORTED, "this option is not known"),
        };
        match result {
            Ok(step) => {
                reply(output, option, option_reply::ACK, &[]);
                Ok(step)
            }
            Err(OptionError(kind, message)) => {
                reply(output, option, kind, &[message.as_bytes()]);
                Ok(HandshakeStep::More)
            }
        }
    }

    /// `STARTTLS`. Options negotiated without TLS are forgotten: an attacker may have sent them.
    fn on_start_tls<T>(&mut self, data: &[u8]) -> Result<HandshakeStep<T>, OptionError> {
        match self.tls {
            Tls::Off => refuse(option_reply::UNSUPPORTED, "this port is not encrypted"),
            Tls::Begun => refuse(option_reply::INVALID, "the connection is encrypted"),
            _ if !data.is_empty() => refuse(option_reply::INVALID, "this option has no data"),
            Tls::Selective | Tls::Forced => {
                self.tls = Tls::Begun;
                (self.structured, self.context) = (false, None);
                Ok(HandshakeStep::StartTls)
            }
        }
    }

    /// `EXPORT_NAME`: the reply cannot be an error.
    fn on_export_name<E: Exports>(
        &mut self,
        data: &[u8],
        exports: &E,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep<E::Target>, HandshakeError> {
        let name = String::from_utf8_lossy(&data[..data.len().min(NAME_MAX as usize)]);
        let is_name = data.len() <= NAME_MAX as usize;
        let found = if is_name { exports.find(&name) } else { Err(ExportError::Unknown) };
        let export = found.map_err(|error| {
            let name = name.chars().take(SHOWN).collect();
            match error {
                ExportError::Unknown => HandshakeError::NoSuchExport(name),
                ExportError::Denied(reason) => HandshakeError::Denied { name, reason },
            }
        })?;
        output.extend(export.size.to_be_bytes());
        output.extend(export.flags(self.structured).to_be_bytes());
        if self.zeroes {
            output.resize(output.len() + ZEROES, 0);
        }
        Ok(self.negotiated(&name, export))
    }

    fn negotiated<T>(&self, name: &str, export: Export<T>) -> HandshakeStep<T> {
        // A context that was selected for one export is not selected for another.
        let base_allocation = self.context.as_deref() == Some(name);
        let structured = self.structured;
        HandshakeStep::Negotiated(Box::new(Negotiated { export, structured, base_allocation }))
    }

    /// `INFO` and `GO`.
    fn on_go<E: Exports>(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &E,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep<E::Target>, OptionError> {
        let mut fields = Fields(data);
        let parsed = fields.text().and_then(|name| {
            let count = usize::from(fields.array().map(u16::from_be_bytes)?);
            (fields.0.len() == count * 2).then_some((name, fields.0))
        });
        let (name, wanted) = match parsed {
            Some((Name::Text(name), wanted)) => (name, wanted),
            Some((Name::TooLong, _)) => refuse(option_reply::TOO_BIG, "the name is too long")?,
            None => refuse(option_reply::INVALID, "this is no name and list of numbers")?,
        };
        let export = exports.find(name).map_err(|error| OptionError::of(error, name))?;
        let wants = |kind: u16| wanted.chunks_exact(2).any(|two| two == kind.to_be_bytes());
        if wants(info::NAME) {
            let parts = [&info::NAME.to_be_bytes()[..], export.name.as_bytes()];
            reply(output, option, option_reply::INFO, &parts);
        }
        if wants(info::DESCRIPTION) && !export.description.is_empty() {
            let parts = [&info::DESCRIPTION.to_be_bytes()[..], export.description.as_bytes()];
            reply(output, option, option_reply::INFO, &parts);
        }
        if wants(info::BLOCK_SIZE) {
            let sizes = [1, BLOCK_SIZE_PREFERRED, PAYLOAD_MAX].map(u32::to_be_bytes);
            let parts = [&info::BLOCK_SIZE.to_be_bytes()[..], sizes.as_flattened()];
            reply(output, option, option_reply::INFO, &parts);
        }
        let kind = info::EXPORT.to_be_bytes();
        let (size, flags) = (export.size.to_be_bytes(), export.flags(self.structured));
        reply(output, option, option_reply::INFO, &[&kind, &size, &flags.to_be_bytes()]);
        Ok(match option {
            option::GO => self.negotiated(name, export),
            _ => HandshakeStep::More,
        })
    }

    /// `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn on_context<E: Exports>(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &E,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep<E::Target>, OptionError> {
        let is_set = option == option::SET_META_CONTEXT;
        if is_set {
            self.context = None;
        }
        if !self.structured {
            return refuse(option_reply::INVALID, "this needs structured replies");
        }
        let Some((name, queries)) = contexts(data) else {
            return refuse(option_reply::INVALID, "this is no name and list of contexts");
        };
        exports.find(name).map_err(|error| OptionError::of(error, name))?;
        let is_found = queries.iter().any(|query| match is_set {
            true => *query == BASE_ALLOCATION,
            false => BASE_ALLOCATION == *query || *query == "base:",
        });
        if is_found || (!is_set && queries.is_empty()) {
            let number = if is_set { BASE_ALLOCATION_ID } else { 0 };
            let parts = [&number.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()];
            reply(output, option, option_reply::META_CONTEXT, &parts);
        }
        if is_found && is_set {
            self.context = Some(name.to_owned());
        }
        Ok(HandshakeStep::More)
    }
}

/// The export's name and the queries of a request for metadata contexts.
fn contexts(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut fields = Fields(data);
    let Name::Text(name) = fields.text()? else { return None };
    let count = fields.u32()?;
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

/// The error reply to an option: its type and text.
struct OptionError(u32, Cow<'static, str>);

impl OptionError {
    fn of(error: ExportError, name: &str) -> Self {
        match error {
            ExportError::Unknown => {
                let shown: String = name.chars().take(SHOWN).collect();
                Self(option_reply::UNKNOWN, format!("there is no export {shown:?}").into())
            }
            ExportError::Denied(reason) => Self(option_reply::POLICY, reason.into()),
        }
    }
}

fn refuse<T>(kind: u32, message: &'static str) -> Result<T, OptionError> {
    Err(OptionError(kind, message.into()))
}

/// Appends a reply to an option.
fn reply(output: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    output.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    output.extend(option.to_be_bytes());
    output.extend(kind.to_be_bytes());
    output.extend((length as u32).to_be_bytes());
    parts.iter().for_each(|part| output.extend_from_slice(part));
}

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

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A name behind its length.
    fn text(&mut self) -> Option<Name<'a>> {
        let length = self.u32()?;
        let (text, rest) = self.0.split_at_checked(length as usize)?;
        self.0 = rest;
        if length > NAME_MAX {
            return Some(Name::TooLong);
        }
        str::from_utf8(text).ok().map(Name::Text)
    }
}
