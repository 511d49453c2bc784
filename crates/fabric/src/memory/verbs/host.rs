//! The data node's end of RDMA: memory that clients reach, and the right to take that away.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_onesided::data_node::rnic::{Answer, ConnectRequest};

use super::device::{CompletionQueue, QueuePair, RdmaDevice, Registration};
use super::{Opening, RdmaError, Verbs};
use crate::memory::region::Region;

/// Queue pairs that one client may have. It requests five.
const QUEUES_MAX: usize = 16;

/// An admitted client, by its number at this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientNumber(u64);

/// A region that clients reach by RDMA, without the processor of this machine.
#[derive(Debug)]
pub struct RdmaHost {
    // Taken down in this order: what clients reach the region through, the right to it, itself.
    clients: BTreeMap<ClientNumber, Vec<QueuePair>>,
    completions: CompletionQueue,
    registration: Registration,
    region: Arc<Region>,
    device: Arc<RdmaDevice>,
    admitted: u64,
}

impl RdmaHost {
    /// Registers the region with a device. All of it is in memory from now on, and stays.
    ///
    /// # Errors
    /// If the device takes no more, or the process may not lock so much memory.
    pub fn new(device: &Arc<RdmaDevice>, region: Arc<Region>) -> Result<Self, RdmaError> {
        // SAFETY: the region is mapped until it is dropped, after the registration; and no code
        // ever has a reference to its bytes.
        let registration = unsafe { Registration::new(device, region.mapped(), true)? };
        // Nothing is ever posted on this side, so nothing completes.
        let completions = CompletionQueue::new(device, 1)?;
        let (clients, device) = (BTreeMap::new(), Arc::clone(device));
        Ok(Self { clients, completions, registration, region, device, admitted: 0 })
    }

    /// Admits a client: from now on it reads and writes the whole region. The caller has checked
    /// that it may.
    ///
    /// # Errors
    /// If the request is invalid, or the device has no more queue pairs.
    pub fn admit(&mut self, request: &ConnectRequest) -> Result<(ClientNumber, Answer), RdmaError> {
        let peer = &request.client;
        if peer.queues.is_empty() || peer.queues.len() > QUEUES_MAX {
            return Err(RdmaError::Peer);
        }
        let mut pairs = Vec::with_capacity(peer.queues.len());
        for queue in &peer.queues {
            let mut pair = QueuePair::new(&self.device, &self.completions, 1, 0)?;
            pair.connect(peer, *queue)?;
            pairs.push(pair);
        }
        let answer = Answer {
            host: self.device.endpoint(&pairs),
            address: self.region.mapped().cast::<u8>().expose_provenance() as u64,
            length: self.region.length(),
            key: self.registration.remote_key(),
        };
        let client = ClientNumber(self.admitted);
        self.admitted += 1;
        self.clients.insert(client, pairs);
        Ok((client, answer))
    }

    /// Shuts a client out: once this returns, nothing that it sends is carried out any more. Other
    /// clients do not notice. Returns whether there was such a client.
    pub fn fence(&mut self, client: ClientNumber) -> bool {
        self.clients.remove(&client).is_some()
    }

    /// A client of this machine's own, through the device: its operations on words are atomic with
    /// those of all others, which the processor's are not.
    ///
    /// # Errors
    /// As [`Opening::new`], [`Self::admit`] and [`Opening::connect`].
    pub fn loop_back(&mut self, buffers: u32, window: u32) -> Result<Verbs, RdmaError> {
        let opening = Opening::new(&self.device, buffers, window)?;
        let (_, answer) = self.admit(&opening.request())?;
        opening.connect(&answer)
    }
}
