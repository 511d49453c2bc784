//! NBD's commands and errors ([`tidegate_wire::nbd`]) as commands and faults of nodes.

use tidegate_fabric::service::{Command, Fault};
use tidegate_fabric::stream::Outgoing;
use tidegate_wire::nbd::{self, Errno, Refusal, reply};

/// The command for the nodes.
pub(crate) const fn node_command(command: nbd::Command) -> Command {
    match command {
        nbd::Command::Read => Command::Read,
        nbd::Command::Write { fua } => Command::Write { durable: fua },
        nbd::Command::Flush => Command::Flush,
        nbd::Command::Trim { fua } => Command::Discard { durable: fua },
        nbd::Command::WriteZeroes { no_hole, fua } => {
            Command::Zero { allocate: no_hole, durable: fua }
        }
        nbd::Command::BlockStatus { .. } => Command::Map,
    }
}

/// The error reply for a node's fault.
pub(crate) const fn refusal(fault: Fault) -> Refusal {
    let (errno, message) = match fault {
        Fault::Invalid => (Errno::Invalid, "the node refuses the request as invalid"),
        Fault::ReadOnly => (Errno::Perm, "the store may not be written"),
        Fault::NoSpace => (Errno::NoSpace, "the store is full"),
        Fault::Unsupported => (Errno::Unsupported, "the store cannot do this"),
        Fault::Io => (Errno::Io, "a node that holds this part is away, or its store is broken"),
        Fault::Ending => (Errno::Shutdown, "the gateway or a node is ending"),
    };
    Refusal { errno, message }
}

/// Queues an error reply.
pub(crate) fn refuse(out: &mut Outgoing, structured: bool, cookie: u64, refusal: Refusal) {
    let (header, message) = reply::error(structured, cookie, refusal);
    out.push(&header);
    out.push(message.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_an_error_of_the_protocol() {
        for (fault, number, word) in [
            (Fault::ReadOnly, 1, "may not be written"),
            (Fault::Io, 5, "is away, or its store is broken"),
            (Fault::Invalid, 22, "as invalid"),
            (Fault::NoSpace, 28, "is full"),
            (Fault::Unsupported, 95, "cannot do this"),
            (Fault::Ending, 108, "is ending"),
        ] {
            let Refusal { errno, message } = refusal(fault);
            assert_eq!(errno as u32, number);
            assert!(message.contains(word), "{fault:?}");
        }
    }

    #[test]
    fn every_command_keeps_its_flags() {
        let zero = |no_hole, fua| node_command(nbd::Command::WriteZeroes { no_hole, fua });
        assert_eq!(node_command(nbd::Command::Read), Command::Read);
        assert_eq!(node_command(nbd::Command::Flush), Command::Flush);
        assert_eq!(zero(false, false), Command::Zero { allocate: false, durable: false });
        assert_eq!(zero(true, false), Command::Zero { allocate: true, durable: false });
        assert_eq!(zero(false, true), Command::Zero { allocate: false, durable: true });
        for is_set in [false, true] {
            let (write, trim) =
                (nbd::Command::Write { fua: is_set }, nbd::Command::Trim { fua: is_set });
            assert_eq!(node_command(write), Command::Write { durable: is_set });
            assert_eq!(node_command(trim), Command::Discard { durable: is_set });
            assert_eq!(node_command(nbd::Command::BlockStatus { one: is_set }), Command::Map);
        }
    }
}
