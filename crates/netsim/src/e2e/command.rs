//! NVMe over Fabrics: storage commands as messages of flows, by the sizes of its transport for TCP.
//!
//! - a *command*, 72 bytes to the server: 8 of header and 64 of the submission queue's entry; and
//!   what is written, if it fits in the capsule;
//! - *ready*, 24 bytes back: the server has room for what is written;
//! - *data*, 24 bytes to the server, and what is written;
//! - a *response*, 24 bytes back: 8 of header and 16 of the completion queue's entry; before it,
//!   what was read, with 24 bytes of its own.
//!
//! (NVMe over Fabrics 1.1 and its TCP transport binding: command capsule, R2T, H2CData, C2HData and
//! response capsule; for RDMA sizes differ by a few bytes and are taken for the same.) A read is a
//! command and a response, a small write too; a large one takes all four, a round trip more.

use tidegate_model::{Bytes, Operation};

use tidegate_sim::workload::IoRequest;

/// Headers with the entry of a submission queue.
const COMMAND: u64 = 72;
/// Headers of data, of a word that there is room, and of the entry of a completion queue.
const OTHER: u64 = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Command,
    Ready,
    Data,
    Response,
}

impl MessageKind {
    const ALL: [Self; 4] = [Self::Command, Self::Ready, Self::Data, Self::Response];

    /// The number of the message that is this step of an exchange.
    pub(super) const fn message(self, exchange: u32) -> u64 {
        (exchange as u64) << 2 | self as u64
    }

    /// The step that a message is, and of which exchange.
    pub(super) const fn of(message: u64) -> (Self, u32) {
        (Self::ALL[(message & 3) as usize], (message >> 2) as u32)
    }

    pub(super) fn bytes(self, request: &IoRequest, in_capsule: Bytes) -> u64 {
        let is_read = request.operation == Operation::Read;
        let goes_along = !is_read && request.bytes <= in_capsule;
        match self {
            Self::Command if goes_along => COMMAND + request.bytes.0,
            Self::Command => COMMAND,
            Self::Data => OTHER + request.bytes.0,
            Self::Response if is_read => OTHER + request.bytes.0 + OTHER,
            Self::Ready | Self::Response => OTHER,
        }
    }

    /// Whether a server requests a command's data: the data of a write do not fit the capsule.
    pub(super) fn is_solicited(request: &IoRequest, in_capsule: Bytes) -> bool {
        request.operation == Operation::Write && request.bytes > in_capsule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Class;
    use tidegate_sim::time::Picoseconds;

    /// The bytes of each message to the server and back, in order.
    fn sizes(operation: Operation, bytes: u64) -> Vec<u64> {
        let (at, class) = (Picoseconds::ZERO, Class::High);
        let request = IoRequest { at, offset: Bytes(0), bytes: Bytes(bytes), operation, class };
        let capsule = Bytes(8_192);
        let kinds: &[MessageKind] = if MessageKind::is_solicited(&request, capsule) {
            &MessageKind::ALL
        } else {
            &[MessageKind::Command, MessageKind::Response]
        };
        kinds.iter().map(|kind| kind.bytes(&request, capsule)).collect()
    }

    #[test]
    fn each_byte_goes_once() {
        assert_eq!(sizes(Operation::Read, 4_096), [72, 4_144]);
        assert_eq!(sizes(Operation::Write, 8_192), [8_264, 24]);
        assert_eq!(sizes(Operation::Write, 8_193), [72, 24, 8_217, 24]);
    }

    #[test]
    fn a_message_is_known_by_its_number() {
        for kind in MessageKind::ALL {
            assert_eq!(MessageKind::of(kind.message(u32::MAX)), (kind, u32::MAX));
        }
    }
}
