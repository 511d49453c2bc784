//! memcached's text protocol, as a proxy parses it: the boundaries of requests and replies, and the
//! keys of requests.
//!
//! **Problem.** Clients pipeline text and meta commands over one connection. Each key is stored at
//! one of several nodes, and nodes reply in any order. The client must receive exactly the bytes
//! that one memcached would send, in the order of its requests.
//!
//! **Model.** Most of a command does not matter to a proxy: flags, exptimes and data blocks are
//! forwarded as they came. The *boundary* matters. If proxy and node disagree about the end of a
//! request, the next bytes are data to one and a command to the other. So a request is forwarded
//! only if every memcached ends it at the same byte. All other requests get memcached's own error
//! lines here, and never reach a node.
//!
//! **Mechanism.** [`request::parse`] parses the first request of a client's input.
//! [`pipeline::Pipeline`] is the state of one client's connection: it forwards requests, or parts
//! of them, to the nodes that own the keys, takes their replies in any order, and returns them in
//! the client's. [`reply::Boundary`] finds the end of memcached's reply to a request.
//!
//! The specification is `doc/protocol.txt` of <https://github.com/memcached/memcached>. Section
//! names in this folder are its headings.
//!
//! **What differs from memcached 1.6**, on purpose:
//!
//! - NUL, tabs and the like in a command line are refused, with the value behind it: memcached
//!   stops at some and skips others before numbers. Other control characters are as good in keys
//!   as any; memaslap has them there.
//! - Numbers of `set` and `ms` are digits, without `+`, and fit their type.
//! - The value of a storage command is never read as commands. Where the line says how long it is,
//!   it is skipped with a line that is refused: memcached does not skip it if flags are no number,
//!   the key is too long or an `ms` has too many flags. Where the line does not say it, because a
//!   word is missing, is one too many or is no number, the connection ends.
//! - A line of more than 2 KiB that asks for no keys ends the connection, wherever packets end;
//!   memcached does so if it comes in pieces. A line that asks for keys has at most 1 MiB.
//! - The value of an `ms` that is too large is refused, and the old value deleted, before the
//!   flags are parsed.
//! - The binary protocol ends the connection, at its first byte.
//! - Commands about the server (`slabs`, `lru`, `watch`, `shutdown`, …) are unknown.

use tidegate_model::Operation;

mod order;
pub mod pipeline;
pub mod reply;
pub mod request;
pub mod split;

/// The longest key, in bytes; of a key in base64, the longest text.
pub const KEY_MAX: usize = 250;

/// The longest line of a command that does not ask for keys, in bytes, with its end.
pub const LINE_MAX: usize = 2_048;

/// The longest line of a command that asks for keys, in bytes, with its end: 4,000 of the longest.
pub const LINE_OF_KEYS_MAX: usize = 1 << 20;

/// A command of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the command of that name")]
pub enum Command {
    Get,
    Gets,
    Gat,
    Gats,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Increment,
    Decrement,
    Touch,
    /// `mg`
    MetaGet,
    /// `ms`
    MetaSet,
    /// `md`
    MetaDelete,
    /// `ma`
    MetaArithmetic,
    /// `me`
    MetaDebug,
    /// `mn`
    MetaNoop,
    FlushAll,
    Version,
    Verbosity,
    Stats,
    Quit,
}

impl Command {
    /// The command of this name; none if it is unknown or is not for clients of a proxy.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"get" => Self::Get,
            b"set" => Self::Set,
            b"mg" => Self::MetaGet,
            b"ms" => Self::MetaSet,
            b"gets" => Self::Gets,
            b"gat" => Self::Gat,
            b"gats" => Self::Gats,
            b"add" => Self::Add,
            b"replace" => Self::Replace,
            b"append" => Self::Append,
            b"prepend" => Self::Prepend,
            b"cas" => Self::Cas,
            b"delete" => Self::Delete,
            b"incr" => Self::Increment,
            b"decr" => Self::Decrement,
            b"touch" => Self::Touch,
            b"md" => Self::MetaDelete,
            b"ma" => Self::MetaArithmetic,
            b"me" => Self::MetaDebug,
            b"mn" => Self::MetaNoop,
            b"flush_all" => Self::FlushAll,
            b"version" => Self::Version,
            b"verbosity" => Self::Verbosity,
            b"stats" => Self::Stats,
            b"quit" => Self::Quit,
            _ => return None,
        })
    }

    /// The operation on its keys; none if it is about no key.
    pub const fn operation(self) -> Option<Operation> {
        Some(match self {
            Self::Get | Self::Gets | Self::Gat | Self::Gats => Operation::Get,
            Self::MetaGet | Self::MetaDebug => Operation::Get,
            Self::Set | Self::Add | Self::Replace | Self::Append | Self::Prepend => Operation::Put,
            Self::Cas | Self::Increment | Self::Decrement | Self::Touch => Operation::Put,
            Self::MetaSet | Self::MetaArithmetic => Operation::Put,
            Self::Delete | Self::MetaDelete => Operation::Delete,
            Self::MetaNoop | Self::FlushAll | Self::Version | Self::Verbosity => return None,
            Self::Stats | Self::Quit => return None,
        })
    }

    /// The shape of its reply if it is not quiet.
    pub const fn shape(self) -> reply::Shape {
        match self {
            Self::Get | Self::Gets | Self::Gat | Self::Gats => reply::Shape::Values,
            Self::MetaGet | Self::MetaSet | Self::MetaDelete => reply::Shape::Meta,
            Self::MetaArithmetic | Self::MetaDebug => reply::Shape::Meta,
            _ => reply::Shape::Line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_an_operation_and_a_reply_shape() {
        use reply::Shape::{Line, Meta, Values};
        let (get, put) = (Some(Operation::Get), Some(Operation::Put));
        let table = [
            ("get gets gat gats", get, Values),
            ("mg me", get, Meta),
            ("set add replace append prepend cas incr decr touch", put, Line),
            ("ms ma", put, Meta),
            ("delete", Some(Operation::Delete), Line),
            ("md", Some(Operation::Delete), Meta),
            ("mn flush_all version verbosity stats quit", None, Line),
        ];
        let mut commands = alloc::vec::Vec::new();
        for (names, operation, shape) in table {
            for name in names.split(' ') {
                let command = Command::from_name(name.as_bytes());
                let found = command.map(|command| (command.operation(), command.shape()));
                assert_eq!(found, Some((operation, shape)), "{name}");
                commands.extend(command);
            }
        }
        assert!(commands.iter().enumerate().all(|(at, command)| !commands[..at].contains(command)));
        for name in ["", "GET", "ge", "gett", "slabs", "watch"] {
            assert_eq!(Command::from_name(name.as_bytes()), None, "{name}");
        }
    }
}
