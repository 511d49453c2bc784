//! The relay before servers that are a few lines of a thread.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, CompletionSink};
use tidegate_model::{Class, ContextId, CostModel, Operation, PartNumber, Tag, TenantId};
use tidegate_proto::node::Slot;

use super::link::INPUT;
use super::*;
use crate::engine::Body;

/// How long a test waits for what has to come.
const LONG: Duration = Duration::from_secs(20);

struct NullSink;

impl CompletionSink for NullSink {
    fn finished(&self, _: &mut Vec<Job>) {}
}

struct Finished(Mutex<Sender<Work>>);

impl Sink for Finished {
    fn finished(&self, work: &mut Vec<Work>) {
        let sender = lock(&self.0);
        work.drain(..).for_each(|work| sender.send(work).unwrap());
    }
}

fn work(ticket: u64, command: Command, bytes: &[u8]) -> Work {
    work_of(&Arc::new(Owner::new(Arc::new(NullSink))), ticket, command, bytes)
}

fn work_of(owner: &Arc<Owner>, ticket: u64, command: Command, bytes: &[u8]) -> Work {
    let tag = Tag {
        tenant: TenantId::UNATTRIBUTED,
        context: ContextId::NONE,
        class: Class::default(),
        operation: Operation::Get,
        cost: 1,
        delay: 0,
    };
    let (length, outcome) = (bytes.len() as u32, Err(Fault::Ending));
    let buffer = Buffer::from(bytes);
    let part = PartNumber(0);
    let job = Job { outcome, ..Job::new(ticket, tag, command, (part, 0, length), buffer) };
    let body = Body::new(job, owner.clone(), None);
    Work::new(Slot::UNATTRIBUTED, command, length, &tag, &CostModel::default(), body)
}

/// A relay to a server whose every connection is served by `serve`.
fn relay(
    serve: impl Fn(UnixStream) -> io::Result<()> + Clone + Send + 'static,
) -> (tempfile::TempDir, Relay, Receiver<Work>) {
    relay_numbered(move |_, stream| serve(stream))
}

/// A relay to a server whose connections are served by `serve`, with their numbers in the order in
/// which they were accepted.
fn relay_numbered(
    serve: impl Fn(u32, UnixStream) -> io::Result<()> + Clone + Send + 'static,
) -> (tempfile::TempDir, Relay, Receiver<Work>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memcached.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for (number, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
            let serve = serve.clone();
            thread::spawn(move || serve(number, stream));
        }
    });
    let (relay, receiver) = relay_to(path);
    (directory, relay, receiver)
}

/// A relay to whatever is at this path.
fn relay_to(path: std::path::PathBuf) -> (Relay, Receiver<Work>) {
    let (sender, receiver) = channel();
    let address = Address::Unix(path);
    let medium = Arc::new(Memcached { address: address.clone() });
    let sink = Arc::new(Finished(Mutex::new(sender)));
    (Relay::start("m2".into(), address, medium, sink).unwrap(), receiver)
}

/// Waits until the relay's fault is as wanted, and says what it is.
fn fault_once(relay: &Relay, is_wanted: fn(Option<&str>) -> bool) -> Option<String> {
    let deadline = Instant::now() + LONG;
    loop {
        let fault = relay.fault();
        if is_wanted(fault.as_deref()) {
            return fault;
        }
        assert!(Instant::now() < deadline, "{fault:?}");
        thread::yield_now();
    }
}

/// The replies to `requests`, or the faults, by ticket.
fn replies(relay: &Relay, receiver: &Receiver<Work>, requests: Vec<Work>) -> Vec<String> {
    let (mut requests, mut done) = (requests, Vec::new());
    let count = requests.len();
    relay.run(&mut requests, &mut done);
    while done.len() < count {
        done.push(receiver.recv_timeout(LONG).unwrap());
    }
    done.sort_by_key(|work| work.body.job.ticket);
    let reply_of = |work: &Work| match work.body.job.outcome {
        Ok(()) => String::from_utf8_lossy(&work.body.job.buffer).into_owned(),
        Err(fault) => format!("{fault:?}"),
    };
    done.iter().map(reply_of).collect()
}

/// Says what it is asked: a key is its own value, and a `q` is silence.
fn echo(stream: UnixStream) -> io::Result<()> {
    let (mut input, mut output) = (BufReader::new(stream.try_clone()?), stream);
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["get", key] => {
                write!(output, "VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len())?;
            }
            ["set", .., length] => {
                let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
                input.read_exact(&mut value)?;
                output.write_all(b"STORED\r\n")?;
            }
            ["mg", _, "q"] => {}
            ["mg", "crash"] => return Ok(()),
            ["mg", key] => write!(output, "VA {}\r\n{key}\r\n", key.len())?,
            ["version"] => output.write_all(b"VERSION 1\r\n")?,
            _ => output.write_all(b"ERROR\r\n")?,
        }
        line.clear();
    }
    Ok(())
}

#[test]
fn every_request_gets_its_own_reply() {
    let (_directory, relay, receiver) = relay(echo);
    let large = [b"set a 0 0 300000\r\n".to_vec(), vec![b'x'; 300_000], b"\r\n".to_vec()].concat();
    let requests = [&b"get a\r\n"[..], b"mg b q\r\n", b"mg c\r\n", &large, b"get d\r\n"];
    let requests =
        requests.iter().zip(1..).map(|(bytes, ticket)| work(ticket, Command::KeyValue, bytes));
    assert_eq!(
        replies(&relay, &receiver, requests.collect()),
        [
            "VALUE a 0 1\r\na\r\nEND\r\n",
            "",
            "VA 1\r\nc\r\n",
            "STORED\r\n",
            "VALUE d 0 1\r\nd\r\nEND\r\n",
        ]
    );
    relay.stop();
    let late = vec![work(1, Command::KeyValue, b"get a\r\n")];
    assert_eq!(replies(&relay, &receiver, late), ["Io"]);
}

/// More is asked and answered than the sockets hold, so that neither side may wait for the other.
#[test]
fn a_flood_passes() {
    let (_directory, relay, receiver) = relay(echo);
    let key = "k".repeat(250);
    let (get, value) = (format!("get {key}\r\n"), "v".repeat(4_000));
    let set = format!("set {key} 0 0 4000\r\n{value}\r\n");
    let requests = (0..4_000).map(|ticket| {
        let text = if ticket % 2 == 0 { &get } else { &set };
        work(ticket, Command::KeyValue, text.as_bytes())
    });
    let reply_of = replies(&relay, &receiver, requests.collect());
    assert!(reply_of.iter().step_by(2).all(|reply| reply.ends_with("\r\nEND\r\n")));
    assert!(reply_of.iter().skip(1).step_by(2).all(|reply| reply == "STORED\r\n"));
    relay.stop();
}

/// The server begins a long reply on one connection and never ends it.
#[test]
fn a_short_reply_does_not_wait_for_a_long_one() {
    let (_directory, relay, receiver) = relay(|stream| {
        let (input, mut output) = (BufReader::new(stream.try_clone()?), stream);
        for line in input.lines() {
            match &*line? {
                "get long" => output.write_all(b"VALUE long 0 1000000\r\nxxx")?,
                "version" => output.write_all(b"VERSION 1\r\n")?,
                _ => output.write_all(b"END\r\n")?,
            }
        }
        Ok(())
    });
    let long = work(1, Command::KeyValue, b"get long\r\n");
    long.body.owner.is_bulk.store(true, Ordering::Relaxed);
    let mut done = Vec::new();
    relay.run(&mut vec![long, work(2, Command::KeyValue, b"get short\r\n")], &mut done);
    assert!(done.is_empty());
    let first = receiver.recv_timeout(LONG).unwrap();
    assert_eq!((first.body.job.ticket, &first.body.job.buffer[..]), (2, &b"END\r\n"[..]));
}

/// Replies of all lengths about those that are read to where they stay, one by one and at once.
#[test]
fn replies_of_every_length_are_whole() {
    let (_directory, relay, receiver) = relay(|stream| {
        let (input, mut output) = (BufReader::new(stream.try_clone()?), stream);
        for line in input.lines() {
            let line = line?;
            match line.strip_prefix("get ").and_then(|key| key.parse::<usize>().ok()) {
                Some(length) => {
                    let value: Vec<u8> = (0..length).map(|at| (at / 251) as u8).collect();
                    let block = format!("VALUE {length} 0 {length}\r\n");
                    output.write_all(&[block.as_bytes(), &value, b"\r\nEND\r\n"].concat())?;
                }
                None => output.write_all(b"VERSION 1\r\n")?,
            }
        }
        Ok(())
    });
    let lengths =
        [0, 1, INPUT - 40, INPUT - 20, INPUT, INPUT + 1, 300_000, 1_000_000, 3_000_000, 5];
    let check = |requests: &[usize]| {
        let get = |length: &usize| format!("get {length}\r\n");
        let jobs = requests.iter().zip(0..);
        let mut jobs: Vec<Work> = jobs
            .map(|(length, ticket)| work(ticket, Command::KeyValue, get(length).as_bytes()))
            .collect();
        relay.run(&mut jobs, &mut Vec::new());
        for length in requests {
            let reply = receiver.recv_timeout(LONG).unwrap().body.job.buffer;
            let head = format!("VALUE {length} 0 {length}\r\n");
            let value = reply.strip_prefix(head.as_bytes()).unwrap();
            let value = value.strip_suffix(b"\r\nEND\r\n").unwrap();
            let is_right = |(at, byte): (usize, &u8)| *byte == (at / 251) as u8;
            assert!(value.len() == *length && value.iter().enumerate().all(is_right), "{length}");
        }
    };
    lengths.iter().for_each(|length| check(&[*length]));
    check(&lengths);
    relay.stop();
}

#[test]
fn only_whole_requests_with_keys_are_passed_on() {
    let (_directory, relay, receiver) = relay(echo);
    let two = &b"get a\r\nget b\r\n"[..];
    let wrong = [two, b"get a", b"version\r\n", b"set a 0 0 5\r\n1\r\n", b"nonsense\r\n", b""];
    let wrong = wrong.iter().zip(1..).map(|(bytes, ticket)| work(ticket, Command::KeyValue, bytes));
    assert_eq!(replies(&relay, &receiver, wrong.collect()), ["Invalid"; 6]);
    let requests = vec![work(1, Command::Flush, b""), work(2, Command::KeyValue, b"get a\r\n")];
    let value = "VALUE a 0 1\r\na\r\nEND\r\n";
    assert_eq!(replies(&relay, &receiver, requests), ["Unsupported", value]);
    relay.stop();
}

#[test]
fn what_is_not_answered_fails_and_the_next_connection_works() {
    let (_directory, relay, receiver) = relay(echo);
    let requests = ["get a\r\n", "mg crash\r\n", "get b\r\n"];
    let requests = requests
        .iter()
        .zip(1..)
        .map(|(text, ticket)| work(ticket, Command::KeyValue, text.as_bytes()));
    assert_eq!(
        replies(&relay, &receiver, requests.collect()),
        ["VALUE a 0 1\r\na\r\nEND\r\n", "Io", "Io",]
    );
    let value = "VALUE a 0 1\r\na\r\nEND\r\n";
    let again = || replies(&relay, &receiver, vec![work(1, Command::KeyValue, b"get a\r\n")]);
    let deadline = Instant::now() + LONG;
    while again() != [value] {
        assert!(Instant::now() < deadline, "it comes back");
        thread::yield_now();
    }
    relay.stop();
}

#[test]
fn a_server_that_is_not_there_is_a_fault() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memcached.sock");
    let (relay, receiver) = relay_to(path.clone());
    let requests = vec![work(1, Command::KeyValue, b"get a\r\n")];
    assert_eq!(replies(&relay, &receiver, requests), ["Io"]);
    assert!(relay.medium.describe().starts_with("memcached at "));
    let wanted_fault = format!("memcached at unix:{} is away: No such file", path.display());
    let fault = fault_once(&relay, |fault| fault.is_some()).unwrap();
    assert!(fault.starts_with(&wanted_fault), "{fault}");
    relay.stop();
}

/// Nothing is asked for any key meanwhile: the node finds out by itself.
#[test]
fn a_server_that_goes_is_a_fault_until_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memcached.sock");
    let server = UnixListener::bind(&path).unwrap();
    let (relay, _receiver) = relay_to(path.clone());
    let (stream, _) = server.accept().unwrap();
    assert_eq!(relay.fault(), None, "it has not answered yet, and not failed to");
    drop((stream, server));
    std::fs::remove_file(&path).unwrap();
    fault_once(&relay, |fault| fault.is_some());
    let server = UnixListener::bind(&path).unwrap();
    let (stream, _) = server.accept().unwrap();
    assert!(relay.fault().is_some(), "to be let in is no answer");
    thread::spawn(move || echo(stream));
    fault_once(&relay, |fault| fault.is_none());
    relay.stop();
}

#[test]
fn a_server_that_does_not_answer_is_a_fault() {
    let (_directory, relay, _receiver) = relay(|stream| {
        // Reads, and says nothing.
        io::copy(&mut { stream }, &mut io::sink()).map(drop)
    });
    let fault = fault_once(&relay, |fault| fault.is_some()).unwrap();
    assert!(fault.ends_with("it does not answer"), "{fault}");
    relay.stop();
}

/// A worker that reads its session's connection.
struct Attached {
    owner: Arc<Owner>,
    reactor: Reactor<()>,
}

impl Attached {
    fn to(relay: &Relay) -> Self {
        let (owner, reactor) = (Arc::new(Owner::new(Arc::new(NullSink))), Reactor::new().unwrap());
        relay.attach(&owner, reactor.registrar(), 7);
        Self { owner, reactor }
    }

    fn get(&self, relay: &Relay, ticket: u64) -> Vec<Work> {
        let key = format!("get {ticket}\r\n");
        let (mut work, mut done) = (Vec::new(), Vec::new());
        work.push(work_of(&self.owner, ticket, Command::KeyValue, key.as_bytes()));
        relay.run(&mut work, &mut done);
        done
    }

    /// The work that its own connection finishes; none if nothing comes in time.
    fn receive(&mut self, relay: &Relay, patience: Duration) -> Vec<Work> {
        let (mut ready, mut done) = (Vec::new(), Vec::new());
        self.reactor.wait(Some(patience), &mut ready, &mut Vec::new()).unwrap();
        ready.into_iter().for_each(|ready| relay.on_ready(&self.owner, ready, &mut done));
        done
    }

    /// The work that its own connection finishes next.
    fn wait(&mut self, relay: &Relay) -> Vec<Work> {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            let done = self.receive(relay, LONG);
            if !done.is_empty() {
                return done;
            }
        }
        panic!("nothing was finished");
    }

    /// Sends requests until one is answered on its own connection, and returns how many went by the
    /// relay's.
    fn connect(&mut self, relay: &Relay, receiver: &Receiver<Work>) -> usize {
        let deadline = Instant::now() + LONG;
        for ticket in 0.. {
            assert!(Instant::now() < deadline, "it has no connection of its own");
            let failed = self.get(relay, ticket);
            let mut done = failed;
            while done.is_empty() {
                done = self.receive(relay, Duration::from_millis(1));
                if let Some(work) = done.first() {
                    assert_eq!(work.body.job.ticket, ticket);
                    return ticket as usize;
                }
                done.extend(receiver.try_iter());
            }
        }
        unreachable!("tickets do not end")
    }
}

#[test]
fn a_worker_reads_its_own_replies() {
    let (_directory, relay, receiver) = relay(echo);
    let mut workers = [Attached::to(&relay), Attached::to(&relay)];
    for worker in &mut workers {
        worker.connect(&relay, &receiver);
    }
    for ticket in 0..100 {
        for worker in &mut workers {
            assert!(worker.get(&relay, ticket).is_empty());
        }
        for worker in &mut workers {
            let done = worker.wait(&relay);
            let reply =
                format!("VALUE {ticket} 0 {}\r\n{ticket}\r\nEND\r\n", ticket.to_string().len());
            assert_eq!(done.len(), 1);
            assert_eq!(&done[0].body.job.buffer[..], reply.as_bytes());
        }
    }
    assert!(receiver.try_recv().is_err(), "nothing went by the relay's connection");
    // The relay finishes open requests as it ends; later ones fail.
    assert!(workers[0].get(&relay, 100).is_empty());
    relay.stop();
    assert_eq!(receiver.recv_timeout(LONG).unwrap().body.job.outcome, Ok(()));
    assert_eq!(workers[1].get(&relay, 101)[0].body.job.outcome, Err(Fault::Io));
}

#[test]
fn a_worker_whose_connection_ends_gets_another() {
    let (_directory, relay, receiver) = relay(echo);
    let mut worker = Attached::to(&relay);
    worker.connect(&relay, &receiver);
    let crash = work_of(&worker.owner, 1, Command::KeyValue, b"mg crash\r\n");
    relay.run(&mut vec![crash], &mut Vec::new());
    assert!(worker.get(&relay, 2).is_empty());
    let failed = worker.wait(&relay);
    let outcome_of = |work: &Work| (work.body.job.ticket, work.body.job.outcome);
    let outcomes: Vec<_> = failed.iter().map(outcome_of).collect();
    assert_eq!(outcomes, [(1, Err(Fault::Io)), (2, Err(Fault::Io))]);
    drop(failed);
    // The relay's connection is still there, and carries the requests until then.
    assert!(worker.connect(&relay, &receiver) >= 1);
    // A session that is closed leaves nothing behind.
    assert!(worker.get(&relay, 3).is_empty());
    let mut failed = Vec::new();
    relay.detach(&worker.owner, &mut failed);
    assert_eq!(failed.iter().map(outcome_of).collect::<Vec<_>>(), [(3, Err(Fault::Io))]);
    drop(failed);
    assert_eq!(Arc::strong_count(&worker.owner), 1);
    relay.stop();
}

/// Serves the first connection, which is the relay's, and each other one by `others`.
fn first_is_served(
    others: fn(UnixStream) -> io::Result<()>,
) -> (tempfile::TempDir, Relay, Receiver<Work>, Arc<AtomicU32>) {
    let connections = Arc::new(AtomicU32::new(0));
    let count = connections.clone();
    let (directory, relay, receiver) = relay_numbered(move |number, stream| {
        count.fetch_add(1, Ordering::Relaxed);
        match number {
            0 => echo(stream),
            _ => others(stream),
        }
    });
    (directory, relay, receiver, connections)
}

/// Requests of a worker until they were sent for a second; all are answered by the relay's own
/// connection. Returns how long that took.
fn is_served_by_the_relay(relay: &Relay, receiver: &Receiver<Work>) -> Duration {
    let mut worker = Attached::to(relay);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        assert!(worker.get(relay, 1).is_empty());
        let answered = receiver.recv_timeout(LONG).unwrap();
        assert_eq!(&answered.body.job.buffer[..], b"VALUE 1 0 1\r\n1\r\nEND\r\n");
        assert!(worker.receive(relay, Duration::ZERO).is_empty());
    }
    start.elapsed()
}

#[test]
fn a_worker_without_a_connection_is_served_by_the_relays() {
    // memcached's words where it has as many connections as it may.
    let (_directory, relay, receiver, connections) =
        first_is_served(|mut stream| stream.write_all(b"ERROR Too many open connections\r\n"));
    let lasted = is_served_by_the_relay(&relay, &receiver);
    let tries = connections.load(Ordering::Relaxed);
    // The relay's, the worker's first two, and one in each SILENCE.
    let most = 4 + (lasted.as_secs() / SILENCE.as_secs()) as u32;
    assert!((2..=most).contains(&tries), "{tries} connections in {lasted:?}");
    relay.stop();
    // One that the kernel has let in and memcached has not.
    let silent = |stream: UnixStream| io::copy(&mut { stream }, &mut io::sink()).map(drop);
    let (_directory, relay, receiver, _) = first_is_served(silent);
    is_served_by_the_relay(&relay, &receiver);
    relay.stop();
}

#[test]
fn a_worker_whose_connection_falls_silent_gets_another() {
    let (_directory, relay, receiver, _) = first_is_served(|stream| {
        let mut input = BufReader::new(stream.try_clone()?);
        // It answers the probe and a request, and then nothing.
        for reply in ["VERSION 1\r\n", "END\r\n"] {
            input.read_line(&mut String::new())?;
            { &stream }.write_all(reply.as_bytes())?;
        }
        io::copy(&mut input, &mut io::sink()).map(drop)
    });
    let mut worker = Attached::to(&relay);
    worker.connect(&relay, &receiver);
    assert!(worker.get(&relay, 2).is_empty());
    let failed = worker.wait(&relay);
    assert_eq!(failed[0].body.job.outcome, Err(Fault::Io));
    worker.connect(&relay, &receiver);
    relay.stop();
}
