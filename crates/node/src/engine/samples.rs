//! Work and a sink for tests of engines.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, CompletionSink, Fault, Job};
use tidegate_model::{Class, ContextId, CostModel, Operation, PartNumber, Tag, TenantId};
use tidegate_proto::node::Slot;

use super::{Body, Owner, Sink, Work};
use crate::mutex::lock;

/// Passes on finished work.
pub(super) struct Pipe(pub(super) Mutex<Sender<Work>>);

impl Sink for Pipe {
    fn finished(&self, work: &mut Vec<Work>) {
        let sender = lock(&self.0);
        work.drain(..).for_each(|work| assert!(sender.send(work).is_ok(), "nobody listens"));
    }
}

struct NullSink;

impl CompletionSink for NullSink {
    fn finished(&self, _: &mut Vec<Job>) {}
}

/// Work on the first part, unattributed.
pub(super) fn work(ticket: u64, command: Command, offset: u64, length: u32, bytes: &[u8]) -> Work {
    let tag = Tag {
        tenant: TenantId(0),
        context: ContextId::NONE,
        class: Class::Medium,
        operation: Operation::Read,
        cost: 1,
        delay: 0,
    };
    let (buffer, outcome) = (Buffer::from(bytes), Err(Fault::Io));
    let part = PartNumber(0);
    let job = Job { outcome, ..Job::new(ticket, tag, command, (part, offset, length), buffer) };
    let owner = Arc::new(Owner::new(Arc::new(NullSink)));
    let model = CostModel::default();
    let body = Body::new(job, owner, None);
    Work::new(Slot::UNATTRIBUTED, command, length, &tag, &model, body)
}
