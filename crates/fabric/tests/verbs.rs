//! One-sided access over RDMA does what every connection does, needs nothing of the node's
//! processor, and can be taken away.
//!
//! Where there is no RDMA device the tests say so and end; `make test-verbs` runs them in a virtual
//! machine that has one.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its own functions too")]

mod conformance;

use std::io::Write;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use conformance::{Backend, Threads};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::capacity::Profile;
use tidegate_algo::onesided::engine::Promise;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_fabric::memory::verbs::{
    Answer, ClientNumber, ConnectRequest, Opening, RdmaDevice, RdmaError, RdmaHost, Verbs,
};
use tidegate_fabric::stream::Stream;
use tidegate_fabric::unix::MessageLink;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::monitor::MonitorSettings;
use tidegate_onesided::haechi::{Monitor, MonitorEvent, Port, SessionParameters, region_layout};
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Done, Lost, Operation, Post, RemoteMemory,
};
use tidegate_proto::codec::{self, Decoder};

/// How long anything may take until it counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Operations under way, as in the paper.
const WINDOW: u32 = 64;

/// A device, if there is one.
fn device() -> Option<Arc<RdmaDevice>> {
    let opened = RdmaDevice::open(None);
    if let Err(error) = &opened {
        assert!(std::env::var_os("TIDEGATE_NO_SKIP").is_none(), "{error}");
        // Once, and past the harness that hides what passing tests print.
        static NOTICE: Once = Once::new();
        NOTICE.call_once(|| drop(writeln!(std::io::stderr(), "skipped: tests over RDMA: {error}")));
    }
    opened.ok()
}

/// Clients of one region on one device.
struct Looped(RdmaHost);

fn looped() -> Option<Looped> {
    // Of an odd size.
    let region = Region::create((1 << 20) + 13).unwrap();
    Some(Looped(RdmaHost::new(&device()?, region.into()).unwrap()))
}

impl Backend for Looped {
    type RemoteMemory = Verbs;

    fn open(&mut self) -> Verbs {
        self.0.loop_back(4, WINDOW).unwrap()
    }

    fn area(&self) -> Range<u64> {
        4096..1 << 16
    }

    fn pass(&mut self) -> Time {
        Time::ZERO
    }
}

impl Threads for Looped {
    fn clock(&self) -> impl Fn() -> Time + Send + Sync + 'static {
        || Time::ZERO
    }

    // A device in software, in an emulated machine, does a thousand operations a second.
    const ROUNDS: u64 = 200;
}

mod device {
    crate::conformance::conformance! { match super::looped() { Some(it) => it, None => return } }
    crate::conformance::conformance_among_threads! {
        match super::looped() { Some(it) => it, None => return }
    }
}

/// Requests of the tests to a node that is a process of its own.
#[derive(Debug, Serialize, Deserialize)]
enum NodeRequest {
    Admit(ConnectRequest),
    /// Shuts out the client that came first.
    Fence,
    /// Reads the word at this address of the region, by the node's own processor.
    Word(u64),
}

#[derive(Debug, Serialize, Deserialize)]
enum NodeReply {
    Admitted(Answer),
    Fenced,
    Word(u64),
}

/// Tells the test's own program that it is the data node.
const ROLE: &str = "TIDEGATE_TEST_DATA_NODE";

/// The data node: answers on its standard input until that is closed. As a test of its own it does
/// nothing.
#[test]
fn data_node() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let region = Arc::new(Region::create(1 << 20).unwrap());
    let mut host = RdmaHost::new(&device().unwrap(), Arc::clone(&region)).unwrap();
    let mut own = Shm::new(region, 1);
    let mut link: MessageLink<NodeRequest> =
        link(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).unwrap());
    let mut clients: Vec<ClientNumber> = Vec::new();
    while let Ok(request) = link.wait(PATIENCE) {
        let reply = match request {
            NodeRequest::Admit(request) => {
                let (client, answer) = host.admit(&request).unwrap();
                clients.push(client);
                NodeReply::Admitted(answer)
            }
            NodeRequest::Fence => {
                assert!(host.fence(clients[0]));
                assert!(!host.fence(clients[0]), "it is gone");
                NodeReply::Fenced
            }
            NodeRequest::Word(at) => {
                let read = Operation::Read { from: at, into: BufferPosition::start(0), length: 8 };
                own.perform(&read).unwrap();
                NodeReply::Word(first_word(&own))
            }
        };
        link.send(&reply).unwrap();
    }
}

fn link<In: DeserializeOwned>(socket: OwnedFd) -> MessageLink<In> {
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(true).unwrap();
    Stream::from(socket).into()
}

fn first_word(remote: &impl RemoteMemory) -> u64 {
    u64::from_le_bytes(*remote.buffer(0).first_chunk().unwrap())
}

/// A node in a process of its own, and the connection to it.
struct Node {
    process: Child,
    link: MessageLink<NodeReply>,
    device: Arc<RdmaDevice>,
}

impl Node {
    fn start() -> Option<Self> {
        let device = device()?;
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "data_node", "--nocapture"])
            .env(ROLE, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { process, link: link(ours.into()), device })
    }

    fn request(&mut self, request: &NodeRequest) -> NodeReply {
        self.link.send(request).unwrap();
        self.link.wait(PATIENCE).unwrap()
    }

    fn client(&mut self) -> Verbs {
        let opening = Opening::new(&self.device, 4, WINDOW).unwrap();
        match self.request(&NodeRequest::Admit(opening.request())) {
            NodeReply::Admitted(answer) => opening.connect(&answer).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn word(&mut self, at: u64) -> u64 {
        match self.request(&NodeRequest::Word(at)) {
            NodeReply::Word(word) => word,
            other => panic!("{other:?}"),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Takes the processor away from the node, and returns once it is.
    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Posts all of it at once, and waits for it.
fn perform(remote: &mut Verbs, operations: &[Operation]) -> Result<Vec<u64>, Lost> {
    for (id, operation) in (0..).zip(operations) {
        remote.post(Post { id, operation: *operation }).unwrap();
    }
    remote.flush(Time::ZERO)?;
    let mut done: Vec<Done> = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while done.len() < operations.len() {
        assert!(Instant::now() < deadline, "{} of {} are done", done.len(), operations.len());
        remote.poll(Time::ZERO, &mut done)?;
    }
    done.sort_by_key(|done| done.id);
    Ok(done.iter().map(|done| done.word).collect())
}

/// A request that no client of ours makes: so many queue pairs, of a device that says it can do
/// nothing.
fn foreign(queues: usize) -> ConnectRequest {
    let pairs = vec![(u32::MAX, u32::MAX); queues];
    let (mut bytes, mut decoder) = (Vec::new(), Decoder::new());
    codec::encode(&([0u8; 16], 0u16, 0u8, 0u8, 0u8, pairs), &mut bytes).unwrap();
    decoder.extend(&bytes);
    decoder.next_message().unwrap().unwrap()
}

#[test]
fn requests_of_a_client_may_be_nonsense() {
    let Some(Looped(mut host)) = looped() else { return };
    for queues in [0, 17, 1000] {
        assert_eq!(host.admit(&foreign(queues)).unwrap_err(), RdmaError::Peer);
    }
    host.admit(&foreign(5)).unwrap_err();
    let mut client = host.loop_back(1, 1).unwrap();
    let add = Operation::FetchAdd { at: 64, add: 1 };
    assert_eq!(perform(&mut client, &[add]), Ok(vec![0]), "others are let in as before");
    let device = device().unwrap();
    assert!(matches!(Opening::new(&device, 1, 0), Err(RdmaError::Window { .. })));
    assert!(matches!(Opening::new(&device, 1, u32::MAX), Err(RdmaError::Window { .. })));
    assert!(matches!(RdmaDevice::open(Some("none")), Err(RdmaError::NoDevice { .. })));
}

#[test]
fn memory_is_reached_while_the_node_is_stopped() {
    let Some(mut node) = Node::start() else { return };
    let mut client = node.client();
    node.stop();
    client.buffer_mut(1).fill(7);
    let write = Operation::Write { from: BufferPosition::start(1), to: 8192, length: BUFFER };
    let add = Operation::FetchAdd { at: 64, add: 5 };
    let swap = Operation::CompareSwap { at: 64, expected: 5, new: 9 };
    // Of a read that is posted behind a write, the write is seen.
    let read = Operation::Read { from: 8192, into: BufferPosition::start(0), length: BUFFER };
    let word = Operation::WriteWord { word: 11, to: 72 };
    assert_eq!(perform(&mut client, &[write, add, swap, read, word]), Ok(vec![0, 0, 5, 0, 0]));
    assert!(client.buffer(0).iter().all(|byte| *byte == 7));
    // More than an RNIC reads at once through one queue pair.
    let reads: Vec<_> = (0..WINDOW)
        .map(|at| {
            let into = BufferPosition { buffer: at % 4, offset: at / 4 * 8 };
            Operation::Read { from: 64 + u64::from(at % 2) * 8, into, length: 8 }
        })
        .collect();
    perform(&mut client, &reads).unwrap();
    assert_eq!(first_word(&client), 9);
    // More changes in a row than may be done without saying so.
    let words: Vec<_> = (0..WINDOW)
        .map(|at| Operation::WriteWord { word: 1, to: 64 + u64::from(at) * 8 })
        .collect();
    perform(&mut client, &words).unwrap();
    node.go_on();
    assert_eq!((node.word(64), node.word(64 + u64::from(WINDOW - 1) * 8)), (1, 1));
    assert_eq!(node.word(8192), u64::from_ne_bytes([7; 8]));
}

#[test]
fn a_fenced_client_loses_the_region_and_no_other_client_does() {
    let Some(mut node) = Node::start() else { return };
    let (mut fenced, mut other) = (node.client(), node.client());
    let add = Operation::FetchAdd { at: 64, add: 1 };
    assert_eq!(perform(&mut fenced, &[add]), Ok(vec![0]));
    assert_eq!(perform(&mut other, &[add]), Ok(vec![1]));
    assert!(matches!(node.request(&NodeRequest::Fence), NodeReply::Fenced));
    let word = |word| Operation::WriteWord { word, to: 128 };
    assert_eq!(perform(&mut other, &[word(1), add]), Ok(vec![0, 2]));
    assert_eq!(perform(&mut fenced, &[word(2), add]), Err(Lost));
    assert_eq!(fenced.flush(Time::ZERO), Err(Lost), "for good");
    assert_eq!(perform(&mut other, &[add]), Ok(vec![3]));
    assert_eq!((node.word(64), node.word(128)), (4, 1));
    node.process.kill().unwrap();
    node.process.wait().unwrap();
    assert_eq!(perform(&mut other, &[add]), Err(Lost), "with its node");
}

/// Parameters that engines and a monitor share here: a device in software does a thousand
/// operations a second.
const PARAMETERS: SessionParameters =
    SessionParameters { rules: Rules::SOUND, period: Span::SECOND, local_rate: 500 };
const PROFILE: Profile = Profile { mean: 800, deviation: 20, local: 500, increment: 8, history: 5 };

/// Reads a hundred blocks, each of which takes a token.
fn reads_with_tokens(remote: Verbs, session_slot: SessionSlot, clock: impl Fn() -> Time) {
    let window = 16;
    let mut port = Port::new(remote, PARAMETERS, session_slot, window, clock()).unwrap();
    let (mut posted, mut done) = (0, Vec::new());
    let deadline = Instant::now() + PATIENCE;
    while done.len() < 100 {
        assert!(Instant::now() < deadline, "{} are done: {:?}", done.len(), port.counts());
        if posted < 100 && posted - done.len() < window as usize {
            let into = BufferPosition::start(posted as u32 % 2);
            let read = Operation::Read { from: region_layout::DATA, into, length: 4096 };
            port.post(Post { id: posted as u64, operation: read }).unwrap();
            posted += 1;
        }
        port.flush(clock()).unwrap();
        port.poll(clock(), &mut done).unwrap();
    }
    assert_eq!(port.counts().operations, 100);
}

#[test]
fn tokens_are_had_over_rdma() {
    let Some(device) = device() else { return };
    let region = Region::create(region_layout::DATA + (1 << 20)).unwrap();
    let mut host = RdmaHost::new(&device, region.into()).unwrap();
    let begin = Instant::now();
    let clock = || Time(1 + begin.elapsed().as_nanos() as u64);
    let settings =
        MonitorSettings { parameters: PARAMETERS, profile: PROFILE, session_slots: 2, window: 16 };
    let mut monitor = Monitor::new(host.loop_back(3, WINDOW).unwrap(), settings, clock()).unwrap();
    let mut events = Vec::new();
    while monitor.epoch() == 0 {
        monitor.poll(clock(), &mut events).unwrap();
    }
    // One has a reservation, the other has what is left.
    let session_slots = [100, 0]
        .map(|reservation| monitor.admit(Promise { reservation, limit: u64::MAX }).unwrap());
    let clients =
        session_slots.map(|session_slot| (host.loop_back(4, WINDOW).unwrap(), session_slot));
    std::thread::scope(|scope| {
        let clients = clients.map(|(remote, session_slot)| {
            scope.spawn(move || reads_with_tokens(remote, session_slot, clock))
        });
        while clients.iter().any(|client| !client.is_finished()) {
            monitor.poll(clock(), &mut events).unwrap();
            std::thread::yield_now();
        }
    });
    let cheats = events.iter().filter(|event| matches!(event, MonitorEvent::Overstepped { .. }));
    assert_eq!(cheats.count(), 0, "{events:?}");
    for event in &events {
        let MonitorEvent::Over(over) = event else { continue };
        assert!(over.granted <= over.minted && over.minted <= over.capacity, "{over:?}");
    }
}
