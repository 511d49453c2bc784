//! Trace replay, the load: the requests of each recorded connection, and what made each of them.
//!
//! A connection is *closed* if it keeps its depth, that is, if there are at least half as many
//! requests under way after the average request as there are at most, and if at least half of its
//! requests come within [`REACTION`] of an answer. Then its requests follow answers; requests that
//! the gateway has read together follow the latest answers, one each. Any other connection is
//! *open*, and its requests follow the clock.

use std::io::{self, BufRead, Read};

use tidegate_model::{Operation, Span, Time};
use tidegate_proto::recording::{
    LINE_MAX, Parser, RecordedConnection, RecordedRequest, RecordedTenant, RecordingError,
    RecordingLine,
};

/// How soon a client that waits for an answer asks again: a round trip in a data centre and a
/// scheduler's delay. Chosen by hand.
pub const REACTION: Span = Span(500_000);

/// The most requests of a load: they take 64 bytes each.
pub const REQUESTS_MAX: usize = 1 << 25;

/// A recording, ready to be made again.
#[derive(Clone, Debug, Default)]
pub struct RecordedLoad {
    /// The names of the tenants, as recorded; empty for none.
    pub tenants: Vec<String>,
    /// How long it is.
    pub span: Span,
    /// Requests that it lacks because buffers were full.
    pub lost: u64,
    /// Requests that failed, and are left out.
    pub failed: u64,
    /// Its last line is missing.
    pub is_cut_off: bool,
    /// Of the requests that were left out because they were answered too late, the first answer.
    left_out: Option<Time>,
    pub(super) connections: Vec<ConnectionLoad>,
}

/// The requests of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionLoad {
    pub(super) connection: RecordedConnection,
    /// In the order in which they are made.
    pub(super) requests: Vec<LoadRequest>,
    /// The most that were under way at a time.
    pub(super) depth: u32,
    /// Whether it follows answers.
    pub(super) is_closed: bool,
    /// Whether it was still asking at the end.
    pub(super) goes_on: bool,
}

/// A request, as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadRequest {
    pub(super) at: Time,
    pub(super) latency: Span,
    pub(super) tenant: RecordedTenant,
    pub(super) operation: Operation,
    pub(super) bytes: u32,
    pub(super) position: u64,
    /// Of a closed connection: the answer that it follows, counted from one; zero for none.
    pub(super) follows: u32,
    /// How long after the last answer before it.
    pub(super) think: Span,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line.
    #[error(transparent)]
    Line(#[from] RecordingError),
    /// It is too large.
    #[error(
        "it has more than {REQUESTS_MAX} requests; record for a shorter time, or make a part \
         again (--span)"
    )]
    Large,
    /// It has none.
    #[error("it has no requests; record while clients use volumes of the cluster")]
    Empty,
    /// None was answered in the part that is wanted.
    #[error("its first request was answered after {first}; make a longer part again (--span)")]
    Short {
        /// The time of the first answer.
        first: Span,
    },
    /// A request was answered after the end.
    #[error(
        "it ends after {end}, and a request was answered after {answer}; correct the time in its \
         last line, or make a part again (--span)"
    )]
    Late {
        /// The length of the recording, as its last line has it.
        end: Span,
        /// The time of the answer.
        answer: Span,
    },
}

impl RecordedLoad {
    /// Reads a recording. Of one that is cut off, the last line counts only if it is whole.
    ///
    /// # Errors
    /// The first line that is wrong, or if there are too many requests, or none.
    pub fn read(source: impl BufRead) -> Result<Self, LoadError> {
        Self::read_until(source, Span::MAX)
    }

    /// The same of the beginning: without requests that were answered later than so long after the
    /// beginning, as if the recording had ended then. `lost` and `failed` are those of all of it.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub fn read_until(mut source: impl BufRead, until: Span) -> Result<Self, LoadError> {
        let (mut parser, mut load) = (Parser::default(), Self::default());
        let (mut line, mut count, mut requests) = (Vec::new(), 0, 0);
        loop {
            line.clear();
            // Enough to tell that a line is too long.
            let most = LINE_MAX as u64 + 2;
            let length = source.by_ref().take(most).read_until(b'\n', &mut line)?;
            match line.pop() {
                Some(b'\n') => {}
                // A file that is no recording is refused, however short.
                Some(last) if length as u64 == most || count == 0 => line.push(last),
                _ => break,
            }
            count += 1;
            let line = parser.line(&line)?;
            if let RecordingLine::Request(request) = &line {
                let answer = Time(request.at_ns).after(Span(request.latency_ns));
                if answer.0 > until.0 {
                    load.left_out = Some(load.left_out.map_or(answer, |first| first.min(answer)));
                    continue;
                }
                requests += 1;
            }
            if requests > REQUESTS_MAX {
                return Err(LoadError::Large);
            }
            load.take(line);
        }
        load.is_cut_off = !parser.has_ended();
        load.finish(until)
    }

    fn take(&mut self, line: RecordingLine) {
        match line {
            RecordingLine::Title => {}
            RecordingLine::Tenant(_, name) => self.tenants.push(name),
            RecordingLine::Connection(_, connection) => {
                self.connections.push(ConnectionLoad { connection, ..ConnectionLoad::default() });
            }
            RecordingLine::Request(request) => {
                // The parser knows the numbers.
                let own = &mut self.connections[request.connection as usize];
                own.requests.push(LoadRequest::new(&request));
            }
            RecordingLine::End(end) => {
                (self.span, self.lost, self.failed) = (Span(end.span_ns), end.lost, end.failed);
            }
        }
    }

    fn finish(mut self, until: Span) -> Result<Self, LoadError> {
        let requests = self.connections.iter().flat_map(|it| &it.requests);
        let last = requests.map(|request| request.answered_at().since(Time::ZERO)).max();
        let short = self.left_out.map(|first| LoadError::Short { first: first.since(Time::ZERO) });
        let last = last.ok_or(short.unwrap_or(LoadError::Empty))?;
        if !self.is_cut_off && last > self.span {
            return Err(LoadError::Late { end: self.span, answer: last });
        }
        self.span = match self.left_out {
            Some(_) => until,
            None => self.span.max(last).min(until),
        };
        self.connections.iter_mut().for_each(|connection| connection.infer(self.span));
        Ok(self)
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.connections.iter().map(|connection| connection.requests.len()).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl LoadRequest {
    fn new(recorded: &RecordedRequest) -> Self {
        Self {
            at: Time(recorded.at_ns),
            latency: Span(recorded.latency_ns),
            tenant: recorded.tenant,
            operation: recorded.operation,
            bytes: recorded.bytes,
            position: recorded.position,
            follows: 0,
            think: Span::ZERO,
        }
    }

    pub(super) fn answered_at(&self) -> Time {
        self.at.after(self.latency)
    }
}

impl ConnectionLoad {
    /// Finds out what made each request.
    fn infer(&mut self, span: Span) {
        self.requests.sort_by_key(|request| (request.at, request.answered_at()));
        let mut answers: Vec<Time> = self.requests.iter().map(LoadRequest::answered_at).collect();
        answers.sort_unstable();
        let (mut answered, mut before, mut begin) = (0, 0, 0);
        let (mut under_way, mut quick) = (0u64, 0);
        while begin < self.requests.len() {
            let at = self.requests[begin].at;
            // Requests that the gateway has read together have one time.
            let group = self.requests[begin..].iter().take_while(|request| request.at == at);
            let end = begin + group.count();
            answered += answers[answered..].iter().take_while(|answer| **answer <= at).count();
            let think = match answered.checked_sub(1) {
                Some(last) => at.since(answers[last]),
                None => Span::MAX,
            };
            for (index, request) in self.requests[begin..end].iter_mut().enumerate() {
                let behind = end - begin - 1 - index;
                let follows = answered.saturating_sub(behind).max(before);
                request.follows = follows.min(begin + index) as u32;
                request.think = think;
                under_way += (end - answered) as u64;
                quick += usize::from(think <= REACTION);
            }
            self.depth = self.depth.max((end - answered).max(1) as u32);
            (before, begin) = (answered, end);
        }
        let count = self.requests.len();
        let keeps_depth = 2 * under_way >= count as u64 * u64::from(self.depth);
        // The first requests of a connection have no answer to follow.
        let is_quick = 2 * (quick + self.depth as usize) >= count;
        self.is_closed = keeps_depth && is_quick && count > self.depth as usize;
        self.goes_on = self.is_closed && was_asking(&answers, span);
        if !self.is_closed {
            self.requests.iter_mut().for_each(|request| request.follows = 0);
        }
    }
}

/// Whether a connection with these answers was in use at the end: its last answer is no further
/// from it than twice the longest time between two.
fn was_asking(answers: &[Time], span: Span) -> bool {
    let gaps = answers.windows(2).map(|pair| pair[1].since(pair[0]));
    let longest = gaps.max().unwrap_or(Span::ZERO).max(REACTION);
    let last = answers.last().copied().unwrap_or(Time::ZERO);
    let left = Time::ZERO.after(span).since(last);
    left.0 <= 2 * longest.0
}
