//! A small world in virtual time: streams send requests through coordinators to nodes of so many
//! servers each, whose service times vary. Requests that are completed are counted, and after each
//! step the observers see it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tidegate_algo::scheduling::dsfq::Elsewhere;
use tidegate_algo::scheduling::scheduler::{
    Pacing, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::{Discipline, Time};

use super::Random;

/// Which coordinator a request goes through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Via {
    /// Any of them.
    Any,
    /// Always this.
    One(usize),
}

/// When a source sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// So many requests are always outstanding.
    Closed(usize),
    /// One in so many nanoseconds.
    Every(u64),
}

/// Part of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) stream: usize,
    /// Each request goes to one of these.
    pub(crate) nodes: Vec<usize>,
    pub(crate) via: Via,
    pub(crate) pace: Pace,
    /// The least and the most work of a request.
    pub(crate) works: (u32, u32),
    /// When it sends first, and when no more.
    pub(crate) active: (u64, u64),
}

impl Source {
    /// With requests of one unit through the first coordinator, for ever.
    pub(crate) fn of(stream: usize, node: usize, pace: Pace) -> Self {
        let (via, works, active) = (Via::One(0), (1, 1), (0, u64::MAX));
        Self { stream, nodes: vec![node], via, pace, works, active }
    }
}

/// A node's servers, and how long each works on a unit, in nanoseconds; at most this, at least half
/// of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) depth: usize,
    pub(crate) unit: u32,
    pub(crate) is_even: bool,
}

pub(crate) struct Node {
    speed: Speed,
    scheduler: Scheduler<(usize, u32)>,
    slots: Vec<Slot>,
    free: usize,
    /// Requests that wait, of each stream.
    pub(crate) waiting: Vec<u64>,
    /// The most that ever waited.
    pub(crate) queue_max: u64,
    /// Work that was dispatched, of each stream.
    dispatched: Vec<u64>,
    /// Work that was completed, of each stream.
    pub(crate) completed: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Done {
        node: usize,
        source: usize,
        work: u32,
    },
    /// Gateways report what no request has reported.
    Epoch,
}

pub(crate) struct Cluster {
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) weights: Vec<u32>,
    sources: Vec<Source>,
    /// By stream and coordinator.
    elsewhere: Vec<Vec<Elsewhere>>,
    /// The largest batch, by stream and node.
    batches: BTreeMap<(usize, usize), u64>,
    coordinators: usize,
    epoch: Option<u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    random: Random,
}

impl Cluster {
    pub(crate) fn new(
        discipline: Discipline,
        speeds: &[Speed],
        streams: &[TenantParameters],
        sources: Vec<Source>,
    ) -> Self {
        let node = |speed: &Speed| {
            let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
            let slots = streams.iter().map(|parameters| scheduler.add(*parameters)).collect();
            let none = vec![0; streams.len()];
            Node {
                speed: *speed,
                scheduler,
                slots,
                free: speed.depth,
                waiting: none.clone(),
                queue_max: 0,
                dispatched: none.clone(),
                completed: none,
            }
        };
        let mut cluster = Self {
            now: 0,
            nodes: speeds.iter().map(node).collect(),
            weights: streams.iter().map(|parameters| parameters.weight).collect(),
            elsewhere: streams.iter().map(|_| vec![]).collect(),
            batches: BTreeMap::new(),
            coordinators: 0,
            epoch: None,
            events: BinaryHeap::new(),
            number: 0,
            random: Random(1),
            sources,
        };
        for index in 0..cluster.sources.len() {
            let Source { pace, active, .. } = cluster.sources[index];
            let threads = if let Pace::Closed(threads) = pace { threads } else { 1 };
            (0..threads).for_each(|_| cluster.at(active.0, Event::Send(index)));
        }
        cluster.with_coordinators(1)
    }

    pub(crate) fn with_coordinators(mut self, count: usize) -> Self {
        self.coordinators = count;
        let nodes = self.nodes.len();
        for elsewhere in &mut self.elsewhere {
            *elsewhere = (0..count).map(|_| Elsewhere::new(nodes)).collect();
        }
        self
    }

    pub(crate) fn with_seed(mut self, seed: u64) -> Self {
        self.random = Random(seed);
        self
    }

    /// Every so many nanoseconds gateways report to nodes what no request has reported.
    pub(crate) fn with_epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self.at(epoch, Event::Epoch);
        self
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.push(Reverse((time, self.number, event)));
        self.number += 1;
    }

    /// Runs until a moment, and calls `observe` after each step.
    pub(crate) fn run(&mut self, until: u64, mut observe: impl FnMut(&Self)) {
        while let Some(&Reverse((time, _, event))) = self.events.peek() {
            if time > until {
                break;
            }
            self.events.pop();
            self.now = time;
            match event {
                Event::Send(source) => self.send(source, &mut observe),
                Event::Done { node, source, work } => {
                    let stream = self.sources[source].stream;
                    let server = &mut self.nodes[node];
                    server.completed[stream] += u64::from(work);
                    server.free += 1;
                    server.scheduler.complete(Time(time), server.slots[stream], 1);
                    observe(self);
                    if let Pace::Closed(_) = self.sources[source].pace {
                        self.send(source, &mut observe);
                    }
                    self.dispatch(node, &mut observe);
                }
                Event::Epoch => self.take_unreported(),
            }
        }
        self.now = until;
    }

    fn send(&mut self, index: usize, observe: &mut impl FnMut(&Self)) {
        let source = &self.sources[index];
        let stream = source.stream;
        if self.now > source.active.1 {
            return;
        }
        let node = source.nodes[self.random.next() as usize % source.nodes.len()];
        let coordinator = match source.via {
            Via::Any => self.random.next() as usize % self.coordinators,
            Via::One(one) => one,
        };
        let work = self.random.within(source.works);
        if let Pace::Every(wait) = source.pace {
            self.at(self.now + wait, Event::Send(index));
        }
        let delay = self.elsewhere[stream][coordinator].sent(node, work);
        self.note(stream, node, u64::from(delay) + u64::from(work));
        let server = &mut self.nodes[node];
        let request_cost = RequestCost { work, delay, ..RequestCost::ONE };
        server.scheduler.push(Time(self.now), server.slots[stream], request_cost, (index, work));
        server.waiting[stream] += 1;
        server.queue_max = server.queue_max.max(server.waiting.iter().sum());
        observe(self);
        self.dispatch(node, observe);
    }

    fn dispatch(&mut self, node: usize, observe: &mut impl FnMut(&Self)) {
        while self.nodes[node].free > 0 {
            let server = &mut self.nodes[node];
            let Some(next) = server.scheduler.pop(Time(self.now)) else {
                // No tenant is limited here: no server is idle while a request waits.
                assert_eq!(server.waiting.iter().sum::<u64>(), 0);
                return;
            };
            let (source, work) = next.job;
            let stream = self.sources[source].stream;
            server.waiting[stream] -= 1;
            server.dispatched[stream] += u64::from(work);
            server.free -= 1;
            let Speed { unit, is_even, .. } = server.speed;
            let unit = if is_even { unit } else { self.random.within((unit.div_ceil(2), unit)) };
            let done = self.now + u64::from(work) * u64::from(unit);
            self.at(done, Event::Done { node, source, work });
            observe(self);
        }
    }

    fn take_unreported(&mut self) {
        for stream in 0..self.elsewhere.len() {
            for node in 0..self.nodes.len() {
                for coordinator in 0..self.coordinators {
                    let work = self.elsewhere[stream][coordinator].take_unreported(node);
                    let server = &mut self.nodes[node];
                    server.scheduler.delay(server.slots[stream], work);
                }
            }
        }
        if let Some(epoch) = self.epoch {
            self.at(self.now + epoch, Event::Epoch);
        }
    }

    fn note(&mut self, stream: usize, node: usize, batch: u64) {
        let most = self.batches.entry((stream, node)).or_default();
        *most = (*most).max(batch);
    }

    /// The largest batch of a stream with respect to a node, the one that has not ended included.
    /// Takes what is not reported, so it is called once.
    pub(crate) fn batch_max(&mut self, stream: usize, node: usize) -> u64 {
        for coordinator in 0..self.coordinators {
            let last = self.elsewhere[stream][coordinator].take_unreported(node);
            self.note(stream, node, last);
        }
        self.batches.get(&(stream, node)).copied().unwrap_or(0)
    }

    /// The largest request of a stream.
    pub(crate) fn work_max(&self, stream: usize) -> u64 {
        let mine = self.sources.iter().filter(|source| source.stream == stream);
        mine.map(|source| u64::from(source.works.1)).max().unwrap_or(0)
    }

    /// The nodes that a stream uses.
    pub(crate) fn node_count(&self, stream: usize) -> u64 {
        let mine = self.sources.iter().filter(|source| source.stream == stream);
        let mut nodes: Vec<usize> = mine.flat_map(|source| source.nodes.clone()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len() as u64
    }

    /// Work of a stream that was completed at all nodes.
    pub(crate) fn completed(&self, stream: usize) -> u64 {
        self.nodes.iter().map(|node| node.completed[stream]).sum()
    }
}

/// Which service counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counted {
    /// Work that was dispatched at the node.
    Dispatched,
    /// Work that was completed at the node.
    Completed,
    /// Work that was completed at all nodes.
    Everywhere,
}

/// By how much two streams were apart, at most, in any interval in which both waited at a node
/// without a break: work divided by the weight, times both weights, so that it is whole.
pub(crate) struct Gap {
    node: usize,
    streams: [usize; 2],
    counted: Counted,
    /// The least and the greatest difference since both have been waiting.
    since: Option<(i128, i128)>,
    pub(crate) widest: i128,
}

impl Gap {
    pub(crate) fn new(node: usize, streams: [usize; 2], counted: Counted) -> Self {
        Self { node, streams, counted, since: None, widest: 0 }
    }

    /// After a step. The widest difference of any two moments of an interval is that of its
    /// greatest and its least, so no pair of moments needs to be compared.
    pub(crate) fn observe(&mut self, cluster: &Cluster) {
        let [f, g] = self.streams;
        let node = &cluster.nodes[self.node];
        if node.waiting[f] == 0 || node.waiting[g] == 0 {
            self.since = None;
            return;
        }
        let work = |stream: usize| match self.counted {
            Counted::Dispatched => node.dispatched[stream],
            Counted::Completed => node.completed[stream],
            Counted::Everywhere => cluster.completed(stream),
        };
        let part =
            |stream, other: usize| i128::from(work(stream)) * i128::from(cluster.weights[other]);
        let apart = part(f, g) - part(g, f);
        let (least, most) = self.since.get_or_insert((apart, apart));
        (*least, *most) = ((*least).min(apart), (*most).max(apart));
        self.widest = self.widest.max(*most - *least);
    }
}
