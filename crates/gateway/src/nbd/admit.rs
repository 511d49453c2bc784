//! Translation of a client's request to an operation of nodes, or to a refusal.

use tidegate_fabric::service::Command;

use super::handshake::Entered;
use super::request::Request;
use super::wire::{Errno, REQUEST_MAX, command, flag};

/// The gateway's action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the nodes.
    Submit(Command),
    /// Nothing but to answer that it is done.
    Acknowledge,
    /// Finish what was asked before, and close.
    Leave,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub errno: Errno,
    /// The same in words.
    pub message: &'static str,
}

impl Entered {
    /// Returns the action on `request`.
    ///
    /// # Errors
    /// The refusal to send if the client asks for something that is not allowed here. The client
    /// may go on with other requests.
    pub fn admit(&self, request: &Request) -> Result<Action, Refusal> {
        let Request { command, flags, offset, length, .. } = *request;
        let durable = flags & flag::FUA != 0;
        let (action, more_flags) = match command {
            command::DISC => return Ok(Action::Leave),
            command::READ => (Action::Submit(Command::Read), self.when_structured(flag::DF)),
            command::WRITE => (Action::Submit(Command::Write { durable }), 0),
            command::FLUSH => (Action::Submit(Command::Flush), 0),
            command::TRIM => (Action::Submit(Command::Discard { durable }), 0),
            command::CACHE => (Action::Acknowledge, 0),
            command::WRITE_ZEROES => {
                let allocate = flags & flag::NO_HOLE != 0;
                (Action::Submit(Command::Zero { allocate, durable }), flag::NO_HOLE)
            }
            command::BLOCK_STATUS if self.allocation => {
                (Action::Submit(Command::Map), flag::REQ_ONE)
            }
            command::BLOCK_STATUS => return refuse(Errno::Invalid, "no context was chosen"),
            _ => return refuse(Errno::Invalid, "the command is not known"),
        };
        if flags & !(flag::FUA | more_flags) != 0 {
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
            command::READ if length > REQUEST_MAX => {
                let errno = if flags & flag::DF != 0 { Errno::Overflow } else { Errno::Invalid };
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
