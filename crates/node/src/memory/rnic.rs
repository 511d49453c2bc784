//! The RNIC of the memory, and the path of the node's own operations.
//!
//! # Problem
//! The monitor and the sweep change words that clients change, too. An RNIC's atomic operations
//! agree with each other and not with the processor's: of two additions to one word, one by each,
//! either can be lost.
//!
//! # Mechanism
//! Where an RNIC carries clients' operations out, it does the node's own as well, by connections
//! from the RNIC to itself: one for the monitor, one for the sweep. A client that is shut out, or
//! disconnects, loses its queue pairs, so the memory need not move as it does where clients have
//! mapped it.
//!
//! Example: tenant web has a client at session slot 3, with five queue pairs. It stops for three
//! periods. The monitor gives its session slot up, the endpoint destroys the five, and session slot
//! 3 is free in the next period. When the client continues, the RNIC does not answer its
//! operations, and they fail at the client.
//!
//! # Bound
//! A client takes five queue pairs at the node and no time of its processor. The memory is pinned:
//! all of it is in the machine's memory for as long as the node runs.

use std::sync::{Arc, Mutex};

use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_fabric::memory::verbs::{self, ClientNumber, RdmaDevice, RdmaError, Verbs};
use tidegate_model::Time;
use tidegate_onesided::data_node::rnic::{Answer, ConnectRequest};
use tidegate_onesided::one_sided::{Done, Lost, Post, PostError, RemoteMemory};

use crate::mutex::lock;

/// The node's own operations in flight, for the monitor and for the sweep each: more than the
/// monitor posts in a step. Operations of the sweep beyond this number wait for earlier ones.
const WINDOW: u32 = 64;

/// An RNIC, and the memory that clients reach through it.
pub(super) struct Rnic {
    // Connecting a client takes milliseconds on some RNICs, and the monitor has no time for that.
    host: Mutex<verbs::RdmaHost>,
}

impl Rnic {
    /// Registers the memory with the RNIC of this name, or with the first that carries packets.
    ///
    /// # Errors
    /// If there is none, or the process may not lock so much memory.
    pub(super) fn open(name: Option<&str>, region: &Arc<Region>) -> Result<Self, RdmaError> {
        let device = RdmaDevice::open(name)?;
        tracing::info!(device = device.name(), "clients reach the memory by RDMA");
        Ok(Self { host: Mutex::new(verbs::RdmaHost::new(&device, region.clone())?) })
    }

    /// Connects a client's RNIC.
    ///
    /// # Errors
    /// If the request is invalid, or the RNIC has no more queue pairs.
    pub(super) fn connect(
        &self,
        request: &ConnectRequest,
    ) -> Result<(ClientNumber, Answer), RdmaError> {
        lock(&self.host).admit(request)
    }

    /// Destroys a client's queue pairs. None of its operations is carried out once this returns.
    pub(super) fn fence(&self, client: ClientNumber) {
        lock(&self.host).fence(client);
    }
}

/// The path of the node's own operations on its memory.
pub(super) enum Own {
    /// The processor, as for clients' operations.
    Here(Shm),
    /// The RNIC, as for clients' operations.
    Rnic(Box<Verbs>),
}

impl Own {
    /// To this memory, with so many buffers.
    ///
    /// # Errors
    /// If the RNIC has no more of the resources.
    pub(super) fn new(
        rnic: Option<&Rnic>,
        region: &Arc<Region>,
        buffers: u32,
    ) -> Result<Self, RdmaError> {
        Ok(match rnic {
            None => Self::Here(Shm::new(region.clone(), buffers)),
            Some(rnic) => Self::Rnic(Box::new(lock(&rnic.host).loop_back(buffers, WINDOW)?)),
        })
    }
}

/// The same call of whichever it is.
macro_rules! each {
    ($own:expr, $remote:ident => $call:expr) => {
        match $own {
            Own::Here($remote) => $call,
            Own::Rnic($remote) => $call,
        }
    };
}

impl RemoteMemory for Own {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        each!(self, remote => remote.post(post))
    }

    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        each!(self, remote => remote.flush(now))
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        each!(self, remote => remote.poll(now, done))
    }

    fn buffers(&self) -> u32 {
        each!(self, remote => remote.buffers())
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        each!(self, remote => remote.buffer(buffer))
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        each!(self, remote => remote.buffer_mut(buffer))
    }

    fn region(&self) -> u64 {
        each!(self, remote => remote.region())
    }
}
