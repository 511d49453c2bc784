//! The requests that an export accepts ("Request types"): each becomes a command for the nodes, a
//! reply without work, the end of the connection, or an error for the client.

use super::constants::{Errno, PAYLOAD_MAX, command, command_flag};
use super::handshake::Negotiated;
use super::request::Request;

/// The server's action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Carry the command out.
    Submit(Command),
    /// Reply that the request has succeeded; it needs no work.
    Acknowledge,
    /// Complete all earlier requests and close the connection.
    Disconnect,
}

/// A command, with the flags that change its effect. `fua` asks for durability before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the command of that name")]
pub enum Command {
    Read,
    Write {
        fua: bool,
    },
    Flush,
    Trim {
        fua: bool,
    },
    /// With `no_hole`, the zeros stay allocated.
    WriteZeroes {
        no_hole: bool,
        fua: bool,
    },
    /// With `one`, the reply has one extent.
    BlockStatus {
        one: bool,
    },
}

/// An error in reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error's number.
    pub errno: Errno,
    /// The error's text, for clients with structured replies.
    pub message: &'static str,
}

impl<T> Negotiated<T> {
    /// Returns the action on `request`.
    ///
    /// # Errors
    /// The error reply, if the export does not accept the request. The connection continues.
    pub fn admit<B>(&self, request: &Request<B>) -> Result<Action, Refusal> {
        let Request { command, flags, offset, length, .. } = *request;
        let has = |flag| flags & flag != 0;
        let fua = has(command_flag::FUA);
        let (action, allowed) = match command {
            command::DISC => return Ok(Action::Disconnect),
            command::READ => {
                (Action::Submit(Command::Read), self.when_structured(command_flag::DF))
            }
            command::WRITE => (Action::Submit(Command::Write { fua }), 0),
            command::FLUSH => (Action::Submit(Command::Flush), 0),
            command::TRIM => (Action::Submit(Command::Trim { fua }), 0),
            command::CACHE => (Action::Acknowledge, 0),
            command::WRITE_ZEROES => {
                let no_hole = has(command_flag::NO_HOLE);
                (Action::Submit(Command::WriteZeroes { no_hole, fua }), command_flag::NO_HOLE)
            }
            command::BLOCK_STATUS if self.base_allocation => {
                let one = has(command_flag::REQ_ONE);
                (Action::Submit(Command::BlockStatus { one }), command_flag::REQ_ONE)
            }
            command::BLOCK_STATUS => return refuse(Errno::Invalid, "no context was chosen"),
            _ => return refuse(Errno::Invalid, "the command is not known"),
        };
        if flags & !(command_flag::FUA | allowed) != 0 {
            return refuse(Errno::Invalid, "a flag is not known, or not for this command");
        }
        if command == command::FLUSH {
            return match (offset, length) {
                (0, 0) => Ok(action),
                _ => refuse(Errno::Invalid, "a flush has neither offset nor length"),
            };
        }
        let writes = matches!(command, command::WRITE | command::WRITE_ZEROES | command::TRIM);
        if writes && self.export.read_only {
            return refuse(Errno::Perm, "the export is read-only");
        }
        if offset.checked_add(length.into()).is_none_or(|end| end > self.export.size) {
            let errno = match command {
                command::WRITE | command::WRITE_ZEROES => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            return refuse(errno, "the range ends beyond the export");
        }
        match command {
            command::READ if length > PAYLOAD_MAX => {
                let errno = if has(command_flag::DF) { Errno::Overflow } else { Errno::Invalid };
                refuse(errno, "more than 32 MiB at once")
            }
            command::BLOCK_STATUS if length == 0 => refuse(Errno::Invalid, "the range is empty"),
            _ if length == 0 => Ok(Action::Acknowledge),
            _ => Ok(action),
        }
    }

    fn when_structured(&self, flag: u16) -> u16 {
        if self.structured { flag } else { 0 }
    }
}

fn refuse<T>(errno: Errno, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, message })
}
