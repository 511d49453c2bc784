//! The cost of a job, before its work is measured.

use tidegate_fabric::service::{Command, Job};
use tidegate_proto::data::pieces::PIECE;

/// The cost of a job or a piece at dispatch, in units. A transfer costs one for each 128 KiB, which
/// is the most that a piece has; measured work costs one. A request for several keys costs one for
/// each key, as many requests for one key would, but at most one for each byte, whatever the tag
/// says. It is not cut, and costs at least one for each 128 KiB.
pub(crate) fn cost(job: &Job) -> u32 {
    let pieces = job.length.div_ceil(PIECE).max(1);
    match job.command {
        Command::KeyValue => pieces.max(job.tag.cost.min(job.length)),
        Command::Read | Command::Write { .. } => pieces,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_fabric::buffer::Buffer;
    use tidegate_model::{Class, ContextId, Operation, Tag, TenantId};

    use super::*;

    #[test]
    fn a_request_costs_what_it_moves_and_each_of_its_keys() {
        let cost = |command, length, tagged| {
            let tag = Tag {
                tenant: TenantId(1),
                context: ContextId::NONE,
                class: Class::Medium,
                operation: Operation::Read,
                cost: tagged,
                delay: 0,
            };
            let (buffer, outcome) = (Buffer::empty(), Ok(()));
            super::cost(&Job {
                ticket: 0,
                tag,
                command,
                part: 0,
                incarnation: 0,
                offset: 0,
                length,
                buffer,
                outcome,
            })
        };
        assert_eq!(cost(Command::Read, 4 << 10, 4 << 10), 1);
        assert_eq!(cost(Command::Read, (128 << 10) + 1, 0), 2);
        assert_eq!(cost(Command::Flush, 0, 1), 1);
        assert_eq!(cost(Command::KeyValue, 600, 100), 100, "a get of a hundred keys");
        assert_eq!(cost(Command::KeyValue, 600, 1), 1);
        assert_eq!(cost(Command::KeyValue, 300 << 10, 1), 3, "a large value");
        assert_eq!(cost(Command::KeyValue, 6, u32::MAX), 6, "a tag that cannot be");
    }
}
