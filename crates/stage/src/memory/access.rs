//! The fabrics that a client may have, as one: over shared memory, the model of a card or a card,
//! with tokens or without.

use tidegate_algo::haechi::engine::Purse;
use tidegate_fabric::memory::model::Model;
use tidegate_fabric::memory::shm::Shm;
#[cfg(feature = "verbs")]
use tidegate_fabric::memory::verbs::Verbs;
#[cfg(feature = "verbs")]
use tidegate_model::Span;
use tidegate_model::Time;
use tidegate_onesided::haechi::Port;
use tidegate_onesided::one_sided::{Done, Fabric, Lost, Post, PostError};

/// How soon to look again what a card has done: less than a nap, so whoever waits yields its
/// processor and does not sleep. A card takes some microseconds.
#[cfg(feature = "verbs")]
const LOOK: Span = Span(10 * Span::MICROSECOND.0);

/// One of them.
#[derive(Debug)]
pub(super) enum Access {
    Shm(Box<Port<Shm>>),
    Model(Box<Port<Model>>),
    BareShm(Shm),
    BareModel(Model),
    #[cfg(feature = "verbs")]
    Card(Box<Port<Verbs>>),
    #[cfg(feature = "verbs")]
    BareCard(Box<Verbs>),
}

/// The same call of whichever it is.
macro_rules! each {
    ($access:expr, $fabric:ident => $call:expr) => {
        match $access {
            Access::Shm($fabric) => $call,
            Access::Model($fabric) => $call,
            Access::BareShm($fabric) => $call,
            Access::BareModel($fabric) => $call,
            #[cfg(feature = "verbs")]
            Access::Card($fabric) => $call,
            #[cfg(feature = "verbs")]
            Access::BareCard($fabric) => $call,
        }
    };
}

impl Access {
    /// The tokens, if there are any.
    pub(super) fn purse(&self) -> Option<&Purse> {
        match self {
            Self::Shm(port) => Some(port.purse()),
            Self::Model(port) => Some(port.purse()),
            #[cfg(feature = "verbs")]
            Self::Card(port) => Some(port.purse()),
            _ => None,
        }
    }

    /// Has the engine, if there is one, know what its caller could not begin yet.
    pub(super) fn note_unmet(&mut self, count: u64) {
        match self {
            Self::Shm(port) => port.note_unmet(count),
            Self::Model(port) => port.note_unmet(count),
            #[cfg(feature = "verbs")]
            Self::Card(port) => port.note_unmet(count),
            _ => {}
        }
    }

    /// When to poll although nothing was posted, by what it was at `now`.
    #[cfg_attr(not(feature = "verbs"), expect(unused_variables, reason = "cards tell nobody"))]
    pub(super) fn next_deadline(&self, now: Time) -> Time {
        let of = |port: Time, fabric: Option<Time>| port.min(fabric.unwrap_or(Time::MAX));
        match self {
            Self::Shm(port) => of(port.next_deadline(), port.fabric().next_deadline()),
            Self::Model(port) => of(port.next_deadline(), port.fabric().next_deadline()),
            Self::BareShm(shm) => of(Time::MAX, shm.next_deadline()),
            Self::BareModel(model) => of(Time::MAX, model.next_deadline()),
            #[cfg(feature = "verbs")]
            Self::Card(port) => of(port.next_deadline(), look(port.fabric(), now)),
            #[cfg(feature = "verbs")]
            Self::BareCard(verbs) => of(Time::MAX, look(verbs, now)),
        }
    }
}

/// When to look what a card has done, if it does anything.
#[cfg(feature = "verbs")]
fn look(verbs: &Verbs, now: Time) -> Option<Time> {
    verbs.is_busy().then(|| now.after(LOOK))
}

impl Fabric for Access {
    #[inline]
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        each!(self, fabric => fabric.post(post))
    }

    #[inline]
    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        each!(self, fabric => fabric.flush(now))
    }

    #[inline]
    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        each!(self, fabric => fabric.poll(now, done))
    }

    fn buffers(&self) -> u32 {
        each!(self, fabric => fabric.buffers())
    }

    #[inline]
    fn buffer(&self, buffer: u32) -> &[u8] {
        each!(self, fabric => fabric.buffer(buffer))
    }

    #[inline]
    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        each!(self, fabric => fabric.buffer_mut(buffer))
    }

    fn region(&self) -> u64 {
        each!(self, fabric => fabric.region())
    }
}
