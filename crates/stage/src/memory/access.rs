//! The fabrics that a client may have, as one: over shared memory or the model of a card, with
//! tokens or without.

use tidegate_algo::haechi::engine::Purse;
use tidegate_fabric::memory::model::Model;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::Time;
use tidegate_proto::haechi::Port;
use tidegate_proto::one_sided::{Done, Fabric, Lost, Post, PostError};

/// One of them.
#[derive(Debug)]
pub(super) enum Access {
    Shm(Box<Port<Shm>>),
    Model(Box<Port<Model>>),
    BareShm(Shm),
    BareModel(Model),
}

/// The same call of whichever it is.
macro_rules! each {
    ($access:expr, $fabric:ident => $call:expr) => {
        match $access {
            Access::Shm($fabric) => $call,
            Access::Model($fabric) => $call,
            Access::BareShm($fabric) => $call,
            Access::BareModel($fabric) => $call,
        }
    };
}

impl Access {
    /// The tokens, if there are any.
    pub(super) fn purse(&self) -> Option<&Purse> {
        match self {
            Self::Shm(port) => Some(port.purse()),
            Self::Model(port) => Some(port.purse()),
            Self::BareShm(_) | Self::BareModel(_) => None,
        }
    }

    /// Has the engine, if there is one, know what its caller could not begin yet.
    pub(super) fn note_unmet(&mut self, count: u64) {
        match self {
            Self::Shm(port) => port.note_unmet(count),
            Self::Model(port) => port.note_unmet(count),
            Self::BareShm(_) | Self::BareModel(_) => {}
        }
    }

    /// When to poll although nothing was posted.
    pub(super) fn next_deadline(&self) -> Time {
        let of = |port: Time, fabric: Option<Time>| port.min(fabric.unwrap_or(Time::MAX));
        match self {
            Self::Shm(port) => of(port.next_deadline(), port.fabric().next_deadline()),
            Self::Model(port) => of(port.next_deadline(), port.fabric().next_deadline()),
            Self::BareShm(shm) => of(Time::MAX, shm.next_deadline()),
            Self::BareModel(model) => of(Time::MAX, model.next_deadline()),
        }
    }
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
