//! A node behind a socket: the node made of memory, and as little protocol as it needs. It can be
//! killed, and come back.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, CompletionSink, Job, Part, Service, Session};
use tidegate_model::Span;
use tidegate_proto::data::{
    AnswerHead, Assembler, FromNode, JobHead, LinkKind, ReplyHead, RequestHead, Stay, ToNode,
    VERSION, decode, encode,
};

use crate::memory::Memory;

/// How long each job is at such a node, it says.
pub(crate) const STAY: Stay = Stay { queued: Span(7), stored: Span(5) };

pub(crate) struct Peer {
    path: PathBuf,
    is_ending: Arc<AtomicBool>,
    /// A handle of every connection, to end it by.
    streams: Arc<Mutex<Vec<UnixStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    pub(crate) fn start(path: PathBuf, node: Memory) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let is_ending = Arc::new(AtomicBool::new(false));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (ending, all) = (is_ending.clone(), streams.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ending.load(Ordering::SeqCst) {
                    return;
                }
                all.lock().unwrap().push(stream.try_clone().unwrap());
                let node = node.clone();
                std::thread::spawn(move || serve(stream, &node));
            }
        });
        Self { path, is_ending, streams, thread: Some(thread) }
    }
}

impl Peer {
    /// Ends the connection that came last.
    pub(crate) fn cut_last(&self) {
        let _ = self.streams.lock().unwrap().last().unwrap().shutdown(std::net::Shutdown::Both);
    }

    /// Ends the connection that came first.
    pub(crate) fn cut_first(&self) {
        let _ = self.streams.lock().unwrap().first().unwrap().shutdown(std::net::Shutdown::Both);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::SeqCst);
        drop(UnixStream::connect(&self.path));
        self.thread.take().unwrap().join().unwrap();
        let _ = std::fs::remove_file(&self.path);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Writes answers, from whichever thread.
struct PeerSink(Mutex<UnixStream>);

impl PeerSink {
    fn send(&self, bytes: &[u8]) {
        // A killed node cannot write any more.
        let _ = self.0.lock().unwrap().write_all(bytes);
    }

    fn send_message(&self, message: &FromNode) {
        let mut bytes = Vec::new();
        encode::<ReplyHead, _>(message, &mut bytes).unwrap();
        self.send(&bytes);
    }
}

impl CompletionSink for PeerSink {
    fn finished(&self, jobs: &mut Vec<Job>) {
        for job in jobs.drain(..) {
            let has_data =
                job.outcome.is_ok() && matches!(job.command, Command::Read | Command::Map);
            let data = if has_data { &job.buffer[..] } else { &[] };
            let (ticket, outcome, length) = (job.ticket, job.outcome, data.len() as u32);
            let head = AnswerHead { ticket, outcome, length, stay: STAY }.to_bytes();
            self.send(&[&head[..], data].concat());
        }
    }
}

fn serve(mut stream: UnixStream, node: &Memory) {
    let sink = Arc::new(PeerSink(Mutex::new(stream.try_clone().unwrap())));
    let mut session = node.session(sink.clone());
    let mut assembler = Assembler::<RequestHead, Vec<u8>>::new();
    let (mut chunk, mut kind) = (vec![0; 64 << 10], LinkKind::default());
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        let (mut input, mut jobs, mut done) = (&chunk[..count], Vec::new(), Vec::new());
        while let Some((head, payload)) = assembler.next(&mut input).unwrap() {
            match head {
                RequestHead::Message(_) => {
                    let message = decode(&payload).unwrap();
                    while matches!(message, ToNode::Identify(_)) && node.withholds_welcomes() {
                        std::thread::yield_now();
                    }
                    if let ToNode::Carries(carried) = message {
                        kind = carried;
                    }
                    match message {
                        ToNode::Fence { link, connection } => {
                            fence(node.clone(), sink.clone(), (link, connection));
                        }
                        _ => on_message(&mut *session, &sink, message, node.is_bulk_only()),
                    }
                }
                RequestHead::Job(head) => jobs.push(job(head, &payload)),
            }
        }
        if node.is_stuck_by(&jobs) {
            // The peer keeps the connection open.
            std::mem::forget(session);
            return;
        }
        if let Some(job) = jobs.last() {
            node.on_link(kind, job.tag.class);
        }
        session.submit(&mut jobs, &mut done);
        sink.finished(&mut done);
    }
}

/// Says that the connections of a link are fenced, once the test lets it.
fn fence(node: Memory, sink: Arc<PeerSink>, (link, connection): (u32, u64)) {
    std::thread::spawn(move || {
        while node.withholds_fences() {
            std::thread::yield_now();
        }
        sink.send_message(&FromNode::Fenced { link, connection });
    });
}

fn on_message(session: &mut dyn Session, sink: &PeerSink, message: ToNode, is_bulk_only: bool) {
    let welcome = |version, release| {
        sink.send_message(&FromNode::Welcome { version, name: "peer".into(), release });
    };
    match message {
        ToNode::Hello { version, .. } => assert_eq!(version, VERSION),
        ToNode::Identify(identity) => {
            assert_eq!(identity.gateway, "front");
            if !is_bulk_only {
                welcome(VERSION, String::new());
            }
        }
        ToNode::Tenants(names) => session.tenants(&names),
        ToNode::MoreTenants(_) => unreachable!("a test has few tenants"),
        ToNode::Carries(kind) => {
            if kind.is_bulk {
                session.carry_bulk();
            }
            if kind.is_bulk && is_bulk_only {
                welcome(VERSION, String::new());
            }
        }
        ToNode::Elsewhere(costs) => session.elsewhere(&costs),
        ToNode::Cancel(tickets) => session.cancel(&tickets),
        ToNode::Fence { .. } => unreachable!("it is answered by another thread"),
        ToNode::Open { part, volume, index, length, offset, geometry } => {
            let wanted = Part { volume, index, length, offset, geometry };
            let opened = session.open(&wanted);
            // It has these parts only, and in this order.
            assert!(opened.as_ref().is_ok_and(|opened| opened.number == part) || opened.is_err());
            sink.send_message(&FromNode::Opened {
                part,
                opened: opened.map(|opened| opened.state),
            });
        }
    }
}

fn job(head: JobHead, payload: &[u8]) -> Job {
    let JobHead { ticket, tag, command, part, offset, length } = head;
    let is_flush = command == Command::Flush;
    let (offset, incarnation) = if is_flush { (0, offset) } else { (offset, 0) };
    let buffer = match command {
        Command::Read => Buffer::with_length(length as usize),
        _ => Buffer::from(payload),
    };
    Job { incarnation, ..Job::new(ticket, tag, command, (part, offset, length), buffer) }
}
