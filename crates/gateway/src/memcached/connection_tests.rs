//! Laws of a memcached connection: requests are answered in order with the replies of their nodes,
//! the memory that a connection takes up is charged, and it is read only as far as memory allows.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::io::{IoSlice, Read};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

use tidegate_algo::allocation::connection_quota::OpenConnections;
use tidegate_fabric::reactor::Reactor;
use tidegate_fabric::service::{
    Command, CompletionSink, OpenPart, Part, PartState, Service, Session,
};
use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_model::policy::Policy;
use tidegate_model::{CostModel, NodeId, PartNumber};

use super::*;
use crate::config::Limits;
use crate::counters::ServerCounters;
use crate::ketama::Server;
use crate::links::Common;
use crate::memcached::VALUE_MAX_DEFAULT;
use crate::message::Message;
use crate::nodes::NodeLocation;
use crate::owners::Register;
use crate::reachability::{NodeLabel, Reachability};
use crate::worker::{Client as _, Frontend as _};

const TOKEN: u64 = 7;
/// The bytes of a reply to one key that are expected before the first reply.
const EXPECTED: usize = 16 << 10;

/// A node that keeps every job for the test to answer.
#[derive(Clone, Default)]
struct Keeps(Arc<Mutex<Vec<Job>>>);

impl Keeps {
    fn jobs(&self) -> Vec<Job> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Service for Keeps {
    fn session(&self, _: Arc<dyn CompletionSink>) -> Box<dyn Session> {
        Box::new(self.clone())
    }
}

impl Session for Keeps {
    fn tenants(&mut self, _: &[String]) {}

    fn open(&mut self, _: &Part) -> Result<OpenPart, String> {
        Ok(OpenPart { number: PartNumber(0), state: PartState { incarnation: 1, identity: None } })
    }

    fn submit(&mut self, jobs: &mut Vec<Job>, _: &mut Vec<Job>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(jobs);
    }
}

/// One client of a pool, and its other end.
struct Scene {
    frontend: Frontend,
    client: Connection,
    peer: Stream,
    nodes: Keeps,
    reactor: Reactor<Message>,
    register: Register,
}

/// The parameters in which tests differ.
#[derive(Clone, Copy)]
struct Given {
    nodes: usize,
    flush_all: bool,
    /// The bytes that all clients may take up, and one large request.
    memory: (usize, usize),
    /// Requests of all clients, and how many clients there are.
    requests: (usize, usize),
}

const GIVEN: Given =
    Given { nodes: 1, flush_all: true, memory: (64 << 20, 32 << 20), requests: (1_024, 1) };

impl Scene {
    fn new(given: Given) -> Self {
        let (reactor, nodes) = (Reactor::new().unwrap(), Keeps::default());
        let servers = (0..given.nodes).map(|node| {
            let server = Server { host: format!("node-{node}"), port: 1, weight: 1 };
            (NodeId(node as _), server)
        });
        let pool = Pool {
            address: Address::Unix("unused".into()),
            access: ListenerAccess::PRIVATE,
            name: "cache".into(),
            nodes: servers.collect(),
            tenant: "kv".into(),
            value_max: VALUE_MAX_DEFAULT,
            flush_all: given.flush_all,
        };
        let register = Register::new(given.nodes, ["kv"].into_iter(), true);
        let reporter = Reachability::new(vec![NodeLabel::default(); given.nodes]).join();
        let services: Vec<_> =
            (0..given.nodes).map(|_| NodeLocation::Here(Arc::new(nodes.clone()))).collect();
        let costs = (CostModel::Bytes, Limits::default().patience, true);
        let common = Common::new(costs, "g", &[]).unwrap().of_pool(pool.nodes.len());
        let opened = Nodes::open(&services, &[pool.parts()], (&common, &reporter), &reactor);
        let limits = Limits { all_requests: given.requests.0, ..Limits::default() };
        let context = ServerContext {
            listeners: Vec::new(),
            limits,
            clients: AtomicUsize::new(given.requests.1),
            open: Mutex::new(OpenConnections::new(limits.connections)),
            memory: AtomicUsize::new(0),
            memory_limit: given.memory.0,
            counts: ServerCounters::new(["cache"].into_iter()),
        };
        let mut budget = MemoryBudget::new(given.memory.0, given.memory.1);
        budget.enter();
        let context = (Arc::new(context), budget);
        let mut frontend =
            Frontend::new(Arc::new(pool), opened.unwrap(), context, register.table());
        let (ours, peer) = Stream::pair().unwrap();
        let client = frontend.welcome(TOKEN, ours);
        Self { frontend, client, peer, nodes, reactor, register }
    }

    /// Has the client send these bytes, and gives the jobs that come of it.
    fn send(&mut self, text: &[u8]) -> Vec<Job> {
        assert_eq!(self.peer.send(&[IoSlice::new(text)]).unwrap(), text.len());
        assert!(self.client.receive(&mut vec![0; 256 << 10], &mut self.frontend).unwrap());
        self.jobs()
    }

    /// The jobs that are new at the nodes.
    fn jobs(&mut self) -> Vec<Job> {
        let mut done = Vec::new();
        self.frontend.nodes().submit(&self.reactor, &mut done);
        assert!(done.is_empty(), "nothing is refused");
        // The budget knows what is charged.
        assert_eq!(self.client.charge().all, self.frontend.budget.used());
        self.nodes.jobs()
    }

    /// Has a node answer a job, and looks after the client.
    fn answers(&mut self, mut job: Job, reply: Result<&[u8], Fault>) -> bool {
        job.outcome = reply.map(drop);
        job.buffer = Buffer::from(reply.unwrap_or_default());
        let (token, answer) = self.frontend.complete(job).unwrap();
        assert_eq!(token, TOKEN);
        self.client.answer(answer, &mut self.frontend);
        self.client.make_progress(&mut self.frontend).unwrap()
    }

    /// The bytes that the client has received.
    fn replies(&mut self) -> String {
        let mut bytes = vec![0; 4 << 20];
        match self.peer.read(&mut bytes) {
            Ok(count) => String::from_utf8(bytes[..count].to_vec()).unwrap(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => String::new(),
            Err(error) => panic!("{error}"),
        }
    }

    fn reads(&self) -> bool {
        self.client.wanted(&self.frontend).read
    }
}

/// A node's reply to a `get` that finds a value of this length.
fn value(length: usize) -> Vec<u8> {
    [format!("VALUE k 0 {length}\r\n").as_bytes(), &vec![b'x'; length], b"\r\nEND\r\n"].concat()
}

#[test]
fn replies_leave_in_order_and_what_is_charged_is_what_is_held() {
    let mut scene = Scene::new(GIVEN);
    let idle = Charge::default();
    assert!(scene.reads() && !scene.client.is_waiting() && scene.client.charge() == idle);
    assert!(scene.client.is_handshaking(), "it has never sent anything");
    assert_eq!(scene.client.tenant(&scene.frontend), "kv");
    let [get, set] = ["get a\r\n", "set b 0 0 1\r\nx\r\n"];
    let jobs = scene.send(format!("{get}{set}ge").as_bytes());
    assert!(scene.client.is_waiting() && !scene.client.is_handshaking());
    let sent: Vec<_> = jobs.iter().map(|job| (job.command, job.buffer.to_vec())).collect();
    assert_eq!(
        sent,
        [get, set].map(|text| (Command::KeyValue, text.as_bytes().to_vec())),
        "what is asked goes to the node as it is"
    );
    assert_eq!(scene.frontend.sub_requests(TOKEN), [0, 1]);
    let at_nodes = get.len() + set.len() + 2 * EXPECTED;
    let moved = (get.len() + set.len() + 2) as u64;
    assert_eq!(scene.client.charge(), Charge { all: at_nodes + 2, at_nodes, moved });
    // The second reply has to wait for the first one, and is held meanwhile.
    let [first, second] = <[Job; 2]>::try_from(jobs).unwrap_or_else(|_| panic!("there are two"));
    assert!(!scene.answers(second, Ok(b"STORED\r\n")));
    assert_eq!((scene.replies(), scene.frontend.sub_requests(TOKEN)), (String::new(), vec![0]));
    let at_nodes = get.len() + EXPECTED;
    assert_eq!(scene.client.charge(), Charge { all: at_nodes + 8 + 2, at_nodes, moved });
    assert!(!scene.answers(first, Ok(b"END\r\n")));
    assert_eq!(scene.replies(), "END\r\nSTORED\r\n");
    assert!(!scene.client.is_waiting() && scene.reads());
    assert_eq!(scene.client.charge(), Charge { all: 2, at_nodes: 0, moved: moved + 13 });
    // The rest of the third request.
    let jobs = scene.send(b"t c\r\n");
    assert_eq!(jobs[0].buffer.to_vec(), b"get c\r\n");
    scene.answers(jobs.into_iter().next().unwrap(), Err(Fault::Io));
    assert_eq!(scene.replies(), "SERVER_ERROR the node is away\r\n");
    assert_eq!(scene.client.charge().all, 0);
}

#[test]
fn a_request_is_taken_with_its_last_byte_and_what_is_behind_it_too() {
    let mut scene = Scene::new(GIVEN);
    assert!(scene.send(b"set b 0 0 5\r\nhel").is_empty());
    assert!(scene.reads());
    assert_eq!(scene.send(b"lo\r\n").len(), 1, "exactly the rest");
    assert!(scene.send(b"set c 0 0 5\r\nhel").is_empty());
    assert_eq!(scene.send(b"lo\r\nget a\r\nget d").len(), 2, "the rest and more");
    assert_eq!(scene.send(b"\r\n").len(), 1);
}

#[test]
fn expected_reply_lengths_follow_the_longest_of_late() {
    let mut scene = Scene::new(GIVEN);
    let mut expected = EXPECTED;
    for (keys, length) in [(1, 5), (1, 0), (2, 60_000), (1, 9), (2, 5), (1, 100_000), (1, 9)] {
        let request = format!("get{}\r\n", " k".repeat(keys));
        let [job] = <[Job; 1]>::try_from(scene.send(request.as_bytes())).unwrap();
        assert_eq!(scene.client.charge().at_nodes, job.length as usize + keys * expected);
        let reply = vec![b'x'; length];
        scene.answers(job, Ok(&reply));
        while !scene.client.output.is_empty() {
            scene.replies();
            scene.client.make_progress(&mut scene.frontend).unwrap();
        }
        scene.replies();
        // At least 128 bytes, and an eighth less with each reply that has less.
        expected = (length / keys).max(128).max(expected - expected / 8);
    }
    assert_eq!(scene.client.charge().all, 0);
}

/// The client's requests are long from a reply above the bound until as many short ones have come.
#[test]
fn requests_are_long_until_enough_short_replies_have_come() {
    let mut scene = Scene::new(GIVEN);
    let mut is_long_after = |length: usize| {
        let [job] = <[Job; 1]>::try_from(scene.send(b"get k\r\n")).unwrap();
        let is_long = scene.client.is_long;
        scene.answers(job, Ok(&vec![b'x'; length]));
        while !scene.client.output.is_empty() {
            scene.replies();
            scene.client.make_progress(&mut scene.frontend).unwrap();
        }
        scene.replies();
        is_long
    };
    assert!(is_long_after(5), "no reply has come");
    assert!(!is_long_after(LONG), "one short reply has come");
    assert!(!is_long_after(LONG + 1), "a reply as long as the bound is short");
    for reply in 1..=SHORTS {
        assert!(is_long_after(LONG), "short reply {reply}");
    }
    assert!(!is_long_after(5));
}

#[test]
fn a_client_has_its_share_of_all_requests_and_then_waits_for_replies() {
    // Two clients may have four requests together.
    let mut scene = Scene::new(Given { requests: (4, 2), ..GIVEN });
    // Its first reply says that its requests are short ones.
    for job in scene.send(b"get a\r\n") {
        scene.answers(job, Ok(b"END\r\n"));
    }
    let mut jobs = scene.send(b"get a\r\nget b\r\nget c\r\nget d\r\n");
    assert_eq!((jobs.len(), scene.reads()), (2, false));
    assert!(!scene.client.make_progress(&mut scene.frontend).unwrap(), "nothing can be taken");
    for left in [2, 1] {
        assert!(scene.answers(jobs.remove(0), Ok(b"END\r\n")), "there was something to take");
        jobs.append(&mut scene.jobs());
        assert_eq!((jobs.len(), scene.client.pipeline.pending()), (2, 2), "{left} were behind");
    }
    // All was taken that had come; more is read once there is room.
    assert!(!scene.client.make_progress(&mut scene.frontend).unwrap());
    assert!(!scene.reads());
    assert!(!scene.answers(jobs.remove(0), Ok(b"END\r\n")));
    assert!(scene.reads() && scene.jobs().is_empty());
}

#[test]
fn a_client_whose_replies_may_take_up_all_memory_waits_for_them() {
    let mut scene = Scene::new(Given { memory: (0, 0), ..GIVEN });
    // The floor of each client is 64 KiB: four replies as they are expected.
    let mut jobs = scene.send(b"get a\r\nget b\r\nget c\r\nget d\r\n");
    assert_eq!((jobs.len(), scene.reads()), (4, false));
    assert!(!scene.client.make_progress(&mut scene.frontend).unwrap());
    assert!(!scene.reads(), "there is no memory for another reply");
    scene.answers(jobs.remove(0), Ok(b"END\r\n"));
    assert!(scene.reads());
    // A request for many keys is asked for in parts, as replies come.
    let keys: String = (0..64).map(|key| format!(" {key}")).collect();
    for job in jobs {
        scene.answers(job, Ok(b"END\r\n"));
    }
    let mut jobs = scene.send(format!("get{keys}\r\n").as_bytes());
    let mut asked = jobs.len();
    assert!(asked > 0 && scene.client.pipeline.unsent() > 0 && !scene.reads());
    assert!(!scene.client.make_progress(&mut scene.frontend).unwrap(), "there is no credit");
    while !jobs.is_empty() {
        let has_more = scene.client.pipeline.unsent() > 0;
        let is_more = scene.answers(jobs.remove(0), Ok(b"END\r\n"));
        jobs.append(&mut scene.jobs());
        assert!(is_more || !has_more || !jobs.is_empty(), "the rest is asked for");
        asked += usize::from(is_more);
    }
    assert!(asked > 1 && scene.client.pipeline.unsent() == 0);
    assert_eq!(scene.replies().matches("END").count(), 5);
}

#[test]
fn a_reply_for_which_there_is_no_memory_is_an_error_and_a_nodes_error_stays_one() {
    let mut scene = Scene::new(Given { memory: (0, 0), ..GIVEN });
    let mut jobs = scene.send(b"get a\r\nget b\r\nget c\r\nget d\r\n");
    scene.answers(jobs.remove(0), Ok(&value(100_000)));
    assert_eq!(scene.replies(), OUT_OF_MEMORY);
    // The budget is used up by others, too.
    scene.frontend.budget.charge(TOKEN + 1, 0, 1 << 30);
    for (fault, text) in [
        (Fault::Io, "SERVER_ERROR the node is away\r\n"),
        (Fault::NoSpace, "SERVER_ERROR out of memory storing object\r\n"),
        (Fault::Unsupported, "SERVER_ERROR the node does not take this request\r\n"),
    ] {
        let mut job = jobs.remove(0);
        job.outcome = Err(fault);
        let (_, (request, reply)) = scene.frontend.complete(job).unwrap();
        scene.client.take_reply(
            request,
            reply.map(|_| Buffer::from(&b""[..])),
            &mut scene.frontend.budget,
        );
        scene.client.make_progress(&mut scene.frontend).unwrap();
        assert_eq!(scene.replies(), text);
    }
}

#[test]
fn a_long_value_has_its_memory_from_its_head_to_its_end() {
    let length = (128 << 10) - "set b 0 0 131052\r\n".len() - 2;
    assert_eq!(length, 131_052, "the request is as long as a power of two");
    // So little that what the client has already would not be had again.
    let mut scene = Scene::new(Given { memory: (384 << 10, 0), ..GIVEN });
    assert!(scene.send(format!("set b 0 0 {length}\r\n").as_bytes()).is_empty());
    scene.frontend.budget.charge(TOKEN + 1, 0, 200 << 10);
    for _ in 0..3 {
        assert!(!scene.client.make_progress(&mut scene.frontend).unwrap());
        assert_eq!((scene.client.charge().all, scene.client.input_max), (128 << 10, 128 << 10));
        assert!(scene.reads() && !scene.client.is_waiting_for_memory());
    }
    scene.frontend.budget.charge(TOKEN + 1, 200 << 10, 0);
    let mut rest = vec![b'x'; length];
    rest.extend(b"\r\n");
    let mut jobs = Vec::new();
    for chunk in rest.chunks(64 << 10) {
        jobs.append(&mut scene.send(chunk));
    }
    assert_eq!(jobs.len(), 1);
    // The request is at its node, and what comes next needs no more than any.
    scene.client.make_progress(&mut scene.frontend).unwrap();
    let at_nodes = (128 << 10) + EXPECTED;
    assert_eq!((scene.client.charge().all, scene.client.charge().at_nodes), (at_nodes, at_nodes));
    assert_eq!((scene.client.held.len(), scene.client.input_max), (0, SHARE_MIN));
    assert!(scene.client.held.capacity() <= SHARE_MIN);
    scene.answers(jobs.remove(0), Ok(b"STORED\r\n"));
    assert_eq!((scene.replies().as_str(), scene.client.charge().all), ("STORED\r\n", 0));
}

#[test]
fn a_client_is_not_read_from_until_there_is_memory_for_its_value() {
    let mut scene = Scene::new(Given { memory: (0, 0), ..GIVEN });
    assert!(scene.send(b"set b 0 0 200000\r\n").is_empty());
    scene.client.make_progress(&mut scene.frontend).unwrap();
    assert!(scene.client.is_waiting_for_memory() && !scene.reads());
    scene.frontend.budget = MemoryBudget::new(1 << 20, 0);
    scene.frontend.budget.enter();
    scene.client.charged = 0;
    scene.client.make_progress(&mut scene.frontend).unwrap();
    assert!(!scene.client.is_waiting_for_memory() && scene.reads());
    assert_eq!(scene.client.charge().all, 256 << 10, "a power of two");
}

#[test]
fn a_client_that_leaves_its_replies_is_not_read_from() {
    let mut scene = Scene::new(GIVEN);
    // As much as the kernel takes, and then as much as may be left with the gateway.
    let get = |scene: &mut Scene, length: usize| {
        let [job] = <[Job; 1]>::try_from(scene.send(b"get a\r\n")).unwrap();
        scene.answers(job, Ok(&value(length)));
    };
    while scene.client.output.is_empty() {
        assert!(!scene.client.wanted(&scene.frontend).write && scene.reads());
        get(&mut scene, 100_000);
    }
    assert!(scene.client.wanted(&scene.frontend).write && scene.reads());
    let left = (1 << 20) - scene.client.output.len();
    let head = value(left).len() - left;
    get(&mut scene, left - head - 1);
    let short = (1 << 20) - scene.client.output.len();
    assert!(short > 0 && scene.reads(), "{short} bytes more may be left");
    assert_eq!(scene.client.charge().all, scene.client.output.len());
    scene.client.output.push(&vec![b'x'; short]);
    assert!(!scene.reads());
    let before = scene.client.charge().moved;
    let mut sent = 0;
    while !scene.client.output.is_empty() {
        scene.replies();
        let held = scene.client.output.len();
        scene.client.make_progress(&mut scene.frontend).unwrap();
        sent += held - scene.client.output.len();
    }
    assert_eq!(scene.client.charge().moved - before, sent as u64);
    assert!(scene.reads() && !scene.client.wanted(&scene.frontend).write);
}

#[test]
fn flush_all_goes_to_every_node_of_the_pool_unless_it_is_not_to_be_emptied() {
    let mut scene = Scene::new(Given { nodes: 3, ..GIVEN });
    let jobs = scene.send(b"flush_all\r\n");
    assert_eq!(jobs.len(), 3);
    for job in jobs {
        scene.answers(job, Ok(b"OK\r\n"));
    }
    assert_eq!(scene.replies(), "OK\r\n");
    let mut scene = Scene::new(Given { nodes: 3, flush_all: false, ..GIVEN });
    assert!(scene.send(b"flush_all\r\n").is_empty());
    scene.client.make_progress(&mut scene.frontend).unwrap();
    assert!(scene.replies().contains("ERROR"));
}

#[test]
fn a_key_is_for_the_users_of_its_tenant_by_the_policy_that_holds_now() {
    let mut scene = Scene::new(GIVEN);
    let rules = "[[tenant]]\nname = \"kv\"\n[[tenant]]\nname = \"web\"\nusers = [\"nobody\"]\n\
                 [[match]]\ntenant = \"web\"\nkey = \"session:\"\n";
    scene.register.apply(Policy::parse(rules).unwrap(), BTreeMap::new());
    scene.frontend.on_table(&scene.register.table());
    scene.client.on_table(&scene.frontend);
    let jobs = scene.send(b"get session:1\r\nget user:1\r\n");
    assert_eq!(jobs.len(), 1);
    assert_eq!(scene.client.take_denial().as_deref(), Some(NOT_ALLOWED.trim_end()));
    for job in jobs {
        scene.answers(job, Ok(b"END\r\n"));
    }
    assert_eq!(scene.replies(), format!("{NOT_ALLOWED}END\r\n"));
    scene.send(b"get session:2\r\n");
    assert_eq!(scene.client.take_denial(), None, "it is told the first time");
}

#[test]
fn a_client_that_leaves_is_over_once_it_has_its_replies() {
    let mut scene = Scene::new(GIVEN);
    let broken = io::Error::from(io::ErrorKind::BrokenPipe);
    let jobs = scene.send(b"get a\r\n");
    assert!(!scene.client.is_over(false) && !scene.client.is_over(true));
    assert!(!scene.client.has_left(&broken), "it waits for a reply");
    scene.peer.finish().unwrap();
    assert!(scene.client.receive(&mut [0; 64], &mut scene.frontend).unwrap());
    assert!(!scene.reads(), "it says nothing more");
    assert!(!scene.client.is_over(false) && scene.client.has_left(&broken));
    assert!(!scene.client.has_left(&io::Error::other("nonsense")));
    for job in jobs {
        scene.answers(job, Ok(b"END\r\n"));
    }
    assert!(scene.client.is_over(false));
    // One that says so is over, too; one that is idle only when the gateway ends.
    let mut scene = Scene::new(GIVEN);
    assert!(!scene.client.is_over(false) && scene.client.is_over(true));
    assert!(!scene.client.has_left(&broken));
    scene.send(b"quit\r\n");
    assert!(scene.client.is_over(false) && scene.client.has_left(&broken));
    scene.client.make_progress(&mut scene.frontend).unwrap();
    // A client that violates the protocol gets the reason.
    let mut scene = Scene::new(GIVEN);
    scene.send(b"set a 0 0 many\r\n");
    let ended = scene.client.make_progress(&mut scene.frontend);
    assert!(ended.is_err() && scene.replies().contains("ERROR"));
}

#[test]
fn a_connection_that_breaks_is_an_error_and_one_without_news_is_none() {
    let mut scene = Scene::new(GIVEN);
    assert!(scene.client.receive(&mut [0; 64], &mut scene.frontend).unwrap());
    let jobs = scene.send(b"get a\r\n");
    for job in jobs {
        scene.answers(job, Ok(b"END\r\n"));
    }
    // It leaves without reading.
    drop(std::mem::replace(&mut scene.peer, Stream::pair().unwrap().0));
    let error = scene.client.receive(&mut [0; 64], &mut scene.frontend).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn at_the_end_requests_at_nodes_fail_and_later_replies_are_dropped() {
    let mut scene = Scene::new(GIVEN);
    let jobs = scene.send(b"get a\r\nget b\r\n");
    let answers = scene.frontend.abandon_all();
    assert_eq!(answers.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [TOKEN; 2]);
    let charged: usize = answers.iter().map(|(_, answer)| Frontend::charge_of(answer)).sum();
    assert_eq!(charged, scene.client.charge().at_nodes);
    for (_, answer) in answers {
        assert_eq!(Frontend::weigh(&answer), (VolumeIndex::POOL, Err(Fault::Ending)));
        scene.client.answer(answer, &mut scene.frontend);
    }
    scene.client.make_progress(&mut scene.frontend).unwrap();
    assert_eq!(scene.replies(), "SERVER_ERROR the gateway is ending\r\n".repeat(2));
    assert!(jobs.into_iter().all(|job| scene.frontend.complete(job).is_none()));
    // An answered request weighs as much as its reply.
    let mut job = scene.send(b"get c\r\n").remove(0);
    job.buffer = Buffer::from(&b"END\r\n"[..]);
    let (_, answer) = scene.frontend.complete(job).unwrap();
    assert_eq!(Frontend::weigh(&answer), (VolumeIndex::POOL, Ok(5)));
}
