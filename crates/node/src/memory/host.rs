//! What the two threads share: the region, the monitor over it, and who has which seat.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use rustix::fs::sendfile;
use rustix::rand::{GetRandomFlags, getrandom};
use tidegate_algo::haechi::capacity::Profile;
use tidegate_fabric::memory::model::{self, Speed};
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::cluster::{DataNode, Fabric};
use tidegate_model::{Policy, Time};
use tidegate_proto::data_node::{self, Book, Hello, Seat, Share, VERSION, Visitor, Welcome};
use tidegate_proto::haechi::monitor::Settings;
use tidegate_proto::haechi::{Event, Monitor, Terms, place};
use tidegate_proto::kv::{Area, HEADER, Layout};
use tidegate_proto::one_sided::{Fabric as _, Operation, Place, Post};

use super::StartError;
use crate::clock::Clock;
use crate::mutex::lock;

/// What a profile strays by, in parts of its mean: cluster files do not say.
const DEVIATION: u64 = 100;

/// The largest piece that is copied at once.
const PIECE: u64 = 1 << 30;

/// A data node without its threads.
pub(super) struct Host {
    node: DataNode,
    clock: Clock,
    inner: Mutex<Inner>,
}

struct Inner {
    region: Arc<Region>,
    monitor: Monitor<Shm>,
    book: Book,
    policy: Option<Policy>,
}

impl Host {
    /// Makes the memory and what is in it.
    pub(super) fn new(node: DataNode, nodes: u64, clock: Clock) -> Result<Self, StartError> {
        let region = region(&node)?;
        if node.fabric == Fabric::Model {
            model::set(&region, place::CARD, Speed::new(node.capacity, node.client));
        }
        format(&region)?;
        let monitor = monitor(&node, &region, clock.now())?;
        let book = Book::new(Share { period: node.period, nodes });
        let inner = Mutex::new(Inner { region, monitor, book, policy: None });
        Ok(Self { node, clock, inner })
    }

    /// Has the monitor look, and tells when it is to look again.
    pub(super) fn tick(&self, events: &mut Vec<Event>) -> Time {
        let monitor = &mut lock(&self.inner).monitor;
        match monitor.poll(self.clock.now(), events) {
            Ok(()) => monitor.next_deadline(),
            // Memory of our own is not lost.
            Err(_) => Time::MAX,
        }
    }

    /// Gives a client a seat, and the region.
    ///
    /// # Errors
    /// Why not, in words for people.
    pub(super) fn seat(
        &self,
        visitor: &Visitor,
        hello: &Hello,
    ) -> Result<(Welcome, Arc<Region>), String> {
        if hello.version != VERSION {
            return Err(format!(
                "the client speaks version {} and this data node version {VERSION}; run both from \
                 the same release of Tidegate",
                hello.version
            ));
        }
        let mut inner = lock(&self.inner);
        let Inner { region, monitor, book, policy } = &mut *inner;
        let tenant = match policy {
            Some(policy) => {
                data_node::tenant(policy, visitor, &hello.tenant)?.and_then(|id| policy.tenant(id))
            }
            None if !hello.tenant.is_empty() => {
                return Err("there is no policy, so there are no tenants; apply one".into());
            }
            None if visitor.is_operator => None,
            None => return Err("there is no policy that would let anybody in; apply one".into()),
        };
        let name = tenant.map_or("", |tenant| &tenant.name).to_owned();
        if hello.is_bare && !visitor.is_operator {
            return Err("only root and the data node's own user go without a seat".into());
        }
        let seat = match hello.is_bare {
            true => None,
            false => {
                let promise = book.offer(tenant, hello)?;
                let number = monitor.admit(promise).map_err(|denied| denied.to_string())?;
                book.seat(number, &name, hello);
                let DataNode { rules, period, client, .. } = self.node;
                Some(Seat { number, rules, period, client, reservation: promise.reservation })
            }
        };
        let DataNode { fabric, window, .. } = self.node;
        let welcome = Welcome { tenant: name, seat, fabric, window, store: place::DATA };
        Ok((welcome, region.clone()))
    }

    /// Takes a seat back.
    pub(super) fn leave(&self, seat: u16) {
        let mut inner = lock(&self.inner);
        inner.book.leave(seat);
        inner.monitor.dismiss(seat);
    }

    /// The tenant of a seat; empty for nobody's.
    pub(super) fn tenant(&self, seat: u16) -> String {
        lock(&self.inner).book.tenant(seat).into()
    }

    /// Whether a seat is taken by a client that has not left.
    pub(super) fn has_guest(&self, seat: u16) -> bool {
        lock(&self.inner).book.has(seat)
    }

    /// How many seats are taken.
    pub(super) fn guests(&self) -> usize {
        lock(&self.inner).book.guests()
    }

    /// Goes by another policy from the next period on.
    pub(super) fn apply(&self, policy: Policy) {
        let mut inner = lock(&self.inner);
        let promises = inner.book.promises(&policy);
        inner.policy = Some(policy);
        // Who gets less makes room for those who get more.
        let before = |seat| inner.monitor.promise(seat).map_or(0, |promise| promise.reservation);
        let (more, less): (Vec<_>, Vec<_>) =
            promises.into_iter().partition(|(seat, promise)| promise.reservation > before(*seat));
        for (seat, promise) in less.into_iter().chain(more) {
            if let Err(denied) = inner.monitor.renew(seat, promise) {
                let tenant = inner.book.tenant(seat);
                tracing::warn!(seat, tenant, "what the policy promises cannot be kept: {denied}");
            }
        }
    }

    /// Goes on with a copy of the memory, in which nobody has a seat. Nobody may use the old one
    /// any more.
    ///
    /// # Errors
    /// If there is not so much memory. The old one is still there then.
    pub(super) fn move_memory(&self) -> Result<(), StartError> {
        let old = lock(&self.inner).region.clone();
        let new = region(&self.node)?;
        // Without grants and reports, which are between the two.
        copy(&old, &new, 0, place::GRANTS)?;
        copy(&old, &new, place::DATA, old.length())?;
        let monitor = monitor(&self.node, &new, self.clock.now())?;
        let mut inner = lock(&self.inner);
        (inner.region, inner.monitor) = (new, monitor);
        inner.book.clear();
        Ok(())
    }
}

fn region(node: &DataNode) -> Result<Arc<Region>, StartError> {
    let made = Region::create(node.memory.0).and_then(|region| {
        region.populate()?;
        Ok(Arc::new(region))
    });
    made.map_err(|error| StartError::Memory { size: node.memory, error })
}

/// Makes an empty store.
fn format(region: &Arc<Region>) -> Result<(), StartError> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty()).map_err(io::Error::from)?;
    let area = Area { at: place::DATA, length: region.length() - place::DATA };
    let layout = Layout::fill(area, u64::from_le_bytes(seed)).map_err(StartError::Layout)?;
    let mut fabric = Shm::new(region.clone(), 1);
    fabric.buffer_mut(0)[..HEADER].copy_from_slice(&layout.header());
    let (from, length) = (Place::start(0), HEADER as u32);
    let write = Operation::Write { from, to: place::DATA, length };
    fabric.post(Post { id: 0, operation: write }).map_err(|error| {
        // The cluster file has seen to the size.
        StartError::Io(io::Error::other(error))
    })
}

/// A monitor over this memory. It is of this node and works at once, whatever clients' cards do.
fn monitor(node: &DataNode, region: &Arc<Region>, now: Time) -> Result<Monitor<Shm>, StartError> {
    let DataNode { capacity, client, period, seats, window, rules, .. } = *node;
    let mean = node.per_period(capacity);
    let profile = Profile {
        mean,
        deviation: mean / DEVIATION,
        local: node.per_period(client),
        increment: (mean / 100).max(1),
        history: 5,
    };
    let terms = Terms { rules: data_node::rules(rules), period, local_rate: client.0 };
    let seats = seats as u16;
    let settings = Settings { terms, profile, seats, window };
    // A line of reports and one of grants for each seat, and the header.
    let buffers = 2 * u32::from(seats).div_ceil(64) + 1;
    Monitor::new(Shm::new(region.clone(), buffers), settings, now).map_err(|_| {
        StartError::Io(io::Error::other("the memory has no room for words of control"))
    })
}

/// Copies a part of a region to the same place of another.
fn copy(from: &Region, to: &Region, start: u64, end: u64) -> io::Result<()> {
    let mut target = File::from(to.as_fd().try_clone_to_owned()?);
    target.seek(SeekFrom::Start(start))?;
    let mut at = start;
    while at < end {
        let piece = (end - at).min(PIECE) as usize;
        if sendfile(&target, from.as_fd(), Some(&mut at), piece)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Cluster;
    use tidegate_proto::controller::Peer;

    fn host(policy: &str) -> Host {
        let text = r#"
            [[data-node]]
            name = "m"
            listen = "unix:m.sock"
            memory = "8MiB"
            capacity = "1000 iops"
            client = "500 iops"
        "#;
        let node = Cluster::parse(text).unwrap().data_nodes.remove(0);
        let host = Host::new(node, 1, Clock::start()).unwrap();
        if let Ok(policy) = Policy::parse(policy) {
            host.apply(policy);
        }
        host
    }

    const POLICY: &str = r#"
        tenant = [
            { name = "a", reservation = "400 iops" },
            { name = "b", reservation = "700 iops" },
        ]
    "#;

    fn hello(tenant: &str, reservation: u64) -> Hello {
        let reservation = Some(tidegate_model::Iops(reservation));
        let (version, tenant) = (VERSION, tenant.into());
        Hello { version, tenant, reservation, limit: None, parts: 1, is_bare: false }
    }

    fn visitor(uid: u32) -> Visitor {
        let peer = Peer { uid, ..Peer::default() };
        Visitor { peer, is_operator: uid == 0, ..Visitor::default() }
    }

    #[test]
    fn seats_are_given_as_far_as_promises_can_be_kept() {
        let host = host(POLICY);
        let ask = |hello: Hello, uid| host.seat(&visitor(uid), &hello).map(|(it, _)| it.seat);
        let seat = ask(hello("a", 400), 7).unwrap().unwrap();
        assert_eq!((seat.number, seat.reservation), (0, 400));
        let error = ask(hello("b", 501), 7).unwrap_err();
        assert!(error.starts_with("client 1 reserves 501 operations per period"), "{error}");
        assert!(ask(hello("b", 500), 7).is_ok());
        let error = ask(hello("b", 200), 7).unwrap_err();
        assert!(error.contains("and the node can do 1000; lower them by 100"), "{error}");
        let old = Hello { version: VERSION + 1, ..hello("a", 0) };
        assert!(ask(old, 7).unwrap_err().contains("from the same release"));
        let bare = || Hello { is_bare: true, ..hello("", 0) };
        assert_eq!(ask(bare(), 0), Ok(None));
        assert!(ask(Hello { tenant: "a".into(), ..bare() }, 7).is_err());
        assert_eq!(host.guests(), 2);
        host.leave(0);
        assert_eq!((host.guests(), host.tenant(1).as_str()), (1, "b"));
        let half = "tenant = [{ name = \"b\", reservation = \"300 iops\" }]";
        host.apply(Policy::parse(half).unwrap());
        let promise = lock(&host.inner).monitor.promise(1).unwrap();
        assert_eq!(promise.reservation, 300);
    }

    #[test]
    fn without_a_policy_operators_come_in_and_nothing_is_promised() {
        let host = host("[");
        let anonymous = |uid| host.seat(&visitor(uid), &hello("", 0)).map(|(it, _)| it.tenant);
        assert_eq!(anonymous(0), Ok(String::new()));
        assert!(anonymous(7).unwrap_err().starts_with("there is no policy that would let"));
        assert!(host.seat(&visitor(0), &hello("a", 0)).is_err());
        assert!(host.seat(&visitor(0), &hello("", 1)).is_err());
    }

    #[test]
    fn a_copy_has_the_store_and_no_grants() {
        let host = host(POLICY);
        let (_, old) = host.seat(&visitor(0), &hello("a", 1)).unwrap();
        let mut events = Vec::new();
        host.tick(&mut events);
        let word = |region: &Arc<Region>, at| {
            let mut fabric = Shm::new(region.clone(), 0);
            fabric.post(Post { id: 0, operation: Operation::FetchAdd { at, add: 0 } }).unwrap();
            let mut done = Vec::new();
            fabric.poll(Time::ZERO, &mut done).unwrap();
            done[0].word
        };
        assert_ne!(word(&old, place::GRANTS), 0, "a seat is granted what it has at the first tick");
        host.move_memory().unwrap();
        let (_, new) = host.seat(&visitor(0), &hello("a", 1)).unwrap();
        assert_eq!((word(&new, place::GRANTS), host.guests()), (0, 1));
        for at in [place::HEADER, place::POOL, place::LEASE, place::DATA, place::DATA + 56] {
            assert_eq!(word(&new, at), word(&old, at), "{at}");
        }
    }
}
