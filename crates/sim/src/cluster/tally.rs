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
pub(super) struct Asked {
    /// The flow that asked.
    pub(super) flow: FlowId,
    /// Its version when it did.
    pub(super) version: u32,
    /// The node that the flow asked.
    pub(super) node: u16,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    asked: Option<Asked>,
    use_: u32,
}

/// Every request that is on its way, and how many were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Requests that were made.
    pub(super) asked: u64,
    /// Requests that were answered.
    pub(super) answered: u64,
    /// Requests whose node was away or went away; the client was told.
    pub(super) failed: u64,
    /// Answers to requests that were settled before. There must be none.
    pub(crate) answered_twice: u64,
}

impl Tally {
    /// A request is made.
    pub(super) fn ask(&mut self, asked: Asked) -> Ticket {
        self.asked += 1;
        let entry = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { asked: None, use_: 0 });
            self.entries.len() as u32 - 1
        });
        let place = &mut self.entries[entry as usize];
        place.asked = Some(asked);
        Ticket { entry, use_: place.use_ }
    }

    /// Settles an answered request, and returns its origin and target.
    pub(super) fn answer(&mut self, ticket: Ticket) -> Option<Asked> {
        let asked = self.settle(ticket);
        match asked {
            Some(_) => self.answered += 1,
            None => self.answered_twice += 1,
        }
        asked
    }

    /// Settles a refused request, and returns its origin and target.
    pub(super) fn fail(&mut self, ticket: Ticket) -> Option<Asked> {
        let asked = self.settle(ticket);
        self.failed += u64::from(asked.is_some());
        asked
    }

    /// Fails all requests to a node that is gone.
    pub(super) fn fail_all(&mut self, node: u16) {
        for entry in 0..self.entries.len() as u32 {
            let Entry { asked, use_ } = self.entries[entry as usize];
            if asked.is_some_and(|asked| asked.node == node) {
                self.fail(Ticket { entry, use_ });
            }
        }
    }

    /// How many requests wait for an answer.
    pub(crate) fn waiting(&self) -> u64 {
        (self.entries.len() - self.free.len()) as u64
    }

    fn settle(&mut self, ticket: Ticket) -> Option<Asked> {
        let place = &mut self.entries[ticket.entry as usize];
        if place.use_ != ticket.use_ {
            return None;
        }
        let asked = place.asked.take()?;
        place.use_ = place.use_.wrapping_add(1);
        self.free.push(ticket.entry);
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ticket_is_settled_once() {
        let mut tally = Tally::default();
        let asked = |node| Asked { flow: 1, version: 1, node };
        let (first, second) = (tally.ask(asked(0)), tally.ask(asked(1)));
        assert_eq!(tally.answer(first), Some(asked(0)));
        assert_eq!(tally.answer(first), None);
        // The entry is in use again; the old ticket still counts for nothing.
        let third = tally.ask(asked(0));
        assert_eq!(tally.answer(first), None);
        tally.fail_all(1);
        assert_eq!(tally.answer(second), None);
        assert_eq!(tally.fail(third), Some(asked(0)));
        assert_eq!((tally.asked, tally.answered, tally.failed), (3, 1, 2));
        assert_eq!((tally.answered_twice, tally.waiting()), (3, 0));
    }
}
