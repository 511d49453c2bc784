//! The waiting requests of all slots: linked lists in one array.
//!
//! A slot's queue is two numbers, so an idle slot costs nothing here, no request allocates once
//! the memory has grown to the most that ever waited, and one queue is appended to another in
//! O(1). The node that became free last is used first, while it is still in a cache.

use alloc::vec::Vec;

use tidegate_model::Class;

use super::words::Amounts;

/// No request.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct QueuedRequest<J> {
    /// In the order of arrival at the node.
    pub(super) number: u64,
    pub(super) cost: u32,
    pub(super) work: u32,
    pub(super) delay: u32,
    pub(super) operations: u32,
    pub(super) bytes: u32,
    pub(super) class: Class,
    pub(super) job: J,
}

impl<J> QueuedRequest<J> {
    /// Its operations and bytes, where those are counted.
    pub(super) fn amounts(&self) -> Amounts {
        Amounts::of(self.operations, self.bytes)
    }
}

#[derive(Debug)]
struct RequestNode<J> {
    request: Option<QueuedRequest<J>>,
    /// The next node of the same queue, or the next free one.
    next: u32,
}

/// The queue of one slot, first in first out.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotQueue {
    head: u32,
    tail: u32,
}

impl SlotQueue {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };

    pub(super) const fn is_empty(self) -> bool {
        self.head == NONE
    }
}

#[derive(Debug)]
pub(super) struct Requests<J> {
    nodes: Vec<RequestNode<J>>,
    free: u32,
}

impl<J> Requests<J> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE }
    }

    pub(super) fn push(&mut self, queue: &mut SlotQueue, request: QueuedRequest<J>) {
        let node = RequestNode { request: Some(request), next: NONE };
        let index = if self.free == NONE {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        self.append(queue, SlotQueue { head: index, tail: index });
    }

    pub(super) fn first(&self, queue: SlotQueue) -> Option<&QueuedRequest<J>> {
        self.nodes.get(queue.head as usize)?.request.as_ref()
    }

    /// The requests of a queue, in their order.
    pub(super) fn iter(&self, queue: SlotQueue) -> impl Iterator<Item = &QueuedRequest<J>> {
        let mut next = queue.head;
        core::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            next = node.next;
            node.request.as_ref()
        })
    }

    pub(super) fn pop(&mut self, queue: &mut SlotQueue) -> Option<QueuedRequest<J>> {
        let index = queue.head;
        let node = self.nodes.get_mut(index as usize)?;
        let request = node.request.take();
        queue.head = node.next;
        if queue.head == NONE {
            queue.tail = NONE;
        }
        node.next = self.free;
        self.free = index;
        request
    }

    /// Puts all of `other` behind what is in `queue`.
    pub(super) fn append(&mut self, queue: &mut SlotQueue, other: SlotQueue) {
        if other.is_empty() {
            return;
        }
        match self.nodes.get_mut(queue.tail as usize) {
            Some(last) => last.next = other.head,
            None => queue.head = other.head,
        }
        queue.tail = other.tail;
    }
}
