//! A request on its way through a node: its tenant's slot, its cost in units and its times.

use tidegate_algo::capacity::depth;
use tidegate_algo::scheduling::scheduler::{RequestCost, Slot};
use tidegate_model::{Class, CostModel, Tag, Time};

use crate::data::pieces::PIECE;
use crate::data::{Command, Stay};
use crate::stats::latency::operation_index;

/// A request at a node, from its arrival until it is finished. `B` is the data that the caller
/// needs to serve it.
#[derive(Clone, Debug)]
pub struct NodeRequest<B> {
    /// The data that the caller needs to serve it.
    pub body: B,
    pub(super) slot: Slot,
    /// As its tag has it: a node does not derive it.
    pub(super) class: Class,
    pub(super) command: Command,
    /// How many bytes of the part it is about.
    pub(super) length: u32,
    /// At dispatch.
    pub(super) cost: RequestCost,
    /// The weight in the fair order of a unit of cost beyond that.
    pub(super) unit_work: u32,
    /// The measured cost beyond that of its dispatch, in units.
    pub(super) more: u32,
    /// It used a reservation token.
    pub(super) is_reserved: bool,
    /// When it went to the device, if it is timed.
    pub(super) since: Option<Time>,
    /// When it arrived, and when it or the first of the pieces before it was taken out of its
    /// queue.
    pub(super) arrived: Time,
    pub(super) dispatched: Time,
    /// When the node had its answer.
    pub(super) finished: Time,
    /// The index in [`OPERATIONS`](crate::stats::latency::OPERATIONS).
    pub(super) operation: u8,
    /// It is a piece of a larger request, which is not answered when the piece is finished.
    pub is_piece: bool,
}

impl<B> NodeRequest<B> {
    /// A request of a tenant, about so many bytes of a part, whose weight in the fair order follows
    /// from `model`.
    // A command and a length are two arguments here and in callers. As a pair in one register, in a
    // loop, optimized code of rustc 1.95 kept bits of another value in the length
    // (rust-lang/rust#149294 has pairs of the same shape).
    pub fn new(
        slot: Slot,
        command: Command,
        length: u32,
        tag: &Tag,
        model: &CostModel,
        body: B,
    ) -> Self {
        let write = Command::Write { durable: false };
        let is_measured = command.is_measured();
        Self {
            body,
            slot,
            class: tag.class,
            command,
            length,
            cost: RequestCost {
                cost: units(command, length, tag),
                work: command.work(model, length, tag),
                delay: tag.delay,
                operations: operations(command, length, tag),
                bytes: if command.is_measured() { 0 } else { length },
            },
            unit_work: if is_measured { write.work(model, PIECE, tag) } else { 0 },
            more: 0,
            is_reserved: false,
            since: None,
            arrived: Time::ZERO,
            dispatched: Time::MAX,
            finished: Time::ZERO,
            operation: operation_index(tag.operation) as u8,
            is_piece: false,
        }
    }

    /// The request as a later piece of one that counted as an operation with its first piece.
    #[must_use]
    pub fn continued(mut self) -> Self {
        self.cost.operations = 0;
        self
    }

    /// The slot of its tenant.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The command that the device is to run.
    pub fn command(&self) -> Command {
        self.command
    }

    /// How many bytes of the part it is about.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The cost at its dispatch, in units.
    pub fn units(&self) -> u32 {
        self.cost.cost
    }

    /// As how many requests it counts at the device: a request for several keys as one for each.
    #[inline]
    pub fn count(&self) -> u32 {
        if self.command == Command::KeyValue { self.cost.cost } else { 1 }
    }

    /// How much of the device it occupies, beside requests with a reservation.
    #[inline]
    pub(super) fn weight(&self) -> u32 {
        let moved = if self.command.is_measured() { 0 } else { self.length };
        self.count().saturating_add(depth::weight(moved) - 1)
    }

    /// How long it was at the node, once it is finished.
    pub fn stay(&self) -> Stay {
        let dispatched = self.dispatched.min(self.finished);
        Stay {
            queued: dispatched.since(self.arrived),
            stored: self.finished.since(dispatched.max(self.arrived)),
        }
    }

    /// Whether its cost is the time that it takes, which is known afterwards.
    pub fn is_measured(&self) -> bool {
        self.command.is_measured()
    }

    /// The measured cost beyond that of its dispatch. A unit weighs as much as a written piece of
    /// [`PIECE`] bytes.
    pub(super) fn surcharge(&self) -> RequestCost {
        let work = self.unit_work.saturating_mul(self.more);
        let bytes = PIECE.saturating_mul(self.more);
        RequestCost { cost: self.more, work, delay: 0, operations: 0, bytes }
    }
}

/// The cost of a request or a piece of one at dispatch, in units. A transfer costs one for each
/// 128 KiB, which is the most that a piece has; a measured request costs one. A request for several
/// keys costs one for each key, as many requests for one key would, but at most one for each byte,
/// whatever the tag says. It is not cut, and costs at least one for each 128 KiB.
fn units(command: Command, length: u32, tag: &Tag) -> u32 {
    let pieces = length.div_ceil(PIECE).max(1);
    match command {
        Command::KeyValue => pieces.max(tag.cost.min(length)),
        Command::Read | Command::Write { .. } => pieces,
        _ => 1,
    }
}

/// As how many operations a request counts where its size does not matter: several keys as one
/// each, and a transfer without a cost in its tag as none. A gateway sends one such sub-request for
/// each further stripe of a request at the same node.
fn operations(command: Command, length: u32, tag: &Tag) -> u32 {
    match command {
        Command::KeyValue => tag.cost.min(length).max(1),
        Command::Read | Command::Write { .. } => tag.cost.min(1),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::{Class, ContextId, Operation, TenantId};

    use super::*;

    #[test]
    fn a_request_costs_what_it_moves_and_each_of_its_keys() {
        let tag = |cost| Tag {
            tenant: TenantId(1),
            context: ContextId::NONE,
            class: Class::Medium,
            operation: Operation::Read,
            cost,
            delay: 0,
        };
        let units = |command, length, cost| super::units(command, length, &tag(cost));
        assert_eq!(units(Command::Read, 4 << 10, 4 << 10), 1);
        assert_eq!(units(Command::Read, (128 << 10) + 1, 0), 2);
        assert_eq!(units(Command::Flush, 0, 1), 1);
        assert_eq!(units(Command::KeyValue, 600, 100), 100, "a get of a hundred keys");
        assert_eq!(units(Command::KeyValue, 600, 1), 1);
        assert_eq!(units(Command::KeyValue, 300 << 10, 1), 3, "a large value");
        assert_eq!(units(Command::KeyValue, 6, u32::MAX), 6, "a tag that cannot be");
        let operations =
            |command, cost| super::operations(command, 4 << 10, &Tag { cost, ..tag(0) });
        assert_eq!(operations(Command::Read, 1 << 20), 1);
        assert_eq!(operations(Command::Write { durable: true }, 0), 0, "a further stripe");
        assert_eq!(operations(Command::KeyValue, 100), 100, "a get of a hundred keys");
        assert_eq!([Command::Flush, Command::Map].map(|command| operations(command, 0)), [1, 1]);
    }
}
