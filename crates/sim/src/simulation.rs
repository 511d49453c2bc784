//! Fault injection: one controller and its peers in virtual time, with lost messages and crashes.
//!
//! **Problem.** Storage nodes, bricks and data nodes differ in their loads and devices. The same
//! faults can happen to all of them: messages are lost, late, doubled and overtaken, links are cut,
//! and processes die, hang, stop for a while and start again.
//!
//! **Model.** A [`Simulation`] has one queue of events, a controller, and a host for each peer: its
//! process while one runs, and its link to the controller. A kind of simulation ([`Peers`]) adds
//! the processes, their load, their devices, and the events of these. Processes and controller are
//! the machines that ship; the simulation gives them time and messages, and performs their outputs.
//!
//! **Faults.** [`Fault`]s are planned for a moment; [`Conduct`] says what a link does to messages.
//! A process that starts again has a new incarnation, and whatever belongs to an earlier one is
//! void. The beginning and the end of a connection are not lost, unless the link is cut: a peer
//! tries to connect until the connection is open.
//!
//! **Checks.** In every simulation the controller sends nothing on a connection that is over and
//! closes none twice, and no machine asks to be called again at once.
//!
//! **Order.** Events at the same time happen in the order in which they were planned. All
//! randomness comes from seeded streams, so a seed is a run to the last event.

mod host;

use std::collections::BTreeSet;

use tidegate_model::Time;
use tidegate_proto::controller::{
    ConnectionId, Controller, FromPeer, Output, Outstanding, Peer, ToPeer,
};
use tidegate_proto::message::Hello;

use crate::alarm::Alarm;
use crate::event::{EventQueue, Events};
use crate::link::Conduct;
use crate::time::Picoseconds;
pub(crate) use host::Host;
use host::{Content, PeerMessage};

/// The time until a peer looks for its controller again.
const RECONNECT: Picoseconds = Picoseconds(20_000_000_000);

/// The process of a peer: a machine that has a session with the controller.
pub(crate) trait Process {
    fn hello(&self, now: Time) -> Hello;
    fn on_connected(&mut self, now: Time);
    fn on_disconnected(&mut self, now: Time);
    fn on_message(&mut self, now: Time, message: ToPeer);
    /// The next message to the controller.
    fn poll_message(&mut self) -> Option<FromPeer>;
    fn next_deadline(&self) -> Time;
}

/// A kind of simulation: the processes of its peers, their load and devices.
pub(crate) trait Peers: Sized {
    type Process: Process;
    /// An event of the load or of a device.
    type Event: Clone;

    /// A controller's process, which knows the policy. Only the first knows that it is the first.
    fn controller(&self, now: Time, incarnation: u32) -> Controller;

    /// The controller has this kept for its next process.
    fn remember(&mut self, _outstanding: Outstanding) {}

    /// The identity of a peer, as the controller's host knows it.
    fn identity(_hello: &Hello) -> Peer {
        Peer::default()
    }

    /// A peer's process.
    fn process(&self, now: Time, peer: u16, incarnation: u32) -> Self::Process;

    /// An event of the load or of a device happens.
    fn happen(simulation: &mut Simulation<Self>, event: Self::Event);

    /// The peer whose process an event calls; a stopped process is called when it goes on.
    fn called(_event: &Self::Event) -> Option<u16> {
        None
    }

    /// A peer's process does what is due before its messages are sent.
    fn work(simulation: &mut Simulation<Self>, peer: u16);

    /// A peer's process has started.
    fn on_start(_simulation: &mut Simulation<Self>, _peer: u16) {}

    /// A peer's process has died.
    fn on_death(_simulation: &mut Simulation<Self>, _peer: u16) {}
}

/// Fault of a peer or the controller, or its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A peer's process ends, without a word.
    Dies(u16),
    /// A new one is started.
    Returns(u16),
    /// A peer's process stands still until then.
    Stops(u16, Picoseconds),
    /// The controller's process ends, without a word.
    ControllerDies,
    /// A new one is started; it knows the policy and what was kept for it.
    ControllerReturns,
    /// A peer closes its connection, as one does that has received nothing for long.
    Hangs(u16),
    /// All links behave like this from now on.
    Links(Box<Conduct>),
    /// A link is cut, or mended.
    Cut(u16, bool),
}

/// Event of a simulation.
#[derive(Clone, Debug)]
enum Event<E> {
    /// An event of the load or of a device.
    Load(E),
    /// A peer's process wanted to be called again.
    Wake { peer: u16, incarnation: u32 },
    /// The controller wanted to be called again.
    Controller { incarnation: u32 },
    /// A peer looks for its controller.
    Connect { peer: u16, incarnation: u32 },
    /// A peer checks when it last received a message of its controller.
    Watch { peer: u16, connection: ConnectionId },
    /// A message arrives. In a box: messages are rare and large, events many and small.
    Message(Box<PeerMessage>),
    /// Something breaks, or is mended.
    Fault(Fault),
    /// The simulation stops, to be looked at.
    Pause,
}

/// The controller's events and messages, for simulations that look at them.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) events: Vec<tidegate_model::Event>,
    pub(crate) sent: Vec<ToPeer>,
}

/// All that is going to happen.
#[derive(Debug)]
pub(crate) struct Agenda<E>(Events<Event<E>>);

impl<E> Agenda<E> {
    /// An event of the load or of a device is to happen at this time.
    pub(crate) fn plan(&mut self, at: Picoseconds, event: E) {
        self.0.push(at, Event::Load(event));
    }
}

/// A controller and its peers in virtual time.
#[derive(Debug)]
pub(crate) struct Simulation<K: Peers> {
    pub(crate) peers: K,
    pub(crate) now: Picoseconds,
    pub(crate) agenda: Agenda<K::Event>,
    pub(crate) hosts: Vec<Host<K::Process>>,
    pub(crate) controller: Option<Controller>,
    /// Which of the controller's processes this is.
    incarnation: u32,
    alarm: Alarm,
    /// How long a peer receives nothing before it gives up its connection.
    silence: Picoseconds,
    /// Until when some process may stand still.
    stopped_until: Picoseconds,
    connections: u64,
    /// The connections that the controller has open.
    open: BTreeSet<ConnectionId>,
    /// The most outputs of the controller at once.
    pub(crate) most_outputs: u32,
    /// Messages to peers, and from them.
    pub(crate) messages: (u64, u64),
    /// Events that happened.
    pub(crate) passed: u64,
    /// A number made from the time of every event: runs that differ have different ones.
    pub(crate) trace: u64,
    pub(crate) journal: Option<Journal>,
}

impl<K: Peers> Simulation<K> {
    /// A simulation without a process yet, with a link for each peer.
    pub(crate) fn new(peers: K, seed: u64, links: &[Conduct], silence: Picoseconds) -> Self {
        let () = const { assert!(size_of::<Event<K::Event>>() <= 40, "events are copied often") };
        Self {
            peers,
            now: Picoseconds::ZERO,
            agenda: Agenda(Events::default()),
            hosts: links.iter().zip(0..).map(|(link, peer)| Host::new(seed, link, peer)).collect(),
            controller: None,
            incarnation: 0,
            alarm: Alarm::OFF,
            silence,
            stopped_until: Picoseconds::ZERO,
            connections: 0,
            open: BTreeSet::new(),
            most_outputs: 0,
            messages: (0, 0),
            passed: 0,
            trace: 0,
            journal: None,
        }
    }

    /// Starts the controller and all peers, which connect.
    pub(crate) fn start(&mut self) {
        self.befall(Fault::ControllerReturns);
        (0..self.hosts.len()).for_each(|peer| self.befall(Fault::Returns(peer as u16)));
    }

    /// Starts the controller and all peers, which are connected from the beginning. The controller
    /// sends its first messages at `first`.
    pub(crate) fn start_connected(&mut self, first: Picoseconds) {
        let now = self.now.time();
        self.incarnation = 1;
        let mut controller = self.peers.controller(now, 1);
        for (number, host) in (0..).zip(&mut self.hosts) {
            self.connections += 1;
            let connection = ConnectionId(self.connections);
            let mut process = self.peers.process(now, number, 1);
            self.open.insert(connection);
            controller.on_hello(now, connection, Peer::default(), process.hello(now));
            process.on_connected(now);
            (host.process, host.incarnation) = (Some(process), 1);
            (host.at_peer, host.at_controller) = (Some(connection), Some(connection));
        }
        self.controller = Some(controller);
        (0..self.hosts.len()).for_each(|peer| self.pump(peer as u16));
        match first > self.now {
            true => self.agenda.0.push(first, Event::Controller { incarnation: 1 }),
            false => self.pump_controller(),
        }
    }

    /// Adds a peer whose link behaves like this, and returns its number. Its process does not run
    /// yet.
    pub(crate) fn add_peer(&mut self, seed: u64, link: &Conduct) -> u16 {
        let peer = self.hosts.len() as u16;
        self.hosts.push(Host::new(seed, link, peer.into()));
        peer
    }

    /// An event of the load or of a device is to happen at this time.
    pub(crate) fn plan(&mut self, at: Picoseconds, event: K::Event) {
        self.agenda.plan(at, event);
    }

    /// Something is to break at this time, or to be mended.
    pub(crate) fn plan_fault(&mut self, at: Picoseconds, fault: Fault) {
        self.agenda.0.push(at, Event::Fault(fault));
    }

    /// Lets everything happen that happens before `end`, and what was planned for that moment
    /// before this call.
    pub(crate) fn run_until(&mut self, end: Picoseconds) {
        self.agenda.0.push(end, Event::Pause);
        while let Some((at, event)) = self.agenda.0.pop() {
            self.now = at;
            self.passed += 1;
            self.trace = (self.trace ^ at.0).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            if at < self.stopped_until
                && let Some(until) = self.stopped(&event)
            {
                self.agenda.0.push(until, event);
                continue;
            }
            match event {
                Event::Load(event) => K::happen(self, event),
                Event::Wake { peer, incarnation } => self.on_wake(peer, incarnation),
                Event::Controller { incarnation } => self.on_controller(incarnation),
                Event::Connect { peer, incarnation } => self.on_connect(peer, incarnation),
                Event::Watch { peer, connection } => self.on_watch(peer, connection),
                Event::Message(message) => self.on_message(*message),
                Event::Fault(fault) => self.befall(fault),
                Event::Pause => return,
            }
        }
    }

    /// When the process goes on that an event calls, if it stands still.
    fn stopped(&self, event: &Event<K::Event>) -> Option<Picoseconds> {
        let peer = match event {
            Event::Load(event) => K::called(event)?,
            Event::Wake { peer, .. } | Event::Connect { peer, .. } | Event::Watch { peer, .. } => {
                *peer
            }
            Event::Message(message) => match message.content {
                Content::ToPeer(_) | Content::ControllerClosed => message.peer,
                _ => return None,
            },
            _ => return None,
        };
        let until = self.hosts[usize::from(peer)].stopped_until;
        (self.now < until).then_some(until)
    }

    // Machines.

    fn on_wake(&mut self, peer: u16, incarnation: u32) {
        let host = &mut self.hosts[usize::from(peer)];
        if host.process.is_some() && host.incarnation == incarnation {
            host.alarm.ring(self.now);
            self.pump(peer);
        }
    }

    /// Performs what a peer asks, and sees to it that the peer is called again in time.
    pub(crate) fn pump(&mut self, peer: u16) {
        let host = &self.hosts[usize::from(peer)];
        if host.process.is_none() || self.now < host.stopped_until {
            return;
        }
        K::work(self, peer);
        let host = &mut self.hosts[usize::from(peer)];
        let Some(process) = &mut host.process else { return };
        while let Some(message) = process.poll_message() {
            let Some(connection) = host.at_peer else { continue };
            self.messages.1 += 1;
            let message = PeerMessage { peer, connection, content: Content::FromPeer(message) };
            self.agenda.post(&mut host.from_peer, self.now, message);
        }
        assert!(process.next_deadline() > self.now.time(), "peer {peer} would spin");
        if let Some(next) = host.alarm.set(self.now, process.next_deadline()) {
            self.agenda.0.push(next, Event::Wake { peer, incarnation: host.incarnation });
        }
    }

    fn on_controller(&mut self, incarnation: u32) {
        if self.incarnation != incarnation {
            return;
        }
        self.alarm.ring(self.now);
        let now = self.now.time();
        if let Some(machine) = &mut self.controller
            && machine.next_deadline() <= now
        {
            machine.on_deadline(now);
            assert!(machine.next_deadline() > now, "the controller would spin");
        }
        self.pump_controller();
    }

    /// Performs what the controller asks, and sees to it that it is called again in time.
    pub(crate) fn pump_controller(&mut self) {
        let Some(machine) = &mut self.controller else { return };
        let mut outputs = 0;
        while let Some(output) = machine.poll_output() {
            outputs += 1;
            let (to, content) = match output {
                Output::Send { to, message } => {
                    assert!(self.open.contains(&to), "{message:?} on a connection that is over");
                    (to, Content::ToPeer(message))
                }
                Output::Close { connection } => {
                    assert!(self.open.remove(&connection), "{connection:?} is closed twice");
                    (connection, Content::ControllerClosed)
                }
                Output::Remember(outstanding) => {
                    self.peers.remember(outstanding);
                    continue;
                }
                Output::Event(event) => {
                    self.journal.iter_mut().for_each(|it| it.events.push(event.clone()));
                    continue;
                }
            };
            let known = |host: &Host<_>| host.at_controller == Some(to);
            let Some(peer) = self.hosts.iter().position(known) else { continue };
            let host = &mut self.hosts[peer];
            if let (Some(journal), Content::ToPeer(message)) = (&mut self.journal, &content) {
                journal.sent.push(message.clone());
            }
            let message = PeerMessage { peer: peer as u16, connection: to, content };
            if let Content::ControllerClosed = message.content {
                host.at_controller = None;
                self.agenda.announce(&host.to_peer, self.now, message);
            } else {
                self.messages.0 += 1;
                self.agenda.post(&mut host.to_peer, self.now, message);
            }
        }
        self.most_outputs = self.most_outputs.max(outputs);
        if let Some(next) = self.alarm.set(self.now, machine.next_deadline()) {
            self.agenda.0.push(next, Event::Controller { incarnation: self.incarnation });
        }
    }

    // The links.

    fn on_connect(&mut self, peer: u16, incarnation: u32) {
        let host = &mut self.hosts[usize::from(peer)];
        let Some(process) = host.process.as_mut().filter(|_| host.incarnation == incarnation)
        else {
            return;
        };
        if host.at_peer.is_some() {
            return;
        }
        if self.controller.is_none() || host.from_peer.conduct().is_cut(self.now) {
            let again = self.now.after(RECONNECT);
            self.agenda.0.push(again, Event::Connect { peer, incarnation });
            return;
        }
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let hello = process.hello(self.now.time());
        host.at_peer = Some(connection);
        host.last_received = self.now;
        let watch = self.now.after(self.silence);
        self.agenda.0.push(watch, Event::Watch { peer, connection });
        let message = PeerMessage { peer, connection, content: Content::Hello(hello) };
        self.agenda.announce(&host.from_peer, self.now, message);
        process.on_connected(self.now.time());
        self.pump(peer);
    }

    fn on_message(&mut self, message: PeerMessage) {
        let PeerMessage { peer, connection, content } = message;
        let now = self.now.time();
        let host = &mut self.hosts[usize::from(peer)];
        let is_open = match content {
            Content::Hello(_) => true,
            Content::ToPeer(_) | Content::ControllerClosed => host.at_peer == Some(connection),
            Content::FromPeer(_) | Content::PeerClosed => host.at_controller == Some(connection),
        };
        if !is_open {
            return;
        }
        match content {
            Content::ToPeer(message) => return self.deliver(peer, message),
            Content::ControllerClosed => return self.hang_up(peer),
            _ => {}
        }
        let Some(machine) = &mut self.controller else { return };
        match content {
            Content::Hello(hello) => {
                host.at_controller = Some(connection);
                self.open.insert(connection);
                machine.on_hello(now, connection, K::identity(&hello), hello);
            }
            Content::FromPeer(message) => machine.on_message(now, connection, message),
            _ => {
                host.at_controller = None;
                self.open.remove(&connection);
                machine.on_closed(now, connection, "the peer has closed it");
            }
        }
        self.pump_controller();
    }

    /// A peer's process sends a message that is not its machine's.
    pub(crate) fn say(&mut self, peer: u16, message: FromPeer) {
        let host = &mut self.hosts[usize::from(peer)];
        if let Some(connection) = host.at_peer {
            let message = PeerMessage { peer, connection, content: Content::FromPeer(message) };
            self.agenda.post(&mut host.from_peer, self.now, message);
        }
    }

    /// A process that is none of the peers' connects to the controller, if one runs.
    pub(crate) fn meet(&mut self, hello: Hello) {
        let Some(machine) = &mut self.controller else { return };
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.open.insert(connection);
        machine.on_hello(self.now.time(), connection, Peer::default(), hello);
        self.pump_controller();
    }

    /// A side that does not learn of the end of its connection ends it itself.
    fn on_watch(&mut self, peer: u16, connection: ConnectionId) {
        let host = &self.hosts[usize::from(peer)];
        if host.at_peer != Some(connection) {
            return;
        }
        let until = host.last_received.after(self.silence);
        if until <= self.now {
            self.befall(Fault::Hangs(peer));
        } else {
            self.agenda.0.push(until, Event::Watch { peer, connection });
        }
    }

    fn deliver(&mut self, peer: u16, message: ToPeer) {
        let host = &mut self.hosts[usize::from(peer)];
        host.last_received = self.now;
        let Some(process) = &mut host.process else { return };
        process.on_message(self.now.time(), message);
        self.pump(peer);
    }

    /// A peer's connection is over at its side; it looks for another.
    fn hang_up(&mut self, peer: u16) {
        let host = &mut self.hosts[usize::from(peer)];
        host.at_peer = None;
        if let Some(process) = &mut host.process {
            process.on_disconnected(self.now.time());
            let again = self.now.after(RECONNECT);
            self.agenda.0.push(again, Event::Connect { peer, incarnation: host.incarnation });
        }
        self.pump(peer);
    }

    // Faults.

    /// Something breaks now, or is mended.
    pub(crate) fn befall(&mut self, fault: Fault) {
        match fault {
            Fault::Dies(peer) => {
                self.close_at_peer(peer);
                self.hosts[usize::from(peer)].process = None;
                K::on_death(self, peer);
            }
            Fault::Returns(peer) => self.on_return(peer),
            Fault::Stops(peer, until) => {
                let host = &mut self.hosts[usize::from(peer)];
                // A process that stands still already goes on at the later of the two times.
                host.stopped_until = host.stopped_until.max(until);
                self.stopped_until = self.stopped_until.max(until);
                let incarnation = host.incarnation;
                self.agenda.0.push(until, Event::Wake { peer, incarnation });
            }
            Fault::ControllerDies => {
                self.controller = None;
                self.open.clear();
                for (peer, host) in (0..).zip(&mut self.hosts) {
                    let Some(connection) = host.at_controller.take() else { continue };
                    let message =
                        PeerMessage { peer, connection, content: Content::ControllerClosed };
                    self.agenda.announce(&host.to_peer, self.now, message);
                }
            }
            Fault::ControllerReturns => {
                if self.controller.is_none() {
                    self.incarnation += 1;
                    self.alarm = Alarm::OFF;
                    let controller = self.peers.controller(self.now.time(), self.incarnation);
                    self.controller = Some(controller);
                    self.pump_controller();
                }
            }
            Fault::Hangs(peer) => {
                if self.hosts[usize::from(peer)].at_peer.is_some() {
                    self.close_at_peer(peer);
                    self.hang_up(peer);
                }
            }
            Fault::Links(conduct) => {
                for host in &mut self.hosts {
                    host.to_peer
                        .set(Conduct { cuts: host.to_peer.conduct().cuts.clone(), ..*conduct });
                    host.from_peer.set(host.to_peer.conduct().clone());
                }
            }
            Fault::Cut(peer, is_cut) => {
                let host = &mut self.hosts[usize::from(peer)];
                for link in [&mut host.to_peer, &mut host.from_peer] {
                    link.cut(self.now, is_cut);
                }
            }
        }
    }

    /// The other side learns of it, if the link lets it.
    fn close_at_peer(&mut self, peer: u16) {
        let host = &mut self.hosts[usize::from(peer)];
        if let Some(connection) = host.at_peer.take() {
            let message = PeerMessage { peer, connection, content: Content::PeerClosed };
            self.agenda.announce(&host.from_peer, self.now, message);
        }
    }

    /// A peer's process starts, if there is none.
    fn on_return(&mut self, peer: u16) {
        let host = &mut self.hosts[usize::from(peer)];
        if host.process.is_some() {
            return;
        }
        host.incarnation += 1;
        (host.alarm, host.stopped_until) = (Alarm::OFF, Picoseconds::ZERO);
        let incarnation = host.incarnation;
        host.process = Some(self.peers.process(self.now.time(), peer, incarnation));
        self.agenda.0.push(self.now, Event::Connect { peer, incarnation });
        K::on_start(self, peer);
        self.pump(peer);
    }
}
