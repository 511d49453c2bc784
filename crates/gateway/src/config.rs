//! Configuration of a gateway (its listeners, limits and TLS), and the errors that keep it from
//! starting.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate_algo::allocation::memory_budget::{MemoryBudget, SHARE_MIN};
use tidegate_fabric::stream::{Address, BindError, ListenerAccess, Way};
use tidegate_fabric::tls::Guard;
use tidegate_model::cluster::{Cluster, Volume};
use tidegate_model::{CostModel, Span};
use tidegate_wire::nbd::constants::PAYLOAD_MAX;

use crate::parts::PartError;
use crate::pool::Pool;

/// The volumes and pools that a gateway serves, its listeners, and its limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name, for the controller.
    pub name: String,
    /// The connection settings of the controller, which sends the policy in force. Without a
    /// controller, volumes and pools name the tenants of their requests.
    pub controller: Option<Way>,
    /// The listeners for clients of network block devices, and the users whom each admits.
    pub binds: Vec<(Address, ListenerAccess)>,
    /// TLS for these listeners, for clients that have shown a certificate; none where the gateway
    /// does not offer TLS.
    pub tls: Option<ListenerTls>,
    /// The names of the cluster's daemons. Their certificates are not a client's.
    pub parties: Arc<[String]>,
    /// The volumes. A volume's nodes are indexes into the gateway's list of services.
    pub volumes: Vec<Volume>,
    /// Pools, each with its listeners for memcached clients.
    pub pools: Vec<Pool>,
    /// Threads behind the listeners of volumes, and behind that of each pool, at least one. A
    /// connection stays with the one that accepted it; one thread is enough for some hundred
    /// thousand small requests per second.
    pub workers: usize,
    /// Limits of the connections, memory and time of clients.
    pub limits: Limits,
    /// The cost of a request; a share of a node is a share of such costs.
    pub cost: CostModel,
    /// Whether packets to nodes have the code point of their class.
    pub dscp: bool,
}

/// How clients of network block devices switch to TLS.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// The gateway's certificate, and the rule that admits clients by theirs.
    pub guard: Guard,
    /// Whether clients without TLS are refused.
    pub is_required: bool,
}

/// Limits of the connections, memory and time of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, to volumes or to one pool, that have chosen an export or sent a first
    /// byte. One user or address may have three quarters of them, and so may one tenant. The last
    /// eighth is for tenants with a reservation. The gateway refuses connections beyond these
    /// bounds.
    pub connections: usize,
    /// Pending connections of one worker: they have not yet named an export or sent a request. At
    /// the bound a new one replaces the oldest one from the address or user that has the most.
    pub pending: usize,
    /// How long a client may take in all to choose an export, with its TLS handshake; for
    /// memcached, to send something.
    pub handshake: Duration,
    /// While clients wait for memory: the interval of the search for other clients that hold more
    /// than 64 KiB of replies or of a request and send or receive hardly anything. A client found
    /// twice in a row is closed.
    pub stall: Duration,
    /// Requests of one connection that are served at a time. Those behind wait in its socket.
    pub requests: usize,
    /// Requests of all connections to volumes, or to one pool, that are served at a time. Each
    /// connection may have an even part of them, one at least. So a tenant that is kept waiting
    /// fills no node, and keeps no other tenant out, however many clients it has.
    pub all_requests: usize,
    /// Bytes of memory for requests and replies of all connections to volumes, or to one pool, from
    /// when a request is admitted until the kernel has taken its reply. Divided over the workers;
    /// 32 MiB of a worker's part are for one large request at a time, and the rest for its clients,
    /// each an even part. In addition each connection may have 64 KiB under way, and 128 KiB that
    /// were read and not parsed.
    pub all_bytes: usize,
    /// How long a request waits for an unreachable node before it fails.
    pub patience: Duration,
    /// How long requests may still be served after the gateway was asked to stop.
    pub drain: Duration,
    /// How long at most a thread polls before it sleeps
    /// ([`tidegate_algo::scheduling::busy_poll`]); zero to sleep at once.
    pub busy_poll: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            pending: 64,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(5),
            requests: 1024,
            all_requests: 32 << 10,
            all_bytes: 128 << 20,
            patience: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            busy_poll: Cluster::BUSY_POLL,
        }
    }
}

impl Limits {
    /// Whether one of so many clients has as many requests under way as it may.
    pub(crate) fn is_reached(&self, clients: usize, requests: usize) -> bool {
        requests >= self.requests
            || requests.saturating_mul(clients) >= self.all_requests.max(clients)
    }

    /// The memory of the clients of one of so many workers.
    pub(crate) fn budget(&self, workers: usize) -> MemoryBudget {
        let part = self.all_bytes / workers.max(1);
        // The largest request has to fit, with its reply's head.
        let large_request = PAYLOAD_MAX as usize + SHARE_MIN;
        MemoryBudget::new(part.saturating_sub(large_request), large_request)
    }
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A part of a volume is not available.
    #[error(transparent)]
    Part(#[from] PartError),
    /// Nodes of this process refuse every volume and pool.
    #[error("volume {volume} is not served: {fault}")]
    Volume {
        /// The first volume's name.
        volume: String,
        /// Why it is not served.
        fault: String,
    },
    /// A resource of the operating system is missing.
    #[error("cannot start a gateway: {0}")]
    Io(#[from] io::Error),
}
