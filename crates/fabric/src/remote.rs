//! A node behind a socket, in one worker of a gateway.
//!
//! # Problem
//! A worker owns its sockets, the one to a node included, and never waits. A node may be
//! unreachable, return as another process, or answer in any order; the worker's clients must get
//! replies or errors, each once, and soon.
//!
//! # Mechanism
//! A [`Remote`] keeps the socket in the worker's reactor and is driven by the worker: called when
//! the socket is ready and when its deadline has passed, it appends finished jobs to a vector. It
//! connects when it is made and again whenever the link breaks, at growing intervals; on every new
//! link it sends its hello, the names of the tenants and the parts to open, all before the first
//! job, so nothing needs a round trip. Jobs that arrive while the node is unreachable wait for it,
//! for at most [`LinkSettings::patience`]. A node that owes replies and sends nothing for five
//! seconds, not even a sign of life, counts as unreachable: the link is closed.
//!
//! A node that stops announces it ([`FromNode::Ending`]), and answers the jobs that it was sent.
//! From then on it counts as unreachable: new jobs wait for the next process, and after the last
//! reply the link is closed. The jobs' patience begins then. So an orderly restart costs no client
//! an error.
//!
//! A job that was sent on a link fails when the link breaks. It may or may not have been done; only
//! the client can decide whether it may be done twice. After a node has announced its end there is
//! an exception: reads, maps and flushes that it has not answered are sent to the next process,
//! because they change nothing. The node reports whether acknowledged writes are lost with it: a
//! flush carries the incarnation of the part that its client relies on, and the node compares. So
//! this module keeps no state for that.
//!
//! # Writes that failed and may still happen
//! Bytes of a job that failed with its link may still be on their way to the node, or the job at
//! its device. Each connection identifies itself ([`LinkIdentity`]); the node ends the earlier
//! connections of the link before it accepts the next one. So a job that is sent after that runs
//! after every job that failed here. Other links of the gateway do not have this order: a
//! [`Notice::Unsettled`] names the parts that such jobs may still change, until [`Notice::Up`]. A
//! link that cannot be made again has its last connection fenced over another one of the gateway to
//! the same node ([`Remote::fence`], [`Notice::Fenced`]).
//!
//! [`LinkIdentity`]: tidegate_proto::data::LinkIdentity
//! [`FromNode::Ending`]: tidegate_proto::data::FromNode::Ending

mod link;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io;

use tidegate_model::{PartNumber, Span, TenantId, Time};
use tidegate_proto::data::{LinkIdentity, LinkKind};
use tidegate_proto::retry::Retry;

use crate::reactor::{Reactor, Ready};
use crate::service::{Fault, Job, Part, PartState};
use crate::stream::Way;
use link::{NodeLink, changes_nothing};

/// The first and the longest wait between two attempts to connect.
const RETRY_MIN: Span = Span(20 * Span::MILLISECOND.0);
const RETRY_MAX: Span = Span(Span::SECOND.0);

/// The longest wait while jobs wait for the node: they fail if the node is back and the link is not
/// in time.
const RETRY_MAX_AWAITED: Span = Span(200 * Span::MILLISECOND.0);

/// Why a node is unreachable that has announced its end.
const ENDED: &str = "it is shutting down";

/// Settings of a link to a node.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// The connection settings of the node.
    pub way: Way,
    /// How long a job waits for an unreachable node before it fails. By default five seconds: a
    /// restart goes unnoticed, and a client's own time-out of half a minute does not strike.
    pub patience: Span,
    /// The release of Tidegate that we run, for the node's log.
    pub release: String,
    /// The requests that it carries. By default short ones of class medium.
    pub kind: LinkKind,
    /// Whether its packets have the code point of its class. By default they have.
    pub is_marked: bool,
    /// Which link it is. The number of the connection grows with each.
    pub identity: LinkIdentity,
}

impl LinkSettings {
    /// A node with these connection settings, for the link with this identity; the other fields
    /// have their defaults.
    pub fn new(way: impl Into<Way>, identity: LinkIdentity) -> Self {
        let (way, release) = (way.into(), env!("CARGO_PKG_VERSION").into());
        let (kind, is_marked) = (LinkKind::default(), true);
        Self { way, patience: Span(5 * Span::SECOND.0), release, kind, is_marked, identity }
    }
}

/// A change of a node's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It has accepted the connection.
    Up {
        /// Its name.
        name: String,
    },
    /// The link broke, or could not be made. Reported once until it is up again.
    Down {
        /// The reason, for people.
        reason: String,
    },
    /// It refuses a part. Jobs on it fail until it opens the part, after another connect.
    PartRefused {
        /// The part.
        part: PartNumber,
        /// The reason, for people.
        reason: String,
    },
    /// It opened a part.
    PartReady {
        /// The part.
        part: PartNumber,
        /// Its incarnation and its identity.
        state: PartState,
    },
    /// Jobs that change a part failed with the link. The node may still carry them out, until the
    /// next [`Self::Up`], or until this connection is [`Self::Fenced`] over another link.
    Unsettled {
        /// The part.
        part: PartNumber,
        /// The number of the connection on the link.
        connection: u64,
    },
    /// The node carries out no more jobs of another link's connections, up to this one.
    Fenced {
        /// The number of the other link.
        link: u32,
        /// The last connection.
        connection: u64,
    },
    /// Acknowledged writes to a part may have been lost.
    Incarnation {
        /// The part.
        part: PartNumber,
        /// Its new incarnation.
        incarnation: u64,
    },
}

/// A part at the node.
#[derive(Debug)]
struct Opened {
    part: Part,
    /// The node refuses it on this link.
    is_refused: bool,
}

/// A node behind a socket.
#[derive(Debug)]
pub struct Remote {
    settings: LinkSettings,
    token: u64,
    tenants: Vec<String>,
    parts: Vec<Opened>,
    link: Option<NodeLink>,
    /// Jobs that arrived while there was no link, each with its deadline.
    waiting: VecDeque<(Time, Job)>,
    /// When to connect again, if there is no link.
    retry: Retry,
    notices: VecDeque<Notice>,
    /// The last notice about the link was that it is down.
    is_down: bool,
}

impl Remote {
    /// A node that is connected to at the first [`Self::on_deadline`], which is due at once. Its
    /// socket is in the reactor under `token`.
    pub fn new(settings: LinkSettings, token: u64) -> Self {
        Self {
            settings,
            token,
            tenants: Vec::new(),
            parts: Vec::new(),
            link: None,
            waiting: VecDeque::new(),
            retry: Retry::new(RETRY_MIN, RETRY_MAX),
            notices: VecDeque::new(),
            is_down: false,
        }
    }

    /// Whether the node has accepted the connection and the link has not broken since.
    pub fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(NodeLink::is_welcome)
    }

    /// The number of the link.
    pub fn link(&self) -> u32 {
        self.settings.identity.link
    }

    /// Whether the link broke or could not be made, and is not up again.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// Whether a job that is submitted now is sent at once.
    pub fn takes_jobs(&self) -> bool {
        self.waiting.is_empty() && self.link.as_ref().is_some_and(NodeLink::takes_jobs)
    }

    /// Announces the tenants: the tag's [`tidegate_model::TenantId`] 1 is the first of them in
    /// every job that is submitted from here on.
    pub fn tenants(&mut self, names: &[String]) {
        self.tenants = names.to_vec();
        if let Some(link) = &mut self.link {
            link.tenants(names);
        }
    }

    /// Makes a part ready, and gives the number that jobs name it by. Jobs may follow at once; if
    /// the node refuses, they fail, and a [`Notice`] says why.
    pub fn open(&mut self, part: Part) -> PartNumber {
        let number = PartNumber::at(self.parts.len());
        if let Some(link) = &mut self.link {
            link.open(number, &part);
        }
        self.parts.push(Opened { part, is_refused: false });
        number
    }

    /// Takes all of `jobs`. They are sent by the next [`Self::flush`]; those that fail at once are
    /// appended to `done`.
    ///
    /// # Panics
    /// If a job names a part that was not opened.
    pub fn submit(&mut self, now: Time, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        let until = now.after(self.settings.patience);
        for job in jobs.drain(..) {
            match &mut self.link {
                _ if self.parts[job.part.index()].is_refused => done.push(failed(job)),
                Some(link) if link.takes_jobs() && self.waiting.is_empty() => link.submit(now, job),
                _ => self.waiting.push_back((until, job)),
            }
        }
        self.hurry(now);
    }

    /// Connects soon, if jobs wait.
    fn hurry(&mut self, now: Time) {
        if !self.waiting.is_empty() {
            self.retry.by(now.after(RETRY_MAX_AWAITED));
        }
    }

    /// Cancels jobs whose client has gone. Those that wait for the node are appended to `done`, as
    /// [`Fault::Ending`]; the next [`Self::flush`] reports the others to the node, which sends them
    /// back.
    pub fn cancel(&mut self, tickets: &[u64], done: &mut Vec<Job>) {
        let tickets: HashSet<u64> = tickets.iter().copied().collect();
        for (until, job) in std::mem::take(&mut self.waiting) {
            match tickets.contains(&job.ticket) {
                true => done.push(Job { outcome: Err(Fault::Ending), ..job }),
                false => self.waiting.push_back((until, job)),
            }
        }
        if let Some(link) = &mut self.link {
            link.cancel(&tickets);
        }
    }

    /// Whether jobs wait for the node.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Removes those jobs that wait for the node, for another link to it. A job whose part the node
    /// refuses does not wait.
    pub fn take_waiting(&mut self, is_meant: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut taken = Vec::new();
        for (until, job) in std::mem::take(&mut self.waiting) {
            match is_meant(&job) {
                true => taken.push(job),
                false => self.waiting.push_back((until, job)),
            }
        }
        taken
    }

    /// Has the connections of another link of the gateway ended, up to this one, with the next
    /// [`Self::flush`]; [`Notice::Fenced`] follows. Returns whether this link is up.
    pub fn fence(&mut self, link: u32, connection: u64) -> bool {
        match self.link.as_mut().filter(|link| link.is_welcome()) {
            Some(own) => {
                own.fence(link, connection);
                true
            }
            None => false,
        }
    }

    /// Reports the tenants' service at other nodes, with the next [`Self::flush`]. An unreachable
    /// node does not receive it: it serves them nothing meanwhile that this could delay.
    pub fn elsewhere(&mut self, costs: &[(TenantId, u64)]) {
        if let Some(link) = self.link.as_mut().filter(|link| link.is_welcome()) {
            link.elsewhere(costs);
        }
    }

    /// Sends queued messages. To be called once per round of the worker, behind everything else.
    pub fn flush<T>(&mut self, reactor: &Reactor<T>, now: Time, done: &mut Vec<Job>) {
        if let Some(link) = &mut self.link
            && let Err(error) = link.flush(reactor, self.token)
        {
            self.fall(reactor, now, &error.to_string(), done);
        }
    }

    /// The socket is ready. Finished jobs are appended to `done`.
    pub fn on_ready<T>(
        &mut self,
        reactor: &Reactor<T>,
        now: Time,
        ready: Ready,
        done: &mut Vec<Job>,
    ) {
        let Some(link) = &mut self.link else { return };
        let was_welcome = link.is_welcome();
        let received = link.on_ready(now, ready, &mut self.parts, &mut self.notices, done);
        if let Err(error) = received {
            return self.fall(reactor, now, &error.to_string(), done);
        }
        if link.is_drained() {
            return self.fall(reactor, now, ENDED, done);
        }
        if !was_welcome && link.is_welcome() {
            self.retry.succeed();
            self.is_down = false;
        }
        self.flush(reactor, now, done);
    }

    /// Sends the jobs that waited, if the node takes jobs now. Jobs fail whose part the node
    /// refuses, or for which `is_refused` is true. To be called after [`Self::on_ready`], once the
    /// caller has checked the notices: no job is sent to a part before the part is identified.
    pub fn release<T>(
        &mut self,
        reactor: &Reactor<T>,
        now: Time,
        is_refused: impl Fn(&Job) -> bool,
        done: &mut Vec<Job>,
    ) {
        let Some(link) = self.link.as_mut().filter(|link| link.takes_jobs()) else { return };
        if self.waiting.is_empty() {
            return;
        }
        for (_, job) in self.waiting.drain(..) {
            match self.parts[job.part.index()].is_refused || is_refused(&job) {
                true => done.push(failed(job)),
                false => link.submit(now, job),
            }
        }
        self.flush(reactor, now, done);
    }

    /// When [`Self::on_deadline`] is to be called; [`Time::MAX`] for never.
    pub fn next_deadline(&self) -> Time {
        let gives_up = self.gives_up_at();
        let link = self.link.as_ref().map_or(self.retry.at(), NodeLink::silent_at);
        gives_up.min(link)
    }

    /// The deadline of the first waiting job; [`Time::MAX`] for none. While a node that ends
    /// answers its jobs, there is none: that phase has its own bound.
    fn gives_up_at(&self) -> Time {
        match &self.link {
            Some(link) if link.is_ending() => Time::MAX,
            _ => self.waiting.front().map_or(Time::MAX, |(until, _)| *until),
        }
    }

    /// Acts on a passed deadline: connects, fails jobs, or closes the link of a silent node.
    pub fn on_deadline<T>(&mut self, reactor: &Reactor<T>, now: Time, done: &mut Vec<Job>) {
        while self.gives_up_at() <= now {
            done.extend(self.waiting.pop_front().map(|(_, job)| failed(job)));
        }
        match &self.link {
            None if self.retry.is_due(now) => self.connect(reactor, now, done),
            Some(link) if link.silent_at() <= now => {
                self.fall(reactor, now, "the node does not answer", done);
            }
            _ => {}
        }
    }

    /// Takes the oldest notice that was not taken yet, if any.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn connect<T>(&mut self, reactor: &Reactor<T>, now: Time, done: &mut Vec<Job>) {
        self.settings.identity.connection += 1;
        match NodeLink::connect(&self.settings, reactor, self.token, now) {
            Ok(mut link) => {
                link.tenants(&self.tenants);
                for (number, opened) in (0..).map(PartNumber).zip(&self.parts) {
                    link.open(number, &opened.part);
                }
                self.link = Some(link);
            }
            Err(error) => self.fall(reactor, now, &error.to_string(), done),
        }
    }

    /// The link has ended: jobs on it fail, or wait with later ones.
    fn fall<T>(&mut self, reactor: &Reactor<T>, now: Time, reason: &str, done: &mut Vec<Job>) {
        let mut reason = reason;
        if let Some(link) = self.link.take() {
            let is_orderly = link.is_ending();
            let before = done.len();
            let again = link.close(reactor, done);
            let changes = done[before..].iter().filter(|job| !changes_nothing(job.command));
            let parts: BTreeSet<PartNumber> = changes.map(|job| job.part).collect();
            let connection = self.settings.identity.connection;
            let unsettled = parts.into_iter().map(|part| Notice::Unsettled { part, connection });
            self.notices.extend(unsettled);
            if is_orderly {
                reason = ENDED;
                let until = now.after(self.settings.patience);
                let jobs = again.into_iter().chain(self.waiting.drain(..).map(|(_, job)| job));
                self.waiting = jobs.map(|job| (until, job)).collect();
            }
        }
        self.parts.iter_mut().for_each(|opened| opened.is_refused = false);
        self.retry.later(now);
        self.hurry(now);
        if !self.is_down {
            self.is_down = true;
            self.notices.push_back(Notice::Down { reason: reason.into() });
        }
    }
}

/// The job, failed because the node is unreachable.
fn failed(mut job: Job) -> Job {
    job.outcome = Err(Fault::Io);
    job
}

/// An error in words of our own.
fn refused(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
