//! Counters of requests made, answered and failed: every request has a ticket, and every ticket is
//! settled once.

/// A request on its way, as the node carries it: which entry, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    entry: u32,
    use_: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry<R> {
    request: Option<R>,
    use_: u32,
}

/// Every request that is on its way, and how many were.
#[derive(Clone, Debug)]
pub(crate) struct RequestTable<R> {
    entries: Vec<Entry<R>>,
    free: Vec<u32>,
    /// Requests that were made.
    pub(crate) submitted: u64,
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Requests whose node was away or went away; the client got an error.
    pub(crate) failed: u64,
    /// Answers to requests that were settled before. There must be none.
    pub(crate) answered_twice: u64,
}

impl<R> Default for RequestTable<R> {
    fn default() -> Self {
        let (entries, free) = (Vec::new(), Vec::new());
        Self { entries, free, submitted: 0, answered: 0, failed: 0, answered_twice: 0 }
    }
}

impl<R: Copy> RequestTable<R> {
    /// A request is made.
    pub(crate) fn submit(&mut self, request: R) -> Ticket {
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
    pub(crate) fn answer(&mut self, ticket: Ticket) -> Option<R> {
        let request = self.settle(ticket);
        match request {
            Some(_) => self.answered += 1,
            None => self.answered_twice += 1,
        }
        request
    }

    /// Settles a refused request, and returns its origin and target.
    pub(crate) fn fail(&mut self, ticket: Ticket) -> Option<R> {
        let request = self.settle(ticket);
        self.failed += u64::from(request.is_some());
        request
    }

    /// Fails all requests that are lost, and returns them.
    pub(crate) fn fail_all(&mut self, is_lost: impl Fn(&R) -> bool) -> Vec<R> {
        let mut failed = Vec::new();
        for entry in 0..self.entries.len() as u32 {
            let Entry { request, use_ } = self.entries[entry as usize];
            if request.as_ref().is_some_and(&is_lost) {
                failed.extend(self.fail(Ticket { entry, use_ }));
            }
        }
        failed
    }

    /// A request that waits for its answer.
    pub(crate) fn get(&self, ticket: Ticket) -> Option<R> {
        let entry = &self.entries[ticket.entry as usize];
        entry.request.filter(|_| entry.use_ == ticket.use_)
    }

    /// How many requests wait for an answer.
    pub(crate) fn waiting(&self) -> u64 {
        (self.entries.len() - self.free.len()) as u64
    }

    fn settle(&mut self, ticket: Ticket) -> Option<R> {
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
        let (first, second) = (requests.submit(0), requests.submit(1));
        assert_eq!(requests.answer(first), Some(0));
        assert_eq!(requests.answer(first), None);
        // The entry is in use again; the old ticket still counts for nothing.
        let third = requests.submit(0);
        assert_eq!(requests.answer(first), None);
        assert_eq!(requests.fail_all(|request| *request == 1), [1]);
        assert_eq!(requests.answer(second), None);
        assert_eq!(requests.fail(third), Some(0));
        assert_eq!((requests.submitted, requests.answered, requests.failed), (3, 1, 2));
        assert_eq!((requests.answered_twice, requests.waiting()), (3, 0));
    }
}
