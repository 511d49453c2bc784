//! The NICs of clients and of their data node, and the order in which they serve.
//!
//! # Problem
//! NICs alone divide a data node among clients with one-sided access. A model of them must
//! reproduce the measurements of the Haechi paper without any control (its figures 6 to 8). It must
//! do so with as few numbers as possible, and without a server that could stand still.
//!
//! # Model
//! Two numbers. A client's own NIC lets through `client` operations of 4 KiB in a second, one
//! after the other; the data node's link `node`, of all clients together. So an operation
//!
//! 1. waits for its client's earlier operations, then takes 1/`client` there;
//! 2. stands in line at the data node, then takes 1/`node`; there it happens;
//! 3. is known to be done to its client after `round_trip`, all of which is counted here, because
//!    the order of operations does not depend on where it is counted.
//!
//! The line is in order of arrival; round robin over the clients; or shared, which is a fluid that
//! flows to all clients that have something in it at equal rates. The time at the link is the
//! same for all operations of a size, or exponentially distributed around that.
//!
//! An operation of another size takes what its bytes take, and [`HEAD`] bytes that each has: an
//! atomic addition or a word that is written 1.7 % of a page's time.
//!
//! For instance, with 400 K and 1,570 K per second, a page takes 2.5 us and then 637 ns. One client
//! with 64 outstanding is done with 400 K in a second; ten share 1,570 K, and each of their pages
//! waits for 639 others, 407 us.

use std::collections::VecDeque;

use serde::Deserialize;
use tidegate_model::{Iops, Span};

use crate::rng::Stream as Random;
use crate::scenario::text;
use crate::time::Picoseconds;

/// Bytes that an operation takes on the link besides its own: heads and checksums of its packets,
/// rounded up to a cache line.
pub const HEAD: u32 = 64;

/// Bytes of a page on the link.
const PAGE: u64 = (4096 + HEAD) as u64;

/// Rates and service order of the NICs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicModel {
    /// Operations of 4 KiB in a second that a client's NIC lets through.
    #[serde(deserialize_with = "text")]
    pub client: Iops,
    /// Operations of 4 KiB in a second that the data node's does.
    #[serde(deserialize_with = "text")]
    pub node: Iops,
    /// From a client to the data node and back, without waiting.
    #[serde(default = "NicModel::round_trip", deserialize_with = "text")]
    pub round_trip: Span,
    /// Service order at the data node.
    #[serde(default)]
    pub order: Order,
    /// How long one takes there.
    #[serde(default)]
    pub service: Service,
}

impl NicModel {
    /// Two microseconds: what an InfiniBand NIC takes for a small operation.
    const fn round_trip() -> Span {
        Span(2_000)
    }
}

/// Service order at the data node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First come, first served.
    #[default]
    Arrival,
    /// One operation of each client that has some, in turn.
    #[serde(rename = "turns")]
    RoundRobin,
    /// All clients that have some at a time, at equal rates.
    Shared,
}

/// How long an operation takes at the data node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// A time in proportion to the operation's size.
    #[default]
    Constant,
    /// Exponentially distributed, with that mean.
    Exponential,
}

/// An operation on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NicOperation {
    /// Its name at its client.
    pub(super) id: u64,
    /// Its bytes and [`HEAD`].
    pub(super) size: u32,
    /// Mark by which the connection identifies the operation.
    pub(super) mark: u32,
    /// Which buffer it uses, or that it uses none.
    pub(super) buffer: u32,
}

/// One that the data node has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    /// When it happened.
    pub(super) at: Picoseconds,
    pub(super) client: u32,
    pub(super) job: NicOperation,
}

/// Operations at their clients' NICs, and in line at the data node.
#[derive(Clone, Debug)]
pub(super) struct OperationLine {
    order: Order,
    /// Picoseconds that a page takes at a client's NIC.
    client: u64,
    /// Picoseconds that a page takes at the data node.
    node: u64,
    random: Option<Random>,
    clients: Vec<NicClient>,
    /// When each client's NIC is done with its first operation; never if it has none. Apart from
    /// the rest, because it is looked through for each operation.
    exits: Vec<Picoseconds>,
    /// The first of these, and whose it is.
    first_exit: (Picoseconds, usize),
    /// By order of arrival and round robin: when the link has done what it began.
    free_at: Picoseconds,
    /// Round robin and shared: how many operations are in line.
    waiting: usize,
    /// Round robin: the client that is looked at first.
    next_client: usize,
    /// Shared: see [`Fluid`].
    fluid: Fluid,
}

#[derive(Clone, Debug, Default)]
struct NicClient {
    /// At its own NIC.
    here: VecDeque<NicOperation>,
    /// When the NIC was, or will be, done with what it began last.
    free_at: Picoseconds,
    /// In line at the data node, round robin and shared.
    there: VecDeque<NicOperation>,
    /// Shared: the level at which its first operation in line is done.
    done_at: u64,
}

/// The link, shared by all clients that have something in line. Its *level* rises by one picosecond
/// in each picosecond, divided by the number of those clients; so an operation that takes a time
/// alone is done when the level has risen by as much since it began.
#[derive(Clone, Copy, Debug, Default)]
struct Fluid {
    level: u64,
    /// When it was at that level.
    at: Picoseconds,
    /// How many clients have something in line.
    busy: u64,
}

impl Fluid {
    fn rise(&mut self, now: Picoseconds) {
        self.level += now.since(self.at).0.checked_div(self.busy).unwrap_or(0);
        self.at = now;
    }

    /// When it will be at a level.
    fn time_at(&self, level: u64) -> Picoseconds {
        self.at.after(Picoseconds(level.saturating_sub(self.level) * self.busy))
    }
}

impl OperationLine {
    /// No client yet.
    ///
    /// # Panics
    /// If a NIC does nothing, or more than 10^12 in a second.
    pub(super) fn new(nics: &NicModel, seed: u64) -> Self {
        let random = (nics.service == Service::Exponential).then(|| Random::new(seed, "link", 0));
        Self {
            order: nics.order,
            client: page(nics.client),
            node: page(nics.node),
            random,
            clients: Vec::new(),
            exits: Vec::new(),
            first_exit: (Picoseconds::MAX, 0),
            free_at: Picoseconds::ZERO,
            waiting: 0,
            next_client: 0,
            fluid: Fluid::default(),
        }
    }

    /// One client more; its number.
    pub(super) fn join(&mut self) -> u32 {
        self.clients.push(NicClient::default());
        self.exits.push(Picoseconds::MAX);
        self.clients.len() as u32 - 1
    }

    /// From now on the data node does so much in a second.
    pub(super) fn set_node(&mut self, rate: Iops) {
        self.node = page(rate);
    }

    /// A client's NIC takes an operation.
    pub(super) fn push(&mut self, now: Picoseconds, client: u32, job: NicOperation) {
        let index = client as usize;
        let client = &mut self.clients[index];
        client.here.push_back(job);
        if client.here.len() == 1 {
            client.free_at = client.free_at.max(now).after(time(self.client, job.size));
            self.exits[index] = client.free_at;
            self.first_exit = self.first_exit.min((client.free_at, index));
        }
    }

    /// When something happens in here next.
    pub(super) fn next(&self) -> Picoseconds {
        self.first_exit.0.min(self.first_done().0)
    }

    /// Lets happen what happens until `now`, and reports what was served, in its order. In order of
    /// arrival an operation is reported when it leaves its client's NIC, with the time to come.
    pub(super) fn advance(&mut self, now: Picoseconds, mut served: impl FnMut(Served)) {
        loop {
            let (exit, client) = self.first_exit;
            let (done, first) = self.first_done();
            if exit.min(done) > now {
                return;
            }
            if done <= exit {
                served(self.serve(done, first));
            } else if let Some(departed) = self.leave(exit, client) {
                served(departed);
            }
        }
    }

    /// Returns the first time at which a client's NIC finishes an operation, and that client.
    fn find_first_exit(&self) -> (Picoseconds, usize) {
        let all = self.exits.iter().zip(0..);
        all.fold((Picoseconds::MAX, 0), |least, (at, client)| match *at < least.0 {
            true => (*at, client),
            false => least,
        })
    }

    /// An operation leaves its client's NIC.
    fn leave(&mut self, at: Picoseconds, index: usize) -> Option<Served> {
        let client = &mut self.clients[index];
        let job = client.here.pop_front()?;
        let next = client.here.front();
        if let Some(next) = next {
            client.free_at = at.after(time(self.client, next.size));
        }
        self.exits[index] = if next.is_some() { client.free_at } else { Picoseconds::MAX };
        self.first_exit = self.find_first_exit();
        if self.order == Order::Arrival {
            self.free_at = self.free_at.max(at).after(self.takes(job.size));
            return Some(Served { at: self.free_at, client: index as u32, job });
        }
        if self.waiting == 0 {
            self.free_at = self.free_at.max(at);
        }
        self.waiting += 1;
        self.clients[index].there.push_back(job);
        if self.clients[index].there.len() == 1 {
            self.fluid.rise(at);
            self.fluid.busy += 1;
            self.clients[index].done_at = self.fluid.level + self.takes(job.size).0;
        }
        None
    }

    /// Returns the time of the first operation in line, and its client. Round robin the operation
    /// begins then; shared, it is done then.
    fn first_done(&self) -> (Picoseconds, usize) {
        if self.waiting == 0 {
            return (Picoseconds::MAX, 0);
        }
        let count = self.clients.len();
        let has = |index: &usize| !self.clients[*index].there.is_empty();
        if self.order == Order::RoundRobin {
            let first =
                (self.next_client..self.next_client + count).map(|index| index % count).find(has);
            return (self.free_at, first.unwrap_or(0));
        }
        let done_at = |index: &usize| self.clients[*index].done_at;
        let first = (0..count).filter(has).min_by_key(done_at).unwrap_or(0);
        (self.fluid.time_at(done_at(&first)), first)
    }

    /// Deals with it.
    fn serve(&mut self, at: Picoseconds, index: usize) -> Served {
        let client = index as u32;
        self.waiting -= 1;
        let first = self.clients[index].there.pop_front();
        // It was found by that.
        let job = first.expect("it has an operation in line");
        if self.order == Order::RoundRobin {
            self.next_client = index + 1;
            self.free_at = at.after(self.takes(job.size));
            return Served { at: self.free_at, client, job };
        }
        self.fluid.rise(at);
        // Exactly: dividing has rounded it down.
        self.fluid.level = self.fluid.level.max(self.clients[index].done_at);
        match self.clients[index].there.front().map(|next| next.size) {
            Some(size) => self.clients[index].done_at = self.fluid.level + self.takes(size).0,
            None => self.fluid.busy -= 1,
        }
        Served { at, client, job }
    }

    /// Returns the service time of an operation at the data node.
    fn takes(&mut self, size: u32) -> Picoseconds {
        let mean = time(self.node, size);
        match &mut self.random {
            Some(random) => random.exponential(mean),
            None => mean,
        }
    }
}

/// Returns the picoseconds of a page at a rate of pages per second.
fn page(rate: Iops) -> u64 {
    assert!((1..=Picoseconds::SECOND.0).contains(&rate.0), "a card of {rate}");
    Picoseconds::SECOND.0 / rate.0
}

/// Returns the time of an operation of a size where a page takes `page` picoseconds.
const fn time(page: u64, size: u32) -> Picoseconds {
    Picoseconds(page * size as u64 / PAGE)
}

#[cfg(test)]
#[path = "nic_tests.rs"]
mod tests;
