//! A data node, its monitor and some clients, driven by a test a step at a time.

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::capacity::Profile;
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::monitor::{MonitorSettings, Summary};
use tidegate_onesided::haechi::words::PoolWord;
use tidegate_onesided::haechi::{Monitor, MonitorEvent, Port, SessionParameters, region_layout};
use tidegate_onesided::one_sided::{BufferPosition, Done, Operation, Post, RemoteMemory};

use super::memory::{Lever, Node, Wire};

/// T.
pub(crate) const PERIOD: Span = Span(100 * Span::MILLISECOND.0);
/// Ω, in operations per period.
pub(crate) const CAPACITY: u64 = 10_000;
/// Operations that a client has under way at most.
pub(crate) const WINDOW: u32 = 8;
/// The time between polls of all clients: a window in each is what a client can do.
pub(crate) const POLL_INTERVAL: Span = Span(50_000);
/// C_L, in operations per period.
pub(crate) const LOCAL: u64 = WINDOW as u64 * PERIOD.0 / POLL_INTERVAL.0;

/// The promise to a client without a limit.
pub(crate) const fn reserve(reservation: u64) -> Promise {
    Promise { reservation, limit: u64::MAX }
}

pub(crate) const fn parameters(rules: Rules) -> SessionParameters {
    SessionParameters { rules, period: PERIOD, local_rate: LOCAL * (Span::SECOND.0 / PERIOD.0) }
}

/// The memory does whatever it is asked, so an estimate could only grow; here it does not.
pub(crate) const fn settings(rules: Rules) -> MonitorSettings {
    let profile = Profile { mean: CAPACITY, deviation: 50, local: LOCAL, increment: 0, history: 5 };
    MonitorSettings { parameters: parameters(rules), profile, session_slots: 16, window: WINDOW }
}

/// One client: its engine, and what it wants.
pub(crate) struct Client {
    pub(crate) port: Port<Wire>,
    pub(crate) lever: Lever,
    pub(crate) session_slot: SessionSlot,
    /// How many operations it wants yet.
    pub(crate) wants: u64,
    /// Its process stands still.
    pub(crate) is_stopped: bool,
    /// The offset of its clock from the node's, and parts of 10^6 by which it is fast.
    pub(crate) ahead: Span,
    pub(crate) drift: i64,
    /// How many times it was looked after.
    pub(crate) polls: u64,
    done: Vec<Done>,
    pub(crate) completed: u64,
}

impl Client {
    pub(crate) fn time(&self, now: Time) -> Time {
        let drift = now.0 as i128 * i128::from(self.drift) / 1_000_000;
        Time((now.0 as i128 + drift) as u64).after(self.ahead)
    }

    /// Posts what it wants, and looks after its engine.
    pub(crate) fn poll(&mut self, now: Time) {
        let now = self.time(now);
        self.polls += 1;
        // Answers first: no client reads a clock and then sleeps with answers in hand.
        self.port.poll(now, &mut self.done).unwrap();
        self.completed += self.done.len() as u64;
        self.done.clear();
        while self.wants > 0 {
            let read = Operation::Read {
                from: region_layout::DATA,
                into: BufferPosition::start(0),
                length: 8,
            };
            if self.port.post(Post { id: 7, operation: read }).is_err() {
                break;
            }
            self.wants -= 1;
        }
        self.port.flush(now).unwrap();
    }
}

/// All of them.
pub(crate) struct HaechiSim {
    pub(crate) rules: Rules,
    pub(crate) now: Time,
    pub(crate) node: Node,
    pub(crate) monitor: Monitor<Wire>,
    pub(crate) lever: Lever,
    pub(crate) is_monitor_stopped: bool,
    pub(crate) clients: Vec<Client>,
    pub(crate) events: Vec<MonitorEvent>,
}

impl HaechiSim {
    pub(crate) fn new(rules: Rules, promises: &[Promise]) -> Self {
        Self::on(Node::new(), rules, promises)
    }

    pub(crate) fn on(node: Node, rules: Rules, promises: &[Promise]) -> Self {
        let (wire, lever) = node.connect();
        let now = Time::ZERO;
        let monitor = Monitor::new(wire, settings(rules), now).map_err(|_| ()).unwrap();
        let mut sim = Self {
            rules,
            now,
            node,
            monitor,
            lever,
            is_monitor_stopped: false,
            clients: Vec::new(),
            events: Vec::new(),
        };
        promises.iter().for_each(|promise| sim.join(*promise));
        sim
    }

    /// Another client, with more to do than it can.
    pub(crate) fn join(&mut self, promise: Promise) {
        let session_slot = self.monitor.admit(promise).unwrap();
        self.connect(session_slot);
    }

    pub(crate) fn connect(&mut self, session_slot: SessionSlot) {
        let (wire, lever) = self.node.connect();
        let port =
            Port::new(wire, parameters(self.rules), session_slot, WINDOW, self.now).map_err(|_| ());
        self.clients.push(Client {
            port: port.unwrap(),
            lever,
            session_slot,
            wants: u64::MAX,
            is_stopped: false,
            ahead: Span::ZERO,
            drift: 0,
            polls: 0,
            done: Vec::new(),
            completed: 0,
        });
    }

    /// A monitor that takes over, and the one there was.
    pub(crate) fn take_over(&mut self) -> (Monitor<Wire>, Lever) {
        let (wire, lever) = self.node.connect();
        let next = Monitor::new(wire, settings(self.rules), self.now).map_err(|_| ()).unwrap();
        let former = core::mem::replace(&mut self.monitor, next);
        (former, core::mem::replace(&mut self.lever, lever))
    }

    /// The monitor and all clients that are not stopped are polled, then it is a little later.
    pub(crate) fn step(&mut self) {
        if !self.is_monitor_stopped {
            self.monitor.poll(self.now, &mut self.events).unwrap();
        }
        for client in self.clients.iter_mut().filter(|client| !client.is_stopped) {
            client.poll(self.now);
        }
        self.now = self.now.after(POLL_INTERVAL);
    }

    pub(crate) fn run(&mut self, span: Span) {
        let end = self.now.after(span);
        while self.now < end {
            self.step();
        }
    }

    /// Goes on until so much of the next period is over.
    pub(crate) fn run_into_next(&mut self, span: Span) {
        let epoch = self.epoch();
        while self.epoch() == epoch {
            self.step();
        }
        self.run(span);
    }

    /// The period of the monitor.
    pub(crate) fn epoch(&self) -> u64 {
        self.monitor.account().period().epoch
    }

    pub(crate) fn pool(&self) -> PoolWord {
        PoolWord::read(self.node.word(region_layout::POOL))
    }

    /// Operations on data that have happened.
    pub(crate) fn issued(&self) -> u64 {
        self.clients.iter().map(|client| client.lever.issued()).sum()
    }

    /// Goes on for some periods, and says how much was issued in each.
    pub(crate) fn issued_in(&mut self, periods: usize) -> Vec<u64> {
        let mut issued = Vec::new();
        self.run_into_next(Span::ZERO);
        for _ in 0..periods {
            let before = self.issued();
            self.run_into_next(Span::ZERO);
            issued.push(self.issued() - before);
        }
        issued
    }

    /// The summaries of completed periods.
    pub(crate) fn summaries(&self) -> impl DoubleEndedIterator<Item = &Summary> {
        self.events.iter().filter_map(|event| match event {
            MonitorEvent::Over(summary) => Some(summary),
            _ => None,
        })
    }

    /// No period granted more than was made.
    pub(crate) fn check_account(&self) {
        for summary in self.summaries() {
            assert!(summary.granted <= summary.minted, "{summary:?}");
        }
        assert!(self.monitor.account().granted() <= self.monitor.account().minted());
    }
}

/// Operations that may be issued in a period beyond Ω: those under way, and uses of old tokens in
/// the millisecond in which clocks may differ, twice.
pub(crate) fn slack(clients: usize) -> u64 {
    clients as u64 * u64::from(WINDOW) + 2 * CAPACITY / 100
}

/// A part of a period, in hundredths.
pub(crate) const fn percent(part: u64) -> Span {
    Span(PERIOD.0 / 100 * part)
}
