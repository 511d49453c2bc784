//! The state of an end-to-end simulation, and its reactions to events: applications make requests,
//! whose commands, data and responses are messages of flows; servers submit them to devices. At
//! intervals it updates the promised rates of flows, and samples the series of the report.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use tidegate_algo::congestion::quality::Objective;
use tidegate_model::tag::CLASSES;
use tidegate_model::{Class, Rate, Span};

use super::command::MessageKind;
use super::hops::Hops;
use super::outcome::{E2eReport, Egress, Moment, ServiceReport};
use super::promises::{Links, ShareGroup};
use super::request_source::{OpenRecording, RequestSource};
use super::scenario::{Application, REQUESTS_MAX, Scenario};
use super::server::{self, SimServer, Wanted};
use crate::net::packet::{FlowId, Packet};
use crate::net::{self, Counters, Host, Network, PortId};
use crate::slots::Slots;
use crate::transport::{self, FlowMessage, FlowPlan, FlowRoute, Out, Transport};
use tidegate_sim::event::EventQueue;
use tidegate_sim::scenario::ScenarioError;
use tidegate_sim::time::Picoseconds;
use tidegate_sim::workload::IoRequest;

#[derive(Clone, Copy, Debug)]
pub(super) enum E2eEvent {
    Network(net::NetworkEvent),
    Transport(transport::FlowEvent),
    Server(u32, server::ServerEvent),
    /// A request is made.
    Begin(u32),
    /// Promises follow the flows that share each link.
    UpdatePromises,
    /// A moment of the series is over.
    Sample,
    /// From now on it counts.
    Count,
}

/// The context through which the parts of the simulation exchange events and packets.
#[derive(Debug)]
pub(super) struct SimContext<Q> {
    pub(super) now: Picoseconds,
    pub(super) events: Q,
    pub(super) network: Network,
    /// Messages that have arrived and were not processed.
    arrived: VecDeque<(FlowId, u64)>,
}

impl<Q: EventQueue<E2eEvent>> Out for SimContext<Q> {
    #[inline]
    fn send(&mut self, packet: Packet) {
        let events = &mut self.events;
        self.network.send(self.now, packet, &mut |at, event| {
            events.push(at, E2eEvent::Network(event));
        });
    }

    #[inline]
    fn later(&mut self, at: Picoseconds, event: transport::FlowEvent) {
        self.events.push(at, E2eEvent::Transport(event));
    }

    fn nic_free_at(&self, route: u32) -> Picoseconds {
        self.network.free_at(self.now, route)
    }

    fn arrived(&mut self, flow: FlowId, message: u64) {
        self.arrived.push_back((flow, message));
    }
}

pub(super) struct E2eSim<'a, Q> {
    pub(super) scenario: &'a Scenario,
    pub(super) context: SimContext<Q>,
    pub(super) transport: Transport,
    links: Links,
    pub(super) servers: Vec<SimServer>,
    applications: Vec<RunningApplication>,
    pub(super) connections: Vec<AppConnection>,
    /// By flow.
    flows: Vec<FlowState>,
    /// Those with a promise that have sent something since the last update, or are still busy.
    awake: Vec<FlowId>,
    pub(super) exchanges: Slots<Exchange>,
    /// How many of them are yet to be made.
    pub(super) announced: u64,
    /// How many events happened.
    pub(super) count: u64,
    /// The counters of ports at the start of the counted time.
    before: Vec<(PortId, Counters)>,
    /// The series of ports, if they are wanted.
    hops: Option<Hops>,
    /// The error that ends the run: an unreadable recording, or too many requests that wait.
    pub(super) wrong: Option<ScenarioError>,
}

/// An application under way.
struct RunningApplication {
    source: RequestSource,
    /// Its connections, in the order of what it sends to.
    first: usize,
    targets: usize,
    /// Which of them is next, without storage.
    next_target: usize,
    deadline: Option<Picoseconds>,
    service: ServiceReport,
    /// Data that devices finished since the last moment, in bytes.
    stored: u64,
    /// Payload that had arrived there and back at the last moment.
    passed: [u64; 2],
}

/// An application and a host that it sends to.
#[derive(Debug)]
pub(super) struct AppConnection {
    there: FlowId,
    /// None without storage.
    back: Option<FlowId>,
    server: u32,
    queue: usize,
    pub(super) outstanding: u32,
    /// Requests that wait for one of these to be answered.
    pub(super) waiting: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug)]
struct FlowState {
    /// Whether it goes by promises of its class.
    is_promised: bool,
    /// Whether the next update of promises includes it.
    is_awake: bool,
    /// Delivered bytes as of the last update.
    delivered: u64,
}

/// Properties that the flows of an application have in common.
#[derive(Clone, Copy, Debug)]
struct FlowGroup {
    class: Class,
    /// The group of flows with which they share their part of a link.
    share_group: ShareGroup,
    /// The tail latency that they are promised instead.
    latency: Option<Span>,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    application: u32,
    connection: u32,
    request: IoRequest,
    /// When a device got it.
    submitted: Picoseconds,
}

impl<'a, Q: EventQueue<E2eEvent> + Default> E2eSim<'a, Q> {
    pub(super) fn new(
        scenario: &'a Scenario,
        mut open: OpenRecording<'_>,
        with_ports: bool,
    ) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let network = &scenario.network;
        let network = network
            .graph()
            .and_then(|graph| Network::new(&graph, &network.switch, scenario.seed))
            .map_err(|error| error.within("network"))?;
        let (now, events, arrived) = (Picoseconds::ZERO, Q::default(), VecDeque::new());
        let servers = scenario.storage.iter().flat_map(|storage| {
            (0..storage.servers.len() as u64)
                .map(|number| SimServer::new(storage, scenario.seed, number))
        });
        let mut simulation = Self {
            scenario,
            servers: servers.collect(),
            context: SimContext { now, events, network, arrived },
            transport: Transport::default(),
            links: Links::new(scenario.promises),
            applications: Vec::new(),
            connections: Vec::new(),
            flows: Vec::new(),
            awake: Vec::new(),
            exchanges: Slots::default(),
            announced: 0,
            count: 0,
            before: Vec::new(),
            hops: with_ports.then(Hops::default),
            wrong: None,
        };
        for (number, application) in (0..).zip(&scenario.application) {
            let source =
                RequestSource::new(&application.workload, scenario.seed, number, &mut open)?;
            simulation.add(source, application);
        }
        for number in 0..scenario.application.len() {
            simulation.schedule_first(number)?;
        }
        let events = &mut simulation.context.events;
        events.push(scenario.skip.into(), E2eEvent::Count);
        events.push(scenario.promises.every.into(), E2eEvent::UpdatePromises);
        events.push(scenario.sample.into(), E2eEvent::Sample);
        Ok(simulation)
    }

    fn add(&mut self, source: RequestSource, application: &Application) {
        let plan = application.transport.as_ref().unwrap_or(&self.scenario.transport);
        let targets = self.scenario.targets(application);
        let (first, number) = (self.connections.len(), self.applications.len() as u32);
        for target in targets {
            let class = application.workload.class;
            let server = self.scenario.storage.as_ref().and_then(|storage| {
                let index = storage.servers.iter().position(|server| server == target);
                index.map(|index| index as u32)
            });
            let ends = [Host(application.from), Host(*target)];
            let of = application.with.unwrap_or(number);
            let own = application.weight.map(|weight| ShareGroup::Application(of, weight));
            let share_group = own.unwrap_or(ShareGroup::Class(class));
            let kind = FlowGroup { class, share_group, latency: application.latency };
            let there = self.open(plan, kind, ends);
            let [from, to] = ends;
            let back = server.map(|_| self.open(plan, kind, [to, from]));
            let queue = server.map_or(0, |server| {
                self.servers[server as usize].connect(application.class_at_storage())
            });
            let server = server.unwrap_or(0);
            let (outstanding, waiting) = (0, VecDeque::new());
            self.connections.push(AppConnection {
                there,
                back,
                server,
                queue,
                outstanding,
                waiting,
            });
        }
        self.applications.push(RunningApplication {
            source,
            first,
            targets: targets.len(),
            next_target: 0,
            deadline: application.deadline.map(Picoseconds::from),
            service: ServiceReport::new(&application.workload),
            stored: 0,
            passed: [0; 2],
        });
    }

    /// Opens a flow of the connection that is about to be added.
    fn open(&mut self, plan: &FlowPlan, kind: FlowGroup, [from, to]: [Host; 2]) -> FlowId {
        let FlowGroup { class, share_group, latency } = kind;
        let network = &mut self.context.network;
        let path = network.connect(FlowId(self.flows.len() as u32), from, to);
        let ports: Vec<PortId> = network.ports_of(path.there).collect();
        let sizes = plan.packet();
        let whole = u128::from(sizes.payload) + u128::from(sizes.headers);
        let payload =
            |rate: Rate| Rate((u128::from(rate.0) * u128::from(sizes.payload) / whole) as u64);
        let line = network.rate(ports[0]);
        let is_promised = plan.cc.is_promised() && latency.is_none() && class != Class::Urgent;
        let shared = ports.into_iter().map(|port| (port, payload(network.rate(port))));
        self.links.add(share_group, shared.filter(|_| is_promised));
        self.flows.push(FlowState { is_promised, is_awake: false, delivered: 0 });
        let flow_route = FlowRoute { path, class, line };
        let flow = self.transport.open(plan, flow_route);
        if let Some(latency) = latency {
            self.transport.promise(flow, Objective::Latency(latency));
        }
        flow
    }

    /// Takes the next event, and fetches the memory that many later events will touch at a time.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Picoseconds, E2eEvent)> {
        let SimContext { events, network, .. } = &mut self.context;
        events.pop_glancing(|event| {
            if let E2eEvent::Network(event) = event {
                core::hint::black_box(network.prefetch(event));
            }
        })
    }

    pub(super) fn on_event(&mut self, event: E2eEvent) {
        let context = &mut self.context;
        let now = context.now;
        match event {
            E2eEvent::Network(event) => {
                let events = &mut context.events;
                let delivered = context.network.on_event(now, event, &mut |at, event| {
                    events.push(at, E2eEvent::Network(event));
                });
                if let Some(packet) = delivered {
                    self.transport.on_packet(now, &packet, context);
                    self.take_arrived();
                }
            }
            E2eEvent::Transport(event) => {
                self.transport.on_event(now, event, context);
                self.take_arrived();
            }
            E2eEvent::Server(server, event) => {
                let events = &mut context.events;
                let done = self.servers[server as usize].on_event(now, event, &mut |at, event| {
                    events.push(at, E2eEvent::Server(server, event));
                });
                if let Some(tag) = done {
                    self.on_done(tag as u32);
                }
            }
            E2eEvent::Begin(exchange) => self.begin(exchange),
            E2eEvent::UpdatePromises => self.update_promises(),
            E2eEvent::Sample => self.sample(),
            E2eEvent::Count => self.before = self.count_ports(),
        }
    }

    /// Schedules the requests with which an application begins.
    fn schedule_first(&mut self, number: usize) -> Result<(), ScenarioError> {
        let plan = &self.scenario.application[number].workload;
        let requests = self.applications[number].source.first(plan)?;
        requests.into_iter().for_each(|request| self.schedule(number, Some(request)));
        Ok(())
    }

    fn schedule(&mut self, application: usize, request: Option<IoRequest>) {
        let Some(request) = request else { return };
        let at = request.at;
        let application = application as u32;
        let exchange = Exchange { application, connection: 0, request, submitted: at };
        let number = self.exchanges.put(exchange);
        self.announced += 1;
        self.context.events.push(at, E2eEvent::Begin(number));
    }

    /// A request is made.
    fn begin(&mut self, number: u32) {
        self.announced -= 1;
        let Exchange { application, request, .. } = *self.exchanges.at(number);
        let running = &mut self.applications[application as usize];
        if self.context.now >= self.scenario.skip.into() {
            running.service.requested.add(request.bytes);
        }
        let target = match self.scenario.storage {
            Some(_) => self.scenario.locate(request.offset, running.targets as u32).server as usize,
            None => {
                running.next_target = (running.next_target + 1) % running.targets;
                running.next_target
            }
        };
        let connection = running.first + target;
        self.exchanges.at(number).connection = connection as u32;
        if running.source.is_open() {
            match running.source.next(&self.scenario.application[application as usize].workload) {
                Ok(next) => self.schedule(application as usize, next),
                Err(error) => self.wrong = Some(error),
            }
        }
        // Slots are used again: the number of one shows how many there were at a time.
        if u64::from(number) >= REQUESTS_MAX {
            self.wrong = Some(overloaded(application));
        }
        let connection = &mut self.connections[connection];
        match &self.scenario.storage {
            None => self.send(number, MessageKind::Data),
            Some(storage) if connection.outstanding < storage.fabrics.depth => {
                connection.outstanding += 1;
                self.send(number, MessageKind::Command);
            }
            Some(_) => connection.waiting.push_back(number),
        }
    }

    fn send(&mut self, number: u32, kind: MessageKind) {
        let Exchange { application, connection, request, .. } = *self.exchanges.at(number);
        let AppConnection { there, back, .. } = self.connections[connection as usize];
        let flow = match (kind, back) {
            (MessageKind::Ready | MessageKind::Response, Some(back)) => back,
            _ => there,
        };
        let bytes = match &self.scenario.storage {
            Some(storage) => kind.bytes(&request, storage.fabrics.in_capsule),
            None => request.bytes.0,
        };
        let state = &mut self.flows[flow.0 as usize];
        if state.is_promised {
            if !core::mem::replace(&mut state.is_awake, true) {
                self.awake.push(flow);
            }
            self.links.touch(flow, self.context.now);
            if !self.transport.is_busy(flow) {
                self.transport.promise(flow, Objective::Rate(self.links.promised(flow)));
            }
        }
        let deadline = self.applications[application as usize].deadline;
        let deadline = deadline.map(|deadline| request.at.after(deadline));
        let message = FlowMessage { number: kind.message(number), bytes, deadline };
        self.transport.send(self.context.now, flow, message, &mut self.context);
    }

    fn take_arrived(&mut self) {
        while let Some((_, message)) = self.context.arrived.pop_front() {
            let (kind, number) = MessageKind::of(message);
            match (kind, &self.scenario.storage) {
                (_, None) | (MessageKind::Response, Some(_)) => self.complete(number),
                (MessageKind::Ready, Some(_)) => self.send(number, MessageKind::Data),
                (MessageKind::Command, Some(storage)) => {
                    let request = &self.exchanges.at(number).request;
                    if MessageKind::is_solicited(request, storage.fabrics.in_capsule) {
                        self.send(number, MessageKind::Ready);
                    } else {
                        self.submit(number);
                    }
                }
                (MessageKind::Data, Some(_)) => self.submit(number),
            }
        }
    }

    /// Hands a request to the device for which it is.
    fn submit(&mut self, number: u32) {
        let now = self.context.now;
        let exchange = self.exchanges.at(number);
        exchange.submitted = now;
        let Exchange { application, connection, request, .. } = *exchange;
        let AppConnection { server, queue, .. } = self.connections[connection as usize];
        let targets = self.applications[application as usize].targets as u32;
        let location = self.scenario.locate(request.offset, targets);
        let application = &self.scenario.application[application as usize];
        let (device, class) = (application.device, application.class_at_storage());
        let wanted = Wanted { request, class, device, location, tag: number.into() };
        let events = &mut self.context.events;
        self.servers[server as usize].submit(now, queue, &wanted, &mut |at, event| {
            events.push(at, E2eEvent::Server(server, event));
        });
    }

    /// A device has done a request.
    fn on_done(&mut self, number: u32) {
        let now = self.context.now;
        let Exchange { application, request, submitted, .. } = *self.exchanges.at(number);
        let running = &mut self.applications[application as usize];
        running.stored += request.bytes.0;
        if now >= self.scenario.skip.into() {
            record(&mut running.service.device, now.since(submitted));
        }
        self.send(number, MessageKind::Response);
    }

    /// A request is answered.
    fn complete(&mut self, number: u32) {
        let now = self.context.now;
        let Exchange { application, connection, request, .. } = self.exchanges.take(number);
        let running = &mut self.applications[application as usize];
        if now >= self.scenario.skip.into() {
            let took = now.since(request.at);
            running.service.done.add(request.bytes);
            running.service.late += u64::from(running.deadline.is_some_and(|most| took > most));
            record(&mut running.service.latency, took);
        }
        let next = running.source.on_completion(now);
        self.schedule(application as usize, next);
        if self.scenario.storage.is_some() {
            let connection = &mut self.connections[connection as usize];
            match connection.waiting.pop_front() {
                Some(waiting) => self.send(waiting, MessageKind::Command),
                None => connection.outstanding -= 1,
            }
        }
    }

    fn update_promises(&mut self) {
        let now = self.context.now;
        let Self { flows, transport, links, awake, .. } = self;
        for number in &*awake {
            let delivered = transport.delivered(*number);
            let before = &mut flows[number.0 as usize].delivered;
            links.on_delivered(*number, delivered - core::mem::replace(before, delivered));
            if transport.is_busy(*number) {
                links.touch(*number, now);
            }
        }
        links.update(now, &mut self.context.network);
        awake.retain(|number| {
            let is_busy = transport.is_busy(*number);
            flows[number.0 as usize].is_awake = is_busy;
            if is_busy {
                transport.promise(*number, Objective::Rate(links.promised(*number)));
            }
            is_busy
        });
        let next = now.after(self.scenario.promises.every.into());
        self.context.events.push(next, E2eEvent::UpdatePromises);
    }

    fn sample(&mut self) {
        if cfg!(debug_assertions) {
            self.check();
        }
        for running in &mut self.applications {
            let connections = &self.connections[running.first..][..running.targets];
            let moment = running.moment(connections, &self.transport);
            running.service.series.push(moment);
        }
        if let Some(hops) = &mut self.hops {
            hops.sample(self.context.now, &mut self.context.network);
        }
        let next = self.context.now.after(self.scenario.sample.into());
        self.context.events.push(next, E2eEvent::Sample);
    }

    fn count_ports(&mut self) -> Vec<(PortId, Counters)> {
        let now = self.context.now;
        let network = &mut self.context.network;
        let ports = network.ports();
        let of = |port| {
            let each = CLASSES.map(|(class, _)| network.counters(now, port, class));
            (port, each.into_iter().fold(Counters::default(), Counters::and))
        };
        ports.map(of).collect()
    }

    pub(super) fn outcome(mut self) -> E2eReport {
        let Self { scenario, count, .. } = self;
        let now = self.context.now;
        for Exchange { application, request, .. } in self.exchanges.iter() {
            let running = &mut self.applications[*application as usize];
            let is_overdue = |most| request.at < now && now.since(request.at) > most;
            running.service.overdue += u64::from(running.deadline.is_some_and(is_overdue));
        }
        let (length, skip) = (now.span(), scenario.skip.min(now.span()));
        let ports = self.count_ports();
        let before = core::mem::take(&mut self.before);
        let ports = ports.into_iter().enumerate().map(|(index, (port, after))| {
            // Of a run that ended before it counted, nothing.
            let before = before.get(index).map_or(after, |before| before.1);
            let network = &self.context.network;
            let (ends, rate) = (network.ends(port).map(String::from), network.rate(port));
            Egress::new(ends, rate, [before, after], [skip, length])
        });
        E2eReport {
            seed: scenario.seed,
            length,
            skip,
            events: count,
            ports: ports.filter(|port| port.packets > 0).collect(),
            applications: self.applications.into_iter().map(|running| running.service).collect(),
            sample: scenario.sample,
            hops: self.hops.map_or_else(Vec::new, |hops| hops.series(&self.context.network)),
            fault: self.context.network.check().err(),
        }
    }
}

impl RunningApplication {
    /// Returns the activity since the last moment, and starts the next one.
    fn moment(&mut self, connections: &[AppConnection], transport: &Transport) -> Moment {
        let mut moment = Moment { stored: core::mem::take(&mut self.stored), ..Moment::default() };
        let (mut passed, mut busy) = ([0; 2], 0.0);
        for AppConnection { there, back, .. } in connections {
            for (flow, passed) in core::iter::once(there).chain(back).zip(&mut passed) {
                *passed += transport.delivered(*flow);
                if !transport.is_busy(*flow) {
                    continue;
                }
                let snapshot = transport.snapshot(*flow);
                busy += 1.0;
                moment.alpha += snapshot.alpha;
                moment.quality += snapshot.quality;
                let by_rate = snapshot
                    .rate
                    .map_or(0.0, |rate| rate.0 as f64 * snapshot.round_trip.as_seconds());
                moment.window += snapshot.window.map_or(by_rate, |window| window as f64);
            }
        }
        [moment.there, moment.back] = [passed[0] - self.passed[0], passed[1] - self.passed[1]];
        self.passed = passed;
        moment.alpha /= f64::max(busy, 1.0);
        moment.quality = if busy > 0.0 { moment.quality / busy } else { 1.0 };
        moment
    }
}

fn record(times: &mut Histogram<u64>, took: Picoseconds) {
    times.record(took.span().0).expect("a histogram that grows");
}

/// The error of a run in which more requests wait than the limit allows.
fn overloaded(application: u32) -> ScenarioError {
    let key = format!("application.{application}.workload.load");
    let why = "more is asked for than is done, and all of it waits";
    ScenarioError::new(format!("{key}: {REQUESTS_MAX} requests wait: {why}; lower a rate"))
}
