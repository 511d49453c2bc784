//! Fencing: connections that a new connection of their gateway replaces.
//!
//! # Problem
//! A gateway that lost a link has answered the link's requests with an error, and connects again.
//! Requests of the old connection may still lie in the kernel, in the network, in a queue or at the
//! device. The same holds for a gateway that ended and was started again. Carried out later, a
//! write that failed would replace one that was acknowledged meanwhile.
//!
//! # Mechanism
//! A connection enters here once it has named its link ([`LinkIdentity`]). It replaces earlier
//! connections of the same link, and all of other processes of its gateway. Those are closed by
//! their workers: nothing more is read from them, and requests that wait are withdrawn. Every
//! connection stays here until the last of its requests has returned from the device, however it
//! ended. The new connection is accepted when all that it replaces have left.
//!
//! A gateway that cannot connect a link again, because the network or a limit lets that connection
//! alone not pass, names the link's last connection over another link of the same process. The node
//! closes it likewise, and answers when the last of its requests has returned.
//!
//! A device that hangs keeps the new connection waiting; the gateway gives up and connects again,
//! and the node's other gateways notice nothing.
//!
//! # Two processes with one name
//! A process that was replaced ended, or runs by mistake beside the one that replaced it. If it
//! reconnects while the other one is connected, it is refused: else they would fence each other for
//! ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tidegate_fabric::reactor::MessageQueue;
use tidegate_model::cluster::Uuid;
use tidegate_proto::data::LinkIdentity;

use super::Message;
use crate::mutex::lock;

/// Replaced processes that are remembered of one gateway while it is connected. Chosen by hand:
/// more than one is a mistake already.
const REPLACED_MAX: usize = 16;

/// The connections of all gateways.
#[derive(Default)]
pub(super) struct Fences(Mutex<FenceTable>);

#[derive(Default)]
struct FenceTable {
    next: u64,
    entries: Vec<FencedConnection>,
    /// By gateway, its processes that were replaced, the last one at the end; and whether that was
    /// logged.
    replaced: BTreeMap<String, Vec<(Uuid, bool)>>,
    requests: Vec<FenceRequest>,
}

/// A connection waits until another link's connections have left, up to this one.
struct FenceRequest {
    /// The number of the entry that waits.
    by: u64,
    last: LinkIdentity,
}

struct FencedConnection {
    number: u64,
    identity: LinkIdentity,
    /// Its worker, and the connection's number there.
    message_queue: Arc<MessageQueue<Message>>,
    connection: u64,
    /// Its worker is sent a message when the connections that it replaces have left.
    is_waiting: bool,
}

/// A connection's entry, which leaves when it is dropped.
pub(super) struct Entered {
    fences: Arc<Fences>,
    number: u64,
}

/// Why a connection may not enter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FenceDenied {
    pub(super) reason: String,
    /// This is the first refusal.
    pub(super) is_new: bool,
}

impl Fences {
    /// Enters a connection, and closes those that it replaces.
    pub(super) fn enter(
        self: &Arc<Self>,
        identity: LinkIdentity,
        message_queue: Arc<MessageQueue<Message>>,
        connection: u64,
    ) -> Result<Entered, FenceDenied> {
        let mut state = lock(&self.0);
        state.admit(&identity)?;
        for entry in state.entries.iter().filter(|entry| replaces(&identity, &entry.identity)) {
            entry.message_queue.push(Message::Replaced(entry.connection));
        }
        let number = state.next;
        state.next += 1;
        let is_waiting = false;
        state.entries.push(FencedConnection {
            number,
            identity,
            message_queue,
            connection,
            is_waiting,
        });
        Ok(Entered { fences: self.clone(), number })
    }
}

impl Entered {
    /// Whether all connections that this one replaces have left; if not, its worker receives
    /// [`Message::Fenced`] when they have.
    pub(super) fn is_alone(&self) -> bool {
        let mut state = lock(&self.fences.0);
        let is_alone = !state.is_behind(self.number);
        let own = state.entries.iter_mut().find(|entry| entry.number == self.number);
        own.into_iter().for_each(|own| own.is_waiting = !is_alone);
        is_alone
    }

    /// Closes the connections of another link of the same process, up to this one. Returns whether
    /// all have left; if not, its worker receives [`Message::LinkFenced`] when they have. None if
    /// it is its own link.
    pub(super) fn fence(&self, link: u32, connection: u64) -> Option<bool> {
        let mut state = lock(&self.fences.0);
        let own = state.entries.iter().find(|entry| entry.number == self.number)?;
        let last = LinkIdentity { link, connection, ..own.identity.clone() };
        if last.is_link_of(&own.identity) {
            return None;
        }
        let fenced = state.entries.iter().filter(|entry| last.fences(&entry.identity));
        let count = fenced
            .map(|entry| entry.message_queue.push(Message::Replaced(entry.connection)))
            .count();
        if count > 0 {
            // A later connection includes the earlier ones, so there is one request for each link.
            let is_other = |request: &FenceRequest| {
                request.by != self.number || !request.last.is_link_of(&last)
            };
            state.requests.retain(is_other);
            state.requests.push(FenceRequest { by: self.number, last });
        }
        Some(count == 0)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = lock(&self.fences.0);
        let Some(at) = state.entries.iter().position(|entry| entry.number == self.number) else {
            return;
        };
        let left = state.entries.swap_remove(at).identity.gateway;
        if state.entries.iter().all(|entry| entry.identity.gateway != left) {
            state.replaced.remove(&left);
        }
        state.answer_requests(self.number);
        let waiting = state.entries.iter().filter(|entry| entry.is_waiting);
        for entry in waiting.filter(|entry| !state.is_behind(entry.number)) {
            entry.message_queue.push(Message::Fenced(entry.connection));
        }
    }
}

impl FenceTable {
    /// Whether a connection may enter; records the processes that it replaces.
    fn admit(&mut self, identity: &LinkIdentity) -> Result<(), FenceDenied> {
        let is_stale = |entry: &FencedConnection| {
            entry.identity.is_link_of(identity) && !identity.is_later_than(&entry.identity)
        };
        if self.entries.iter().any(is_stale) {
            let reason = "a later connection of the same link is open".into();
            return Err(FenceDenied { reason, is_new: true });
        }
        let gateway = &identity.gateway;
        let replaced = self.replaced.entry(gateway.clone()).or_default();
        let others = self.entries.iter().map(|entry| &entry.identity);
        let others = others.filter(|other| other.is_of_other_process(identity));
        let is_replaced = |process| replaced.iter().position(|(other, _)| *other == process);
        let mut successors = others.clone().filter(|other| is_replaced(other.process).is_none());
        if let Some(own) = is_replaced(identity.process)
            && successors.next().is_some()
        {
            let reason = format!(
                "gateway {gateway:?} runs twice: another process of this name has connected since; \
                 stop one of them, or give each a name of its own"
            );
            let was_reported = std::mem::replace(&mut replaced[own].1, true);
            return Err(FenceDenied { reason, is_new: !was_reported });
        }
        replaced.retain(|(process, _)| *process != identity.process);
        for other in others {
            if replaced.iter().all(|(process, _)| *process != other.process) {
                replaced.push((other.process, false));
            }
        }
        let excess = replaced.len().saturating_sub(REPLACED_MAX);
        replaced.drain(..excess);
        Ok(())
    }

    /// Forgets the requests of an entry that has left, and answers those that waited for it.
    fn answer_requests(&mut self, left: u64) {
        let Self { entries, requests, .. } = self;
        requests.retain(|FenceRequest { by, last }| {
            let is_fenced = entries.iter().all(|entry| !last.fences(&entry.identity));
            let own = entries.iter().find(|entry| entry.number == *by);
            if let Some(own) = own.filter(|_| is_fenced) {
                let LinkIdentity { link, connection, .. } = *last;
                own.message_queue.push(Message::LinkFenced(own.connection, link, connection));
            }
            !is_fenced && *by != left
        });
    }

    /// Whether a connection that the one with this number replaces is still here.
    fn is_behind(&self, number: u64) -> bool {
        let own = self.entries.iter().find(|entry| entry.number == number);
        own.is_some_and(|own| {
            let earlier = self.entries.iter().filter(|entry| entry.number < number);
            earlier.into_iter().any(|entry| replaces(&own.identity, &entry.identity))
        })
    }
}

/// Whether a connection that enters replaces one that is here.
fn replaces(new: &LinkIdentity, old: &LinkIdentity) -> bool {
    new.is_later_than(old) || new.is_of_other_process(old)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_fabric::reactor::Reactor;

    use super::*;

    fn identity(process: u8, link: u32, connection: u64) -> LinkIdentity {
        LinkIdentity { gateway: "g".into(), process: Uuid([process; 16]), link, connection }
    }

    const NO_MESSAGES: [Vec<u64>; 2] = [Vec::new(), Vec::new()];

    /// A worker that connections enter for.
    struct ConnectionSink {
        fences: Arc<Fences>,
        reactor: Reactor<Message>,
    }

    impl ConnectionSink {
        fn new() -> Self {
            Self { fences: Arc::default(), reactor: Reactor::new().unwrap() }
        }

        fn enter(&self, number: u64, identity: LinkIdentity) -> Result<Entered, FenceDenied> {
            self.fences.enter(identity, self.reactor.message_queue(), number)
        }

        /// The connections to close, and those that wait no longer.
        fn messages(&mut self) -> [Vec<u64>; 2] {
            let mut messages = Vec::new();
            self.reactor.wait(Some(Duration::ZERO), &mut Vec::new(), &mut messages).unwrap();
            let [mut replaced, mut fenced] = [const { Vec::new() }; 2];
            for message in messages {
                match message {
                    Message::Replaced(number) => replaced.push(number),
                    Message::Fenced(number) | Message::LinkFenced(number, ..) => {
                        fenced.push(number);
                    }
                    _ => panic!("no such message comes from here"),
                }
            }
            fenced.sort_unstable();
            [replaced, fenced]
        }
    }

    #[test]
    fn a_connection_waits_for_the_connections_that_it_replaces_only() {
        let mut sink = ConnectionSink::new();
        let first = sink.enter(1, identity(1, 1, 1)).unwrap();
        let other_link = sink.enter(2, identity(1, 2, 1)).unwrap();
        let stranger = LinkIdentity { gateway: "h".into(), ..identity(2, 1, 1) };
        let stranger = sink.enter(3, stranger).unwrap();
        assert!([&first, &other_link, &stranger].into_iter().all(Entered::is_alone));
        let second = sink.enter(4, identity(1, 1, 2)).unwrap();
        assert!(!second.is_alone());
        assert_eq!(sink.messages(), [vec![1], vec![]]);
        drop((other_link, stranger));
        assert_eq!(sink.messages(), NO_MESSAGES);
        drop(first);
        assert_eq!(sink.messages(), [vec![], vec![4]]);
        assert!(second.is_alone());
        let stale = sink.enter(5, identity(1, 1, 1)).map(drop).unwrap_err();
        assert!(stale.reason.contains("a later connection"), "{stale:?}");
        assert_eq!(sink.messages(), NO_MESSAGES, "it harms none");
    }

    #[test]
    fn every_link_of_a_new_process_waits_for_every_connection_of_the_old_one() {
        let mut sink = ConnectionSink::new();
        let old = [1, 2].map(|link| sink.enter(link.into(), identity(1, link, 7)).unwrap());
        let new = [3, 4].map(|link| sink.enter(link.into(), identity(2, link, 1)).unwrap());
        assert!(new.iter().all(|entered| !entered.is_alone()));
        assert_eq!(sink.messages(), [vec![1, 2, 1, 2], vec![]]);
        let [first, second] = old;
        drop(first);
        assert_eq!(sink.messages(), NO_MESSAGES);
        drop(second);
        assert_eq!(sink.messages(), [vec![], vec![3, 4]]);
    }

    #[test]
    fn a_connection_fences_those_of_another_link_of_its_process() {
        let mut sink = ConnectionSink::new();
        let lost = sink.enter(1, identity(1, 2, 4)).unwrap();
        let main = sink.enter(2, identity(1, 1, 1)).unwrap();
        let other = sink.enter(3, LinkIdentity { gateway: "h".into(), ..identity(1, 2, 4) });
        assert_eq!(main.fence(1, 9), None, "its own link");
        // A connection that is not there was the last of its requests to leave.
        assert_eq!([main.fence(2, 3), main.fence(3, 4)], [Some(true); 2]);
        assert_eq!(sink.messages(), NO_MESSAGES);
        assert_eq!([main.fence(2, 4), main.fence(2, 4)], [Some(false); 2]);
        assert_eq!(sink.messages(), [vec![1, 1], vec![]]);
        drop(other);
        assert_eq!(sink.messages(), NO_MESSAGES);
        drop(lost);
        assert_eq!(sink.messages(), [vec![], vec![2]], "one answer");
        // The link's next connection enters, and is not meant.
        let next = sink.enter(4, identity(1, 2, 5)).unwrap();
        assert!(next.is_alone());
        assert_eq!(main.fence(2, 4), Some(true));
        assert_eq!(main.fence(2, 5), Some(false));
        drop(main);
        assert!(lock(&sink.fences.0).requests.is_empty(), "nothing is kept of those that left");
        drop(next);
        assert_eq!(sink.messages(), [vec![4], vec![]]);
    }

    #[test]
    fn of_two_processes_with_one_name_the_later_one_stays() {
        let sink = ConnectionSink::new();
        let first = sink.enter(1, identity(1, 1, 1)).unwrap();
        let second = sink.enter(2, identity(2, 1, 1)).unwrap();
        drop(first);
        for is_new in [true, false, false] {
            let denied = sink.enter(3, identity(1, 1, 2)).map(drop).unwrap_err();
            assert!(denied.reason.contains("runs twice"), "{denied:?}");
            assert_eq!(denied.is_new, is_new, "it is logged once");
        }
        assert!(sink.enter(4, identity(2, 2, 1)).is_ok_and(|link| link.is_alone()));
        // Once the later one has ended, the other one serves.
        drop(second);
        assert!(sink.enter(5, identity(1, 1, 3)).is_ok_and(|link| link.is_alone()));
        assert!(lock(&sink.fences.0).replaced.is_empty(), "nothing is kept of those that left");
    }
}
