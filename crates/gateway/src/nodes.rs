//! One worker's conversations with the nodes, and which part of which volume lies at which.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tidegate_fabric::reactor::{Mailbox, Reactor, Ready};
use tidegate_fabric::service::{Job, Outlet, Part, Service, Session};
use tidegate_fabric::stream::Address;
use tidegate_model::TenantId;
use tidegate_model::cluster::Volume;

use crate::clock;
use crate::link::Link;
use crate::tenants::Tenants;
use crate::volumes::Volumes;
use crate::worker::{LINK, Letter};

/// Where a node is.
#[derive(Clone)]
pub enum Node {
    /// In this process.
    Here(Arc<dyn Service>),
    /// Behind a socket.
    There(Address),
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => f.write_str("Here"),
            Self::There(address) => write!(f, "There({address})"),
        }
    }
}

/// Why a part of a volume cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("volume {volume}, part {index}: {reason}")]
pub struct PartError {
    /// The volume's name.
    pub volume: String,
    /// Which of its parts.
    pub index: u32,
    /// What the node says.
    pub reason: String,
}

/// The nodes that a worker talks to.
pub(crate) struct Nodes {
    seats: Vec<Seat>,
    /// By volume and part.
    places: Vec<Vec<Place>>,
    tenants: Tenants,
}

struct Seat {
    line: Line,
    /// What goes to the node with the next batch.
    batch: Vec<Job>,
}

/// The way to a node.
enum Line {
    Session(Box<dyn Session>),
    Link(Box<Link>),
}

#[derive(Clone, Copy)]
struct Place {
    seat: usize,
    /// The part's number at the node.
    part: u32,
}

impl Nodes {
    /// Opens all parts of all volumes. A volume's nodes are places in `nodes`. Those behind a
    /// socket are asked for their parts as soon as they are there.
    pub(crate) fn open(
        nodes: &[Node],
        volumes: &Volumes,
        reactor: &Reactor<Letter>,
    ) -> Result<Self, PartError> {
        let outlet: Arc<dyn Outlet> = Arc::new(Desk(reactor.mailbox()));
        let line = |(token, node): (u64, &Node)| match node {
            Node::Here(service) => Line::Session(service.session(outlet.clone())),
            Node::There(address) => {
                Line::Link(Box::new(Link::new(address.clone(), token, clock::now())))
            }
        };
        let lines = (LINK..).zip(nodes).map(line);
        let mut seats: Vec<_> = lines.map(|line| Seat { line, batch: Vec::new() }).collect();
        let places =
            volumes.iter().map(|volume| open(&mut seats, volume)).collect::<Result<_, _>>();
        Ok(Self { seats, places: places?, tenants: Tenants::default() })
    }

    /// The number that jobs of this tenant carry, until [`Self::leave`].
    pub(crate) fn enter(&mut self, tenant: &str) -> TenantId {
        let (number, is_new) = self.tenants.enter(tenant);
        if is_new {
            let names = self.tenants.names();
            for seat in &mut self.seats {
                match &mut seat.line {
                    Line::Session(session) => session.tenants(&names),
                    Line::Link(link) => link.tenants(&names),
                }
            }
        }
        number
    }

    pub(crate) fn leave(&mut self, tenant: TenantId) {
        self.tenants.leave(tenant);
    }

    /// Puts a job into the next batch for the node that has this part.
    pub(crate) fn queue(&mut self, volume: usize, part: u32, mut job: Job) {
        let place = self.places[volume][part as usize];
        job.part = place.part;
        self.seats[place.seat].batch.push(job);
    }

    /// Hands the batches over; what is finished at once is appended to `done`.
    pub(crate) fn submit(&mut self, reactor: &Reactor<Letter>, done: &mut Vec<Job>) {
        for Seat { line, batch } in &mut self.seats {
            match line {
                Line::Session(_) if batch.is_empty() => {}
                Line::Session(session) => session.submit(batch, done),
                Line::Link(link) => {
                    link.submit(batch, done);
                    link.flush(reactor, done);
                }
            }
        }
    }

    /// Gives up on these jobs, as far as they still wait. At nodes behind sockets they stay in the
    /// queue, and their answers are nobody's.
    pub(crate) fn cancel(&mut self, tickets: &[u64]) {
        for seat in &mut self.seats {
            if let Line::Session(session) = &mut seat.line {
                session.cancel(tickets);
            }
        }
    }

    /// Something can be done on the link with this token.
    pub(crate) fn on_ready(&mut self, ready: Ready, done: &mut Vec<Job>) {
        if let Some(link) = self.links().nth((ready.token - LINK) as usize).flatten() {
            link.on_ready(ready, done);
        }
    }

    /// When there is something to do without a node having said anything.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let link = |seat: &Seat| match &seat.line {
            Line::Link(link) => link.deadline(),
            Line::Session(_) => None,
        };
        self.seats.iter().filter_map(link).min()
    }

    /// Does what is to be done at a time that has come.
    pub(crate) fn on_time(&mut self, now: Instant, reactor: &Reactor<Letter>, done: &mut Vec<Job>) {
        self.links().flatten().for_each(|link| link.on_time(now, reactor, done));
    }

    /// By place, those that are behind sockets.
    fn links(&mut self) -> impl Iterator<Item = Option<&mut Link>> {
        self.seats.iter_mut().map(|seat| match &mut seat.line {
            Line::Link(link) => Some(&mut **link),
            Line::Session(_) => None,
        })
    }
}

fn open(seats: &mut [Seat], volume: &Volume) -> Result<Vec<Place>, PartError> {
    let layout = volume.layout();
    let mut places = Vec::new();
    for (index, node) in (0..).zip(&volume.nodes) {
        let seat = usize::from(node.0);
        let refuse = |reason| PartError { volume: volume.name.clone(), index, reason };
        let part = Part {
            volume: volume.name.clone(),
            index,
            length: layout.part_length(index),
            offset: volume.offsets.get(index as usize).copied().unwrap_or_default(),
        };
        let number = match seats.get_mut(seat).map(|seat| &mut seat.line) {
            Some(Line::Session(session)) => session.open(&part).map_err(refuse)?,
            Some(Line::Link(link)) => link.open(&part),
            None => return Err(refuse(format!("there is no node {node}"))),
        };
        places.push(Place { seat, part: number });
    }
    Ok(places)
}

/// Where nodes put what they finish later.
struct Desk(Arc<Mailbox<Letter>>);

impl Outlet for Desk {
    fn finished(&self, jobs: &mut Vec<Job>) {
        self.0.extend(jobs.drain(..).map(Letter::Finished));
    }
}
