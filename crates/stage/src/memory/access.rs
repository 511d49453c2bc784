//! The kinds of connection to a data node behind one type: over shared memory, the model of an RNIC
//! or an RNIC, with tokens or without.

use tidegate_algo::onesided::engine::TokenBalance;
use tidegate_fabric::memory::model::Model;
use tidegate_fabric::memory::shm::Shm;
#[cfg(feature = "verbs")]
use tidegate_fabric::memory::verbs::Verbs;
#[cfg(feature = "verbs")]
use tidegate_model::Span;
use tidegate_model::Time;
use tidegate_onesided::haechi::Port;
use tidegate_onesided::one_sided::{Done, Lost, Post, PostError, RemoteMemory};

/// How soon to poll an RNIC again: less than a nap, so a thread that waits yields its
/// processor and does not sleep. An RNIC takes some microseconds.
#[cfg(feature = "verbs")]
const POLL_INTERVAL: Span = Span(10 * Span::MICROSECOND.0);

/// One of them.
#[derive(Debug)]
pub(super) enum Access {
    Shm(Box<Port<Shm>>),
    Model(Box<Port<Model>>),
    BareShm(Shm),
    BareModel(Model),
    #[cfg(feature = "verbs")]
    Rnic(Box<Port<Verbs>>),
    #[cfg(feature = "verbs")]
    BareRnic(Box<Verbs>),
}

/// The same call of whichever it is.
macro_rules! each {
    ($access:expr, $remote:ident => $call:expr) => {
        match $access {
            Access::Shm($remote) => $call,
            Access::Model($remote) => $call,
            Access::BareShm($remote) => $call,
            Access::BareModel($remote) => $call,
            #[cfg(feature = "verbs")]
            Access::Rnic($remote) => $call,
            #[cfg(feature = "verbs")]
            Access::BareRnic($remote) => $call,
        }
    };
}

impl Access {
    /// The tokens, if there are any.
    pub(super) fn balance(&self) -> Option<&TokenBalance> {
        match self {
            Self::Shm(port) => Some(port.balance()),
            Self::Model(port) => Some(port.balance()),
            #[cfg(feature = "verbs")]
            Self::Rnic(port) => Some(port.balance()),
            _ => None,
        }
    }

    /// Passes to the engine, if there is one, the count of operations that could not begin yet.
    pub(super) fn note_unmet(&mut self, count: u64) {
        match self {
            Self::Shm(port) => port.note_unmet(count),
            Self::Model(port) => port.note_unmet(count),
            #[cfg(feature = "verbs")]
            Self::Rnic(port) => port.note_unmet(count),
            _ => {}
        }
    }

    /// When to poll although nothing was posted, by what it was at `now`.
    #[cfg_attr(not(feature = "verbs"), expect(unused_variables, reason = "cards tell nobody"))]
    pub(super) fn next_deadline(&self, now: Time) -> Time {
        let of = |port: Time, remote: Option<Time>| port.min(remote.unwrap_or(Time::MAX));
        match self {
            Self::Shm(port) => of(port.next_deadline(), port.remote().next_deadline()),
            Self::Model(port) => of(port.next_deadline(), port.remote().next_deadline()),
            Self::BareShm(shm) => of(Time::MAX, shm.next_deadline()),
            Self::BareModel(model) => of(Time::MAX, model.next_deadline()),
            #[cfg(feature = "verbs")]
            Self::Rnic(port) => of(port.next_deadline(), poll_time(port.remote(), now)),
            #[cfg(feature = "verbs")]
            Self::BareRnic(verbs) => of(Time::MAX, poll_time(verbs, now)),
        }
    }
}

/// When to poll an RNIC, if operations are in flight there.
#[cfg(feature = "verbs")]
fn poll_time(verbs: &Verbs, now: Time) -> Option<Time> {
    verbs.is_busy().then(|| now.after(POLL_INTERVAL))
}

impl RemoteMemory for Access {
    #[inline]
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        each!(self, remote => remote.post(post))
    }

    #[inline]
    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        each!(self, remote => remote.flush(now))
    }

    #[inline]
    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        each!(self, remote => remote.poll(now, done))
    }

    fn buffers(&self) -> u32 {
        each!(self, remote => remote.buffers())
    }

    #[inline]
    fn buffer(&self, buffer: u32) -> &[u8] {
        each!(self, remote => remote.buffer(buffer))
    }

    #[inline]
    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        each!(self, remote => remote.buffer_mut(buffer))
    }

    fn region(&self) -> u64 {
        each!(self, remote => remote.region())
    }
}
