//! Properties that all links of a gateway to nodes have in common.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_model::cluster::{Uuid, Volume};
use tidegate_model::{CostModel, Span};
use tidegate_proto::data::LinkIdentity;

use crate::barriers::Barriers;

/// The identities of a gateway's links in this process.
#[derive(Debug)]
pub(crate) struct Identities {
    gateway: String,
    process: Uuid,
    links: AtomicU32,
}

impl Identities {
    /// Those of the gateway with this name.
    fn draw(gateway: &str) -> io::Result<Arc<Self>> {
        let mut process = [0; 16];
        rustix::rand::getrandom(&mut process, rustix::rand::GetRandomFlags::empty())?;
        let (gateway, process) = (gateway.into(), Uuid(process));
        Ok(Arc::new(Self { gateway, process, links: AtomicU32::new(0) }))
    }

    /// The identity of one more link.
    pub(crate) fn next(&self) -> LinkIdentity {
        let link = self.links.fetch_add(1, Ordering::Relaxed);
        LinkIdentity { gateway: self.gateway.clone(), process: self.process, link, connection: 0 }
    }
}

/// State that all connections of the workers to nodes share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) cost: CostModel,
    pub(crate) patience: Span,
    /// Whether packets have the code point of their class.
    pub(crate) dscp: bool,
    pub(crate) identities: Arc<Identities>,
    pub(crate) barriers: Arc<Barriers>,
}

impl Common {
    /// For the gateway with this name, over these volumes.
    pub(crate) fn new(
        (cost, patience, dscp): (CostModel, Duration, bool),
        gateway: &str,
        volumes: &[Volume],
    ) -> io::Result<Self> {
        let patience = Span(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let identities = Identities::draw(gateway)?;
        let barriers = Barriers::new(volumes.iter().map(|volume| volume.nodes.len()));
        Ok(Self { cost, patience, dscp, identities, barriers })
    }

    /// For a pool of so many nodes of the same gateway.
    pub(crate) fn of_pool(&self, nodes: usize) -> Self {
        Self { barriers: Barriers::new([nodes]), ..self.clone() }
    }
}
