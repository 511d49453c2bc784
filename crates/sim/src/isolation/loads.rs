//! Loads of tenants without a reservation, which disturb one with a reservation.

use tidegate_model::Class;

/// A client's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadOperation {
    /// Read at random places.
    Read,
    /// Write at random places, or one place after the other.
    Write {
        /// One place after the other.
        is_sequential: bool,
    },
    /// Read or write at random places, each half of the time.
    Mixed,
    /// Write at a random place, and then flush.
    WriteAndFlush,
    /// Give back a random range.
    Trim,
}

/// A stream of requests: each of its clients sends the next request at the reply to the last.
#[derive(Clone, Copy, Debug)]
pub struct LoadJob {
    /// The kind of its requests.
    pub operation: LoadOperation,
    /// How large they are, in bytes, each with a weight.
    pub sizes: &'static [(u32, u32)],
    /// The requests in flight on each connection.
    pub depth: u32,
    /// How many connections there are. In virtual time a node sees no connections.
    pub connections: u32,
    /// After so many requests each client pauses for [`PAUSE`](super::PAUSE); none for never.
    pub burst: Option<u32>,
}

impl LoadJob {
    /// How many clients there are: the requests in flight on all connections.
    pub const fn clients(&self) -> u32 {
        self.depth * self.connections
    }
}

/// The tenant that runs a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadTenant {
    /// The victim: it has a reservation, and the class `high`.
    Victim,
    /// It has no reservation, and the class `low`.
    Other,
    /// It has no reservation, and the victim's class.
    Twin,
}

impl LoadTenant {
    /// All of them, by their numbers.
    pub const ALL: [Self; 3] = [Self::Victim, Self::Other, Self::Twin];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Other => "other",
            Self::Twin => "twin",
        }
    }

    /// Its class.
    pub const fn class(self) -> Class {
        match self {
            Self::Victim | Self::Twin => Class::High,
            Self::Other => Class::Low,
        }
    }
}

/// A load that disturbs the victim.
#[derive(Clone, Copy, Debug)]
pub struct Aggressor {
    /// Its name in tables.
    pub name: &'static str,
    /// Its tenant.
    pub tenant: LoadTenant,
    /// Its streams.
    pub jobs: &'static [LoadJob],
}

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

const fn job(
    operation: LoadOperation,
    sizes: &'static [(u32, u32)],
    depth: u32,
    connections: u32,
) -> LoadJob {
    LoadJob { operation, sizes, depth, connections, burst: None }
}

const SMALL: &[(u32, u32)] = &[(4 * KIB, 1)];
const LARGE: &[(u32, u32)] = &[(MIB, 1)];
const WRITE: LoadOperation = LoadOperation::Write { is_sequential: false };
/// Small reads at the depth of a node: they show how many a device can do.
pub const READS: LoadJob = job(LoadOperation::Read, SMALL, 32, 1);
/// Large reads: they show how many bytes a device can do.
pub const LARGE_READS: LoadJob = job(LoadOperation::Read, LARGE, 8, 1);
/// Large writes, one place after the other.
pub const LARGE_WRITES: LoadJob = job(LoadOperation::Write { is_sequential: true }, LARGE, 8, 1);
const SMALL_WRITES: LoadJob = job(WRITE, SMALL, 16, 1);
const DEEP: LoadJob = job(LoadOperation::Read, SMALL, 128, 1);
const CONNECTIONS: LoadJob = job(LoadOperation::Read, SMALL, 2, 32);
const FLUSHES: LoadJob = job(LoadOperation::WriteAndFlush, SMALL, 1, 4);
const TRIMS: LoadJob = job(LoadOperation::Trim, &[(128 * KIB, 1)], 8, 1);
const MIXED: LoadJob =
    job(LoadOperation::Mixed, &[(4 * KIB, 60), (64 * KIB, 30), (MIB, 10)], 16, 1);
const BURSTS: LoadJob =
    LoadJob { burst: Some(8), ..job(LoadOperation::Read, &[(128 * KIB, 1)], 1, 32) };

const fn other(name: &'static str, jobs: &'static [LoadJob]) -> Aggressor {
    Aggressor { name, tenant: LoadTenant::Other, jobs }
}

/// Ten loads, one table for virtual time and for fio at live gates.
pub const AGGRESSORS: [Aggressor; 10] = [
    other("large sequential writes", &[LARGE_WRITES]),
    other("small random writes", &[SMALL_WRITES]),
    other("deep queues", &[DEEP]),
    other("many connections", &[CONNECTIONS]),
    other("flush storms", &[FLUSHES]),
    other("trims", &[TRIMS]),
    other("mixed sizes", &[MIXED]),
    other("bursts after idling", &[BURSTS]),
    Aggressor { name: "a tenant of its class", tenant: LoadTenant::Twin, jobs: &[READS] },
    other(
        "all together",
        &[LARGE_WRITES, SMALL_WRITES, DEEP, CONNECTIONS, FLUSHES, TRIMS, MIXED, BURSTS, READS],
    ),
];
