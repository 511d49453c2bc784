//! Synthetic and recorded workloads: the requests of storage clients, and their times.
//!
//! **Problem.** A mechanism shows its worth under a load that takes few words ("the high class
//! writes 90 Gbit/s in requests of 17 to 98 blocks"). It must be possible to make that load again
//! to the last request, also when something else in the run has changed.
//!
//! **Model.** A workload is a stream of [`IoRequest`]s. Five things about a request are independent
//! of each other: when it comes, whether it reads or writes, how much, where, and its class, which
//! is that of the workload. When requests come there are two answers to ([`Load`]). In an *open*
//! loop they come at a rate, evenly or without memory, always or on and off in turn, whatever
//! becomes of those before; an overload grows without bound. In a *closed* loop some are
//! outstanding and each answer makes the next, after a time to think; there is no overload.
//!
//! **Mechanism.** A [`WorkloadPlan`] is read from TOML; a [`Source`] made of it gives the requests.
//! It draws from four streams, one for each of the independent things, all named after the
//! workload. So a plan with another rate requests the same bytes at the same offsets, only faster.
//!
//! *Example.* 90 Gbit/s are 11.25 GB/s. With requests of 17 to 98 blocks of 4 KiB, 57.5 blocks on
//! average, a request comes every 235,520 / 11.25e9 s = 20.935 us: without memory, that is the mean
//! of exponential times, and evenly, each comes when the bytes of those before have just passed at
//! that rate, 6.19 us after the smallest and 35.68 us after the largest.
//!
//! **What is left out.** Sizes, places and operations do not depend on each other or on the past,
//! which real programs' do; where that matters, the load is a [recording](crate::trace)
//! ([`Recording`]), which then determines all of it but the class.
//!
//! ```
//! use tidegate_model::{Bytes, Class, Operation};
//! use tidegate_sim::time::Picoseconds;
//! use tidegate_sim::workload::WorkloadPlan;
//! let plan = WorkloadPlan::parse(r#"
//!     name = "high"
//!     class = "high"
//!     reads = "0%"
//!     sizes = { uniform = { block = "4KiB", least = 17, most = 98 } }
//!     offsets = "sequential"
//!     space = "1TiB"
//!     load = { open = { rate = "90Gbps" } }
//! "#)?;
//! let mut source = plan.source(7, 0);
//! let [first, second] = [(); 2].map(|()| source.arrival().expect("it has no end"));
//! assert_eq!((first.at, first.offset), (Picoseconds::ZERO, Bytes(0)));
//! assert_eq!((first.class, first.operation), (Class::High, Operation::Write));
//! assert_eq!(second.offset, first.bytes);
//! assert_eq!(second.at.0, first.bytes.0 * 1_000_000_000_000 / 11_250_000_000);
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod arrivals;
mod offsets;
mod published;
mod recorded;
mod sizes;

use serde::Deserialize;
use tidegate_model::{Bytes, Class, Operation, Portion, Span};

pub use arrivals::{Arriving, Offered, Open, Phases, Pulse};
pub use offsets::Offsets;
pub use published::{Published, Shape};
pub use recorded::{Recording, Replay};
pub use sizes::{Blocks, Row, Sizes};

pub use crate::io_request::IoRequest;
use crate::rng::Stream;
use crate::scenario::{Arrivals, ScenarioError, must, optional, read, text};
use crate::time::Picoseconds;
use arrivals::INTERVAL_MAX;
use offsets::OffsetGenerator;
use sizes::SizeGenerator;

/// A workload, as it stands in a scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadPlan {
    /// Its name. The random numbers follow from it and the run's seed.
    pub name: String,
    /// The class of its requests.
    #[serde(default, deserialize_with = "text")]
    pub class: Class,
    /// A published workload, whose operations, sizes and offsets it has unless it has its own.
    #[serde(default)]
    pub like: Option<Published>,
    /// Which part of the requests read; the others write.
    #[serde(default, deserialize_with = "optional")]
    pub reads: Option<Portion>,
    /// How much a request moves.
    #[serde(default)]
    pub sizes: Option<Sizes>,
    /// Where requests go.
    #[serde(default)]
    pub offsets: Option<Offsets>,
    /// How much storage it uses; absent where a recording has the offsets of requests.
    #[serde(default, deserialize_with = "text")]
    pub space: Bytes,
    /// Unit of random offsets, in bytes.
    #[serde(default = "WorkloadPlan::align", deserialize_with = "text")]
    pub align: Bytes,
    /// When requests come.
    pub load: Load,
    /// When it begins.
    #[serde(default, deserialize_with = "text")]
    pub start: Span,
    /// For how long it sends requests; by default to the end of the run.
    #[serde(default, deserialize_with = "optional")]
    pub length: Option<Span>,
    /// How many requests it makes at most.
    #[serde(default)]
    pub requests: Option<u64>,
}

/// When requests come.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Load {
    /// At a rate, whatever becomes of those before.
    Open(Open),
    /// When one was answered.
    Closed(Closed),
    /// At the times of a recording, which also has the requests.
    Trace(Recording),
}

/// Requests upon answers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// How many are outstanding, or being thought of.
    pub outstanding: u32,
    /// How long it takes from an answer to the next request, on average.
    #[serde(default, deserialize_with = "text")]
    pub think: Span,
    /// Whether that is always so long (`constant`) or without memory (`poisson`).
    #[serde(default)]
    pub thoughts: Arrivals,
}

impl WorkloadPlan {
    const fn align() -> Bytes {
        Bytes(4 << 10)
    }

    /// Reads one from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// Operations, sizes and offsets: its own, or else those of the workload that it is like. None
    /// if one is in neither.
    pub fn shape(&self) -> Option<Shape> {
        let like = self.like.map(Published::shape);
        let like = like.as_ref();
        Some(Shape {
            reads: self.reads.or(like.map(|shape| shape.reads))?,
            sizes: self.sizes.clone().or_else(|| like.map(|shape| shape.sizes.clone()))?,
            offsets: self.offsets.or(like.map(|shape| shape.offsets))?,
        })
    }

    /// Whether requests can be made of the plan. Code that builds or changes a plan calls this,
    /// too.
    ///
    /// # Errors
    /// The first thing that contradicts another, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        match &self.load {
            Load::Trace(recording) => self.check_recorded(recording),
            Load::Open(open) => open.check(self.checked_shape()?.sizes.mean(), "load.open"),
            Load::Closed(closed) => {
                self.checked_shape()?;
                must(closed.outstanding > 0, "load.closed.outstanding: at least 1")?;
                let hours = closed.think.0 <= INTERVAL_MAX.0 / 1_000;
                must(hours, "load.closed.think: at most 1h")
            }
        }
    }

    /// Checks and returns the operations, sizes and offsets of a workload without a recording.
    fn checked_shape(&self) -> Result<Shape, ScenarioError> {
        let either = "either like, or all of reads, sizes and offsets";
        let shape = self.shape().ok_or_else(|| ScenarioError::new(either))?;
        shape.sizes.check()?;
        shape.offsets.check()?;
        must(self.align.0 > 0, "align: at least 1 byte")?;
        let fits = shape.sizes.largest() <= self.space;
        must(fits, "space: at least as much as the largest request")?;
        must(self.space <= Bytes(1 << 60), "space: at most 1024 PiB")?;
        let blocks = self.space.0 / self.align.0 < 1 << 52;
        must(blocks, "align: choose one with which the space has less than 2^52 places")?;
        Ok(shape)
    }

    fn check_recorded(&self, recording: &Recording) -> Result<(), ScenarioError> {
        let is_set = self.like.is_some() || self.reads.is_some() || self.sizes.is_some();
        let is_set = is_set || self.offsets.is_some() || self.space.0 > 0;
        let leave = "what a trace asks for stands in it; leave out like, reads, sizes, \
                     offsets and space";
        must(!is_set, leave)?;
        recording.check()
    }

    /// No request is made then or later.
    fn end(&self) -> Picoseconds {
        let start = Picoseconds::from(self.start);
        self.length.map_or(Picoseconds::MAX, |length| start.after(length.into()))
    }

    /// Requests of this plan in the run of `seed`; `client` distinguishes those that share it.
    ///
    /// # Panics
    /// If [`Self::check`] refuses the plan, or its load is a recording ([`Replay`]).
    pub fn source(&self, seed: u64, client: u64) -> Source {
        if let Err(error) = self.check() {
            panic!("{}: {error}", self.name);
        }
        let shape = self.shape().expect("it was checked");
        let stream =
            |what: &str| Stream::new(seed, &format!("workload {} {what}", self.name), client);
        let start = Picoseconds::from(self.start);
        let waiting = match &self.load {
            Load::Open(open) => Waiting::Time(Arriving::new(open, shape.sizes.mean(), start)),
            Load::Closed(closed) => {
                Waiting::Answer { first: closed.outstanding, closed: closed.clone() }
            }
            Load::Trace(_) => panic!("{}: a recording is replayed", self.name),
        };
        Source {
            class: self.class,
            reads: shape.reads,
            end: self.end(),
            start,
            left: self.requests.unwrap_or(u64::MAX),
            waiting,
            sizes: SizeGenerator::new(&shape.sizes),
            offsets: OffsetGenerator::new(
                self,
                shape.offsets,
                shape.sizes.largest(),
                &mut stream("places"),
            ),
            when: stream("times"),
            which: stream("operations"),
            how_much: stream("sizes"),
            which_offset: stream("offsets"),
        }
    }
}

/// The requests of one client.
///
/// A world calls [`arrival`](Self::arrival) at the start and each time that the last arrival has
/// come, until there is none; and reports every answer to
/// [`on_completion`](Self::on_completion), which may be followed by a request. In an open loop only
/// the first gives requests, in the order of their times; in a closed one it gives those with
/// which the loop begins.
#[derive(Clone, Debug)]
pub struct Source {
    class: Class,
    reads: Portion,
    start: Picoseconds,
    /// No request is made then or later.
    end: Picoseconds,
    /// How many more it may make.
    left: u64,
    waiting: Waiting,
    sizes: SizeGenerator,
    offsets: OffsetGenerator,
    when: Stream,
    which: Stream,
    how_much: Stream,
    which_offset: Stream,
}

/// Condition for the next request: a time or an answer.
#[derive(Clone, Debug)]
enum Waiting {
    Time(Arriving),
    /// `first` are yet to be made without one.
    Answer {
        first: u32,
        closed: Closed,
    },
}

impl Source {
    /// The next request that waits for no answer; none if there are no more of them.
    pub fn arrival(&mut self) -> Option<IoRequest> {
        let at = match &mut self.waiting {
            Waiting::Time(arriving) => arriving.next(&mut self.when)?,
            Waiting::Answer { first, .. } => {
                *first = first.checked_sub(1)?;
                self.start
            }
        };
        let request = self.request(at)?;
        if let Waiting::Time(arriving) = &mut self.waiting {
            arriving.passes(request.bytes);
        }
        Some(request)
    }

    /// Whether requests come by themselves; otherwise, upon answers.
    pub const fn is_open(&self) -> bool {
        matches!(self.waiting, Waiting::Time(_))
    }

    /// One of its requests was answered at `now`: the request that follows, if one does.
    pub fn on_completion(&mut self, now: Picoseconds) -> Option<IoRequest> {
        let Waiting::Answer { closed, .. } = &self.waiting else { return None };
        let think = Picoseconds::from(closed.think);
        let thought = match closed.thoughts {
            Arrivals::Constant => think,
            Arrivals::Poisson => self.when.exponential(think),
        };
        self.request(now.after(thought))
    }

    fn request(&mut self, at: Picoseconds) -> Option<IoRequest> {
        if at >= self.end {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        let bytes = self.sizes.draw(&mut self.how_much);
        let offset = self.offsets.draw(bytes, &mut self.which_offset);
        let read = self.which.happens(self.reads.0);
        let operation = if read { Operation::Read } else { Operation::Write };
        Some(IoRequest { at, offset, bytes, operation, class: self.class })
    }
}

#[cfg(test)]
#[path = "workload/workload_tests.rs"]
mod tests;
