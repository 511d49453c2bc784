//! Parser of requests ("Commands", "Storage commands", "Retrieval command", "Meta Commands").
//!
//! Nothing is copied: a [`Request`] is a view of the bytes. A small `get` takes two passes over its
//! line, one for its end and one for its words, and no more.

use alloc::vec::Vec;

use super::{Command, KEY_MAX, LINE_MAX, LINE_OF_KEYS_MAX};

/// The default maximum of a value's length, in bytes: 1 MiB, as in memcached.
pub const VALUE_MAX_DEFAULT: u32 = 1 << 20;

/// The largest maximum of a value's length, in bytes: 128 MiB, as in memcached with `-I 128m`.
pub const VALUE_MAX_MAX: u32 = 128 << 20;

/// How many flags an `ms` may have: memcached refuses more, and then reads the value as commands.
const META_SET_FLAGS_MAX: usize = 16;

/// The first byte of every request in the binary protocol, and of none in this one.
const BINARY: u8 = 0x80;

const ERROR: &str = "ERROR\r\n";
const BAD_LINE: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const TOO_MANY_FLAGS: &str = "CLIENT_ERROR options flags too long\r\n";

/// The parsed beginning of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The request is incomplete.
    Incomplete {
        /// The least length of input, in bytes, with which to parse again; more than there is.
        needed: usize,
    },
    /// A request.
    Request(Request<'a>),
    /// A request that is invalid or refused.
    Refused {
        /// The reply to the client; empty if it wants none.
        text: &'static str,
        /// The length of the request, in bytes. Not all of it may have arrived.
        length: u64,
    },
    /// A `set` or `ms` whose value is too large: refused, and the value that is stored under its
    /// key has to be deleted. A client that ignores the error would read the old value for ever.
    TooLarge {
        /// The request, with its line alone.
        request: Request<'a>,
        /// The reply to the client; empty if it wants none.
        text: &'static str,
        /// The length of the request, in bytes. Not all of it may have arrived.
        length: u64,
    },
    /// The connection has to be closed.
    Close {
        /// The reply to the client before the connection is closed; empty for none.
        text: &'static str,
        /// Why it is closed.
        reason: CloseReason,
    },
}

impl Parsed<'_> {
    /// Closes the connection without a reply.
    const fn close(reason: CloseReason) -> Self {
        Self::Close { text: "", reason }
    }
}

/// Why a connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// A line is longer than [`LINE_MAX`], or [`LINE_OF_KEYS_MAX`].
    #[error("malformed request: the line is too long")]
    LineTooLong,
    /// The request is HTTP, as a browser sends it that was led here.
    #[error("a request of HTTP")]
    Http,
    /// A request is in memcached's binary protocol.
    #[error("a request of memcached's binary protocol; only the text protocol is supported")]
    Binary,
    /// The line of a storage command does not say how many bytes of value follow it.
    #[error(
        "malformed storage command: the length of its value is unknown, and the value must not be \
         read as commands"
    )]
    ValueLength,
}

/// A request that every memcached accepts, and ends at the same byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its command.
    pub command: Command,
    /// The whole request: the line, and the data block with its end.
    pub bytes: &'a [u8],
    /// Success has no reply: `noreply`, or the flag `q`.
    pub quiet: bool,
    /// The number of its keys.
    pub keys: u32,
    /// The exptime of `gat` and `gats`, with the blanks before it.
    pub(super) exptime: &'a [u8],
    /// The keys, with blanks between them.
    pub(super) key_list: &'a [u8],
    /// The key is in base64.
    pub(super) base64: bool,
}

impl<'a> Request<'a> {
    /// The keys of the request, as they are written.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        words(self.key_list)
    }

    /// The first key of the request as memcached stores it: as written, or decoded from base64.
    /// `space` takes the decoded key.
    pub fn stored_key<'s>(&self, space: &'s mut [u8; KEY_MAX]) -> &'s [u8]
    where
        'a: 's,
    {
        if self.base64
            && let Some(length) = decode_base64(self.key_list, space)
        {
            return &space[..length];
        }
        self.keys().next().unwrap_or_default()
    }

    /// A request that deletes the value under its first key.
    pub(super) fn deletion(&self) -> Vec<u8> {
        let key = self.keys().next().unwrap_or_default();
        match self.base64 {
            true => [b"md ", key, b" b\r\n"].concat(),
            false => [b"delete ", key, b"\r\n"].concat(),
        }
    }
}

/// Parses the first request of `input`. Values may have up to `value_max` bytes.
///
/// ```
/// use tidegate_wire::memcached::Command;
/// use tidegate_wire::memcached::request::{Parsed, VALUE_MAX_DEFAULT, parse};
/// let input = b"set planet 0 0 5\r\nearth\r\nget planet\r\n";
/// let Parsed::Request(set) = parse(input, VALUE_MAX_DEFAULT) else { panic!() };
/// assert_eq!((set.command, set.bytes.len()), (Command::Set, 25));
/// assert_eq!(set.keys().collect::<Vec<_>>(), [b"planet"]);
/// ```
pub fn parse(input: &[u8], value_max: u32) -> Parsed<'_> {
    if input.first() == Some(&BINARY) {
        return Parsed::close(CloseReason::Binary);
    }
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_OF_KEYS_MAX)]) else {
        return match input.len() >= longest(input) {
            true => Parsed::close(CloseReason::LineTooLong),
            false => Parsed::Incomplete { needed: input.len() + 1 },
        };
    };
    if end >= LINE_MAX && end >= longest(input) {
        return Parsed::close(CloseReason::LineTooLong);
    }
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let mut rest = line;
    let name = word(&mut rest);
    let parser = Parser { input, value_max, line: end + 1, is_clean: is_clean(line) };
    let Some(command) = Command::from_name(name) else {
        let last = words(rest).last().unwrap_or_default();
        return match last.starts_with(b"HTTP/") {
            true => Parsed::close(CloseReason::Http),
            false => parser.refused(ERROR),
        };
    };
    match command {
        Command::Get | Command::Gets => parser.keys(command, &[], rest),
        Command::Gat | Command::Gats => {
            let before = rest;
            let exptime = word(&mut rest);
            match is_exptime(exptime) {
                true => parser.keys(command, &before[..before.len() - rest.len()], rest),
                false if exptime.is_empty() => parser.refused(ERROR),
                false => parser.refused(BAD_EXPTIME),
            }
        }
        Command::Set
        | Command::Add
        | Command::Replace
        | Command::Append
        | Command::Prepend
        | Command::Cas => parser.store(command, rest),
        Command::MetaSet => parser.meta_set(rest),
        Command::MetaGet | Command::MetaDelete | Command::MetaArithmetic | Command::MetaDebug => {
            parser.meta(command, rest)
        }
        Command::Delete => parser.one_line(command, rest, 1..=3),
        Command::Increment | Command::Decrement | Command::Touch => {
            parser.one_line(command, rest, 2..=3)
        }
        Command::FlushAll | Command::Verbosity => parser.without_keys(command, rest),
        Command::MetaNoop | Command::Version | Command::Stats | Command::Quit => {
            parser.request(command, end + 1, false, &[])
        }
    }
}

/// The maximum length of a line that begins like this.
fn longest(input: &[u8]) -> usize {
    let mut rest = &input[..input.len().min(LINE_MAX)];
    match word(&mut rest) {
        b"get" | b"gets" | b"gat" | b"gats" => LINE_OF_KEYS_MAX,
        _ => LINE_MAX,
    }
}

/// One line, and the input behind it.
#[derive(Clone, Copy)]
struct Parser<'a> {
    input: &'a [u8],
    value_max: u32,
    /// The length of the line, with its end.
    line: usize,
    /// Every memcached parses its bytes in the same way ([`is_clean`]).
    is_clean: bool,
}

impl<'a> Parser<'a> {
    fn refused(&self, text: &'static str) -> Parsed<'a> {
        Parsed::Refused { text, length: self.line as u64 }
    }

    fn request(&self, command: Command, length: usize, quiet: bool, key: &'a [u8]) -> Parsed<'a> {
        let (keys, key_list) = (u32::from(!key.is_empty()), key);
        let (bytes, exptime, base64) = (&self.input[..length], &[][..], false);
        match self.is_clean {
            true => {
                Parsed::Request(Request { command, bytes, quiet, keys, exptime, key_list, base64 })
            }
            false => Parsed::Refused { text: BAD_LINE, length: length as u64 },
        }
    }

    /// `get KEY...`, `gat EXPTIME KEY...`.
    fn keys(&self, command: Command, exptime: &'a [u8], key_list: &'a [u8]) -> Parsed<'a> {
        let (mut keys, mut longest) = (0, 0);
        for key in words(key_list) {
            keys += 1;
            longest = longest.max(key.len());
        }
        let (bytes, quiet, base64) = (&self.input[..self.line], false, false);
        match keys {
            _ if !self.is_clean || longest > KEY_MAX => self.refused(BAD_LINE),
            0 if exptime.is_empty() => self.refused(ERROR),
            0 => self.refused("END\r\n"),
            _ => {
                Parsed::Request(Request { command, bytes, quiet, keys, exptime, key_list, base64 })
            }
        }
    }

    /// Refuses a storage command whose line does not say where its value ends. To go on would read
    /// the value as commands, and the author of the value would choose the commands.
    fn unbounded(&self, text: &'static str) -> Parsed<'a> {
        Parsed::Close { text, reason: CloseReason::ValueLength }
    }

    /// `set KEY FLAGS EXPTIME LENGTH [noreply]`, `cas KEY FLAGS EXPTIME LENGTH UNIQUE [noreply]`.
    ///
    /// The length is believed only in a line with the right number of words: with a blank in the
    /// key, another word would stand in its place. Where it is believed, the value is skipped
    /// whatever else is wrong with the line.
    fn store(&self, command: Command, rest: &'a [u8]) -> Parsed<'a> {
        let mut words = words(rest);
        let [key, flags, exptime, length] = [(); 4].map(|()| words.next().unwrap_or_default());
        let unique = if command == Command::Cas { words.next().unwrap_or_default() } else { b"0" };
        let (last, more) = (words.next().unwrap_or_default(), words.next().is_some());
        let quiet = last == b"noreply";
        if length.is_empty() || unique.is_empty() || more {
            return self.unbounded(ERROR);
        }
        let unless_quiet = |text| if quiet { "" } else { text };
        let Some(length) = number(length, VALUE_LENGTH_MAX).filter(|_| quiet || last.is_empty())
        else {
            return self.unbounded(unless_quiet(BAD_LINE));
        };
        let are_numbers = number(flags, u64::from(u32::MAX)).is_some()
            && is_exptime(exptime)
            && number(unique, u64::MAX).is_some();
        let is_valid = are_numbers && key.len() <= KEY_MAX;
        self.skip_unless(is_valid, length, unless_quiet(BAD_LINE))
            .unwrap_or_else(|| self.data_block(command, length, quiet, unless_quiet, key))
    }

    /// `ms KEY LENGTH FLAG...`. The length is believed if what follows it are flags: letters.
    fn meta_set(&self, rest: &'a [u8]) -> Parsed<'a> {
        let mut words = words(rest);
        let (Some(key), length) = (words.next(), words.next()) else {
            return self.unbounded(ERROR);
        };
        let are_flags = words.clone().all(|word| word[0].is_ascii_alphabetic());
        let length = length.and_then(|length| number(length, VALUE_LENGTH_MAX));
        let Some(length) = length.filter(|_| are_flags) else {
            return self.unbounded(BAD_LINE);
        };
        let Flags { count, quiet, base64 } = Flags::of(words);
        self.skip_unless(key.len() <= KEY_MAX, length, BAD_LINE)
            .or_else(|| self.skip_unless(count <= META_SET_FLAGS_MAX, length, TOO_MANY_FLAGS))
            .unwrap_or_else(|| {
                with_base64(
                    self.data_block(Command::MetaSet, length, quiet, |text| text, key),
                    base64,
                )
            })
    }

    /// Refuses the line with the value behind it, unless it is valid.
    fn skip_unless(&self, is_valid: bool, length: u64, text: &'static str) -> Option<Parsed<'a>> {
        (!is_valid).then(|| Parsed::Refused { text, length: self.line as u64 + length + 2 })
    }

    /// The data block that follows the line.
    fn data_block(
        &self,
        command: Command,
        length: u64,
        quiet: bool,
        unless_quiet: impl Fn(&'static str) -> &'static str,
        key: &'a [u8],
    ) -> Parsed<'a> {
        let all = self.line as u64 + length + 2;
        if !self.is_clean {
            return Parsed::Refused { text: unless_quiet(BAD_LINE), length: all };
        }
        if length > u64::from(self.value_max) {
            let text = unless_quiet(TOO_LARGE);
            return match (command, self.request(command, self.line, quiet, key)) {
                (Command::Set | Command::MetaSet, Parsed::Request(request)) => {
                    Parsed::TooLarge { request, text, length: all }
                }
                _ => Parsed::Refused { text, length: all },
            };
        }
        // It fits: a value is at most 4 GiB, and this is for machines with 64 bits.
        let needed = all as usize;
        if self.input.len() < needed {
            return Parsed::Incomplete { needed };
        }
        match self.input[..needed].ends_with(b"\r\n") {
            true => self.request(command, needed, quiet, key),
            false => Parsed::Refused { text: unless_quiet(BAD_CHUNK), length: all },
        }
    }

    /// `mg KEY FLAG...`, and the like.
    fn meta(&self, command: Command, rest: &'a [u8]) -> Parsed<'a> {
        let mut words = words(rest);
        let Some(key) = words.next() else {
            return self.refused(if command == Command::MetaDebug { BAD_LINE } else { ERROR });
        };
        if key.len() > KEY_MAX {
            return self.refused(BAD_LINE);
        }
        let Flags { quiet, base64, .. } = Flags::of(words);
        with_base64(self.request(command, self.line, quiet, key), base64)
    }

    /// `delete KEY [0] [noreply]`, `incr KEY NUMBER [noreply]`, `touch KEY EXPTIME [noreply]`: one
    /// line, to which one line is the answer, whatever the words mean.
    fn one_line(
        &self,
        command: Command,
        rest: &'a [u8],
        allowed: core::ops::RangeInclusive<usize>,
    ) -> Parsed<'a> {
        let mut all = words(rest);
        let [key, first, second] = [(); 3].map(|()| all.next().unwrap_or_default());
        let count = words(rest).count();
        let quiet = [first, second][usize::from(count > 2)] == b"noreply";
        if !allowed.contains(&count) {
            return self.refused(ERROR);
        }
        let is_odd =
            !matches!((first, second), (b"" | b"0" | b"noreply", b"") | (b"0", b"noreply"));
        let complaint = match command {
            Command::Delete if is_odd => BAD_DELETE,
            _ if key.len() > KEY_MAX || !self.is_clean => BAD_LINE,
            _ => return self.request(command, self.line, quiet, key),
        };
        self.refused(if quiet { "" } else { complaint })
    }

    /// `flush_all [TIME] [noreply]`, `verbosity LEVEL [noreply]`.
    fn without_keys(&self, command: Command, rest: &'a [u8]) -> Parsed<'a> {
        let is_flush = command == Command::FlushAll;
        let count = words(rest).count();
        if count > 2 || (count == 0 && !is_flush) {
            return self.refused(ERROR);
        }
        let quiet = words(rest).last() == Some(b"noreply");
        let argument = words(rest).next().filter(|word| *word != b"noreply");
        match argument.is_none_or(is_exptime) {
            true => self.request(command, self.line, quiet, &[]),
            false if quiet => self.refused(""),
            false => self.refused(if is_flush { BAD_EXPTIME } else { BAD_LINE }),
        }
    }
}

/// The largest length that a client may claim for a value without a syntax error: `INT_MAX - 2`, as
/// in memcached.
const VALUE_LENGTH_MAX: u64 = i32::MAX as u64 - 2;

/// The flags of a meta command that matter here. Only their first letter counts.
struct Flags {
    count: usize,
    quiet: bool,
    base64: bool,
}

impl Flags {
    fn of<'a>(words: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut flags = Self { count: 0, quiet: false, base64: false };
        for word in words {
            flags.count += 1;
            match word.first() {
                Some(b'q') => flags.quiet = true,
                Some(b'b') => flags.base64 = true,
                _ => {}
            }
        }
        flags
    }
}

fn with_base64(step: Parsed<'_>, base64: bool) -> Parsed<'_> {
    match step {
        Parsed::Request(request) => Parsed::Request(Request { base64, ..request }),
        Parsed::TooLarge { request, text, length } => {
            Parsed::TooLarge { request: Request { base64, ..request }, text, length }
        }
        step => step,
    }
}

/// Takes the first word off `rest`; empty at the end. Only blanks are between words.
fn word<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let line = *rest;
    let start = line.iter().position(|byte| *byte != b' ').unwrap_or(line.len());
    let line = &line[start..];
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    *rest = &line[end..];
    &line[..end]
}

/// The words of `text`.
pub(super) fn words(mut text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    core::iter::from_fn(move || Some(word(&mut text)).filter(|word| !word.is_empty()))
}

/// No byte is NUL, where C's strings end, or one of the blanks that C's numbers may begin with: tab
/// to carriage return. Written so that the compiler looks at many bytes at once.
fn is_clean(line: &[u8]) -> bool {
    let is_odd = |byte: u8| (byte == 0) | (byte.wrapping_sub(b'\t') <= b'\r' - b'\t');
    !line.iter().fold(false, |found, byte| found | is_odd(*byte))
}

/// A number in digits, at most `max`.
pub(super) fn number(word: &[u8], max: u64) -> Option<u64> {
    if word.is_empty() || word.len() > 20 {
        return None;
    }
    let mut number: u64 = 0;
    for byte in word {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    (number <= max).then_some(number)
}

/// Whether the word is an exptime ("Expiration times"): a number of 32 bits with its sign.
fn is_exptime(word: &[u8]) -> bool {
    let (digits, max) = match word.strip_prefix(b"-") {
        Some(digits) => (digits, u64::from(i32::MIN.unsigned_abs())),
        None => (word, i32::MAX as u64),
    };
    number(digits, max).is_some()
}

/// Decodes base64 `text` into the beginning of `space`, and returns the number of bytes. It returns
/// none for invalid text, about which the node is to complain.
fn decode_base64(text: &[u8], space: &mut [u8; KEY_MAX]) -> Option<usize> {
    let body = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) || text.len() > KEY_MAX {
        return None;
    }
    let (mut bits, mut count, mut length) = (0u32, 0, 0);
    for digit in body {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            space[length] = (bits >> count) as u8;
            length += 1;
        }
    }
    Some(length)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
