//! One connection of a gateway of another process.
//!
//! The gateway introduces itself (version, link, tenants) and opens parts; then its jobs go to the
//! node's session, and the replies back. The connection is not read while its jobs, their bytes or
//! unread replies are at their bounds. The gateway is sent signs of life while it waits, new
//! incarnations of parts, and the node's end. [`Remains`] is a closed connection some of whose jobs
//! are still at the device.

use std::fmt;
use std::io;
use std::sync::Arc;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::{Interest, MessageQueue, Reactor};
use tidegate_fabric::service::{Command, CompletionSink, Fault, Job, Part, Session};
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_fabric::wire::{Received, Receiver};
use tidegate_model::PartNumber;
use tidegate_proto::data::{
    AnswerHead, FrameError, FromNode, JobHead, LinkKind, ReplyHead, RequestHead, ToNode, VERSION,
    decode, encode,
};
use tidegate_proto::session::version::VersionMismatch;

use super::Message;
use super::fence::{Entered, FenceDenied, Fences};

/// Jobs in flight, of one connection. It carries the jobs of many clients, and a waiting tenant's
/// jobs must not keep others out; so the bound is above the sum of a gateway's bounds, and only
/// keeps a broken gateway from taking all memory. Those are 32,768 requests, and a piece for each 4
/// KiB of 128 MiB, divided by the clients that are there. Where 512 clients connect one by one, and
/// the earlier ones hold their parts of that moment, they have 1 + ln 16 times the one and 1 + ln
/// 256 times the other: 340,000.
const JOBS_MAX: usize = 1 << 19;

/// Bytes of one connection's jobs: data to be stored, and data of replies. Likewise: 840 MiB,
/// beside the excess of single requests over their client's part.
const BYTES_MAX: usize = 1 << 30;

/// Bytes of replies that the gateway has not read. From a gateway so far behind the node reads no
/// more: all further replies would wait behind these.
const UNREAD_MAX: usize = 16 << 20;

/// Parts that one connection may open.
const PARTS_MAX: usize = 1 << 16;

/// Reads in a row before other connections are served.
const READS_MAX: usize = 8;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum Closed {
    /// The gateway closed it.
    Left,
    Ending,
    /// The gateway sent a malformed or invalid frame.
    Refused(String),
    /// It belongs to a process of the gateway that another one has replaced.
    Denied(FenceDenied),
    /// The gateway has lost it, and a new connection replaces or fences it.
    Replaced,
    /// The kernel reports an error.
    Io(io::Error),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("the gateway disconnected"),
            Self::Ending => f.write_str("the node ends"),
            Self::Refused(reason) | Self::Denied(FenceDenied { reason, .. }) => {
                write!(f, "refused: {reason}")
            }
            Self::Replaced => f.write_str("a new connection of its gateway replaces it"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Closed {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => Self::Left,
            _ => Self::Io(error),
        }
    }
}

impl From<FrameError> for Closed {
    fn from(error: FrameError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The receiver of a connection's jobs that other threads finish.
pub(super) struct ConnectionSink {
    pub(super) message_queue: Arc<MessageQueue<Message>>,
    pub(super) connection: u64,
}

impl CompletionSink for ConnectionSink {
    fn finished(&self, jobs: &mut Vec<Job>) {
        self.message_queue
            .extend(jobs.drain(..).map(|job| Message::Finished(self.connection, job)));
    }

    fn incarnation(&self, part: PartNumber, incarnation: u64) {
        self.message_queue.push(Message::Incarnation(self.connection, part, incarnation));
    }
}

/// How far a gateway has introduced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    /// It has sent nothing.
    Hello,
    /// Its version is ours; it has not named the link.
    Identity,
    /// Connections that this one replaces are ending. The worker reads nothing meanwhile.
    Fence,
    /// It is accepted.
    Over,
}

pub(super) struct Connection {
    stream: Stream,
    sink: Arc<ConnectionSink>,
    session: Box<dyn Session>,
    /// The node's.
    name: String,
    /// Whether it gets the code point of its class.
    dscp: bool,
    /// The gateway's name, after its hello.
    gateway: Option<String>,
    greeting: Greeting,
    fences: Arc<Fences>,
    /// Its entry in the fence, once it has named its link.
    entered: Option<Entered>,
    receiver: Receiver<RequestHead>,
    outgoing: Outgoing,
    /// The names of the tenants that the gateway has sent.
    tenants: Vec<String>,
    /// The session's numbers of the parts, by the gateway's; none for those that were refused.
    parts: Vec<Option<PartNumber>>,
    interest: Interest,
    /// Jobs without a reply, and their bytes.
    jobs: usize,
    bytes: usize,
    answered: u64,
    /// Nothing was received or sent since the last sign of life.
    is_quiet: bool,
    /// Of the lines about it, at level debug: it is entered at each event.
    span: tracing::Span,
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        (sink, session): (Arc<ConnectionSink>, Box<dyn Session>),
        (name, dscp): (String, bool),
        fences: Arc<Fences>,
        reactor: &Reactor<Message>,
    ) -> io::Result<Self> {
        let interest = Interest::READ;
        reactor.add(&stream, sink.connection, interest)?;
        Ok(Self {
            stream,
            sink,
            session,
            tenants: Vec::new(),
            name,
            dscp,
            gateway: None,
            greeting: Greeting::Hello,
            fences,
            entered: None,
            receiver: Receiver::new(),
            outgoing: Outgoing::new(),
            parts: Vec::new(),
            interest,
            jobs: 0,
            bytes: 0,
            answered: 0,
            is_quiet: false,
            span: tracing::debug_span!("connection", gateway = tracing::field::Empty),
        })
    }

    /// Reads received bytes, as far as the bounds allow, and writes finished replies. The vectors
    /// are empty before and after.
    pub(super) fn serve(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) -> Result<(), Closed> {
        loop {
            self.outgoing.flush(&self.stream)?;
            self.read(jobs, done)?;
            self.outgoing.flush(&self.stream)?;
            // Frames that exceeded a bound before the last flush: no readiness event will report
            // them.
            if !self.has_headroom() || !self.receiver.has_rest() {
                return Ok(());
            }
        }
    }

    fn read(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) -> Result<(), Closed> {
        let mut is_dry = false;
        for count in 0.. {
            let taken = self.take_frames(jobs, done);
            self.session.submit(jobs, done);
            self.answer(done);
            taken?;
            if is_dry || count == READS_MAX || !self.has_headroom() {
                break;
            }
            is_dry = self.receiver.receive(&mut self.stream)? == Received::Dry;
        }
        Ok(())
    }

    fn take_frames(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) -> Result<(), Closed> {
        while self.has_headroom() {
            match self.receiver.next_frame()? {
                None => break,
                Some((RequestHead::Message(_), payload)) => {
                    // It may apply to the jobs before it.
                    self.session.submit(jobs, done);
                    self.on_message(&payload)?;
                }
                Some((RequestHead::Job(head), payload)) => self.take(head, payload, jobs, done)?,
            }
        }
        Ok(())
    }

    fn has_headroom(&self) -> bool {
        let is_read = self.outgoing.len() < UNREAD_MAX;
        let is_served = self.greeting != Greeting::Fence;
        is_served && is_read && self.jobs < JOBS_MAX && self.bytes < BYTES_MAX
    }

    /// The gateway's name, after its hello.
    pub(super) fn gateway(&self) -> Option<&str> {
        self.gateway.as_deref()
    }

    pub(super) fn span(&self) -> tracing::Span {
        self.span.clone()
    }

    pub(super) fn number(&self) -> u64 {
        self.sink.connection
    }

    pub(super) fn is_read(&self) -> bool {
        self.interest.read
    }

    fn take(
        &mut self,
        head: JobHead,
        payload: Buffer,
        jobs: &mut Vec<Job>,
        done: &mut Vec<Job>,
    ) -> Result<(), Closed> {
        if self.greeting != Greeting::Over {
            return Err(Closed::Refused("a job before the hello".into()));
        }
        let JobHead { ticket, tag, command, part, offset, length } = head;
        self.is_quiet = false;
        self.jobs += 1;
        self.bytes += held(command, length);
        // A read gets its memory when it runs: a waiting job has none.
        let (buffer, outcome) = (payload, Ok(()));
        let (offset, incarnation) =
            if command == Command::Flush { (0, offset) } else { (offset, 0) };
        let mut job = Job {
            incarnation,
            outcome,
            ..Job::new(ticket, tag, command, (part, offset, length), buffer)
        };
        match self.parts.get(part.index()) {
            Some(Some(part)) => {
                job.part = *part;
                jobs.push(job);
            }
            _ => {
                job.outcome = Err(Fault::Invalid);
                done.push(job);
            }
        }
        Ok(())
    }

    /// Queues the answers to `jobs`, which are jobs of this connection.
    pub(super) fn answer(&mut self, jobs: &mut Vec<Job>) {
        for job in jobs.drain(..) {
            self.is_quiet = false;
            self.jobs = self.jobs.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(held(job.command, job.length));
            self.answered += 1;
            let has_payload =
                matches!(job.command, Command::Read | Command::Map | Command::KeyValue);
            let buffer = match job.outcome {
                Ok(()) if has_payload => job.buffer,
                _ => Buffer::empty(),
            };
            let (ticket, outcome, stay) = (job.ticket, job.outcome, job.times.stay);
            let head = AnswerHead { ticket, outcome, length: buffer.len() as u32, stay };
            self.outgoing.push(&head.to_bytes());
            self.outgoing.push_buffer(buffer);
        }
    }

    fn on_message(&mut self, payload: &[u8]) -> Result<(), Closed> {
        match decode(payload)? {
            ToNode::Hello { .. } if self.greeting != Greeting::Hello => {
                Err(Closed::Refused("a second hello".into()))
            }
            ToNode::Hello { version, release } => {
                let peer = format_args!("gateway (release {release})");
                VersionMismatch::check((peer, version), ("node", VERSION))
                    .map_err(|mismatch| Closed::Refused(mismatch.to_string()))?;
                self.greeting = Greeting::Identity;
                Ok(())
            }
            ToNode::Identify(identity) if self.greeting == Greeting::Identity => {
                self.span.record("gateway", &identity.gateway);
                self.gateway = Some(identity.gateway.clone());
                let queue = self.sink.message_queue.clone();
                let entered = self.fences.enter(identity, queue, self.sink.connection);
                (self.entered, self.greeting) =
                    (Some(entered.map_err(Closed::Denied)?), Greeting::Fence);
                self.on_fenced()
            }
            _ if self.greeting != Greeting::Over => {
                Err(Closed::Refused("a message before the hello".into()))
            }
            ToNode::Identify(_) => Err(Closed::Refused("a second identity".into())),
            ToNode::Tenants(names) => {
                self.tenants = names;
                self.name_tenants()
            }
            ToNode::MoreTenants(names) => {
                self.tenants.extend(names);
                self.name_tenants()
            }
            ToNode::Cancel(tickets) => {
                self.session.cancel(&tickets);
                Ok(())
            }
            ToNode::Elsewhere(costs) => {
                self.session.elsewhere(&costs);
                Ok(())
            }
            ToNode::Carries(kind) => {
                self.carry(kind);
                Ok(())
            }
            ToNode::Fence { link, connection } => self.fence(link, connection),
            ToNode::Open { part, .. } if part.index() != self.parts.len() => {
                Err(Closed::Refused(format!("part {part} was opened out of order")))
            }
            ToNode::Open { part, .. } if part.index() >= PARTS_MAX => {
                Err(Closed::Refused(format!("more than {PARTS_MAX} parts")))
            }
            ToNode::Open { part, volume, index, length, offset, geometry } => {
                self.open(part, &Part { volume, index, length, offset, geometry })
            }
        }
    }

    /// The gateway says which requests this connection is for.
    fn carry(&mut self, kind: LinkKind) {
        if self.dscp {
            self.stream.mark(kind.class);
        }
        if kind.is_bulk {
            self.session.carry_bulk();
        }
    }

    fn open(&mut self, number: PartNumber, part: &Part) -> Result<(), Closed> {
        let opened = self.session.open(part);
        self.parts.push(opened.as_ref().ok().map(|opened| opened.number));
        self.send(&FromNode::Opened { part: number, opened: opened.map(|opened| opened.state) })
    }

    /// Accepts the gateway if the connections that this one replaces have ended.
    pub(super) fn on_fenced(&mut self) -> Result<(), Closed> {
        let is_alone = self.entered.as_ref().is_some_and(Entered::is_alone);
        if self.greeting != Greeting::Fence || !is_alone {
            return Ok(());
        }
        self.greeting = Greeting::Over;
        let (name, release) = (self.name.clone(), env!("CARGO_PKG_VERSION").into());
        self.send(&FromNode::Welcome { version: VERSION, name, release })
    }

    /// The gateway has lost the connections of another link, up to this one.
    fn fence(&mut self, link: u32, connection: u64) -> Result<(), Closed> {
        match self.entered.as_ref().and_then(|entered| entered.fence(link, connection)) {
            Some(true) => self.on_link_fenced(link, connection),
            Some(false) => Ok(()),
            None => Err(Closed::Refused("a connection does not fence its own link".into())),
        }
    }

    /// The connections of another link have ended, up to this one.
    pub(super) fn on_link_fenced(&mut self, link: u32, connection: u64) -> Result<(), Closed> {
        self.send(&FromNode::Fenced { link, connection })
    }

    fn name_tenants(&mut self) -> Result<(), Closed> {
        if self.tenants.len() > usize::from(u16::MAX) {
            return Err(Closed::Refused(format!("more than {} tenants", u16::MAX)));
        }
        self.session.tenants(&self.tenants);
        Ok(())
    }

    /// Reports that acknowledged writes may have been lost, if the gateway has the part open.
    pub(super) fn on_incarnation(
        &mut self,
        number: PartNumber,
        incarnation: u64,
    ) -> Result<(), Closed> {
        let meant = self.parts.iter().position(|part| *part == Some(number));
        match meant {
            Some(part) => {
                self.send(&FromNode::Incarnation { part: PartNumber::at(part), incarnation })
            }
            None => Ok(()),
        }
    }

    fn send(&mut self, message: &FromNode) -> Result<(), Closed> {
        let mut bytes = Vec::new();
        encode::<ReplyHead, _>(message, &mut bytes)?;
        self.outgoing.push(&bytes);
        Ok(())
    }

    /// Reports to the gateway that the node ends. A connection that is not accepted yet is closed.
    pub(super) fn begin_to_end(&mut self) -> Result<(), Closed> {
        if self.greeting != Greeting::Over {
            return Err(Closed::Ending);
        }
        self.send(&FromNode::Ending)?;
        self.outgoing.flush(&self.stream)?;
        Ok(())
    }

    /// Whether the gateway waits for answers.
    pub(super) fn owes(&self) -> bool {
        self.jobs > 0
    }

    /// Sends a sign of life to a waiting gateway that was sent nothing since the last call.
    pub(super) fn reassure(&mut self) -> Result<(), Closed> {
        if std::mem::replace(&mut self.is_quiet, true) && self.owes() && self.outgoing.is_empty() {
            self.send(&FromNode::Alive)?;
            self.outgoing.flush(&self.stream)?;
        }
        Ok(())
    }

    /// Registers the events that the connection waits for.
    pub(super) fn watch(&mut self, reactor: &Reactor<Message>) -> Result<(), Closed> {
        let interest = Interest { read: self.has_headroom(), write: !self.outgoing.is_empty() };
        if interest != self.interest {
            reactor.change(&self.stream, self.sink.connection, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Jobs answered since the last call.
    pub(super) fn take_answered(&mut self) -> u64 {
        std::mem::take(&mut self.answered)
    }

    /// Sends the reason, if the gateway can still receive it.
    pub(super) fn part(&mut self, reason: &Closed) {
        let reason = match reason {
            Closed::Refused(reason) | Closed::Denied(FenceDenied { reason, .. }) => reason.clone(),
            // Only a process that should not run any more can still read it.
            Closed::Replaced => "another process of this gateway's name has connected".into(),
            Closed::Left | Closed::Ending | Closed::Io(_) => return,
        };
        let refused = FromNode::Refused { version: VERSION, reason };
        if self.send(&refused).is_ok() {
            let _ = self.outgoing.flush(&self.stream);
        }
    }
}

/// The remains of a closed connection while some of its jobs are at the device.
pub(super) struct Remains {
    /// The number of these jobs.
    jobs: usize,
    _session: Box<dyn Session>,
    _entered: Option<Entered>,
}

impl Remains {
    /// Accepts finished jobs. Returns whether these were the last.
    pub(super) fn on_finished(&mut self, count: usize) -> bool {
        self.jobs = self.jobs.saturating_sub(count);
        self.jobs == 0
    }
}

impl Connection {
    /// Closes the connection and withdraws its waiting jobs; returns the remains, if it has jobs at
    /// the device.
    pub(super) fn end(mut self) -> Option<Remains> {
        if self.jobs == 0 {
            return None;
        }
        self.session.cancel_all();
        let Self { jobs, session, entered, .. } = self;
        Some(Remains { jobs, _session: session, _entered: entered })
    }
}

/// Bytes that a job holds while it is in flight: its data, or the data of its reply.
fn held(command: Command, length: u32) -> usize {
    match command {
        Command::Read | Command::Write { .. } | Command::KeyValue => length as usize,
        // Extents, of which there are few.
        Command::Map => 4096,
        Command::Flush | Command::Discard { .. } | Command::Zero { .. } => 0,
    }
}
