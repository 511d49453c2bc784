//! One-sided means one-sided: while the process that made a region is stopped, its memory is read
//! and written and its words are changed, and once it goes on it sees what was done.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its own functions too")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::model::{self, Model, Speed};
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::{Iops, Time};
use tidegate_onesided::one_sided::{BufferPosition, Operation, Post, RemoteMemory};

const LENGTH: u64 = 1 << 20;
/// Where the NIC of the model is, a word that is added to, and a value.
const NIC_AT: u64 = 0;
const WORD: u64 = 4096;
const VALUE: u64 = 8192;

/// Tells the test's own program that it is the data node.
const ROLE: &str = "TIDEGATE_TEST_DATA_NODE";

/// The data node: makes a region, hands it over on its standard input, and tells, once asked, what
/// its memory holds. As a test of its own it does nothing.
#[test]
fn data_node() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let stdin = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).unwrap();
    let mut socket = UnixStream::from(stdin);
    let region = Arc::new(Region::create(LENGTH).unwrap());
    region.populate().unwrap();
    model::set(&region, NIC_AT, Speed::new(Iops(1_570_000), Iops(400_000)));
    let mut own = Shm::new(Arc::clone(&region), 1);
    own.buffer_mut(0).fill(1);
    perform(&mut own, Operation::Write { from: BufferPosition::start(0), to: VALUE, length: 4096 });
    handover::send(&socket, b"region", std::os::fd::AsFd::as_fd(&*region)).unwrap();
    socket.read_exact(&mut [0]).unwrap();
    let word = perform(&mut own, Operation::FetchAdd { at: WORD, add: 0 });
    perform(
        &mut own,
        Operation::Read { from: VALUE, into: BufferPosition::start(0), length: 4096 },
    );
    socket.write_all(&word.to_le_bytes()).unwrap();
    socket.write_all(&own.buffer(0)[..4096]).unwrap();
}

/// The node's process, which does not outlive the test.
struct Node(Child);

impl Node {
    fn start() -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "data_node", "--nocapture"])
            .env(ROLE, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        (Self(child), ours)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns once no thread of the process runs any more.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let (_, status) =
            waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn perform(remote: &mut impl RemoteMemory, operation: Operation) -> u64 {
    let start = Instant::now();
    let now = || {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Time(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    };
    remote.post(Post { id: 0, operation }).unwrap();
    remote.flush(now()).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        remote.poll(now(), &mut done).unwrap();
    }
    done[0].word
}

fn goes_on_without_its_node<F: RemoteMemory>(open: impl Fn(Arc<Region>) -> F) {
    let (node, mut socket) = Node::start();
    let mut message = [0; 64];
    let (count, file) = handover::receive(&socket, &mut message).unwrap();
    assert_eq!(&message[..count], b"region");
    let region = Arc::new(Region::from_fd(file.unwrap()).unwrap());
    assert_eq!(region.length(), LENGTH);

    node.stop();
    let (mut one, mut other) = (open(Arc::clone(&region)), open(region));
    for round in 0..1_000 {
        let value = Operation::Read { from: VALUE, into: BufferPosition::start(0), length: 4096 };
        perform(&mut one, value);
        assert!(one.buffer(0)[..4096].iter().all(|byte| *byte == if round == 0 { 1 } else { 2 }));
        assert_eq!(perform(&mut one, Operation::FetchAdd { at: WORD, add: 1 }), 2 * round);
        let (expected, new) = (2 * round + 1, 2 * round + 2);
        let swap = Operation::CompareSwap { at: WORD, expected, new };
        assert_eq!(perform(&mut other, swap), expected);
        other.buffer_mut(0).fill(2);
        let write = Operation::Write { from: BufferPosition::start(0), to: VALUE, length: 4096 };
        perform(&mut other, write);
    }

    node.signal(Signal::CONT);
    socket.write_all(&[1]).unwrap();
    let (mut word, mut value) = ([0; 8], [0; 4096]);
    socket.read_exact(&mut word).unwrap();
    socket.read_exact(&mut value).unwrap();
    assert_eq!((u64::from_le_bytes(word), value), (2_000, [2; 4096]));
}

#[test]
fn shared_memory_goes_on_while_its_node_is_stopped() {
    goes_on_without_its_node(|region| Shm::new(region, 1));
}

#[test]
fn the_modelled_nic_continues_while_its_node_is_stopped() {
    goes_on_without_its_node(|region| Model::new(region, NIC_AT, 1));
}
