//! Load generator for live storage nodes: for each tenant some flows, one for each node on which it
//! is active, as in the simulation, and all of them on one thread.
//!
//! Jobs go to nodes by the batch, and answers come back through a channel with the time at which
//! the node gave them; so a thread that is late counts nothing in a wrong sample.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, CompletionSink, Job, Part, Service, Session};
use tidegate_model::cluster::{Geometry, Volume};
use tidegate_model::{Bytes, Class, ContextId, Operation, PartNumber, Span, Tag, TenantId, Time};
use tidegate_sim::cluster::ClusterReport;
use tidegate_sim::rng::{Stream, Zipf, apportion};
use tidegate_sim::scenario::Scenario;

use crate::experiment::quiet::{Quiet, ThreadWaits};
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// Bytes of each tenant at each node.
pub(super) const PART: Bytes = Bytes(64 << 10);

/// The paper's requests, in bytes.
const BLOCK: u32 = 4 << 10;

/// How soon a user who ends the command is noticed.
const POLL_INTERVAL: Span = Span(25 * Span::MILLISECOND.0);

/// How nodes are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestForm {
    Read,
    /// A memcached's `set` and `get` by turns, of as many bytes.
    KeyValue,
}

#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Answers to each tenant, for each sample.
    pub(super) samples: Vec<Vec<u32>>,
    pub(super) requested: u64,
    pub(super) answered: u64,
    /// How quiet each period was that counted.
    pub(super) quiet: Quiet,
}

/// One tenant at one of its nodes.
#[derive(Clone, Debug, Default)]
struct NodeFlow {
    node: u16,
    /// Between two requests of an open loop; none for a flow that asks nothing by itself.
    gap: Option<Span>,
    /// Requests so far: keys and blocks go round.
    requested: u64,
}

struct TenantLoad {
    /// Grows when it moves; what was caused by an older one causes nothing any more.
    version: u32,
    flows: Vec<NodeFlow>,
    /// Operations that the tenant demands in a period, in an open loop.
    demand: u64,
    moves: Stream,
    arrivals: Stream,
    /// The number of its part at each node.
    parts: Vec<PartNumber>,
}

/// The load: all tenants, with their sessions at the nodes.
pub(super) struct Load<'a> {
    scenario: &'a Scenario,
    plan: &'a ClusterReport,
    clock: Clock,
    way: RequestForm,
    sessions: Vec<Box<dyn Session>>,
    answers: Receiver<AnsweredJobs>,
    tenants: Vec<TenantLoad>,
    /// Requests of open loops to come: their time, tenant, flow and version.
    due: BinaryHeap<Reverse<(Time, usize, usize, u32)>>,
    /// Jobs to send to each node next.
    outbox: Vec<Vec<Job>>,
    counted: Counted,
}

type AnsweredJobs = (Time, Vec<Job>);

/// Where a node puts its answers.
struct Inbox {
    clock: Clock,
    sender: Sender<AnsweredJobs>,
}

impl CompletionSink for Inbox {
    fn finished(&self, jobs: &mut Vec<Job>) {
        // The receiver is gone once the run has ended.
        let _ = self.sender.send((self.clock.now(), mem::take(jobs)));
    }
}

/// That of a tenant's volume, which has a part at each node.
pub(super) fn geometry(nodes: usize) -> Geometry {
    let size = Bytes(PART.0 * nodes as u64);
    Geometry { count: nodes as u32, stripe: Volume::STRIPE, size }
}

impl<'a> Load<'a> {
    /// Those who ask in `scenario`, with what `plan` promises them.
    ///
    /// # Errors
    /// If a node has no room for them.
    pub(super) fn new(
        scenario: &'a Scenario,
        plan: &'a ClusterReport,
        clock: Clock,
        way: RequestForm,
        services: &[Arc<dyn Service>],
    ) -> Result<Self, Failure> {
        let (sender, answers) = channel();
        let inbox = Arc::new(Inbox { clock, sender });
        let mut sessions: Vec<_> =
            services.iter().map(|service| service.session(inbox.clone())).collect();
        let names: Vec<String> = (0..plan.promises.len()).map(|n| format!("t{n}")).collect();
        sessions.iter_mut().for_each(|session| session.tenants(&names));
        let mut tenants = Vec::new();
        for (number, (name, promise)) in names.iter().zip(&plan.promises).enumerate() {
            let offset = Bytes(PART.0 * number as u64);
            let open = |(index, session): (usize, &mut Box<dyn Session>)| {
                let index = index as u32;
                let geometry = geometry(services.len());
                let part = Part { volume: name.clone(), index, length: PART, offset, geometry };
                session.open(&part).map(|opened| opened.number)
            };
            let parts = sessions.iter_mut().enumerate().map(open).collect::<Result<_, _>>();
            let parts = parts.map_err(|why| {
                Failure::new(Code::Failure, "a node cannot hold its part").cause(why)
            })?;
            tenants.push(TenantLoad {
                version: 0,
                flows: Vec::new(),
                demand: promise.demand,
                moves: Stream::new(scenario.seed, "moves", number as u64),
                arrivals: Stream::new(scenario.seed, "arrivals", number as u64),
                parts,
            });
        }
        let outbox = sessions.iter().map(|_| Vec::new()).collect();
        let (due, counted) = (BinaryHeap::new(), Counted::default());
        Ok(Self { scenario, plan, clock, way, sessions, answers, tenants, due, outbox, counted })
    }

    /// Asks from `begin`, a period's beginning, and the scenario's start after it, until `to`, and
    /// counts from `from`.
    pub(super) fn run(
        &mut self,
        interrupt: &Interrupt,
        begin: Time,
        from: Time,
        to: Time,
    ) -> Result<Counted, Failure> {
        let plan = self.plan;
        let count = (to.since(from).0 / self.scenario.sample.0) as usize;
        self.counted.samples = vec![vec![0; self.tenants.len()]; count];
        let start = begin.after(self.scenario.load.start);
        interrupt.sleep_until(self.clock, start)?;
        for tenant in 0..self.tenants.len() {
            self.relocate(tenant, start);
        }
        let mut moves =
            plan.moves.iter().map(|m| (from.after(Span(m.at.time().0)), m.tenant)).peekable();
        let (mut next_period, mut before) = (from, ThreadWaits::now());
        loop {
            interrupt.check()?;
            let now = self.clock.now();
            if now >= next_period {
                let after = ThreadWaits::now();
                if next_period > from {
                    self.counted.quiet.push(after.since(before));
                }
                (before, next_period) = (after, next_period.after(self.scenario.period));
            }
            if now >= to {
                break;
            }
            while let Some((at, tenant)) = moves.next_if(|(at, _)| *at <= now) {
                self.relocate(tenant, at);
            }
            while let Some(Reverse((at, tenant, flow, version))) = self.due.peek().copied()
                && at <= now
            {
                self.due.pop();
                self.arrive(tenant, flow, version, at);
            }
            self.send(from)?;
            let next = self.due.peek().map_or(Time::MAX, |Reverse(due)| due.0);
            let next = moves.peek().map_or(next, |(at, _)| next.min(*at));
            let until = next.min(to).min(now.after(POLL_INTERVAL));
            match self.answers.recv_timeout(self.clock.until(until)) {
                Ok((at, jobs)) => self.take(at, jobs, from)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            while let Ok((at, jobs)) = self.answers.try_recv() {
                self.take(at, jobs, from)?;
            }
        }
        Ok(mem::take(&mut self.counted))
    }

    /// A tenant begins, or moves to other nodes.
    fn relocate(&mut self, tenant: usize, now: Time) {
        let nodes = self.choose(tenant);
        let open = self.scenario.load.open.as_ref();
        let parts = match open {
            Some(open) => {
                let zipf = Zipf::new(nodes.len(), open.zipf.0);
                let weights: Vec<u64> = (0..nodes.len()).map(|rank| zipf.weight(rank)).collect();
                apportion(self.tenants[tenant].demand, &weights)
            }
            None => vec![0; nodes.len()],
        };
        let period = self.scenario.period;
        let one = &mut self.tenants[tenant];
        one.version += 1;
        one.flows.clear();
        for (flow_index, (node, part)) in nodes.into_iter().zip(parts).enumerate() {
            let gap = (part > 0).then(|| Span(period.0 / part));
            if let Some(gap) = gap {
                let first = now.after(Span(one.arrivals.below(gap.0.max(1))));
                self.due.push(Reverse((first, tenant, flow_index, one.version)));
            }
            one.flows.push(NodeFlow { node, gap, requested: 0 });
        }
        if let Some(closed) = &self.scenario.load.closed {
            for flow_index in 0..self.tenants[tenant].flows.len() {
                (0..closed.outstanding).for_each(|_| self.send_request(tenant, flow_index));
            }
        }
    }

    /// The nodes that a tenant goes to, drawn as in the simulation.
    fn choose(&mut self, tenant: usize) -> Vec<u16> {
        if let Some(on) = &self.scenario.load.on {
            return on[tenant].clone();
        }
        let random = &mut self.tenants[tenant].moves;
        let [least, most] = self.scenario.load.active.unwrap_or([1, 1]);
        let count = random.within(u64::from(least), u64::from(most)) as usize;
        let chosen = random.choose(count, usize::from(self.scenario.nodes.count));
        chosen.into_iter().map(|node| node as u16).collect()
    }

    /// A request of an open loop comes, and the next one is known.
    fn arrive(&mut self, tenant: usize, flow_index: usize, version: u32, at: Time) {
        let one = &self.tenants[tenant];
        if one.version != version {
            return;
        }
        if let Some(gap) = one.flows[flow_index].gap {
            self.due.push(Reverse((at.after(gap), tenant, flow_index, version)));
            self.send_request(tenant, flow_index);
        }
    }

    fn send_request(&mut self, tenant: usize, flow_index: usize) {
        let one = &mut self.tenants[tenant];
        let flow = &mut one.flows[flow_index];
        let number = flow.requested;
        flow.requested += 1;
        let ticket = (tenant as u64) << 48 | (flow_index as u64) << 32 | u64::from(one.version);
        let (command, buffer) = match self.way {
            RequestForm::Read => (Command::Read, Buffer::empty()),
            RequestForm::KeyValue => (Command::KeyValue, key_value(tenant, number)),
        };
        let blocks = PART.0 / u64::from(BLOCK);
        let (length, offset, cost) = match self.way {
            RequestForm::Read => (BLOCK, number % blocks * u64::from(BLOCK), BLOCK),
            // One key.
            RequestForm::KeyValue => (u32::try_from(buffer.len()).unwrap_or(u32::MAX), 0, 1),
        };
        let tag = Tag {
            tenant: TenantId(tenant as u16 + 1),
            context: ContextId::default(),
            class: Class::default(),
            operation: Operation::Read,
            cost,
            delay: 0,
        };
        let node = usize::from(flow.node);
        let part = one.parts[node];
        let job = Job::new(ticket, tag, command, (part, offset, length), buffer);
        self.outbox[node].push(job);
        self.counted.requested += 1;
    }

    /// Says to all nodes what is to be said, and takes what they answer on the spot.
    fn send(&mut self, from: Time) -> Result<(), Failure> {
        for node in 0..self.sessions.len() {
            while !self.outbox[node].is_empty() {
                let mut done = Vec::new();
                self.sessions[node].submit(&mut self.outbox[node], &mut done);
                if !done.is_empty() {
                    self.take(self.clock.now(), done, from)?;
                }
            }
        }
        Ok(())
    }

    /// Counts answers, and asks again for those who wait for them.
    fn take(&mut self, at: Time, jobs: Vec<Job>, from: Time) -> Result<(), Failure> {
        for job in jobs {
            let (tenant, flow_index) = ((job.ticket >> 48) as usize, (job.ticket >> 32) as u16);
            if let Err(fault) = job.outcome {
                let what = format!("a request of t{tenant} failed: {fault:?}");
                return Err(Failure::new(Code::Failure, what));
            }
            self.counted.answered += 1;
            let sample = (at.since(from).0 / self.scenario.sample.0) as usize;
            if at >= from
                && let Some(sample) = self.counted.samples.get_mut(sample)
            {
                sample[tenant] += 1;
            }
            let is_present = job.ticket as u32 == self.tenants[tenant].version;
            if is_present && self.scenario.load.closed.is_some() {
                self.send_request(tenant, usize::from(flow_index));
            }
        }
        Ok(())
    }
}

/// A `set` and a `get` of a tenant's key, by turns.
fn key_value(tenant: usize, number: u64) -> Buffer {
    let key = format!("t{tenant}-{}", number / 2 % 16);
    let mut text = match number.is_multiple_of(2) {
        true => format!("set {key} 0 0 {BLOCK}\r\n").into_bytes(),
        false => format!("get {key}\r\n").into_bytes(),
    };
    if number.is_multiple_of(2) {
        text.resize(text.len() + BLOCK as usize, b'.');
        text.extend_from_slice(b"\r\n");
    }
    let mut buffer = Buffer::with_length(text.len());
    buffer.copy_from_slice(&text);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::pshift::simulated;
    use tidegate_node::{Config, Speed, StoreConfig};

    #[test]
    fn a_set_has_the_length_of_its_head() {
        let set = key_value(3, 34);
        assert!(set.starts_with(b"set t3-1 0 0 4096\r\n..") && set.ends_with(b".\r\n"));
        assert_eq!(set.len(), b"set t3-1 0 0 4096\r\n".len() + 4096 + 2);
        assert_eq!(&key_value(3, 35)[..], b"get t3-1\r\n");
    }

    #[test]
    fn a_closed_flow_sends_after_each_answer() {
        let mut scenario = simulated::scenario(simulated::EXPERIMENT_3_ROUND_ROBIN).unwrap();
        scenario.period = Span(Span::SECOND.0 / 5);
        let plan = tidegate_sim::cluster::run(&scenario).unwrap();
        let node = || {
            let speed = Speed { rate: scenario.nodes.rate, variance: 0, seed: 1 };
            let store = StoreConfig::Memory { capacity: Bytes(1 << 20) };
            tidegate_node::start(Config { speed: Some(speed), ..Config::new("n", store) }).unwrap()
        };
        let nodes = [node(), node(), node(), node()];
        let services = nodes.each_ref().map(tidegate_node::Running::service);
        let clock = Clock::start();
        let mut load = Load::new(&scenario, &plan, clock, RequestForm::Read, &services).unwrap();
        let begin = clock.now();
        let (from, to) = (begin, begin.after(Span(Span::SECOND.0 / 5)));
        let counted = load.run(&Interrupt::default(), begin, from, to).unwrap();
        assert_eq!(counted.samples.len(), 10);
        // Ten flows with five requests each, and more each time that one was answered.
        assert!(counted.answered > 100, "{counted:?}");
        assert_eq!(counted.requested, counted.answered + 50);
    }
}
