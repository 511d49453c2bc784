//! One connection to a node, from its first attempt to its end.
//!
//! It connects, introduces the gateway, names the tenants, opens parts, sends jobs and reads
//! replies and notices. A node that owes replies has to send something in time
//! ([`NodeLink::silent_at`]). At the end, each job without a reply fails, or is returned to be sent
//! again if the node has announced its end and the job changes nothing ([`NodeLink::close`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;

use serde::Serialize;
use tidegate_model::{PartNumber, Span, TenantId, Time};
use tidegate_proto::data::{
    AnswerHead, FromNode, JobHead, MESSAGE_MAX, ReplyHead, RequestHead, SILENCE_MAX, ToNode,
    VERSION, decode, encode,
};
use tidegate_proto::session::version::VersionMismatch;

use super::{LinkSettings, Notice, Opened, failed, refused};
use crate::buffer::Buffer;
use crate::reactor::{Interest, Reactor, Ready};
use crate::service::{Command, Job, Part};
use crate::stream::{Outgoing, Stream};
use crate::wire::{Received, Receiver};

/// How long a connect and its acceptance may take.
const GREETING_MAX: Span = Span(5 * Span::SECOND.0);

/// Reads in a row before the worker serves its other connections.
const READS_MAX: usize = 8;

/// Tickets in a message that cancels jobs: as many as fit it, whatever their numbers.
const CANCELLED_MAX: usize = MESSAGE_MAX / 16;

/// One connection to a node.
#[derive(Debug)]
pub(super) struct NodeLink {
    stream: Stream,
    begun: Time,
    /// When the node last sent or took something, or began to owe an answer.
    last_received: Time,
    is_welcome: bool,
    /// The node has announced its end, and is sent no more jobs.
    is_ending: bool,
    /// Parts to open that the node has not answered for.
    unanswered: u32,
    receiver: Receiver<ReplyHead>,
    outgoing: Outgoing,
    interest: Interest,
    /// Jobs at the node, or on their way to it, by their ticket there.
    in_flight: HashMap<u64, Job>,
    next_ticket: u64,
}

impl NodeLink {
    pub(super) fn connect<T>(
        settings: &LinkSettings,
        reactor: &Reactor<T>,
        token: u64,
        now: Time,
    ) -> io::Result<Self> {
        let stream = settings.way.connect()?;
        if settings.is_marked {
            stream.mark(settings.kind.class);
        }
        // Writable means connected; the hello is sent then.
        let interest = Interest { read: true, write: true };
        reactor.add(&stream, token, interest)?;
        let mut link = Self {
            stream,
            begun: now,
            last_received: now,
            is_welcome: false,
            is_ending: false,
            unanswered: 0,
            receiver: Receiver::new(),
            outgoing: Outgoing::new(),
            interest,
            in_flight: HashMap::new(),
            next_ticket: 0,
        };
        link.send(&ToNode::Hello { version: VERSION, release: settings.release.clone() });
        link.send(&ToNode::Identify(settings.identity.clone()));
        link.send(&ToNode::Carries(settings.kind));
        Ok(link)
    }

    pub(super) fn is_welcome(&self) -> bool {
        self.is_welcome
    }

    /// Whether jobs may be sent: the node has accepted the connection, has answered for every part,
    /// and has not announced its end. A job that was sent earlier could reach a part that is not
    /// the volume's.
    pub(super) fn takes_jobs(&self) -> bool {
        self.is_welcome && self.unanswered == 0 && !self.is_ending
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Whether the node ends and has answered everything.
    pub(super) fn is_drained(&self) -> bool {
        self.is_ending && self.in_flight.is_empty()
    }

    /// The deadline for the next bytes of the node; [`Time::MAX`] if it need not.
    pub(super) fn silent_at(&self) -> Time {
        match (self.is_welcome, self.in_flight.is_empty()) {
            (false, _) => self.begun.after(GREETING_MAX),
            (true, true) if self.unanswered == 0 => Time::MAX,
            (true, true) => self.last_received.after(SILENCE_MAX),
            (true, false) => self.last_received.after(SILENCE_MAX),
        }
    }

    pub(super) fn tenants(&mut self, names: &[String]) {
        ToNode::tenants(names).iter().for_each(|page| self.send(page));
    }

    pub(super) fn open(&mut self, part: PartNumber, what: &Part) {
        self.unanswered += 1;
        let Part { volume, index, length, offset, geometry } = what.clone();
        self.send(&ToNode::Open { part, volume, index, length, offset, geometry });
    }

    fn send(&mut self, message: &impl Serialize) {
        let mut bytes = Vec::new();
        let encoded = encode::<RequestHead, _>(message, &mut bytes);
        debug_assert!(encoded.is_ok(), "all that grows is said in several messages: {encoded:?}");
        if encoded.is_ok() {
            self.outgoing.push(&bytes);
        }
    }

    /// Queues a job. The link has tickets of its own: another session may use the same number.
    pub(super) fn submit(&mut self, now: Time, mut job: Job) {
        if self.in_flight.is_empty() {
            self.last_received = now;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        job.times.sent = Some(now);
        let Job { tag, command, part, length, .. } = job;
        let offset = if command == Command::Flush { job.incarnation } else { job.offset };
        self.outgoing.push(&JobHead { ticket, tag, command, part, offset, length }.to_bytes());
        if command.has_payload() {
            // A submitter that may repeat the job keeps its bytes; here they are gone once they are
            // sent.
            self.outgoing.push_buffer(std::mem::take(&mut job.buffer));
        }
        self.in_flight.insert(ticket, job);
    }

    /// Reports that no client waits for these jobs any more, by the submitter's tickets.
    pub(super) fn cancel(&mut self, tickets: &HashSet<u64>) {
        let meant = self.in_flight.iter().filter(|(_, job)| tickets.contains(&job.ticket));
        let mut meant: Vec<u64> = meant.map(|(ticket, _)| *ticket).collect();
        meant.sort_unstable();
        for meant in meant.chunks(CANCELLED_MAX) {
            self.send(&ToNode::Cancel(meant.to_vec()));
        }
    }

    pub(super) fn fence(&mut self, link: u32, connection: u64) {
        self.send(&ToNode::Fence { link, connection });
    }

    pub(super) fn elsewhere(&mut self, costs: &[(TenantId, u64)]) {
        self.send(&ToNode::Elsewhere(costs.to_vec()));
    }

    pub(super) fn flush<T>(&mut self, reactor: &Reactor<T>, token: u64) -> io::Result<()> {
        // Before it is connected the socket takes nothing, and the reactor says when it does.
        let is_connecting = !self.is_welcome && self.interest.write;
        let is_empty = match is_connecting {
            true => self.outgoing.is_empty(),
            false => self.outgoing.flush(&self.stream)?,
        };
        let interest = Interest { read: true, write: !is_empty };
        if interest != self.interest {
            reactor.change(&self.stream, token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    pub(super) fn on_ready(
        &mut self,
        now: Time,
        ready: Ready,
        parts: &mut [Opened],
        notices: &mut VecDeque<Notice>,
        done: &mut Vec<Job>,
    ) -> io::Result<()> {
        if ready.gone {
            self.stream.error()?;
        }
        if ready.write {
            let waiting = self.outgoing.len();
            self.outgoing.flush(&self.stream)?;
            // A node that takes bytes lives, however long the rest of them takes.
            if self.outgoing.len() < waiting {
                self.last_received = now;
            }
        }
        if !ready.read {
            return Ok(());
        }
        self.last_received = now;
        for _ in 0..READS_MAX {
            let received = self.receiver.receive(&mut self.stream);
            // Frames that arrived before the end count.
            while let Some((head, payload)) =
                self.receiver.next_frame().map_err(|error| refused(error.to_string()))?
            {
                match head {
                    ReplyHead::Message(_) => self.on_message(&payload, parts, notices)?,
                    ReplyHead::Answer(head) => self.answer(head, payload, done)?,
                }
            }
            if received? == Received::Dry {
                break;
            }
        }
        Ok(())
    }

    fn on_message(
        &mut self,
        payload: &[u8],
        parts: &mut [Opened],
        notices: &mut VecDeque<Notice>,
    ) -> io::Result<()> {
        match decode(payload).map_err(|error| refused(error.to_string()))? {
            FromNode::Welcome { version, name, release } => {
                let peer = format_args!("node (release {release})");
                VersionMismatch::check((peer, version), ("gateway", VERSION))
                    .map_err(|mismatch| refused(mismatch.to_string()))?;
                self.is_welcome = true;
                notices.push_back(Notice::Up { name });
            }
            FromNode::Alive => {}
            FromNode::Ending => self.is_ending = true,
            FromNode::Refused { reason, .. } => return Err(refused(reason)),
            FromNode::Opened { part, opened } => {
                let opened_part = part_of(parts, part)?;
                opened_part.is_refused = opened.is_err();
                self.unanswered = self.unanswered.saturating_sub(1);
                notices.push_back(match opened {
                    Ok(state) => Notice::PartReady { part, state },
                    Err(reason) => Notice::PartRefused { part, reason },
                });
            }
            FromNode::Incarnation { part, incarnation } => {
                part_of(parts, part)?;
                notices.push_back(Notice::Incarnation { part, incarnation });
            }
            FromNode::Fenced { link, connection } => {
                notices.push_back(Notice::Fenced { link, connection });
            }
        }
        Ok(())
    }

    fn answer(&mut self, head: AnswerHead, payload: Buffer, done: &mut Vec<Job>) -> io::Result<()> {
        let Some(mut job) = self.in_flight.remove(&head.ticket) else {
            return Err(refused(format!("an answer to nothing: ticket {}", head.ticket)));
        };
        let is_whole = job.command != Command::Read || payload.len() == job.length as usize;
        if head.outcome.is_ok() && !is_whole {
            let ticket = head.ticket;
            self.in_flight.insert(ticket, job);
            return Err(refused(format!("a read of another length: ticket {ticket}")));
        }
        job.outcome = head.outcome;
        job.times.stay = head.stay;
        job.buffer = payload;
        done.push(job);
        Ok(())
    }

    /// Ends the link. Jobs that the node had and did not answer have failed; but if the node has
    /// announced its end, jobs that change nothing are returned, in their order, for its successor.
    pub(super) fn close<T>(self, reactor: &Reactor<T>, done: &mut Vec<Job>) -> Vec<Job> {
        let _ = reactor.remove(&self.stream);
        let mut jobs: Vec<_> = self.in_flight.into_iter().collect();
        jobs.sort_unstable_by_key(|(ticket, _)| *ticket);
        let jobs = jobs.into_iter().map(|(_, job)| job);
        let (again, lost) = jobs.partition(|job| self.is_ending && changes_nothing(job.command));
        done.extend(Vec::into_iter(lost).map(failed));
        again
    }
}

/// Whether a job may be done twice whatever else is done in between. A flush names the incarnation
/// of the part.
pub(super) fn changes_nothing(command: Command) -> bool {
    matches!(command, Command::Read | Command::Map | Command::Flush)
}

/// The part with this number, if it was opened on this link.
fn part_of(parts: &mut [Opened], part: PartNumber) -> io::Result<&mut Opened> {
    let opened_part = parts.get_mut(part.index());
    opened_part.ok_or_else(|| refused(format!("part {part} was never asked for")))
}
