//! The sync of all parts when a node ends.

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Job};
use tidegate_model::{Class, ContextId, Operation, PartNumber, Tag, TenantId};

use super::Medium;

/// Makes written data durable, part by part, until the deadline. Clients have no promise of that;
/// but a write-back that fails once the node has ended may be reported to no later process, and one
/// that fails here is stored with its part, as by a flush.
pub(crate) fn sync_all(medium: &dyn Medium, is_late: impl Fn() -> bool) {
    let parts = medium.durable_parts();
    for part in (0..parts).map(PartNumber) {
        if is_late() {
            let parts = parts - part.0;
            return tracing::info!(parts, "parts are not synced: that would take too long");
        }
        medium.perform(&mut std::iter::once(&mut flush(part)));
    }
}

fn flush(part: PartNumber) -> Job {
    let tag = Tag {
        tenant: TenantId(0),
        context: ContextId::NONE,
        class: Class::default(),
        operation: Operation::Sync,
        cost: 1,
        delay: 0,
    };
    let (command, buffer) = (Command::Flush, Buffer::empty());
    Job::new(0, tag, command, (part, 0, 0), buffer)
}
