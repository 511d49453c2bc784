//! A node behind a socket, as one worker talks to it: by `proto::data`, on a connection of the
//! worker's own.
//!
//! # While a node is away
//! Jobs for it fail at once with an I/O error, also those that are out when the connection ends. It
//! is tried again four times a second, and once it answers everything goes on: the parts are opened
//! anew and the tenants' names said again. A node that is killed is noticed by the kernel at once;
//! one whose machine or network is gone within [`SILENCE_MAX`]; one that does not say its welcome,
//! within the same time.
//!
//! # What may be lost
//! A write that was answered but not flushed may be lost with the node's machine. Whoever flushes
//! next must not hear that all is well. So a part counts the writes that were answered and
//! not yet flushed; where a connection ends with such, the next flush of the part fails, once.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::service::{Command, Fault, Job, Part};
use tidegate_fabric::stream::{Address, Outgoing, Stream};
use tidegate_fabric::wire::{Received, Receiver};
use tidegate_proto::data::{
    AnswerHead, FrameError, FromNode, JobHead, ReplyHead, RequestHead, ToNode, VERSION, decode,
    encode,
};

use crate::clock;
use crate::worker::Letter;

/// How long a node may be silent where silence means that it is away: while it connects, and for
/// its kernel to acknowledge what was sent.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long after one attempt to connect the next one follows.
const RETRY: Duration = Duration::from_millis(250);

/// Reads from one node before others have their turn.
const READS_MAX: usize = 8;

/// A node behind a socket.
#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    /// The reactor's number for it.
    token: u64,
    parts: Vec<Opened>,
    tenants: Vec<String>,
    line: Line,
    /// Whether people know that it is away.
    is_reported: bool,
}

/// A part of a volume that lies there.
#[derive(Debug)]
struct Opened {
    part: Part,
    is_refused: bool,
    /// Writes that were answered, and how many of them a flush has covered.
    answered: u64,
    flushed: u64,
    /// Writes that were answered may be lost, and nobody was told.
    is_in_doubt: bool,
}

#[derive(Debug)]
enum Line {
    /// Until it is tried again.
    Away(Instant),
    Up(Box<Talk>),
}

#[derive(Debug)]
struct Talk {
    stream: Stream,
    receiver: Receiver<ReplyHead>,
    out: Outgoing,
    interest: Interest,
    /// Until when the node has to say its welcome; none once it has.
    welcome_by: Option<Instant>,
    /// Jobs without their buffers, and of how many answered writes they may speak.
    jobs: HashMap<u64, (Job, u64)>,
}

/// Why a conversation ends.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it breaks the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("it answers what was not asked")]
    Stranger,
    #[error("it does not accept this gateway: {0}")]
    Refused(String),
    #[error("it does not answer")]
    Silent,
}

impl Link {
    /// A node to which nothing is connected yet.
    pub(crate) fn new(address: Address, token: u64, now: Instant) -> Self {
        let (parts, tenants) = (Vec::new(), Vec::new());
        Self { address, token, parts, tenants, line: Line::Away(now), is_reported: false }
    }

    /// Says who the tenants are, now and after each time that it was away.
    pub(crate) fn tenants(&mut self, names: &[String]) {
        self.tenants = names.to_vec();
        if let Line::Up(talk) = &mut self.line {
            talk.say(&ToNode::Tenants(self.tenants.clone()));
        }
    }

    /// The number of a part in jobs. Whether the node has it turns out later.
    pub(crate) fn open(&mut self, part: &Part) -> u32 {
        let number = self.parts.len() as u32;
        if let Line::Up(talk) = &mut self.line {
            talk.say(&opening(number, part));
        }
        self.parts.push(Opened {
            part: part.clone(),
            is_refused: false,
            answered: 0,
            flushed: 0,
            is_in_doubt: false,
        });
        number
    }

    /// Takes all of `jobs`. Those that fail at once are appended to `done`.
    pub(crate) fn submit(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        for mut job in jobs.drain(..) {
            let opened = &mut self.parts[job.part as usize];
            let is_doubtful = job.command == Command::Flush && opened.is_in_doubt;
            match &mut self.line {
                Line::Up(talk) if !is_doubtful && !opened.is_refused => {
                    talk.ask(job, opened.answered);
                }
                _ => {
                    if is_doubtful {
                        opened.is_in_doubt = false;
                    }
                    job.outcome = Err(Fault::Io);
                    done.push(job);
                }
            }
        }
    }

    /// When there is something to do without the node having said anything.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.line {
            Line::Away(until) => Some(*until),
            Line::Up(talk) => talk.welcome_by,
        }
    }

    /// Connects if it is time to, and gives up on a node that says nothing.
    pub(crate) fn on_time(&mut self, now: Instant, reactor: &Reactor<Letter>, done: &mut Vec<Job>) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let outcome = match &self.line {
            Line::Away(_) => self.connect(now, reactor),
            Line::Up(_) => Err(Broken::Silent),
        };
        if let Err(broken) = outcome {
            self.break_off(&broken, now, done);
        }
    }

    fn connect(&mut self, now: Instant, reactor: &Reactor<Letter>) -> Result<(), Broken> {
        let stream = Stream::connect(&self.address)?;
        if matches!(self.address, Address::Tcp(_)) {
            watch_over(&stream)?;
        }
        let interest = Interest { read: true, write: true };
        reactor.add(&stream, self.token, interest)?;
        let mut talk = Talk {
            stream,
            receiver: Receiver::new(),
            out: Outgoing::new(),
            interest,
            welcome_by: Some(now + SILENCE_MAX),
            jobs: HashMap::new(),
        };
        let release = env!("CARGO_PKG_VERSION").to_owned();
        talk.say(&ToNode::Hello { version: VERSION, release });
        talk.say(&ToNode::Tenants(self.tenants.clone()));
        for (number, opened) in (0..).zip(&self.parts) {
            talk.say(&opening(number, &opened.part));
        }
        self.line = Line::Up(Box::new(talk));
        Ok(())
    }

    /// Reads what the node has said; finished jobs are appended to `done`.
    pub(crate) fn on_ready(&mut self, ready: Ready, done: &mut Vec<Job>) {
        if ready.read
            && let Err(broken) = self.hear(done)
        {
            self.break_off(&broken, clock::now(), done);
        }
    }

    fn hear(&mut self, done: &mut Vec<Job>) -> Result<(), Broken> {
        let Line::Up(talk) = &mut self.line else { return Ok(()) };
        for _ in 0..READS_MAX {
            let received = talk.receiver.receive(&mut talk.stream)?;
            while let Some((head, payload)) = talk.receiver.next_frame()? {
                match head {
                    ReplyHead::Answer(AnswerHead { ticket, outcome, .. }) => {
                        let (mut job, answered) =
                            talk.jobs.remove(&ticket).ok_or(Broken::Stranger)?;
                        (job.outcome, job.buffer) = (outcome, payload);
                        self.parts[job.part as usize].count(&job, answered);
                        done.push(job);
                    }
                    ReplyHead::Message(_) => match decode(&payload)? {
                        FromNode::Welcome { name, .. } => {
                            talk.welcome_by = None;
                            if std::mem::take(&mut self.is_reported) {
                                tracing::info!("node {name} is back at {}", self.address);
                            }
                        }
                        FromNode::Refused { reason, .. } => return Err(Broken::Refused(reason)),
                        FromNode::Opened { part, refused } => {
                            let opened = self.parts.get_mut(part as usize);
                            opened.ok_or(Broken::Stranger)?.on_opened(refused);
                        }
                    },
                }
            }
            if received == Received::Dry {
                break;
            }
        }
        Ok(())
    }

    /// Writes what is to be said, as far as the node takes it.
    pub(crate) fn flush(&mut self, reactor: &Reactor<Letter>, done: &mut Vec<Job>) {
        let Line::Up(talk) = &mut self.line else { return };
        if let Err(error) = talk.flush(self.token, reactor) {
            self.break_off(&Broken::Io(error), clock::now(), done);
        }
    }

    /// Ends the conversation, and everything that is out with it.
    fn break_off(&mut self, broken: &Broken, now: Instant, done: &mut Vec<Job>) {
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!("the node at {} is away: {broken}", self.address);
        }
        // The stream leaves the reactor by being closed.
        let line = std::mem::replace(&mut self.line, Line::Away(now + RETRY));
        let Line::Up(talk) = line else { return };
        for (mut job, _) in talk.jobs.into_values() {
            job.outcome = Err(Fault::Io);
            done.push(job);
        }
        for opened in &mut self.parts {
            opened.is_in_doubt |= opened.answered > opened.flushed;
            opened.flushed = opened.answered;
            opened.is_refused = false;
        }
    }
}

impl Opened {
    /// Keeps account of what a flush has still to cover.
    fn count(&mut self, job: &Job, answered: u64) {
        match job.command {
            Command::Write { durable: false }
            | Command::Discard
            | Command::Zero { durable: false, .. } => self.answered += 1,
            Command::Flush if job.outcome.is_ok() => self.flushed = self.flushed.max(answered),
            _ => {}
        }
    }

    fn on_opened(&mut self, refused: Option<String>) {
        if let Some(reason) = &refused {
            let Part { volume, index, .. } = &self.part;
            tracing::error!("part {index} of volume {volume} cannot be served: {reason}");
        }
        self.is_refused = refused.is_some();
    }
}

impl Talk {
    fn say(&mut self, message: &ToNode) {
        let mut bytes = Vec::new();
        match encode::<RequestHead, _>(message, &mut bytes) {
            Ok(()) => self.out.push(&bytes),
            // Only the names of tenants can become so many, and these are then nobody's.
            Err(error) => tracing::error!("a node cannot be told all of it: {error}"),
        }
    }

    fn ask(&mut self, mut job: Job, answered: u64) {
        let Job { ticket, tag, command, part, offset, length, .. } = job;
        self.out.push(&JobHead { ticket, tag, command, part, offset, length }.to_bytes());
        let buffer = std::mem::take(&mut job.buffer);
        if command.has_payload() {
            self.out.push_buffer(buffer);
        }
        self.jobs.insert(ticket, (job, answered));
    }

    fn flush(&mut self, token: u64, reactor: &Reactor<Letter>) -> io::Result<()> {
        let wanted = match self.out.flush(&self.stream) {
            Ok(is_all) => Interest { read: true, write: !is_all },
            // A connection that is still being made.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
            Err(error) => return Err(error),
        };
        if wanted != self.interest {
            self.interest = wanted;
            reactor.change(&self.stream, token, wanted)?;
        }
        Ok(())
    }
}

fn opening(number: u32, part: &Part) -> ToNode {
    let Part { volume, index, length, offset } = part.clone();
    ToNode::Open { part: number, volume, index, length, offset }
}

/// Has the kernel find out when a peer is gone without a word.
fn watch_over(stream: &Stream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX / 2)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)?;
    Ok(())
}
