//! Requests one at a time, for tests that look at each.

use tidegate_model::{Class, ContextId, Operation, Tag, TenantId, Time};
use tidegate_proto::data::Command;
use tidegate_proto::data::pieces::PIECE;
use tidegate_proto::node::{Node, NodeRequest, Slot};

/// The tag of a read, with a report of the service at other nodes.
pub(crate) const fn tag(delay: u32) -> Tag {
    Tag {
        tenant: TenantId(1),
        context: ContextId::NONE,
        class: Class::Medium,
        operation: Operation::Read,
        cost: 1,
        delay,
    }
}

pub(crate) trait OneByOne<B> {
    /// A read that costs so many units, at least one, is put into its queue.
    fn on_request(&self, now: Time, slot: Slot, units: u32, body: B);

    /// The next request for the device, if there is headroom and one may be served.
    fn next_dispatch(&self, now: Time) -> Option<NodeRequest<B>>;

    /// A request that was dispatched has been served.
    fn on_done(&self, now: Time, request: NodeRequest<B>);
}

impl<B> OneByOne<B> for Node<B> {
    fn on_request(&self, now: Time, slot: Slot, units: u32, body: B) {
        let length = PIECE * units.max(1);
        self.put(now, &mut vec![self.request(slot, Command::Read, length, &tag(0), body)]);
    }

    fn next_dispatch(&self, now: Time) -> Option<NodeRequest<B>> {
        let mut batch = Vec::new();
        self.advance(now);
        self.fill_to(0, 1, now, &mut batch);
        self.on_dispatch(now, &mut batch);
        batch.pop()
    }

    fn on_done(&self, now: Time, request: NodeRequest<B>) {
        self.finish(0, now, &mut [request], None, |_, _| {});
    }
}
