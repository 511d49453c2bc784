#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use tidegate_model::{Bytes, Class, ContextId, Operation, Tag, TenantId};
use tidegate_proto::data::{
    AnswerHead, Assembler, FromNode, JobHead, LinkIdentity, ReplyHead, RequestHead, SILENCE_MAX,
    Stay, ToNode, VERSION, decode, encode,
};

use super::*;
use crate::buffer::Buffer;
use crate::service::Command;
use crate::stream::Address;
use tidegate_model::cluster::{Geometry, Uuid};

const TOKEN: u64 = 9;
const NOW: Time = Time(1_000_000_000);

/// A remote with its worker, and a listener that plays the node.
struct RemoteTestbed {
    folder: tempfile::TempDir,
    listener: UnixListener,
    reactor: Reactor<()>,
    remote: Remote,
    done: Vec<Job>,
    now: Time,
}

/// The node's end of a link.
struct Peer {
    stream: UnixStream,
    assembler: Assembler<RequestHead, Vec<u8>>,
    frames: VecDeque<(RequestHead, Vec<u8>)>,
}

fn testbed() -> RemoteTestbed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    let listener = UnixListener::bind(&path).unwrap();
    let process = Uuid([7; 16]);
    let identity = LinkIdentity { gateway: "g".into(), process, link: 3, connection: 0 };
    let mut remote = Remote::new(LinkSettings::new(Address::Unix(path), identity), TOKEN);
    remote.tenants(&["a".into()]);
    let length = Bytes(1 << 20);
    let (volume, geometry) = ("v".into(), Geometry::single(length));
    let part = Part { volume, index: 0, length, offset: Bytes(0), geometry };
    assert_eq!(remote.open(part), PartNumber(0));
    let (reactor, done) = (Reactor::new().unwrap(), Vec::new());
    RemoteTestbed { folder, listener, reactor, remote, done, now: NOW }
}

impl RemoteTestbed {
    /// Lets the worker run one round, if something is ready.
    fn run_once(&mut self, patience: Duration) {
        let mut ready = Vec::new();
        self.reactor.wait(Some(patience), &mut ready, &mut Vec::new()).unwrap();
        for ready in ready {
            self.remote.on_ready(&self.reactor, self.now, ready, &mut self.done);
            self.remote.release(&self.reactor, self.now, |_| false, &mut self.done);
        }
    }

    fn until(&mut self, what: impl Fn(&mut Self) -> bool) {
        for _ in 0..6_000 {
            if what(self) {
                return;
            }
            self.run_once(Duration::from_millis(10));
        }
        panic!("it did not happen within a minute");
    }

    /// Connects, and plays a node that welcomes and has the part.
    fn connected(&mut self) -> Peer {
        let mut peer = self.welcomed();
        let state = PartState { incarnation: 77, identity: None };
        peer.send(&FromNode::Opened { part: PartNumber(0), opened: Ok(state) });
        self.until(|testbed| testbed.remote.link.as_ref().is_some_and(NodeLink::takes_jobs));
        peer
    }

    /// Connects, and plays a node that welcomes.
    fn welcomed(&mut self) -> Peer {
        self.remote.on_deadline(&self.reactor, self.now, &mut self.done);
        let (stream, _) = self.listener.accept().unwrap();
        self.run_once(Duration::from_secs(60));
        let mut peer = Peer { stream, assembler: Assembler::new(), frames: VecDeque::new() };
        assert!(matches!(peer.message(), ToNode::Hello { version: VERSION, .. }));
        assert!(matches!(peer.message(), ToNode::Identify(LinkIdentity { link: 3, .. })));
        assert_eq!(peer.message(), ToNode::Carries(LinkKind::default()));
        assert_eq!(peer.message(), ToNode::Tenants(vec!["a".into()]));
        assert!(matches!(peer.message(), ToNode::Open { part: PartNumber(0), .. }));
        let name = String::from("n");
        peer.send(&FromNode::Welcome { version: VERSION, name, release: String::new() });
        self.until(|testbed| testbed.remote.is_up());
        peer
    }

    fn submit(&mut self, ticket: u64, command: Command) {
        self.remote.submit(self.now, &mut vec![job(ticket, command)], &mut self.done);
        self.remote.flush(&self.reactor, self.now, &mut self.done);
    }
}

impl Peer {
    fn frame(&mut self) -> (RequestHead, Vec<u8>) {
        let mut bytes = [0; 1024];
        while self.frames.is_empty() {
            let count = self.stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the gateway left");
            let mut input = &bytes[..count];
            while let Some(frame) = self.assembler.next(&mut input).unwrap() {
                self.frames.push_back(frame);
            }
        }
        self.frames.pop_front().unwrap()
    }

    fn message(&mut self) -> ToNode {
        decode(&self.frame().1).unwrap()
    }

    fn job(&mut self) -> (JobHead, Vec<u8>) {
        match self.frame() {
            (RequestHead::Job(job), payload) => (job, payload),
            other => panic!("{other:?}"),
        }
    }

    /// Answers a job that all is well.
    fn accept(&mut self) {
        let (job, _) = self.job();
        self.answer(job.ticket, Ok(()), b"");
    }

    fn send(&mut self, message: &FromNode) {
        let mut bytes = Vec::new();
        encode::<ReplyHead, _>(message, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    fn answer(&mut self, ticket: u64, outcome: Result<(), Fault>, payload: &[u8]) {
        let head =
            AnswerHead { ticket, outcome, length: payload.len() as u32, stay: Stay::default() };
        self.stream.write_all(&[&head.to_bytes()[..], payload].concat()).unwrap();
    }
}

fn job(ticket: u64, command: Command) -> Job {
    let tag = Tag {
        tenant: TenantId(1),
        context: ContextId::NONE,
        class: Class::Medium,
        operation: Operation::Read,
        cost: 4,
        delay: 0,
    };
    let buffer = match command.has_payload() {
        true => Buffer::from(&b"abcd"[..]),
        false => Buffer::empty(),
    };
    Job::new(ticket, tag, command, (PartNumber(0), 8, 4), buffer)
}

#[test]
fn answers_come_back_in_any_order_with_their_tickets() {
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    testbed.submit(70, Command::Read);
    testbed.submit(71, Command::Write { durable: true });
    let (read, _) = peer.job();
    let (write, payload) = peer.job();
    assert_eq!(
        (write.command, write.offset, &payload[..]),
        (Command::Write { durable: true }, 8, &b"abcd"[..])
    );
    peer.answer(write.ticket, Err(Fault::NoSpace), b"");
    peer.answer(read.ticket, Ok(()), b"wxyz");
    testbed.until(|testbed| testbed.done.len() == 2);
    let done = &testbed.done;
    assert_eq!((done[0].ticket, done[0].outcome), (71, Err(Fault::NoSpace)));
    assert_eq!((done[1].ticket, done[1].outcome), (70, Ok(())));
    assert_eq!(&done[1].buffer[..], b"wxyz");
}

#[test]
fn jobs_wait_for_a_node_that_is_away_and_give_up() {
    let mut testbed = testbed();
    testbed.submit(1, Command::Read);
    assert_eq!(testbed.remote.next_deadline(), Time::ZERO, "it is to connect");
    let mut peer = testbed.connected();
    testbed.run_once(Duration::ZERO);
    assert_eq!(peer.job().0.offset, 8, "what waited is sent");
    drop((peer, testbed.listener));
    testbed.listener = UnixListener::bind(testbed.folder.path().join("elsewhere")).unwrap();
    for _ in 0..6_000 {
        if testbed.done.len() == 1 {
            break;
        }
        let mut ready = Vec::new();
        let patience = Some(Duration::from_millis(10));
        testbed.reactor.wait(patience, &mut ready, &mut Vec::new()).unwrap();
        for ready in ready {
            testbed.remote.on_ready(&testbed.reactor, NOW, ready, &mut testbed.done);
        }
    }
    assert_eq!(testbed.done[0].outcome, Err(Fault::Io), "what was on the link fails");
    testbed.remote.submit(NOW, &mut vec![job(2, Command::Read)], &mut testbed.done);
    let retry = testbed.remote.next_deadline();
    assert_eq!(retry, NOW.after(RETRY_MIN));
    testbed.remote.on_deadline(&testbed.reactor, retry, &mut testbed.done);
    assert_eq!(testbed.done.len(), 1, "no process listens; the job waits");
    let end = NOW.after(Span(5 * Span::SECOND.0));
    testbed.remote.on_deadline(&testbed.reactor, end, &mut testbed.done);
    assert_eq!((testbed.done[1].ticket, testbed.done[1].outcome), (2, Err(Fault::Io)));
    let notices: Vec<_> = std::iter::from_fn(|| testbed.remote.poll_notice()).collect();
    let [Notice::Up { .. }, Notice::PartReady { .. }, Notice::Down { .. }] = &notices[..] else {
        panic!("{notices:?}")
    };
}

#[test]
fn a_stopping_node_answers_its_jobs_and_its_successor_the_rest() {
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    testbed.submit(1, Command::Write { durable: false });
    let (first, _) = peer.job();
    peer.send(&FromNode::Ending);
    testbed.until(|testbed| testbed.remote.link.as_ref().unwrap().is_ending());
    testbed.submit(2, Command::Write { durable: false });
    assert_eq!(testbed.remote.next_deadline(), testbed.now.after(SILENCE_MAX), "2 has time");
    testbed.now = testbed.now.after(Span(4 * Span::SECOND.0));
    peer.answer(first.ticket, Ok(()), b"");
    testbed.until(|testbed| !testbed.remote.is_up());
    let done = testbed.done.drain(..).map(|job| (job.ticket, job.outcome));
    assert_eq!(done.collect::<Vec<_>>(), [(1, Ok(()))]);
    assert_eq!(peer.stream.read(&mut [0; 64]).unwrap(), 0, "no job was sent to a node that ends");
    let reason = ENDED.to_string();
    assert_eq!(testbed.remote.notices.back(), Some(&Notice::Down { reason }));
    testbed.remote.retry = Retry::new(RETRY_MIN, RETRY_MAX);
    let mut peer = testbed.connected();
    let (second, payload) = peer.job();
    assert_eq!((&payload[..], second.command), (&b"abcd"[..], Command::Write { durable: false }));
    peer.answer(second.ticket, Ok(()), b"");
    testbed.until(|testbed| !testbed.done.is_empty());
    assert_eq!((testbed.done[0].ticket, testbed.done[0].outcome), (2, Ok(())));
}

#[test]
fn jobs_that_a_stopping_node_leaves_are_retried_only_if_they_change_nothing() {
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    let zero = Command::Zero { allocate: false, durable: false };
    let commands = [Command::Read, Command::Write { durable: false }, Command::Flush, zero];
    (0..).zip(commands).for_each(|(ticket, command)| testbed.submit(ticket, command));
    peer.send(&FromNode::Ending);
    testbed.until(|testbed| testbed.remote.link.as_ref().unwrap().is_ending());
    testbed.submit(4, Command::Read);
    drop(peer);
    testbed.until(|testbed| !testbed.remote.is_up());
    let done = testbed.done.drain(..).map(|job| (job.ticket, job.outcome));
    assert_eq!(done.collect::<Vec<_>>(), [(1, Err(Fault::Io)), (3, Err(Fault::Io))]);
    let waiting = testbed.remote.waiting.iter().map(|(until, job)| (*until, job.ticket));
    let until = testbed.now.after(testbed.remote.settings.patience);
    assert_eq!(waiting.collect::<Vec<_>>(), [(until, 0), (until, 2), (until, 4)]);
}

#[test]
fn nothing_is_sent_to_a_part_before_it_is_judged() {
    let mut testbed = testbed();
    testbed.submit(1, Command::Write { durable: false });
    let mut peer = testbed.welcomed();
    testbed.submit(2, Command::Read);
    assert_eq!(testbed.remote.waiting.len(), 2, "the node has not identified its part");
    let state = PartState { incarnation: 1, identity: None };
    peer.send(&FromNode::Opened { part: PartNumber(0), opened: Ok(state) });
    let mut ready = Vec::new();
    while !testbed.remote.link.as_ref().unwrap().takes_jobs() {
        testbed.reactor.wait(Some(Duration::from_secs(60)), &mut ready, &mut Vec::new()).unwrap();
        for ready in ready.drain(..) {
            testbed.remote.on_ready(&testbed.reactor, NOW, ready, &mut testbed.done);
        }
    }
    testbed.submit(3, Command::Read);
    assert_eq!(testbed.remote.waiting.len(), 3, "the caller has not judged it");
    testbed.remote.release(
        &testbed.reactor,
        NOW,
        |job| job.part == PartNumber(0),
        &mut testbed.done,
    );
    let done = testbed.done.drain(..).map(|job| (job.ticket, job.outcome));
    assert_eq!(done.collect::<Vec<_>>(), [1, 2, 3].map(|ticket| (ticket, Err(Fault::Io))));
    testbed.submit(4, Command::Read);
    assert_eq!(peer.job().0.command, Command::Read, "no other job was sent before");
}

#[test]
fn parts_that_failed_jobs_may_still_change_are_named_until_the_next_connection_is_welcome() {
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    let notices = |testbed: &mut RemoteTestbed| -> Vec<_> {
        std::iter::from_fn(|| testbed.remote.poll_notice()).collect()
    };
    notices(&mut testbed);
    let zero = Command::Zero { allocate: false, durable: false };
    let commands = [Command::Write { durable: false }, zero, Command::Read, Command::Flush];
    (0..).zip(commands).for_each(|(ticket, command)| testbed.submit(ticket, command));
    commands.iter().for_each(|_| drop(peer.job()));
    drop(peer);
    testbed.until(|testbed| testbed.done.len() == commands.len());
    let unsettled = [Notice::Unsettled { part: PartNumber(0), connection: 1 }];
    let [settled @ .., Notice::Down { .. }] = &notices(&mut testbed)[..] else { panic!("it fell") };
    assert_eq!(settled, unsettled);
    testbed.remote.retry = Retry::new(RETRY_MIN, RETRY_MAX);
    let mut peer = testbed.connected();
    assert_eq!(testbed.remote.settings.identity.connection, 2, "the node can tell them apart");
    assert!(matches!(notices(&mut testbed)[..], [Notice::Up { .. }, Notice::PartReady { .. }]));
    // Commands that change nothing, and answered commands, leave nothing behind.
    testbed.submit(4, Command::Write { durable: false });
    peer.accept();
    testbed.until(|testbed| testbed.done.len() == 5);
    testbed.submit(5, Command::Read);
    peer.job();
    drop(peer);
    testbed.until(|testbed| !testbed.remote.is_up());
    assert!(matches!(notices(&mut testbed)[..], [Notice::Down { .. }]));
}

#[test]
fn a_link_has_the_connections_of_another_one_fenced() {
    let mut testbed = testbed();
    assert!(!testbed.remote.fence(4, 7), "it is not up");
    let mut peer = testbed.connected();
    while testbed.remote.poll_notice().is_some() {}
    assert!(testbed.remote.fence(4, 7));
    testbed.remote.flush(&testbed.reactor, testbed.now, &mut testbed.done);
    assert_eq!(peer.message(), ToNode::Fence { link: 4, connection: 7 });
    peer.send(&FromNode::Fenced { link: 4, connection: 7 });
    let fenced = Notice::Fenced { link: 4, connection: 7 };
    testbed.until(|testbed| testbed.remote.poll_notice() == Some(fenced.clone()));
}

#[test]
fn jobs_that_wait_for_a_link_can_be_taken_for_another_one() {
    let mut testbed = testbed();
    (0..3).for_each(|ticket| testbed.submit(ticket, Command::Read));
    let taken = testbed.remote.take_waiting(|job| job.ticket != 1);
    assert_eq!(taken.iter().map(|job| job.ticket).collect::<Vec<_>>(), [0, 2]);
    let mut peer = testbed.connected();
    assert_eq!(peer.job().0.ticket, 0, "the one that is left");
    assert!(testbed.done.is_empty());
}

#[test]
fn who_is_gone_is_not_worked_for() {
    let mut testbed = testbed();
    for ticket in [7, 8] {
        testbed.remote.submit(NOW, &mut vec![job(ticket, Command::Read)], &mut testbed.done);
    }
    testbed.remote.cancel(&[7, 9], &mut testbed.done);
    let cancelled = testbed.done.pop().unwrap();
    assert_eq!((cancelled.ticket, cancelled.outcome), (7, Err(Fault::Ending)));
    let mut peer = testbed.connected();
    testbed.submit(9, Command::Read);
    let tickets = [peer.job().0.ticket, peer.job().0.ticket];
    testbed.remote.cancel(&[7, 9], &mut testbed.done);
    testbed.remote.flush(&testbed.reactor, NOW, &mut testbed.done);
    assert_eq!(peer.message(), ToNode::Cancel(vec![tickets[1]]));
    assert!(testbed.done.is_empty(), "it is the node's to answer");
    peer.answer(tickets[1], Err(Fault::Ending), b"");
    testbed.until(|testbed| testbed.done.len() == 1);
    assert_eq!((testbed.done[0].ticket, testbed.done[0].outcome), (9, Err(Fault::Ending)));
}

#[test]
fn everything_is_sent_again_on_a_new_link() {
    let mut testbed = testbed();
    let peer = testbed.connected();
    drop(peer);
    testbed.until(|testbed| !testbed.remote.is_up());
    testbed.remote.retry = Retry::new(RETRY_MIN, RETRY_MAX);
    let mut peer = testbed.welcomed();
    peer.send(&FromNode::Opened { part: PartNumber(0), opened: Err("too long".into()) });
    testbed.until(|testbed| testbed.remote.notices.len() == 5);
    let refused = Notice::PartRefused { part: PartNumber(0), reason: "too long".into() };
    assert_eq!(testbed.remote.notices.back(), Some(&refused));
}

#[test]
fn a_flush_carries_its_incarnation_to_whichever_node_there_is() {
    let mut testbed = testbed();
    let flush = |ticket| Job { incarnation: 77, length: 0, ..job(ticket, Command::Flush) };
    let state = |incarnation| PartState { incarnation, identity: None };
    let mut peer = testbed.connected();
    testbed.submit(1, Command::Write { durable: false });
    peer.accept();
    testbed.until(|testbed| testbed.done.len() == 1);
    drop(peer);
    testbed.until(|testbed| !testbed.remote.is_up());
    // Two flushes wait for the node, and it alone can say what became of the write.
    testbed.remote.submit(NOW, &mut vec![flush(2), flush(3)], &mut testbed.done);
    testbed.remote.retry = Retry::new(RETRY_MIN, RETRY_MAX);
    let mut peer = testbed.welcomed();
    peer.send(&FromNode::Opened { part: PartNumber(0), opened: Ok(state(78)) });
    peer.send(&FromNode::Incarnation { part: PartNumber(0), incarnation: 79 });
    testbed.until(|testbed| testbed.remote.waiting.is_empty());
    for ticket in [2, 3] {
        let (head, _) = peer.job();
        assert_eq!((head.command, head.offset), (Command::Flush, 77));
        peer.answer(head.ticket, Err(Fault::Io), b"");
        testbed.until(|testbed| testbed.done.last().is_some_and(|job| job.ticket == ticket));
        assert_eq!(testbed.done.pop().unwrap().outcome, Err(Fault::Io), "it stays so");
    }
    let notices = testbed.remote.notices.iter().skip(4).cloned();
    let changed = Notice::Incarnation { part: PartNumber(0), incarnation: 79 };
    assert_eq!(
        notices.collect::<Vec<_>>(),
        [Notice::PartReady { part: PartNumber(0), state: state(78) }, changed]
    );
}

#[test]
fn jobs_on_a_part_that_is_refused_fail_until_another_link_has_it() {
    let mut testbed = testbed();
    let mut peer = testbed.welcomed();
    peer.send(&FromNode::Opened { part: PartNumber(0), opened: Err("no space".into()) });
    testbed.until(|testbed| testbed.remote.notices.len() == 2);
    testbed.submit(1, Command::Read);
    assert_eq!(testbed.done.pop().unwrap().outcome, Err(Fault::Io));
    drop(peer);
    testbed.until(|testbed| !testbed.remote.is_up());
    testbed.remote.retry = Retry::new(RETRY_MIN, RETRY_MAX);
    let mut peer = testbed.connected();
    testbed.submit(2, Command::Flush);
    peer.accept();
    testbed.until(|testbed| testbed.done.len() == 1);
    assert_eq!(testbed.done[0].outcome, Ok(()));
}

#[test]
fn a_node_that_makes_no_sense_is_left() {
    for (ticket, payload) in [(0, &b"four"[..3]), (5, b"four")] {
        let mut testbed = testbed();
        let mut peer = testbed.connected();
        testbed.submit(7, Command::Read);
        peer.job();
        peer.answer(ticket, Ok(()), payload);
        testbed.until(|testbed| !testbed.remote.is_up());
        assert_eq!((testbed.done[0].ticket, testbed.done[0].outcome), (7, Err(Fault::Io)));
    }
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    peer.stream.write_all(&[9; 32]).unwrap();
    testbed.until(|testbed| !testbed.remote.is_up());
}

#[test]
fn while_jobs_wait_the_node_is_looked_for_often_enough_to_serve_them_when_it_is_back() {
    let mut testbed = testbed();
    testbed.remote.submit(NOW, &mut vec![job(1, Command::Read)], &mut testbed.done);
    std::fs::remove_file(testbed.folder.path().join("node")).unwrap();
    let gives_up = NOW.after(Span(5 * Span::SECOND.0));
    let mut last = NOW;
    while testbed.done.is_empty() {
        let next = testbed.remote.next_deadline();
        assert!(next <= last.after(RETRY_MAX_AWAITED) && next <= gives_up, "{last:?} {next:?}");
        testbed.remote.on_deadline(&testbed.reactor, next, &mut testbed.done);
        last = next;
    }
    assert_eq!(last, gives_up);
    // Once no job waits, it is looked for less and less often.
    for _ in 0..10 {
        last = testbed.remote.next_deadline();
        testbed.remote.on_deadline(&testbed.reactor, last, &mut testbed.done);
    }
    assert_eq!(testbed.remote.next_deadline(), last.after(RETRY_MAX));
}

#[test]
fn a_node_that_takes_a_long_request_slowly_is_not_left() {
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    let buffer = Buffer::with_length(32 << 20);
    let command = Command::Write { durable: false };
    let long = Job { length: 32 << 20, buffer, ..job(1, command) };
    testbed.remote.submit(NOW, &mut vec![long], &mut testbed.done);
    testbed.remote.flush(&testbed.reactor, NOW, &mut testbed.done);
    peer.stream.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..7 {
        testbed.now = testbed.now.after(Span(4 * Span::SECOND.0));
        testbed.remote.on_deadline(&testbed.reactor, testbed.now, &mut testbed.done);
        assert!(testbed.remote.is_up() && testbed.done.is_empty(), "it takes what it is sent");
        // It takes all that the socket holds, which is a small part of the request.
        while peer.stream.read(&mut bytes).is_ok() {}
        testbed.run_once(Duration::from_secs(60));
    }
    testbed.now = testbed.remote.next_deadline();
    testbed.remote.on_deadline(&testbed.reactor, testbed.now, &mut testbed.done);
    assert_eq!(testbed.done.len(), 1, "it takes nothing more");
}

#[test]
fn a_silent_node_that_owes_an_answer_is_disconnected() {
    let mut testbed = testbed();
    let mut peer = testbed.connected();
    assert_eq!(testbed.remote.next_deadline(), Time::MAX, "a node that owes nothing may be silent");
    testbed.submit(1, Command::Read);
    let second = Span::SECOND;
    for _ in 0..10 {
        assert_eq!(testbed.remote.next_deadline(), testbed.now.after(SILENCE_MAX));
        testbed.now = testbed.now.after(Span(4 * second.0));
        testbed.remote.on_deadline(&testbed.reactor, testbed.now, &mut testbed.done);
        peer.send(&FromNode::Alive);
        testbed.run_once(Duration::from_secs(60));
    }
    assert!(testbed.remote.is_up() && testbed.done.is_empty(), "it has said that it lives");
    testbed.submit(2, Command::Read);
    testbed.now = testbed.remote.next_deadline();
    testbed.remote.on_deadline(&testbed.reactor, testbed.now, &mut testbed.done);
    let done = testbed.done.iter().map(|job| (job.ticket, job.outcome));
    assert_eq!(done.collect::<Vec<_>>(), [(1, Err(Fault::Io)), (2, Err(Fault::Io))]);
    assert_eq!(
        testbed.remote.next_deadline(),
        testbed.now.after(RETRY_MIN),
        "it is looked for again"
    );
}
