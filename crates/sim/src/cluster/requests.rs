//! Counters of requests made, answered and failed: every request has a ticket, and every ticket is
//! settled once.

use super::clients::FlowId;

/// A request on its way, as the node carries it: which entry, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    entry: u32,
    use_: u32,
}

/// Origin and target of a request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingRequest {
    /// The flow that asked.
    pub(super) flow: FlowId,
    /// Its version when it did.
    pub(super) version: u32,
    /// The node that the flow asked.
    pub(super) node: u16,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: Option<PendingRequest>,
    use_: u32,
}

/// Every request that is on its way, and how many were.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Requests that were made.
    pub(super) submitted: u64,
    /// Requests that were answered.
    pub(super) answered: u64,
    /// Requests whose node was away or went away; the client got an error.
    pub(super) failed: u64,
    /// Answers to requests that were settled before. There must be none.
    pub(crate) answered_twice: u64,
}

impl RequestTable {
    /// A request is made.
    pub(super) fn submit(&mut self, request: PendingRequest) -> Ticket {
        self.submitted += 1;
        let entry = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { request: None, use_: 0 });
            self.entries.len() as u32 - 1
        });
        let slot = &mut self.entries[entry as usize];
        slot.request = Some(request);
        Ticket { entry, use_: slot.use_ }
    }

    /// Settles an answered request, and returns its origin and target.
    pub(super) fn answer(&mut self, ticket: Ticket) -> Option<PendingRequest> {
        let request = self.settle(ticket);
        match request {
            Some(_) => self.answered += 1,
            None => self.answered_twice += 1,
        }
        request
    }

    /// Settles a refused request, and returns its origin and target.
    pub(super) fn fail(&mut self, ticket: Ticket) -> Option<PendingRequest> {
        let request = self.settle(ticket);
        self.failed += u64::from(request.is_some());
        request
    }

    /// Fails all requests to a node that is gone.
    pub(super) fn fail_all(&mut self, node: u16) {
        for entry in 0..self.entries.len() as u32 {
            let Entry { request, use_ } = self.entries[entry as usize];
            if request.is_some_and(|request| request.node == node) {
                self.fail(Ticket { entry, use_ });
            }
        }
    }

    /// How many requests wait for an answer.
    pub(crate) fn waiting(&self) -> u64 {
        (self.entries.len() - self.free.len()) as u64
    }

    fn settle(&mut self, ticket: Ticket) -> Option<PendingRequest> {
        let slot = &mut self.entries[ticket.entry as usize];
        if slot.use_ != ticket.use_ {
            return None;
        }
        let request = slot.request.take()?;
        slot.use_ = slot.use_.wrapping_add(1);
        self.free.push(ticket.entry);
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ticket_is_settled_once() {
        let mut requests = RequestTable::default();
        let request = |node| PendingRequest { flow: 1, version: 1, node };
        let (first, second) = (requests.submit(request(0)), requests.submit(request(1)));
        assert_eq!(requests.answer(first), Some(request(0)));
        assert_eq!(requests.answer(first), None);
        // The entry is in use again; the old ticket still counts for nothing.
        let third = requests.submit(request(0));
        assert_eq!(requests.answer(first), None);
        requests.fail_all(1);
        assert_eq!(requests.answer(second), None);
        assert_eq!(requests.fail(third), Some(request(0)));
        assert_eq!((requests.submitted, requests.answered, requests.failed), (3, 1, 2));
        assert_eq!((requests.answered_twice, requests.waiting()), (3, 0));
    }
}
